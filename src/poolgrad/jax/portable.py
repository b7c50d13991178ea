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


def jvp(*args: Array, pool: Static, learned: bool) -> list[Array]:
    """Compute the tangent of the output."""
    linear, rest = args[: 1 + learned], args[1 + learned :]
    x, operands, residual = pool.held(rest)
    if pool.operator.nonlinear:  # whose operands are all learned
        return formulas.jvp(pool, learned, *linear)(x, *operands)
    (t,) = linear
    ready = pool.prepared(t)
    return [engine.jvp(ready, t, _operand(pool, operands), residual)]


def vjp(
    gy: Array, *args: Array, pool: Static, sizes: tuple[int, ...], learned: bool
) -> list[Array]:
    """Compute the gradients of the input and, if requested, of the learned argument."""
    x, operands, residual = pool.held(args)
    ready = pool.prepared(gy, pool.before(gy.shape, sizes))
    gradients = engine.vjp(ready, gy, x, _operand(pool, operands), residual)
    return [*gradients[: 1 + learned]]


def _operand(pool: Static, operands: tuple[Array, ...]) -> Any:
    """Return the extra operand in the form of `poolgrad.portable`: a seed is one number."""
    if not operands:
        return None
    if not pool.operator.operand.is_positional:
        return operands[0]
    low, high = operands[0].astype(jnp.int64)
    return low | high << 32
