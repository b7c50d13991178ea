"""Compares a call in any front end with the reference implementation: values, gradients, routes."""

from __future__ import annotations

import math
import re
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from expected_errors import attempt
from frontend_calls import Front

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

from adversarial_arrays import FINITE, VALUES  # noqa: E402
from robustness.calls import INTEGERS, Case  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad import reference  # noqa: E402

# Sums of up to 125 numbers, in another order than the textbook's, which is in float64; powers and
# exponentials good to an ulp or two. Relative to the largest input of a window; small dtypes are
# rounded once, by half an ulp, and a sum that is nearly half way may go to the other side.
ULP = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
TOLERANCE = {
    "float16": 1.01 * ULP["float16"],
    "bfloat16": 1.01 * ULP["bfloat16"],
    "float32": 8 * ULP["float32"],
    "float64": 8 * ULP["float64"],
}
WEIGHTED_VALUES = [*FINITE, *(v for v in VALUES if v.id in {"nan", "all-nan"})]
SELECTING = ("max", "relu_max", "min", "median", "stochastic", "fractional_max", "max_unpool")


def exactly(got: np.ndarray, expected: np.ndarray) -> None:
    """The same numbers, of the same kind; with -0 for -0."""
    assert got.shape == expected.shape
    assert got.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
    if got.dtype.kind in "fV":  # in float64, which says of bfloat16 where it is NaN
        got, expected = got.astype(np.float64), expected.astype(np.float64)
        numbers = ~np.isnan(got)
        np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(expected)[numbers])
    np.testing.assert_array_equal(got, expected)


def closely(got: np.ndarray, expected: np.ndarray, scale: Any, slack: float = 1) -> None:
    """Within the tolerance of its dtype, relative to `scale` or to the number itself."""
    assert got.shape == expected.shape
    assert got.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
    tolerance = slack * TOLERANCE[got.dtype.name]
    got, tiny = got.astype(np.float64), float(ml_dtypes.finfo(got.dtype).smallest_subnormal)
    expected = expected.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(got == expected, 0, np.abs(got - expected))
        bound = tolerance * np.maximum(np.abs(expected), scale) + 2 * tiny
    worst = np.nanargmax(error - bound) if np.isfinite(error).any() else 0
    assert not (error > bound).any(), (
        f"{got.flat[worst]} is not {expected.flat[worst]}, "
        f"{(error / bound).flat[worst] * slack:.3g} times as far as allowed"
    )


def largest(array: np.ndarray) -> float:
    """The largest finite magnitude."""
    size = np.abs(array.astype(np.float64))
    return float(np.max(size, where=np.isfinite(size), initial=0))


def scale_of(case: Case) -> np.ndarray:
    """The largest magnitude in each window of a call of a weighted operator."""
    kept = ("channels_last", "keepdims", "kernel_size", "stride", "padding", "dilation")
    kwargs = {k: v for k, v in case.kwargs.items() if k in (*kept, "ceil_mode")}
    stem = next((p for p in ("adaptive_", "global_") if case.fun.startswith(p)), "")
    dims = case.fun[-2:] if case.fun.endswith("d") else ""
    size = np.abs(case.x.astype(np.float64))
    most = getattr(poolgrad, f"{stem}max_pool{dims}")(size, *case.args, **kwargs)
    divisor = case.kwargs.get("divisor_override")
    places = 125 / abs(divisor) if divisor else 1  # a divisor that is not the number of places
    scale = np.where(np.isinf(most), 0, most) * max(places, 1)
    if case.operator == "log_mean_exp":  # in which r * x underflows before x does
        least = float(ml_dtypes.finfo(case.x.dtype.newbyteorder("=")).smallest_normal)
        scale = np.maximum(scale, least / np.min(np.abs(case.kwargs["r"])))
    return scale


