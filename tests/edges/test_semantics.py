"""Every rule of docs/semantics.md, in every front end."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from adversarial_arrays import FINITE, LAYOUTS, SHAPES, VALUES, Layout, Values, rng
from frontend_calls import NUMPY, TORCH, Front, as_tensor, torch
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples
from robustness.calls import DTYPES

import poolgrad
from poolgrad import reference

POOLS = ["max_pool2d", "avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool2d"]
INF = np.inf


def by_definition(size: int, k: int, s: int, lo: int, hi: int, d: int, ceil: bool) -> int:
    """Outputs, counted: windows that fit; with ceil, those that begin early enough."""
    starts = itertools.takewhile(
        lambda start: start < size + lo if ceil else start + d * (k - 1) < size + lo + hi,
        itertools.count(0, s),
    )
    if not ceil:
        return sum(1 for _ in starts)
    # as many as cover everything, but none may begin in the high padding
    needed = -(-(size + lo + hi - d * (k - 1) - 1) // s) + 1
    return min(sum(1 for _ in starts), needed)


@pytest.mark.hypothesis
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("fun", ["max_pool1d", "avg_pool1d"])
def test_output_size(front: Front, fun: str, ceil: bool) -> None:
    @settings(max_examples=examples(80 if front in (NUMPY, TORCH) else 8))
    @given(
        st.integers(1, 12), st.integers(1, 5), st.integers(1, 6),
        st.integers(0, 9), st.integers(0, 9), st.integers(1, 4),
    )  # fmt: skip
    def check(size: int, k: int, s: int, lo: int, hi: int, d: int) -> None:
        k = min(k, (size + lo + hi - 1) // d + 1)
        expected = by_definition(size, k, s, lo, hi, d, ceil)
        y = front.run(fun, np.zeros(size), k, s, [(lo, hi)], dilation=d, ceil_mode=ceil)
        assert y.shape == (expected,), (size, k, s, lo, hi, d)

    check()


def test_ceil_mode_counts_the_window_that_is_cut_off(front: Front) -> None:
    x = np.arange(1.0, 6)
    assert front.run("max_pool1d", x, 2).tolist() == [2, 4]
    assert front.run("max_pool1d", x, 2, ceil_mode=True).tolist() == [2, 4, 5]
    assert front.run("avg_pool1d", x, 2, ceil_mode=True).tolist() == [1.5, 3.5, 5]


def test_ceil_mode_drops_a_window_that_begins_beyond_the_input(front: Front) -> None:
    x = np.arange(1.0, 5)
    assert front.run("max_pool1d", x, 1, 3, 1, ceil_mode=True).tolist() == [-INF, 3]
    assert front.run("max_pool1d", x, 1, 1, [(0, 10)], ceil_mode=True).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "lo", "hi"),
    [
        (4, 2, 1, 1, 0, 1),
        (5, 3, 1, 1, 1, 1),
        (5, 4, 1, 1, 1, 2),
        (5, 2, 2, 1, 0, 1),
        (6, 3, 2, 1, 0, 1),
        (7, 3, 2, 2, 2, 2),
        (9, 1, 4, 1, 0, 0),
        (3, 8, 1, 1, 3, 4),
    ],
)
def test_same_padding_puts_the_extra_element_at_the_end(
    front: Front, size: int, kernel: int, stride: int, dilation: int, lo: int, hi: int
) -> None:
    x = rng((size,)).standard_normal(size)
    for fun in ("max_pool1d", "avg_pool1d"):
        same = front.run(fun, x, kernel, stride, "same", dilation=dilation)
        assert len(same) == -(-size // stride)
        expected = front.run(fun, x, kernel, stride, [(lo, hi)], dilation=dilation)
        np.testing.assert_array_equal(same, expected)


def test_all_forms_of_padding_mean_the_same(front: Front) -> None:
    x = rng((5, 6)).standard_normal((5, 6))
    forms = [1, (1,), [1], (1, 1), [1, 1], ((1, 1), (1, 1)), [[1, 1], [1, 1]], [(1, 1), [1, 1]]]
    forms += [np.int64(1), (np.int32(1), 1)]
    for fun in ("max_pool2d", "avg_pool2d"):
        results = [front.run(fun, x, 3, 2, p) for p in forms]
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])
        for none in ("valid", "VALID", 0, (0, 0)):
            np.testing.assert_array_equal(front.run(fun, x, 3, 2, none), front.run(fun, x, 3, 2))
    uneven = front.run("max_pool2d", x, 2, 1, ((1, 0), (0, 2)))
    assert uneven.shape == (5, 7)
    np.testing.assert_array_equal(uneven[:, -1], np.full(5, -INF))


def test_padding_never_wins_and_counts_as_zeros(front: Front) -> None:
    x = np.full((3, 3), -2.0)
    assert (front.run("max_pool2d", x, 3, 1, 1) == -2).all()
    expected = -2 * np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]]) / 9
    np.testing.assert_array_equal(front.run("avg_pool2d", x, 3, 1, 1), expected)
    only_real = front.run("avg_pool2d", x, 3, 1, 1, count_include_pad=False)
    np.testing.assert_array_equal(only_real, np.full((3, 3), -2.0))
    overridden = front.run("avg_pool2d", x, 3, 1, 1, divisor_override=1)
    np.testing.assert_array_equal(overridden, expected * 9)


def test_padding_beyond_half_the_kernel(front: Front) -> None:
    y, pullback = front.vjp("max_pool1d", np.array([5.0, 7]), 2, 1, 3)
    assert y.tolist() == [-INF, -INF, 5, 7, 7, -INF, -INF]
    assert pullback(2.0 ** np.arange(7)).tolist() == [4, 24]
    average = front.run("avg_pool1d", np.array([5.0, 7]), 2, 1, 3)
    assert average.tolist() == [0, 0, 2.5, 6, 3.5, 0, 0]


@pytest.mark.parametrize("ties", ["first", "split", "zero"])
def test_window_without_real_input_is_routed_nowhere(front: Front, ties: str) -> None:
    x = np.ones((2, 3, 2, 2))
    y, pullback = front.vjp("max_pool2d", x, 1, 2, 2, ties=ties)
    expected = np.full((2, 3, 3, 3), -INF)
    expected[..., 1, 1] = 1
    np.testing.assert_array_equal(y, expected)
    gx = pullback(np.full(y.shape, 7.0))
    assert gx[..., 0, 0].tolist() == [[7.0] * 3] * 2
    assert gx.sum() == 42
    indices = front.run("max_pool2d", x, 1, 2, 2, ties=ties, return_indices=True)[1]
    assert indices[0, 0].tolist() == [[-1, -1, -1], [-1, 0, -1], [-1, -1, -1]]


def test_window_without_real_input_has_no_route_and_no_column() -> None:
    _, pullback = poolgrad.vjp(poolgrad.max_pool1d, np.ones(3), 1, 1, 1)
    assert pullback.routes.tolist() == [255, 0, 0, 0, 255]
    assert pullback.mask().tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("args", "axis"),
    [
        ((1, 1, ((1, 0), (0, 0))), "height"),
        ((1, 1, ((0, 0), (0, 1))), "width"),
        ((2, 1, ((0, 0), (2, 0))), "width"),
        ((2, 1, 4), "height"),
    ],
)
def test_average_of_nothing_names_the_axis(front: Front, args: Any, axis: str) -> None:
    with pytest.raises(ValueError, match=f"along the {axis} without any input"):
        front.run("avg_pool2d", np.ones((3, 3)), *args, count_include_pad=False)


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "dilation"),
    [
        ((2, 3, 4), (2, 2, 4), (2, 2, 1), (0, 2, 1), 1),
        ((1, 2, 1), (3, 2, 3), 1, (1, 1, 2), (1, 3, 1)),
        ((3, 2, 40), (2, 4, 40), (2, 4, 3), (0, 4, 20), 1),
    ],
)
def test_rows_of_windows_without_any_input(
    front: Front, shape: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> None:
    """Where whole rows are added first, there is none to begin with."""
    x = np.full(shape, 7.0)
    y = front.run("avg_pool3d", x, kernel, stride, padding, dilation=dilation)
    expected = reference.avg_pool3d(x, kernel, stride, padding, dilation=dilation)
    assert not expected[:, 0].any()
    np.testing.assert_allclose(y, expected, 1e-14)


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "last"),
    [
        ((1, 6, 9), 2, 2, False),
        ((1, 40, 40), 3, 1, False),
        ((1, 40, 40), 9, 1, False),
        ((1, 12, 12, 32), 3, 2, True),
        ((1, 40, 40, 32), 9, 1, True),
    ],
)
def test_one_slice_and_windows_before_it(
    front: Front, shape: Any, kernel: int, stride: int, last: bool
) -> None:
    """Of depth 1, but not in the windows' reach: no plane like others."""
    x = rng(shape).standard_normal(shape)
    args, kwargs = ((1, kernel, kernel), (3, stride, stride), (1, 0, 0)), {"channels_last": last}
    for name, nothing in (("max", -INF), ("min", INF), ("avg", 0)):
        y, pullback = front.vjp(f"{name}_pool3d", x, *args, **kwargs)
        assert (y == nothing).all()
        assert not pullback(np.ones_like(y)).any()


