"""No layer adds by scatter or reads a value of a tensor, on devices other than the CPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from watching import Watching  # noqa: E402

from poolgrad.tools.check.layers import LAYERS, LayerCase, call, prepared  # noqa: E402
from poolgrad.torch.layers import arguments, polyphase  # noqa: E402

CASES = [
    pytest.param(case, id=f"{name}-{i}") for name, cases in LAYERS.items()
    for i, case in enumerate(cases) if not name.startswith("RoI")  # in test_regions_portable.py
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_scattered_or_read(
    case: LayerCase, no_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "on_cpu", lambda x: False)
    layer, x = prepared(case)
    leaf = torch.tensor(x, requires_grad=True)
    leaves = [leaf, *layer.parameters()]
    # Of attention, PyTorch differentiates only this implementation twice.
    with Watching() as watching, sdpa_kernel(SDPBackend.MATH):
        y = call(case, layer, leaf)
        slopes = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        total: Any = sum(slope.square().sum() for slope in slopes)
        total.backward()
    assert "sum" in watching.names
    assert not watching.refused


def test_polyphase_components_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ties, and with values that are not finite."""
    generator = torch.Generator().manual_seed(0)
    for values in ([0.0, -0.0, 1.0, -1.0], [0.0, 1.0], [torch.inf, -torch.inf, torch.nan, 1.0]):
        for shape in ((4, 1, 4, 6), (4, 3, 6, 4), (4, 2, 2, 2)):
            x = torch.tensor(values)[torch.randint(len(values), shape, generator=generator)]
            expected = polyphase.choose_component(x, (2, 2), 2.0)
            with monkeypatch.context() as patch:
                patch.setattr(arguments, "on_cpu", lambda x: False)
                assert torch.equal(polyphase.choose_component(x, (2, 2), 2.0), expected)
