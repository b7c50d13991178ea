"""Every algorithm of the kernels, forced onto calls that it handles, against the reference.

Which algorithm computes a call is the choice of one table; values, routes and gradients must not
depend on it, but for the rounding of sums.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import poolgrad
from poolgrad import core, reference
from poolgrad.dtypes import FLOATS
from poolgrad.numpy import dtype_named
from poolgrad.tools import algorithms

EXTREMES = ("max_pool2d", "min_pool2d", "relu_max_pool2d", "max_pool3d", "max_pool1d")
PLANES = ("max_pool2d", "min_pool2d", "relu_max_pool2d")
MEANS = ("avg_pool2d", "avg_pool3d")
NONLINEAR = ("log_mean_exp_pool2d", "soft_pool2d", "lp_pool2d")
FORWARD = {
    "plane_means": ("avg_pool2d",),
    "unrolled": (*EXTREMES, *MEANS, *NONLINEAR),
    "unrolled_joined_rows": PLANES,
    "register_blocked": (*PLANES, "max_pool3d", *MEANS),
    "column_sums": (*MEANS, "adaptive_avg_pool2d"),
    "separable": (*EXTREMES, *MEANS, "mixed_pool2d", "adaptive_max_pool2d"),
    "copied_windows": NONLINEAR,
    "sorting_network": ("median_pool2d",),
    "sliding_ranks": ("median_pool2d",),
}
BACKWARD = {
    "plane_gradients": ("avg_pool2d",),
    "register_blocked_backward": (*PLANES, "max_pool1d"),
    "gather": (*MEANS, "adaptive_avg_pool2d"),
    "transposed_separable": MEANS,
    "scatter_routes": (*EXTREMES, "median_pool2d", "adaptive_max_pool2d"),
    "scatter_weights": NONLINEAR,
}
PAIRS = [(a, f) for table in (FORWARD, BACKWARD) for a, some in table.items() for f in some]
BFLOAT16 = ["bfloat16"] if find_spec("ml_dtypes") else []
CALLS = 4  # of each pair
TRIES = 600
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}


def is_selecting(function: str) -> bool:
    return any(word in function for word in ("max", "min", "median"))


def drawn_windows(random: np.random.Generator, function: str, sizes: list[int]) -> dict[str, Any]:
    if function.startswith("adaptive"):
        return {"output_size": tuple(int(random.integers(1, n + 1)) for n in sizes)}
    given = {"norm_type": 2.0} if function.startswith("lp") else {}
    if function.startswith("mixed"):
        given = {"alpha": 0.25}
    kind = random.integers(5)
    if kind == 0:
        return given | {"kernel_size": tuple(sizes)}
    if kind < 4:  # squares
        kernel = int(random.choice([2, 3, 5]))
        stride = int(random.integers(1, 4))
        padding = int(random.integers(0, kernel // 2 + 1))
        dilation = int(random.choice([1, 1, 1, 2]))
    else:
        kernel, stride = ([int(n) for n in random.integers(1, 7, len(sizes))] for _ in range(2))
        padding = [int(random.integers(0, k // 2 + 1)) for k in kernel]
        stride = [1 if random.integers(2) else min(s, 3) for s in stride]
        dilation = [int(random.choice([1, 1, 2])) for _ in sizes]
    return given | {
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
    }


def drawn_input(random: np.random.Generator, function: str, dtype: Any, shape: Any) -> np.ndarray:
    """Many ties and, for maxima of floats, sometimes NaNs, infinities and zeros of both signs."""
    if not is_selecting(function):
        return random.standard_normal(shape).astype(dtype)
    x = random.integers(0, 9, shape).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        return x
    x -= np.asarray(4, dtype)
    chance, kind = random.random(shape), random.integers(4)
    if kind == 0:
        x[chance < 0.3] = -np.inf
    elif kind == 1:
        x[chance < 0.05] = np.nan
        x[chance > 0.8] = -0.0
    return x


def drawn_call(
    random: np.random.Generator, function: str, dtypes: list[str]
) -> tuple[np.ndarray, dict[str, Any]]:
    """An input, and arguments that the function accepts or refuses."""
    dims = int(function[-2])
    dtype = dtype_named(str(random.choice(dtypes)))
    longest = {1: (70,), 2: (9, 70), 3: (5, 6, 24)}[dims]
    sizes = [int(random.integers(1, most + 1)) for most in longest]
    lead = [int(n) for n in random.integers(1, 4, 2)]
    if random.integers(4) == 0:  # many small planes
        lead, sizes = [1, 33], [int(random.integers(4, 9)) for _ in sizes]
    arguments = drawn_windows(random, function, sizes)
    if random.integers(3) == 0:
        channels = int(random.choice([1, 3, 16, 35, 64]))
        shape = (lead[0], *(min(n, 12) for n in sizes), channels)
        arguments["channels_last"] = True
    else:
        shape = (*lead, *sizes)
    x = drawn_input(random, function, dtype, shape)
    if random.integers(5) == 0:  # not contiguous
        x = x[:, ::-1]
    return x, arguments


def textbook(function: str, x: np.ndarray, arguments: dict[str, Any]) -> tuple[Any, Any]:
    """The output and, of floats, the pullback."""
    if x.dtype.name not in FLOATS:
        return getattr(reference, function)(x, **arguments), None
    return reference.vjp(getattr(poolgrad, function), x, **arguments)


def assert_close(ours: np.ndarray, theirs: np.ndarray, function: str) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    if is_selecting(function):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a) & (a == 0), np.signbit(b) & (b == 0))
    else:
        tolerance = TOLERANCE[ours.dtype.name]
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * 4)


def assert_routes(pullback: Any, expected: Any) -> None:
    routes = pullback.routes.astype(np.int64)
    nowhere = routes == np.iinfo(pullback.routes.dtype).max
    np.testing.assert_array_equal(np.where(nowhere, -1, routes), expected.routes)


@pytest.mark.parametrize(("algorithm", "function"), PAIRS)
def test_an_algorithm_computes_what_the_textbook_defines(algorithm: str, function: str) -> None:
    random = np.random.default_rng([PAIRS.index((algorithm, function)), 7])
    pool = getattr(poolgrad, function)
    backward = algorithm in BACKWARD
    dtypes = ["float32", "float32", "float64", "float16", *BFLOAT16]
    if not backward and is_selecting(function) and function != "median_pool2d":
        dtypes += ["uint8", "int8", "int16"]
    done = 0
    for _ in range(TRIES):
        x, arguments = drawn_call(random, function, dtypes)
        try:
            made = algorithms.bind(pool, x, arguments, threads=2)
        except ValueError:  # windows that do not fit
            continue
        with algorithms.forced(algorithm):
            run = made.backward if backward else made.forward
            if {step.algorithm for step in algorithms.steps(run, dry=True)} != {algorithm}:
                continue
            done += 1
            if x.dtype.name not in FLOATS:
                y = pool(x, **arguments)
            else:
                y, pullback = poolgrad.vjp(pool, x, **arguments)
                cotangent = random.integers(-4, 5, y.shape).astype(x.dtype)
                gx = pullback(cotangent)
        expected, theirs = textbook(function, x, arguments)
        assert_close(y, expected, function)
        if theirs is not None:
            assert_close(gx, theirs(cotangent), function)
            if is_selecting(function):
                assert_routes(pullback, theirs)
        if done == CALLS:
            return
    if done == 0 and core.instruction_set() == "x86_64_v2":
        pytest.skip("the fallback has the general algorithms only")
    raise AssertionError(f"{algorithm} computed {done} of {CALLS} calls of {function}")


def test_every_algorithm_is_tested() -> None:
    assert {*FORWARD, *BACKWARD} == {*algorithms.names()}


def test_a_call_that_the_forced_algorithm_does_not_handle_is_computed_as_always() -> None:
    x = np.zeros((1, 1, 9, 9), np.float32)
    made = algorithms.bind(poolgrad.max_pool2d, x, {"kernel_size": 9}, 1)
    always = algorithms.steps(made.forward)
    with algorithms.forced("sorting_network"):
        assert algorithms.steps(made.forward) == always


def test_an_algorithm_is_forced_until_the_block_ends_however_it_ends() -> None:
    x = np.zeros((1, 1, 8, 40), np.float32)
    made = algorithms.bind(poolgrad.max_pool2d, x, {"kernel_size": 2}, 1)
    always = algorithms.steps(made.forward)

    def interrupted() -> None:
        with algorithms.forced("separable"):
            assert [step.algorithm for step in algorithms.steps(made.forward)] == ["separable"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert algorithms.steps(made.forward) == always


def test_an_unknown_algorithm_is_refused() -> None:
    with (
        pytest.raises(ValueError, match=r"an algorithm is one of .*separable.*, got 'fastest'"),
        algorithms.forced("fastest"),
    ):
        pass


@pytest.mark.parametrize(
    "function", ["max_pool2d", "avg_pool2d", "median_pool2d", "log_mean_exp_pool2d"]
)
def test_a_dry_run_plans_what_a_run_does_and_writes_nothing(function: str) -> None:
    x = np.ones((64, 8, 30, 30), np.float32)
    made = algorithms.bind(getattr(poolgrad, function), x, {"kernel_size": 3, "stride": 1}, 2)
    for run in (made.forward, made.backward):
        planned = algorithms.steps(run, dry=True)
        assert planned == algorithms.steps(run)
        assert planned[0].tasks >= planned[0].threads >= 1
    kept = np.full((2, 2), 7.0)
    pool = getattr(poolgrad, function)
    algorithms.steps(lambda: pool(np.ones((4, 4)), 2, out=kept), dry=True)
    assert (kept == 7).all()
