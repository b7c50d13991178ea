"""Assigns the windows of a chunked axis to chunks, and computes which inputs they read.

A segment is a slice of an axis (`Axis.sliced`): consecutive windows that are pooled together.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from poolgrad.windows import Axis

Range = tuple[int, int]  # begin and end, exclusive


def outputs_of(segment: Axis) -> Range:
    """Return the range of the windows of a segment."""
    first = segment.origin.first
    return first, first + segment.out


def inputs_of(segment: Axis) -> Range:
    """Return the range of the inputs of a segment: those that its windows contain, or more."""
    before = segment.origin.before
    return before, before + segment.size


def _reach(axis: Axis) -> int:
    """Return the number of inputs from the first to the last tap of a window of a fixed size."""
    return (axis.kernel - 1) * axis.dilation + 1


def _window_range(axis: Axis, output: int) -> Range:
    """Return the first and last (exclusive) position of a window, also outside the input."""
    if axis.adaptive:
        return axis.bins(output)
    start = output * axis.stride - axis.lo
    return start, start + _reach(axis)


def _segment(axis: Axis, first: int, stop: int, least_end: int = 0) -> Axis:
    """Return a segment of windows, of which at least one contains an input."""
    begin = max(_window_range(axis, first)[0], 0)
    end = min(_window_range(axis, stop - 1)[1], axis.size)
    return axis.sliced((first, stop), (begin, max(end, least_end)))


def _first_from(axis: Axis, position: int) -> int:
    """Return the first window that begins at or after a position; `out` if no window does."""
    if axis.adaptive:
        first = -(-position * axis.out // axis.size)
    else:
        first = -(-(position + axis.lo) // axis.stride)
    return min(max(first, 0), axis.out)


def segments(axis: Axis, chunks: tuple[int, ...]) -> list[Axis]:
    """Return the segments of an axis: for each chunk the windows that begin in it.

    Windows of padding only belong to another segment. If there are no others, the whole axis is one
    segment.
    """
    first, end = _first_from(axis, 1 - _reach(axis)), _first_from(axis, axis.size)
    if first >= end:  # no window from `first` to `end` contains an input
        return [axis]
    stops = {_first_from(axis, stop) for stop in accumulate(chunks)}
    bounds = [0, *sorted(stop for stop in stops if first < stop < end), axis.out]
    return [_segment(axis, *outputs) for outputs in pairwise(bounds)]


def segment_reading(axis: Axis, start: int, stop: int) -> Axis:
    """Return the windows that read a range of inputs, as a segment that contains this range.

    Where its first inputs are in no window, the window before them is the first of the segment.
    """
    if axis.adaptive:
        first = start * axis.out // axis.size
    else:
        first = min(_first_from(axis, start - _reach(axis) + 1), axis.out - 1)
        if _window_range(axis, first)[0] > start:
            first -= 1
    return _segment(axis, first, max(_first_from(axis, stop), first + 1), stop)
