"""The functions that tasks run on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad.buffers import dtype_named, laid_out, placeholder
from poolgrad.dask.graph import Position
from poolgrad.dask.segments import Segment
from poolgrad.interface import Request
from poolgrad.numpy import FRONT_END
from poolgrad.operators import OPERATORS
from poolgrad.windows import WindowSpec

Array = NDArray[Any]


def forward(request: Request, here: Sequence[Segment], sizes: Position, keep: str, x: Array) -> Any:
    """Compute the output of a segment and, with `keep`, the "residual" or the "indices"."""
    call = FRONT_END.call(replace(request, x=x, spec=_sliced(request, here)))
    y, residual = FRONT_END.forward(call, keep=bool(keep))
    if keep == "indices":
        found = FRONT_END.indices_of(call, residual[0])
        residual = (_global(found, [s.inputs for s in here], sizes),)
    return (y, *residual) if residual else y


def _sliced(request: Request, here: Sequence[Segment]) -> WindowSpec:
    """Return the spec of the windows of these segments."""
    return request.spec._replace(slices=tuple(s.part for s in here))


def _global(indices: Array, inputs: Sequence[tuple[int, int]], sizes: Position) -> Array:
    """Convert flat positions in a part of a plane to flat positions in the plane."""
    along = np.unravel_index(np.maximum(indices, 0), [hi - lo for lo, hi in inputs])
    moved = tuple(i + lo for i, (lo, _) in zip(along, inputs, strict=True))
    return np.where(indices < 0, -1, np.ravel_multi_index(moved, sizes))


def gradient(
    request: Request,
    here: Sequence[Segment | None],
    chunk: dict[int, tuple[int, int]],
    shape: Position,
    dtype: str,
    *arrays: Array,
) -> Array:
    """Compute the gradient of one chunk from the cotangents of the windows that read it."""
    if not arrays:
        return np.zeros(shape, dtype_named(dtype))
    operator, segments = OPERATORS[request.operator], [s for s in here if s is not None]
    gy, *kept = arrays
    x = kept.pop() if operator.nonlinear else None
    size = list(shape)
    for axis, segment in zip(chunk, segments, strict=True):
        size[axis] = segment.inputs[1] - segment.inputs[0]
    like = placeholder(tuple(size), dtype_named(dtype))
    local = replace(request, x=like, spec=_sliced(request, segments))
    call = FRONT_END.call(local)
    part = FRONT_END.gradient(call, gy, x, laid_out(kept, call.ready.residual))
    return _chunk_of(part, segments, chunk, shape)


def _chunk_of(
    part: Array,
    segments: Sequence[Segment],
    chunk: dict[int, tuple[int, int]],
    shape: Position,
) -> Array:
    """Return the values of a chunk from the inputs of segments; 0 outside the segments."""
    if [s.inputs for s in segments] == list(chunk.values()):
        return part
    inside, target = [slice(None)] * part.ndim, [slice(None)] * part.ndim
    for (axis, (start, stop)), segment in zip(chunk.items(), segments, strict=True):
        begin, end = segment.inputs
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
