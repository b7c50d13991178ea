"""Computes RoIPool and RoIAlign, forward and backward, in array-API operations.

The results are those of the kernels: coordinates are computed in the same order and dtype, maxima
have the same winners, and sums differ by rounding. No value is read by the host, and nothing is
scattered. Gradients are sorted by their destination, stably, and added by a segment tree, so equal
calls give equal bits. Arrays of more than the size of the input, the output and the routes are
computed in tiles of some boxes and some channels, of about `_TILE` elements.

RoIAlign is separable: the weight of an input in a bin is that of its row times that of its column.
RoIPool finds the maxima of each bin's rows by log-step doubling (the maximum over any range is that
of two ranges whose length is a power of two), and the maximum of these over the bin's columns.
"""

# ruff: noqa: D102 - the base class documents the methods

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj, is_jax_array

from poolgrad import arguments
from poolgrad.dtypes import name_of
from poolgrad.portable.arrays import converted, exact_dtype, namespace, placed, widest
from poolgrad.region_maps import Bins, RegionMap, check_input, table_of

_TILE = 2**24  # elements of the largest temporary array
_FARTHEST = 2.0**30
_MOST_SAMPLES = 2**31  # of a bin along an axis, if their number follows from the box


def accepted(boxes: Any, images: int, factor: float) -> Any:
    """Return, as an array without axes, whether the kernels accept the values of all boxes."""
    xp = namespace(boxes)
    table = converted(xp, boxes, widest(xp, boxes))
    image, low, high = table[:, 0], table[:, 1:3], table[:, 3:]
    corners = table[:, 1:]
    near = (xp.abs(corners) <= _FARTHEST) & (xp.abs(corners * factor) <= _FARTHEST)  # not of NaN
    exists = (image >= 0) & (image < images) & (image == xp.floor(image))
    return xp.all(exists) & xp.all(near) & xp.all(low <= high)


def refusal(images: int) -> str:
    """Return the error for boxes that are not `accepted`."""
    return (
        f"boxes must begin with the index of one of {images} images, have "
        "x1 <= x2 and y1 <= y2, and lie within 2**30 pixels of the origin"
    )


def region_map(input: Any, boxes: Any, bins: Bins) -> tuple[Any, RegionMap]:
    """Return an array of any array-API library, and the map of its regions.

    Boxes are arrays on the device of the input, NumPy arrays, or lists of numbers.
    """
    xp, where, shape = namespace(input), placed(input), tuple(input.shape)
    check_input(input.dtype, shape)

    def convert(name: str, value: Any) -> Any:
        if is_array_api_obj(value) and not isinstance(value, np.ndarray | np.generic):
            return value
        numbers = arguments.boxes(name, value)
        return xp.asarray(numbers.tolist(), dtype=getattr(xp, numbers.dtype.name), **where)

    table = table_of(boxes, shape[0], convert, partial(joined, input))
    if not bool(accepted(table, shape[0], bins.spatial_scale)):
        raise ValueError(refusal(shape[0]))
    # A copy, because the caller may change the array.
    return input, PortableMap(shape, xp.asarray(table, copy=True), name_of(input.dtype), bins)


def joined(x: Any, parts: Sequence[Any]) -> Any:
    """Join the boxes of each image, each after a column with its index, on the device of `x`."""
    xp, where = namespace(x), placed(x)
    kind = getattr(xp, widest(xp, x))
    rows = [xp.zeros((0, 5), dtype=kind, **where)]
    for image, own in enumerate(parts):
        index = xp.full((own.shape[0], 1), image, dtype=kind, **where)
        rows.append(xp.concat([index, xp.astype(own, kind)], axis=1))
    return xp.concat(rows, axis=0)


