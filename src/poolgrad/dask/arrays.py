"""Checks the Dask arrays of callers, cuts arrays into overlapping chunks, and maps over chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from operator import itemgetter
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from poolgrad.buffers import dtype_named, readable
from poolgrad.dask.segments import Range

Array = NDArray[Any]
Position = tuple[int, ...]
Chunks = tuple[tuple[int, ...], ...]


def asarray(name: str, array: Any) -> Any:
    """Return a private Dask array, whose chunks have elements and passed `readable_chunk`.

    Every array of a caller passes through this function. The result is a new array, because
    ``x[...] = value`` replaces the graph of the caller's array.

    Raises
    ------
    TypeError, ValueError
        If the chunks are not NumPy arrays, or their sizes are unknown.
    """
    if not isinstance(array, da.Array):  # Dask has more collections
        raise TypeError(f"{name} must be a dask.array.Array, got {type(array).__qualname__}")
    kind = type(meta_from_array(array))
    if not issubclass(kind, np.ndarray) or issubclass(kind, np.ma.MaskedArray):
        raise TypeError(f"{name} must have chunks of NumPy arrays without a mask, got {kind}")
    if any(np.isnan(size) for size in array.shape):
        raise ValueError(
            f"{name} must have chunks of known sizes, got shape {array.shape}; call "
            f"{name}.compute_chunk_sizes() first"
        )
    dtype = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
    how = {"name": name, "grid": array.chunks, "dtype_name": dtype.name}
    checked = map_chunks(readable_chunk, array.chunks, dtype, array, token="readable", **how)
    return without_empty_chunks(checked)


def readable_chunk(
    position: Position, chunk: Any, name: str, grid: Chunks, dtype_name: str
) -> Array:
    """Return a chunk as a NumPy array of the declared dtype, in the form that the kernels read.

    Dask does not check that the chunks that a task returns have the type, the dtype and the shape
    that their array declares; `grid` are its chunks.

    Raises
    ------
    TypeError, ValueError
        If the chunk has a mask, a dtype that cannot be converted, or another shape than declared.
    """
    if isinstance(chunk, np.ma.MaskedArray):
        raise TypeError(f"{name} must have chunks of NumPy arrays without a mask, got a mask")
    array, dtype, shape = np.asarray(chunk), dtype_named(dtype_name), shape_at(grid, position)
    if array.shape != shape:
        raise ValueError(
            f"{name} must have chunks of the shape that Dask expects, {shape}, got {array.shape}"
        )
    # floats may be rounded, but integers may not wrap around
    if not np.can_cast(array.dtype, dtype, "same_kind" if dtype.kind in "fV" else "safe"):
        raise TypeError(
            f"{name} must have chunks of its dtype, {dtype}, or of one that can be converted "
            f"to it, got a chunk of {array.dtype}"
        )
    return readable(array.astype(dtype, copy=False))


def without_empty_chunks(array: Any) -> Any:
    """Return the array in its chunks that have elements; Dask's reductions fail on the others."""
    if all(all(along) or len(along) == 1 for along in array.chunks):
        return array
    return array.rechunk(tuple(tuple(filter(None, along)) or (0,) for along in array.chunks))


def shape_at(chunks: Chunks, position: Position) -> Position:
    """Return the shape of the chunk at a position."""
    return tuple(along[at] for along, at in zip(chunks, position, strict=True))


def spans(chunks: Sequence[int]) -> list[Range]:
    """Return the begin and the end of each chunk along an axis."""
    return list(pairwise(accumulate(chunks, initial=0)))


def map_chunks(
    function: Callable[..., Any], chunks: Chunks, dtype: Any, *arrays: Any, token: str, **how: Any
) -> Any:
    """Return the array whose chunk at a position is ``function(position, *parts, **how)``.

    Parameters
    ----------
    function : callable
        Takes a part of each of the arrays.
    chunks : tuple of tuple of int
        The chunks of the result.
    dtype : dtype
        The dtype of the result.
    *arrays : dask.array.Array, or pairs of an array and a dict of axis to ranges
        Along these axes the parts are the ranges, which may overlap, along all others the chunks;
        there are as many as chunks of the result. An axis that the result does not have is one
        part. A task that needs a piece of a chunk receives this piece only.
    token : str
        The beginning of the names of tasks.
    **how
        Further arguments of the function.
    """
    pairs = [array if type(array) is tuple else (array, {}) for array in arrays]
    sources = [array for array, _ in pairs]
    every = [[ranges.get(a) or spans(c) for a, c in enumerate(x.chunks)] for x, ranges in pairs]
    pieces = [[*map(_pieces, x.chunks, e)] for x, e in zip(sources, every, strict=True)]
    name = f"{token}-{tokenize(function, chunks, [x.name for x in sources], every, how)}"
    run, graph = partial(function, **how), dict[Any, Any]()
    for position in np.ndindex(*map(len, chunks)):
        parts = []
        for k, (array, axes) in enumerate(zip(sources, pieces, strict=True)):
            along = [axis[at] for axis, at in zip(axes, (*position, 0), strict=False)]
            keys = []
            for piece in product(*along):
                chunk, cuts = [at for at, _ in piece], [cut for _, cut in piece]
                keys.append((array.name, *chunk))
                if any(cut != slice(None) for cut in cuts):
                    part = (f"{name}-part{k}", *position, *chunk)
                    graph[part] = (itemgetter((*cuts,)), keys[-1])
                    keys[-1] = part
            # Inside this task, because Dask takes long to run tasks that it fuses.
            parts.append((partial(joined, [*map(len, along)]), *keys))
        graph[name, *position] = (partial(run, position), *parts)
    layers = HighLevelGraph.from_collections(name, graph, dependencies=sources)
    return da.Array(layers, name, chunks, meta=np.empty((0,) * len(chunks), dtype))


def _pieces(chunks: Sequence[int], ranges: Sequence[Range]) -> list[list[tuple[int, slice]]]:
    """Return for each range the chunks along an axis that it overlaps, with the part inside it."""
    own = spans(chunks)
    if ranges == own:
        return [[(at, slice(None))] for at in range(len(own))]
    found = []
    for first, last in ranges:
        inside = [(max(first, begin) - begin, min(last, end) - begin) for begin, end in own]
        cuts = [(at, slice(lo, hi)) for at, (lo, hi) in enumerate(inside) if lo < hi]
        found.append([(at, c if c != slice(0, chunks[at]) else slice(None)) for at, c in cuts])
    return found


def joined(grid: Sequence[int], *pieces: Array) -> Array:
    """Return the pieces, in row-major order of a grid, as one array."""
    for axis in reversed(range(len(grid))):
        if (n := grid[axis]) > 1:
            starts = range(0, len(pieces), n)
            pieces = (*(np.concatenate(pieces[i : i + n], axis) for i in starts),)
    return pieces[0]
