"""The front end for Dask arrays: pools chunk by chunk, and returns lazy arrays.

A chunk of the output is pooled from the part of the input that its windows read: the chunks there
and, where windows cross a border, strips of the next ones. Unpooling reads whole planes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection

from poolgrad import arguments
from poolgrad import numpy as front
from poolgrad.composition import Functions
from poolgrad.core import Layout
from poolgrad.dask import tasks
from poolgrad.dask.arrays import (
    Chunks,
    Range,
    asarray,
    cotangent,
    gather,
    map_chunks,
    spans,
    without_empty_chunks,
)
from poolgrad.dask.segments import Segment, segment_reading, segments, whole
from poolgrad.interface import Buffer, Operator, Request, indexed, unpacked
from poolgrad.operators import OPERATORS


def perform(request: Request) -> Any:
    """Return the lazy result of the call of a public function."""
    if request.out is not None:
        raise TypeError("out is accepted only if x is a NumPy array, got a Dask array x")
    if request.return_indices:
        request = replace(request, options=indexed(request.options))
    pooling = _Pooling(request)
    y, *indices = map(pooling.shaped, pooling.forward())
    return (y, *indices) if indices else y


def vjp(request: Request) -> tuple[Any, Any]:
    """Return the lazy output and its pullback."""
    pooling = _Pooling(replace(request, options=unpacked(request.options)))
    y, *residual = pooling.forward(residual=True)
    return pooling.shaped(y), Pullback(pooling, residual)


def operand(name: str, value: Any) -> Any:
    """Return an array of a composed operator, checked."""
    if not is_dask_collection(value):
        value = front.operand(name, value)
        if value.dtype.hasobject:  # which Dask cannot cut into chunks
            raise TypeError(f"{name} must be of a floating dtype, got {value.dtype}")
        value = da.asarray(value)
    return without_empty_chunks(asarray(name, value))


def dtype_name(x: Any) -> str:
    """Return the name of the dtype of an array."""
    return str(x.dtype.name)


def functions(x: Any) -> Functions:
    """Return the functions that a composed operator may call."""
    return Functions(
        da.exp, da.where, da.max, lambda x, dtype: x.astype(front.dtype_named(dtype)), lambda x: x
    )


def namespace(x: Any) -> Any:
    """Return the array-API namespace of Dask."""
    from array_api_compat import array_namespace

    return array_namespace(x)


def pullback_of(request: Request) -> tuple[Any, Pullback]:
    """Return the output and the pullback of a part of a composed operator."""
    return vjp(request)


def cotangent_of(gy: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Check a cotangent and convert it to the dtype of the output."""
    return without_empty_chunks(cotangent(gy, shape, dtype).reshape(shape))


class Pullback:
    """The pullback of a pooling of Dask arrays; gradients are lazy.

    Returned by `poolgrad.vjp`. The residual is computed together with the output, or again for a
    gradient that is computed alone.

    Parameters
    ----------
    call : _Pooling
        The call of the forward pass.
    residual : sequence of dask.array.Array
        The arrays that the forward pass stores.
    """

    def __init__(self, call: _Pooling, residual: Sequence[Any]) -> None:
        self._call, self._residual = call, residual

    def __call__(self, gy: Any) -> Any:
        """Return the gradient of the input, in the chunks of the input.

        Parameters
        ----------
        gy : array, shape of the output
            The gradient of the output (the cotangent), a Dask or NumPy array of any floating dtype;
            it is converted to the dtype of the output. If the output has one element, a number is
            accepted.

        Returns
        -------
        dask.array.Array, shape and dtype of the input

        Raises
        ------
        TypeError, ValueError
            If `gy` does not have the shape of the output or a floating dtype.
        """
        return self._call.gradient(gy, self._residual)

    def parameters(self, gy: Any) -> dict[str, Any]:
        """Return the gradients of learned parameters; see `poolgrad.Pullback.parameters`."""
        return self._call.parameters(gy, self._residual)


