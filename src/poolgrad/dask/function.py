"""The front end for Dask arrays: pools chunk by chunk, and returns lazy arrays.

A chunk of the output is pooled from the part of the input that its windows read: the chunks there
and, where windows cross a border, strips of the next ones. Unpooling reads whole planes.
"""

# ruff: noqa: D102 - the base class documents the methods

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection

from poolgrad import arguments
from poolgrad.buffers import dtype_named
from poolgrad.composition import Functions
from poolgrad.dask import tasks
from poolgrad.dask.arrays import Chunks, asarray, gather, map_chunks, spans, without_empty_chunks
from poolgrad.dask.segments import inputs_of, outputs_of, segment_reading, segments
from poolgrad.frontend import FrontEnd
from poolgrad.interface import Buffer, Operator, Request, indexed, unpacked
from poolgrad.numpy import FRONT_END as NUMPY
from poolgrad.operators import OPERATORS
from poolgrad.pullback import Call, Pullback


class DaskFrontEnd(FrontEnd):
    """Pools Dask arrays with tasks that call NumPy's front end."""

    name = "dask"
    noun = "a Dask array"

    def asarray(self, name: str, value: Any) -> Any:
        if not is_dask_collection(value):
            value = NUMPY.asarray(name, value)
            if value.dtype.hasobject:  # which Dask cannot cut into chunks
                raise TypeError(f"{name} must be of a floating dtype, got {value.dtype}")
            value = da.asarray(value)
        return without_empty_chunks(asarray(name, value))

    def dtype_name(self, x: Any) -> str:
        return str(x.dtype.name)

    def functions(self, x: Any) -> Functions:
        return Functions(da.exp, da.where, da.max, lambda x, dtype: x.astype(dtype_named(dtype)))

    def inner(self, request: Request, x: Any) -> int:
        return NUMPY.inner(request, _without_memory(x))

    def call(self, request: Request) -> DaskCall:
        return DaskCall(self, request)

    def perform(self, request: Request) -> Any:
        if not request.return_indices:
            return super().perform(request)
        if request.out is not None:
            self.check_out(request.out)
        call = self.call(replace(request, options=indexed(request.options)))
        return tuple(map(call.shaped, call.forward()))

    def forward(self, call: Any, keep: bool = False) -> tuple[Any, tuple[Any, ...]]:
        y, *residual = call.forward(keep)
        return y, (*residual,)

    def vjp(self, request: Request) -> tuple[Any, Pullback]:
        return super().vjp(replace(request, options=unpacked(request.options)))

    def kept(self, call: Any) -> Call:
        self.require_gradient(call.array)
        return call

    def copied(self, x: Any) -> Any:
        return x

    def cotangent(self, gy: Any, dtype: str, shape: tuple[int, ...], full: tuple[int, ...]) -> Any:
        kind = dtype_named(dtype)
        if isinstance(gy, da.Array):
            given = asarray("gy", gy)
            arguments.check_cotangent(gy, given.dtype, given.shape, shape)
        else:
            given = da.asarray(arguments.cotangent(gy, kind, shape))
        return without_empty_chunks(given.astype(kind).reshape(full))


def _without_memory(x: Any) -> np.ndarray:
    """Return a NumPy array with the shape and dtype of a Dask array, of one element in memory."""
    return np.broadcast_to(np.zeros((), x.dtype), x.shape)