def test_average_of_nothing_between_two_places(front: Front) -> None:
    # Places at -3 and 1, -2 and 2, -1 and 3, 0 and 4 of two inputs.
    with pytest.raises(ValueError, match="window 1 along the length without any input"):
        front.run("avg_pool1d", np.ones(2), 2, 1, 3, dilation=4, count_include_pad=False)


def test_last_nan_in_row_major_order_wins(front: Front) -> None:
    x = np.array([[1.0, np.nan, 3], [np.nan, INF, 9], [4, 5, 6]])
    for ties in ("first", "split", "zero"):
        y, pullback = front.vjp("max_pool2d", x, 2, 1, ties=ties)
        np.testing.assert_array_equal(np.isnan(y), [[True, True], [True, False]])
        gx = pullback(np.array([[1.0, 2], [4, 8]]))
        np.testing.assert_array_equal(gx, [[0, 2, 0], [5, 8, 0], [0, 0, 0]])


def test_nan_reaches_only_its_windows_in_an_average(front: Front) -> None:
    x = np.ones((6, 6))
    x[2, 2] = np.nan
    y = front.run("avg_pool2d", x, 2)
    assert np.argwhere(np.isnan(y)).tolist() == [[1, 1]]
    np.testing.assert_array_equal(y[~np.isnan(y)], np.ones(8))


