"""The front end for Dask arrays: lazy, and as large as all memory of a cluster and more.

An output's chunk is pooled from the part of the input that its windows look at: the chunks there
and, where windows cross a border, strips of the next ones. Each is pooled as a NumPy array.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

try:
    import dask.array as da
    from dask._task_spec import Task, TaskRef
    from dask.base import tokenize
    from dask.highlevelgraph import HighLevelGraph
except ImportError as error:
    raise ImportError('poolgrad.dask needs dask: pip install "poolgrad[dask]"') from error

from poolgrad import numpy as front
from poolgrad.contract import Buffer, Operator, Request, indexed, unpacked
from poolgrad.core import Layout, get_num_threads, lay_out
from poolgrad.operators import OPERATORS
from poolgrad.segments import Cell, Segment, segments, taking

Array = NDArray[Any]
Position = tuple[int, ...]


def asarray(x: Any) -> Any:
    """The array, if its chunks can be pooled.

    Raises
    ------
    ValueError
        If it does not know how large they are.
    """
    if any(math.isnan(size) for size in x.shape):
        raise ValueError(
            f"x must have chunks of known sizes, got shape {x.shape}; call x.compute_chunk_sizes() "
            "first"
        )
    return x


def perform(request: Request) -> Any:
    """Do what a public function describes, when it is computed."""
    if request.out is not None:
        raise TypeError("out is for NumPy arrays; those of Dask are made when they are computed")
    if request.return_indices:
        request = replace(request, options=indexed(request.options))
    asked = _Asked(request)
    if not request.return_indices:
        return asked.shaped(asked.forward()[0])
    y, indices = asked.forward(indices=True)
    return asked.shaped(y), asked.shaped(indices)


def vjp(request: Request) -> tuple[Any, Pullback]:
    """Pool, and get the way back; both lazy."""
    asked = _Asked(replace(request, options=unpacked(request.options)))
    y, *residual = asked.forward(residual=True)
    return asked.shaped(y), Pullback(asked, residual)


class Pullback:
    """The way back through one pooling of Dask arrays: gradients are as lazy as their arrays.

    Made by `poolgrad.vjp`. What the forward pass keeps is computed with it, and again for a
    gradient that is computed by itself.

    Parameters
    ----------
    asked, residual
        Of the forward pass.
    """

    def __init__(self, asked: _Asked, residual: Sequence[Any]) -> None:
        self._asked, self._residual = asked, residual

    def __call__(self, gy: Any) -> Any:
        """The gradient of the input, in its chunks.

        Parameters
        ----------
        gy : array, shape and dtype of the output
            The gradient of the output (the cotangent), of Dask or NumPy.

        Returns
        -------
        dask.array.Array, shape and dtype of the input

        Raises
        ------
        TypeError, ValueError
            If `gy` has another dtype or shape than the output.
        """
        return self._asked.pull(self._asked.cotangent(gy), self._residual)

    def parameters(self, gy: Any) -> dict[str, Any]:
        """The gradient of what the operator has to learn; see `poolgrad.Pullback.parameters`."""
        operator, layout = self._asked.operator, self._asked.layout
        if not operator.learned or operator.argument is None:
            return {}
        given = np.shape(self._asked.request.arguments[0])
        slopes = self._asked.cotangent(gy).astype(layout.sum_dtype) * self._residual[-1]
        others = tuple(a for a in range(slopes.ndim) if not (given and a == layout.channel))
        total = slopes.sum(others, dtype="float64").astype(layout.sum_dtype)
        return {operator.argument.name: total.reshape(given)}


class _Asked:
    """One pooling of a Dask array, checked.

    Parameters
    ----------
    request : Request
        What a public function asks.
    """

    def __init__(self, request: Request) -> None:
        self.operator: Operator = OPERATORS[request.operator]
        kind = self.operator.argument.kind if self.operator.argument else None
        if kind in ("seed", "samples", "indices"):
            raise TypeError(
                f"{request.operator} pooling is not for Dask arrays: "
                "its chunks cannot be pooled one without the other"
            )
        x = asarray(request.x)
        if not self.operator.accepts(x.dtype.name):
            raise self.operator.refuse_dtype(x.dtype)
        self.x, self.request = x, replace(request, x=None, keepdims=True)
        self._squeezed = not request.keepdims
        dtypes = x.dtype.name, self.operator.result(x.dtype.name)
        self.layout: Layout = lay_out(request.rule, x.shape, request.channels_last, -1, *dtypes)
        self.operator.check(self.layout.window, *request.options)
        if kind == "learned":  # so that mistakes are found here, not where it is computed
            whole = np.broadcast_to(np.zeros((), x.dtype), x.shape)
            front.argument_of(request, front.prepared(request, whole), whole)
        self._axes = dict(zip(self.layout.pooled, self.layout.window.axes, strict=True))
        along = {a: segments(axis, x.chunks[a]) for a, axis in self._axes.items()}
        self._segments = along
        self._chunks = tuple(
            tuple(s.out for s in along[a]) if a in along else c for a, c in enumerate(x.chunks)
        )

    def shaped(self, y: Any) -> Any:
        """The result without its pooled axes, unless they are to be kept."""
        return y.squeeze(self.layout.pooled) if self._squeezed else y

    def cotangent(self, gy: Any) -> Any:
        """The gradient of the output, in the chunks of the output."""
        layout = self.layout
        shape = tuple(
            s for a, s in enumerate(layout.out_shape) if not (self._squeezed and a in self._axes)
        )
        gy = da.asarray(gy)
        if gy.shape != shape:
            raise ValueError(f"gy must have the shape of the output, {shape}, got {gy.shape}")
        if gy.dtype.name != layout.out_dtype:
            raise TypeError(
                f"gy must have the dtype of the output, {layout.out_dtype}, got {gy.dtype}"
            )
        return gy.reshape(layout.out_shape).rechunk(self._chunks)

    def _at(self, position: Position) -> Request:
        """The request of the chunk there: a learned argument is cut as the channels are."""
        (given,) = self.request.arguments or (None,)
        if np.ndim(given) == 0:
            return self.request
        channel = self.layout.channel
        sizes, at = self.x.chunks[channel], position[channel]
        begin = sum(sizes[:at])
        part = np.asarray(given)[begin : begin + sizes[at]]
        return replace(self.request, arguments=(part,))

    def forward(self, residual: bool = False, indices: bool = False) -> list[Any]:
        """The output, and what else is asked for."""
        layout, operator = self.layout, self.operator
        if residual and self.x.dtype.kind not in "fV":
            raise TypeError(f"x must be of a floating dtype to have a gradient, got {self.x.dtype}")
        buffers = [Buffer(layout.out_shape, (), layout.out_dtype)]
        if residual:
            buffers += operator.residual(layout, *self.request.options)
        elif indices:
            buffers.append(Buffer(layout.out_shape, (), "int64"))
        graph = _Graph(self, "forward", residual, indices)
        for position in np.ndindex(*map(len, self._chunks)):
            here = [self._segments[a][position[a]] for a in self._axes]
            ranges = dict(zip(self._axes, (s.inputs for s in here), strict=True))
            parts = graph.gather(self.x, position, ranges)
            keep = "residual" if residual else "indices" if indices else ""
            sizes = tuple(axis.size for axis in self._axes.values())
            graph.add(position, _forward, (self._at(position), here, sizes, keep), [parts])
        return graph.arrays(buffers, self._chunks, [self.x])

    def pull(self, gy: Any, residual: Sequence[Any]) -> Any:
        """The gradient of the input."""
        graph = _Graph(self, "pull", gy.name, [r.name for r in residual])
        kept = list(residual[:-1] if self.operator.learned else residual)
        for position in np.ndindex(*map(len, self.x.chunks)):
            chunk = {a: _range(self.x.chunks[a], position[a]) for a in self._axes}
            here = [taking(axis, *chunk[a]) for a, axis in self._axes.items()]
            shape = tuple(c[p] for c, p in zip(self.x.chunks, position, strict=True))
            parts: list[_Parts] = []
            if None not in here:
                outs = {a: s.outputs for a, s in zip(self._axes, here, strict=True) if s}
                parts = [graph.gather(array, position, outs) for array in (gy, *kept)]
                if self.operator.curved:
                    inputs = {a: s.inputs for a, s in zip(self._axes, here, strict=True) if s}
                    parts.append(graph.gather(self.x, position, inputs))
            how = (self._at(position), here, chunk, shape, self.x.dtype.name)
            graph.add(position, _pull, how, parts)
        buffer = Buffer(self.layout.in_shape, (), self.layout.dtype)
        sources = [gy, *kept, *([self.x] if self.operator.curved else [])]
        return graph.arrays([buffer], self.x.chunks, sources)[0]


class _Parts(NamedTuple):
    """Where an array comes from: pieces in row-major order, and how many along each axis."""

    pieces: list[TaskRef]
    grid: Position


def _range(chunks: Sequence[int], at: int) -> tuple[int, int]:
    begin = sum(chunks[:at])
    return begin, begin + chunks[at]


class _Graph:
    """The tasks of one pooling."""

    def __init__(self, asked: _Asked, *what: Any) -> None:
        self._name = f"{asked.request.operator}-{what[0]}-" + tokenize(
            asked.x.name, asked.request.rule, asked.request.options, asked.request.arguments,
            asked.request.channels_last, what,
        )  # fmt: skip
        self._tasks: dict[Any, Task] = {}

    def gather(self, array: Any, position: Position, ranges: dict[int, tuple[int, int]]) -> _Parts:
        """The part of an array in these ranges of its pooled axes, beside a chunk's others."""
        along: list[list[tuple[int, slice]]] = []
        for a, chunks in enumerate(array.chunks):
            if a not in ranges:
                at = position[a] if a < len(position) else 0
                along.append([(at, slice(None))])
                continue
            (start, stop), begin, found = ranges[a], 0, []
            for at, size in enumerate(chunks):
                lo, hi = max(start - begin, 0), min(stop - begin, size)
                if lo < hi:
                    found.append((at, slice(None) if hi - lo == size else slice(lo, hi)))
                begin += size
            along.append(found)
        pieces = []
        for piece in itertools.product(*along):
            key = (array.name, *(at for at, _ in piece))
            cuts = tuple(cut for _, cut in piece)
            if any(cut != slice(None) for cut in cuts):
                bounds = (b for cut in cuts for b in (cut.start or 0, cut.stop or 0))
                part = (f"{self._name}-part-{array.name}", *key[1:], *bounds)
                self._tasks[part] = Task(part, operator.getitem, TaskRef(key), cuts)
                key = part
            pieces.append(TaskRef(key))
        return _Parts(pieces, tuple(map(len, along)))

    def add(self, position: Position, run: Any, how: Any, parts: Sequence[_Parts]) -> None:
        """The task that makes what lies there."""
        key = (self._name, *position)
        pieces = [piece for part in parts for piece in part.pieces]
        grids = [part.grid for part in parts]
        self._tasks[key] = Task(key, _run, run, how, grids, *pieces)

    def arrays(self, buffers: Sequence[Buffer], chunks: Any, sources: Sequence[Any]) -> list[Any]:
        """The arrays that the tasks make, each one or, if there are several, a tuple of them."""
        graph = HighLevelGraph.from_collections(self._name, self._tasks, dependencies=sources)
        names = [self._name]
        if len(buffers) > 1:
            layers, needs = dict(graph.layers), dict(graph.dependencies)
            names = [f"{self._name}-{k}" for k in range(len(buffers))]
            for k, name in enumerate(names):
                layers[name] = {
                    (name, *at): Task((name, *at), operator.getitem, TaskRef((self._name, *at)), k)
                    for at in np.ndindex(*map(len, chunks))
                }
                needs[name] = {self._name}
                if len(buffers[k].shape) > len(chunks):  # bits of ties: one axis more, in one piece
                    layers[name] = {(*key, 0): task for key, task in layers[name].items()}
            graph = HighLevelGraph(layers, needs)
        made = []
        for name, (shape, _, dtype) in zip(names, buffers, strict=True):
            more = tuple((size,) for size in shape[len(chunks) :])
            meta = np.empty((0,) * len(shape), front.dtype_named(dtype))
            made.append(da.Array(graph, name, (*chunks, *more), meta=meta))
        return made