class DaskCall(Call):
    """A validated call of an operator with a Dask array, and the chunks of its arrays.

    Parameters
    ----------
    front : DaskFrontEnd
        The front end.
    request : Request
        The call of a public function.
    """

    def __init__(self, front: FrontEnd, request: Request) -> None:
        self.operator: Operator = OPERATORS[request.operator]
        if not self.operator.operand.is_cut:
            raise TypeError(
                f"{request.operator} pooling does not support Dask arrays: the draw of one chunk "
                "depends on all others"
            )
        x = asarray("x", request.x)
        described = replace(request, x=_without_memory(x))
        if self.operator.windowed:  # raises errors before tasks run
            request = NUMPY.call(described).request
        else:
            NUMPY.checked_input(described)
        super().__init__(front, request, NUMPY.prepared(request, described.x))
        self.layout = self.ready.layout
        self._gradient_chunks: Chunks = x.chunks
        axes = dict(zip(self.layout.pooled, self.layout.window.axes, strict=True))
        if not self.operator.windowed:  # unpooling: an index may be anywhere in its plane
            x = x.rechunk(dict.fromkeys(axes, -1))
        self.array = x
        # By pooled axis: the windows of each chunk of the output, and those that read each chunk
        # of the input.
        self._segments = {a: segments(axis, x.chunks[a]) for a, axis in axes.items()}
        self._reading = {
            a: [segment_reading(axis, *chunk) for chunk in spans(x.chunks[a])]
            for a, axis in axes.items()
        }
        self._chunks: Chunks = tuple(
            tuple(s.out for s in self._segments[a]) if a in axes else c
            for a, c in enumerate(x.chunks)
        )
        # An operand that is cut into chunks is an argument of `map_chunks`, not of the request.
        self.local = replace(request, x=None, keepdims=True, operands=())
        self._operands: list[Any] = []
        if not self.operator.windowed:
            self._operands = [_indices(request.operands[0], x.shape).rechunk(x.chunks)]
        elif request.operands:
            self._parameter = np.array(request.operands[0])
            channel = self.layout.channel
            if self._parameter.ndim and channel >= 0:
                cut = da.from_array(self._parameter, chunks=(x.chunks[channel],))
                self._operands = [(cut, (channel,))]
            else:
                self.local = replace(self.local, operands=(self._parameter,))

    def shaped(self, y: Any) -> Any:
        if not self.operator.windowed:  # in about as many chunks as the input had
            chunks, sizes = self._gradient_chunks, self.array.shape
            y = y.rechunk({a: _scaled(chunks[a], sizes[a], y.shape[a]) for a in self._segments})
        return super().shaped(y)

    def _map(self, function: Any, chunks: Chunks, dtype: Any, *arrays: Any, **how: Any) -> Any:
        """Return the array that a function of `tasks` computes from arrays and operands."""
        token = f"{self.operator.name}-{function.__name__}"
        how |= {"token": token, "request": self.local}
        return map_chunks(function, chunks, dtype, *arrays, *self._operands, **how)

    def forward(self, residual: bool = False) -> list[Any]:
        """Return the output and, if requested, the residual or the indices."""
        more: tuple[Buffer, ...] = self.ready.residual if residual else ()
        if self.local.return_indices:
            more = (self.ready.per_output("int64"),)
        x = gather(self.array, self._segments, inputs_of)
        dtype = object if more else dtype_named(self.layout.out_dtype)
        how = {"segments": self._segments, "keep": residual and bool(more)}
        results = self._map(tasks.forward, self._chunks, dtype, x, **how)
        if not more:
            return [results]
        buffers = enumerate((self.ready.output, *more))
        return [self._element(results, k, buffer) for k, buffer in buffers]

    def _element(self, results: Any, k: int, buffer: Buffer) -> Any:
        """Return the array of one result of each task; bits of ties have one more axis."""
        chunks = (*self._chunks, *((size,) for size in buffer.shape[results.ndim :]))
        dtype, token = dtype_named(buffer.dtype), f"{self.operator.name}-{k}"
        return map_chunks(tasks.element, chunks, dtype, results, token=token, k=k)

    def gradient(self, gy: Any, x: Any, residual: Sequence[Any]) -> Any:
        kept = residual[: self.needed]
        cotangents = gy.rechunk(self._chunks)
        arrays = [gather(array, self._reading, outputs_of) for array in (cotangents, *kept)]
        if self.nonlinear:
            arrays.append(gather(self.array, self._reading, inputs_of))
        grid = self.array.chunks
        how = {"segments": self._reading, "grid": grid, "dtype_name": self.layout.dtype}
        gx = self._map(tasks.gradient, grid, self.array.dtype, *arrays, **how)
        return gx.rechunk(self._gradient_chunks)

    def parameter_gradient(self, gy: Any, x: Any, residual: Sequence[Any]) -> Any:
        layout, given = self.layout, self._parameter.shape
        wide = gy.rechunk(self._chunks).astype(layout.sum_dtype)
        slopes = da.map_blocks(tasks.times, wide, residual[-1], dtype=layout.sum_dtype)
        others = self.operator.operand.summed_axes(given, layout)
        total = da.reduction(slopes, tasks.summed, tasks.summed, axis=others, dtype="float64")
        return total.astype(layout.sum_dtype).reshape(given)


def _indices(value: Any, shape: tuple[int, ...]) -> Any:
    """Return the indices of unpooling as a Dask array, checked."""
    if not isinstance(value, da.Array):
        value = NUMPY.asarray("indices", value)
        # Dask cannot cut an array of objects into chunks.
        arguments.check_indices(value.dtype, value.shape, shape)
        value = da.asarray(value)
    indices = asarray("indices", value)
    arguments.check_indices(indices.dtype, indices.shape, shape)
    return indices


def _scaled(chunks: Sequence[int], size: int, out: int) -> tuple[int, ...]:
    """Return the same number of chunks for an axis of another size, if it is large enough."""
    bounds = sorted({end * out // size for end in np.cumsum(chunks)} - {0})
    return tuple(int(n) for n in np.diff([0, *bounds]))


FRONT_END = DaskFrontEnd()
