"""Computes RoIPool and RoIAlign, forward and backward, in array-API operations.

The results are those of the kernels: coordinates are computed in the same order and dtype, maxima
have the same winners, and sums differ by rounding. No value is read by the host, and nothing is
scattered. Gradients are sorted by their destination, stably, and added in blocks of fixed positions
(`_segment_sums`), so equal calls give equal bits. Arrays of more than the size of the input, the
output and the routes are computed in chunks of about `_CHUNK` elements.

RoIPool ranks the inputs of a plane, so that a maximum of ranks is the winner, and finds the maxima
of all bins by log-step doubling: the maximum over any range is that of two ranges whose length is a
power of two. RoIAlign sums the taps of a bin (inputs and weights) along rows, then along columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from poolgrad.portable.arrays import converted, exact_dtype, name_of, namespace, placed, widest

if TYPE_CHECKING:
    from poolgrad.regions import Bins

_CHUNK = 2**24  # elements of the largest temporary array
_BLOCK = 16  # rows that one step of `_segment_sums` adds
_FARTHEST = 2.0**30
_MOST_SAMPLES = 2**31  # of a bin along an axis, if their number follows from the box


class Taps(NamedTuple):
    """The taps of each bin along one axis, (boxes, bins, taps); a tap of weight 0 is not used."""

    inputs: Any
    weights: Any


def accepted(boxes: Any, images: int, factor: float) -> Any:
    """Return, as an array without axes, whether the kernels accept the values of all boxes."""
    xp = namespace(boxes)
    table = converted(xp, boxes, widest(xp, boxes))
    image, low, high = table[:, 0], table[:, 1:3], table[:, 3:]
    corners = table[:, 1:]
    near = (xp.abs(corners) <= _FARTHEST) & (xp.abs(corners * factor) <= _FARTHEST)  # not of NaN
    exists = (image >= 0) & (image < images) & (image == xp.floor(image))
    return xp.all(exists) & xp.all(near) & xp.all(low <= high)


class _Boxes:
    """The boxes of a call, in the dtype in which coordinates are computed.

    Parameters
    ----------
    boxes : array, shape (K, 5)
        Boxes of real numbers, on the device of the feature maps.
    shape : tuple of int
        Shape of the feature maps.
    size : sequence of int
        Numbers of bins along the height and the width.
    dtype : str
        Dtype of the feature maps.
    """

    def __init__(self, boxes: Any, shape: Sequence[int], size: Sequence[int], dtype: str) -> None:
        self.xp = xp = namespace(boxes)
        self.images, self.channels, self.height, self.width = shape
        self.count, (self.rows, self.columns) = boxes.shape[0], size
        self.dtype, self.where = exact_dtype(dtype), placed(boxes)
        table = converted(xp, boxes, widest(xp, boxes))
        image = xp.astype(table[:, 0], xp.int64)
        self.image = xp.clip(image, 0, max(self.images - 1, 0))
        corners = converted(xp, table[:, 1:], self.dtype)
        self._corners = [corners[:, k : k + 1] for k in range(4)]

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        return self.count, self.channels, self.rows, self.columns

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.images, self.channels, self.height, self.width

    @property
    def plane(self) -> int:
        return self.height * self.width

    @property
    def planes(self) -> Any:
        """Return the number of the plane of each box and channel among all planes of the input."""
        return self.image[:, None] * self.channels + self.arange(self.channels)[None, :]

    def with_channels(self, channels: int) -> _Boxes:
        """Return the boxes for feature maps of fewer channels."""
        changed = copy(self)
        changed.channels = channels
        return changed

    def arange(self, *limits: int) -> Any:
        return self.xp.arange(*limits, dtype=self.xp.int64, **self.where)

    def number(self, value: float) -> Any:
        """Return a number as an array on the device: PyTorch divides by it and rounds once.

        On CUDA, PyTorch divides by a Python number by multiplying with its reciprocal.
        """
        return self.xp.full((), value, dtype=getattr(self.xp, self.dtype), **self.where)

    def real(self, value: Any) -> Any:
        return converted(self.xp, value, self.dtype)

    def pixel_bins(self, axis: int, factor: float) -> tuple[Any, Any]:
        """Return the first pixel of each bin of RoIPool and the end: (K, bins)."""
        xp, bins, size = self.xp, *self._of(axis)
        first, last = (self._whole(self._corners[k] * factor) for k in (1 - axis, 3 - axis))
        width = self.real(xp.clip(last - first + 1, min=1)) / self.number(bins)
        index = self.arange(bins)[None, :]
        begin = first + xp.astype(xp.floor(self.real(index) * width), xp.int64)
        end = first + xp.astype(xp.ceil(self.real(index + 1) * width), xp.int64)
        return xp.clip(begin, 0, size), xp.clip(end, 0, size)

    def _of(self, axis: int) -> tuple[int, int]:
        """Return the number of bins and the size of the map along axis 0 (rows) or 1 (columns)."""
        return ((self.rows, self.height), (self.columns, self.width))[axis]

    def _whole(self, value: Any) -> Any:
        """Round to integers, halves away from zero."""
        xp, size = self.xp, self.xp.abs(value)
        below = xp.floor(size)
        rounded = below + self.real(size - below >= 0.5)
        return xp.astype(xp.where(value < 0, -rounded, rounded), xp.int64)

    def taps(self, axis: int, wanted: Bins) -> Taps:
        """Return the taps of RoIAlign along an axis; weights are divided by the samples."""
        xp, bins, size = self.xp, *self._of(axis)
        offset = 0.5 if wanted.aligned else 0.0
        start = self._corners[1 - axis] * wanted.spatial_scale - offset
        width = self._corners[3 - axis] * wanted.spatial_scale - offset - start
        if not wanted.aligned:
            width = xp.where(width > 1, width, xp.ones_like(width))
        width = width / self.number(bins)
        begin = start + self.real(self.arange(bins)[None, :]) * width
        ratio = wanted.sampling_ratio
        if ratio and 2 * ratio < size:
            return self._sampled_taps(begin, width, ratio, size)
        if ratio:
            samples = xp.zeros_like(begin, dtype=xp.int64) + ratio
            steps = ratio.bit_length()
        else:
            samples = xp.astype(xp.ceil(width), xp.int64) + xp.zeros_like(begin, dtype=xp.int64)
            samples, steps = xp.clip(samples, 0, _MOST_SAMPLES), _MOST_SAMPLES.bit_length()
        return self._dense_taps(begin, width, samples, steps, size)

    def _sampled_taps(self, begin: Any, width: Any, ratio: int, size: int) -> Taps:
        """Return two taps for each sample."""
        xp = self.xp
        step = (self.real(self.arange(ratio)) + 0.5) * width[..., None] / self.number(ratio)
        at = begin[..., None] + step
        used = (at >= -1) & (at <= size)
        inside = xp.where(used & (at > 0), at, xp.zeros_like(at))
        low = xp.clip(xp.astype(inside, xp.int64), 0, size - 1)
        fraction = xp.where(low < size - 1, inside - self.real(low), 0.0)
        weights = xp.concat([1 - fraction, fraction], axis=-1)
        weights = xp.where(xp.concat([used, used], axis=-1), weights, 0.0) / self.number(ratio)
        return Taps(xp.concat([low, xp.clip(low + 1, max=size - 1)], axis=-1), weights)

    def _dense_taps(self, begin: Any, width: Any, samples: Any, steps: int, size: int) -> Taps:
        """Return a tap for each input of the map.

        Samples are equally spaced, so the sum of the weights that those between two inputs give to
        each follows from their number and their mean. The cost does not depend on the samples.
        """
        xp, most = self.xp, self.real(self.xp.clip(samples, min=1))

        def position(sample: Any) -> Any:
            return begin + (self.real(sample) + 0.5) * width / most

        def before(sample: Any) -> Any:
            at = position(sample)
            return xp.concat([at[:1, ...] < -1, at[1:, ...] <= size], axis=0)

        # The first sample in the map, and the first behind it, by bisection: exact
        zeros = xp.zeros((2, 1, 1), dtype=xp.int64, **self.where)
        high = zeros + samples
        low = xp.zeros_like(high)
        for _ in range(steps):
            middle = (low + high) // 2
            later = before(middle) & (low < high)
            low, high = xp.where(later, middle + 1, low), xp.where(later, high, middle)
        first, last = low[0, :, :, None], low[1, :, :, None]

        # The first sample at or behind each input. An input on which a sample lies has the same
        # weight from either side, so this number may be rounded.
        inputs = self.real(self.arange(size))
        distance = (width / most)[..., None]
        ahead = inputs - begin[..., None]
        spread = xp.where(distance > 0, distance, xp.ones_like(distance))
        count = xp.ceil(ahead / spread - 0.5)
        count = xp.where(distance > 0, count, self.real(ahead > 0) * _MOST_SAMPLES)
        reached = xp.astype(xp.clip(count, 0.0, float(_MOST_SAMPLES)), xp.int64)
        reached = xp.clip(reached, first, last)
        following = xp.concat([reached[..., 1:], last], axis=-1)

        number = self.real(following - reached)
        mean = begin[..., None] + self.real(following + reached) / 2 * distance - inputs
        upper = number * xp.clip(mean, 0.0, 1.0)  # to the next input
        upper = xp.concat([upper[..., :-1], xp.zeros_like(upper[..., :1])], axis=-1)
        outside = self.real(reached[..., :1] - first)  # samples before the first input
        lower = xp.concat([outside, upper[..., :-1]], axis=-1)
        weights = (number - upper + lower) / most[..., None]
        return Taps(self.arange(size) + xp.zeros_like(following), weights)


# RoIPool


def pool(x: Any, boxes: Any, wanted: Bins) -> tuple[Any, Any]:
    """Compute the maximum of each bin, and the index of the winner in its plane (int32; or -1)."""
    xp = namespace(x)
    frame = _Boxes(boxes, x.shape, wanted.output_size, name_of(x.dtype))
    if 0 in frame.out_shape:
        return _zeros(xp, frame.out_shape, x.dtype, x), _zeros(xp, frame.out_shape, xp.int32, x)
    rows, columns = (frame.pixel_bins(axis, wanted.spatial_scale) for axis in range(2))
    inputs = frame.images * frame.plane * (frame.width.bit_length() + 4)
    outputs = 8 * frame.count * frame.rows * frame.columns
    parts = [
        _maxima(frame, x[:, first:last, :, :], rows, columns)
        for first, last in _chunks(frame.channels, inputs + outputs)
    ]
    y, indices = (xp.concat(list(part), axis=1) for part in zip(*parts, strict=True))
    return y, converted(xp, indices, "int32")


def pool_gather(t: Any, indices: Any, boxes: Any) -> Any:
    """Return the input at each index, and 0 at -1."""
    xp = namespace(t)
    frame = _Boxes(boxes, t.shape, indices.shape[2:], name_of(t.dtype))
    if 0 in frame.out_shape:
        return _zeros(xp, frame.out_shape, t.dtype, t)
    at, inside = _positions(frame, indices)
    values = _taken(xp, xp.reshape(t, (-1,)), xp.where(inside, at, 0))
    return xp.where(inside, values, xp.zeros_like(values))


def pool_backward(gy: Any, indices: Any, boxes: Any, shape: Sequence[int]) -> Any:
    """Add each gradient at its index; the gradient of the input."""
    xp = namespace(gy)
    frame = _Boxes(boxes, shape, gy.shape[2:], name_of(gy.dtype))
    if 0 in frame.shape or 0 in frame.out_shape:
        return _zeros(xp, frame.shape, gy.dtype, gy)
    inputs = 2 * _BLOCK * frame.images * frame.plane
    parts = []
    for first, last in _chunks(frame.channels, inputs + math.prod(gy.shape) // frame.channels):
        own, count = frame.with_channels(last - first), frame.images * (last - first) * frame.plane
        at, inside = _positions(own, indices[:, first:last, :, :])
        order, begin, end = _sorted(xp, xp.where(inside, at, count), count)
        values = xp.reshape(gy[:, first:last, :, :], (-1,))
        values = converted(xp, xp.take(values, order, axis=0), frame.dtype)
        parts.append(xp.reshape(_segment_sums(xp, values[:, None], begin, end), own.shape))
    return xp.astype(xp.concat(parts, axis=1), gy.dtype)


def _maxima(
    frame: _Boxes, x: Any, rows: tuple[Any, Any], columns: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Return the maxima of some channels and their positions in a plane."""
    xp, channels, plane = frame.xp, x.shape[1], frame.plane
    count = frame.images * channels
    numbers = frame.arange(plane)
    flat = xp.reshape(converted(xp, x, frame.dtype), (count, plane))
    # Ranks: of equal inputs the first has the highest, of NaN the last. Adding 0 removes signs of
    # zeros, which a sort might distinguish.
    nan = xp.isnan(flat)
    backwards = xp.flip(xp.where(nan, 0.0, flat + 0.0), axis=1)
    order = xp.argsort(backwards, axis=1, stable=True)
    ranks = xp.flip(xp.argsort(order, axis=1, stable=True), axis=1)
    ranks = xp.where(nan, plane + numbers, ranks)
    ranks = converted(xp, ranks, "int32" if 2 * plane < 2**31 else "int64")

    ranks = xp.reshape(ranks, (count, frame.height, frame.width))
    tall, wide = _exponents(frame, *rows, frame.height), _exponents(frame, *columns, frame.width)
    left = [columns[0], columns[1] - 2 ** xp.clip(wide, min=0)]
    own = frame.with_channels(channels).planes  # (boxes, channels)
    best = (
        xp.zeros(
            (frame.count, channels, frame.rows, frame.columns), dtype=ranks.dtype, **frame.where
        )
        - 1
    )
    for exponent in range(frame.height.bit_length()):
        table = xp.stack(list(_doubled(xp, ranks, 2, frame.width.bit_length())))
        table = xp.reshape(table, (-1,))
        used = ((tall == exponent)[:, :, None] & (wide >= 0)[:, None, :])[:, None, :, :]
        for row in (rows[0], rows[1] - 2**exponent):
            for column in left:
                at = (wide * count)[:, None, None, :] + own[:, :, None, None]
                at = (at * frame.height + row[:, None, :, None]) * frame.width
                at = xp.where(used, at + column[:, None, None, :], 0)
                best = xp.where(used, xp.maximum(best, _taken(xp, table, at)), best)
        ranks = _pairs(xp, ranks, 1, 2**exponent)

    found = best >= 0
    best = xp.astype(best, xp.int64)
    ranked = own[:, :, None, None] * plane + xp.clip(best, 0, plane - 1)
    winner = plane - 1 - _taken(xp, xp.reshape(order, (-1,)), ranked)
    winner = xp.where(best < plane, winner, best - plane)
    winner = xp.where(found, winner, 0)
    values = _taken(xp, xp.reshape(x, (-1,)), own[:, :, None, None] * plane + winner)
    return xp.where(found, values, xp.zeros_like(values)), xp.where(found, winner, -1)