@pytest.mark.slow_in("jax", "dask")
@pytest.mark.parametrize("values", [v for v in VALUES if v not in FINITE], ids=lambda v: v.id)
def test_average_of_infinities_and_nan(front: Front, values: Values) -> None:
    """An infinity gives an infinite average, both signs NaN; the gradient reads no values."""
    for dtype, args in itertools.product(DTYPES, [(2,), (3, 2, 1), (3, 1, ((2, 0), (0, 1)))]):
        x = values.make((2, 6, 7), dtype)
        with np.errstate(invalid="ignore"):  # inf - inf in the textbook's sum
            expected, back = reference.vjp(reference.avg_pool2d, x, *args)
        y, pullback = front.vjp("avg_pool2d", x, *args)
        tolerance = 1e-5 if dtype is np.float32 else 1e-13
        np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)
        gx = pullback(np.ones_like(y))
        np.testing.assert_allclose(gx, back(np.ones_like(y)), rtol=tolerance)


def test_minus_infinity_is_a_value_like_any_other(front: Front) -> None:
    y, pullback = front.vjp("max_pool1d", np.full(4, -INF), 2, 2, [(1, 1)])
    assert y.tolist() == [-INF, -INF, -INF]
    assert pullback(np.array([1.0, 2, 4])).tolist() == [1, 2, 0, 4]  # the first real input wins
    indices = front.run("max_pool1d", np.full(4, -INF), 2, 2, [(1, 1)], return_indices=True)[1]
    assert indices.tolist() == [0, 1, 3]


