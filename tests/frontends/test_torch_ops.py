"""torch.ops.poolgrad: PyTorch's operator checks, meta shapes, and special kinds of tensors."""

from __future__ import annotations

import io
from typing import Any

import pytest

import poolgrad
from poolgrad.windows import adaptive, fixed, flatten, whole

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from poolgrad import torch as layers  # noqa: E402

poolgrad.max_pool2d(torch.ones(1, 2, 2), 2)  # the operators exist from the first tensor on

OPS = torch.ops.poolgrad
SPECS = {
    "2x2": fixed(2, 2),
    "3x3 overlapping, padded": fixed(2, 3, 2, 1),
    "ceil, uneven padding, dilation": fixed(2, (2, 3), (2, 1), [(0, 3), (2, 0)], (2, 1), True),
    "same": fixed(2, 3, 2, "same"),
    "bins": adaptive(2, 3),
    "global": whole(2),
}
WINDOWS = {name: flatten(spec) for name, spec in SPECS.items()}
MEMORY = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
windows = pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
formats = pytest.mark.parametrize("memory", MEMORY)


def image(memory: str = "contiguous") -> torch.Tensor:
    x = torch.randint(-3, 4, (2, 3, 7, 8), generator=torch.Generator().manual_seed(0)).float()
    return x.contiguous(memory_format=MEMORY[memory])


def check(op: Any, *args: Any) -> None:
    """Schema, autograd registration, fake tensors and AOT dispatch: all that PyTorch can check."""
    done = torch.library.opcheck(op.default, args)
    assert set(done.values()) == {"SUCCESS"}


CHECKED = [  # windows, memory format, ties: each word once or twice, since each takes a second
    ("2x2", "channels_last", "zero"),
    ("3x3 overlapping, padded", "contiguous", "first"),
    ("ceil, uneven padding, dilation", "contiguous", "split"),
    ("same", "channels_last", "split"),
    ("bins", "channels_last", "first"),
    ("global", "contiguous", "first"),
]


@pytest.mark.parametrize(("name", "memory", "ties"), CHECKED)
def test_max_ops(name: str, memory: str, ties: str) -> None:
    x, window = image(memory), WINDOWS[name]
    inner = 1 if memory == "channels_last" else -1
    y, residual = OPS.max(x, window, False, ties, "bytes")
    check(OPS.max, x.clone().requires_grad_(), window, False, ties, "bytes")
    gy = torch.ones_like(y).requires_grad_()
    check(OPS.max_vjp, gy, residual, window, list(x.shape), False, inner, ties, "bytes")
    check(OPS.max_jvp, x.clone().requires_grad_(), residual, window, False, inner, ties, "bytes")
    if ties == "first":
        check(OPS.max_indices, x, residual, window, False, ties, "bytes")


@pytest.mark.parametrize(("name", "memory"), [c[:2] for c in CHECKED[1:5]])
def test_avg_ops(name: str, memory: str) -> None:
    x, window = image(memory), WINDOWS[name]
    inner = 1 if memory == "channels_last" else -1
    y = OPS.avg(x, window, False, True, 0)
    check(OPS.avg, x.clone().requires_grad_(), window, False, True, 0)
    gy = torch.ones_like(y).requires_grad_()
    check(OPS.avg_vjp, gy, window, list(x.shape), False, inner, True, 0)
    check(OPS.avg_jvp, x.clone().requires_grad_(), window, False, inner, True, 0)
    codes = x.abs().to(torch.uint8)
    check(OPS.avg, codes, window, False, True, 0, [0.5, 3.0, 0.0, 100.0])
    means = OPS.avg(codes, window, False, True, 0, [])
    assert torch.equal(means, OPS.avg(x.abs(), window, False, True, 0))


@formats
@pytest.mark.parametrize("ties", ["first", "zero", "split"])
def test_the_ops_differentiate_without_the_public_functions(ties: str, memory: str) -> None:
    """As an exported program calls them."""
    x = image(memory).requires_grad_()
    y, _ = OPS.max(x, WINDOWS["3x3 overlapping, padded"], False, ties, "bytes")
    expected = poolgrad.max_pool2d(x, 3, 2, 1, ties=ties)
    assert torch.equal(y, expected)
    gy = torch.randn(y.shape)
    assert torch.equal(torch.autograd.grad(y, x, gy)[0], torch.autograd.grad(expected, x, gy)[0])


@windows
def test_pull_and_push_are_adjoint(window: list[int]) -> None:
    """<vjp(gy), t> = <gy, jvp(t)>: the transposed Jacobian and the Jacobian."""
    x = image().double()
    t = torch.randint(-3, 4, x.shape).double()
    where = (window, list(x.shape), False, -1)
    for ties in ("first", "split", "zero"):
        y, kept = OPS.max(x, window, False, ties, "bytes")
        gy = torch.randint(-3, 4, y.shape).double()
        pulled = OPS.max_vjp(gy, kept, *where, ties, "bytes")
        pushed = OPS.max_jvp(t, kept, window, False, -1, ties, "bytes")
        assert (pulled * t).sum().item() == pytest.approx((gy * pushed).sum().item())
    gy = torch.randint(-3, 4, OPS.avg(x, window, False, True, 0).shape).double()
    pulled, pushed = OPS.avg_vjp(gy, *where, True, 0), OPS.avg_jvp(t, window, False, -1, True, 0)
    assert (pulled * t).sum().item() == pytest.approx((gy * pushed).sum().item())