def compare(case: Case, fronts: list[Front]) -> None:
    """Values, gradients, routes and gradients of parameters."""
    textbook = getattr(reference, case.fun)
    whole = case.x.dtype.type in INTEGERS  # these have no gradients
    answer = attempt(
        lambda: (textbook if whole else partial(reference.vjp, textbook))(
            case.x, *case.args, **case.kwargs
        )
    )
    for front in fronts:
        ask = partial(front.run if whole else front.vjp, case.fun, case.x, *case.args)
        if isinstance(answer, Exception):
            with pytest.raises(type(answer), match=re.escape(str(answer))):
                ask(**case.kwargs)
            continue
        expected, back = (answer, None) if whole else answer
        y, pullback = (ask(**case.kwargs), None) if whole else ask(**case.kwargs)
        assert y.dtype.isnative
        exactly(front.run(case.fun, case.x, *case.args, **case.kwargs), y)
        if case.operator in SELECTING:
            exactly(y, expected)
        else:
            closely(y, expected, scale_of(case))
        if back is not None:
            against = compare_selecting if case.operator in SELECTING else compare_weighted
            against(case, pullback, back, case.gradient(y.shape))


def compare_selecting(case: Case, pullback: Any, back: reference.Pullback, gy: np.ndarray) -> None:
    if case.kwargs.get("ties") == "split":  # thirds
        return closely(pullback(gy), back(gy), largest(gy))
    exactly(pullback(gy), back(gy))
    if isinstance(pullback, poolgrad.Pullback) and case.operator != "max_unpool":
        check_routes(pullback, back)


def compare_weighted(case: Case, pullback: Any, back: reference.Pullback, gy: np.ndarray) -> None:
    if not np.isfinite(case.x.astype(float)).all() and case.operator != "avg":
        return  # gradients through infinities and NaN are not specified
    if not np.isfinite(back.y.astype(float)).all():
        return  # and so are those of a norm beyond the largest number
    if case.x.dtype.newbyteorder("=") == np.float64 and "subnormal" in case.made:
        return  # where the textbook loses its digits, too
    expected = back(gy)
    closely(pullback(gy), expected, largest(expected), slack=4)
    with np.errstate(over="ignore"):  # of sums; see test_nonlinear
        got = pullback.parameters(gy)
    slopes = back.parameters(gy)
    assert list(got) == list(slopes)
    for name, slope in slopes.items():
        total = max(1.0, float(np.abs(gy.astype(float)).sum()))
        scale = scale_of_slopes(case, back, got[name].dtype) * total
        closely(got[name], slope, min(scale, sys.float_info.max), slack=4)


def scale_of_slopes(case: Case, back: reference.Pullback, dtype: Any) -> float:
    """Of what is subtracted, in the textbook at least, to get the derivative of one window."""
    scale = max(largest(case.x), largest(back.y), float(np.finfo(dtype).smallest_normal))
    if case.operator == "lp":  # logarithms of numbers relative to the result
        return scale * (1 + abs(math.log(scale)))
    if case.operator == "log_mean_exp":
        return scale / float(min(1, np.min(np.abs(case.kwargs["r"]))))
    return scale


def check_routes(pullback: poolgrad.Pullback, back: reference.Pullback) -> None:
    routes = pullback.routes
    places = np.where(routes == np.iinfo(routes.dtype).max, -1, routes.astype(np.int64))
    np.testing.assert_array_equal(places, back.routes)


KINDS = {  # beside the kind, what may be in the array
    **dict.fromkeys(("max", "relu_max", "min", "median", "fractional_max", "max_unpool"), VALUES),
    **dict.fromkeys(("adaptive_max", "global_max"), VALUES),
    **dict.fromkeys(("avg", "adaptive_avg", "global_avg", "stochastic"), FINITE),
    **dict.fromkeys(("lp", "log_mean_exp", "soft", "expected", "mixed"), WEIGHTED_VALUES),
    "range": WEIGHTED_VALUES,
    # The gradient of logits divides values by weights: of huge ones it overflows.
    "lip": [v for v in WEIGHTED_VALUES if v.id not in ("huge", "subnormal")],
    **dict.fromkeys(("global_lp", "global_log_mean_exp"), WEIGHTED_VALUES),
}
