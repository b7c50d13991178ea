"""Gradients against finite differences, Jacobians against both, and derivatives of any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from adversarial_arrays import Values
from expected_errors import attempt
from frontend_calls import NUMPY, TORCH, Front, torch
from hypothesis import given
from robustness.calls import Case
from strategies import cases

import poolgrad

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
# PyTorch's forward mode still imports torch.jit.script, and says so.
quiet = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

# Numbers 1 apart: a step of 1e-6 changes no winner, so the maximum is linear there.
APART = [Values("apart", "no ties within a step", lambda shape, dtype: apart(shape).astype(dtype))]
STEP = 1e-6


def apart(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(list(shape)).permutation(np.prod(shape, dtype=int)).reshape(shape)


def differences(run: Callable[[np.ndarray], np.ndarray], x: np.ndarray, gy: np.ndarray) -> Any:
    """The gradient of ``(run(x) * gy).sum()`` by central differences, in float64."""
    x = np.ascontiguousarray(x, np.float64)
    gradient = np.empty_like(x)
    for i in np.ndindex(*x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[i] += STEP
        behind[i] -= STEP
        change = run(ahead)[...] - run(behind)
        gradient[i] = (np.where(np.isfinite(change), change, 0) * gy).sum() / (2 * STEP)
    return gradient


CALLS = [
    ("max_pool1d", (2, 9), (3, 2), {}),
    ("max_pool1d", (2, 9), (3, 1), {"padding": [(4, 1)], "dilation": 2}),
    ("max_pool2d", (2, 6, 7), (2,), {}),
    ("max_pool2d", (1, 2, 6, 7), (3, 2, 1), {"ceil_mode": True}),
    ("max_pool2d", (6, 7, 2), (3, 1, "same"), {"channels_last": True}),
    ("max_pool2d", (8, 8), ((7, 8), 1, 4), {}),
    ("max_pool3d", (3, 4, 5), (2, 1, 1), {"ties": "zero"}),
    ("max_pool3d", (2, 3, 4, 5), (3, 2, 1), {"ties": "split"}),
    ("avg_pool1d", (2, 9), (3, 2, 1), {"count_include_pad": False}),
    ("avg_pool2d", (2, 6, 7), (3, 2, 1), {"ceil_mode": True}),
    ("avg_pool2d", (6, 7, 2), (2, 1, "same"), {"channels_last": True}),
    ("avg_pool2d", (2, 6, 7), (3, 2, ((2, 0), (1, 3))), {"divisor_override": 5}),
    ("avg_pool2d", (9, 10), (9, 1, 4), {"dilation": 1}),
    ("avg_pool3d", (3, 4, 5), (2, 1, 1), {"dilation": 2}),
    ("adaptive_max_pool2d", (2, 5, 7), ((3, 4),), {}),
    ("adaptive_max_pool1d", (2, 5), (8,), {"ties": "split"}),
    ("adaptive_avg_pool2d", (2, 5, 7), ((3, 4),), {}),
    ("adaptive_avg_pool3d", (3, 4, 5), ((2, None, 7),), {}),
    ("global_max_pool", (2, 3, 4, 5), (), {}),
    ("global_avg_pool", (2, 4, 5, 3), (), {"keepdims": True, "channels_last": True}),
]
IDS = [f"{fun}-{'-'.join(map(str, args))}-{list(kw.values())}" for fun, _, args, kw in CALLS]
calls = pytest.mark.parametrize(("fun", "shape", "args", "kwargs"), CALLS, ids=IDS)


@calls
def test_pullback_against_differences(
    front: Front, fun: str, shape: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    x = apart(shape).astype(np.float64)
    y, pullback = front.vjp(fun, x, *args, **kwargs)
    gy = np.random.default_rng(1).standard_normal(y.shape)
    # A step in JAX or Dask takes milliseconds; test_reference compares their values.
    run = front.run if front in (NUMPY, TORCH) else NUMPY.run
    expected = differences(lambda v: run(fun, v, *args, **kwargs), x, gy)
    # float64: a difference of numbers near 100 loses 1e-14 * 100 / STEP
    np.testing.assert_allclose(pullback(gy), expected, rtol=1e-6, atol=1e-6)
    assert np.abs(expected).max() > 0.01


@calls
def test_matrix_is_the_jacobian(
    fun: str, shape: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    pytest.importorskip("scipy", reason="SciPy is not installed")
    x = apart(shape).astype(np.float64)
    y, pullback = NUMPY.vjp(fun, x, *args, **kwargs)
    jacobian = pullback.matrix()
    assert jacobian.shape == (y.size, x.size)
    real = np.where(np.isfinite(y), y, 0)  # a window without input depends on nothing
    np.testing.assert_allclose(jacobian @ x.ravel(), real.ravel(), rtol=1e-13, atol=1e-13)
    gy = np.random.default_rng(2).standard_normal(y.shape)
    np.testing.assert_allclose(
        jacobian.T @ gy.ravel(), pullback(gy).ravel(), rtol=1e-13, atol=1e-13
    )
    rows = np.zeros((y.size, x.size))
    for i in range(y.size):
        one = np.zeros(y.shape)
        one.flat[i] = 1
        rows[i] = pullback(one).ravel()
    np.testing.assert_allclose(jacobian.toarray(), rows, rtol=1e-13, atol=0)


@pytest.mark.hypothesis
@pytest.mark.parametrize("kind", ["max", "avg", "adaptive_max", "adaptive_avg"])
def test_matrix_of_any_windows(kind: str) -> None:
    pytest.importorskip("scipy", reason="SciPy is not installed")

    @given(cases(kind, values=APART))
    def check(case: Case) -> None:
        x = np.ascontiguousarray(case.x, np.float64)
        made = attempt(lambda: NUMPY.vjp(case.fun, x, *case.args, **case.kwargs))
        if isinstance(made, Exception):
            assert "without any input" in str(made)  # refused averages; see test_semantics
            return
        y, pullback = made
        jacobian, gy = pullback.matrix(), case.gradient(y.shape)
        real = np.where(np.isfinite(y), y, 0)
        if case.kwargs.get("ties") != "zero":
            np.testing.assert_allclose(jacobian @ x.ravel(), real.ravel(), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(
            jacobian.T @ gy.ravel(), pullback(gy.astype(float)).ravel(), rtol=1e-12, atol=1e-12
        )

    check()


def test_a_pullback_answers_again_and_again() -> None:
    x, gy = apart((2, 8, 8)).astype(np.float64), np.ones((2, 4, 4))
    for fun in ("max_pool2d", "avg_pool2d"):
        _, pullback = NUMPY.vjp(fun, x, 2)
        first, second = pullback(gy), pullback(2 * gy)
        assert first is not second
        np.testing.assert_array_equal(second, 2 * first)
        x[...] = 0  # the input is not needed any more
        np.testing.assert_array_equal(pullback(gy), first)


def test_mask_is_the_gradient_of_ones() -> None:
    x = apart((2, 3, 9, 9)).astype(np.float32)
    y, pullback = NUMPY.vjp("max_pool2d", x, 3, 1, 1)
    assert pullback.mask().dtype == np.int64
    np.testing.assert_array_equal(pullback.mask(), pullback(np.ones_like(y)).astype(int))
    _, split = NUMPY.vjp("max_pool2d", x, 3, 1, 1, ties="split")
    np.testing.assert_array_equal(split.mask(), pullback.mask())


# PyTorch


def tensor_function(fun: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable:
    """As a function of the input alone; -inf, which has no difference quotient, made 0."""

    def pool(x: torch.Tensor) -> torch.Tensor:
        y = getattr(poolgrad, fun)(x, *args, **kwargs)
        return torch.where(y.isinf(), torch.zeros_like(y), y)

    return pool


@needs_torch
@quiet
@calls
def test_gradcheck(
    fun: str, shape: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    x = torch.from_numpy(apart(shape).astype(np.float64)).requires_grad_()
    pool = tensor_function(fun, args, kwargs)
    assert torch.autograd.gradcheck(
        pool, x, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(
        pool, x, check_fwd_over_rev=True, check_batched_grad=True, fast_mode=True
    )


@pytest.mark.without(numpy="compared with itself")
@calls
def test_front_ends_agree(
    front: Front, fun: str, shape: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    x = apart(shape).astype(np.float32)
    made = [f.vjp(fun, x, *args, **kwargs) for f in (NUMPY, front)]
    np.testing.assert_array_equal(made[0][0], made[1][0], strict=True)
    gy = np.random.default_rng(3).standard_normal(made[0][0].shape).astype(np.float32)
    np.testing.assert_array_equal(made[0][1](gy), made[1][1](gy), strict=True)


def test_a_pullback_says_what_it_is() -> None:
    x = np.ones((2, 3, 4, 4), np.float32)
    for pool, what in ((poolgrad.max_pool2d, "max"), (poolgrad.soft_pool2d, "soft")):
        shown = repr(poolgrad.vjp(pool, x, 2)[1])
        assert shown == (
            f"<Pullback of {what} pooling: gradients of (2, 3, 2, 2) to (2, 3, 4, 4), float32>"
        )