@formats
@pytest.mark.parametrize("fun", ["max", "avg", "adaptive_max", "adaptive_avg"])
def test_meta_tensors(fun: str, memory: str) -> None:
    """Shapes, dtypes and strides without data: those of the real thing, back as well."""
    pool = getattr(poolgrad, f"{fun}_pool2d")
    real = image(memory).requires_grad_()
    meta = image(memory).to("meta").requires_grad_()
    y, expected = pool(meta, 3), pool(real, 3)
    assert y.device.type == "meta"
    assert (y.shape, y.dtype, y.stride()) == (expected.shape, expected.dtype, expected.stride())
    y.sum().backward()
    expected.sum().backward()
    assert (meta.grad.shape, meta.grad.stride()) == (real.grad.shape, real.grad.stride())


def test_meta_tensors_with_indices_and_errors() -> None:
    y, indices = poolgrad.max_pool2d(image().to("meta"), 3, return_indices=True)
    assert (indices.dtype, indices.shape) == (torch.int64, y.shape)
    with pytest.raises(ValueError, match="kernel_size 9"):
        poolgrad.max_pool2d(image().to("meta"), 9)
    huge = torch.empty(2**20, 2**20, 2**10, 2**3, device="meta")
    assert poolgrad.max_pool2d(huge, 2).shape == (2**20, 2**20, 2**9, 2**2)


@pytest.mark.parametrize("kind", ["inference", "no_grad", "detached", "neg", "zero", "parameter"])
def test_special_tensors(kind: str) -> None:
    x = image()
    expected = poolgrad.max_pool2d(x, 2)
    if kind == "inference":
        with torch.inference_mode():
            y = poolgrad.max_pool2d(x, 2)
    elif kind == "no_grad":
        with torch.no_grad():
            y = poolgrad.max_pool2d(x.clone().requires_grad_(), 2)
    elif kind == "detached":
        y = poolgrad.max_pool2d(x.clone().requires_grad_(), 2).detach()
    elif kind == "neg":
        y = poolgrad.max_pool2d(torch._neg_view(-x), 2)
    elif kind == "zero":
        y = poolgrad.max_pool2d(torch._efficientzerotensor(x.shape), 2)
        expected = torch.zeros_like(expected)
    else:
        y = poolgrad.max_pool2d(torch.nn.Parameter(x), 2).detach()
    assert not y.requires_grad
    assert torch.equal(y, expected)


def test_inputs_are_not_marked_as_changed() -> None:
    x = image().requires_grad_()
    for pool in (poolgrad.max_pool2d, poolgrad.avg_pool2d):
        y = pool(x, 2)
        gy = torch.ones_like(y)
        torch.autograd.grad(y, x, gy)
        assert (x._version, gy._version) == (0, 0)


def test_only_the_output_has_a_gradient() -> None:
    y, indices = poolgrad.max_pool2d(image().requires_grad_(), 2, return_indices=True)
    assert y.requires_grad
    assert not indices.requires_grad
    assert not OPS.max(image().requires_grad_(), WINDOWS["2x2"], False, "first", "bytes")[
        1
    ].requires_grad


TRACED = {
    "function": lambda: lambda x: poolgrad.max_pool2d(x, 2),
    "padded": lambda: lambda x: poolgrad.avg_pool2d(x, 3, 2, "same"),
    "number": lambda: lambda x: poolgrad.lp_pool2d(x, 3.0, 2),
    "learned": lambda: layers.GlobalLPPool2d(torch.nn.Parameter(torch.full((3,), 3.0))),
    "indices": lambda: lambda x: poolgrad.max_pool2d(x, 2, return_indices=True)[0],
    "samples": lambda: (
        lambda x: poolgrad.fractional_max_pool2d(
            x, 2, 3, _random_samples=torch.full((2, 3, 2), 0.5)
        )
    ),
    "bins": lambda: lambda x: poolgrad.adaptive_avg_pool2d(x, (None, 3)),
    "module": lambda: layers.MedianPool2d(3),
    "converted": lambda: converted(torch.nn.MaxPool2d(2)),
    "accelerated": lambda: layers.accelerate()(lambda x: torch.nn.functional.max_pool2d(x, 2)),
}


def converted(pool: torch.nn.Module) -> torch.nn.Module:
    layers.convert(pool)
    return pool


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", TRACED)
def test_traces_hold_operators(name: str) -> None:
    """They can be saved, and have gradients."""
    pool = TRACED[name]()
    x = image().add(4).requires_grad_()
    traced = torch.jit.trace(pool, x)
    stored = io.BytesIO()
    torch.jit.save(traced, stored)
    stored.seek(0)
    for again in (traced, torch.jit.load(stored)):
        for given in (x, x.detach().flip(0).requires_grad_()):
            y, expected = again(given), pool(given)
            assert torch.equal(y, expected)
            (gx,) = torch.autograd.grad(y.sum(), given)
            assert torch.equal(gx, torch.autograd.grad(expected.sum(), given)[0])
