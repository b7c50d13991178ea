"""Curved operators in JAX's own operations: forward mode and all derivatives beyond the first.

The windows are laid out one after the other, which takes memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from poolgrad.jax.pooling import Pooling, has_wide_numbers
from poolgrad.jax.tables import Tables, as_given, pooled_last, tables_of


def wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with all of 64 bits inside, whatever JAX was told outside of it."""

    @wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return inside


def widest() -> Any:
    """The type that squares and differences are kept in: they lose as little as JAX lets them."""
    return jnp.float64 if has_wide_numbers() else jnp.float32


def _argument_of(given: tuple[Array, ...], dims: int) -> Array | None:
    """A learned argument as it goes with outputs whose pooled axes are the last."""
    if not given:
        return None
    value = given[0].astype(widest())
    return value.reshape(-1, *(1,) * dims) if value.ndim else value


def blended(pool: Pooling, tables: Tables, values: Array, *given: Array) -> Array:
    """The outputs of windows with these values, for this argument if the operator has one."""
    windows = tables.windows._replace(values=values)
    argument = _argument_of(given, pool.spec.dims)
    y: Array = pool.operator.compose(jnp, windows, argument, *pool.options)
    return y


def define(pool: Pooling) -> Callable[..., Array]:
    """The operator as a function of the input and, if it has one, its learned argument."""

    def pooled(x: Array, *learned: Array) -> Array:
        tables = tables_of(pool, pool.sizes(x.shape))
        values = tables.unfold(pooled_last(pool, x).astype(widest()))
        return as_given(pool, blended(pool, tables, values, *learned)).astype(x.dtype)

    return pooled


def push(pool: Pooling, learned: bool, *tangents: Array) -> Callable[..., list[Array]]:
    """The derivative along these tangents, as a function of what it is taken at."""

    def along(x: Array, *given: Array) -> list[Array]:
        full = tangents if learned else (tangents[0], *map(jnp.zeros_like, given))
        return [jax.jvp(define(pool), (x, *given), full)[1]]

    return along


def pull(pool: Pooling, learned: bool, gy: Array) -> Callable[..., list[Array]]:
    """The gradients for this gradient of the output, as a function of what they are taken at."""

    def back(x: Array, *given: Array) -> list[Array]:
        gradients = jax.vjp(define(pool), x, *given)[1](gy)
        return list(gradients[: 1 + learned])

    return back