def _exponents(frame: _Boxes, begin: Any, end: Any, size: int) -> Any:
    """Return the exponent of the largest power of two that a range holds; -1 if it is empty."""
    xp, powers = frame.xp, 2 ** frame.arange(size.bit_length())
    return xp.sum(xp.astype((end - begin)[..., None] >= powers, xp.int64), axis=-1) - 1


def _pairs(xp: Any, x: Any, axis: int, step: int) -> Any:
    """Return the maximum of each element and the one `step` later, if there is one."""
    size = x.shape[axis]
    if step >= size:
        return x
    ahead = (slice(None),) * axis
    behind = (slice(None),) * (x.ndim - axis - 1)
    high = xp.maximum(
        x[(*ahead, slice(0, size - step), *behind)], x[(*ahead, slice(step, size), *behind)]
    )
    return xp.concat([high, x[(*ahead, slice(size - step, size), *behind)]], axis=axis)


def _doubled(xp: Any, x: Any, axis: int, count: int) -> Iterator[Any]:
    """Yield the maxima of 1, 2, 4, ... elements along an axis."""
    for exponent in range(count):
        yield x
        x = _pairs(xp, x, axis, 2**exponent)


def _positions(frame: _Boxes, indices: Any) -> tuple[Any, Any]:
    """Return positions in the whole input, and which indices are positions of their plane."""
    xp = frame.xp
    index = xp.astype(indices, xp.int64)
    inside = (index >= 0) & (index < frame.plane)
    return frame.planes[:, :, None, None] * frame.plane + index, inside


