"""Fractional max pooling: positions of its windows, by hand and as in PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from frontend_calls import Front, torch

import poolgrad

pytestmark = pytest.mark.without(dask="the draws for one chunk would depend on all other chunks")
RAMP = np.arange(10.0)


def starts_by_hand(
    size: int, kernel: int, out: int, sample: float, dtype: Any = float
) -> list[int]:
    """Graham's sequence, computed in `dtype` as PyTorch does."""
    kind = np.dtype(dtype).type
    if out == 1:
        return [size - kernel]
    step = kind(kind(size - kernel) / kind(out - 1))
    shift = int(kind(kind(sample) * step))
    first = [int(kind(kind(kind(o) + kind(sample)) * step)) - shift for o in range(out - 1)]
    return [*first, size - kernel]


@pytest.mark.parametrize(
    ("sample", "starts"),
    # a = (10 - 2) / (4 - 1): window o begins at floor((o + s) * a) - floor(s * a), the last at 8
    [(0.0, [0, 2, 5, 8]), (0.25, [0, 3, 6, 8]), (0.5, [0, 3, 5, 8]), (0.9, [0, 3, 5, 8])],
)
def test_windows_by_hand(front: Front, sample: float, starts: list[int]) -> None:
    samples = np.zeros((1, 1, 2))
    samples[0, 0, 0] = sample  # the width's comes first
    x = np.broadcast_to(RAMP, (1, 1, 3, 10)).copy()
    y, indices = front.run(
        "fractional_max_pool2d", x, (1, 2), (3, 4), _random_samples=samples, return_indices=True
    )
    np.testing.assert_array_equal(y[0, 0, 0], [s + 1 for s in starts])  # a ramp: the last one wins
    np.testing.assert_array_equal(indices[0, 0, 1], [10 + s + 1 for s in starts])
    assert starts == starts_by_hand(10, 2, 4, sample)


def test_order_of_the_samples(front: Front) -> None:
    """Of two axes the width's first, of three depth, height, width; each for its own plane."""
    r = np.random.default_rng(0)
    for dims, order in ((2, (1, 0)), (3, (0, 1, 2))):
        samples = r.random((2, 3, dims))
        for axis in range(dims):
            shape = [1] * dims
            shape[axis] = 10
            x = np.broadcast_to(RAMP.reshape(shape), (2, 3, *(10,) * dims)).copy()
            y = front.run(f"fractional_max_pool{dims}d", x, 2, 4, _random_samples=samples)
            along = np.moveaxis(y, 2 + axis, -1).reshape(2, 3, -1, 4)
            for n, c in np.ndindex(2, 3):
                starts = starts_by_hand(10, 2, 4, samples[n, c, order[axis]])
                assert (along[n, c] == np.array(starts) + 1).all()


def test_a_batch_of_one_takes_samples_without_it(front: Front) -> None:
    x = np.random.default_rng(1).standard_normal((1, 3, 9, 9))
    samples = np.random.default_rng(2).random((1, 3, 2))
    expected = front.run("fractional_max_pool2d", x, 2, 4, _random_samples=samples)
    for image, given in ((x, samples[0]), (x[0], samples), (x[0], samples[0])):
        y = front.run("fractional_max_pool2d", image, 2, 4, _random_samples=given)
        np.testing.assert_array_equal(y.reshape(expected.shape), expected)


@pytest.mark.parametrize(
    ("ratio", "sizes"),
    [(0.5, (5, 6)), ((0.3, 0.8), (3, 10)), (0.999, (10, 12)), ([0.1, 0.1], (1, 1))],
)
def test_output_ratio(front: Front, ratio: Any, sizes: tuple[int, int]) -> None:
    x = np.random.default_rng(3).standard_normal((2, 3, 11, 13))
    y = front.run("fractional_max_pool2d", x, 1, output_ratio=ratio, generator=8)
    assert y.shape == (2, 3, *sizes)
    same = front.run("fractional_max_pool2d", x, 1, sizes, generator=8)
    np.testing.assert_array_equal(y, same)


