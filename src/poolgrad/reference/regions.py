"""Reference implementation of region-of-interest pooling: loops over boxes, channels and bins.

As in `poolgrad.regions`, coordinates are computed in float32 unless the input is float64, because
their rounding determines which pixels a bin contains. Values are added in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from poolgrad.reference.operators import Array


class Entry(NamedTuple):
    """One output: its box, channel and bin, and the inputs that it is a sum of, with weights."""

    output: tuple[int, int, int, int]
    inputs: list[tuple[int, int, int, int]]
    weights: list[float]


class RegionPullback:
    """Computes the output and, when called, the gradient of the input, from the same entries."""

    def __init__(self, x: Array, table: Array, size: tuple[int, int], entries: list[Entry]) -> None:
        self._x = x
        self._entries = entries
        y = np.zeros((len(table), self._x.shape[1], *size))
        for output, inputs, weights in entries:
            for i, weight in zip(inputs, weights, strict=True):
                y[output] += weight * float(self._x[i])
        self.y = y.astype(self._x.dtype)

    def __call__(self, gy: Array) -> Array:
        """Compute the gradient of the input: the weighted sum of the gradients of outputs."""
        gx = np.zeros(self._x.shape)
        for output, inputs, weights in self._entries:
            for i, weight in zip(inputs, weights, strict=True):
                gx[i] += weight * float(gy[output])
        return gx.astype(self._x.dtype)


def _table(boxes: Any) -> Array:
    """Boxes of either form, in rows: image, x1, y1, x2, y2."""
    if isinstance(boxes, list | tuple):
        rows = [(n, *box) for n, own in enumerate(boxes) for box in np.asarray(own).tolist()]
        return np.array(rows, np.float64).reshape(-1, 5)
    return np.asarray(boxes).astype(np.float64)


def _pair(output_size: Any) -> tuple[int, int]:
    height, width = (output_size,) * 2 if isinstance(output_size, int) else output_size
    return int(height), int(width)


def _scaled(x: Array, table: Array, spatial_scale: float) -> Iterator[tuple[int, int, list[Any]]]:
    """Return each box's number, image and scaled coordinates, in the dtype for coordinates."""
    real = np.float64 if x.dtype == np.float64 else np.float32
    for k, (image, *corners) in enumerate(table):
        yield k, int(image), [real(c) * real(spatial_scale) for c in corners]


# RoIPool


def _whole(number: Any) -> int:
    """The nearest integer; halves are rounded away from zero."""
    size = float(abs(number))
    below = math.floor(size)
    rounded = below + 1 if size - below >= 0.5 else below
    return rounded if number >= 0 else -rounded


def pixel_bins(low: Any, high: Any, bins: int, size: int) -> list[range]:
    """The pixels of each bin along one axis, from the scaled first and last coordinate."""
    first, last = _whole(low), _whole(high)
    real = type(low)
    width = real(max(last - first + 1, 1)) / real(bins)
    found = []
    for b in range(bins):
        begin = first + math.floor(real(b) * width)
        end = first + math.ceil(real(b + 1) * width)
        found.append(range(min(max(begin, 0), size), min(max(end, 0), size)))
    return found


def _pool_entries(
    x: Array, table: Array, size: tuple[int, int], spatial_scale: float = 1.0
) -> Iterator[Entry]:
    _, channels, height, width = x.shape
    for k, image, (x1, y1, x2, y2) in _scaled(x, table, spatial_scale):
        rows, columns = pixel_bins(y1, y2, size[0], height), pixel_bins(x1, x2, size[1], width)
        for c, i, j in itertools.product(range(channels), range(size[0]), range(size[1])):
            pixels = [(image, c, h, w) for h in rows[i] for w in columns[j]]
            if not pixels:
                yield Entry((k, c, i, j), [], [])
                continue
            winner = pixels[0]
            for pixel in pixels:  # a NaN wins, of equal inputs the first
                if x[pixel] > x[winner] or np.isnan(x[pixel]):
                    winner = pixel
            yield Entry((k, c, i, j), [winner], [1.0])


