"""Wide windows: log-step doubling and van Herk/Gil-Werman; results larger than the caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn.functional as F  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad import reference  # noqa: E402

RNG = np.random.default_rng(3)
WINDOWS = [  # kernel, stride, dilation, padding
    ((13, 13), 1, 1, 6),
    ((5, 31), 1, 1, ((2, 2), (15, 15))),
    ((17, 6), 2, 1, ((3, 8), (0, 5))),
    ((6, 9), (1, 3), (2, 1), 4),
    ((33, 7), 1, 1, ((20, 2), (3, 30))),
    ((2, 64), 1, 1, ((0, 1), (63, 0))),
    ((8, 5), 1, (1, 3), 0),
    ((6, 9), 1, 1, ((9, 20), (20, 11))),  # windows of padding alone, on each side
]

# Numbers of channels: none, fewer than a vector has lanes, more than that, and more than are
# reduced at a time.
CHANNELS = [0, 2, pytest.param(19, marks=pytest.mark.slow), 70]


def image(kind: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    x = RNG.standard_normal(shape)
    if kind == "ties":
        x = np.round(x)
    elif kind == "low":  # nothing above what stands for padding
        x[RNG.random(shape) < 0.9] = -np.inf
    elif kind == "nan":
        x[RNG.random(shape) < 0.02] = np.nan
    elif kind == "whole":
        return RNG.integers(0, 4, shape).astype(dtype)
    return x.astype(dtype)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("last", CHANNELS)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("low", "float32"), ("nan", "float32"), ("whole", "uint8"),
     pytest.param("ties", "float64", marks=pytest.mark.slow),
     pytest.param("whole", "int64", marks=pytest.mark.slow)],
)  # fmt: skip
def test_maxima(window: tuple, last: int, kind: str, dtype: str) -> None:
    kernel, stride, dilation, padding = window
    x = image(kind, (1, 15, 19, last) if last else (1, 2, 15, 19), dtype)
    kwargs: dict[str, Any] = {"stride": stride, "dilation": dilation, "padding": padding}
    kwargs["channels_last"] = last > 0
    for name in ("max_pool2d", "min_pool2d"):
        pool, textbook = getattr(poolgrad, name), getattr(reference, name)
        if x.dtype.kind != "f":
            expected = textbook(x, kernel, **kwargs)
            np.testing.assert_array_equal(pool(x, kernel, **kwargs), expected)
            continue
        for ties in ("first", "zero"):
            expected, back = reference.vjp(textbook, x, kernel, ties=ties, **kwargs)
            np.testing.assert_array_equal(pool(x, kernel, ties=ties, **kwargs), expected)
            y, pullback = poolgrad.vjp(pool, x, kernel, ties=ties, **kwargs)
            gy = RNG.integers(-4, 5, y.shape).astype(y.dtype)
            np.testing.assert_array_equal(y, expected)
            np.testing.assert_array_equal(pullback(gy), back(gy))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("last", [0, 2, 19])
@pytest.mark.parametrize("kind", ["ties", "low", "nan", "whole"])
def test_maxima_of_relu(window: tuple, last: int, kind: str) -> None:
    """The maxima, where they are not at most 0; and nobody else has a gradient."""
    kernel, stride, dilation, padding = window
    dtype = "uint8" if kind == "whole" else "float32"
    x = image(kind, (1, 15, 19, last) if last else (1, 2, 15, 19), dtype)
    kwargs: dict[str, Any] = {"stride": stride, "dilation": dilation, "padding": padding}
    kwargs["channels_last"] = last > 0
    most = poolgrad.max_pool2d(x, kernel, **kwargs)
    cut = most <= 0  # no NaN is
    expected = np.where(cut, np.zeros((), dtype), most)
    np.testing.assert_array_equal(poolgrad.relu_max_pool2d(x, kernel, **kwargs), expected)
    for ties in ("first", "zero") * (kind != "whole"):
        y, pullback = poolgrad.vjp(poolgrad.relu_max_pool2d, x, kernel, ties=ties, **kwargs)
        _, back = poolgrad.vjp(poolgrad.max_pool2d, x, kernel, ties=ties, **kwargs)
        gy = RNG.integers(-4, 5, y.shape).astype(y.dtype)
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(pullback(gy), back(np.where(cut, 0, gy).astype(y.dtype)))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("last", CHANNELS)
@pytest.mark.parametrize("count", [False, True])
def test_averages(window: tuple, last: int, count: bool) -> None:
    kernel, stride, dilation, padding = window
    x = image("plain", (1, 15, 19, last) if last else (1, 2, 15, 19), "float64")
    kwargs: dict[str, Any] = {"stride": stride, "dilation": dilation, "padding": padding}
    kwargs["channels_last"] = last > 0
    try:
        expected, back = reference.vjp(
            reference.avg_pool2d, x, kernel, count_include_pad=count, **kwargs
        )
    except ValueError:  # windows without an input have no average
        with pytest.raises(ValueError, match="without any input"):
            poolgrad.avg_pool2d(x, kernel, count_include_pad=count, **kwargs)
        return
    y, pullback = poolgrad.vjp(poolgrad.avg_pool2d, x, kernel, count_include_pad=count, **kwargs)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    gy = RNG.standard_normal(y.shape)
    np.testing.assert_allclose(pullback(gy), back(gy), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [False, True])
def test_gradients_of_averages_with_many_channels(count: bool) -> None:
    """Some channels of a pixel are reduced at a time, with divisors of as many."""
    x = RNG.standard_normal((1, 9, 10, 200))
    how: dict[str, Any] = {"padding": 3, "count_include_pad": count, "channels_last": True}
    _, back = reference.vjp(reference.avg_pool2d, x, 7, 1, **how)
    y, pullback = poolgrad.vjp(poolgrad.avg_pool2d, x, 7, 1, **how)
    gy = RNG.standard_normal(y.shape)
    np.testing.assert_allclose(pullback(gy), back(gy), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((13, 13), 1, 6), ((9, 5), (2, 1), (4, 1)), ((20, 2), (5, 1), 1), ((5, 40), 1, 2)],
    ids=str,
)
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", ["ties", "low", "nan"])
def test_many_blocks_of_rows(
    kind: str, memory: torch.memory_format, kernel: tuple[int, int], stride: Any, padding: Any
) -> None:
    """Several blocks of rows, and with many channels several pieces of a row."""
    values = image(kind, (1, 70, 103, 61), "float32")
    values[..., -9:] = np.abs(values[..., -9:])  # some columns without what is looked for
    x = torch.from_numpy(values).contiguous(memory_format=memory).requires_grad_()
    windows = (kernel, stride, padding)
    y, indices = F.max_pool2d(x, *windows, return_indices=True)
    ours, where = poolgrad.max_pool2d(x, *windows, return_indices=True)
    torch.testing.assert_close(ours, y, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(where, indices, rtol=0, atol=0)
    gy = torch.randint(-4, 5, y.shape).to(y.dtype)
    (gx,), (expected,) = torch.autograd.grad(ours, x, gy), torch.autograd.grad(y, x, gy)
    torch.testing.assert_close(gx, expected, rtol=0, atol=0)
    if kind == "ties":
        mean, other = poolgrad.avg_pool2d(x, *windows), F.avg_pool2d(x, *windows)
        torch.testing.assert_close(mean, other, rtol=1e-5, atol=1e-6)
        (gx,), (expected,) = torch.autograd.grad(mean, x, gy), torch.autograd.grad(other, x, gy)
        torch.testing.assert_close(gx, expected, rtol=1e-5, atol=1e-5)


def test_wide_averages_are_the_same_bits_in_both_layouts() -> None:
    x = RNG.standard_normal((2, 20, 61, 45))
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    y, pullback = poolgrad.vjp(poolgrad.avg_pool2d, x, (13, 9), 1, (6, 4))
    same, back = poolgrad.vjp(poolgrad.avg_pool2d, last, (13, 9), 1, (6, 4), channels_last=True)
    np.testing.assert_array_equal(np.moveaxis(same, -1, 1), y)
    gy = RNG.standard_normal(y.shape)
    moved = np.ascontiguousarray(np.moveaxis(gy, 1, -1))
    np.testing.assert_array_equal(np.moveaxis(back(moved), -1, 1), pullback(gy))


@pytest.mark.parametrize("kernel", [(3, 5, 7), 6])
def test_three_dimensions(kernel: object) -> None:
    x = image("ties", (1, 2, 9, 11, 13), "float32")
    for name in ("max_pool3d", "avg_pool3d"):
        pool, textbook = getattr(poolgrad, name), getattr(reference, name)
        y, pullback = poolgrad.vjp(pool, x, kernel, stride=1, padding=2)
        expected, back = reference.vjp(textbook, x, kernel, stride=1, padding=2)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
        gy = RNG.integers(-4, 5, y.shape).astype(y.dtype)
        np.testing.assert_allclose(pullback(gy), back(gy), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 1), (3, 1, 1), (9, 1, 4)], ids=str)
@pytest.mark.parametrize("width", [7, 113])
def test_large_results(
    memory: torch.memory_format, window: tuple[int, int, int], width: int
) -> None:
    """Rows that end anywhere in a line of memory, in arrays larger than the caches."""
    x = torch.randn(1, 64, 2_100_000 // 64 // width * 2, width).contiguous(memory_format=memory)
    x.requires_grad_()
    for name in ("max_pool2d", "avg_pool2d"):
        y, expected = getattr(poolgrad, name)(x, *window), getattr(F, name)(x, *window)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
        gy = torch.randint(-3, 4, y.shape).to(y.dtype)
        (gx,), (other,) = torch.autograd.grad(y, x, gy), torch.autograd.grad(expected, x, gy)
        torch.testing.assert_close(gx, other, rtol=1e-5, atol=1e-5)


def test_more_places_than_are_counted_in_few_bits() -> None:
    """Their gradients go back one by one."""
    x = torch.randn(2, 1, 270, 266).requires_grad_()
    windows = (260, 1, 6)
    y, expected = poolgrad.max_pool2d(x, *windows), F.max_pool2d(x, *windows)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    gy = torch.randint(-4, 5, y.shape).to(y.dtype)
    (gx,), (other,) = torch.autograd.grad(y, x, gy), torch.autograd.grad(expected, x, gy)
    torch.testing.assert_close(gx, other, rtol=0, atol=0)


def test_a_whole_image_in_one_window() -> None:
    x = image("ties", (2, 3, 31, 33), "float32")
    strided = np.empty((2, 3, 31, 66), np.float32)[..., ::2]
    strided[...] = x
    for given in (x, strided, x.transpose(0, 1, 3, 2), np.asfortranarray(x)):
        for name in ("global_max_pool", "global_avg_pool"):
            expected, back = reference.vjp(getattr(reference, name), given)
            y, pullback = poolgrad.vjp(getattr(poolgrad, name), given)
            np.testing.assert_allclose(y, expected, rtol=1e-6)
            gy = RNG.standard_normal(y.shape).astype(y.dtype)
            np.testing.assert_allclose(pullback(gy), back(gy), rtol=1e-6)
