"""Builds the graphs of the public functions for Dask arrays.

A chunk of the output is pooled from the part of the input that its windows read: the chunks there
and, where windows cross a border, strips of the next ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection

from poolgrad import numpy as front
from poolgrad.buffers import dtype_named
from poolgrad.composition import Functions
from poolgrad.dask import tasks, unpool
from poolgrad.dask.graph import (
    Graph,
    Parts,
    Position,
    asarray,
    cotangent,
    span,
    without_empty_chunks,
)
from poolgrad.dask.segments import segment_reading, segments
from poolgrad.frontend import FrontEnd
from poolgrad.interface import Buffer, Operator, Request, indexed, per_input, unpacked
from poolgrad.operators import OPERATORS
from poolgrad.windows import Layout


def perform(request: Request) -> Any:
    """Return the lazy result of the call of a public function."""
    if request.out is not None:
        raise TypeError("out is accepted only if x is a NumPy array, got a Dask array x")
    if _is_unpooling(request):
        return unpool.Unpooling(request).forward()[0]
    pooling = _Pooling(request)
    if not request.return_indices:
        return pooling.shaped(pooling.forward()[0])
    pooling = _Pooling(replace(request, options=indexed(request.options)))
    y, indices = pooling.forward(indices=True)
    return pooling.shaped(y), pooling.shaped(indices)


def vjp(request: Request) -> tuple[Any, Any]:
    """Return the lazy output and its pullback."""
    if _is_unpooling(request):
        unpooling = unpool.Unpooling(request)
        y, *residual = unpooling.forward(sources=True)
        return y, Pullback(unpooling, residual)
    pooling = _Pooling(replace(request, options=unpacked(request.options)))
    y, *residual = pooling.forward(residual=True)
    return pooling.shaped(y), Pullback(pooling, residual)


def operand(name: str, value: Any) -> Any:
    """Return an array of a composed operator, checked."""
    if not is_dask_collection(value):
        value = front.FRONT_END.asarray(name, value)
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
        da.exp, da.where, da.max, lambda x, dtype: x.astype(dtype_named(dtype)), lambda x: x
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


def _is_unpooling(request: Request) -> bool:
    """Whether the call is max unpooling."""
    return not OPERATORS[request.operator].windowed


class Pullback:
    """The pullback of a pooling of Dask arrays; gradients are lazy.

    Returned by `poolgrad.vjp`. The residual is computed together with the output, or again for a
    gradient that is computed alone.

    Parameters
    ----------
    call : _Pooling or Unpooling
        The call of the forward pass.
    residual : sequence of dask.array.Array
        The arrays that the forward pass stores.
    """

    def __init__(self, call: _Pooling | unpool.Unpooling, residual: Sequence[Any]) -> None:
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
    """A validated pooling of a Dask array.

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
        self.x, self.request = x, replace(request, x=None, keepdims=True)
        self._squeezed = not request.keepdims
        whole = front.FRONT_END.asarray("x", np.broadcast_to(np.zeros((), x.dtype), x.shape))
        self._ready = front.FRONT_END.prepared(request, whole)
        self.layout: Layout = self._ready.layout
        if request.operands:  # raises errors here, not while the graph runs
            front.FRONT_END.call(replace(request, x=whole))
            operands = tuple(map(np.array, request.operands))  # copies: tasks read them later
            self.request = replace(self.request, operands=operands)
        self._axes = dict(zip(self.layout.pooled, self.layout.window.axes, strict=True))
        along = {a: segments(axis, x.chunks[a]) for a, axis in self._axes.items()}
        self._segments = along
        self._chunks = tuple(
            tuple(s.out for s in along[a]) if a in along else c for a, c in enumerate(x.chunks)
        )

    def shaped(self, y: Any) -> Any:
        """Remove the pooled axes from the result, unless the request keeps them."""
        return y.squeeze(self.layout.pooled) if self._squeezed else y

    def _cotangent(self, gy: Any) -> Any:
        """Return the cotangent in the chunks of the output."""
        layout = self.layout
        shape = tuple(
            s for a, s in enumerate(layout.out_shape) if not (self._squeezed and a in self._axes)
        )
        gy = cotangent(gy, shape, layout.out_dtype)
        return gy.reshape(layout.out_shape).rechunk(self._chunks)

    def _graph(self, name: str, *what: Any) -> Graph:
        request = self.request
        whole = (
            self.x.name,
            request.spec,
            request.options,
            request.operands,
            request.channels_last,
        )
        return Graph(f"{request.operator}-{name}", *whole, *what)

    def _at(self, position: Position) -> Request:
        """Return the request of a chunk; a learned parameter is cut like the channels."""
        channel = self.layout.channel
        if not self.request.operands or channel < 0:
            return self.request
        sizes, at = self.x.chunks[channel], position[channel]
        begin = sum(sizes[:at])
        part = self.operator.operand.part(self.request.operands[0], begin, begin + sizes[at])
        return replace(self.request, operands=(part,))

    def forward(self, residual: bool = False, indices: bool = False) -> list[Any]:
        """Return the output and, if requested, the residual or the indices."""
        layout = self.layout
        if residual and self.x.dtype.kind not in "fV":
            raise TypeError(f"x must be of a floating dtype to have a gradient, got {self.x.dtype}")
        buffers = [Buffer(layout.out_shape, (), layout.out_dtype, layout.in_shape)]
        if residual:
            buffers += self._ready.residual
        elif indices:
            buffers.append(Buffer(layout.out_shape, (), "int64", layout.in_shape))
        graph = self._graph("forward", residual, indices)
        for position in np.ndindex(*map(len, self._chunks)):
            here = [self._segments[a][position[a]] for a in self._axes]
            ranges = dict(zip(self._axes, (s.inputs for s in here), strict=True))
            parts = graph.gather(self.x, position, ranges)
            keep = "residual" if residual else "indices" if indices else ""
            sizes = tuple(axis.size for axis in self._axes.values())
            how = (self._at(position), here, sizes, keep)
            graph.add(position, tasks.forward, how, [parts])
        return graph.arrays(buffers, self._chunks, [self.x])

    def parameters(self, gy: Any, residual: Sequence[Any]) -> dict[str, Any]:
        """Return the gradient of a learned parameter, by its name."""
        operator, layout = self.operator, self.layout
        if not operator.learned:
            return {}
        given = np.shape(self.request.operands[0])
        wide = self._cotangent(gy).astype(layout.sum_dtype)
        slopes = da.map_blocks(tasks.times, wide, residual[-1], dtype=layout.sum_dtype)
        others = operator.operand.summed_axes(given, layout)
        total = da.reduction(slopes, tasks.summed, tasks.summed, axis=others, dtype="float64")
        return {operator.operand.name: total.astype(layout.sum_dtype).reshape(given)}

    def gradient(self, gy: Any, residual: Sequence[Any]) -> Any:
        """Return the gradient of the input."""
        gy = self._cotangent(gy)
        graph = self._graph("gradient", gy.name, [r.name for r in residual])
        kept = list(residual[:-1] if self.operator.learned else residual)
        for position in np.ndindex(*map(len, self.x.chunks)):
            chunk = {a: span(self.x.chunks[a], position[a]) for a in self._axes}
            here = [segment_reading(axis, *chunk[a]) for a, axis in self._axes.items()]
            shape = tuple(c[p] for c, p in zip(self.x.chunks, position, strict=True))
            parts: list[Parts] = []
            if None not in here:
                outs = {a: s.outputs for a, s in zip(self._axes, here, strict=True) if s}
                parts = [graph.gather(array, position, outs) for array in (gy, *kept)]
                if self.operator.nonlinear:
                    inputs = {a: s.inputs for a, s in zip(self._axes, here, strict=True) if s}
                    parts.append(graph.gather(self.x, position, inputs))
            how = (self._at(position), here, chunk, shape, self.layout.dtype)
            graph.add(position, tasks.gradient, how, parts)
        buffer = per_input(self.layout)._replace(order=())
        sources = [gy, *kept, *([self.x] if self.operator.nonlinear else [])]
        return graph.arrays([buffer], self.x.chunks, sources)[0]


class DaskFrontEnd(FrontEnd):
    name = "dask"
    noun = "a Dask array"

    def asarray(self, name, value):
        return operand(name, value)

    def dtype_name(self, x):
        return dtype_name(x)

    def functions(self, x):
        return functions(x)

    def perform(self, request):
        from poolgrad import composition

        if OPERATORS[request.operator].composed:
            return composition.perform(request, self)
        return perform(request)

    def vjp(self, request):
        from poolgrad import composition

        if OPERATORS[request.operator].composed:
            return composition.vjp(request, self)
        return vjp(request)

    def prepared(self, request, x):
        from poolgrad.operators import prepare

        return prepare(
            request.operator,
            request.spec,
            request.options,
            x.shape,
            request.channels_last,
            -1,
            x.dtype.name,
        )

    def copied(self, x):
        return x

    def cotangent(self, gy, dtype, shape, full):
        return cotangent_of(gy, dtype, shape)


FRONT_END = DaskFrontEnd()
