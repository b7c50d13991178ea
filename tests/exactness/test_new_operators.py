"""Operators from outside the package: two definitions, and every front end pools with them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from frontend_calls import torch

import poolgrad
from poolgrad.functional import FUNCTIONS, families
from poolgrad.functional.declare import Function, functions
from poolgrad.interface import Operator, UnfoldedWindows
from poolgrad.operators import OPERATORS, register
from poolgrad.operators.selecting import Extreme

X = np.random.default_rng(0).standard_normal((2, 3, 6, 8))
NAMES = ("nearest_zero", "contraharmonic")
both = pytest.mark.parametrize("name", NAMES)


class NearestZero(Extreme):
    """A selecting operator: the input of each window that is nearest to zero."""

    name = "nearest_zero"

    def best(self, xp: Any, windows: Any) -> tuple[Any, Any]:
        size = xp.where(windows.valid, xp.abs(windows.values), windows.highest)
        nearest = xp.argmin(size, axis=-1)[..., None]
        return xp.take_along_axis(windows.values, nearest, axis=-1)[..., 0], 0


class Contraharmonic(Operator):
    """A weighted operator: the mean of each window, weighted with its inputs."""

    name = "contraharmonic"
    nonlinear = True

    def formula(self, xp: Any, windows: Any, argument: Any, options: Any) -> Any:
        x = xp.where(windows.valid, windows.values, 0.0)
        return xp.sum(x * x, axis=-1) / xp.sum(x, axis=-1)


class NearestZeroPool(Function, families.Windows):
    """Input of every window of {axes} that is nearest to zero.

    {parameters}
    """

    operator = "nearest_zero"


class ContraharmonicPool(Function, families.Windows):
    """Mean of every window of {axes}, weighted with its inputs.

    {parameters}
    """

    operator = "contraharmonic"


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    """Add the operators and their functions, and remove them for the other tests."""
    if torch is not None:
        poolgrad.max_pool2d(torch.ones(1, 2, 2), 2)  # operators may come after the front ends
    for operator, declared in (
        (NearestZero(), NearestZeroPool),
        (Contraharmonic(), ContraharmonicPool),
    ):
        register(operator)
        made = functions(f"{operator.name}_pool", declared)
        globals().update({pool.__name__: pool for pool in made})  # type: ignore[attr-defined]
    yield
    for name in NAMES:
        del OPERATORS[name]
        for dims in (1, 2, 3):
            del FUNCTIONS[f"{name}_pool{dims}d"]


def blocks() -> np.ndarray:
    """The windows of a 2x2 pooling, their four inputs last."""
    return X.reshape(2, 3, 3, 2, 4, 2).swapaxes(3, 4).reshape(2, 3, 3, 4, 4)


def whole(windows: np.ndarray) -> np.ndarray:
    return windows.reshape(2, 3, 3, 4, 2, 2).swapaxes(3, 4).reshape(X.shape)


def expected(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The output, and the gradient of its sum."""
    windows = blocks()
    if name == "nearest_zero":
        chosen = np.abs(windows).argmin(-1)[..., None]
        gradient = np.arange(4) == chosen
        return np.take_along_axis(windows, chosen, -1)[..., 0], whole(gradient.astype(float))
    total = windows.sum(-1, keepdims=True)
    y = (windows**2).sum(-1, keepdims=True) / total
    return y[..., 0], whole((2 * windows - y) / total)


@both
def test_the_functions_pickle_as_attributes_of_their_module(name: str) -> None:
    pool = FUNCTIONS[f"{name}_pool2d"]
    assert pickle.loads(pickle.dumps(pool)) is pool


def test_a_formula_without_a_known_derivative_is_refused() -> None:
    class Tanh(Contraharmonic):
        name = "tanh"

        def formula(self, xp: Any, windows: Any, argument: Any, options: Any) -> Any:
            return xp.sum(xp.tanh(windows.values), axis=-1)

    class TanhPool(Function, families.Windows):
        """Sum of hyperbolic tangents of every window of {axes}."""

        operator = "tanh"

    register(Tanh())
    try:
        (pool,) = functions("tanh_pool", TanhPool, (2,))
        _, pullback = poolgrad.vjp(pool, X, 2)
        with pytest.raises(NotImplementedError, match=r"may apply abs, .*, got tanh$"):
            pullback(np.ones((2, 3, 3, 4)))
    finally:
        del OPERATORS["tanh"], FUNCTIONS["tanh_pool2d"]


def test_an_extreme_of_another_order_defines_its_winner() -> None:
    windows = UnfoldedWindows(X, X == X, None, None, -np.inf, np.inf)  # noqa: PLR0124
    with pytest.raises(NotImplementedError, match=r"^the operator forgetful must define best$"):
        type("Forgetful", (Extreme,), {"name": "forgetful"})().best(np, windows)


@both
def test_numpy(name: str) -> None:
    y, pullback = poolgrad.vjp(FUNCTIONS[f"{name}_pool2d"], X, 2)
    value, gradient = expected(name)
    np.testing.assert_allclose(y, value, 1e-9)
    np.testing.assert_allclose(pullback(np.ones_like(y)), gradient, 1e-7, 1e-9)
    np.testing.assert_array_equal(FUNCTIONS[f"{name}_pool2d"](X, 2), y)


@both
def test_torch(name: str) -> None:
    if torch is None:
        pytest.skip("PyTorch is not installed")
    pool, (value, gradient) = FUNCTIONS[f"{name}_pool2d"], expected(name)
    for function in (pool, torch.compile(pool, backend="aot_eager", fullgraph=True)):
        x = torch.tensor(X, requires_grad=True)
        y = function(x, 2)
        y.sum().backward()
        np.testing.assert_allclose(y.detach(), value, 1e-9)
        np.testing.assert_allclose(x.grad, gradient, 1e-7, 1e-9)
    assert torch.autograd.gradcheck(lambda x: pool(x, 2), torch.tensor(X[:1], requires_grad=True))


@both
def test_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    pool, (value, gradient) = FUNCTIONS[f"{name}_pool2d"], expected(name)
    x = X.astype(np.float32)
    found = jax.jit(jax.value_and_grad(lambda x: pool(x, 2).sum()))(x)
    np.testing.assert_allclose(found[0], value.sum(), 1e-4)
    np.testing.assert_allclose(found[1], gradient, 1e-2, 1e-3)


@both
def test_dask(name: str) -> None:
    da = pytest.importorskip("dask.array")
    value, gradient = expected(name)
    y, pullback = poolgrad.vjp(
        FUNCTIONS[f"{name}_pool2d"], da.from_array(X, chunks=(1, 3, 3, 8)), 2
    )
    np.testing.assert_allclose(y.compute(), value, 1e-9)
    np.testing.assert_allclose(pullback(da.ones_like(y)).compute(), gradient, 1e-7, 1e-9)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="operator must have a new name, got 'nearest_zero'"):
        register(NearestZero())
