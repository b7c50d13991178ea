"""Computes forward mode and higher derivatives of nonlinear operators from their formulas.

The taps of all windows are in memory at once; see `poolgrad.portable`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from poolgrad.jax.static import Static
from poolgrad.portable import engine


def broadcasting() -> Any:
    """Return a context in which ranks may differ, which a user of JAX can make an error."""
    return jax.numpy_rank_promotion("allow")


def wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes with 64-bit types, even if JAX has them disabled.

    It may broadcast arrays of different ranks, too.
    """

    @wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(True), broadcasting():
            return function(*args, **kwargs)

    return inside


def define(pool: Static) -> Callable[..., Array]:
    """Return the operator as a function of the input and, if it has one, its learned argument."""

    def pooled(x: Array, *learned: Array) -> Array:
        layout, theta = pool.prepared(x).layout, learned[0] if learned else None
        with broadcasting():
            y: Array = engine.formula(pool.operator, layout, x, theta, pool.options)
        return y.astype(x.dtype)

    return pooled


def derivative(
    pool: Static, learned: bool, transpose: bool, *linear: Array
) -> Callable[..., list[Array]]:
    """Return the derivative or its transpose as a function of the input and the argument.

    `linear` are the tangents or the cotangent, in which it is linear.
    """

    def at(x: Array, *parameters: Array) -> list[Array]:
        if transpose:
            return [*jax.vjp(define(pool), x, *parameters)[1](*linear)[: 1 + learned]]
        tangents = (*linear, *map(jnp.zeros_like, parameters[learned:]))
        return [jax.jvp(define(pool), (x, *parameters), tangents)[1]]

    return at
