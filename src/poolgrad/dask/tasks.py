"""What a task does with the parts of NumPy arrays that it is given."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad import numpy as front
from poolgrad.contract import Buffer, Request
from poolgrad.core import get_num_threads
from poolgrad.dask.graph import Position, joined
from poolgrad.dask.segments import Cell, Segment
from poolgrad.operators import OPERATORS

Array = NDArray[Any]


def _cells(here: Sequence[Segment]) -> Iterator[tuple[Cell, ...]]:
    return itertools.product(*(s.cells for s in here))


def _cut(array: Array, pooled: Sequence[int], ranges: Sequence[tuple[int, int]]) -> Array:
    cuts = [slice(None)] * array.ndim
    for axis, (start, stop) in zip(pooled, ranges, strict=True):
        cuts[axis] = slice(start, stop)
    return array[tuple(cuts)]


def _pooled_axes(ndim: int, request: Request) -> tuple[int, ...]:
    first = ndim - len(request.rule) - request.channels_last
    return tuple(range(first, first + len(request.rule)))


def forward(
    request: Request,
    here: Sequence[Segment],
    sizes: Position,
    keep: str,
    kept: Sequence[Buffer],
    x: Array,
) -> Any:
    """The output of some windows and, to `keep`, the "residual" or the "indices" of winners.

    `kept`: the same of all windows of the array.
    """
    pooled = _pooled_axes(x.ndim, request)
    parts = []
    for cells in _cells(here):
        inputs = [c.inputs for c in cells]
        call = front.call(
            replace(request, x=_cut(x, pooled, inputs), rule=tuple(c.rule for c in cells))
        )
        y = call.output()
        residual = tuple(map(front.allocate, call.ready.residual)) if keep else ()
        call.run(y, residual)
        if keep == "indices":
            found = front.indices_of(call.ready, call.argument, residual[0])
            begins = [s.inputs[0] + lo for s, (lo, _) in zip(here, inputs, strict=True)]
            residual = (_global(found, [hi - lo for lo, hi in inputs], begins, sizes),)
        parts.append(
            (y, *(_alike(r, b, r.ndim > x.ndim) for r, b in zip(residual, kept, strict=False)))
        )
    grid = [1] * x.ndim
    for axis, segment in zip(pooled, here, strict=True):
        grid[axis] = len(segment.cells)
    made = [joined(column, tuple(grid)) for column in zip(*parts, strict=True)]
    return tuple(made) if keep and len(made) > 1 else made[0]


def _alike(kept: Array, whole: Buffer, ties: bool) -> Array:
    """What is kept of one bin as it is kept of another, which may have more places, or fewer."""
    if ties and kept.shape[-1] != whole.shape[-1]:
        missing = max(whole.shape[-1] - kept.shape[-1], 0)
        kept = np.pad(kept, [(0, 0)] * (kept.ndim - 1) + [(0, missing)])[..., : whole.shape[-1]]
    return kept.astype(front.dtype_named(whole.dtype), copy=False)


def _global(
    indices: Array, sizes: Sequence[int], begins: Sequence[int], all_sizes: Position
) -> Array:
    """Flat positions in a part of a plane as flat positions in the plane."""
    along = np.unravel_index(np.maximum(indices, 0), sizes)
    moved = tuple(i + b for i, b in zip(along, begins, strict=True))
    return np.where(indices < 0, -1, np.ravel_multi_index(moved, all_sizes))


def pull(
    request: Request,
    here: Sequence[Segment | None],
    chunk: dict[int, tuple[int, int]],
    shape: Position,
    dtype: str,
    wide: str,
    *arrays: Array,
) -> Array:
    """The gradient of one chunk, from those of the windows that look at it; summed in `wide`."""
    gx = np.zeros(shape, front.dtype_named(wide))
    segments = [s for s in here if s is not None]
    if len(segments) == len(here):
        *lines, last = segments
        gy, *kept = arrays
        taken = (gy.astype(gx.dtype, copy=False), *kept)
        if OPERATORS[request.operator].selecting or len(last.cells) == 1:
            _add(gx, request, segments, chunk, taken)
        else:  # as the kernels add: those of each column of windows first
            for cell in last.cells:
                column = np.zeros_like(gx)
                _add(column, request, [*lines, last._replace(cells=(cell,))], chunk, taken)
                gx += column
    return gx.astype(front.dtype_named(dtype), copy=False)


def _add(
    gx: Array,
    request: Request,
    segments: Sequence[Segment],
    chunk: dict[int, tuple[int, int]],
    arrays: Sequence[Array],
) -> None:
    """Add what the cells send, one after the other."""
    operator, pooled = OPERATORS[request.operator], tuple(chunk)
    gy, *kept = arrays
    x = kept.pop() if operator.curved else None
    for cells in _cells(segments):
        reach = [
            (s.inputs[0] + c.inputs[0], s.inputs[0] + c.inputs[1])
            for s, c in zip(segments, cells, strict=True)
        ]
        outs = [c.outputs for c in cells]
        size = list(gx.shape)
        for axis, (start, stop) in zip(pooled, reach, strict=True):
            size[axis] = stop - start
        like = np.empty(size, gx.dtype)
        local = replace(request, x=like, rule=tuple(c.rule for c in cells))
        ready = front.prepared(local, like)
        part = front.allocate(Buffer(ready.plan.in_shape, ready.plan.order, ready.plan.dtype))
        residual = tuple(
            front.handed(_laid_out(_alike(_cut(r, pooled, outs), b, r.ndim > gx.ndim), b.order))
            for r, b in zip(kept, ready.residual, strict=False)
        )
        values = None
        if x is not None:
            values = front.handed(_cut(x, pooled, [c.inputs for c in cells]))
        operator.pull(
            ready.plan, front.handed(_cut(gy, pooled, outs)), values,
            front.argument_of(local, ready, like), residual, front.handed(part),
            get_num_threads(), *request.options,
        )  # fmt: skip
        common = [
            (max(a, lo), min(b, hi)) for (a, b), (lo, hi) in zip(reach, chunk.values(), strict=True)
        ]
        if any(lo >= hi for lo, hi in common):
            continue
        inside = [(lo - a, hi - a) for (lo, hi), (a, _) in zip(common, reach, strict=True)]
        place = [(lo - a, hi - a) for (lo, hi), (a, _) in zip(common, chunk.values(), strict=True)]
        target = _cut(gx, pooled, place)
        target += _cut(part, pooled, inside)


def _laid_out(array: Array, order: Position) -> Array:
    """The same array lying as the kernels read it."""
    back = [order.index(a) for a in range(len(order))]
    return np.ascontiguousarray(array.transpose(order)).transpose(back)


def times(a: Array, b: Array) -> Array:
    """Their product; where it is infinite nobody needs to be told."""
    with np.errstate(over="ignore", invalid="ignore"):
        return a * b


def summed(a: Array, axis: Any, keepdims: bool) -> Array:
    """The sum, kept wide."""
    with np.errstate(over="ignore", invalid="ignore"):
        total: Array = np.sum(a, axis, dtype="float64", keepdims=keepdims)
    return total
