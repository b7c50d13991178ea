"""Operators whose weights depend on the input: limits of their parameters and exact gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frontend_calls import NUMPY, Front

import poolgrad

INF, NAN = np.inf, np.nan
LARGE = {np.float32: 1e30, np.float64: 1e300}
EPS = {np.float32: 2.0**-23, np.float64: 2.0**-52}
PARAMETER = {"lp": "norm_type", "log_mean_exp": "r", "mixed": "alpha"}
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])

# Operator, its parameter, further arguments: every algorithm of the kernel.
NONLINEAR: list[tuple[str, float | None, dict[str, Any]]] = [
    *(("lp", p, {"mean": mean}) for p in (0.5, 1, 2, 3.5, 1e3, 1e6, INF) for mean in (False, True)),
    *(("log_mean_exp", r, {}) for r in (1, -1, 1e3, -1e3, 1e-3, 1e-30)),
    *(("mixed", a, {}) for a in (0, 0.25, 1, -3)),
    ("soft", None, {}),
    ("stochastic", None, {"training": False}),
]
IDS = [f"{k}-{v}-{'-'.join(map(str, e.values()))}" for k, v, e in NONLINEAR]
nonlinear = pytest.mark.parametrize(("kind", "value", "extras"), NONLINEAR, ids=IDS)


def given(kind: str, value: Any, extras: dict[str, Any]) -> dict[str, Any]:
    if kind not in PARAMETER:
        return extras
    return extras | {PARAMETER[kind]: float(value) if np.ndim(value) == 0 else value}


def window(
    front: Front, kind: str, x: Any, value: Any = None, dtype: Any = np.float64, **extras: Any
) -> tuple[float, np.ndarray, float]:
    """One window's value, its derivative by the inputs, and by the parameter if there is one."""
    x = np.array([x], dtype)
    kwargs = given(kind, value, extras)
    y, pullback = front.vjp(f"{kind}_pool1d", x, kernel_size=x.shape[1], **kwargs)
    slopes = pullback.parameters(np.ones_like(y))
    return y.item(), pullback(np.ones_like(y))[0], float(slopes.get(PARAMETER.get(kind), 0))


# The ends of the range


@pytest.mark.slow_in("jax", "dask")
@nonlinear
@each_dtype
def test_large_inputs_give_finite_gradients(
    front: Front, dtype: Any, kind: str, value: Any, extras: Any
) -> None:
    big = LARGE[dtype]
    for x in ([big, -big, 1, 0], [-big, -big / 2, -big / 4], [big] * 4, [big, 0.999 * big, 7]):
        y, gx, slope = window(front, kind, x, value, dtype, **extras)
        assert np.isfinite(y), x
        assert np.isfinite(gx).all(), (x, gx)
        assert np.isfinite(slope), (x, slope)
        assert abs(y) <= 20 * big  # of four inputs the norm with p = 1/2 is 16 times as large


@pytest.mark.slow_in("jax", "dask")
@nonlinear
@each_dtype
def test_small_inputs_give_finite_gradients(
    front: Front, dtype: Any, kind: str, value: Any, extras: Any
) -> None:
    least = float(np.finfo(dtype).smallest_subnormal)
    for x in ([0] * 4, [-0.0] * 3, [least, 0, 0], [-least, 3 * least], [1, least, -least, 0]):
        y, gx, slope = window(front, kind, x, value, dtype, **extras)
        assert np.isfinite([y, slope, *gx]).all(), (x, y, gx, slope)
        if not any(x):
            assert y == 0
            if kind == "lp":
                assert (gx == 0).all()
                assert slope == 0


