"""The functions that tasks run on NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad.buffers import dtype_named, laid_out, placeholder, readable
from poolgrad.dask.arrays import Chunks, Position, shape_at, spans
from poolgrad.dask.segments import inputs_of
from poolgrad.interface import Request
from poolgrad.numpy import FRONT_END
from poolgrad.operators import OPERATORS
from poolgrad.windows import Axis

Array = NDArray[Any]
Segments = Mapping[int, Sequence[Axis]]  # by pooled axis, one for each chunk


def forward(
    position: Position, x: Array, *operands: Array, request: Request, segments: Segments, keep: bool
) -> Any:
    """Compute the output of segments and, if requested, the residual or the indices."""
    here = [along[position[a]] for a, along in segments.items()]
    local = _local(request, x, here, operands)
    if keep:
        y, residual = FRONT_END.forward(FRONT_END.call(local), keep=True)
        return y, *residual
    result = FRONT_END.perform(local)
    return (result[0], _global(result[1], here)) if request.return_indices else result


def _local(request: Request, x: Array, here: Sequence[Axis], operands: Any) -> Request:
    """Return the request of segments; operands that are cut into chunks replace its own."""
    spec = request.spec._replace(slices=(*here,))
    return replace(request, x=x, spec=spec, operands=operands or request.operands)


def _global(indices: Array, here: Sequence[Axis]) -> Array:
    """Convert flat positions in a part of a plane to flat positions in the plane."""
    along = np.unravel_index(np.maximum(indices, 0), [s.size for s in here])
    moved = tuple(i + s.origin.before for i, s in zip(along, here, strict=True))
    return np.where(indices < 0, -1, np.ravel_multi_index(moved, [s.origin.inputs for s in here]))


def element(position: Position, results: tuple[Array, ...], k: int) -> Array:
    """Return one of the results of a task."""
    return results[k]


def gradient(
    position: Position,
    gy: Array,
    *arrays: Array,
    request: Request,
    segments: Mapping[int, Sequence[Axis | None]],
    grid: Chunks,
    dtype_name: str,
) -> Array:
    """Compute the gradient of one chunk from the cotangents of the windows that read it.

    `arrays` are the residual, the input if the operator is nonlinear, and the operand if it is cut
    into chunks; `grid` are the chunks of the gradient.
    """
    shape, kind = shape_at(grid, position), dtype_named(dtype_name)
    reading = {a: s for a, along in segments.items() if (s := along[position[a]])}
    if len(reading) < len(segments):  # no window reads the chunk
        return np.zeros(shape, kind)
    operator, here = OPERATORS[request.operator], list(reading.values())
    gy, *kept = map(readable, (gy, *arrays))
    cut = operator.operand.count and not request.operands
    operands = (kept.pop(),) if cut else ()
    x = kept.pop() if operator.nonlinear else None
    size = list(shape)
    for axis, segment in reading.items():
        size[axis] = segment.size
    like = placeholder(tuple(size), kind)
    call = FRONT_END.call(_local(request, like, here, operands))
    part = FRONT_END.gradient(call, gy, x, laid_out(kept, call.ready.residual))
    return _chunk_of(part, reading, {a: spans(grid[a])[position[a]] for a in reading}, shape)


def _chunk_of(
    part: Array,
    segments: Mapping[int, Axis],
    chunk: Mapping[int, tuple[int, int]],
    shape: Position,
) -> Array:
    """Return the values of a chunk from the inputs of segments; 0 outside the segments."""
    if all(inputs_of(segment) == chunk[a] for a, segment in segments.items()):
        return part
    inside, target = [slice(None)] * part.ndim, [slice(None)] * part.ndim
    for axis, segment in segments.items():
        (start, stop), (begin, end) = chunk[axis], inputs_of(segment)
        lo, hi = max(start, begin), min(stop, end)
        inside[axis], target[axis] = slice(lo - begin, hi - begin), slice(lo - start, hi - start)
    gx = np.zeros(shape, part.dtype)  # not a view, which would keep the larger array alive
    gx[tuple(target)] = part[tuple(inside)]
    return gx


def times(a: Array, b: Array) -> Array:
    """Return the product as a contiguous array, without warnings about overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.multiply(a, b, np.empty(b.shape, b.dtype))


def summed(a: Array, axis: Any, keepdims: bool) -> Array:
    """Return the sum, accumulated in a wide dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        total: Array = np.sum(a, axis, dtype="float64", keepdims=keepdims)
    return total
