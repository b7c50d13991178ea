"""Tensors of other devices: PyTorch pools them there, or they are pooled here and go back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from robustness.calls import example  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad import torch as layers  # noqa: E402
from poolgrad.functional import FUNCTIONS  # noqa: E402
from poolgrad.recipes import KNOWN  # noqa: E402
from poolgrad.torch import elsewhere  # noqa: E402


def call(name: str, channels_last: bool = False) -> tuple[torch.Tensor, dict[str, Any]]:
    """An input, and arguments; what is an array is a tensor."""
    shape, kwargs = example(name, channels_last)
    tensors = {
        k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()
    }
    return torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(0)), tensors


def imagine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor is another device, whose tensors happen to be copied at no cost."""
    monkeypatch.setattr(elsewhere, "HERE", ("meta",))
    monkeypatch.delitem(KNOWN, torch.Tensor)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_where_the_input_is(name: str, channels_last: bool) -> None:
    """On a device that is imagined: shapes and devices of what real tensors would give."""
    x, kwargs = call(name, channels_last)
    expected = FUNCTIONS[name](x, **kwargs)
    with FakeTensorMode(allow_non_fake_inputs=True):

        def imagined(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return torch.empty(value.shape, dtype=value.dtype, device="cuda")

        y = FUNCTIONS[name](imagined(x), **{k: imagined(v) for k, v in kwargs.items()})
    assert (y.device.type, y.shape, y.dtype) == ("cuda", expected.shape, expected.dtype)


@pytest.mark.parametrize("ties", ["first", "split"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_and_gradients_are_the_same(
    name: str, channels_last: bool, ties: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, kwargs = call(name, channels_last)
    if "max" in name and "unpool" not in name:
        kwargs["ties"] = ties

    def outcome() -> list[torch.Tensor]:
        leaf = x.clone().requires_grad_()
        y = FUNCTIONS[name](leaf, **kwargs)
        y.square().sum().backward()
        return [y, leaf.grad]

    ours = outcome()
    imagine(monkeypatch)
    for a, b in zip(outcome(), ours, strict=True):
        torch.testing.assert_close(a, b)


PYTORCHS = [
    ("max_pool1d", (3, 2, 1), {}),
    ("max_pool2d", (2,), {"return_indices": True}),
    ("max_pool3d", ((1, 2, 3), 2, 0, 2), {"ceil_mode": True}),
    ("avg_pool1d", (3, 2, 1), {"count_include_pad": False}),
    ("avg_pool2d", (3, 2, 1), {"divisor_override": 5, "ceil_mode": True}),
    ("adaptive_max_pool1d", (4,), {"return_indices": True}),
    ("adaptive_avg_pool2d", ((None, 4),), {}),
    ("adaptive_avg_pool1d", (None,), {}),
    ("global_max_pool", (), {"keepdims": True}),
    ("global_avg_pool", (), {}),
    ("relu_max_pool2d", (3, 2, 1), {}),
    ("max_pool2d", (2,), {"channels_last": True, "return_indices": True}),
    ("adaptive_avg_pool2d", (2,), {"channels_last": True}),
    ("global_avg_pool", (), {"channels_last": True}),
]
HERE = [
    ("max_pool2d", (3,), {"padding": "same"}),
    ("max_pool2d", (3,), {"padding": 2}),
    ("max_pool2d", (2,), {"ties": "zero"}),
    ("relu_max_pool2d", (2,), {"return_indices": True}),
    ("relu_max_pool2d", (2,), {"dilation": 2}),
    ("avg_pool2d", (2, 1, 0), {"dilation": 2}),
    ("avg_pool1d", (2,), {"divisor_override": 3}),
    ("min_pool2d", (2,), {"return_indices": True}),
    ("stochastic_pool2d", (2,), {"generator": 3}),
]


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "theirs"),
    [*((*case, True) for case in PYTORCHS), *((*case, False) for case in HERE)],
)
def test_pytorch_does_what_it_can(
    name: str, args: Any, kwargs: Any, theirs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dims = int(name[-2]) if name.endswith("d") else 2
    x = torch.randn((2, 3, *(9, 8, 7)[:dims]), generator=torch.manual_seed(0))
    expected = FUNCTIONS[name](x, *args, **kwargs)
    imagine(monkeypatch)
    came: list[Any] = []
    pool = elsewhere.perform
    monkeypatch.setattr(
        elsewhere, "perform", lambda r, here: pool(r, lambda r: came.append(r) or here(r))
    )
    made = FUNCTIONS[name](x, *args, **kwargs)
    assert bool(came) is not theirs
    pairs = (
        [(made, expected)] if isinstance(made, torch.Tensor) else zip(made, expected, strict=True)
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b)


def test_modules_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, x = layers.MinPool2d(2), torch.randn(2, 3, 8, 8)
    y = pool(x)
    imagine(monkeypatch)
    assert torch.equal(pool(x), y)


def test_random_numbers_come_from_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(2, 3, 9, 9)
    imagine(monkeypatch)
    for name, args in (("stochastic_pool2d", (2,)), ("fractional_max_pool2d", (2, 4))):
        pool = getattr(poolgrad, name)
        first, second, third = (
            pool(x, *args, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
        )
        assert torch.equal(first, second)
        assert not torch.equal(first, third)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "words"),
    [
        ((2,), {"routes": "x"}, ValueError, "routes must be"),
        ((2,), {"ties": "last"}, ValueError, "ties must be"),
        ((9,), {}, ValueError, "kernel_size"),
        ((0,), {}, ValueError, "kernel_size must be positive"),
        ((2,), {"out": 3}, TypeError, "out is accepted only if"),
    ],
)
def test_errors_are_those_of_here(args: Any, kwargs: Any, error: Any, words: str) -> None:
    with FakeTensorMode():
        x = torch.empty(1, 2, 8, 8, device="cuda")
        with pytest.raises(error, match=words):
            poolgrad.max_pool2d(x, *args, **kwargs)
        with pytest.raises(TypeError, match="x must be of dtype"):
            poolgrad.max_pool2d(x.to(torch.float8_e4m3fn), 2)