def test_first_of_equals_is_the_first_in_row_major_order(front: Front) -> None:
    x = np.array([[0.0, 0, 1], [1, 1, 0], [1, 0, 0]])
    assert front.run("max_pool2d", x, 3, return_indices=True)[1].tolist() == [[2]]
    y, indices = front.run("max_pool2d", np.array([[-0.0, 0.0]]), (1, 2), return_indices=True)
    assert indices.tolist() == [[0]]
    assert np.signbit(y).tolist() == [[True]]  # -0 equals +0: the first one it is


# Empty arrays, layouts, memory formats


@pytest.mark.slow_in("jax", "dask")
@pytest.mark.parametrize("shape", [s for _, s in SHAPES], ids=[name for name, _ in SHAPES])
@pytest.mark.parametrize("fun", POOLS)
@pytest.mark.parametrize("ties", ["first", "split"])
def test_odd_shapes(front: Front, fun: str, shape: tuple[int, ...], ties: str) -> None:
    x = np.ones(shape, np.float32)
    kwargs = {"ties": ties} if "max" in fun else {}
    args = (2,) if fun.startswith("adaptive") else (2, 2, 1)
    y, pullback = front.vjp(fun, x, *args, **kwargs)
    assert y.shape[:-2] == shape[:-2]
    assert y.dtype == np.float32
    gx = pullback(np.ones_like(y))
    assert gx.shape == shape
    assert (gx.size == 0) == (0 in shape)


@pytest.mark.parametrize("fun", [*POOLS, "global_max_pool", "global_avg_pool"])
@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 0, 4), "height"), ((2, 3, 4, 0), "width")])
def test_empty_pooled_axis_is_an_error(
    front: Front, fun: str, shape: tuple[int, ...], axis: str
) -> None:
    args = () if fun.startswith("global") else (2,)
    with pytest.raises(ValueError, match=f"the {axis} of the input must be positive.*got 0"):
        front.run(fun, np.ones(shape), *args)


@pytest.mark.without(jax="its arrays have one layout")
@pytest.mark.slow_in("dask")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda m: m.id)
@pytest.mark.parametrize("values", VALUES, ids=lambda v: v.id)
def test_layout_changes_no_bit(front: Front, values: Values, layout: Layout) -> None:
    """Of a maximum: of an average only where nothing is rounded, which is tested elsewhere."""
    for dtype, shape in itertools.product(DTYPES, [(2, 3, 6, 7), (2, 17, 5, 4)]):
        x = layout.make(values.make(shape, dtype))
        plain = np.ascontiguousarray(x, dtype)
        for args in ((2,), (3, 2, 1), (3, 1, ((2, 0), (0, 3)))):
            y, pullback = front.vjp("max_pool2d", x, *args)
            expected, back = front.vjp("max_pool2d", plain, *args)
            np.testing.assert_array_equal(y, expected, strict=True)
            gy = layout.make(rng(y.shape).standard_normal(y.shape).astype(dtype))
            np.testing.assert_array_equal(
                pullback(gy), back(np.ascontiguousarray(gy, dtype)), strict=True
            )


@pytest.mark.parametrize("fun", POOLS)
@pytest.mark.parametrize("records", [False, True], ids=["plain", "record-field"])
@pytest.mark.parametrize("swapped", [False, True], ids=["native", "byte-swapped"])
def test_outputs_follow_the_memory_format_of_the_input(
    fun: str, records: bool, swapped: bool
) -> None:
    order = "S" if swapped else "="
    dtype = np.dtype(np.float32).newbyteorder(order)
    last = np.ones((2, 6, 6, 5), [("flag", "u1"), ("value", dtype)])["value"]
    x = (last if records else last.copy()).transpose(0, 3, 1, 2)
    y, pullback = poolgrad.vjp(getattr(poolgrad, fun), x, 2)
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous
    assert pullback(np.ones_like(y)).transpose(0, 2, 3, 1).flags.c_contiguous
    first = x.copy()
    assert getattr(poolgrad, fun)(first, 2).flags.c_contiguous


