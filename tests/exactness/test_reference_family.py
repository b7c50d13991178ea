"""The reference implementation itself: formulas, edge cases, dtypes and random draws, by hand."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from expected_errors import refused
from one_window import pool
from robustness.calls import INTEGERS

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

import poolgrad  # noqa: E402
from poolgrad import reference  # noqa: E402
from poolgrad.reference import OPERATORS  # noqa: E402
from poolgrad.reference.geometry import starts  # noqa: E402
from poolgrad.reference.windows import uniform  # noqa: E402

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NAN, INF = np.nan, np.inf
LN2, LN3 = np.log(2), np.log(3)


class ByHand(NamedTuple):
    operator: str
    options: tuple[Any, ...]
    x: list[Any]
    y: Any
    dx: list[float]
    given: dict[str, Any] = {}  # noqa: RUF012 - never changed
    dtheta: float = 0.0


BY_HAND = [
    ByHand("relu_max", ("first",), [-3.0, 2, 1, 2], 2, [0, 1, 0, 0]),
    ByHand("relu_max", ("split",), [-3.0, 2, 1, 2], 2, [0, 0.5, 0, 0.5]),
    ByHand("relu_max", ("zero",), [-3.0, 2, 1, 2], 2, [0, 0, 0, 0]),
    ByHand("relu_max", ("first",), [-3.0, -1], 0, [0, 0]),
    ByHand("relu_max", ("split",), [0.0, -1, 0], 0, [0, 0, 0]),
    ByHand("relu_max", ("zero",), [-0.0], 0, [0]),
    ByHand("relu_max", ("first",), [NAN, 1, NAN, -INF], NAN, [0, 0, 1, 0]),
    ByHand("min", ("first",), [3.0, 1, 2, 1], 1, [0, 1, 0, 0]),
    ByHand("min", ("split",), [3.0, 1, 2, 1], 1, [0, 0.5, 0, 0.5]),
    ByHand("min", ("zero",), [3.0, 1, 2, 1], 1, [0, 0, 0, 0]),
    ByHand("min", ("zero",), [3.0, 1, 2, 2], 1, [0, 1, 0, 0]),
    ByHand("min", ("split",), [-INF, NAN, 1, NAN, 0], NAN, [0, 0, 0, 1, 0]),
    ByHand("min", ("first",), [INF, INF], INF, [1, 0]),
    # 1 2 4 5: the lower of the two in the middle
    ByHand("median", ("first",), [5.0, 1, 4, 2], 2, [0, 0, 0, 1]),
    ByHand("median", ("first",), [9.0, 7, 8], 8, [0, 0, 1]),
    # 1 3 3 3
    ByHand("median", ("first",), [3.0, 1, 3, 3], 3, [1, 0, 0, 0]),
    ByHand("median", ("split",), [3.0, 1, 3, 3], 3, [1 / 3, 0, 1 / 3, 1 / 3]),
    ByHand("median", ("zero",), [3.0, 1, 3, 3], 3, [0, 0, 0, 0]),
    ByHand("median", ("zero",), [3.0, 1, 3, 1], 1, [0, 0, 0, 0]),
    ByHand("median", ("first",), [NAN, 1, NAN, 3], NAN, [0, 0, 1, 0]),
    # 3 4 5
    ByHand("lp", (False,), [3.0, -4], 5, [3 / 5, -4 / 5], {"theta": 2.0},
           2.5 * (9 / 25 * LN3 + 16 / 25 * 2 * LN2 - np.log(5))),
    # y = 3, u = 1/3, 2/3, 0: dp = 3 (2/3 ln 2 - ln 3)
    ByHand("lp", (False,), [1.0, -2, 0], 3, [1, -1, 0], {"theta": 1.0}, 2 * LN2 - 3 * LN3),
    # y = 1: dp = 2/3 ln 2
    ByHand("lp", (True,), [1.0, -2, 0], 1, [1 / 3, -1 / 3, 0], {"theta": 1.0}, 2 / 3 * LN2),
    # sqrt((1 + 49) / 2) = 5; 1/5 / 2 and 7/5 / 2; dp = 5/2 (49/50 ln 7 - ln 5)
    ByHand("lp", (True,), [1.0, 7], 5, [0.1, 0.7], {"theta": 2.0},
           2.5 * (0.98 * np.log(7) - np.log(5))),
    # (1 + 2)^2 = 9; (1/9)^(-1/2) = 3, (4/9)^(-1/2) = 3/2; dp = 18 (2/3 ln 4 - ln 9)
    ByHand("lp", (False,), [1.0, -4], 9, [3, -1.5], {"theta": 0.5}, 24 * LN2 - 36 * LN3),
    ByHand("lp", (False,), [3.0, -4, 4], 4, [0, -0.5, 0.5], {"theta": INF}),
    ByHand("lp", (True,), [3.0, -4, 4], 4, [0, -0.5, 0.5], {"theta": INF}),
    ByHand("lp", (True,), [0.0, -0.0], 0, [0, 0], {"theta": 0.5}),
    ByHand("lp", (False,), [0.0, 0], 0, [0, 0], {"theta": INF}),
    ByHand("lp", (False,), [], 0, [], {"theta": 3.0}),
    ByHand("lp", (False,), [3e200, 4e200], 5e200, [3 / 5, 4 / 5], {"theta": 2.0},
           2.5e200 * (9 / 25 * LN3 + 16 / 25 * 2 * LN2 - np.log(5))),
    # log((1 + 3) / 2) = ln 2; weights 1 : 3; dr = 3/4 ln 3 - ln 2
    ByHand("log_mean_exp", (), [0.0, LN3], LN2, [1 / 4, 3 / 4], {"theta": 1.0}, 0.75 * LN3 - LN2),
    # -log((1 + 3) / 2): the same, turned round
    ByHand("log_mean_exp", (), [0.0, -LN3], -LN2, [1 / 4, 3 / 4], {"theta": -1.0},
           0.75 * LN3 - LN2),
    # log((1 + 3) / 2) / 2
    ByHand("log_mean_exp", (), [5.0, 5 + LN3 / 2], 5 + LN2 / 2, [1 / 4, 3 / 4], {"theta": 2.0},
           (3 / 8 * LN3 - LN2 / 2) / 2),
    ByHand("log_mean_exp", (), [1000.0, 1000 + LN3], 1000 + LN2, [1 / 4, 3 / 4], {"theta": 1.0},
           0.75 * LN3 - LN2),
    # weights 1 : 3; y = 3/4 ln 3
    ByHand("soft", (), [0.0, LN3], 0.75 * LN3,
           [(1 - 0.75 * LN3) / 4, 0.75 * (1 + 0.25 * LN3)]),
    ByHand("soft", (), [7.0, 7, 7, 7], 7, [1 / 4] * 4),
    # (1 + 9) / 4; (2 - 2.5) / 4 and (6 - 2.5) / 4
    ByHand("expected", (), [1.0, 3, -2], 2.5, [-0.125, 0.875, 0]),
    ByHand("expected", (), [-1.0, 0, -2], -1, [1 / 3] * 3),
    # reached: 1 4 4; thresholds u * 4
    ByHand("stochastic", (), [1.0, 3, -2], 1, [1, 0, 0], {"u": 0.2}),
    ByHand("stochastic", (), [1.0, 3, -2], 3, [0, 1, 0], {"u": 0.25}),
    ByHand("stochastic", (), [1.0, 3, -2], 3, [0, 1, 0], {"u": 1 - 2.0**-53}),
    ByHand("stochastic", (), [0.0, 2], 2, [0, 1], {"u": 0.0}),
    # nothing positive: all alike, floor(u * 3)
    ByHand("stochastic", (), [-1.0, -2, 0], -1, [1, 0, 0], {"u": 0.33}),
    ByHand("stochastic", (), [-1.0, -2, 0], -2, [0, 1, 0], {"u": 0.34}),
    ByHand("stochastic", (), [-1.0, -2, 0], 0, [0, 0, 1], {"u": 1 - 2.0**-53}),
    # the product rounds up to the sum
    ByHand("stochastic", (), [0.0, 5e-324, 0], 5e-324, [0, 1, 0], {"u": 0.9}),
    # 1/4 * 6 + 3/4 * 4
    ByHand("mixed", (True,), [2.0, 6], 4.5, [0.375, 0.625], {"theta": 0.25}, 2),
    # 1/4 * 6 + 3/4 * 8/4
    ByHand("mixed", (True,), [2.0, 6], 3, [0.1875, 0.4375], {"theta": 0.25, "extent": 4}, 4),
    ByHand("mixed", (False,), [2.0, 6], 4.5, [0.375, 0.625], {"theta": 0.25, "extent": 4}, 2),
    ByHand("range", (), [1.0, 3, -2, 3], 5, [0, 1, -1, 0]),
    # weights 1 : 2; (1 + 8) / 3
    ByHand("lip", (), [1.0, 4], 3, [1 / 3, 2 / 3], {"operand": np.array([0, LN2])}),
    # the first of two winners; alpha may be anything: 2 * 6 - 16/3
    ByHand("mixed", (True,), [6.0, 4, 6], 20 / 3, [5 / 3, -1 / 3, -1 / 3], {"theta": 2.0}, 2 / 3),
]  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND, ids=lambda c: f"{c.operator}{c.options}{c.x}{c.given}")
def test_by_hand(case: ByHand) -> None:
    made = pool(case.operator, np.array(case.x, float), *case.options, **case.given)
    np.testing.assert_allclose(made.y, case.y, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(made.dx, case.dx, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(made.dtheta, case.dtheta, rtol=1e-12, atol=1e-14)


def test_every_formula_is_written_by_hand() -> None:
    here = {case.operator for case in BY_HAND} | {"max", "avg", "fractional_max"}  # test_by_hand.py
    assert here == set(OPERATORS)


@pytest.mark.parametrize(
    ("dtype", "lowest", "highest"),
    [
        ("bool", False, True),
        ("uint8", 0, 255),
        ("int8", -128, 127),
        ("int64", -(2**63), 2**63 - 1),
        ("float32", -INF, INF),
    ],
)
def test_windows_without_input(dtype: str, lowest: Any, highest: Any) -> None:
    x = np.zeros((1, 1, 2), dtype)
    y, indices = reference.max_pool1d(x, 1, padding=1, return_indices=True)
    assert y.dtype == dtype
    assert y[0, 0].tolist() == [lowest, 0, 0, lowest]
    assert indices[0, 0].tolist() == [-1, 0, 1, -1]
    assert reference.min_pool1d(x, 1, padding=1)[0, 0].tolist() == [highest, 0, 0, highest]


@pytest.mark.parametrize(
    ("function", "args", "refuses"),
    [
        ("median_pool1d", (), True),
        ("log_mean_exp_pool1d", (), True),
        ("soft_pool1d", (), True),
        ("stochastic_pool1d", (), True),
        ("mixed_pool1d", (), True),
        ("avg_pool1d", ({"count_include_pad": False},), True),
        ("avg_pool1d", ({"count_include_pad": False, "divisor_override": 3},), False),
        ("max_pool1d", (), False),
    ],
)
def test_windows_that_must_have_an_input(function: str, args: Any, refuses: bool) -> None:
    kwargs = {"padding": 1, **(args[0] if args else {})}

    def run() -> Any:
        return getattr(reference, function)(np.ones((1, 0, 3)), 1, **kwargs)  # no planes at all

    if refuses:
        with pytest.raises(ValueError, match="length"):
            run()
    else:
        assert run().shape == (1, 0, 5)


def test_empty_windows_of_norms_and_of_power_means() -> None:
    x = np.full((1, 1, 1), -3.0)
    assert reference.lp_pool1d(x, 2, 1, padding=1).tolist() == [[[0, 3, 0]]]
    with pytest.raises(ValueError, match="length"):
        reference.lp_pool1d(x, 2, 1, padding=1, mean=True)
    with pytest.raises(ValueError, match="length"):
        reference.stochastic_pool1d(x, 1, padding=1, training=False)


def test_a_nan_makes_a_blend_nan() -> None:
    x = [1.0, NAN, 3.0]
    for theta in (0.5, 1.0, 2.0, INF):
        assert np.isnan(pool("lp", x, False, theta=theta).y)
    assert np.isnan(pool("log_mean_exp", x, theta=-2.0).y)
    assert np.isnan(pool("soft", x).y)
    assert np.isnan(pool("expected", x).y)
    assert np.isnan(pool("mixed", x, True, theta=0.5).y)


# Whole arrays: dtypes, places, twins


def test_integers_stay_exact() -> None:
    big = 2**53 + np.array([[1, 0, 2, 1]])
    assert reference.max_pool1d(big, 4).item() == 2**53 + 2
    assert reference.min_pool1d(big, 4).item() == 2**53
    assert reference.median_pool1d(big, 4).item() == 2**53 + 1
    assert reference.fractional_max_pool2d(big.reshape(1, 2, 2), 2, 1).item() == 2**53 + 2
    indices = np.array([[3, 1, 0, 2]])
    assert reference.max_unpool1d(big, indices, 1).tolist() == [[2**53 + i for i in (2, 0, 1, 1)]]


def test_truth_is_a_number() -> None:
    x = np.array([[True, False, True, False, True, False]])
    assert reference.max_pool1d(x, 2).tolist() == [[True] * 3]
    assert reference.min_pool1d(x, 3).tolist() == [[False] * 2]
    assert reference.median_pool1d(x, 3).tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        *((d, "float32") for d in ("bool", "int8", "uint8", "int16", "uint16", "float32")),
        *((d, "float64") for d in ("int32", "uint32", "int64", "float64")),
        ("float16", "float16"),
        (BFLOAT16, "bfloat16"),
        (">f4", "float32"),
    ],
)
def test_dtypes_of_averages(dtype: Any, result: str) -> None:
    y = reference.avg_pool1d(np.array([[1, 0, 1, 1]]).astype(dtype), 4)
    assert y.dtype.name == result
    assert y.dtype.isnative
    assert y.item() == 0.75


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32, np.float64])
@pytest.mark.parametrize("name", [n for n in poolgrad.functional.FUNCTIONS if n.endswith("2d")])
def test_every_function_takes_every_float(name: str, dtype: Any) -> None:
    x = (np.arange(32) % 7 - 3).reshape(1, 2, 4, 4).astype(dtype)
    kwargs: dict[str, Any] = {} if name.startswith("adaptive") else {"kernel_size": 2}
    if "adaptive" in name or "fractional" in name:
        kwargs["output_size"] = 2
    if name.startswith("lp"):
        kwargs["norm_type"] = 2
    if name.startswith("lip"):
        kwargs["logits"] = np.zeros_like(x)
    if "unpool" in name:
        kwargs["indices"] = np.broadcast_to(np.arange(16).reshape(4, 4), x.shape)
    y, pullback = reference.vjp(getattr(reference, name), x, **kwargs)
    assert y.dtype == dtype
    assert np.isfinite(y.astype(float)).all()
    gx = pullback(np.ones_like(y))
    assert gx.dtype == dtype
    assert gx.shape == x.shape


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32])
@pytest.mark.parametrize("name", ["soft", "log_mean_exp", "stochastic"])
def test_only_the_result_is_rounded(name: str, dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal((3, 12)).astype(dtype)
    kwargs = {"training": False} if name == "stochastic" else {}
    fun = getattr(reference, f"{name}_pool1d")
    (y, pullback), (y64, pullback64) = (
        reference.vjp(fun, a, 5, 2, **kwargs) for a in (x, x.astype(np.float64))
    )
    gy = np.ones_like(y)
    np.testing.assert_array_equal(y, y64.astype(dtype))
    np.testing.assert_array_equal(pullback(gy), pullback64(gy).astype(dtype))


@pytest.mark.parametrize("dtype", [np.dtype(d).name for d in INTEGERS])
def test_what_blends_takes_no_integers_and_integers_have_no_gradient(dtype: str) -> None:
    x = np.ones((1, 1, 4), dtype)
    for run in (
        lambda: reference.lp_pool1d(x, 2, 2),
        lambda: reference.soft_pool1d(x, 2),
        lambda: reference.stochastic_pool1d(x, 2),
        lambda: reference.vjp(reference.max_pool1d, x, 2),
        lambda: reference.vjp(reference.avg_pool1d, x, 2),
    ):
        with refused(TypeError, "x", dtype):
            run()


@pytest.mark.parametrize("name", ["max", "min", "median"])
@pytest.mark.parametrize("ties", ["first", "split", "zero"])
def test_routes_and_indices(name: str, ties: str) -> None:
    """The last window is 0 0 0 5: places 0 to 3, indices 1, 2, 4 and 5."""
    x = np.array([[9.0, 0, 0], [9, 0, 5]])
    fun = getattr(reference, f"{name}_pool2d")
    place, index = (3, 5) if name == "max" else (0, 1)
    pullback = reference.vjp(fun, x, 2, 1, ties=ties)[1]
    assert pullback.indices[0, 1] == index
    assert pullback.routes[0, 1] == (place if name == "max" or ties == "first" else -1)
    assert fun(x, 2, 1, return_indices=True, ties=ties)[1][0, 1] == index


def test_routes_count_padding_and_indices_do_not() -> None:
    x = np.array([[[1.0, 3, 2]]])
    y, pullback = reference.vjp(reference.max_pool1d, x, 3, 2, 1)
    assert y.tolist() == [[[3, 3]]]
    assert pullback.routes.tolist() == [[[2, 0]]]
    assert pullback.indices.tolist() == [[[1, 1]]]


def test_drawn_places_have_routes() -> None:
    x = np.array([[[0.0, 2, 3, 0]]])
    _, pullback = reference.vjp(reference.stochastic_pool1d, x, 2, generator=0)
    assert pullback.routes.tolist() == [[[1, 0]]]
    assert pullback(np.array([[[5.0, 7]]])).tolist() == [[[0, 5, 7, 0]]]
    _, indices = reference.stochastic_pool1d(x, 2, return_indices=True)
    assert indices.tolist() == [[[1, 2]]]


def test_the_ties_are_checked() -> None:
    with refused(ValueError, "ties", "all"):
        reference.min_pool1d(np.ones((1, 2)), 2, ties="all")


def test_every_function_has_its_twin() -> None:
    assert set(poolgrad.functional.FUNCTIONS) <= set(dir(reference)) & set(reference.__all__)
    for name in poolgrad.functional.FUNCTIONS:
        twin = getattr(reference, name)
        assert twin.__name__ == name
        assert twin is not getattr(poolgrad.functional, name)


def test_twins_fill_out() -> None:
    out = np.zeros((1, 2))
    assert reference.min_pool1d(np.array([[1.0, 2, 4, 3]]), 2, out=out) is out
    assert out.tolist() == [[1, 3]]


# Chance


def test_splitmix64() -> None:
    """The numbers that this generator is known by, for the seed 1234567."""
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    got = uniform(1234567, np.arange(5, dtype=np.uint64))
    assert got.tolist() == [(z >> 11) / 2**53 for z in known]
    assert uniform(1234567 - 2**64, np.arange(5, dtype=np.uint64)).tolist() == got.tolist()


def test_numbers_are_drawn_in_the_order_of_the_result() -> None:
    """Channels last: the channel turns fastest."""
    x = np.random.default_rng(3).random((2, 4, 3, 2))
    y = reference.stochastic_pool2d(x, 2, generator=99, channels_last=True)
    assert y.shape == (2, 2, 1, 2)
    u = uniform(99, np.arange(8, dtype=np.uint64)).reshape(y.shape)
    for n, i, c in itertools.product(range(2), repeat=3):
        window = x[n, 2 * i : 2 * i + 2, :2, c].ravel()
        assert y[n, i, 0, c] == pool("stochastic", window, u=u[n, i, 0, c]).y


def test_what_seeds_may_be() -> None:
    x = np.random.default_rng(3).random((40, 8))

    def draw(generator: Any) -> Any:
        return reference.stochastic_pool1d(x, 8, generator=generator).tolist()

    seed = int(np.random.default_rng(7).integers(2**63))
    assert draw(np.random.default_rng(7)) == draw(seed) == draw(np.int64(seed)) != draw(seed + 1)
    assert draw(None) != draw(None)


@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
def test_no_draw_from_what_is_not_finite(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"^x must be finite"):
        reference.stochastic_pool1d(np.array([[1.0, wrong, 2, 3]]), 2)


def test_where_fractional_windows_begin() -> None:
    # (7 - 2) / (3 - 1) = 2.5; floor(0.5 * 2.5) = 1; floor(1.5 * 2.5) = 3, less 1; the last at 5
    assert starts(7, 3, 2, 0.5) == [0, 2, 5]
    # floor(0.9 * 2.5) = 2; floor(1.9 * 2.5) = 4, less 2
    assert starts(7, 3, 2, 0.9) == [0, 2, 5]
    # floor(0.2 * 2.5) = 0; floor(1.2 * 2.5) = 3
    assert starts(7, 3, 2, 0.2) == [0, 3, 5]
    assert starts(7, 1, 2, 0.9) == [5]
    # 5/3 * 0.8 is 4/3, and 5/3 * 1.8 is 3: just below in float32
    assert starts(6, 4, 1, np.float64(0.8)) == [0, 2, 3, 5]
    assert starts(6, 4, 1, np.float32(0.8)) == [0, 1, 3, 5]
    # bfloat16 has only even numbers from 256 on: windows that would begin at up to 668
    assert np.max(starts(663, 585, 1, ml_dtypes.bfloat16(0.12))) == 662


def test_fractional_windows_begin_where_the_dtype_of_x_says() -> None:
    x = np.tile(np.arange(6.0), (1, 6, 1))
    for dtype, expected in ((np.float32, [0, 1, 3, 5]), (np.float64, [0, 2, 3, 5])):
        y = reference.fractional_max_pool2d(x.astype(dtype), 1, 4, _random_samples=[[[0.8, 0]]])
        assert y[0, 0].tolist() == expected


def test_fractional_windows_by_hand() -> None:
    x = np.array([[[0, 1, 2, 9, 4, 5, 6.0], [7, 8, 3, 0, 1, 2, 3]]])
    # height: 2 rows, one window; width: windows at 0, 3, 5 for 0.2, at 0, 2, 5 for 0.5
    y, pullback = reference.vjp(
        reference.fractional_max_pool2d, x, 2, (1, 3), _random_samples=[[[0.2, 0.9]]]
    )
    assert y.tolist() == [[[8, 9, 6]]]
    assert pullback.indices.tolist() == [[[8, 3, 6]]]
    assert pullback.routes.tolist() == [[[3, 0, 1]]]
    y = reference.fractional_max_pool2d(x, (1, 2), (2, 3), _random_samples=[[[0.5, 0.2]]])
    assert y.tolist() == [[[1, 9, 6], [8, 3, 3]]]


def test_fractional_samples_are_drawn_plane_by_plane() -> None:
    x = np.random.default_rng(2).random((2, 3, 9, 8)).astype(np.float32)
    samples = np.random.default_rng(11).random((2, 3, 2)).astype(np.float32)
    run = reference.fractional_max_pool2d
    given = run(x, 2, (4, 3), _random_samples=samples)
    for generator in (11, np.random.default_rng(11)):
        np.testing.assert_array_equal(run(x, 2, (4, 3), generator=generator), given)
    last = run(np.moveaxis(x, 1, -1), 2, (4, 3), _random_samples=samples, channels_last=True)
    np.testing.assert_array_equal(np.moveaxis(last, -1, 1), given)
    np.testing.assert_array_equal(run(x[1], 2, (4, 3), _random_samples=samples[1]), given[1])


def test_samples_stay_below_one() -> None:
    class Generator(np.random.Generator):
        def random(self, *shape: Any) -> Any:
            return np.full(*shape, 0.9999)  # of float16 the nearest is 1

    generator = Generator(np.random.PCG64())
    x = np.tile(np.arange(6.0, dtype=np.float16), (1, 6, 1))
    y = reference.fractional_max_pool2d(x, 1, 4, generator=generator)
    below = np.full((1, 1, 2), 1 - 2.0**-11)
    last = reference.fractional_max_pool2d(x, 1, 4, _random_samples=below)
    np.testing.assert_array_equal(y, last)
    np.testing.assert_array_equal(y, poolgrad.fractional_max_pool2d(x, 1, 4, generator=generator))


@pytest.mark.parametrize("samples", [np.zeros((2, 3, 3)), np.zeros((2, 2)), np.ones((2, 3, 2))])
def test_samples_that_are_refused(samples: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"^_random_samples must"):
        reference.fractional_max_pool2d(np.ones((2, 3, 5, 5)), 2, 2, _random_samples=samples)


# Unpooling


def test_unpooling_by_hand() -> None:
    x = np.array([[[1.0, 2, 3]]])
    y, pullback = reference.vjp(
        reference.max_unpool1d, x, np.array([[[4, 0, 4]]]), 2, output_size=(6,)
    )
    assert y.tolist() == [[[2, 0, 0, 0, 3, 0]]]  # of the two for place 4, the last
    assert pullback(np.arange(10.0, 16).reshape(y.shape)).tolist() == [[[0, 10, 14]]]


@pytest.mark.parametrize("index", [-1, 6])
def test_unpooling_to_nowhere(index: int) -> None:
    with pytest.raises(ValueError, match=r"^indices must"):
        reference.max_unpool1d(np.ones((1, 1, 3)), np.array([[[0, 1, index]]]), 2)


def test_unpooling_wants_an_index_for_each_value() -> None:
    with refused(ValueError, "indices", (1, 1, 2)):
        reference.max_unpool1d(np.ones((1, 1, 3)), np.zeros((1, 1, 2), np.int64), 2)
    with refused(TypeError, "indices", "int32"):
        reference.max_unpool1d(np.ones((1, 1, 3)), np.zeros((1, 1, 3), np.int32), 2)


def test_unpooling_undoes_pooling() -> None:
    x = np.random.default_rng(0).permutation(2 * 3 * 24).reshape(2, 4, 6, 3) + 1.0
    y, indices = reference.max_pool2d(x, 2, return_indices=True, channels_last=True)
    back = reference.max_unpool2d(y, indices, 2, channels_last=True)
    assert back.shape == x.shape
    np.testing.assert_array_equal(back, np.where(np.isin(x, y), x, 0))
