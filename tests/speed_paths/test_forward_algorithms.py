"""Forward algorithms, chosen by the shape of the window, against the reference, bit for bit.

The algorithm depends on the size of a window, on how many inputs windows share and on the memory
layout; the result must not.
"""

from typing import Any

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

import poolgrad  # noqa: E402
from poolgrad import reference  # noqa: E402

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8]


def _input(random: np.random.Generator, dtype: Any) -> np.ndarray:
    """Many ties; infinities, NaNs and zeros of both signs where there are such numbers."""
    shape = (1, *(int(random.integers(1, most)) for most in (4, 24, 60)))
    x = random.integers(0, 9, shape).astype(dtype)
    chance = random.random(shape)
    if np.dtype(dtype).kind in "iu":
        x[chance < 0.5] = np.iinfo(dtype).min
        return x
    x -= np.asarray(4, dtype)
    kind = random.integers(4)
    if kind == 0:
        x[chance < 0.3] = -np.inf
    elif kind == 1:
        x[chance < 0.9] = -np.inf
        x[chance > 0.97] = np.nan
    elif kind == 2:
        x[chance < 0.05] = np.nan
        x[chance > 0.8] = -0.0
    return x


def _windows(random: np.random.Generator) -> dict[str, Any]:
    return {
        "kernel_size": tuple(map(int, random.integers(1, 15, 2))),
        "stride": 1 if random.integers(2) else tuple(map(int, random.integers(1, 3, 2))),
        "padding": tuple(tuple(map(int, random.integers(0, 9, 2))) for _ in range(2)),
        "dilation": 1 if random.integers(3) else tuple(map(int, random.integers(1, 3, 2))),
    }


def _same(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours.astype(np.float64), theirs.astype(np.float64))
    np.testing.assert_array_equal(
        np.signbit(ours.astype(np.float64)) & (ours == 0),
        np.signbit(theirs.astype(float)) & (theirs == 0),
    )


def _textbook(name: str, x: np.ndarray, windows: dict[str, Any]) -> tuple[np.ndarray, Any]:
    """The output and, of floats, the pullback."""
    if x.dtype.kind in "iu":
        return getattr(reference, name)(x, **windows), None
    return reference.vjp(getattr(poolgrad, name), x, **windows)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 6))]
)
def test_every_window_is_that_of_the_textbook(dtype: Any, seed: int) -> None:
    random = np.random.default_rng([seed, DTYPES.index(dtype)])
    found = 0
    while found < 6:
        x, windows = _input(random, dtype), _windows(random)
        name = ("max_pool2d", "relu_max_pool2d", "min_pool2d")[int(random.integers(3))]
        windows["ties"] = ("first", "zero")[int(random.integers(2))]
        if random.integers(2):
            x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
            windows["channels_last"] = True
        function = getattr(poolgrad, name)
        try:
            expected, textbook_pullback = _textbook(name, x, windows)
        except ValueError:  # the window is larger than the padded input
            continue
        found += 1
        _same(function(x, **windows), expected)
        if textbook_pullback is None:
            continue
        y, pullback = poolgrad.vjp(function, x, **windows)
        _same(y, expected)
        cotangent = random.integers(-3, 4, y.shape).astype(dtype)
        np.testing.assert_array_equal(
            pullback(cotangent).astype(float), textbook_pullback(cotangent).astype(float)
        )


@pytest.mark.parametrize("shape", [(2, 1501, 7), (1, 700, 13), (1, 450, 21)], ids=str)
@pytest.mark.parametrize(
    "window",  # kernel, stride, padding, dilation
    [
        (2, 2, 0, 1),
        (3, 2, 1, 1),
        (3, 3, ((2, 1), (0, 2)), 1),
        (2, 7, 0, 1),
        (2, 1, ((50, 0), (0, 1)), (90, 1)),
        (2, 1, ((50, 0), (0, 1)), (200, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("max_pool2d", np.float32),
        pytest.param("min_pool2d", np.uint8, marks=pytest.mark.slow),
        pytest.param("relu_max_pool2d", np.float32, marks=pytest.mark.slow),
        pytest.param("min_pool2d", np.float32, marks=pytest.mark.slow),
        pytest.param("max_pool2d", np.uint8, marks=pytest.mark.slow),
        pytest.param("relu_max_pool2d", np.uint8, marks=pytest.mark.slow),
    ],
)
def test_tall_narrow_planes(shape: tuple[int, ...], window: Any, name: str, dtype: Any) -> None:
    """More rows than are made in one sweep, some of them with nothing above what is no input."""
    random = np.random.default_rng(shape)
    x = random.integers(0, 9, shape).astype(dtype)
    x[:, 300:600] = np.finfo(dtype).min if dtype is np.float32 else 0
    x[:, 400:450, :3] = -np.inf if dtype is np.float32 else 0
    windows = dict(zip(("kernel_size", "stride", "padding", "dilation"), window, strict=True))
    expected, textbook_pullback = _textbook(name, x, windows)
    _same(getattr(poolgrad, name)(x, **windows), expected)
    if textbook_pullback is not None:
        y, pullback = poolgrad.vjp(getattr(poolgrad, name), x, **windows)
        _same(y, expected)
        gy = random.integers(1, 9, y.shape).astype(dtype)
        np.testing.assert_array_equal(pullback(gy), textbook_pullback(gy))


@pytest.mark.parametrize("kernel", [(9, 9), (16, 16), (1, 45), (20, 2), (13, 30)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_sums_down_the_columns(kernel: tuple[int, int], dilation: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 61, 90))
    windows = {"kernel_size": kernel, "padding": ((2, 5), (7, 3)), "dilation": dilation}
    y, pullback = poolgrad.vjp(poolgrad.avg_pool2d, x, **windows)
    expected, textbook = reference.vjp(poolgrad.avg_pool2d, x, **windows)
    np.testing.assert_allclose(y, expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(pullback(y), textbook(y), rtol=1e-13, atol=1e-15)
