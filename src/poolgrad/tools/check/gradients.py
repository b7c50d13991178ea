"""Computes outputs and gradients by the reference, the front ends, and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolgrad import reference
from poolgrad.functional import FUNCTIONS
from poolgrad.functional.vjp import vjp
from poolgrad.operators import OPERATORS
from poolgrad.tools.check.cases import Case

Array = NDArray[Any]

_STEP = 1e-6


class Gradients(NamedTuple):
    """An output, the gradient of the input, and the gradients of learned arguments by name."""

    y: Array
    gx: Array
    parameters: dict[str, Array]


class FrontEnd(NamedTuple):
    """The functions that pool and differentiate arrays of a framework.

    `chunked`: its arrays have chunks, so that operators whose operand cannot be cut are missing.
    """

    pool: Callable[[Case], Array]
    answer: Callable[[Case, Array], Gradients]
    chunked: bool = False


def textbook(case: Case) -> tuple[Gradients, Array]:
    """Return the reference results for a random cotangent, and that cotangent.

    Most of its elements have one sign, so that sums over all outputs do not cancel.
    """
    y, pullback = reference.vjp(getattr(reference, case.name), case.x, **case.kwargs)
    gy = np.random.default_rng(y.size).normal(1, 0.5, y.shape).astype(y.dtype)
    return Gradients(y, pullback(gy), pullback.parameters(gy)), gy


def differences(pool: Callable[[Case], Array], case: Case, gy: Array) -> Gradients:
    """Compute the gradients of ``(y * gy).sum()`` by central differences.

    The steps are too small to change the winner of a random draw.
    """
    gx = _slopes(pool, case, gy, "x")
    if case.learned is None:
        return Gradients(pool(case), gx, {})
    theta = np.asarray(case.kwargs[case.learned])
    if theta.shape == case.x.shape:
        return Gradients(pool(case), gx, {case.learned: _slopes(pool, case, gy, case.learned)})
    slopes = np.zeros(theta.shape)
    for i in np.ndindex(theta.shape):
        above, below = theta.copy(), theta.copy()
        above[i] += _STEP
        below[i] -= _STEP
        rise = pool(case.of(**{case.learned: above})) - pool(case.of(**{case.learned: below}))
        slopes[i] = (rise * gy).sum() / (2 * _STEP)
    return Gradients(pool(case), gx, {case.learned: slopes})


def _slopes(pool: Callable[[Case], Array], case: Case, gy: Array, name: str) -> Array:
    """Compute the derivative of ``(y * gy).sum()`` with respect to each element of an array."""
    rises = _rises(pool, case, name) * gy
    return rises.reshape(*case.x.shape, -1).sum(-1) / (2 * _STEP)


def _rises(pool: Callable[[Case], Array], case: Case, name: str) -> Array:
    """Return the output for a step up of each element of an array, minus that for a step down."""
    x = case.x
    steps = _STEP * np.eye(x.size).reshape(x.size, *x.shape)
    if case.operator == "stochastic":  # the draw depends on the position in the batch
        return np.stack([pool(case.of(x + s)) - pool(case.of(x - s)) for s in steps])
    arrays = {"x": x} | {
        k: case.kwargs[k] for k in ("indices", "logits", "_random_samples") if k in case.kwargs
    }

    def stepped(steps: Array) -> Array:
        given = {k: np.concatenate([a] * x.size) for k, a in arrays.items()}
        given[name] = np.concatenate(arrays[name] + steps)
        return pool(case.of(**given))

    above, below = stepped(steps), stepped(-steps)
    return (above - below).reshape(x.size, len(x), *above.shape[1:])


def _numpy_pool(case: Case) -> Array:
    return np.asarray(FUNCTIONS[case.name](case.x, **case.kwargs))


def _numpy_answer(case: Case, gy: Array) -> Gradients:
    y, pullback = vjp(FUNCTIONS[case.name], case.x, **case.kwargs)
    return Gradients(y, pullback(gy), pullback.parameters(gy))


def _torch_pool(case: Case) -> Array:
    x, kwargs = _tensors(case)
    return np.asarray(FUNCTIONS[case.name](x, **kwargs))


def _torch_answer(case: Case, gy: Array) -> Gradients:
    return by_autograd(FUNCTIONS[case.name], case, gy)


def by_autograd(function: Callable[..., Any], case: Case, gy: Array) -> Gradients:
    """Differentiate a function of tensors with PyTorch."""
    import torch

    x, kwargs = _tensors(case)
    names = [case.learned] if case.learned else []
    leaves = [x, *(kwargs[name] for name in names)]
    for leaf in leaves:
        leaf.requires_grad_()
    y = function(x, **kwargs)
    gx, *others = torch.autograd.grad(
        y, leaves, torch.from_numpy(gy), allow_unused=True, materialize_grads=True
    )
    parameters = {name: g.numpy() for name, g in zip(names, others, strict=True)}
    return Gradients(y.detach().numpy(), gx.numpy(), parameters)


def _tensors(case: Case) -> tuple[Any, dict[str, Any]]:
    import torch

    x = torch.tensor(case.x)
    kwargs = {
        k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in case.kwargs.items()
    }
    if case.learned:
        kwargs[case.learned] = torch.tensor(case.kwargs[case.learned], dtype=x.dtype)
    return x, kwargs


def _jax_pool(case: Case) -> Array:
    import jax

    with jax.enable_x64(True):
        return np.asarray(FUNCTIONS[case.name](jax.numpy.asarray(case.x), **case.kwargs))


def _jax_answer(case: Case, gy: Array) -> Gradients:
    import jax
    import jax.numpy as jnp

    names = [case.learned] if case.learned else []

    def pool(x: Any, *learned: Any) -> Any:
        given = case.kwargs | dict(zip(names, learned, strict=True))
        return FUNCTIONS[case.name](x, **given)

    with jax.enable_x64(True):
        learned = (jnp.asarray(case.kwargs[name], case.x.dtype) for name in names)
        y, pullback = jax.vjp(pool, jnp.asarray(case.x), *learned)
        gx, *others = map(np.asarray, pullback(jnp.asarray(gy)))
    return Gradients(np.asarray(y), gx, dict(zip(names, others, strict=True)))


def _dask_array(case: Case) -> Any:
    """Return the input in chunks, with windows that cross their borders."""
    import dask.array as da

    return da.from_array(case.x, chunks=[-(-size // 2) for size in case.x.shape])


def _dask_pool(case: Case) -> Array:
    y = FUNCTIONS[case.name](_dask_array(case), **case.kwargs)
    return np.asarray(y.compute(scheduler="synchronous"))


def _dask_answer(case: Case, gy: Array) -> Gradients:
    import dask

    y, pullback = vjp(FUNCTIONS[case.name], _dask_array(case), **case.kwargs)
    results = y, pullback(gy), pullback.parameters(gy)
    return Gradients(*dask.compute(*results, scheduler="synchronous"))


def _standard(value: Any) -> Any:
    """Convert an array to array-api-strict; return other values unchanged."""
    import array_api_strict

    return array_api_strict.asarray(value) if isinstance(value, np.ndarray) else value


def _standard_kwargs(case: Case) -> dict[str, Any]:
    return {k: _standard(v) for k, v in case.kwargs.items()}


def _portable_pool(case: Case) -> Array:
    return np.asarray(FUNCTIONS[case.name](_standard(case.x), **_standard_kwargs(case)))


def _portable_answer(case: Case, gy: Array) -> Gradients:
    y, pullback = vjp(FUNCTIONS[case.name], _standard(case.x), **_standard_kwargs(case))
    gradients = pullback.parameters(_standard(gy))
    parameters = {name: np.asarray(g) for name, g in gradients.items()}
    return Gradients(np.asarray(y), np.asarray(pullback(_standard(gy))), parameters)


FRONT_ENDS = {
    "numpy": FrontEnd(_numpy_pool, _numpy_answer),
    "torch": FrontEnd(_torch_pool, _torch_answer),
    "jax": FrontEnd(_jax_pool, _jax_answer),
    "dask": FrontEnd(_dask_pool, _dask_answer, chunked=True),
    "portable": FrontEnd(_portable_pool, _portable_answer),
}
# The package that a front end needs, if it has another name.
_LIBRARIES = {"portable": "array_api_strict"}


def installed() -> list[str]:
    """Return the front ends whose frameworks are installed."""
    return [n for n in FRONT_ENDS if find_spec(_LIBRARIES.get(n, n)) is not None]


def takes(front_end: str, case: Case) -> bool:
    """Whether a front end has the operator of a call."""
    return OPERATORS[case.operator].operand.is_cut or not FRONT_ENDS[front_end].chunked
