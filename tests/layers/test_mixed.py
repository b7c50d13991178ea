"""Mixed pooling: its limits, as a layer that is learned, and its ONNX file."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from layer_checks import check_exported, check_gradients, distinct, exporters  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from poolgrad.torch import MixedPool1d, MixedPool2d, MixedPool3d  # noqa: E402


def test_alpha_of_one_and_zero_are_the_parts() -> None:
    x = distinct(2, 3, 6, 8) - 1
    assert torch.equal(MixedPool2d(2, alpha=1.0)(x), functional.max_pool2d(x, 2))
    torch.testing.assert_close(MixedPool2d(2, alpha=0.0)(x), functional.avg_pool2d(x, 2))


@pytest.mark.parametrize("alpha", [0.25, [0.25, -0.5, 1.5]], ids=str)
def test_gradients(alpha: Any) -> None:
    layer = MixedPool2d(2, alpha=nn.Parameter(torch.tensor(alpha)))
    check_gradients(layer, distinct(2, 3, 4, 4) - 1)


@pytest.mark.parametrize("alpha", [0.25, [0.25, -0.5, 1.5]], ids=str)
@pytest.mark.parametrize(
    ("dims", "given"),
    [
        (1, {"kernel_size": 3}),
        (2, {"kernel_size": 3, "stride": 2, "padding": 1}),
        (2, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
        (2, {"kernel_size": (2, 3), "ceil_mode": True}),
        (3, {"kernel_size": 2}),
    ],
    ids=str,
)
@exporters
def test_exported(dims: int, given: Any, alpha: Any, dynamo: bool) -> None:
    pool = {1: MixedPool1d, 2: MixedPool2d, 3: MixedPool3d}[dims]
    layer = pool(**given, alpha=nn.Parameter(torch.tensor(alpha)))
    x = (distinct(2, 3, *(7, 6, 5)[:dims]) - 1).float()
    kinds = check_exported(layer, x, dynamo)
    assert {"MaxPool", "AveragePool"} <= kinds
    if dims == 1 and alpha == 0.25:
        check_exported(pool(**given, alpha=alpha), x, dynamo)