@pytest.mark.slow_in("jax", "dask")
@nonlinear
@pytest.mark.parametrize("size", [1, 2, 3, 9, 40, 200])
def test_nan_anywhere_makes_the_output_nan(
    front: Front, size: int, kind: str, value: Any, extras: Any
) -> None:
    kwargs = given(kind, value, extras)
    x = np.ones((min(size, 16), size))
    rows = np.arange(len(x))
    x[rows, rows * size // len(x)] = NAN  # at another place in each row
    x[:, -1] = np.where(rows == len(x) - 1, NAN, x[:, -1])
    x = np.concatenate([x, np.full((1, size), 2.0)])
    for also in (1.0, 0.0, -3.0, INF, -INF):
        z = np.where(x == 1, also, x)
        y = front.run(f"{kind}_pool1d", z.astype(np.float32), kernel_size=size, **kwargs)
        assert np.isnan(y[:-1]).all(), also
        assert np.isfinite(y[-1])


def test_infinities_are_limits(front: Front) -> None:
    def y(kind: str, x: list[float], value: Any = None, **extras: Any) -> float:
        row = np.array([x], np.float32)
        kwargs = given(kind, value, extras)
        return front.run(f"{kind}_pool1d", row, kernel_size=len(x), **kwargs).item()

    for p, mean, sign in itertools.product((0.5, 2, 3.5, INF), (False, True), (1, -1)):
        assert y("lp", [1, sign * INF, 0], p, mean=mean) == INF
    for r in (0.5, 2, 1e3):
        assert y("log_mean_exp", [1, INF, 0], r) == y("log_mean_exp", [INF, -INF, INF], r) == INF
        assert y("log_mean_exp", [1, INF, 0], -r) == pytest.approx(
            y("log_mean_exp", [1, 1e30, 0], -r)
        )
        assert y("log_mean_exp", [1, -INF, 0], -r) == -INF
        assert y("log_mean_exp", [-INF, -INF], r) == -INF
        assert y("log_mean_exp", [-INF, 0], r) == pytest.approx(-math.log(2) / r)
    assert y("soft", [1, -INF, 1]) == 1
    assert y("soft", [1, INF, 2]) == INF
    assert y("soft", [-INF, -INF]) == -INF
    assert y("stochastic", [1, INF, 0], training=False) == INF
    assert y("stochastic", [3, -INF, 1], training=False) == 2.5
    assert y("mixed", [1, INF, 2], 0.5) == INF
    assert y("mixed", [1, -INF], 0.5) == -INF
    # At its ends a mixture is one of the two, whatever the other is.
    assert y("mixed", [-INF, 1, 2, 3], 1) == 3
    assert y("mixed", [-INF, 1, 2, 3], 0) == -INF
    assert y("mixed", [1, INF], 0) == y("mixed", [1, INF], 1) == INF
    assert y("mixed", [2e38, 3e38], 1) == np.float32(3e38)  # the sum of which is infinite
    assert np.isnan([y("mixed", [1, NAN, INF], a) for a in (0, 1)]).all()
    for x, alpha in itertools.product(([-INF, 1, 2, 3], [1, INF], [-INF, INF]), (0.0, 0.25, 1.0)):
        slow = poolgrad.reference.mixed_pool1d(np.array([x]), len(x), alpha=alpha)
        np.testing.assert_equal(y("mixed", x, alpha), slow.item())


@pytest.mark.parametrize("p", [1e3, 1e6, 1e30])
@each_dtype
def test_large_powers_are_nearly_the_largest(front: Front, dtype: Any, p: float) -> None:
    big = LARGE[dtype]
    for x in ([3, -4, 2.5], [big, -4 * big, 0], [1e-30, 3e-30]):
        y, gx, slope = window(front, "lp", x, p, dtype)
        most = np.abs(x).max()
        assert y == pytest.approx(most, rel=1.1 * math.log(3) / p + 2 * EPS[dtype])
        at = np.argmax(np.abs(x))
        assert gx[at] == pytest.approx(np.sign(x[at]), rel=1e-6)
        assert np.abs(np.delete(gx, at)).max() < 1e-6
        assert abs(slope) <= 3 * most / p


@pytest.mark.parametrize("p", [0.125, 0.01])
def test_small_powers(front: Front, p: float) -> None:
    x = [0.5, 2.0, 3.0]
    exact = np.mean(np.abs(x) ** p) ** (1 / p)
    y, gx, _ = window(front, "lp", x, p, mean=True)
    assert y == pytest.approx(exact, rel=1e-12)
    np.testing.assert_allclose(gx, (np.array(x) / y) ** (p - 1) / 3, rtol=1e-12)


@pytest.mark.slow_in("jax", "dask")
@each_dtype
def test_whole_powers_agree_with_their_neighbours(front: Front, dtype: Any) -> None:
    """Whole p, the same everywhere, is computed by products; anything else by logarithms."""
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 10)).astype(dtype)
    for p in (1, 2, 3, 4, 5, 8, 20):
        for near in (np.nextafter(dtype(p), dtype(99)), np.full(3, p), np.array([p, p + 0.5, p])):
            y, pullback = front.vjp("lp_pool2d", x, float(p), 3, 2)
            z, other = front.vjp("lp_pool2d", x, near, 3, 2)
            gy = np.ones_like(y)
            same = [0, 2] if np.size(near) == 3 and near[1] != p else [0, 1, 2]
            for a, b in ((y, z), (pullback(gy), other(gy))):
                # p differs by one ulp, log(y / x) by a few; powers of ratios by p times as much
                tolerance = (10 + 10 * p) * EPS[dtype]
                np.testing.assert_allclose(a[:, same], b[:, same], rtol=tolerance, atol=tolerance)


