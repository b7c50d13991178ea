"""Windows laid out one after the other, and added up again, by gathering alone.

Nothing is scattered: on every device the same numbers are added in the same order. In here the
pooled axes of an array are its last, and what is in a window comes behind them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from poolgrad.contract import Windows
from poolgrad.jax.pooling import Pooling
from poolgrad.places import Seen, looks, seen, spread
from poolgrad.windows import Axis, resolve


def pooled_last(pool: Pooling, array: Array, behind: int = 0) -> Array:
    """An array with its pooled axes last, but for so many `behind` all that the caller sees."""
    if not pool.channels_last:
        return array
    return jnp.moveaxis(array, -1 - behind, -1 - behind - pool.spec.dims)


def as_given(pool: Pooling, array: Array, behind: int = 0) -> Array:
    """The same the other way: as the caller sees it."""
    if not pool.channels_last:
        return array
    return jnp.moveaxis(array, -1 - behind - pool.spec.dims, -1 - behind)


class Tables(NamedTuple):
    """Where the windows of an input look.

    Attributes
    ----------
    axes : tuple of Axis
        The windows.
    starts : tuple of array, shape (planes, outputs)
        For each axis, where windows begin that samples place; else empty.
    windows : Windows
        Without values.
    """

    axes: tuple[Axis, ...]
    starts: tuple[Array, ...]
    windows: Windows

    def unfold(self, x: Array) -> Array:
        """The inputs of each window: (..., inputs) to (..., outputs, taps)."""
        if not self.starts:
            return _unfold(x, [looks(axis).inputs for axis in self.axes])
        taps = [np.arange(axis.kernel) for axis in self.axes]

        def one(plane: Array, *starts: Array) -> Array:
            return _unfold(plane, [s[:, None] + t for s, t in zip(starts, taps, strict=True)])

        dims = len(self.axes)
        planes = x.reshape(-1, *x.shape[-dims:])
        unfolded = jax.vmap(one)(planes, *self.starts)
        return unfolded.reshape(*x.shape[:-dims], *unfolded.shape[1:])

    def fold(self, parts: Array) -> Array:
        """What each input gets of all windows: (..., outputs, taps) to (..., inputs)."""
        if not self.starts:
            return _fold(parts, self.axes, [seen(axis) for axis in self.axes])

        def one(plane: Array, *starts: Array) -> Array:
            tables = [_seen(a, s) for a, s in zip(self.axes, starts, strict=True)]
            return _fold(plane, self.axes, tables)

        last = len(self.axes) + 1
        planes = parts.reshape(-1, *parts.shape[-last:])
        folded = jax.vmap(one)(planes, *self.starts)
        return folded.reshape(*parts.shape[:-last], *folded.shape[1:])


def tables_of(pool: Pooling, sizes: tuple[int, ...], samples: Array | None = None) -> Tables:
    """The tables for an input of these sizes; `samples`: a row for each plane, if they place it."""
    axes = resolve(pool.spec, sizes).axes
    dims, starts = len(axes), tuple[Array, ...]()
    if samples is not None:
        rows = samples.reshape(-1, dims)
        if dims == 2:
            rows = rows[:, ::-1]  # PyTorch's: width, height; but in 3-D depth, height, width
        starts = tuple(_starts(axis, rows[:, a]) for a, axis in enumerate(axes))
    reals, extents, places = [], [], []
    for a, axis in enumerate(axes):
        if axis.fractional:
            place = np.arange(axis.kernel) + np.zeros((axis.out, 1), int)
            real, extent = np.ones(place.shape, bool), np.full((axis.out, 1), axis.kernel)
        else:
            _, place, real, extent = looks(axis)
        inner = math.prod(axis.kernel for axis in axes[a + 1 :])
        reals.append(spread(real, a, dims))
        extents.append(spread(extent, a, dims))
        places.append(spread(place * inner, a, dims))
    outs = tuple(axis.out for axis in axes)
    shape = np.broadcast_shapes(*(r.shape for r in reals))
    real = np.logical_and.reduce(np.broadcast_arrays(*reals)).reshape(*outs, -1)
    place = np.add.reduce(np.broadcast_arrays(*places)).reshape(*outs, -1)
    extent = np.multiply.reduce(np.broadcast_arrays(*extents)).reshape(*outs, 1)
    assert math.prod(shape) == place.size
    return Tables(axes, starts, Windows(None, real, extent, place))


def indices(pool: Pooling, sizes: tuple[int, ...], routes: Array, samples: Array | None) -> Array:
    """Routes as flat positions in their plane; -1 where nobody won."""
    axes = resolve(pool.spec, sizes).axes
    tables = tables_of(pool, sizes, samples)
    routes = pooled_last(pool, routes)
    place, step = routes.astype(jax.dtypes.canonicalize_dtype(np.int64)), 1
    flat: Any = 0
    begin: Any
    for a in reversed(range(len(axes))):
        axis = axes[a]
        place, tap = place // axis.kernel, place % axis.kernel
        if axis.fractional:
            begin = tables.starts[a].reshape(*routes.shape[: -len(axes)], axis.out)
        elif axis.adaptive:
            begin, _ = axis.bins(np.arange(axis.out))
        else:
            begin = np.arange(axis.out) * axis.stride - axis.lo
        shape = (*begin.shape, *(1,) * (len(axes) - 1 - a))
        if axis.fractional:
            shape = (*begin.shape[:-1], *(1,) * a, axis.out, *(1,) * (len(axes) - 1 - a))
        flat = flat + (begin.reshape(shape) + tap * axis.dilation) * step
        step = step * axis.size
    nowhere = np.iinfo(routes.dtype).max
    return as_given(pool, jnp.where(routes == nowhere, -1, flat))


def _unfold(x: Array, inputs: Sequence[Any]) -> Array:
    dims = len(inputs)
    index = tuple(spread(table, a, dims) for a, table in enumerate(inputs))
    values = x.at[(..., *index)].get(mode="promise_in_bounds")
    return values.reshape(*values.shape[:-dims], -1)


def _fold(parts: Array, axes: Sequence[Axis], tables: Sequence[Seen]) -> Array:
    dims = len(axes)
    counts = [looks(a).inputs.shape[1] if not a.fractional else a.kernel for a in axes]
    apart = parts.reshape(*parts.shape[:-1], *counts)
    outputs, taps, reals = (
        [spread(column, a, dims) for a, column in enumerate(columns)]
        for columns in zip(*tables, strict=True)
    )
    found = apart.at[(..., *outputs, *taps)].get(mode="promise_in_bounds")
    real = reals[0]
    for other in reals[1:]:
        real = real & other
    return jnp.where(real, found, 0).sum(tuple(range(-dims, 0)))


# Windows that samples place


def _starts(axis: Axis, samples: Array) -> Array:
    """Where the windows of each plane begin (Graham 2014), by the kernels' arithmetic."""
    dtype, last = samples.dtype, axis.size - axis.kernel
    info = jnp.finfo(dtype)

    def rounded(value: Any) -> Array:  # compilers keep more than they are told to
        exponent = info.bits - info.nmant - 1
        return jax.lax.reduce_precision(jnp.asarray(value, dtype), exponent, info.nmant)

    step = rounded(rounded(last) / rounded(max(axis.out - 1, 1)))
    shift = rounded(samples * step).astype(jnp.int32)
    outputs = rounded(jnp.arange(axis.out - 1))
    at = rounded(rounded(outputs + samples[:, None]) * step).astype(jnp.int32)
    begins = jnp.clip(at - shift[:, None], 0, last)
    return jnp.concatenate([begins, jnp.full((len(samples), 1), last, begins.dtype)], 1)


def _seen(axis: Axis, starts: Array) -> Seen:
    """Which windows of one plane hold each input."""
    step = max((axis.size - axis.kernel) // max(axis.out - 1, 1), 1)
    most = min(axis.out, axis.kernel // step + 3)
    inputs = jnp.arange(axis.size)[:, None]
    first = (starts + axis.kernel <= inputs).sum(1, keepdims=True)
    outputs = first + jnp.arange(most)
    real = outputs < axis.out
    outputs = jnp.minimum(outputs, axis.out - 1)
    taps = inputs - starts[outputs]
    real = real & (taps >= 0) & (taps < axis.kernel)
    return Seen(outputs, jnp.clip(taps, 0, axis.kernel - 1), real)
