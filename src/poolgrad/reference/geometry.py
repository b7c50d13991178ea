"""Computes the positions of windows by plain loops, from the definitions in docs/semantics.md.

This code is independent of `poolgrad.windows`, which the kernels and `poolgrad.portable` use and
which is tested against it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

from poolgrad.windows import WindowKind, WindowSpec

Position = tuple[int, ...]


class Line(NamedTuple):
    """The windows along one axis.

    Attributes
    ----------
    kernel_size : int
        Taps of a window, padding included.
    taps : list of list of (int, int)
        For each output the pairs (tap, input) that are not padding, in ascending order.
    extents : list of int
        For each output the number of taps inside the padded input.
    """

    kernel_size: int
    taps: list[list[tuple[int, int]]]
    extents: list[int]


def line(spec: WindowSpec, axis: int, size: int) -> Line:
    """Return the windows along one axis of this size, unless they depend on samples."""
    if spec.kind is not WindowKind.FIXED:
        return _bins(size, spec.output_size[axis] or size)
    kernel, stride, dilation = spec.kernel_size[axis], spec.stride[axis], spec.dilation[axis]
    reach = 1 + dilation * (kernel - 1)  # from the first to the last tap
    low, high = _same(size, stride, reach) if spec.padding == "same" else spec.padding[axis]
    taps, extents, start = [], [], 0
    while _counts(start, stride, reach, low, size, high, spec.ceil_mode):
        positions = [(tap, start + tap * dilation) for tap in range(kernel)]
        taps.append([(tap, at - low) for tap, at in positions if low <= at < low + size])
        extents.append(sum(at < low + size + high for _, at in positions))
        start += stride
    return Line(kernel, taps, extents)


def _counts(
    start: int, stride: int, reach: int, low: int, size: int, high: int, ceil_mode: bool
) -> bool:
    """Whether a window that starts at this position of the padded input gives an output."""
    if not ceil_mode:
        return start + reach <= low + size + high
    # The first window that reaches the end is the last, and it starts in the input or before it.
    return start - stride + reach < low + size + high and start < low + size


def _same(size: int, stride: int, reach: int) -> tuple[int, int]:
    """Return the least padding with which there are ``ceil(size / stride)`` outputs."""
    outputs = len(range(0, size, stride))
    total = 0
    while (outputs - 1) * stride + reach > size + total:
        total += 1
    return total // 2, total - total // 2


def _bins(size: int, bins: int) -> Line:
    """Bin o holds every input i for which [i, i + 1) and [o, o + 1) * size / bins overlap."""
    taps = []
    for o in range(bins):
        inside = [i for i in range(size) if (i + 1) * bins > o * size and i * bins < (o + 1) * size]
        taps.append(list(enumerate(inside)))
    return Line(max(map(len, taps)), taps, [len(own) for own in taps])


def sampled_line(spec: WindowSpec, axis: int, size: int, sample: Any) -> Line:
    """Fractional windows along one axis (Graham, Fractional max-pooling, 2014, as in PyTorch)."""
    assert spec.kind is WindowKind.FRACTIONAL
    kernel, outputs = spec.kernel_size[axis], spec.output_size[axis]
    assert outputs is not None
    begins = starts(size, outputs, kernel, sample)
    return Line(kernel, [[(k, b + k) for k in range(kernel)] for b in begins], [kernel] * outputs)


def starts(size: int, out: int, kernel: int, sample: Any) -> list[int]:
    """Return the starts of fractional windows along one axis, computed in the dtype of `sample`."""
    number, last = type(sample), size - kernel
    found = []
    for i in range(out - 1):
        step = number(last) / number(out - 1)
        start = int((number(i) + sample) * step) - int(sample * step)
        found.append(min(max(start, 0), last))  # narrow dtypes may round beyond the end
    return [*found, last]


def window(lines: list[Line], output: Position) -> tuple[list[Position], list[int], int]:
    """The inputs of one window, their tap numbers (row-major), and its extent."""
    inputs, numbers = [], []
    for combined in itertools.product(*(own.taps[o] for own, o in zip(lines, output, strict=True))):
        number = 0
        for (tap, _), own in zip(combined, lines, strict=True):
            number = number * own.kernel_size + tap
        numbers.append(number)
        inputs.append(tuple(i for _, i in combined))
    extents = (own.extents[o] for own, o in zip(lines, output, strict=True))
    return inputs, numbers, math.prod(extents)
