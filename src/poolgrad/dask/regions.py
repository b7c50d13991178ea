"""The maps of regions of interest for Dask arrays.

Images and channels are pooled in the chunks of the input; the rows and columns of an image are
joined to one chunk. The boxes of each chunk of images are a map of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad.buffers import dtype_named, readable
from poolgrad.dask.arrays import Position, asarray, map_chunks, shape_at, without_empty_chunks
from poolgrad.dtypes import name_of
from poolgrad.region_maps import Bins, KernelMap, RegionMap, check_input, host_table

Array = NDArray[Any]


def region_map(input: Any, boxes: Any, bins: Bins) -> tuple[Any, RegionMap]:
    """Return the input in chunks of whole images, and the map of its regions."""
    x = asarray("input", input)
    check_input(x.dtype, x.shape)
    x = x.rechunk({2: -1, 3: -1})
    return x, _ChunkedMap(x, host_table(boxes, x.shape[0]), bins)


class _ChunkedMap(RegionMap):
    """The map of regions as lazy arrays, one map of the kernels for each chunk of images."""

    def __init__(self, x: Any, boxes: Array, bins: Bins) -> None:
        super().__init__(x.shape, boxes, name_of(x.dtype), bins)
        KernelMap(self.shape, boxes, self.dtype, bins)  # checks the boxes, before the graph runs
        ends = np.cumsum(x.chunks[0])
        chunk = np.searchsorted(ends, boxes[:, 0], side="right")
        counts = np.bincount(chunk, minlength=len(ends))
        boxes = boxes - np.append(0, ends)[chunk, None] * [1, 0, 0, 0, 0]
        # The boxes of the first chunk of images precede those of the second, and so on.
        self._order = np.argsort(chunk, kind="stable")
        self._parts = np.split(boxes[self._order], np.cumsum(counts)[:-1])
        self._x_chunks = x.chunks
        self._y_chunks = (*counts.tolist(),), x.chunks[1], *((n,) for n in bins.output_size)

    def winners(self, x: Any) -> Any:
        """Return the indices of the maxima; the maxima are computed from the input and these."""
        return self.apply(x, finds_winners=True)

    def apply(
        self, array: Any, indices: Any = None, transpose: bool = False, finds_winners: bool = False
    ) -> Any:
        """Apply the map of RoIPool or, without indices, that of RoIAlign; or its transpose.

        If `finds_winners` is set, return the indices of RoIPool instead.
        """
        given, inputs = [array] if indices is None else [array, indices], 0 if transpose else 1
        given[inputs:] = [y[self._order].rechunk(self._y_chunks) for y in given[inputs:]]
        kind = dtype_named("int32" if finds_winners else self.dtype)
        how = {"transpose": transpose, "finds_winners": finds_winners}
        chunks = self._x_chunks if transpose else self._y_chunks
        made = map_chunks(self._task, chunks, kind, *given, token="regions", **how)
        return made if transpose else without_empty_chunks(made)[np.argsort(self._order)]

    def _task(
        self,
        position: Position,
        array: Array,
        *indices: Array,
        transpose: bool,
        finds_winners: bool,
    ) -> Any:
        """Compute the map of some channels of a chunk of images."""
        shape, boxes = shape_at(self._x_chunks, position), readable(self._parts[position[0]])
        regions = KernelMap(shape, boxes, self.dtype, self.bins)
        if finds_winners:
            return regions.pool(array)[1]
        return regions.apply(array, indices[0] if indices else None, transpose)