# What the tasks do, with NumPy arrays


def _run(run: Any, how: Any, grids: Sequence[Position], *pieces: Array) -> Any:
    arrays, at = [], 0
    for grid in grids:
        count = math.prod(grid)
        arrays.append(_joined(pieces[at : at + count], grid))
        at += count
    return run(*how, *arrays)


def _joined(pieces: Sequence[Array], grid: Position) -> Array:
    for axis in reversed(range(len(grid))):
        n = grid[axis]
        if n > 1:
            starts = range(0, len(pieces), n)
            pieces = [np.concatenate(pieces[i : i + n], axis) for i in starts]
    return pieces[0]


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


def _forward(
    request: Request, here: Sequence[Segment], sizes: Position, keep: str, x: Array
) -> Any:
    """The output of some windows and, to `keep`, the "residual" or the "indices" of winners."""
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
        parts.append((y, *residual))
    grid = [1] * x.ndim
    for axis, segment in zip(pooled, here, strict=True):
        grid[axis] = len(segment.cells)
    made = [_joined(column, tuple(grid)) for column in zip(*parts, strict=True)]
    return tuple(made) if keep and len(made) > 1 else made[0]


def _global(
    indices: Array, sizes: Sequence[int], begins: Sequence[int], all_sizes: Position
) -> Array:
    """Flat positions in a part of a plane as flat positions in the plane."""
    along = np.unravel_index(np.maximum(indices, 0), sizes)
    moved = tuple(i + b for i, b in zip(along, begins, strict=True))
    return np.where(indices < 0, -1, np.ravel_multi_index(moved, all_sizes))


