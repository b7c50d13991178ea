"""Implements the primitives on devices without kernels, with `poolgrad.portable`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from poolgrad.jax import composed
from poolgrad.jax.pooling import Pooling
from poolgrad.portable import engine


def forward(x: Array, *given: Array, pool: Pooling, keep: int) -> list[Array]:
    """Compute the output and the first arrays of the residual."""
    layout, operand = pool.layout(x.shape, x.dtype.name), _operand(pool, given)
    y, kept = engine.forward(pool.operator, layout, x, operand, pool.options, bool(keep))
    return [y, *kept[:keep]]


def push(*args: Array, pool: Pooling, learned: bool) -> list[Array]:
    """Compute the tangent of the output."""
    linear, rest = args[: 1 + learned], args[1 + learned :]
    x, given, residual = pool.held(rest)
    if pool.operator.nonlinear:
        parameters = given if pool.operator.learned else ()
        return composed.push(pool, learned, *linear)(x, *parameters)
    (t,) = linear
    layout, operand = pool.layout(t.shape, t.dtype.name), _operand(pool, given)
    return [engine.push(pool.operator, layout, t, operand, residual, pool.options)]


def pull(
    gy: Array, *args: Array, pool: Pooling, sizes: tuple[int, ...], learned: bool
) -> list[Array]:
    """Compute the gradients of the input and, if requested, of the learned argument."""
    x, given, residual = pool.held(args)
    layout, operand = (
        pool.layout(pool.before(gy.shape, sizes), gy.dtype.name),
        _operand(pool, given),
    )
    gradients = engine.pull(pool.operator, layout, gy, x, operand, residual, pool.options)
    return [*gradients[: 1 + learned]]


def _operand(pool: Pooling, given: tuple[Array, ...]) -> Any:
    """Return the extra operand in the form of `poolgrad.portable`: a seed is one number."""
    if not given:
        return None
    if not pool.operator.operand.is_positional:
        return given[0]
    low, high = given[0].astype(jnp.int64)
    return low | high << 32