class _Pooling:
    """A validated call of an operator with a Dask array.

    Parameters
    ----------
    request : Request
        The call of a public function.
    """

    def __init__(self, request: Request) -> None:
        self.operator: Operator = OPERATORS[request.operator]
        if not self.operator.operand.is_cut:
            raise TypeError(
                f"{request.operator} pooling does not support Dask arrays: the draw of one chunk "
                "depends on all others"
            )
        x = asarray("x", request.x)
        described = front.asarray(np.broadcast_to(np.zeros((), x.dtype), x.shape), self.operator)
        self._ready = front.prepared(request, described)
        self.layout: Layout = self._ready.layout
        self._squeezed = not request.keepdims
        self._gradient_chunks: Chunks = x.chunks
        axes = dict(zip(self.layout.pooled, self.layout.window.axes, strict=True))
        # By pooled axis: the windows of each chunk of the output, and those that read each chunk
        # of the input.
        self._segments: Mapping[int, Sequence[Segment]]
        self._reading: Mapping[int, Sequence[Segment | None]]
        if self.operator.windowed:
            self._segments = {a: segments(axis, x.chunks[a]) for a, axis in axes.items()}
            self._reading = {
                a: [segment_reading(axis, *chunk) for chunk in spans(x.chunks[a])]
                for a, axis in axes.items()
            }
        else:  # unpooling: an index may be anywhere in its plane
            x = x.rechunk(dict.fromkeys(axes, -1))
            self._reading = self._segments = {a: [whole(axis)] for a, axis in axes.items()}
        self.x = x
        self._chunks: Chunks = tuple(
            tuple(s.out for s in self._segments[a]) if a in axes else c
            for a, c in enumerate(x.chunks)
        )
        # An operand that is cut into chunks is an argument of `map_chunks`, not of the request.
        self.request = replace(request, x=None, keepdims=True, operands=())
        self._operands: list[Any] = []
        if not self.operator.windowed:
            self._operands = [_indices(request.operands[0], x.shape).rechunk(x.chunks)]
        elif request.operands:
            front.operand_of(request, self._ready, described)  # raises errors before tasks run
            self._parameter = np.array(request.operands[0])  # a copy: tasks read it later
            channel = self.layout.channel
            if self._parameter.ndim and channel >= 0:
                cut = da.from_array(self._parameter, chunks=(x.chunks[channel],))
                self._operands = [(cut, (channel,))]
            else:
                self.request = replace(self.request, operands=(self._parameter,))

    def shaped(self, y: Any) -> Any:
        """Remove the pooled axes from the result, unless the request keeps them."""
        if not self.operator.windowed:  # in about as many chunks as the input had
            chunks, sizes = self._gradient_chunks, self.x.shape
            y = y.rechunk({a: _scaled(chunks[a], sizes[a], y.shape[a]) for a in self._segments})
        return y.squeeze(self.layout.pooled) if self._squeezed else y

    def _cotangent(self, gy: Any) -> Any:
        """Return the cotangent in the chunks of the output."""
        layout, gone = self.layout, self.layout.pooled if self._squeezed else ()
        shape = tuple(s for a, s in enumerate(layout.out_shape) if a not in gone)
        gy = cotangent(gy, shape, layout.out_dtype)
        return gy.reshape(layout.out_shape).rechunk(self._chunks)

    def _map(self, function: Any, chunks: Chunks, dtype: Any, *arrays: Any, **how: Any) -> Any:
        """Return the array that a function of `tasks` computes from arrays and operands."""
        token = f"{self.operator.name}-{function.__name__}"
        how |= {"token": token, "request": self.request}
        return map_chunks(function, chunks, dtype, *arrays, *self._operands, **how)

    def forward(self, residual: bool = False) -> list[Any]:
        """Return the output and, if requested, the residual or the indices."""
        if residual and self.x.dtype.kind not in "fV":
            raise TypeError(f"x must be of a floating dtype to have a gradient, got {self.x.dtype}")
        more: tuple[Buffer, ...] = self._ready.residual if residual else ()
        if self.request.return_indices:
            more = (self._ready.per_output("int64"),)
        x = gather(self.x, _ranges("inputs", self._segments))
        task = tasks.forward_with_residual if residual and more else tasks.forward
        dtype = object if more else front.dtype_named(self.layout.out_dtype)
        results = self._map(task, self._chunks, dtype, x, segments=self._segments)
        if not more:
            return [results]
        buffers = enumerate((self._ready.output, *more))
        return [self._element(results, k, buffer) for k, buffer in buffers]

    def _element(self, results: Any, k: int, buffer: Buffer) -> Any:
        """Return the array of one result of each task; bits of ties have one more axis."""
        chunks = (*self._chunks, *((size,) for size in buffer.shape[results.ndim :]))
        dtype, token = front.dtype_named(buffer.dtype), f"{self.operator.name}-{k}"
        return map_chunks(tasks.element, chunks, dtype, results, token=token, k=k)

    def parameters(self, gy: Any, residual: Sequence[Any]) -> dict[str, Any]:
        """Return the gradient of a learned parameter, by its name."""
        operator, layout = self.operator, self.layout
        if not operator.learned:
            return {}
        given = self._parameter.shape
        wide = self._cotangent(gy).astype(layout.sum_dtype)
        slopes = da.map_blocks(tasks.times, wide, residual[-1], dtype=layout.sum_dtype)
        others = operator.operand.summed_axes(given, layout)
        total = da.reduction(slopes, tasks.summed, tasks.summed, axis=others, dtype="float64")
        return {operator.operand.name: total.astype(layout.sum_dtype).reshape(given)}

    def gradient(self, gy: Any, residual: Sequence[Any]) -> Any:
        """Return the gradient of the input."""
        kept = residual[:-1] if self.operator.learned else residual
        windows = _ranges("outputs", self._reading)
        arrays = [gather(array, windows) for array in (self._cotangent(gy), *kept)]
        if self.operator.nonlinear:
            arrays.append(gather(self.x, _ranges("inputs", self._reading)))
        how = {"segments": self._reading, "grid": self.x.chunks, "dtype_name": self.layout.dtype}
        gx = self._map(tasks.gradient, self.x.chunks, self.x.dtype, *arrays, **how)
        return gx.rechunk(self._gradient_chunks)


def _ranges(name: str, segments: Mapping[int, Sequence[Segment | None]]) -> dict[int, list[Range]]:
    """Return the outputs or inputs of segments; any range where there is none."""
    return {a: [getattr(s, name, (0, 1)) for s in along] for a, along in segments.items()}


def _indices(value: Any, shape: tuple[int, ...]) -> Any:
    """Return the indices of unpooling as a Dask array, checked."""
    if not isinstance(value, da.Array):
        value = front.asarray(value, name="indices")
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
