"""The bits of a result do not depend on strides, on the batch size or on the place in a batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import poolgrad

ml_dtypes = pytest.importorskip("ml_dtypes")

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]

# Operators that add. The windows overlap, touch, are long, wide, high, or are whole planes: each
# kind has an algorithm of its own, which adds in its own order.
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("global_avg_pool", (), {}),
    ("global_lp_pool", (), {"norm_type": 2.5}),
    ("global_log_mean_exp_pool", (), {"r": 1.5}),
    ("adaptive_avg_pool2d", (1,), {}),
    ("adaptive_avg_pool2d", ((3, 1),), {}),
    ("adaptive_avg_pool2d", ((5, 7),), {}),
    ("avg_pool2d", (2,), {}),
    ("avg_pool2d", (3, 2, 1), {}),
    ("avg_pool2d", (3, 1), {"dilation": 2}),
    ("avg_pool2d", (7, 7), {}),
    ("avg_pool2d", (16, 1), {}),
    ("avg_pool2d", ((1, 20), 1), {}),
    ("avg_pool2d", ((20, 20), (20, 3)), {}),
    ("lp_pool2d", (2.0, 3, 2), {}),
    ("lp_pool2d", (2.5, 20), {}),
    ("log_mean_exp_pool2d", (3, 2), {}),
    ("log_mean_exp_pool2d", (20, 20), {}),
    ("soft_pool2d", (2,), {}),
    ("soft_pool2d", ((2, 20),), {}),
    ("mixed_pool2d", (3, 2), {"alpha": 0.3}),
    ("mixed_pool2d", (20, 20), {"alpha": 0.3}),
    ("stochastic_pool2d", (2,), {"training": False}),
    ("stochastic_pool2d", (20,), {"training": False}),
    ("lip_pool2d", ("logits", 3, 2), {}),
    ("avg_pool1d", (33, 5), {}),
    ("adaptive_avg_pool1d", (1,), {}),
    ("avg_pool3d", (2,), {}),
    ("avg_pool3d", ((1, 24, 28),), {}),
    ("avg_pool3d", ((3, 24, 28), 1), {}),
    ("adaptive_avg_pool3d", (1,), {}),
]
SHAPES = {1: (5, 7, 90), 2: (5, 7, 24, 28), 3: (3, 5, 6, 24, 28)}


def results(
    call: tuple[str, tuple[Any, ...], dict[str, Any]], x: np.ndarray, gy: np.ndarray | None
) -> list[np.ndarray]:
    """Output and gradient; `gy` may be a view, too."""
    name, args, options = call
    if args[:1] == ("logits",):
        args = (x, *args[1:])
    y, pullback = poolgrad.vjp(getattr(poolgrad, name), x, *args, **options)
    return [y, pullback(np.ones_like(y) if gy is None else gy)]


def equal(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(
        np.ascontiguousarray(u).tobytes() == np.ascontiguousarray(v).tobytes()
        for u, v in zip(a, b, strict=True)
    )


def slices(x: np.ndarray, last: bool) -> Iterator[np.ndarray]:
    """The array `x` again and again, as parts of larger arrays in the same memory format."""
    for axes in (*range(x.ndim), tuple(range(x.ndim))):
        yield np.flip(np.flip(x, axes).copy(), axes)  # negative strides
    pooled = range(1, x.ndim - 1) if last else range(2, x.ndim)
    batches, channels = 0, x.ndim - 1 if last else 1
    for axes, step in [
        *(((a,), 1) for a in range(x.ndim)),
        (tuple(pooled), 1),
        *(((a,), 2) for a in range(x.ndim)),
        ((batches, channels, *pooled), 3),
    ]:
        shape = [step * n + 5 * (a in axes) if a in axes else n for a, n in enumerate(x.shape)]
        part = tuple(
            slice(2, 2 + step * n, step) if a in axes else slice(None)
            for a, n in enumerate(x.shape)
        )
        big = np.zeros(shape, x.dtype)
        big[part] = x
        yield big[part]


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c[0]}{c[1]}")
def test_bits_do_not_depend_on_strides_or_batches(
    call: tuple[str, tuple[Any, ...], dict[str, Any]], dtype: Any, last: bool
) -> None:
    name, args, options = call
    call = (name, args, {**options, "channels_last": last})
    dims = int(name[-2]) if name[-1] == "d" else 2
    r = np.random.default_rng(0)
    shape = SHAPES[dims]
    if last:
        shape = (shape[0], *shape[2:], shape[1])
    x = (r.standard_normal(shape) + 0.5).astype(dtype)
    y = results(call, x, None)[0]
    gy = r.standard_normal(y.shape).astype(y.dtype)
    expected = results(call, x, gy)
    differ = [s.strides for s in slices(x, last) if not equal(results(call, s, gy), expected)]
    assert not differ, f"other bits for strides {differ} than for {x.strides}"
    if y.ndim == x.ndim:
        # A gradient of the output that is a part of a larger array.
        for part in slices(gy, last):
            assert equal(results(call, x, part), expected), f"gy of strides {part.strides}"
    for i in range(len(x)):
        alone = results(call, x[i : i + 1], gy[i : i + 1])
        assert equal(alone, [each[i : i + 1] for each in expected]), f"image {i} of a batch alone"


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c[0]}{c[1]}")
def test_bits_of_broadcast_arrays_are_those_of_their_copies(
    call: tuple[str, tuple[Any, ...], dict[str, Any]], last: bool
) -> None:
    name, args, options = call
    call = (name, args, {**options, "channels_last": last})
    shape = SHAPES[int(name[-2]) if name[-1] == "d" else 2]
    shape = (shape[0], *shape[2:], shape[1]) if last else shape
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) + 0.5
    for axis in range(x.ndim):
        view = np.broadcast_to(x.take([0], axis), shape)
        one, two = results(call, view, None), results(call, view.copy(), None)
        assert equal(one, two), axis
        if name != "lip_pool2d":  # NumPy's arithmetic determines the format of its output
            assert [a.strides for a in one] == [a.strides for a in two]


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", ["global_avg_pool", "global_lp_pool", "global_log_mean_exp_pool"])
def test_bits_of_large_planes_do_not_depend_on_strides(name: str, dtype: Any, last: bool) -> None:
    """Planes that are too large to be copied whole, and enough of them for several threads."""
    x = (np.random.default_rng(0).standard_normal((2, 9, 101, 67)) + 0.5).astype(dtype)
    x = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if last else x
    call = (name, (), {"channels_last": last})
    expected = results(call, x, None)
    differ = [s.strides for s in slices(x, last) if not equal(results(call, s, None), expected)]
    assert not differ, f"other bits for strides {differ} than for {x.strides}"


LEARNED = {"lp_pool2d": "norm_type", "log_mean_exp_pool2d": "r", "mixed_pool2d": "alpha"}


@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_learned_arguments_of_tensors(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pool = getattr(poolgrad, name)
    numbers = torch.linspace(0.3, 0.9, 4, dtype=torch.float64, requires_grad=True)
    x = torch.rand(3, 4, 57, 56, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = pool(x, kernel_size=2, **{LEARNED[name]: numbers})
    gy = torch.sin(torch.arange(y.numel(), dtype=torch.float64)).reshape(y.shape)
    (expected,) = torch.autograd.grad(y, numbers, gy, retain_graph=True)
    for order in ((0, 1, 3, 2), (1, 2, 3, 0), (0, 2, 3, 1)):
        back = [order.index(a) for a in range(4)]
        turned = gy.permute(order).contiguous().permute(back)
        (gradient,) = torch.autograd.grad(y, numbers, turned, retain_graph=True)
        assert torch.equal(gradient, expected), order


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_learned_arguments_of_arrays(name: str, lazy: bool) -> None:
    def turned(a: Any, order: tuple[int, ...]) -> Any:
        return np.ascontiguousarray(a.transpose(order)).transpose(np.argsort(order))

    rng, orders = np.random.default_rng(0), [*itertools.permutations(range(4))]
    x, gy = rng.random((4, 18, 15, 18)), rng.standard_normal((4, 18, 7, 9))
    learned = LEARNED[name]
    found = set()
    for order in ((0, 1, 2, 3), (0, 2, 3, 1), (2, 3, 0, 1)):
        given = turned(x, order)
        if lazy:
            given = pytest.importorskip("dask.array").from_array(given)
        _, pullback = poolgrad.vjp(getattr(poolgrad, name), given, kernel_size=2, **{learned: 0.7})
        slopes = [pullback.parameters(turned(gy, o))[learned] for o in orders[:: 1 + 4 * lazy]]
        found |= {float(np.asarray(slope)) for slope in slopes}
    assert len(found) == 1