class PortableMap(RegionMap):
    """The map of regions in array-API operations, on the device of the boxes.

    Parameters
    ----------
    shape, dtype, bins
        See `RegionMap`.
    boxes : array, shape (K, 5)
        Real numbers. The index of an image that does not exist is clipped.
    """

    def __init__(self, shape: Sequence[int], boxes: Any, dtype: str, bins: Bins) -> None:
        super().__init__(shape, boxes, dtype, bins)
        self._xp = xp = namespace(boxes)
        self._where, self._sum_dtype = placed(boxes), exact_dtype(dtype)
        table = converted(xp, boxes, widest(xp, boxes))
        self._image = xp.clip(xp.astype(table[:, 0], xp.int64), 0, max(shape[0] - 1, 0))
        self._corners = self._rounded(self._real(table[:, 1:]) * bins.spatial_scale)

    def winners(self, x: Any) -> Any:
        (images, _, height, width), (rows, columns) = self.shape, self.bins.output_size
        whole = images * height * width * height.bit_length()
        each = rows * columns * width
        boxes = self._image, *self._pixels(0), *self._pixels(1)
        return self._tiled(self._winners, "int32", whole, each, boxes, x)

    def apply(self, array: Any, indices: Any = None, transpose: bool = False) -> Any:
        (images, _, height, width), (rows, columns) = self.shape, self.bins.output_size
        boxes, each = [self._image], rows * columns
        compute: Callable[..., Any] = self._scattered if transpose else self._gathered
        if indices is None:
            compute = self._spread if transpose else self._averages
            boxes += [*self._taps(0), *([self._weights(1)] if transpose else self._taps(1))]
            each = rows * max(boxes[1].shape[2] * width, columns * boxes[-1].shape[2])
        routes = [] if indices is None else [indices]
        if transpose:
            whole = images * height * width
            return self._tiled(compute, self.dtype, whole, each, boxes, bins=[array, *routes])
        return self._tiled(compute, self.dtype, 0, each, boxes, array, routes)

    def _tiled(
        self,
        compute: Callable[..., Any],
        dtype: str,
        whole: int,
        each: int,
        boxes: Sequence[Any],
        x: Any = None,
        bins: Sequence[Any] = (),
    ) -> Any:
        """Compute a map in tiles of some channels and some boxes.

        Parameters
        ----------
        compute : callable
            Takes the parts of all arrays: input, bins, boxes. Without an input it computes the
            transpose, and the results of the boxes are added.
        dtype : str
            The dtype of the result.
        whole, each : int
            The elements of the largest temporary array for a channel, and for a box and a channel.
        boxes, x, bins : arrays
            The arrays that are cut along boxes, along channels, and along both.
        """
        xp, (count, channels, *_) = self._xp, self.out_shape
        kind, shape = getattr(xp, dtype), self.shape if x is None else self.out_shape
        if 0 in (*self.shape, count):
            return xp.zeros(shape, dtype=kind, **self._where)
        tiles = []
        for first, last in _parts(self._image, channels, max(whole, each)):
            own, parts = [] if x is None else [x[:, first:last, ...]], []
            for low, high in _parts(self._image, count, each * (last - first)):
                cut = [
                    *(y[low:high, first:last, ...] for y in bins),
                    *(b[low:high, ...] for b in boxes),
                ]
                parts.append(compute(*own, *cut))
            tile = sum(parts[1:], start=parts[0]) if x is None else xp.concat(parts, axis=0)
            tiles.append(xp.astype(tile, kind))
        return xp.concat(tiles, axis=1)

    # Arrays

    def _arange(self, *limits: int) -> Any:
        return self._xp.arange(*limits, dtype=self._xp.int64, **self._where)

    def _divided(self, value: Any, divisor: Any) -> Any:
        """Divide and round once.

        PyTorch on CUDA multiplies with the reciprocal of a Python number, XLA with that of any
        array that is broadcast.
        """
        return value / self._rounded(self._xp.zeros_like(value) + divisor)

    def _rounded(self, value: Any) -> Any:
        """Return a value that a compiler must round, and not fuse with what is computed from it."""
        return value

    def _real(self, value: Any) -> Any:
        return converted(self._xp, value, self._sum_dtype)

    def _planes(self, image: Any, channels: int) -> Any:
        """Return the number of a plane among all: (boxes, n) images to (boxes, channels, n)."""
        return image[:, None, :] * channels + self._arange(channels)[:, None]

    # RoIPool

    def _pixels(self, axis: int) -> tuple[Any, Any]:
        """Return the first pixel of each bin along an axis and the end: (boxes, bins)."""
        xp, bins, size = self._xp, self.out_shape[2 + axis], self.shape[2 + axis]
        first, last = (self._whole(self._corners[:, k, None]) for k in (1 - axis, 3 - axis))
        width = self._divided(self._real(xp.clip(last - first + 1, min=1)), bins)
        edges = self._real(self._arange(bins + 1)) * width
        begin = first + xp.astype(xp.floor(edges[:, :-1]), xp.int64)
        end = first + xp.astype(xp.ceil(edges[:, 1:]), xp.int64)
        return xp.clip(begin, 0, size), xp.clip(end, 0, size)

    def _whole(self, value: Any) -> Any:
        """Round to integers, halves away from zero."""
        xp, size = self._xp, self._xp.abs(value)
        below = xp.floor(size)
        rounded = below + self._real(size - below >= 0.5)
        return xp.astype(xp.where(value < 0, -rounded, rounded), xp.int64)

    def _row_maxima(self, x: Any) -> list[Any]:
        """Return the maxima of 1, 2, 4, ... rows from each row on, and the rows that they are in.

        Each is an array of lines: (powers of two * images * channels * rows, columns).
        """
        xp, height = self._xp, x.shape[2]
        rows = xp.astype(self._arange(height), xp.int32)[:, None]
        tables = [[x, xp.zeros_like(x, dtype=xp.int32) + rows]]
        for exponent in range(height.bit_length() - 1):
            step = 2**exponent  # the last rows have no `step` rows behind them, and are not read
            behind = [
                xp.concat([t[:, :, step:, :], t[:, :, height - step :, :]], axis=2)
                for t in tables[-1]
            ]
            tables.append(_later_wins(xp, tables[-1], behind))
        return [xp.reshape(xp.stack(t), (-1, x.shape[3])) for t in zip(*tables, strict=True)]

    def _winners(self, x: Any, image: Any, top: Any, bottom: Any, left: Any, right: Any) -> Any:
        """Return the index of the winner of each bin in its plane, or -1."""
        xp, (images, channels, height, width), tables = self._xp, x.shape, self._row_maxima(x)
        powers = 2 ** self._arange(1, height.bit_length())
        exponent = xp.sum(xp.astype((bottom - top)[:, :, None] >= powers, xp.int64), axis=2)
        planes = self._planes(exponent * images + image[:, None], channels)

        def read(row: Any) -> list[Any]:
            lines = planes * height + xp.clip(row, 0, height - 1)[:, None, :]
            return [_taken(xp, t, lines) for t in tables]

        # (boxes, channels, rows of bins, columns) -> (..., columns of bins, columns)
        found = _later_wins(xp, read(top), read(bottom - 2**exponent))
        values, rows = (t[:, :, :, None, :] for t in found)
        column = self._arange(width)
        inside = (left[:, :, None] <= column) & (column < right[:, :, None])
        inside = inside[:, None, None, :, :] & (top < bottom)[:, None, :, None, None]
        values = xp.where(inside, values, -xp.inf)
        best = xp.max(values, axis=-1)
        wins = inside & ((values == best[..., None]) | xp.isnan(values))
        index = rows * width + xp.astype(column, xp.int32)
        first = xp.min(xp.where(wins, index, height * width), axis=-1)
        last = xp.max(xp.where(wins, index, -1), axis=-1)
        return xp.where(xp.isnan(best) | (last < 0), last, first)

    def _positions(self, indices: Any, image: Any) -> tuple[Any, Any]:
        """Return positions among all planes, and which indices are positions in their plane."""
        index, plane = self._xp.astype(indices, self._xp.int64), self.shape[2] * self.shape[3]
        planes = self._planes(image[:, None], indices.shape[1])[..., None]
        return planes * plane + index, (index >= 0) & (index < plane)

    def _gathered(self, x: Any, indices: Any, image: Any) -> Any:
        at, inside = self._positions(indices, image)
        values = _taken(self._xp, self._xp.reshape(x, (-1,)), self._xp.where(inside, at, 0))
        return self._xp.where(inside, values, self._xp.zeros_like(values))

    def _scattered(self, gy: Any, indices: Any, image: Any) -> Any:
        xp, shape = self._xp, (self.shape[0], gy.shape[1], *self.shape[2:])
        at, inside = self._positions(indices, image)
        at = xp.reshape(xp.where(inside, at, math.prod(shape)), (-1,))
        values = xp.reshape(self._real(gy), (-1, 1))
        return xp.reshape(_sums_of_equals(xp, values, at, math.prod(shape)), shape)

    # RoIAlign

    def _weights(self, axis: int) -> Any:
        """Return the weight of each input in each bin along an axis: (boxes, bins, inputs).

        Samples are equally spaced, so the sum of the weights that those between two inputs give to
        each follows from their number and their mean. The cost does not depend on the samples.
        """
        xp, bins, size = self._xp, self.out_shape[2 + axis], self.shape[2 + axis]
        offset, ratio = 0.5 if self.bins.aligned else 0.0, self.bins.sampling_ratio
        low, high = (self._corners[:, k, None, None] - offset for k in (1 - axis, 3 - axis))
        width = high - low
        if not self.bins.aligned:
            width = xp.where(width > 1, width, xp.ones_like(width))
        width = self._divided(width, bins)
        begin = low + self._rounded(self._real(self._arange(bins)[:, None]) * width)
        samples = xp.clip(xp.astype(xp.ceil(width), xp.int64), 0, _MOST_SAMPLES)
        samples = xp.zeros_like(samples) + ratio if ratio else samples
        total = self._real(xp.clip(samples, min=1))

        def position(sample: Any) -> Any:
            return begin + self._divided((self._real(sample) + 0.5) * width, total)

        # The first sample at or behind each input, and at or behind both ends of the map: samples
        # from -1 to `size` are in it. The estimate is corrected where a division was rounded.
        real = np.dtype(self._sum_dtype).type
        points = self._real(self._arange(-1, size + 1))
        behind_map = float(np.nextafter(real(size), real(np.inf)))
        points = xp.where(points < size, points, behind_map)
        apart = xp.where(width > 0, width / total, 1e-30)
        behind = xp.clip(xp.ceil((points - begin) / apart - 0.5), 0.0, float(_MOST_SAMPLES))
        behind = xp.astype(behind, xp.int64)
        behind = behind + xp.astype(position(behind) < points, xp.int64)
        behind = behind - xp.astype(position(behind - 1) >= points, xp.int64)
        behind = xp.clip(behind, min=0)
        behind = xp.where(behind < samples, behind, samples)

        # Samples between two points share their weight among both, but those before the first and
        # behind the last input have that of this input.
        start, stop = behind[..., :-1], behind[..., 1:]
        middle = position(self._real(start) / 2 + self._real(stop - 1) / 2)
        share = xp.clip(middle - points[:-1], 0.0, 1.0)
        share = xp.where(points[:-1] < 0, 1.0, xp.where(points[1:] > size - 1, 0.0, share))
        number = self._divided(self._real(stop - start), total)
        return (number * share)[..., :-1] + (number * (1 - share))[..., 1:]

    def _taps(self, axis: int) -> tuple[Any, Any]:
        """Return the inputs that samples read, with their weights: (boxes, bins, taps).

        A sample has two taps along an axis. Without a number of samples all inputs are taps.
        """
        xp, weights, size = self._xp, self._weights(axis), self.shape[2 + axis]
        taps = min(2 * self.bins.sampling_ratio or size, size)
        inputs = xp.argsort(xp.astype(weights == 0, xp.int32), axis=2, stable=True)[:, :, :taps]
        return inputs, xp.take_along_axis(weights, inputs, axis=2)

    def _averages(
        self, x: Any, image: Any, rows: Any, row_weights: Any, columns: Any, column_weights: Any
    ) -> Any:
        xp, (_, channels, height, width) = self._xp, x.shape
        lines = self._planes(image[:, None], channels)[..., None] * height + rows[:, None, :, :]
        values = self._real(_taken(xp, xp.reshape(x, (-1, width)), lines))
        sums = _weighted(xp, values, row_weights[:, None, :, :, None], 3)
        at = xp.reshape(columns, (columns.shape[0], 1, 1, -1))
        values = xp.take_along_axis(
            sums, xp.broadcast_to(at, (*sums.shape[:3], at.shape[3])), axis=3
        )
        values = xp.reshape(values, (*sums.shape[:3], *columns.shape[1:]))
        return _weighted(xp, values, column_weights[:, None, None, :, :], 4)

    def _spread(self, gy: Any, image: Any, rows: Any, row_weights: Any, columns: Any) -> Any:
        xp, (images, _, height, width), channels = self._xp, self.shape, gy.shape[1]
        gy = xp.permute_dims(self._real(gy), (0, 2, 1, 3))  # boxes, rows of bins, channels, columns
        lines = _weighted(xp, gy[..., None], columns[:, None, None, :, :], 3)
        weights = row_weights[:, :, :, None, None]
        values = xp.where(weights > 0, weights * lines[:, :, None, :, :], 0.0)
        keys = xp.reshape(image[:, None, None] * height + rows, (-1,))
        values = xp.reshape(values, (keys.shape[0], channels * width))
        sums = _sums_of_equals(xp, values, keys, images * height)
        return xp.permute_dims(xp.reshape(sums, (images, height, channels, width)), (0, 2, 1, 3))