# RoIAlign


def align(x: Any, boxes: Any, wanted: Bins) -> Any:
    """Compute the average of the samples of each bin."""
    xp = namespace(x)
    frame = _Boxes(boxes, x.shape, wanted.output_size, name_of(x.dtype))
    if 0 in frame.out_shape:
        return _zeros(xp, frame.out_shape, x.dtype, x)
    rows, columns = frame.taps(0, wanted), frame.taps(1, wanted)
    down, across = rows.inputs.shape[2], columns.inputs.shape[2]
    lines = xp.reshape(x, (-1, frame.width))
    planes = xp.reshape(frame.planes, (-1,))
    parts = []
    each = frame.rows * (down * frame.width + frame.columns * across)
    for first, last in _chunks(frame.count * frame.channels, each):
        box, count = frame.arange(first, last) // frame.channels, last - first
        at = (planes[first:last] * frame.height)[:, None, None] + xp.take(rows.inputs, box, axis=0)
        values = converted(xp, _taken(xp, lines, at), frame.dtype)
        sums = _weighted(xp, values, xp.take(rows.weights, box, axis=0)[..., None], 2)
        at = xp.reshape(xp.take(columns.inputs, box, axis=0), (count, 1, -1))
        at = xp.broadcast_to(at, (count, frame.rows, at.shape[2]))
        values = xp.take_along_axis(sums, at, axis=2)
        values = xp.reshape(values, (count, frame.rows, frame.columns, across))
        weights = xp.take(columns.weights, box, axis=0)[:, None, :, :]
        parts.append(xp.astype(_weighted(xp, values, weights, 3), x.dtype))
    return xp.reshape(xp.concat(parts, axis=0), frame.out_shape)


