"""Nonlinear operators over small windows, unrolled in registers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import poolgrad
from poolgrad import reference

WINDOWS: list[tuple[Any, Any, Any, Any]] = [  # kernel, stride, padding, dilation
    (2, 2, 0, 1),
    (2, 2, (0, 1), 1),
    (3, 2, 1, 1),
    ((1, 3), 1, (0, 1), (1, 2)),
    ((3, 2), (1, 3), (1, 0), 1),
]
CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    **{f"lp {p}": ("lp", {"norm_type": p}, "norm_type") for p in (1.0, 2.0, 3.0, 4.0, 2.5)},
    **{
        f"mean {p}": ("lp", {"norm_type": p, "mean": True}, "norm_type")
        for p in (1.0, 2.0, 3.0, 0.5)
    },
    **{f"log_mean_exp {r}": ("log_mean_exp", {"r": r}, "r") for r in (1.0, -2.0, 1e-3)},
    "soft": ("soft", {}, ""),
    "expected": ("stochastic", {"training": False}, ""),
}
NEAR = {np.float32: 4e-6, np.float64: 1e-13}


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("dtype", NEAR)
def test_a_lone_number_is_its_own_norm(dtype: Any, norm_type: float) -> None:
    """Also where its power would be no number: the largest, the smallest, and infinity."""
    limits = np.finfo(dtype)
    alone = [limits.max, limits.max / 2, limits.tiny, limits.smallest_subnormal, 1, 3, np.inf, 0]
    x = np.zeros((1, 1, 2, 2 * len(alone)), dtype)
    x[0, 0, 1, ::2] = [-value for value in alone]
    y, back = poolgrad.vjp(poolgrad.lp_pool2d, x, norm_type, 2)
    np.testing.assert_allclose(y[0, 0, 0], np.array(alone, dtype), rtol=4 * limits.eps)
    gradient = np.zeros_like(x)
    gradient[0, 0, 1, :-2:2] = -1
    np.testing.assert_allclose(back(np.ones_like(y)), gradient, rtol=8 * limits.eps)
    x[..., -1] = np.nan
    assert np.isnan(poolgrad.lp_pool2d(x, norm_type, 2)[0, 0, 0, -1])


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("last", [False, True])
def test_like_the_reference(window: tuple[Any, Any, Any, Any], call: str, last: bool) -> None:
    kind, argument, name = CALLS[call]
    kernel, stride, padding, dilation = window
    kwargs = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    kwargs |= {"channels_last": last} | argument
    rng = np.random.default_rng(4)
    x = rng.standard_normal((1, 5, 39, 2) if last else (2, 1, 5, 39))
    x[..., ::7, :] = np.round(x[..., ::7, :])  # ties, and zeros
    pool = f"{kind}_pool2d"
    for dtype, near in NEAR.items():
        z = x.astype(dtype)
        y, back = poolgrad.vjp(getattr(poolgrad, pool), z, **kwargs)
        wide = z.astype(np.float64)
        expected, own = reference.vjp(getattr(reference, pool), wide, **kwargs)
        np.testing.assert_allclose(y, expected, rtol=near, atol=near)
        np.testing.assert_array_equal(
            y, getattr(poolgrad, pool)(z, **kwargs)
        )  # whether something is kept or not
        gy = rng.standard_normal(y.shape).astype(dtype)
        np.testing.assert_allclose(back(gy), own(gy.astype(np.float64)), rtol=near, atol=4 * near)
        if name:
            slope = back.parameters(gy)[name]
            truth = own.parameters(gy.astype(np.float64))[name]
            np.testing.assert_allclose(slope, truth, rtol=40 * near, atol=40 * near)


@pytest.mark.parametrize("call", CALLS)
def test_both_memory_formats_give_the_same_bits(call: str) -> None:
    kind, argument, _ = CALLS[call]
    x = np.random.default_rng(5).standard_normal((2, 3, 8, 37)).astype(np.float32)
    pool = getattr(poolgrad, f"{kind}_pool2d")
    kwargs = {"kernel_size": 3, "stride": 2, "padding": 1}
    first = pool(x, **kwargs, **argument)
    moved = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    last = pool(moved, **kwargs, channels_last=True, **argument)
    np.testing.assert_array_equal(np.moveaxis(last, -1, 1), first)


def test_windows_of_outputs_that_are_streamed() -> None:
    """Results, and what is kept of them, that are too large for the caches."""
    x = np.random.default_rng(6).standard_normal((1, 33, 258, 514)).astype(np.float32)
    for kind, argument in (("log_mean_exp", {}), ("soft", {}), ("lp", {"norm_type": 2.0})):
        pool = getattr(poolgrad, f"{kind}_pool2d")
        y, back = poolgrad.vjp(pool, x, kernel_size=2, **argument)
        gx = back(np.ones_like(y))
        part, own = poolgrad.vjp(pool, np.ascontiguousarray(x[:, 31:]), kernel_size=2, **argument)
        np.testing.assert_array_equal(y[:, 31:], part)
        np.testing.assert_array_equal(gx[:, 31:], own(np.ones_like(part)))


@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 1), (3, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_finite_leaves_the_other_windows_of_its_row(
    call: str, dtype: Any, window: tuple[int, int, int]
) -> None:
    """Squares of finite inputs have code of their own, which finds the same bits."""
    kind, argument, _ = CALLS[call]
    pool = getattr(poolgrad, f"{kind}_pool2d")
    kernel, stride, padding = window
    kwargs = {"kernel_size": kernel, "stride": stride, "padding": padding} | argument
    random = np.random.default_rng(8)
    for columns, column in itertools.product((32, 33, 62, 100, 129, 160), (2, 17, 31)):
        x = random.standard_normal((2, 6, columns)).astype(dtype)
        y, back = poolgrad.vjp(pool, x, **kwargs)
        gy = random.standard_normal(y.shape).astype(dtype)
        gx = back(gy)
        begins = np.arange(y.shape[-1]) * stride - padding
        untouched = (column < begins) | (column >= begins + kernel)
        inside = ~untouched & (begins >= 0) & (begins + kernel <= columns)
        few = slice(begins[inside][0], begins[inside][-1] + kernel)  # their columns
        far = abs(np.arange(columns) - column) >= kernel
        for value in (np.nan, np.inf, -np.inf, np.finfo(dtype).max):
            x[:, :, column] = value
            z, back = poolgrad.vjp(pool, x, **kwargs)
            np.testing.assert_array_equal(z[:, :, untouched], y[:, :, untouched])
            np.testing.assert_array_equal(back(gy)[:, :, far], gx[:, :, far])
            alone = pool(np.ascontiguousarray(x[:, :, few]), **kwargs | {"padding": (padding, 0)})
            np.testing.assert_array_equal(z[:, :, inside], alone)
