"""Packs and unpacks routes in the format of the kernels; the largest number is "no winner".

All arrays have one axis of planes, followed by the pooled axes.
"""

from __future__ import annotations

from typing import Any

from poolgrad.dtypes import limits
from poolgrad.interface import Choice
from poolgrad.operators import Prepared
from poolgrad.portable.arrays import converted, placed
from poolgrad.portable.geometry import Geometry
from poolgrad.windows import Layout


def kept(xp: Any, ready: Prepared, geometry: Geometry, choice: Choice) -> Any:
    """Pack the residual of a forward pass; bits for each tap have one more axis."""
    (buffer,), layout, winners = ready.residual, ready.layout, choice.winners
    if len(buffer.shape) > len(layout.out_shape):
        column, exists = geometry.tap_columns
        column = xp.broadcast_to(column, (*winners.shape[:-1], column.shape[-1]))
        won = exists & xp.take_along_axis(winners, column, axis=-1)
        return converted(xp, _packed(xp, xp.astype(won, column.dtype), 1), buffer.dtype)
    route = xp.sum(xp.where(winners, geometry.windows.taps, 0), axis=-1)
    route = xp.where(xp.any(winners, axis=-1), route, limits(layout.route_dtype)[1])
    width = ready.route_bits
    return converted(xp, _packed(xp, route, width) if width else route, buffer.dtype)


def unpacked(xp: Any, ready: Prepared, residual: Any) -> Any:
    """Unpack the residual to integers that every library supports."""
    numbers = xp.astype(residual, xp.arange(1).dtype)
    bits, layout = ready.route_bits, ready.layout
    if residual.ndim > 1 + len(layout.pooled) or not bits:  # bits of taps are not packed further
        return numbers
    each = 8 // bits
    steps = 2 ** (bits * xp.arange(each, **placed(residual)))
    rows = numbers[..., None] // steps % 2**bits
    flat = xp.reshape(rows, (*numbers.shape[:-1], numbers.shape[-1] * each))
    routes = flat[..., : layout.window.out[-1]]
    return xp.where(routes < layout.window.tap_count, routes, limits(layout.route_dtype)[1])


def _packed(xp: Any, routes: Any, bits: int) -> Any:
    """Pack routes along the last axis, with `bits` bits each."""
    each = 8 // bits
    missing = -routes.shape[-1] % each
    none = xp.zeros((*routes.shape[:-1], missing), dtype=routes.dtype, **placed(routes))
    full = xp.concat([routes % 2**bits, none], axis=-1)
    rows = xp.reshape(full, (*full.shape[:-1], full.shape[-1] // each, each))
    return xp.sum(rows * 2 ** (bits * xp.arange(each, **placed(routes))), axis=-1)


def has_no_winner(xp: Any, layout: Layout, kept: Any) -> Any:
    """Return which outputs have no winner, from the result of `unpacked`."""
    if kept.ndim > 1 + len(layout.pooled):  # bits of taps
        return xp.max(kept, axis=-1) == 0
    return kept == limits(layout.route_dtype)[1]