# Limits


@pytest.mark.parametrize("r", [1e-3, 1e-8, 1e-30, 1e-100, 1e-300, -1e-3, -1e-8, -1e-300])
def test_lse_tends_to_the_mean(front: Front, r: float) -> None:
    x = np.array([0.3, -1.2, 2.0, 5.0, 0.1])
    y, gx, slope = window(front, "log_mean_exp", x, r)
    variance = x.var()
    assert y == pytest.approx(x.mean() + r * variance / 2, abs=10 * r * r + 1e-15)
    np.testing.assert_allclose(gx, 0.2 * (1 + r * (x - x.mean())), atol=20 * r * r + 1e-15)
    third = ((x - x.mean()) ** 3).mean()
    assert slope == pytest.approx(variance / 2 + r * third / 3, rel=20 * r * r + 1e-12)


@pytest.mark.parametrize("r", [1e-3, 1e-20, 1e-38])
def test_lse_tends_to_the_mean_in_float32(front: Front, r: float) -> None:
    x = np.array([0.3, -1.2, 2.0, 5.0, 0.1])
    y, gx, slope = window(front, "log_mean_exp", x, r, np.float32)
    assert y == pytest.approx(x.mean() + r * x.var() / 2, rel=4 * EPS[np.float32], abs=10 * r * r)
    np.testing.assert_allclose(gx, 0.2 * (1 + r * (x - x.mean())), rtol=1e-5)
    assert slope == pytest.approx(x.var() / 2, rel=10 * r + 1e-5)


@each_dtype
def test_lse_tends_to_the_extremes(front: Front, dtype: Any) -> None:
    x = [0.25, -1.5, 2.0, 1.75]
    for r in (1e3, 1e30):
        y, gx, _ = window(front, "log_mean_exp", x, r, dtype)
        assert y == pytest.approx(2 - math.log(4) / r, rel=4 * EPS[dtype])
        np.testing.assert_allclose(gx, [0, 0, 1, 0], atol=1e-100)  # exp(-250)
        y, gx, _ = window(front, "log_mean_exp", x, -r, dtype)
        assert y == pytest.approx(-1.5 + math.log(4) / r, rel=4 * EPS[dtype])
        np.testing.assert_allclose(gx, [0, 1, 0, 0], atol=1e-100)


def test_infinite_power_is_the_largest_magnitude(front: Front) -> None:
    x = np.random.default_rng(1).integers(-5, 6, (2, 3, 7, 8)).astype(np.float32)
    for mean in (False, True):
        y, pullback = front.vjp("lp_pool2d", x, norm_type=INF, kernel_size=3, stride=2, mean=mean)
        np.testing.assert_array_equal(y, poolgrad.max_pool2d(np.abs(x), 3, 2))
        gy = np.random.default_rng(2).integers(-4, 5, y.shape).astype(np.float32)
        split = poolgrad.vjp(poolgrad.max_pool2d, np.abs(x), 3, 2, ties="split")[1](gy)
        np.testing.assert_allclose(pullback(gy), np.sign(x) * split, rtol=1e-6, atol=1e-6)
        assert pullback.parameters(gy)["norm_type"] == 0


