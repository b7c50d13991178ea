"""Implements the primitives on devices without kernels, with `poolgrad.portable`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from poolgrad.jax import formulas
from poolgrad.jax.static import Static
from poolgrad.portable import engine


def forward(x: Array, *operands: Array, pool: Static, keep: int) -> list[Array]:
    """Compute the output and the first arrays of the residual."""
    ready = pool.prepared(x)
    y, kept = engine.forward(ready, x, _operand(pool, operands), bool(keep))
    if pool.operator.nonlinear:
        # No `vjp` reads these zeros, but a primitive has the same results on every platform.
        return [y, *(jnp.zeros(b.shape, b.dtype) for b in ready.residual[:keep])]
    return [y, *kept[:keep]]


def derivative(*args: Array, pool: Static, learned: bool, transpose: bool) -> list[Array]:
    """Compute the tangent of the output, or the gradients of input and learned argument."""
    linear = 1 + (learned and not transpose)
    first, (x, operands, residual) = args[0], pool.operator.split(args[linear:])
    if transpose:
        ready = pool.prepared(first, pool.before(first.shape))
        gradients = engine.vjp(ready, first, x, _operand(pool, operands), residual)
        return [*gradients[: 1 + learned]]
    if pool.operator.nonlinear:  # whose operands are all learned
        return formulas.derivative(pool, learned, False, *args[:linear])(x, *operands)
    return [engine.jvp(pool.prepared(first), first, _operand(pool, operands), residual)]


def _operand(pool: Static, operands: tuple[Array, ...]) -> Any:
    """Return the extra operand in the form of `poolgrad.portable`: a seed is one number."""
    if not operands:
        return None
    if not pool.operator.operand.is_positional:
        return operands[0]
    low, high = operands[0].astype(jnp.int64)
    return low | high << 32