def _pull(
    request: Request,
    here: Sequence[Segment | None],
    chunk: dict[int, tuple[int, int]],
    shape: Position,
    dtype: str,
    *arrays: Array,
) -> Array:
    """The gradient of one chunk, from those of the windows that look at it."""
    gx = np.zeros(shape, front.dtype_named(dtype))
    segments = [s for s in here if s is not None]
    if len(segments) < len(here):
        return gx
    operator, pooled = OPERATORS[request.operator], tuple(chunk)
    gy, *kept = arrays
    x = kept.pop() if operator.curved else None
    for cells in _cells(segments):
        reach = [
            (s.inputs[0] + c.inputs[0], s.inputs[0] + c.inputs[1])
            for s, c in zip(segments, cells, strict=True)
        ]
        outs = [c.outputs for c in cells]
        size = list(shape)
        for axis, (start, stop) in zip(pooled, reach, strict=True):
            size[axis] = stop - start
        like = np.empty(size, gx.dtype)
        local = replace(request, x=like, rule=tuple(c.rule for c in cells))
        ready = front.prepared(local, like)
        part = front.allocate(Buffer(ready.plan.in_shape, ready.plan.order, ready.plan.dtype))
        residual = tuple(
            front.handed(_laid_out(_cut(r, pooled, outs), b.order))
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
        place = [
            (lo - a, hi - a) for (lo, hi), (a, _) in zip(common, chunk.values(), strict=True)
        ]
        target = _cut(gx, pooled, place)
        target += _cut(part, pooled, inside)
    return gx


def _laid_out(array: Array, order: Position) -> Array:
    """The same array lying as the kernels read it."""
    back = [order.index(a) for a in range(len(order))]
    return np.ascontiguousarray(array.transpose(order)).transpose(back)