def test_generators(front: Front) -> None:
    x = np.random.default_rng(4).standard_normal((2, 3, 15, 15))
    a, b, c = (front.run("fractional_max_pool2d", x, 2, 6, generator=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


@pytest.mark.without(jax="JAX draws with a key or a seed only")
def test_without_a_generator_every_call_draws_anew(front: Front) -> None:
    x = np.random.default_rng(4).standard_normal((2, 3, 15, 15))
    anew = [front.run("fractional_max_pool2d", x, 2, 6) for _ in range(2)]
    assert not np.array_equal(*anew)


def test_numpys_generator_moves_on() -> None:
    x = np.random.default_rng(4).standard_normal((2, 3, 15, 15))
    a, b = np.random.default_rng(9), np.random.default_rng(9)
    first, second = (poolgrad.fractional_max_pool2d(x, 2, 6, generator=a) for _ in range(2))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(poolgrad.fractional_max_pool2d(x, 2, 6, generator=b), first)
    np.testing.assert_array_equal(poolgrad.fractional_max_pool2d(x, 2, 6, generator=b), second)


def test_each_plane_has_windows_of_its_own(front: Front) -> None:
    x = np.broadcast_to(np.random.default_rng(5).standard_normal((97, 97)), (4, 5, 97, 97))
    y = front.run("fractional_max_pool2d", x, 2, 48, generator=0)
    assert len({plane.tobytes() for plane in y.reshape(20, -1)}) > 16  # of 47 * 47 there can be


@pytest.mark.parametrize("dims", [2, 3])
def test_channels_last(front: Front, dims: int) -> None:
    fun, samples = f"fractional_max_pool{dims}d", np.random.default_rng(6).random((2, 3, dims))
    x = np.random.default_rng(7).standard_normal((2, 3, *(8,) * dims))
    kwargs: dict[str, Any] = {"_random_samples": samples, "return_indices": True}
    expected = front.run(fun, x, 2, 5, **kwargs)
    moved = front.run(fun, np.moveaxis(x, 1, -1), 2, 5, channels_last=True, **kwargs)
    for a, b in zip(moved, expected, strict=True):
        np.testing.assert_array_equal(np.moveaxis(a, -1, 1), b)
    drawn = front.run(fun, x, 2, 5, generator=3)
    last = front.run(fun, np.moveaxis(x, 1, -1), 2, 5, channels_last=True, generator=3)
    np.testing.assert_array_equal(np.moveaxis(last, -1, 1), drawn)


@pytest.mark.parametrize("ties", ["first", "split", "zero"])
def test_gradient(front: Front, ties: str) -> None:
    """Of windows that overlap: each sends its share to its winners."""
    x = np.random.default_rng(8).integers(0, 3, (2, 2, 7, 9)).astype(float)
    samples = np.random.default_rng(9).random((2, 2, 2))
    kwargs: dict[str, Any] = {"_random_samples": samples, "ties": ties}
    y, pullback = front.vjp("fractional_max_pool2d", x, (3, 2), (4, 6), **kwargs)
    gy = np.random.default_rng(10).integers(1, 9, y.shape) * 12.0  # shares of six are whole
    expected = np.zeros_like(x)
    for n, c, i, j in np.ndindex(y.shape):
        top = starts_by_hand(7, 3, 4, samples[n, c, 1])[i]
        left = starts_by_hand(9, 2, 6, samples[n, c, 0])[j]
        part = (n, c, slice(top, top + 3), slice(left, left + 2))
        wins = x[part] == x[part].max()
        assert y[n, c, i, j] == x[part].max()
        share = wins / wins.sum() if ties == "split" else wins * (wins.sum() == 1)
        if ties == "first":
            share = np.arange(6).reshape(3, 2) == np.argmax(wins)
        expected[part] += share * gy[n, c, i, j]
    np.testing.assert_allclose(pullback(gy), expected, rtol=1e-13)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels_last"])
def test_pytorch(dims: int, name: str, channels_last: bool) -> None:
    """Outputs, indices and gradients bit for bit, for the same samples."""
    dtype, fun = getattr(torch, name), f"fractional_max_pool{dims}d"
    generator = torch.Generator().manual_seed(dims)
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    for size, kernel, out in (
        (25, 3, 11),
        (9, 2, 8),
        (12, 5, 2),
        (7, 7, 1),
        (16, 1, 16),
        (20, 2, 13),
    ):
        if dims == 3 and kernel + out - 1 == size:
            continue  # all that fits, but three-dimensional PyTorch wants one input more
        shape = (2, 3, *(size,) * (dims - 1), size + 3)
        x = torch.randn(shape, generator=generator).to(dtype)
        if channels_last:
            x = x.contiguous(memory_format=formats[dims])
        samples = torch.rand(2, 3, dims, generator=generator).to(dtype)
        samples = samples.clamp(max=1 - torch.finfo(dtype).eps)
        made = []
        for module in (poolgrad, torch.nn.functional):
            leaf = x.clone().requires_grad_()
            y, indices = getattr(module, fun)(
                leaf, kernel, out, return_indices=True, _random_samples=samples
            )
            y.backward((torch.arange(y.numel()) % 7 - 3).view(y.shape).to(dtype))
            made.append((y.detach(), indices, leaf.grad))
        for ours, theirs in zip(*made, strict=True):
            assert torch.equal(ours, theirs), (size, kernel, out)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_samples_in_another_memory_order(dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 9, 8)).astype(dtype)
    samples = np.random.default_rng(1).random((2, 3, 2))
    expected = poolgrad.fractional_max_pool2d(x, 2, (4, 3), _random_samples=samples)
    for order in itertools.permutations(range(3)):
        other = samples.transpose(order).copy().transpose(np.argsort(order))
        for held in (other, other.astype(dtype)):
            y = poolgrad.fractional_max_pool2d(x, 2, (4, 3), _random_samples=held)
            copied = poolgrad.fractional_max_pool2d(x, 2, (4, 3), _random_samples=held.copy())
            np.testing.assert_array_equal(y, copied)
        y = poolgrad.fractional_max_pool2d(x, 2, (4, 3), _random_samples=other)
        np.testing.assert_array_equal(y, expected)


def test_samples_of_xarray_are_matched_by_dimension() -> None:
    xarray = pytest.importorskip("xarray")
    x = np.random.default_rng(0).normal(size=(3, 3, 9, 8))
    samples = np.random.default_rng(1).random((3, 3, 2))
    expected = poolgrad.fractional_max_pool2d(x, 2, (4, 3), _random_samples=samples)
    named = xarray.DataArray(samples.transpose(1, 0, 2), dims=("c", "n", "sample"))
    y = poolgrad.fractional_max_pool2d(
        xarray.DataArray(x, dims=tuple("nchw")), 2, (4, 3), _random_samples=named
    )
    np.testing.assert_array_equal(y.values, expected)