def test_power_mean_tends_to_the_geometric_mean(front: Front) -> None:
    x = np.array([0.5, 2.0, 3.0, 7.0])
    geometric = np.exp(np.log(x).mean())
    for p in (1e-3, 1e-6, 1e-9, 1e-12):
        y, gx, slope = window(front, "lp", x, p, mean=True)
        assert y == pytest.approx(geometric * (1 + p * np.log(x).var() / 2), rel=p * p + 1e-13)
        np.testing.assert_allclose(gx, geometric / x / 4, rtol=5 * p + 1e-12)
        if p > 1e-7:
            assert slope == pytest.approx(geometric * np.log(x).var() / 2, rel=5 * p + 1e-6)


def test_mixtures_of_nothing_but_one(front: Front) -> None:
    x = np.random.default_rng(3).standard_normal((2, 3, 7, 8))
    for alpha, fun in ((0.0, "avg_pool2d"), (1.0, "max_pool2d")):
        y, pullback = front.vjp("mixed_pool2d", x, 3, 2, 1, alpha=alpha)
        expected, back = front.vjp(fun, x, 3, 2, 1)
        np.testing.assert_allclose(y, expected, rtol=1e-15, atol=1e-15)
        gy = np.random.default_rng(4).standard_normal(y.shape)
        np.testing.assert_allclose(pullback(gy), back(gy), rtol=1e-14, atol=1e-14)
        slope = (poolgrad.max_pool2d(x, 3, 2, 1) - poolgrad.avg_pool2d(x, 3, 2, 1)) * gy
        assert pullback.parameters(gy)["alpha"] == pytest.approx(slope.sum(), rel=1e-12)


@each_dtype
@pytest.mark.parametrize("shift", [1024.0, -(2.0**20)])
def test_soft_does_not_see_a_shift(front: Front, dtype: Any, shift: float) -> None:
    """Quarters, and a shift that keeps them: distances are exact, so are weights and gradients."""
    x = np.random.default_rng(5).integers(-12, 13, (2, 3, 8, 9)).astype(dtype) / 4
    y, pullback = front.vjp("soft_pool2d", x, 3, 2, 1)
    moved, back = front.vjp("soft_pool2d", x + dtype(shift), 3, 2, 1)
    np.testing.assert_allclose(moved, y + shift, rtol=2 * EPS[dtype])
    gy = np.random.default_rng(6).standard_normal(y.shape).astype(dtype)
    np.testing.assert_array_equal(back(gy), pullback(gy))


# Gradients against differences


