"""Assigns the windows of a chunked axis to chunks, and computes which inputs they read."""

from __future__ import annotations

from typing import NamedTuple

from poolgrad.windows import Axis, AxisSlice


class Segment(NamedTuple):
    """Consecutive windows that are pooled together.

    Attributes
    ----------
    outputs, inputs : tuple of (start, stop)
        The windows, and the inputs that they contain.
    part : AxisSlice
        The windows as a slice of the axis.
    """

    outputs: tuple[int, int]
    inputs: tuple[int, int]
    part: AxisSlice

    @property
    def out(self) -> int:
        """Number of windows."""
        return self.outputs[1] - self.outputs[0]

    @property
    def size(self) -> int:
        """Number of inputs of the whole axis."""
        return self.inputs[1] + self.part.after


def _window_range(axis: Axis, output: int) -> tuple[int, int]:
    """Return the first and last (exclusive) position of a window, also outside the input."""
    if axis.adaptive:
        return axis.bins(output)
    start = output * axis.stride - axis.lo
    return start, start + (axis.kernel - 1) * axis.dilation + 1


def segment(axis: Axis, first: int, stop: int) -> Segment:
    """Return a segment of windows, of which at least one contains an input."""
    begin, end = (
        max(_window_range(axis, first)[0], 0),
        min(_window_range(axis, stop - 1)[1], axis.size),
    )
    part = AxisSlice(first, stop - first, begin, axis.size - end)
    return Segment((first, stop), (begin, end), part)


def whole(axis: Axis) -> Segment:
    """Return all windows of an axis as a segment."""
    return Segment((0, axis.out), (0, axis.size), AxisSlice(0, axis.out, 0, 0))


def segments(axis: Axis, chunks: tuple[int, ...]) -> list[Segment]:
    """Return the segments of an axis: for each chunk the windows that begin in it."""
    bounds, end = [], 0
    for chunk in chunks:
        end += chunk
        # the first window that begins after this chunk
        bounds.append(_first_beyond(axis, end))
    bounds[-1] = axis.out
    found: list[Segment] = []
    first = 0
    for stop in bounds:
        if stop <= first or not _holds_input(axis, first, stop):
            continue
        found.append(segment(axis, first, stop))
        first = stop
    if not found:  # padding only
        return [whole(axis)]
    if first < axis.out:  # windows of padding only belong to the last segment
        last = found.pop()
        found.append(segment(axis, last.outputs[0], axis.out))
    return found


def _first_beyond(axis: Axis, position: int) -> int:
    if axis.adaptive:
        return min(-(-position * axis.out // axis.size), axis.out)
    return min(max(-(-(position + axis.lo) // axis.stride), 0), axis.out)


def _holds_input(axis: Axis, first: int, stop: int) -> bool:
    return _window_range(axis, first)[0] < axis.size and _window_range(axis, stop - 1)[1] > 0


def segment_reading(axis: Axis, start: int, stop: int) -> Segment | None:
    """Return the windows that read a range of inputs; None if there are none."""
    if start == stop:
        return None
    if axis.adaptive:
        first, last = start * axis.out // axis.size, -(-stop * axis.out // axis.size)
        return segment(axis, first, min(last, axis.out))
    reach = (axis.kernel - 1) * axis.dilation + 1
    first = max(-(-(start + axis.lo - reach + 1) // axis.stride), 0)
    last = min((stop - 1 + axis.lo) // axis.stride + 1, axis.out)
    return segment(axis, first, last) if first < last else None
