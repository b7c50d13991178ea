"""The primitives on devices without kernels of ours: the same results by JAX's own operations."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from poolgrad.contract import Choice, Windows
from poolgrad.core import Layout
from poolgrad.jax import composed
from poolgrad.jax.pooling import Pooling
from poolgrad.jax.tables import Tables, as_given, pooled_last, tables_of


def forward(x: Array, *given: Array, pool: Pooling, keep: int) -> list[Array]:
    """The output and the first arrays of the residual."""
    layout = pool.layout(x.shape, x.dtype.name)
    operator = pool.operator
    if not operator.windowed:
        return [_unpooled(x, given[0], pool, layout)]
    tables = _tables(pool, layout, given)
    values = tables.unfold(pooled_last(pool, x))
    if operator.selecting:
        draw = _drawn(pool, layout, given[0]) if pool.operator.operand.is_positional else None
        windows = tables.windows._replace(values=values)
        choice = operator.choose(jnp, windows, draw, *pool.options)
        winner = jnp.take_along_axis(values, choice.tap[..., None], -1)[..., 0]
        y = jnp.where(choice.found, winner, jnp.asarray(choice.empty, x.dtype))
        kept = [_routes(pool, layout, tables.windows, choice)] if keep else []
        return [as_given(pool, y), *kept]
    wide = composed.widest() if operator.curved else jnp.dtype(layout.sum_dtype)
    y = composed.blended(pool, tables, values.astype(wide), *given).astype(layout.out_dtype)
    # A curved operator's way back does not need what the kernels keep: it has the input.
    buffers = operator.residual(layout, *pool.options)[:keep]
    return [as_given(pool, y), *(jnp.zeros(b.shape, b.dtype) for b in buffers)]


def push(*args: Array, pool: Pooling, learned: bool) -> list[Array]:
    """The tangent of the output."""
    linear, rest = args[: 1 + learned], args[1 + learned :]
    x, given, residual = pool.held(rest)
    if pool.operator.curved:
        return composed.push(pool, learned, *linear)(x, *_learned(pool, given))
    (t,) = linear
    layout = pool.layout(t.shape, t.dtype.name)
    if not pool.operator.windowed:
        return [_unpooled(t, given[0], pool, layout)]
    tables = _tables(pool, layout, given)
    numbers = tables.unfold(pooled_last(pool, t).astype(layout.sum_dtype))
    kept = _unpacked(pool, layout, residual)
    parts = pool.operator.share(jnp, numbers, tables.windows, kept, *pool.options)
    return [as_given(pool, parts.sum(-1).astype(t.dtype))]


def pull(
    gy: Array, *args: Array, pool: Pooling, sizes: tuple[int, ...], learned: bool
) -> list[Array]:
    """The gradients of the input and, if it is wanted, of the argument."""
    x, given, residual = pool.held(args)
    layout = pool.layout(pool.before(gy.shape, sizes), gy.dtype.name)
    operator = pool.operator
    if not operator.windowed:
        return [_unpooled_back(gy, given[0], pool, layout)]
    tables = _tables(pool, layout, given)
    if operator.curved:
        return _curved_back(gy, x, given, pool, tables, learned)
    numbers = pooled_last(pool, gy).astype(layout.sum_dtype)[..., None]
    kept = _unpacked(pool, layout, residual)
    parts = operator.share(jnp, numbers, tables.windows, kept, *pool.options)
    return [as_given(pool, tables.fold(parts).astype(gy.dtype))]


def _curved_back(
    gy: Array, x: Any, given: tuple[Array, ...], pool: Pooling, tables: Tables, learned: bool
) -> list[Array]:
    values = tables.unfold(pooled_last(pool, x).astype(composed.widest()))
    pooled = partial(composed.blended, pool, tables)
    y, back = jax.vjp(pooled, values, *_learned(pool, given))
    parts, *slopes = back(pooled_last(pool, gy).astype(y.dtype))
    parts = jnp.where(tables.windows.real, parts, 0)
    gx = as_given(pool, tables.fold(parts).astype(gy.dtype))
    return [gx, *slopes[: int(learned)]]


def _learned(pool: Pooling, given: tuple[Array, ...]) -> tuple[Array, ...]:
    return given if pool.operator.learned else ()


def _tables(pool: Pooling, layout: Layout, given: tuple[Array, ...]) -> Tables:
    sizes = pool.sizes(layout.in_shape)
    return tables_of(pool, sizes, given[0] if pool.operator.operand.places_windows else None)


# Draws


def _drawn(pool: Pooling, layout: Layout, seed: Array) -> Array:
    """A number in [0, 1) for each output: the kernels' (Steele, Lea & Flood 2014)."""
    low, high = seed.astype(jnp.uint64)
    index = jnp.arange(math.prod(layout.out_shape), dtype=jnp.uint64).reshape(layout.out_shape)
    z = (low | high << 32) + (index + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> 30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> 27)) * np.uint64(0x94D049BB133111EB)
    uniform = ((z ^ (z >> 31)) >> 11).astype(jnp.float64) * 2.0**-53
    return pooled_last(pool, uniform)


