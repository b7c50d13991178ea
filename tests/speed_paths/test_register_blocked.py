"""Register-blocked small windows against the reference: blocks of rows, every compiled shape.

Rows that are read in place or copied, whole vectors and halves of them, columns that are computed
twice, both parities of the first column, blocks with NaNs, which are computed again.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest

import poolgrad
from poolgrad import reference

SHAPES = [(2, 1), (2, 2), (3, 1), (3, 2)]  # kernel_size, stride
PADDINGS = [0, 1, ((0, 2), (3, 0))]
PLANES = [(37, 9), (37, 17), (20, 40)]
VOLUMES = [(3, 21, 19), (6, 4, 33)]


def _input(shape: tuple[int, ...], kind: str) -> np.ndarray:
    random = np.random.default_rng(len(kind))
    x = random.integers(-2, 3, shape).astype(np.float32)  # many ties
    chance = random.random(shape)
    if kind == "nan":
        x[chance < 0.01] = np.nan
    if kind == "infinite":
        x[chance < 0.9] = -np.inf
        x[chance > 0.99] = np.inf
    return x


def _check(name: str, x: np.ndarray, exact: bool, **windows: Any) -> None:
    function = getattr(poolgrad, name)
    y, pullback = poolgrad.vjp(function, x, **windows)
    expected, textbook = reference.vjp(function, x, **windows)
    cotangent = np.random.default_rng(0).integers(-9, 10, y.shape).astype(x.dtype)
    within = {} if exact else {"rtol": 2e-6, "atol": 2e-6}
    compare = np.testing.assert_array_equal if exact else np.testing.assert_allclose
    compare(y, expected, **within)
    compare(function(x, **windows), expected, **within)  # keeping nothing
    gradient = textbook(cotangent)
    compare(pullback(cotangent), gradient, **within)
    apart = np.asfortranarray(cotangent)  # in another order
    compare(pullback(apart), gradient, **within)


@pytest.mark.parametrize(("kernel", "stride"), SHAPES)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("max_pool2d", "ties"),
        ("max_pool2d", "nan"),
        ("max_pool2d", "infinite"),
        ("min_pool2d", "nan"),
        ("relu_max_pool2d", "nan"),
    ],
)
def test_images(name: str, kind: str, kernel: int, stride: int) -> None:
    for plane, padding in product(PLANES, PADDINGS):
        x = _input((1, 1, *plane), kind)
        _check(name, x, True, kernel_size=kernel, stride=stride, padding=padding)
        if padding != 1:
            continue
        spread = np.repeat(x, 2, -1)[..., ::2]  # not one by one
        _check(name, spread, True, kernel_size=kernel, stride=stride, padding=padding)


@pytest.mark.parametrize(("kernel", "stride"), SHAPES)
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float32", "ties"),
        ("float32", "nan"),
        ("float32", "infinite"),
        pytest.param("float64", "nan", marks=pytest.mark.slow),
        ("float16", "nan"),
        ("uint8", "ties"),
    ],
)
def test_pixels(dtype: str, kind: str, kernel: int, stride: int) -> None:
    """Channels last, with vectors of them that overlap."""
    channels = {"float16": 40, "uint8": 70}.get(dtype, 24)
    # Odd widths end amid a stride; long rows are made in several pieces.
    for plane, padding in [((11, 5), 1), ((4, 9), PADDINGS[2]), ((6, 6), 0), ((5, 51), 0)]:
        x = np.moveaxis(_input((1, channels, *plane), kind), 1, -1)
        x = np.ascontiguousarray(np.abs(x) if dtype == "uint8" else x).astype(dtype)
        windows = {"kernel_size": kernel, "stride": stride, "padding": padding}
        windows["channels_last"] = True
        if dtype == "uint8":
            expected = reference.max_pool2d(x, **windows)
            np.testing.assert_array_equal(poolgrad.max_pool2d(x, **windows), expected)
            continue
        _check("max_pool2d", x, True, **windows)
        if padding == 1:  # pixels that lie apart
            _check("max_pool2d", np.repeat(x, 2, -2)[..., ::2, :], True, **windows)


@pytest.mark.parametrize(
    ("shape", "dilation", "last"),
    [
        ((1, 7, 3, 24), 1, True),
        ((1, 5, 19, 24), 1, True),
        ((1, 1, 20, 12), 4, False),
        ((1, 1, 20, 14), 3, False),
        pytest.param((1, 7, 19, 64), 1, True, marks=pytest.mark.slow),
    ],
)
def test_a_nan_at_every_column(shape: tuple[int, ...], dilation: int, last: bool) -> None:
    """Also one that is the middle of a window, and at no end of another."""
    for column in range(shape[2 + (not last)]):
        x = np.zeros(shape, np.float32)
        x[(0, 3, column, 1) if last else (0, 0, 3, column)] = np.nan
        windows = {"kernel_size": 3, "stride": 1, "dilation": dilation, "channels_last": last}
        y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, **windows)
        expected, textbook = reference.vjp(reference.max_pool2d, x, **windows)
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(poolgrad.max_pool2d(x, **windows), expected)
        ones = np.ones_like(y)
        np.testing.assert_array_equal(pullback(ones), textbook(ones))


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 3, 1), (3, 1, 2), (2, 1, 3)])
@pytest.mark.parametrize("kind", ["ties", "nan", "infinite"])
def test_windows_apart(kind: str, kernel: int, stride: int, dilation: int) -> None:
    """Gaps between windows, or in them."""
    windows = {"kernel_size": kernel, "stride": stride, "dilation": dilation}
    for plane, padding in product(PLANES, [0, 1]):
        x = _input((1, 1, *plane), kind)
        _check("max_pool2d", x, True, padding=padding, **windows)
        if kind == "ties":
            _check("avg_pool2d", x, False, padding=padding, **windows)
    if kind == "nan":
        volume = _input((1, *VOLUMES[0]), kind)
        _check("max_pool3d", volume, True, padding=1, **windows)


@pytest.mark.parametrize(("kernel", "stride"), [*SHAPES, (3, 3)])
@pytest.mark.parametrize("around", [np.nan, np.inf, 1e30])
def test_what_lies_beside_is_no_input(around: float, kernel: int, stride: int) -> None:
    """Lines are read where they lie, and a vector holds what lies beside them, too."""
    for shape in [(1, 2, 20, 40), (1, 5, 19, 33)]:
        x = _input(shape, "ties")
        frame = np.full((*shape[:-2], shape[-2] + 4, shape[-1] + 7), around, np.float32)
        inside = frame[..., 2:-2, 3:-4]
        inside[...] = x
        windows = {"kernel_size": kernel, "stride": stride, "padding": 1, "ceil_mode": True}
        for name in ("max_pool2d", "avg_pool2d", "max_pool3d", "avg_pool3d"):
            pool = getattr(poolgrad, name)
            np.testing.assert_array_equal(pool(inside, **windows), pool(x, **windows))


@pytest.mark.parametrize(("kernel", "stride"), SHAPES)
@pytest.mark.parametrize("kind", ["ties", "nan"])
def test_volumes(kind: str, kernel: int, stride: int) -> None:
    for volume, padding in product(VOLUMES, [0, 1, ((1, 0), (0, 1), (1, 1))]):
        x = _input((1, *volume), kind)
        _check("max_pool3d", x, True, kernel_size=kernel, stride=stride, padding=padding)


@pytest.mark.parametrize("shape", [(2, 70, 64), (2, 70, 33), (2, 6, 70, 64)])
def test_rows_of_two_byte_gradients(shape: tuple[int, ...]) -> None:
    """Rows of gradients that follow each other are converted together, others one by one."""
    x = _input(shape, "ties").astype(np.float16)
    _check(f"max_pool{len(shape) - 1}d", x, True, kernel_size=2)
    _, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, kernel_size=2)
    columns = np.random.default_rng(0).integers(-9, 10, (*x.shape[:-2], 35, 48)).astype(np.float16)
    part = columns[..., : shape[-1] // 2]  # rows that do not follow each other
    np.testing.assert_array_equal(pullback(part), pullback(part.copy()))


@pytest.mark.parametrize("columns", [48, 49])
@pytest.mark.parametrize(("kernel", "stride"), SHAPES)
def test_rows_that_are_copied_in_one_run(kernel: int, stride: int, columns: int) -> None:
    """Without padding, rows that follow each other are converted or flipped together."""
    wide = np.random.default_rng(0).integers(-9, 10, (2, 3, 35, 60)).astype(np.float32)
    part = wide[..., :columns]  # rows that do not follow each other
    means = poolgrad.avg_pool2d(part.astype(np.float64), kernel, stride).astype(np.float16)
    lowest = -poolgrad.max_pool2d(-part, kernel, stride)
    halves = wide.astype(np.float16)[..., :columns]
    for copied in (np.ndarray.view, np.ndarray.copy):
        y = poolgrad.avg_pool2d(copied(halves), kernel, stride)
        np.testing.assert_array_equal(y, means)
        np.testing.assert_array_equal(poolgrad.min_pool2d(copied(part), kernel, stride), lowest)


@pytest.mark.parametrize(("kernel", "stride"), SHAPES)
@pytest.mark.parametrize("count_include_pad", [True, False])
def test_averages(count_include_pad: bool, kernel: int, stride: int) -> None:
    windows = {"kernel_size": kernel, "stride": stride, "count_include_pad": count_include_pad}
    for plane, padding in product(PLANES, [0, 1]):
        _check("avg_pool2d", _input((1, 1, *plane), "ties"), False, padding=padding, **windows)
    for volume, padding in product(VOLUMES, [0, 1]):
        _check("avg_pool3d", _input((1, *volume), "ties"), False, padding=padding, **windows)


@pytest.mark.parametrize(("kernel", "stride"), SHAPES)
def test_averages_are_the_same_bits_in_both_layouts(kernel: int, stride: int) -> None:
    random = np.random.default_rng(0)
    for plane in PLANES:
        x = random.standard_normal((2, 3, *plane))
        last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        windows = {"kernel_size": kernel, "stride": stride, "padding": 1}
        y, pullback = poolgrad.vjp(poolgrad.avg_pool2d, x, **windows)
        same, back = poolgrad.vjp(poolgrad.avg_pool2d, last, channels_last=True, **windows)
        np.testing.assert_array_equal(np.moveaxis(same, -1, 1), y)
        cotangent = random.standard_normal(y.shape)
        moved = np.ascontiguousarray(np.moveaxis(cotangent, 1, -1))
        np.testing.assert_array_equal(np.moveaxis(back(moved), -1, 1), pullback(cotangent))
