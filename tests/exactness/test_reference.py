"""Every operator against the reference implementation (`poolgrad.reference`), in every front end.

The textbook computes where windows lie by loops of its own (`poolgrad.reference.geometry`), so an
error in `poolgrad.windows` cannot be in both; it is tested against NumPy's sliding windows, too.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from frontend_calls import DASK, FRONTS, JAX, NUMPY, TORCH, Front
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

from adversarial_arrays import FINITE
from profiles import examples
from reference_comparison import KINDS, closely, compare, largest
from robustness.calls import Case, dtypes_of, pad_pairs, per_axis
from strategies import cases

import poolgrad
from poolgrad import operators, reference
from poolgrad.functional import FUNCTIONS

NOT_IN_DASK = ("stochastic", "fractional_max")  # their operands cannot be cut into chunks


# Front ends compared in one run of the reference, and how many calls of each kind. JAX compiles
# each operation for each new shape, and Dask's scheduler takes milliseconds.
GROUPS = [([NUMPY, TORCH], 80), ([JAX], 3), ([DASK], 4)]


def _runs() -> list[Any]:
    runs = []
    for fronts, count in GROUPS:
        installed = [front for front in fronts if front in FRONTS]
        name = " and ".join(front.name for front in installed)
        for kind in KINDS:
            number = count
            if not installed or (installed == [DASK] and kind in NOT_IN_DASK):
                continue
            if installed == [JAX] and kind in ("range", "lip"):
                number = 1  # compositions of many operations
            slow = kind.startswith(("adaptive", "global")) and NUMPY in installed
            marks = pytest.mark.slow if slow else ()
            runs.append(pytest.param(kind, installed, number, id=f"{kind}-{name}", marks=marks))
    return runs


@pytest.mark.hypothesis
@pytest.mark.parametrize(("kind", "fronts", "count"), _runs())
def test_every_function(kind: str, fronts: list[Front], count: int) -> None:
    @settings(max_examples=examples(count))
    @given(cases(kind, values=KINDS[kind], dtypes=dtypes_of(kind)))
    def check(case: Case) -> None:
        compare(case, fronts)

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
    compare(case, FRONTS)
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
@pytest.mark.parametrize("kind", ["min", "median", "lp", "log_mean_exp", "soft", "mixed"])
def test_large_windows_of_others(kind: str, kernel: tuple[int, int]) -> None:
    compare_large(kind, kernel, 1, 3)


def compare_large(kind: str, kernel: tuple[int, int], dilation: int, stride: int) -> None:
    x = np.random.default_rng(kernel).standard_normal((1, 13, 14, 2))
    fronts = [front for front in FRONTS if front in (NUMPY, TORCH)]  # JAX has the same kernels
    kwargs: dict[str, Any] = {
        "kernel_size": kernel,
        "stride": stride,
        "padding": [(k - 1) * dilation // 2 for k in kernel],
        "dilation": dilation,
        "channels_last": True,
    }
    kwargs |= {"lp": {"norm_type": 2.5}, "log_mean_exp": {"r": 1.5}, "mixed": {"alpha": 0.25}}.get(
        kind, {}
    )
    compare(Case(f"{kind}_pool2d", x, (), kwargs), fronts)
    kwargs["channels_last"] = False
    compare(Case(f"{kind}_pool2d", x.transpose(0, 3, 1, 2).copy(), (), kwargs), fronts)


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
    fun = {"norm_type": "lp_pool2d", "r": "log_mean_exp_pool2d", "alpha": "mixed_pool2d"}[name]
    x = np.random.default_rng(0).random((6, 6))
    given: dict[str, Any] = {"kernel_size": 2, name: np.array([3.0])}
    y, pullback = reference.vjp(getattr(reference, fun), x, **given)
    gradients = pullback.parameters(np.ones_like(y))
    assert gradients[name].shape == (1,)
    fast, fast_pullback = poolgrad.vjp(getattr(poolgrad, fun), x, **given)
    np.testing.assert_allclose(fast, y)
    np.testing.assert_allclose(fast_pullback.parameters(np.ones_like(y))[name], gradients[name])
    np.testing.assert_allclose(fast_pullback(np.ones_like(y)), pullback(np.ones_like(y)))


@pytest.mark.parametrize("name", ["norm_type", "r", "alpha"])
def test_one_number_for_a_tensor_without_channels(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    fun = {"norm_type": "lp_pool2d", "r": "log_mean_exp_pool2d", "alpha": "mixed_pool2d"}[name]
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