# Routes


def _routes(pool: Pooling, layout: Layout, windows: Windows, choice: Choice) -> Array:
    """What a selecting operator keeps."""
    (buffer,) = pool.operator.residual(layout, *pool.options)
    winners, places = choice.winners, windows.places
    if len(buffer.shape) > len(layout.out_shape):  # a bit for each place
        byte = np.arange(buffer.shape[-1])
        bits = np.where(places[..., None] // 8 == byte, 1 << places[..., None] % 8, 0)
        kept = jnp.where(winners[..., None], bits, 0).sum(-2)
        return as_given(pool, kept.astype(buffer.dtype), behind=1)
    route = jnp.where(winners, places, 0).sum(-1)
    nowhere = np.iinfo(layout.route_dtype).max
    route = jnp.where(winners.any(-1), route, nowhere).astype(layout.route_dtype)
    width = pool.operator.route_bits(layout.window, *pool.options)
    return as_given(pool, _packed(route, width) if width else route).astype(buffer.dtype)


def _packed(routes: Array, bits: int) -> Array:
    """Routes along the last axis, so many bits each."""
    each = 8 // bits
    missing = -routes.shape[-1] % each
    full = jnp.pad(routes, [(0, 0)] * (routes.ndim - 1) + [(0, missing)])
    rows = full.reshape(*full.shape[:-1], -1, each) & ((1 << bits) - 1)
    return (rows << np.arange(0, 8, bits, dtype=np.uint8)).sum(-1, dtype=jnp.uint8)


def _unpacked(pool: Pooling, layout: Layout, residual: tuple[Array, ...]) -> tuple[Array, ...]:
    """The residual with its pooled axes last, its routes a byte each."""
    if not residual:
        return ()
    (kept,) = residual
    behind = kept.ndim - len(layout.out_shape)
    kept = pooled_last(pool, kept, behind)
    bits = pool.operator.route_bits(layout.window, *pool.options)
    if behind or not bits:  # ties are never packed
        return (kept,)
    rows = kept[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & ((1 << bits) - 1)
    routes = rows.reshape(*kept.shape[:-1], -1)[..., : layout.window.out[-1]]
    return (jnp.where(routes < layout.window.tap_count, routes, 255),)


# Unpooling: of several values for one place the last one stands there


def _positions(pool: Pooling, layout: Layout, indices: Array) -> tuple[Array, Array]:
    """Indices of each plane, and for each place of it the input that stands there, or -1."""
    where = pooled_last(pool, indices)
    planes = where.reshape(-1, math.prod(pool.sizes(layout.in_shape)))
    order = jnp.arange(planes.shape[1], dtype=jnp.int32)
    empty = jnp.full((len(planes), math.prod(layout.window.out)), -1, jnp.int32)

    def last(plane: Array, row: Array) -> Array:
        return plane.at[row].max(order, mode="drop")

    return planes, jax.vmap(last)(empty, planes)


def _unpooled(x: Array, indices: Array, pool: Pooling, layout: Layout) -> Array:
    _, owners = _positions(pool, layout, indices)
    moved = pooled_last(pool, x)
    dims = pool.spec.dims
    values = moved.reshape(len(owners), -1)
    found = jnp.take_along_axis(values, jnp.maximum(owners, 0), 1)
    y = jnp.where(owners >= 0, found, jnp.zeros((), x.dtype))
    return as_given(pool, y.reshape(*moved.shape[:-dims], *layout.window.out))


def _unpooled_back(gy: Array, indices: Array, pool: Pooling, layout: Layout) -> Array:
    planes, owners = _positions(pool, layout, indices)
    moved, dims = pooled_last(pool, gy), pool.spec.dims
    inside = jnp.clip(planes, 0, owners.shape[1] - 1)
    own = jnp.take_along_axis(owners, inside, 1) == jnp.arange(planes.shape[1])
    found = jnp.take_along_axis(moved.reshape(len(owners), -1), inside, 1)
    gx = jnp.where(own & (inside == planes), found, 0)
    return as_given(pool, gx.reshape(*moved.shape[:-dims], *pool.sizes(layout.in_shape)))
