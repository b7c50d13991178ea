"""Averages of whole planes, several at a time, for every number of planes and every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

import poolgrad  # noqa: E402

DTYPES: dict[Any, float] = {
    np.float64: 1e-14,
    np.float32: 5e-6,
    np.float16: 1e-3,
    ml_dtypes.bfloat16: 8e-3,
}
PLANES = [(), (1,), (7,), (8,), (3, 3), (16,), (5, 17)]
SIZES = [(1, 1), (2, 4), (3, 5), (4, 4), (7, 7), (8, 8), (5, 13), (12, 11), (40, 41), (70, 71)]


def _whole(x: np.ndarray, size: tuple[int, int], way: str) -> tuple[np.ndarray, np.ndarray]:
    function, args = {
        "windows": (poolgrad.avg_pool2d, (size,)),
        "bins": (poolgrad.adaptive_avg_pool2d, (1,)),
    }[way]
    y, pullback = poolgrad.vjp(function, x, *args)
    gy = np.arange(1.0, y.size + 1).reshape(y.shape).astype(y.dtype)
    return y, pullback(gy)


@pytest.mark.parametrize("way", ["windows", "bins"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_mean_and_gradient(size: tuple[int, int], dtype: Any, way: str) -> None:
    for planes in PLANES:
        wide = np.random.default_rng(0).standard_normal((*planes, size[0], 2 * size[1]))
        wide = wide.astype(dtype)
        for x in (wide[..., ::2], np.ascontiguousarray(wide[..., ::2])):
            y, gx = _whole(x, size, way)
            assert y.dtype == gx.dtype == dtype
            mean = x.astype(np.float64).mean((-2, -1), keepdims=True)
            np.testing.assert_allclose(y.astype(np.float64), mean, atol=DTYPES[dtype])
            share = np.arange(1.0, y.size + 1).reshape(y.shape) / (size[0] * size[1])
            expected = np.broadcast_to(share, x.shape)
            np.testing.assert_allclose(gx.astype(np.float64), expected, rtol=DTYPES[dtype])


@pytest.mark.parametrize("size", SIZES)
def test_who_makes_a_plane_makes_no_difference(size: tuple[int, int]) -> None:
    """The same bits by any number of threads, and for a plane alone."""
    planes = 1 + (1 << 18) // (size[0] * size[1])
    x = np.random.default_rng(1).standard_normal((planes, *size)).astype(np.float32)
    answers = []
    for threads in (1, 2, 3):
        poolgrad.set_num_threads(threads)
        answers.append(_whole(x, size, "windows"))
    for y, gx in answers[1:]:
        np.testing.assert_array_equal(y, answers[0][0])
        np.testing.assert_array_equal(gx, answers[0][1])
    for plane in (0, 3, planes - 1):
        alone = poolgrad.avg_pool2d(x[plane : plane + 1], size)
        np.testing.assert_array_equal(alone, answers[0][0][plane : plane + 1])


def test_what_a_plane_is_divided_by() -> None:
    x = np.arange(12.0).reshape(1, 3, 4)
    assert poolgrad.avg_pool2d(x, (3, 4), divisor_override=2).item() == 33
    # The window reaches beyond the plane: padding is no part of it, or counts.
    kwargs: dict[str, Any] = {"stride": 5, "padding": ((0, 1), (0, 1))}
    assert poolgrad.avg_pool2d(x, (4, 5), **kwargs).item() == 66 / 20
    assert poolgrad.avg_pool2d(x, (4, 5), **kwargs, count_include_pad=False).item() == 66 / 12


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 15, 16, 17, 18, 20, 31, 35, 49, 64])
def test_small_planes_are_added_in_row_major_order(size: int, dtype: str) -> None:
    random = np.random.default_rng(size)
    for planes in (1, 3, 8, 16, 19, 37):
        wide = random.standard_normal((3, planes, 2, 2 * size)).astype(dtype)
        flat = np.ascontiguousarray(wide[..., 0, :size])
        for x in (flat, flat.reshape(-1, size), wide[:, :, 0, :size], wide[:, ::2, 0, ::2]):
            sums = np.zeros(x.shape[:-1], dtype)
            for t in range(size):
                sums += x[..., t]
            y = poolgrad.avg_pool1d(x, size)
            np.testing.assert_array_equal(y[..., 0], sums / x.dtype.type(size))


def test_a_mean_of_negative_zeros_is_zero() -> None:
    for size in (3, 16, 49, 100):
        y = poolgrad.avg_pool1d(np.full((20, size), -0.0, np.float32), size)
        assert not np.signbit(y).any()
