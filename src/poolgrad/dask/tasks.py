"""The functions that tasks run on NumPy arrays.

Those of a call take the chunk's position and, in `how`, the arguments of `_call`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad.buffers import laid_out, placeholder, readable
from poolgrad.dask.arrays import Position
from poolgrad.dask.segments import Range
from poolgrad.interface import Request
from poolgrad.numpy import FRONT_END
from poolgrad.operators import OPERATORS
from poolgrad.pullback import Call
from poolgrad.windows import Axis

Array = NDArray[Any]
Segments = Mapping[int, Sequence[Axis]]  # by pooled axis, one for each chunk


def _call(
    position: Position,
    array: Array,
    operands: Sequence[Array],
    requests: Sequence[Request],
    channel: int,
    segments: Segments,
    dtype: Any = None,
) -> Call:
    """Return the call of a chunk.

    `array` is the input or, if the `dtype` of the input is passed, of the shape of the output.
    `requests` are those of each chunk along the axis of channels, or one; an operand that is cut
    along all axes is in `operands`.
    """
    here = {axis: along[position[axis]] for axis, along in segments.items()}
    if dtype is not None:
        sizes = (here[axis].size if axis in here else n for axis, n in enumerate(array.shape))
        array = placeholder((*sizes,), dtype)
    request = requests[position[channel] if len(requests) > 1 else 0]
    spec = request.spec._replace(slices=(*here.values(),))
    operands = (*operands,) or request.operands
    return FRONT_END.call(replace(request, x=array, spec=spec, operands=operands))


def forward(position: Position, x: Array, *operands: Array, keep: bool, **how: Any) -> Any:
    """Compute the output of segments and, if requested, the residual."""
    y, residual = FRONT_END.forward(_call(position, x, operands, **how), keep)
    return (y, *residual) if keep else y


def element(position: Position, results: tuple[Array, ...], k: int) -> Array:
    """Return one of the results of a task."""
    return results[k]


def indices(position: Position, routes: Array, **how: Any) -> Array:
    """Convert routes of segments to flat positions in the plane of the input."""
    call = _call(position, routes, (), **how, dtype=np.dtype("f4"))
    (routes,) = laid_out((readable(routes),), call.ready.residual)
    found, here = FRONT_END.indices_of(call, routes), call.ready.layout.window.axes
    along = np.unravel_index(np.maximum(found, 0), [s.size for s in here])
    moved = tuple(i + s.origin.before for i, s in zip(along, here, strict=True))
    return np.where(found < 0, -1, np.ravel_multi_index(moved, [s.origin.inputs for s in here]))


def gradient(
    position: Position, gy: Array, *arrays: Array, bounds: Mapping[int, Sequence[Range]], **how: Any
) -> Array:
    """Compute the gradient of one chunk from the cotangents of the windows that read it.

    `arrays` are the residual, the input if the operator is nonlinear, and the operand if it is cut
    along all axes; `bounds` are the ranges of the chunks along the pooled axes.
    """
    operator = OPERATORS[how["requests"][0].operator]
    gy, *kept = map(readable, (gy, *arrays))
    operands = () if operator.windowed else (kept.pop(),)
    x = kept.pop() if operator.nonlinear else None
    call = _call(position, gy, operands, **how, dtype=gy.dtype)
    part = FRONT_END.gradient(call, gy, x, laid_out(kept, call.ready.residual))
    inside, layout = [slice(None)] * part.ndim, call.ready.layout
    for axis, segment in zip(layout.pooled, layout.window.axes, strict=True):
        start, stop = (n - segment.origin.before for n in bounds[axis][position[axis]])
        inside[axis] = slice(start, stop)
    gx: Array = part[tuple(inside)]
    return gx if gx.size == part.size else gx.copy()  # a view would keep the larger array alive


def times(a: Array, b: Array) -> Array:
    """Return the product as a contiguous array, without warnings about overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.multiply(a, b, np.empty(b.shape, b.dtype))


def summed(a: Array, axis: Any, keepdims: bool) -> Array:
    """Return the sum, accumulated in a wide dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        total: Array = np.sum(a, axis, dtype="float64", keepdims=keepdims)
    return total
