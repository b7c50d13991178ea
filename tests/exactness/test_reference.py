"""Every operator against the reference implementation (`poolgrad.reference`), in every front end.

The textbook computes where windows lie by loops of its own (`poolgrad.reference.geometry`), so an
error in `poolgrad.windows` cannot be in both; it is tested against NumPy's sliding windows, too.
"""

from __future__ import annotations

import math
import re
import sys
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from expected_errors import attempt
from frontend_calls import FRONTS, Front
from hypothesis import given
from hypothesis import strategies as st

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

from adversarial_arrays import FINITE, VALUES  # noqa: E402
from robustness.calls import INTEGERS, Case, dtypes_of, pad_pairs, per_axis  # noqa: E402
from strategies import cases  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad import operators, reference  # noqa: E402
from poolgrad.functional import FUNCTIONS  # noqa: E402

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
BLENDED = [*FINITE, *(v for v in VALUES if v.id in {"nan", "all-nan"})]
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
    """The largest magnitude in each window of a blending call."""
    kept = ("channels_last", "keepdims", "kernel_size", "stride", "padding", "dilation")
    kwargs = {k: v for k, v in case.kwargs.items() if k in (*kept, "ceil_mode")}
    stem = next((p for p in ("adaptive_", "global_") if case.fun.startswith(p)), "")
    dims = case.fun[-2:] if case.fun.endswith("d") else ""
    size = np.abs(case.x.astype(np.float64))
    most = getattr(poolgrad, f"{stem}max_pool{dims}")(size, *case.args, **kwargs)
    divisor = case.kwargs.get("divisor_override")
    places = 125 / abs(divisor) if divisor else 1  # a divisor that is not the number of places
    scale = np.where(np.isinf(most), 0, most) * max(places, 1)
    if case.operator == "lse":  # in which r * x underflows before x does
        least = float(ml_dtypes.finfo(case.x.dtype.newbyteorder("=")).smallest_normal)
        scale = np.maximum(scale, least / np.min(np.abs(case.kwargs["r"])))
    return scale


def compare(case: Case, fronts: list[Front] = FRONTS) -> None:
    """Values, gradients, routes and gradients of parameters, in every front end."""
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
            against = compare_routed if case.operator in SELECTING else compare_blended
            against(case, pullback, back, case.gradient(y.shape))


def compare_routed(case: Case, pullback: Any, back: reference.Pullback, gy: np.ndarray) -> None:
    if case.kwargs.get("ties") == "split":  # thirds
        return closely(pullback(gy), back(gy), largest(gy))
    exactly(pullback(gy), back(gy))
    if isinstance(pullback, poolgrad.Pullback) and case.operator != "max_unpool":
        check_routes(pullback, back)


def compare_blended(case: Case, pullback: Any, back: reference.Pullback, gy: np.ndarray) -> None:
    if not np.isfinite(case.x.astype(float)).all() and case.operator != "avg":
        return  # gradients through infinities and NaN are not specified
    if not np.isfinite(back.y.astype(float)).all():
        return  # and so are those of a norm beyond the largest number
    if case.x.dtype.newbyteorder("=") == np.float64 and "subnormal" in case.made:
        return  # where the textbook loses its digits, too
    expected = back(gy)
    closely(pullback(gy), expected, largest(expected), slack=4)
    with np.errstate(over="ignore"):  # of sums; see test_curved
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
    if case.operator == "lse":
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
    **dict.fromkeys(("lp", "lse", "soft", "expected", "mixed"), BLENDED),
    "range": BLENDED,
    # The gradient of logits divides values by weights: of huge ones it overflows.
    "lip": [v for v in BLENDED if v.id not in ("huge", "subnormal")],
    **dict.fromkeys(("global_lp", "global_lse"), BLENDED),
}


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, marks=pytest.mark.slow if kind.startswith(("adaptive", "global")) else ()
        )
        for kind in KINDS
    ],
)
def test_every_function(kind: str) -> None:
    @given(cases(kind, values=KINDS[kind], dtypes=dtypes_of(kind)))
    def check(case: Case) -> None:
        compare(case)

    check()


def test_no_kind_is_forgotten() -> None:
    names = {re.sub(r"(_pool)?(\dd)?$", "", name) for name in FUNCTIONS}
    assert names == KINDS.keys() - {"expected"}


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
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_large_windows(kind: str, kernel: tuple[int, int], dilation: int, stride: int) -> None:
    """Large windows go another way back than small ones; so do channels last."""
    compare_large(kind, kernel, dilation, stride)


