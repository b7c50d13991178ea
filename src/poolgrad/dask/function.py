"""The front end for Dask arrays: pools chunk by chunk, and returns lazy arrays.

A chunk of the output is pooled from the part of the input that its windows read: the chunks there
and, where windows cross a border, strips of the next ones. Unpooling reads whole planes.
"""

# ruff: noqa: D102 - the base class documents the methods

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import starmap
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection

from poolgrad import arguments
from poolgrad.buffers import dtype_named
from poolgrad.composition import Functions
from poolgrad.dask import tasks
from poolgrad.dask.arrays import Chunks, asarray, map_chunks, spans, without_empty_chunks
from poolgrad.dask.segments import Range, inputs_of, outputs_of, segment_reading, segments
from poolgrad.frontend import FrontEnd
from poolgrad.interface import Buffer, Request, unpacked
from poolgrad.numpy import FRONT_END as NUMPY
from poolgrad.operators import OPERATORS
from poolgrad.pullback import Call
from poolgrad.windows import Axis


@dataclass(eq=False)
class DaskCall(Call):
    """A call of a Dask array.

    Attributes
    ----------
    chunks : tuple of tuple of int
        The chunks of the input.
    gradient_chunks : tuple of tuple of int
        The chunks of the caller's input, and of its gradient.
    """

    chunks: Chunks = ()
    gradient_chunks: Chunks = ()

    @cached_property
    def axes(self) -> dict[int, Axis]:
        """The windows along each pooled axis."""
        layout = self.ready.layout
        return dict(zip(layout.pooled, layout.window.axes, strict=True))

    @cached_property
    def segments(self) -> tasks.Segments:
        """The windows of each chunk of the output."""
        return {a: segments(axis, self.chunks[a]) for a, axis in self.axes.items()}

    @cached_property
    def reading(self) -> tasks.Segments:
        """The windows that read each chunk of the input."""
        return {
            a: [segment_reading(axis, *span) for span in spans(self.chunks[a])]
            for a, axis in self.axes.items()
        }

    @cached_property
    def out_chunks(self) -> Chunks:
        """The chunks of the output, with the pooled axes."""
        pooled = {a: tuple(s.out for s in along) for a, along in self.segments.items()}
        return tuple(pooled.get(a, chunks) for a, chunks in enumerate(self.chunks))

    def shaped(self, y: Any) -> Any:
        if not self.ready.operator.windowed:  # in about as many chunks as the caller's input
            chunks, sizes = self.gradient_chunks, self.ready.layout.in_shape
            y = y.rechunk({a: _scaled(chunks[a], sizes[a], y.shape[a]) for a in self.axes})
        return super().shaped(y)

    def mapped(self, function: Any, chunks: Chunks, dtype: str, *arrays: Any, **how: Any) -> Any:
        """Return the array that a function of `tasks` computes."""
        request = replace(self.request, x=None, keepdims=True, operands=())
        requests, operand, channel = [request], self.operand, self.ready.layout.channel
        if isinstance(operand, da.Array):
            arrays = (*arrays, operand)
        elif operand is not None:
            each = spans(self.chunks[channel]) if operand.ndim and channel >= 0 else []
            parts = [operand[first:last] for first, last in each] or [operand]
            requests = [replace(request, operands=(part,)) for part in parts]
        token = f"{request.operator}-{function.__name__}"
        how |= {"requests": requests, "channel": channel}
        return map_chunks(function, chunks, dtype_named(dtype), *arrays, token=token, **how)


def _parts(array: Any, segments: tasks.Segments, range_of: Callable[[Axis], Range]) -> Any:
    """Return an array with the ranges of segments, for `map_chunks`."""
    return array, {a: [*map(range_of, along)] for a, along in segments.items()}


