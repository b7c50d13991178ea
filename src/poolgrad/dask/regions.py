"""The maps of regions of interest for Dask arrays.

Images and channels are pooled in the chunks of the input; the rows and columns of an image are
joined to one chunk. The boxes of each chunk of images are a map of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from poolgrad.buffers import dtype_named, readable
from poolgrad.dask.arrays import asarray, without_empty_chunks
from poolgrad.dtypes import name_of
from poolgrad.region_maps import Bins, KernelMap, RegionMap, check_input, host_table

Array = NDArray[Any]


def region_map(input: Any, boxes: Any, bins: Bins) -> tuple[Any, RegionMap]:
    """Return the input in chunks of whole images, and the map of its regions."""
    x = asarray("input", input)
    check_input(x.dtype, x.shape)
    x = without_empty_chunks(x.rechunk({2: -1, 3: -1}))
    return x, _ChunkedMap(x, host_table(boxes, x.shape[0]), bins)


class _ChunkedMap(RegionMap):
    """The map of regions as lazy arrays, one map of the kernels for each chunk of images."""

    def __init__(self, x: Any, boxes: Array, bins: Bins) -> None:
        super().__init__(x.shape, len(boxes), name_of(x.dtype), bins)
        KernelMap(self.shape, boxes, self.dtype, bins)  # checks the boxes, before the graph runs
        self._channels = x.chunks[1]
        begin, self._parts = 0, []
        for images in x.chunks[0]:
            rows = np.flatnonzero((boxes[:, 0] >= begin) & (boxes[:, 0] < begin + images))
            self._parts.append(_Part(images, rows, boxes[rows] - [begin, 0, 0, 0, 0]))
            begin += images

    def pool(self, x: Any) -> tuple[Any, Any]:
        """Return the maxima and their indices; the input is read for each of them."""
        indices = self._bins_of("pool", "int32", x)
        return self.apply(x, indices), indices

    def apply(self, x: Any, indices: Any = None) -> Any:
        """Apply the map of RoIPool, or, without indices, that of RoIAlign."""
        return self._bins_of("apply", self.dtype, x, indices)

    def transposed(self, gy: Any, indices: Any = None) -> Any:
        """Return the gradient of the input, in the chunks of the input."""
        given = [gy] if indices is None else [gy, indices]
        parts = []
        for part in self._parts:
            arrays = [self._bins_in(part, y) for y in given]
            parts.append(self._blocks("transposed", self.dtype, part, arrays, part.images))
        return da.concatenate(parts)

    def _bins_of(self, method: str, dtype: str, x: Any, indices: Any = None) -> Any:
        """Return an array in the order of the boxes."""
        parts = [da.zeros((0, *self.out_shape[1:]), dtype=dtype_named(dtype))]
        for n, part in enumerate(self._parts):
            if len(part.rows):
                arrays = [x.blocks[n]]
                if indices is not None:
                    arrays.append(self._bins_in(part, indices))
                parts.append(self._blocks(method, dtype, part, arrays, len(part.rows)))
        order = np.argsort(np.concatenate([part.rows for part in self._parts]))
        return without_empty_chunks(da.concatenate(parts))[order]

    def _bins_in(self, part: _Part, y: Any) -> Any:
        """Return the bins of some images, in the chunks of the channels."""
        return y[part.rows].rechunk({0: -1, 1: self._channels, 2: -1, 3: -1})

    def _blocks(self, method: str, dtype: str, part: _Part, arrays: list[Any], size: int) -> Any:
        """Call a method of the map for each chunk of channels; `size`: of the result's axis 0."""
        inner = self.shape[2:] if method == "transposed" else self.out_shape[2:]
        kind, shape = dtype_named(dtype), (part.images, *self.shape[1:])
        return da.map_blocks(
            _task,
            *arrays,
            method=method,
            where=(shape, part.boxes, self.dtype, self.bins),
            dtype=kind,
            chunks=((size,), self._channels, *((n,) for n in inner)),
            meta=np.empty((0,) * 4, kind),
        )


class _Part(NamedTuple):
    """A chunk of images: their number, and their boxes with the positions in the caller's order."""

    images: int
    rows: Array
    boxes: Array


def _task(array: Array, *indices: Array, method: str, where: tuple[Any, ...]) -> Any:
    """Call a method of the map for some channels of some images."""
    (images, _, *plane), boxes, dtype, bins = where
    regions = KernelMap((images, array.shape[1], *plane), readable(boxes), dtype, bins)
    made = getattr(regions, method)(array, *indices)
    return made[1] if method == "pool" else made
