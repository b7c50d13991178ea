"""Assigns the windows of a chunked axis to chunks, and computes which inputs they read."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

from poolgrad.windows import Axis


class Segment(NamedTuple):
    """Consecutive windows that are pooled together.

    Attributes
    ----------
    outputs, inputs : tuple of (start, stop)
        The windows, and the inputs that they contain.
    axis : Axis
        The windows, as windows of these inputs.
    """

    outputs: tuple[int, int]
    inputs: tuple[int, int]
    axis: Axis

    @property
    def out(self) -> int:
        """Number of windows."""
        return self.outputs[1] - self.outputs[0]

    @property
    def size(self) -> int:
        """Number of inputs of the whole axis."""
        return self.axis.origin.inputs


def _window_range(axis: Axis, output: int) -> tuple[int, int]:
    """Return the first and last (exclusive) position of a window, also outside the input."""
    if axis.adaptive:
        return axis.bins(output)
    start = output * axis.stride - axis.lo
    return start, start + (axis.kernel - 1) * axis.dilation + 1


def segment(axis: Axis, first: int, stop: int) -> Segment:
    """Return a segment of windows, of which at least one contains an input."""
    begin = max(_window_range(axis, first)[0], 0)
    end = min(_window_range(axis, stop - 1)[1], axis.size)
    outputs, inputs = (first, stop), (begin, end)
    return Segment(outputs, inputs, axis.sliced(outputs, inputs))


def segments(axis: Axis, chunks: tuple[int, ...]) -> list[Segment]:
    """Return the segments of an axis: for each chunk the windows that begin in it.

    Windows of padding only belong to another segment. If there are no others, the whole axis is one
    segment.
    """
    bounds = [0]
    for end in accumulate(chunks[:-1]):
        stop = _first_beyond(axis, end)
        if _holds_input(axis, bounds[-1], stop):
            bounds.append(stop)
    if not _holds_input(axis, bounds[-1], axis.out):
        bounds.pop()
    if not bounds:
        return [Segment((0, axis.out), (0, axis.size), axis)]
    return [segment(axis, *outputs) for outputs in pairwise([*bounds, axis.out])]


def _first_beyond(axis: Axis, position: int) -> int:
    if axis.adaptive:
        return min(-(-position * axis.out // axis.size), axis.out)
    return min(max(-(-(position + axis.lo) // axis.stride), 0), axis.out)


def _holds_input(axis: Axis, first: int, stop: int) -> bool:
    """Whether there are windows from `first` to `stop`, and one of them contains an input."""
    return (
        first < stop
        and _window_range(axis, first)[0] < axis.size
        and _window_range(axis, stop - 1)[1] > 0
    )


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
