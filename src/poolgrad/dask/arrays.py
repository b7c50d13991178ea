"""Checks the Dask arrays of callers, cuts arrays into overlapping chunks, and maps over chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise, product
from operator import getitem
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.layers import ArrayBlockIdDep
from numpy.typing import NDArray

from poolgrad.buffers import dtype_named, readable
from poolgrad.dask.segments import Range
from poolgrad.windows import Axis

Array = NDArray[Any]
Position = tuple[int, ...]
Chunks = tuple[tuple[int, ...], ...]


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
    return map_chunks(readable_chunk, array.chunks, dtype, array, token="readable", **how)


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


def gather(
    array: Any, segments: Mapping[int, Sequence[Axis | None]], range_of: Callable[[Axis], Range]
) -> Any:
    """Return an array whose chunks along the pooled axes are ranges of segments, which may overlap.

    A task that needs a part of a chunk receives this part only. A chunk that no window reads has no
    segment; its task receives the first element.
    """
    every = list(map(spans, array.chunks))
    for axis, parts in segments.items():
        every[axis] = [range_of(part) if part else (0, 1) for part in parts]
    if every == list(map(spans, array.chunks)):
        return array
    name = f"gather-{tokenize(array.name, every)}"
    axes = [
        [_pieces(chunks, bounds) for bounds in along]
        for chunks, along in zip(array.chunks, every, strict=True)
    ]
    graph: dict[Any, Any] = {}
    for position in np.ndindex(*map(len, axes)):
        along = [axis[at] for axis, at in zip(axes, position, strict=True)]
        keys = []
        for piece in product(*along):
            chunk, cuts = zip(*piece, strict=True)
            keys.append((array.name, *chunk))
            if any(cut != slice(None) for cut in cuts):
                part = (f"{name}-part", *position, *chunk)
                graph[part] = (getitem, keys[-1], cuts)
                keys[-1] = part
        graph[name, *position] = (joined, keys, [len(pieces) for pieces in along])
    layers = HighLevelGraph.from_collections(name, graph, dependencies=[array])
    chunks = tuple(tuple(stop - start for start, stop in along) for along in every)
    return da.Array(layers, name, chunks, meta=meta_from_array(array))


def _pieces(chunks: Sequence[int], bounds: Range) -> list[tuple[int, slice]]:
    """Return the chunks along an axis that overlap a range, with the part inside it."""
    found = []
    for at, (begin, end) in enumerate(spans(chunks)):
        lo, hi = max(bounds[0] - begin, 0), min(bounds[1], end) - begin
        if lo < hi or (begin, end) == bounds:
            found.append((at, slice(None) if hi - lo == end - begin else slice(lo, hi)))
    return found


def joined(pieces: Sequence[Array], grid: Position) -> Array:
    """Return the pieces, in row-major order of a grid, as one array."""
    for axis in reversed(range(len(grid))):
        if (n := grid[axis]) > 1:
            starts = range(0, len(pieces), n)
            pieces = [np.concatenate(pieces[i : i + n], axis) for i in starts]
    return pieces[0]


def map_chunks(
    function: Callable[..., Any], chunks: Chunks, dtype: Any, *arrays: Any, token: str, **how: Any
) -> Any:
    """Return the array whose chunk at a position is ``function(position, *chunks, **how)``.

    Parameters
    ----------
    function : callable
        Takes the chunks of `arrays` at the position.
    chunks : tuple of tuple of int
        The chunks of the result.
    dtype : dtype
        The dtype of the result.
    *arrays : dask.array.Array, or pairs of an array and axes
        Each array has as many chunks as the result along these axes of the result, by default the
        first ones. An axis that the result does not have is one chunk.
    token : str
        The beginning of the names of tasks.
    **how
        Further arguments of the function.
    """
    axes = tuple(range(len(chunks)))
    pairs = [array if type(array) is tuple else (array, range(array.ndim)) for array in arrays]
    return da.blockwise(
        partial(function, **how), axes, ArrayBlockIdDep(chunks), axes, *chain(*pairs), token=token,
        adjust_chunks=dict(zip(axes, chunks, strict=True)), align_arrays=False, concatenate=True,
        meta=np.empty((0,) * len(chunks), dtype),
    )  # fmt: skip
