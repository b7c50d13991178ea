"""Every operator against the textbook (`poolgrad.reference`), in every front end.

The textbook itself is tested against NumPy's own sliding windows: it shares `poolgrad.window` with
the kernels, and a mistake there would be made twice.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from fronts import FRONTS
from hypothesis import given
from hypothesis import strategies as st
from nasty import FINITE
from refusal import attempt
from strategies import Case, cases, pad_pairs, per_axis

import poolgrad
from poolgrad import reference

# Averages: sums of at most 125 numbers, in another order than the textbook's, which is in float64.
TOLERANCE = {"float32": {"rtol": 1e-5, "atol": 1e-6}, "float64": {"rtol": 1e-13, "atol": 1e-14}}


def same_or_close(got: np.ndarray, expected: np.ndarray, exact: bool) -> None:
    """Equal in shape, dtype and numbers; where the arithmetic is not exact, close."""
    assert got.shape == expected.shape
    assert got.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
    if exact:
        np.testing.assert_array_equal(got, expected)
    else:
        scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
        tolerance = TOLERANCE[got.dtype.name]
        np.testing.assert_allclose(
            got / scale, expected / scale, rtol=tolerance["rtol"], atol=tolerance["atol"]
        )


def compare(case: Case) -> None:
    textbook = getattr(reference, case.fun)
    answer = attempt(lambda: reference.vjp(textbook, case.x, *case.args, **case.kwargs))
    for front in FRONTS:
        if isinstance(answer, Exception):
            with pytest.raises(type(answer), match=re.escape(str(answer))):
                front.vjp(case.fun, case.x, *case.args, **case.kwargs)
            continue
        expected, back = answer
        y, pullback = front.vjp(case.fun, case.x, *case.args, **case.kwargs)
        assert y.dtype.isnative
        selects = "max" in case.fun
        same_or_close(y, expected, exact=selects)
        same_or_close(front.run(case.fun, case.x, *case.args, **case.kwargs), y, exact=True)
        gy = case.gradient(y.shape)
        exact = selects and case.kwargs["ties"] != "split"
        same_or_close(pullback(gy), back(gy), exact)
        if exact and isinstance(pullback, poolgrad.Pullback):
            check_routes(pullback, back)


def check_routes(pullback: poolgrad.Pullback, back: reference.Pullback) -> None:
    routes = pullback.routes
    places = np.where(routes == np.iinfo(routes.dtype).max, -1, routes.astype(np.int64))
    np.testing.assert_array_equal(places, back.routes)


@given(cases("max"))
def test_max(case: Case) -> None:
    compare(case)


@given(cases("avg", values=FINITE))
def test_avg(case: Case) -> None:
    compare(case)


@given(cases("adaptive_max"))
def test_adaptive_max(case: Case) -> None:
    compare(case)


@given(cases("adaptive_avg", values=FINITE))
def test_adaptive_avg(case: Case) -> None:
    compare(case)


@given(cases("global_max"))
def test_global_max(case: Case) -> None:
    compare(case)


@given(cases("global_avg", values=FINITE))
def test_global_avg(case: Case) -> None:
    compare(case)


@pytest.mark.parametrize("places", [254, 255, 256, 257])
@pytest.mark.parametrize("ties", ["first", "split", "zero"])
def test_where_routes_become_wider(places: int, ties: str) -> None:
    """255 places still fit a byte: 0 to 254, and 255 for "nowhere"."""
    x = np.zeros((2, places + 3))
    x[0, places - 1] = x[1, places] = 1  # the last place of a window, the last but one of the next
    case = Case("max_pool1d", x, (places, 1, [(0, 5)]), {"ties": ties})
    compare(case)
    if ties != "split":
        pullback = poolgrad.vjp(poolgrad.max_pool1d, x, *case.args, ties=ties)[1]
        assert pullback.routes.dtype == (np.uint8 if places <= 255 else np.uint16)


def test_routes_of_four_bytes() -> None:
    x = np.zeros((1, 300, 300))
    x[0, 299, 298] = 1
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 300)
    assert pullback.routes.dtype == np.uint32
    assert pullback.routes.item() == 299 * 300 + 298
    assert np.flatnonzero(pullback(np.ones_like(y))).tolist() == [299 * 300 + 298]


@pytest.mark.parametrize("kernel", [(9, 9), (12, 10), (40, 3), (1, 40), (2, 33)], ids=str)
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("fun", ["max_pool2d", "avg_pool2d"])
def test_large_windows(fun: str, kernel: tuple[int, int], dilation: int, stride: int) -> None:
    """Large windows go another way back than small ones; so do channels last."""
    x = np.random.default_rng(kernel).standard_normal((1, 13, 14, 2))
    kwargs: dict[str, Any] = {
        "padding": [(k - 1) * dilation // 2 for k in kernel],
        "dilation": dilation,
        "channels_last": True,
    }
    if fun == "max_pool2d":
        kwargs["ties"] = "first"
    compare(Case(fun, x, (kernel, stride), kwargs))
    kwargs["channels_last"] = False
    compare(Case(fun, x.transpose(0, 3, 1, 2).copy(), (kernel, stride), kwargs))


# The textbook against NumPy's sliding windows


@st.composite
def padded(draw: st.DrawFn) -> tuple[Case, list[tuple[int, int]]]:
    """A call without ceil_mode and channels_last, whose padding is known."""
    case = draw(cases("max", values=FINITE).filter(lambda c: c.kwargs["padding"] != "same"))
    dims = int(case.fun[-2])
    case.kwargs |= {"ceil_mode": False, "channels_last": False}
    sizes = case.x.shape[case.x.ndim - dims :]
    pairs = pad_pairs(case.kwargs["padding"], dims)
    spread = [
        (k - 1) * d + 1
        for k, d in zip(
            per_axis(case.kwargs["kernel_size"], dims),
            per_axis(case.kwargs["dilation"], dims),
            strict=True,
        )
    ]
    if case.x.ndim < dims or any(
        n + lo + hi < r for n, (lo, hi), r in zip(sizes, pairs, spread, strict=True)
    ):
        case.kwargs["kernel_size"] = 1
    return case, pairs


def slid(case: Case, pairs: list[tuple[int, int]], fill: float) -> np.ndarray:
    """All windows, their places flat on the last axis."""
    dims = len(pairs)
    x = np.pad(case.x.astype(float), [(0, 0)] * (case.x.ndim - dims) + pairs, constant_values=fill)
    kernel = per_axis(case.kwargs["kernel_size"], dims)
    stride = case.kwargs["stride"]
    stride = kernel if stride is None else per_axis(stride, dims)
    dilation = per_axis(case.kwargs["dilation"], dims)
    axes = tuple(range(x.ndim - dims, x.ndim))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, axis=axes)
    steps = tuple(slice(None, None, s) for s in stride)
    taps = tuple(slice(None, None, d) for d in dilation)
    seen = seen[(..., *steps, *(slice(None),) * dims)][(..., *taps)]
    return seen.reshape(*seen.shape[:-dims], -1)


@given(padded())
def test_the_textbooks_maximum_against_sliding_windows(made: tuple[Case, Any]) -> None:
    case, pairs = made
    expected = slid(case, pairs, -np.inf).max(-1).astype(case.x.dtype)
    got = getattr(reference, case.fun)(case.x, **case.kwargs)
    np.testing.assert_array_equal(got, expected)


@given(padded())
def test_the_textbooks_average_against_sliding_windows(made: tuple[Case, Any]) -> None:
    case, pairs = made
    kwargs = {k: v for k, v in case.kwargs.items() if k != "ties"}
    expected = slid(case, pairs, 0).mean(-1).astype(case.x.dtype)
    got = getattr(reference, case.fun.replace("max", "avg"))(case.x, **kwargs)
    same_or_close(got, expected, exact=False)
