"""Builds graphs of tasks, each of which computes one chunk from parts of other chunks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from poolgrad import arguments
from poolgrad.buffers import dtype_named, readable
from poolgrad.dask._compat import ArrayChunkShapeDep, Task, TaskRef, chunk_type
from poolgrad.interface import Buffer

Array = NDArray[Any]
Position = tuple[int, ...]


def asarray(name: str, array: Any) -> Any:
    """Return a private Dask array, whose chunks pass through `readable_chunk`.

    Every array of a caller passes through this function. The result is a new array, because
    ``x[...] = value`` replaces the graph of the caller's array.

    Raises
    ------
    TypeError, ValueError
        If the chunks are not NumPy arrays, or their sizes are unknown.
    """
    if not isinstance(array, da.Array):  # Dask has more collections
        raise TypeError(f"{name} must be a dask.array.Array, got {type(array).__qualname__}")
    kind = chunk_type(array)
    if not issubclass(kind, np.ndarray) or issubclass(kind, np.ma.MaskedArray):
        raise TypeError(f"{name} must have chunks of NumPy arrays without a mask, got {kind}")
    if any(np.isnan(size) for size in array.shape):
        raise ValueError(
            f"{name} must have chunks of known sizes, got shape {array.shape}; call "
            f"{name}.compute_chunk_sizes() first"
        )
    dtype, axes = array.dtype, tuple(range(array.ndim))
    dtype = dtype if dtype.isnative else dtype.newbyteorder("=")
    declared = array, axes, ArrayChunkShapeDep(array.chunks), axes
    meta = np.empty((0,) * array.ndim, dtype)
    return da.blockwise(
        readable_chunk,
        axes,
        *declared,
        argument=name,
        dtype_name=dtype.name,
        align_arrays=False,
        meta=meta,
    )


def readable_chunk(chunk: Any, shape: Position, argument: str, dtype_name: str) -> Array:
    """Return a chunk as a NumPy array of the declared dtype, in the form that the kernels read.

    Dask does not check that the chunks that a task returns have the type, the dtype and the shape
    that their array declares.

    Raises
    ------
    TypeError, ValueError
        If the chunk has a mask, a dtype that cannot be converted, or another shape than declared.
    """
    if isinstance(chunk, np.ma.MaskedArray):
        raise TypeError(f"{argument} must have chunks of NumPy arrays without a mask, got a mask")
    array, dtype = np.asarray(chunk), dtype_named(dtype_name)
    if array.shape != shape:
        raise ValueError(
            f"{argument} must have chunks of the shape that Dask expects, {shape}, "
            f"got {array.shape}"
        )
    # floats may be rounded, but integers may not wrap around
    if not np.can_cast(array.dtype, dtype, "same_kind" if dtype.kind in "fV" else "safe"):
        raise TypeError(
            f"{argument} must have chunks of its dtype, {dtype}, or of one that can be converted "
            f"to it, got a chunk of {array.dtype}"
        )
    return readable(array.astype(dtype, copy=False))


def without_empty_chunks(array: Any) -> Any:
    """Return the array in its chunks that have elements; Dask's reductions fail on the others."""
    if all(all(along) or len(along) == 1 for along in array.chunks):
        return array
    return array.rechunk(tuple(tuple(filter(None, along)) or (0,) for along in array.chunks))


def cotangent(gy: Any, shape: Position, dtype: str) -> Any:
    """Return a cotangent in the dtype of the output.

    Raises
    ------
    TypeError, ValueError
        See `arguments.check_cotangent`.
    """
    kind = dtype_named(dtype)
    if not isinstance(gy, da.Array):
        return da.asarray(arguments.cotangent(gy, kind, shape)).reshape(shape)
    given = asarray("gy", gy)
    arguments.check_cotangent(gy, given.dtype, given.shape, shape)
    return given.astype(kind).reshape(shape)


class Parts(NamedTuple):
    """The pieces of an array in row-major order, and their number along each axis."""

    pieces: list[TaskRef]
    grid: Position


def span(chunks: Sequence[int], at: int) -> tuple[int, int]:
    """Return the begin and the end of a chunk."""
    begin = sum(chunks[:at])
    return begin, begin + chunks[at]


def picked(
    name: str, whole: str, k: int, chunks: Sequence[Sequence[int]], behind: Position = ()
) -> dict[Any, Task]:
    """Return tasks that take element `k` of the result of each of the tasks `whole`."""
    keys = {at: (name, *at, *behind) for at in np.ndindex(*map(len, chunks))}
    return {key: Task(key, getitem, TaskRef((whole, *at)), k) for at, key in keys.items()}


class Graph:
    """The tasks of one pooling.

    Parameters
    ----------
    name : str
        Prefix of the names of the tasks.
    *what
        Everything that the results depend on.
    """

    def __init__(self, name: str, *what: Any) -> None:
        self._name = f"{name}-{tokenize(*what)}"
        self._tasks: dict[Any, Task] = {}

    def gather(self, array: Any, position: Position, ranges: dict[int, tuple[int, int]]) -> Parts:
        """Return the part of an array in ranges of the pooled axes and a chunk of the others."""
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
                self._tasks[part] = Task(part, getitem, TaskRef(key), cuts)
                key = part
            pieces.append(TaskRef(key))
        return Parts(pieces, tuple(map(len, along)))

    def add(
        self,
        position: Position,
        run: Callable[..., Any],
        how: tuple[Any, ...],
        parts: Sequence[Parts],
    ) -> None:
        """Add the task that computes a chunk."""
        key = (self._name, *position)
        pieces = [piece for part in parts for piece in part.pieces]
        grids = [part.grid for part in parts]
        self._tasks[key] = Task(key, _run, run, how, grids, *pieces)

    def arrays(self, buffers: Sequence[Buffer], chunks: Any, sources: Sequence[Any]) -> list[Any]:
        """Return the arrays that the tasks compute, one for each buffer."""
        graph = HighLevelGraph.from_collections(self._name, self._tasks, dependencies=sources)
        names = [self._name]
        if len(buffers) > 1:
            layers: dict[str, Any] = dict(graph.layers)
            needs = dict(graph.dependencies)
            names = [f"{self._name}-{k}" for k in range(len(buffers))]
            for k, (name, buffer) in enumerate(zip(names, buffers, strict=True)):
                behind = (0,) * (len(buffer.shape) - len(chunks))  # bits of ties are one chunk
                layers[name] = picked(name, self._name, k, chunks, behind)
                needs[name] = {self._name}
            graph = HighLevelGraph(layers, needs)
        made = []
        for name, buffer in zip(names, buffers, strict=True):
            more = tuple((size,) for size in buffer.shape[len(chunks) :])
            meta = np.empty((0,) * len(buffer.shape), dtype_named(buffer.dtype))
            made.append(da.Array(graph, name, (*chunks, *more), meta=meta))
        return made


def _run(run: Any, how: Any, grids: Sequence[Position], *pieces: Array) -> Any:
    arrays, at = [], 0
    for grid in grids:
        count = math.prod(grid)
        arrays.append(_joined(pieces[at : at + count], grid))
        at += count
    return run(*how, *arrays)


def _joined(pieces: Sequence[Array], grid: Position) -> Array:
    """Join pieces in row-major order to one array that the kernels can read.

    Pieces from another process may be unaligned.
    """
    pieces = [*map(readable, pieces)]
    for axis in reversed(range(len(grid))):
        n = grid[axis]
        if n > 1:
            starts = range(0, len(pieces), n)
            pieces = [np.concatenate(pieces[i : i + n], axis) for i in starts]
    return pieces[0]