def test_channels_last_pools_the_axes_before_the_last(front: Front) -> None:
    x = rng((2, 3, 6, 7)).standard_normal((2, 3, 6, 7))
    moved = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    for fun, args in (("max_pool2d", (3, 2, 1)), ("avg_pool2d", (3, 2, 1)),
                      ("adaptive_max_pool2d", ((2, 3),)), ("adaptive_avg_pool2d", ((2, 3),)),
                      ("global_max_pool", ()), ("global_avg_pool", ())):  # fmt: skip
        first, back = front.vjp(fun, x, *args)
        last, last_back = front.vjp(fun, moved, *args, channels_last=True)
        # Sums over large windows are rounded in an order that suits how they lie in memory.
        close = 1e-14 if fun in ("global_avg_pool", "adaptive_avg_pool2d") else 0
        np.testing.assert_allclose(np.moveaxis(last, -1, 1), first, rtol=close, atol=close)
        gy = rng(first.shape).standard_normal(first.shape)
        gx = last_back(np.ascontiguousarray(np.moveaxis(gy, 1, -1)))
        np.testing.assert_array_equal(np.moveaxis(gx, -1, 1), back(gy))


def test_the_same_kind_of_array_comes_out() -> None:
    x = np.ones((1, 1, 4, 4), np.float32)
    assert type(poolgrad.max_pool2d(x, 2)) is np.ndarray
    assert type(poolgrad.max_pool2d(x.tolist(), 2)) is np.ndarray
    assert poolgrad.max_pool2d(x, 2).dtype == np.float32
    assert poolgrad.max_pool2d(x.astype(">f4"), 2).dtype.isnative
    if torch is not None:
        y = poolgrad.max_pool2d(as_tensor(x), 2)
        assert type(y) is torch.Tensor
        assert y.dtype == torch.float32


# Global poolings: which axes are pooled


@pytest.mark.parametrize("fun", ["max", "avg", "lp", "log_mean_exp"])
def test_two_axes_are_one_plane(front: Front, fun: str) -> None:
    x = np.array([[1.0, 4.0, 2.0], [0.5, 3.0, 6.0]])
    name = f"global_{fun}_pool"
    y = front.run(name, x)
    assert y.shape == ()
    assert y == front.run(name, x[None, None])[0, 0]
    assert front.run(name, x, keepdims=True).shape == (1, 1)
    y, pullback = front.vjp(name, x)
    _, expected = front.vjp(name, x[None, None])
    gx = pullback(np.array(2.0))
    np.testing.assert_array_equal(gx, expected(np.full((1, 1), 2.0))[0, 0])
    assert gx.shape == x.shape


def test_the_index_in_one_plane(front: Front) -> None:
    y, index = front.run("global_max_pool", np.array([[1.0, 4.0], [6.0, 0.5]]), return_indices=True)
    assert (y.item(), index.item(), index.shape) == (6, 2, ())


def test_a_learned_argument_of_one_plane(front: Front) -> None:
    x = np.array([[3.0, 4.0]])
    assert front.run("global_lp_pool", x, norm_type=np.array([2.0])).item() == 5
    with pytest.raises(ValueError, match=r"^norm_type .* got shape \(2,\)$"):
        front.run("global_lp_pool", x, norm_type=np.ones(2))


def test_three_axes_have_a_batch(front: Front) -> None:
    """(N, C, L), not (C, H, W)."""
    assert front.run("global_max_pool", np.ones((3, 4, 5))).shape == (3, 4)
    assert front.run("global_max_pool", np.ones((1, 3, 4, 5))).shape == (1, 3)


def test_a_colour_image_without_channels_last_is_pooled_over_colours() -> None:
    """The documented trap."""
    image = np.zeros((6, 8, 3), np.uint8)
    assert poolgrad.max_pool2d(image, 2).shape == (6, 4, 1)
    assert poolgrad.max_pool2d(image, 2, channels_last=True).shape == (3, 4, 3)
    assert "(H, W, 3)" in (poolgrad.max_pool2d.__doc__ or "")
