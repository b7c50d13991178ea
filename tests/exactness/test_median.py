"""Medians of small windows, computed by a sorting network, equal those of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import poolgrad
from poolgrad import reference

INF = np.inf
WINDOWS: list[tuple[Any, Any, Any, Any]] = [  # kernel, stride, padding, dilation
    (2, 2, 0, 1),
    (2, 2, 1, 1),
    (3, 2, 1, 1),
    (3, 1, 1, (1, 2)),
    ((1, 2), 1, 0, 1),
    ((2, 3), (1, 2), (1, 1), 1),
    ((4, 3), 3, ((1, 2), (0, 1)), 1),
    (4, 2, 2, 1),
    (5, 1, 2, 1),
    ((2, 13), 2, (1, 6), 1),  # the first that is sorted otherwise
]
VALUES = {
    "ties": [-2, -1, 0, 1, 2],
    "signs of zero": [-0.0, 0.0],
    "nan": [np.nan, -np.nan, -1, 0, 1, 2, 3, 4],
    "ends": [-INF, INF, np.finfo(np.float32).max, 0],
}


def bits(a: np.ndarray) -> np.ndarray:
    return a.view(f"u{a.itemsize}") if a.dtype.kind == "f" else a


def check(x: np.ndarray, window: tuple[Any, Any, Any, Any], last: bool, ties: str) -> None:
    kernel, stride, padding, dilation = window
    kwargs = {"stride": stride, "padding": padding, "dilation": dilation, "channels_last": last}
    y, pullback = poolgrad.vjp(poolgrad.median_pool2d, x, kernel, ties=ties, **kwargs)
    expected, back = reference.vjp(reference.median_pool2d, x, kernel, ties=ties, **kwargs)
    np.testing.assert_array_equal(bits(y), bits(expected))
    np.testing.assert_array_equal(
        bits(poolgrad.median_pool2d(x, kernel, ties=ties, **kwargs)), bits(expected)
    )
    gy = np.random.default_rng(1).integers(-4, 5, y.shape).astype(y.dtype)
    np.testing.assert_array_equal(pullback(gy), back(gy))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize(
    "dtype", ["float32", "float16", pytest.param("float64", marks=pytest.mark.slow)]
)
def test_floats(window: tuple[Any, Any, Any, Any], values: str, dtype: str) -> None:
    choice = np.array(VALUES[values])
    if dtype == "float16":
        choice = np.clip(choice, -6e4, 6e4)
    x = np.random.default_rng(0).choice(choice, (1, 7, 37, 2)).astype(dtype)
    for ties in ("first", "zero"):
        check(x, window, True, ties)
        check(np.ascontiguousarray(np.moveaxis(x, -1, 1)), window, False, ties)
    check(x[:, ::-1, ::3], window, True, "first")
    check(np.moveaxis(x, -1, 1)[..., ::-2], window, False, "first")


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64"])
def test_integers(window: tuple[Any, Any, Any, Any], dtype: str) -> None:
    kernel, stride, padding, dilation = window
    info = np.iinfo("uint8" if dtype == "bool" else dtype)
    choice = [0, 1] if dtype == "bool" else [info.min, info.min + 1, 0, 1, info.max]
    x = np.random.default_rng(2).choice(np.array(choice, dtype), (1, 2, 7, 37))
    for last in (False, True):
        kwargs = {"padding": padding, "dilation": dilation, "channels_last": last}
        y, at = poolgrad.median_pool2d(x, kernel, stride, return_indices=True, **kwargs)
        expected = reference.median_pool2d(x, kernel, stride, **kwargs)
        np.testing.assert_array_equal(y, expected)
        planes = np.moveaxis(x, -1, 1) if last else x
        at = np.moveaxis(at, -1, 1) if last else at
        found = np.take_along_axis(planes.reshape(*planes.shape[:2], -1),
                                   at.reshape(*at.shape[:2], -1), 2)  # fmt: skip
        y = np.moveaxis(y, -1, 1) if last else y
        np.testing.assert_array_equal(found.reshape(y.shape), y)