def align_backward(gy: Any, boxes: Any, shape: Sequence[int], wanted: Bins) -> Any:
    """Compute the gradient of the input: the transpose of `align`."""
    xp = namespace(gy)
    frame = _Boxes(boxes, shape, gy.shape[2:], name_of(gy.dtype))
    if 0 in frame.shape or 0 in frame.out_shape:
        return _zeros(xp, frame.shape, gy.dtype, gy)
    rows, columns = frame.taps(0, wanted), frame.taps(1, wanted)
    across = _by_input(frame, columns, frame.width)
    down, count = rows.inputs.shape[2], frame.images * frame.height
    each, inputs = frame.rows * frame.width * (frame.columns + down), count * frame.width
    parts = []
    for begin, end in _chunks(frame.channels, each * frame.count + 2 * _BLOCK * inputs):
        total: Any = 0
        for first, last in _chunks(frame.count, each * (end - begin)):
            g = converted(xp, gy[first:last, begin:end, :, :], frame.dtype)
            lines = xp.permute_dims(g, (0, 2, 1, 3))[..., None]  # (boxes, rows, channels, columns)
            lines = _weighted(xp, lines, across[first:last, None, None, :, :], 3)
            lines = xp.reshape(lines, ((last - first) * frame.rows, -1))
            weights = xp.reshape(rows.weights[first:last, :, :], (-1,))
            at = frame.image[first:last, None, None] * frame.height + rows.inputs[first:last, :, :]
            at = xp.where(weights > 0, xp.reshape(at, (-1,)), count)
            order, *segments = _sorted(xp, at, count)
            values = xp.take(lines, order // down, axis=0)
            values = xp.take(weights, order, axis=0)[:, None] * values
            total = total + _segment_sums(xp, values, *segments)
        total = xp.reshape(total, (frame.images, frame.height, end - begin, frame.width))
        parts.append(xp.astype(xp.permute_dims(total, (0, 2, 1, 3)), gy.dtype))
    return xp.concat(parts, axis=1)


def _by_input(frame: _Boxes, taps: Taps, size: int) -> Any:
    """Return the weight of each input of the map in each bin: (boxes, bins, size)."""
    xp = frame.xp
    if taps.inputs.shape[2] == size:  # a tap for each input
        return taps.weights
    here = taps.inputs[..., None] == frame.arange(size)
    return xp.sum(xp.where(here, taps.weights[..., None], 0.0), axis=2)


def _weighted(xp: Any, values: Any, weights: Any, axis: int) -> Any:
    """Sum along an axis with weights; values of weight 0 have no influence, not even NaN."""
    return xp.sum(xp.where(weights > 0, weights * values, 0.0), axis=axis)


# Sums without scattering


def _sorted(xp: Any, keys: Any, count: int) -> tuple[Any, Any, Any]:
    """Sort keys stably; return the order, and the begin and end of each of `count` keys in it."""
    flat = xp.reshape(keys, (-1,))
    order = xp.argsort(flat, stable=True)
    limits = xp.arange(count + 1, dtype=flat.dtype, **placed(keys))
    limits = xp.searchsorted(xp.take(flat, order, axis=0), limits)
    return order, limits[:-1], limits[1:]


def _segment_sums(xp: Any, values: Any, begin: Any, end: Any) -> Any:
    """Sum the rows from begin to end of each segment.

    A segment is a sum of whole blocks of `_BLOCK` rows, which are segments of an array of the sums
    of blocks, and of the rows before and behind them.
    """
    total: Any = 0
    while True:
        first = xp.minimum(-(-begin // _BLOCK) * _BLOCK, end)
        last = xp.maximum(end // _BLOCK * _BLOCK, first)
        for low, high in ((begin, first), (last, end)):
            at = low[:, None] + xp.arange(_BLOCK, dtype=low.dtype, **placed(low))
            inside = at < high[:, None]
            rows = _taken(xp, values, xp.where(inside, at, 0))
            total = total + xp.sum(xp.where(inside[:, :, None], rows, 0.0), axis=1)
        count, width = values.shape
        if count < _BLOCK:
            return total
        none = xp.zeros((-count % _BLOCK, width), dtype=values.dtype, **placed(values))
        values = xp.reshape(xp.concat([values, none], axis=0), (-1, _BLOCK, width))
        values, begin, end = xp.sum(values, axis=1), first // _BLOCK, last // _BLOCK


def _taken(xp: Any, x: Any, at: Any) -> Any:
    """Take rows of `x` at positions of any shape."""
    rows = xp.take(x, xp.reshape(at, (-1,)), axis=0)
    return xp.reshape(rows, (*at.shape, *x.shape[1:]))


def _zeros(xp: Any, shape: tuple[int, ...], dtype: Any, like: Any) -> Any:
    return xp.zeros(shape, dtype=dtype, **placed(like))


def _chunks(count: int, each: int) -> Iterator[tuple[int, int]]:
    """Divide `count` things of `each` elements into ranges of at most `_CHUNK` elements."""
    step = max(_CHUNK // max(each, 1), 1)
    return ((first, min(first + step, count)) for first in range(0, count, step))