# RoIAlign


def interpolated(y: Any, x: Any, height: int, width: int) -> dict[tuple[int, int], float]:
    """The inputs around a point and their weights; none for a point that lies too far outside."""
    if y < -1 or y > height or x < -1 or x > width:
        return {}
    y, x = max(y, type(y)(0)), max(x, type(x)(0))
    top, left = min(int(y), height - 1), min(int(x), width - 1)
    below = float(y - type(y)(top)) if top < height - 1 else 0.0
    right = float(x - type(x)(left)) if left < width - 1 else 0.0
    corners = {
        (top, left): (1 - below) * (1 - right),
        (top, left + 1): (1 - below) * right,
        (top + 1, left): below * (1 - right),
        (top + 1, left + 1): below * right,
    }
    return {corner: weight for corner, weight in corners.items() if weight}


def sample_points(low: Any, high: Any, bins: int, ratio: int, aligned: bool) -> list[list[Any]]:
    """The samples of each bin along one axis, from the scaled first and last coordinate."""
    real = type(low)
    if aligned:
        low, high = low - real(0.5), high - real(0.5)
    length = high - low
    if not aligned:
        length = max(length, real(1))
    bin_length = length / real(bins)
    count = ratio if ratio > 0 else math.ceil(bin_length)
    return [
        [
            low + real(b) * bin_length + real(s + 0.5) * bin_length / real(count)
            for s in range(count)
        ]
        for b in range(bins)
    ]


def _align_entries(
    x: Array,
    table: Array,
    size: tuple[int, int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Iterator[Entry]:
    _, channels, height, width = x.shape
    for k, image, (x1, y1, x2, y2) in _scaled(x, table, spatial_scale):
        rows = sample_points(y1, y2, size[0], sampling_ratio, aligned)
        columns = sample_points(x1, x2, size[1], sampling_ratio, aligned)
        for i, j in itertools.product(range(size[0]), range(size[1])):
            points = list(itertools.product(rows[i], columns[j]))
            weights: dict[tuple[int, int], float] = {}
            for at_y, at_x in points:
                for corner, weight in interpolated(at_y, at_x, height, width).items():
                    weights[corner] = weights.get(corner, 0.0) + weight / len(points)
            for c in range(channels):
                inputs = [(image, c, h, w) for h, w in weights]
                yield Entry((k, c, i, j), inputs, [*weights.values()])


# Functions with the signatures of `poolgrad`


def _vjp(
    entries: Callable[..., Iterator[Entry]],
    input: Any,
    boxes: Any,
    output_size: Any,
    *arguments: Any,
    **named: Any,
) -> tuple[Array, RegionPullback]:
    x, table, size = np.asarray(input), _table(boxes), _pair(output_size)
    pullback = RegionPullback(x, table, size, list(entries(x, table, size, *arguments, **named)))
    return pullback.y, pullback


def roi_pool(input: Any, boxes: Any, output_size: Any, spatial_scale: float = 1.0) -> Array:
    """Reference implementation of `poolgrad.roi_pool` (Girshick, Fast R-CNN, 2015)."""
    return _vjp(_pool_entries, input, boxes, output_size, spatial_scale)[0]


def roi_align(
    input: Any,
    boxes: Any,
    output_size: Any,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Array:
    """Reference implementation of `poolgrad.roi_align` (He et al., Mask R-CNN, 2017)."""
    how = spatial_scale, sampling_ratio, aligned
    return _vjp(_align_entries, input, boxes, output_size, *how)[0]


VJPS: dict[Callable[..., Any], Callable[..., tuple[Array, RegionPullback]]] = {
    roi_pool: partial(_vjp, _pool_entries),
    roi_align: partial(_vjp, _align_entries),
}