@pytest.mark.parametrize("kernel", [(9, 9), (40, 3), (1, 40)], ids=str)
@pytest.mark.parametrize("kind", ["min", "median", "lp", "lse", "soft", "mixed"])
def test_large_windows_of_others(kind: str, kernel: tuple[int, int]) -> None:
    compare_large(kind, kernel, 1, 3)


def compare_large(kind: str, kernel: tuple[int, int], dilation: int, stride: int) -> None:
    x = np.random.default_rng(kernel).standard_normal((1, 13, 14, 2))
    kwargs: dict[str, Any] = {
        "kernel_size": kernel,
        "stride": stride,
        "padding": [(k - 1) * dilation // 2 for k in kernel],
        "dilation": dilation,
        "channels_last": True,
    }
    kwargs |= {"lp": {"norm_type": 2.5}, "lse": {"r": 1.5}, "mixed": {"alpha": 0.25}}.get(kind, {})
    compare(Case(f"{kind}_pool2d", x, (), kwargs))
    kwargs["channels_last"] = False
    compare(Case(f"{kind}_pool2d", x.transpose(0, 3, 1, 2).copy(), (), kwargs))


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
    kwargs = {k: v for k, v in case.kwargs.items() if k not in ("ties", "routes")}
    expected = slid(case, pairs, 0).mean(-1).astype(case.x.dtype)
    got = getattr(reference, case.fun.replace("max", "avg"))(case.x, **kwargs)
    closely(got, expected, largest(case.x))


@pytest.mark.parametrize("name", ["norm_type", "r", "alpha"])
def test_one_number_for_an_input_without_channels(name: str) -> None:
    """Such an input has one channel: an array of one number is accepted, with a gradient alike."""
    fun = {"norm_type": "lp_pool2d", "r": "lse_pool2d", "alpha": "mixed_pool2d"}[name]
    x = np.random.default_rng(0).random((6, 6))
    given: dict[str, Any] = {"kernel_size": 2, name: np.array([3.0])}
    y, pull = reference.vjp(getattr(reference, fun), x, **given)
    gradients = pull.parameters(np.ones_like(y))
    assert gradients[name].shape == (1,)
    fast, fast_pull = poolgrad.vjp(getattr(poolgrad, fun), x, **given)
    np.testing.assert_allclose(fast, y)
    np.testing.assert_allclose(fast_pull.parameters(np.ones_like(y))[name], gradients[name])
    np.testing.assert_allclose(fast_pull(np.ones_like(y)), pull(np.ones_like(y)))


@pytest.mark.parametrize("name", ["norm_type", "r", "alpha"])
def test_one_number_for_a_tensor_without_channels(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    fun = {"norm_type": "lp_pool2d", "r": "lse_pool2d", "alpha": "mixed_pool2d"}[name]
    x = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    theta = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)

    def pool(x: Any, theta: Any) -> Any:
        return getattr(poolgrad, fun)(x, kernel_size=2, **{name: theta})

    assert torch.autograd.gradcheck(pool, (x, theta))
    assert torch.autograd.gradgradcheck(pool, (x, theta))


# The geometry of the textbook


GEOMETRIES = {
    "output size": ("adaptive_max_pool1d", (3,), {"out": -1}),
    "stride": ("max_pool1d", (3, 2), {"stride": 1}),
    "low padding": ("avg_pool1d", (3, 2, 1), {"lo": 1}),
    "high padding": ("avg_pool1d", (3, 2, [(0, 2)]), {"hi": -1}),
    "dilation": ("max_pool1d", (2, 1, 0, 2), {"dilation": 1}),
    "kernel size": ("min_pool1d", (2, 1), {"kernel": 1}),
}


@pytest.mark.parametrize("wrong", GEOMETRIES)
def test_an_error_in_the_shared_geometry_is_not_in_the_textbook(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, args, errors = GEOMETRIES[wrong]
    x = np.array([[5.0, 1, 7, 2, 3, 11, 13, 4, 6]])
    expected = getattr(reference, name)(x, *args)
    module = import_module("poolgrad.windows.resolve")
    right = module._axis

    def broken(*given: Any) -> Any:
        axis = right(*given)
        return axis._replace(**{field: getattr(axis, field) + e for field, e in errors.items()})

    monkeypatch.setattr(module, "_axis", broken)
    operators._prepare_cached.cache_clear()
    try:
        np.testing.assert_array_equal(getattr(reference, name)(x, *args), expected)
        got = getattr(poolgrad, name)(x.tolist(), *args)  # a list: the cache of calls has none
        assert got.shape != expected.shape or (got != expected).any()
    finally:
        operators._prepare_cached.cache_clear()