class DaskFrontEnd(FrontEnd):
    """Pools Dask arrays with tasks that call NumPy's front end."""

    name = "dask"
    noun = "a Dask array"

    def asarray(self, name: str, value: Any) -> Any:
        if not is_dask_collection(value):
            value = NUMPY.asarray(name, value)
            if value.dtype.hasobject:  # which Dask cannot cut into chunks
                accepted = "dtype int64" if name == "indices" else "a floating dtype"
                raise TypeError(f"{name} must be of {accepted}, got {value.dtype}")
            value = da.asarray(value)
        return asarray(name, value)

    def functions(self, x: Any) -> Functions:
        return Functions(da.exp, da.where, da.max, lambda x, dtype: x.astype(dtype_named(dtype)))

    def from_numpy(self, array: Any, x: Any) -> Any:
        return array

    def call(self, request: Request) -> DaskCall:
        operator = OPERATORS[request.operator]
        if not operator.operand.is_cut:
            raise TypeError(
                f"{request.operator} pooling does not support Dask arrays: the draw of one chunk "
                "depends on all others"
            )
        # Packed routes cannot be cut anywhere.
        made = super().call(replace(request, options=unpacked(request.options)))
        x, operand = made.x, made.operand
        if not operator.windowed:  # unpooling: an index may be anywhere in its plane
            x = x.rechunk(dict.fromkeys(made.ready.layout.pooled, -1))
            operand = operand.rechunk(x.chunks)
        chunks = x.chunks, request.x.chunks
        return DaskCall(self, made.request, made.ready, x, operand, *chunks)

    def forward(self, call: Any, keep: bool = False) -> tuple[Any, tuple[Any, ...]]:
        chunks, residual, output = call.out_chunks, call.ready.residual * keep, call.ready.output
        x = _parts(call.x, call.segments, inputs_of)
        how = {"segments": call.segments, "keep": bool(residual)}
        dtype = "object" if residual else output.dtype
        results = call.mapped(tasks.forward, chunks, dtype, x, **how)
        if not residual:
            return results, ()

        def element(k: int, buffer: Buffer) -> Any:
            more = ((size,) for size in buffer.shape[len(chunks) :])  # bits of ties
            token, dtype = f"{call.request.operator}-{k}", dtype_named(buffer.dtype)
            return map_chunks(tasks.element, (*chunks, *more), dtype, results, token=token, k=k)

        y, *kept = starmap(element, enumerate((output, *residual)))
        return y, (*kept,)

    def indices_of(self, call: Any, routes: Any) -> Any:
        how = {"segments": call.segments}
        return call.mapped(tasks.indices, call.out_chunks, "int64", routes, **how)

    def copied(self, x: Any) -> Any:
        return x

    def gradient(self, call: Any, gy: Any, x: Any, residual: Sequence[Any]) -> Any:
        outputs = gy.rechunk(call.out_chunks), *residual[: len(call.ready.needed)]
        arrays = [_parts(array, call.reading, outputs_of) for array in outputs]
        if call.ready.operator.nonlinear:
            arrays.append(_parts(x, call.reading, inputs_of))
        how = {"segments": call.reading, "bounds": {a: spans(call.chunks[a]) for a in call.axes}}
        gx = call.mapped(tasks.gradient, call.chunks, call.ready.layout.dtype, *arrays, **how)
        return gx.rechunk(call.gradient_chunks)

    def parameter_gradient(self, call: Any, gy: Any, x: Any, residual: Sequence[Any]) -> Any:
        layout, shape = call.ready.layout, call.operand.shape
        wide = gy.rechunk(call.out_chunks).astype(layout.sum_dtype)
        slopes = da.map_blocks(tasks.times, wide, residual[-1], dtype=layout.sum_dtype)
        others = call.ready.operator.operand.summed_axes(shape, layout)
        total = da.reduction(slopes, tasks.summed, tasks.summed, axis=others, dtype="float64")
        return total.astype(layout.sum_dtype).reshape(shape)

    def cotangent(self, gy: Any, dtype: str, shape: tuple[int, ...], full: tuple[int, ...]) -> Any:
        kind = dtype_named(dtype)
        lazy = isinstance(gy, da.Array)
        given = asarray("gy", gy) if lazy else arguments.cotangent(gy, kind, shape)
        arguments.check_cotangent(gy, given.dtype, given.shape, shape)
        return without_empty_chunks(da.asarray(given).astype(kind).reshape(full))


def _scaled(chunks: Sequence[int], size: int, out: int) -> tuple[int, ...]:
    """Return the same number of chunks for an axis of another size, if it is large enough."""
    bounds = sorted({end * out // size for end in np.cumsum(chunks)} - {0})
    return tuple(int(n) for n in np.diff([0, *bounds]))


FRONT_END = DaskFrontEnd()
