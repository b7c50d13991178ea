"""Reference implementation of region-of-interest pooling: loops over boxes, channels and bins.

As in `poolgrad.regions`, coordinates are computed in float32 unless the input is float64, because
their rounding determines which pixels a bin contains. Values are added in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import numpy as np

from poolgrad.reference.operators import Array
from poolgrad.region_maps import Bins, bins, host_table

Index = tuple[int, int, int, int]
Entry = tuple[Index, Index, float]  # an output, an input that it depends on, and the weight


class RegionPullback:
    """Computes the output and, when called, the gradient of the input, from the same entries."""

    def __init__(self, x: Array, shape: Index, entries: list[Entry]) -> None:
        self._x, self._entries = x, entries
        y = np.zeros(shape)
        for output, i, weight in entries:
            y[output] += weight * float(x[i])
        self.y = y.astype(x.dtype)

    def __call__(self, gy: Array) -> Array:
        """Compute the gradient of the input: the weighted sum of the gradients of outputs."""
        gx = np.zeros(self._x.shape)
        for output, i, weight in self._entries:
            gx[i] += weight * float(gy[output])
        return gx.astype(self._x.dtype)


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


def _pool_entries(x: Array, table: Array, how: Bins) -> Iterator[Entry]:
    (_, channels, height, width), size = x.shape, how.output_size
    for k, image, (x1, y1, x2, y2) in _scaled(x, table, how.spatial_scale):
        rows, columns = pixel_bins(y1, y2, size[0], height), pixel_bins(x1, x2, size[1], width)
        for c, i, j in itertools.product(range(channels), range(size[0]), range(size[1])):
            pixels = [(image, c, h, w) for h in rows[i] for w in columns[j]]
            winner = pixels[0] if pixels else None
            for pixel in pixels:  # a NaN wins, of equal inputs the first
                if x[pixel] > x[winner] or np.isnan(x[pixel]):
                    winner = pixel
            if winner:
                yield (k, c, i, j), winner, 1.0


# RoIAlign


def interpolated(at: Any, size: int) -> dict[int, float]:
    """The inputs around a point along an axis and their weights; none if it is too far outside."""
    if at < -1 or at > size:
        return {}
    at = max(at, type(at)(0))
    first = min(int(at), size - 1)
    share = float(at - type(at)(first)) if first < size - 1 else 0.0
    return {i: weight for i, weight in ((first, 1 - share), (first + 1, share)) if weight}


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
    steps = [real(s + 0.5) * bin_length / real(count) for s in range(count)]
    return [[low + real(b) * bin_length + step for step in steps] for b in range(bins)]


def _align_entries(x: Array, table: Array, how: Bins) -> Iterator[Entry]:
    (_, channels, height, width), (size, scale, ratio, aligned) = x.shape, how
    for k, image, (x1, y1, x2, y2) in _scaled(x, table, scale):
        rows = sample_points(y1, y2, size[0], ratio, aligned)
        columns = sample_points(x1, x2, size[1], ratio, aligned)
        for i, j in itertools.product(range(size[0]), range(size[1])):
            points = list(itertools.product(rows[i], columns[j]))
            weights: dict[tuple[int, int], float] = {}
            for at_y, at_x in points:
                taps = interpolated(at_y, height).items(), interpolated(at_x, width).items()
                for (h, along_y), (w, along_x) in itertools.product(*taps):
                    weight = along_y * along_x / len(points)
                    weights[h, w] = weights.get((h, w), 0.0) + weight
            for c, ((h, w), weight) in itertools.product(range(channels), weights.items()):
                yield (k, c, i, j), (image, c, h, w), weight


# Functions with the signatures of `poolgrad`


def vjp(function: Callable[..., Array], *args: Any, **kwargs: Any) -> tuple[Array, RegionPullback]:
    """Compute the output and the pullback of a call of `roi_pool` or `roi_align`."""
    given = signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    input, boxes, *arguments = given.args
    x, how = np.asarray(input), bins(*arguments)
    table = host_table(boxes, len(x))
    entries = list(ENTRIES[function](x, table, how))
    pullback = RegionPullback(x, (len(table), x.shape[1], *how.output_size), entries)
    return pullback.y, pullback


def roi_pool(input: Any, boxes: Any, output_size: Any, spatial_scale: float = 1.0) -> Array:
    """Reference implementation of `poolgrad.roi_pool` (Girshick, Fast R-CNN, 2015)."""
    return vjp(roi_pool, input, boxes, output_size, spatial_scale)[0]


def roi_align(
    input: Any,
    boxes: Any,
    output_size: Any,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Array:
    """Reference implementation of `poolgrad.roi_align` (He et al., Mask R-CNN, 2017)."""
    return vjp(roi_align, input, boxes, output_size, spatial_scale, sampling_ratio, aligned)[0]


ENTRIES: dict[Callable[..., Array], Callable[..., Iterator[Entry]]]
ENTRIES = {roi_pool: _pool_entries, roi_align: _align_entries}