def slopes(f: Callable[[np.ndarray], float], x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Central differences."""
    out = np.empty(x.shape)
    for i in np.ndindex(*x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[i] += step
        behind[i] -= step
        out[i] = (f(ahead) - f(behind)) / (2 * step)
    return out


SMOOTH = [c for c in NONLINEAR if c[1] not in (INF, 1e3, 1e6, -1e3, 1e-30)]
LAYOUTS = [("channels-first", False, False), ("channels-last", True, False),
           ("channels-innermost", False, True)]  # fmt: skip


@pytest.mark.slow_in("jax", "dask")
@pytest.mark.parametrize(("layout", "last", "inner"), LAYOUTS, ids=[n for n, _, _ in LAYOUTS])
@pytest.mark.parametrize(
    ("kind", "value", "extras", "each"),
    [(*c, each) for c in SMOOTH for each in (False, True) if c[0] in PARAMETER or not each],
)
def test_differences(
    front: Front, kind: str, value: Any, extras: Any, each: bool, layout: str, last: bool,
    inner: bool,
) -> None:  # fmt: skip
    shape = (2, 4, 5, 3) if last else (2, 3, 4, 5)
    r = np.random.default_rng(7)
    x = r.permutation(120).reshape(shape) / 30.0 - 2.02  # distinct, none of them 0
    if inner:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    theta = np.array([1.0, 0.75, 1.25]) * value if each else np.array(value or 0.0)
    call = {"kernel_size": 3, "stride": 2, "padding": 1, "channels_last": last} | extras

    def run(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
        t = theta if theta.ndim else float(theta)
        return NUMPY.run(f"{kind}_pool2d", x, **given(kind, t, call))  # hundreds of calls

    y, pullback = front.vjp(f"{kind}_pool2d", x, **given(kind, theta if each else value, call))
    np.testing.assert_allclose(y, run(x, theta), rtol=1e-12, atol=1e-13)
    gy = r.standard_normal(y.shape)
    expected = slopes(lambda v: (run(v, theta) * gy).sum(), x)
    # float64: a difference of sums near 10, over twice the step; the step squared
    np.testing.assert_allclose(pullback(gy), expected, rtol=1e-6, atol=1e-7)
    if kind in PARAMETER:
        (slope,) = pullback.parameters(gy).values()
        assert slope.shape == theta.shape
        step = 1e-5 * max(abs(value), 0.1)
        by_theta = slopes(lambda t: (run(x, t) * gy).sum(), theta.astype(float), step)
        np.testing.assert_allclose(slope, by_theta, rtol=1e-5, atol=1e-6 / max(abs(value), 1e-2))


def test_at_kinks_the_gradient_lies_between_both_sides(front: Front) -> None:
    calls = [("lp", 1.0, [0.0, 2, -3], 0), ("stochastic", None, [0.0, 2, 3], 0),
             ("mixed", 0.5, [2.0, 2, 1], 0), ("mixed", -0.5, [2.0, 2, 1], 1),
             ("lp", INF, [3.0, -3, 1], 1), ("lp", 0.999, [1.0, 2, 0], 1)]  # fmt: skip
    for kind, value, x, place in calls:
        extras = {"training": False} if kind == "stochastic" else {}
        step = np.eye(3)[place] * 1e-7
        y, gx, _ = window(front, kind, x, value, **extras)
        sides = [(window(front, kind, x + s * step, value, **extras)[0] - y) / (s * 1e-7)
                 for s in (1, -1)]  # fmt: skip
        assert min(sides) - 1e-6 <= gx[place] <= max(sides) + 1e-6, (kind, x)


@each_dtype
def test_shapes_of_parameters(front: Front, dtype: Any) -> None:
    for fun, kwargs in (("lp_pool2d", {"norm_type": 2.0}), ("log_mean_exp_pool2d", {"r": 1.0}),
                        ("mixed_pool2d", {"alpha": 0.5})):  # fmt: skip
        ((name, value),) = kwargs.items()
        for lead, channels in (((4,), 4), ((2, 4), 4), ((2, 3, 4), 4), ((3, 1), 1)):
            x = np.random.default_rng(8).random((*lead, 6, 6)).astype(dtype)
            for theta in (value, np.float32(value), np.full(channels, value, np.float16)):
                y, pullback = front.vjp(fun, x, kernel_size=2, **{name: theta})
                got = pullback.parameters(np.ones_like(y))
                assert got.keys() == {name}
                assert got[name].shape == np.shape(theta)
                assert got[name].dtype == dtype
            total = pullback.parameters(np.ones_like(y))[name].sum()
            y, pullback = front.vjp(fun, x, kernel_size=2, **{name: value})
            assert pullback.parameters(np.ones_like(y))[name] == pytest.approx(total, rel=1e-5)


@pytest.mark.without(dask="Dask warns of the overflow when it casts the sum of all chunks")
@each_dtype
def test_gradients_of_parameters_may_overflow(front: Front, dtype: Any) -> None:
    """To infinity, as those of inputs do, and without a warning."""
    most = float(np.finfo(dtype).max)
    x = np.array([[most / 8, most / 16]], dtype)
    y, pullback = front.vjp("mixed_pool1d", x, 2, alpha=0.5)
    assert pullback.parameters(np.full_like(y, 1e10)) == {"alpha": INF}
    assert pullback.parameters(np.full_like(y, -1e10)) == {"alpha": -INF}
    y, pullback = front.vjp("mixed_pool1d", np.repeat(x, 90, 0), 2, alpha=0.5)
    assert pullback.parameters(np.full_like(y, 1)) == {"alpha": INF}  # each of them is finite