def _later_wins(xp: Any, earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
    """Return the larger values, and what belongs to them: of equal values the earlier.

    A NaN is larger than all numbers, and a later one than an earlier one.
    """
    wins = (later[0] > earlier[0]) | xp.isnan(later[0])
    return [xp.where(wins, b, a) for a, b in zip(earlier, later, strict=True)]


def _weighted(xp: Any, values: Any, weights: Any, axis: int) -> Any:
    """Sum along an axis with weights; values of weight 0 have no influence, not even NaN."""
    return xp.sum(xp.where(weights > 0, weights * values, 0.0), axis=axis)


def _sums_of_equals(xp: Any, values: Any, keys: Any, count: int) -> Any:
    """Return the sum of the rows of each key from 0 to `count`, without scattering.

    Rows are sorted by their keys and added by a segment tree: a level has the sums of pairs of rows
    of the level below, and a segment is the sum of at most two rows of each level, an odd first one
    and an even last one.
    """
    order = xp.argsort(keys, stable=True)
    keys, values = xp.take(keys, order, axis=0), xp.take(values, order, axis=0)
    limits = xp.searchsorted(keys, xp.arange(count + 1, dtype=keys.dtype, **placed(keys)))
    begin, end = limits[:-1], limits[1:]
    total: Any = 0.0
    while values.shape[0]:
        for at, apart in ((begin, begin % 2 == 1), (end - 1, end % 2 == 1)):
            used = apart & (begin < end)
            rows = xp.take(values, xp.where(used, at, 0), axis=0)
            total = total + xp.where(used[:, None], rows, 0.0)
        begin, end = (begin + 1) // 2, end // 2
        values = values[:-1:2, :] + values[1::2, :]
    return total


def _taken(xp: Any, x: Any, at: Any) -> Any:
    """Take rows of `x` at positions of any shape."""
    rows = xp.take(x, xp.reshape(at, (-1,)), axis=0)
    return xp.reshape(rows, (*at.shape, *x.shape[1:]))


def _parts(like: Any, count: int, each: int) -> Iterator[tuple[int, int]]:
    """Divide `count` things of `each` elements into ranges of at most `_TILE` elements.

    JAX gets one range: XLA fuses a sum with its terms, and would compile each range separately.
    """
    step = count if is_jax_array(like) else max(_TILE // max(each, 1), 1)
    return ((first, min(first + step, count)) for first in range(0, count, step))
