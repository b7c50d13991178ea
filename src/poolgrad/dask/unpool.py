"""Max unpooling of Dask arrays, chunk by chunk.

An index may be anywhere in its plane, so each chunk of the input distributes its values over the
chunks of the output. Only values are transferred, not chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import getitem
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from poolgrad import arguments
from poolgrad import numpy as front
from poolgrad.buffers import dtype_named
from poolgrad.dask._compat import Task, TaskRef
from poolgrad.dask.graph import Position, asarray, cotangent, picked
from poolgrad.interface import Request
from poolgrad.operators import prepare

Array = NDArray[Any]
Chunks = tuple[tuple[int, ...], ...]
_Part = tuple[Array, Array, Array, Array]  # planes, positions, values, and their sources


class Unpooling:
    """A validated unpooling of a Dask array.

    Parameters
    ----------
    request : Request
        The call of a public function.

    """

    def __init__(self, request: Request) -> None:
        x, last = asarray("x", request.x), request.channels_last
        name, spec, options = request.operator, request.spec, request.options
        layout = prepare(name, spec, options, x.shape, last, -1, x.dtype.name).layout
        indices = request.operands[0]
        if not isinstance(indices, da.Array):
            indices = front.FRONT_END.asarray("indices", indices)
            # Dask cannot cut an array of objects into chunks.
            arguments.check_indices(indices.dtype, indices.shape, x.shape)
            indices = da.asarray(indices)
        indices = asarray("indices", indices)
        arguments.check_indices(indices.dtype, indices.shape, x.shape)
        self._layout, self._x, self._indices = layout, x, indices.rechunk(x.chunks)
        outs = dict(zip(layout.pooled, layout.window.axes, strict=True))
        self._chunks = tuple(
            _scaled(c, outs[a].size, outs[a].out) if a in outs else c
            for a, c in enumerate(x.chunks)
        )

    def forward(self, sources: bool = False) -> list[Any]:
        """Return the output and, with `sources`, the flat position of the source of each output."""
        how = self._chunks, self._layout.pooled, 0, sources
        return _scatter(self._x, self._indices, *how)

    def parameters(self, gy: Any, residual: Sequence[Any]) -> dict[str, Any]:
        """Return an empty dict: unpooling has no learned parameter."""
        return {}

    def gradient(self, gy: Any, residual: Sequence[Any]) -> Any:
        """Return the gradient of the input: each value of `gy` goes to the source of the output."""
        layout, (sources,) = self._layout, residual
        given = cotangent(gy, layout.out_shape, layout.out_dtype).rechunk(self._chunks)
        return _scatter(given, sources, self._x.chunks, layout.pooled, -1, False)[0]


def _scaled(chunks: Sequence[int], size: int, out: int) -> tuple[int, ...]:
    """Return the same number of chunks for an axis of another size, if it is large enough."""
    bounds = sorted({end * out // size for end in np.cumsum(chunks)} - {0})
    return tuple(int(n) for n in np.diff([0, *bounds]))


def _scatter(
    values: Any, indices: Any, chunks: Chunks, pooled: tuple[int, ...], least: int, sources: bool
) -> list[Any]:
    """Return the values at their indices, among zeros; with `sources` also their sources, or -1.

    The last of several values with one index is kept. `least` is the lowest index; -1 means none.
    """
    name = "unpool-" + tokenize(values.name, indices.name, chunks, pooled, sources)
    sizes = tuple(values.shape[a] for a in pooled)
    outs = tuple(sum(chunks[a]) for a in pooled)
    bounds = tuple(tuple(np.cumsum((0, *chunks[a]))) for a in pooled)
    targets = list(np.ndindex(*(len(chunks[a]) for a in pooled)))
    distributing: dict[Any, Task] = {}
    distributed: dict[Any, Task] = {}
    assembling: dict[Any, Task] = {}
    for at in np.ndindex(*map(len, values.chunks)):
        key = (f"{name}-deal", *at)
        begins = tuple(sum(values.chunks[a][: at[a]]) for a in pooled)
        read = TaskRef((values.name, *at)), TaskRef((indices.name, *at))
        how = (pooled, begins, sizes, outs, bounds, least)
        distributing[key] = Task(key, _distribute, how, *read)
        for k, target in enumerate(targets):
            part = (f"{name}-distributed", *at, *target)
            distributed[part] = Task(part, getitem, TaskRef(key), k)
    for at in np.ndindex(*map(len, chunks)):
        shape = tuple(c[p] for c, p in zip(chunks, at, strict=True))
        target = tuple(at[a] for a in pooled)
        own = [
            (f"{name}-distributed", *_replaced(at, pooled, source), *target)
            for source in np.ndindex(*(len(values.chunks[a]) for a in pooled))
        ]
        key = (f"{name}-position", *at)
        kind = (shape, pooled, values.dtype.name, sources)
        assembling[key] = Task(key, _assemble, kind, *map(TaskRef, own))
    graph = HighLevelGraph.from_collections(
        f"{name}-deal", distributing, dependencies=[values, indices]
    )
    layers: dict[str, Any] = dict(graph.layers)
    needs = dict(graph.dependencies)
    placed = f"{name}-position"
    layers |= {f"{name}-distributed": distributed, placed: assembling}
    needs |= {f"{name}-distributed": {f"{name}-deal"}, placed: {f"{name}-distributed"}}
    dtypes = (values.dtype, np.dtype(np.int64))[: 1 + sources]
    for k in range(len(dtypes)):
        layers[f"{name}-{k}"] = picked(f"{name}-{k}", placed, k, chunks)
        needs[f"{name}-{k}"] = {placed}
    graph = HighLevelGraph(layers, needs)
    return [
        da.Array(graph, f"{name}-{k}", chunks, meta=np.empty((0,) * values.ndim, dtype))
        for k, dtype in enumerate(dtypes)
    ]


def _replaced(position: Position, axes: tuple[int, ...], values: Position) -> Position:
    changed = dict(zip(axes, values, strict=True))
    return tuple(changed.get(a, p) for a, p in enumerate(position))


# The functions that tasks run on NumPy arrays


def _planes(array: Array, pooled: tuple[int, ...]) -> Array:
    last = range(array.ndim - len(pooled), array.ndim)
    moved = np.moveaxis(array, pooled, last)
    outer, inner = moved.shape[: -len(pooled)], moved.shape[-len(pooled) :]
    return moved.reshape(math.prod(outer), math.prod(inner))


def _distribute(how: tuple[Any, ...], values: Array, indices: Array) -> list[_Part]:
    """Return the values for each chunk of the planes of the output."""
    pooled, begins, sizes, outs, bounds, least = how
    flat, where = _planes(values, pooled), _planes(indices, pooled)
    wrong = where[(where < least) | (where >= math.prod(outs))]
    if wrong.size:
        raise ValueError(
            f"indices must be from 0 to {math.prod(outs) - 1}, positions in a plane of the output, "
            f"got {wrong[0]}"
        )
    here = np.indices([values.shape[a] for a in pooled]).reshape(len(pooled), -1)
    sources = np.ravel_multi_index(tuple(here + np.array(begins)[:, None]), sizes)
    planes, columns = np.nonzero(where >= 0)
    positions = np.unravel_index(where[planes, columns], outs)
    blocks = [np.searchsorted(b, p, "right") - 1 for b, p in zip(bounds, positions, strict=True)]
    counts = [len(b) - 1 for b in bounds]
    block = np.ravel_multi_index(tuple(blocks), counts)
    order = np.argsort(block, kind="stable")
    ends = np.searchsorted(block[order], np.arange(math.prod(counts) + 1))
    distributed: list[_Part] = []
    for k, at in enumerate(np.ndindex(*counts)):
        own = order[ends[k] : ends[k + 1]]
        shape = [b[i + 1] - b[i] for b, i in zip(bounds, at, strict=True)]
        local = [p[own] - b[i] for p, b, i in zip(positions, bounds, at, strict=True)]
        inside = 0 not in shape
        flat_places = np.ravel_multi_index(tuple(local), shape) if inside else own
        chosen = planes[own], columns[own]
        distributed.append((chosen[0], flat_places, flat[chosen], sources[chosen[1]]))
    return distributed


def _assemble(how: tuple[Any, ...], *parts: _Part) -> list[Array]:
    """Return one chunk of the output and, if requested, the source of each of its elements."""
    shape, pooled, dtype, with_sources = how
    planes, positions, values, sources = (np.concatenate(c) for c in zip(*parts, strict=True))
    order = np.argsort(sources, kind="stable")  # the last is kept
    inner = [shape[a] for a in pooled]
    outer = [s for a, s in enumerate(shape) if a not in pooled]
    made = []
    columns = (values, np.zeros((), dtype_named(dtype))), (sources, np.array(-1))
    for column, empty in columns[: 1 + with_sources]:
        flat = np.full((math.prod(outer), math.prod(inner)), empty)
        flat[planes[order], positions[order]] = column[order]
        last = range(len(shape) - len(pooled), len(shape))
        made.append(np.moveaxis(flat.reshape(*outer, *inner), last, pooled))
    return made
