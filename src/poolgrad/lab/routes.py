"""Draws one image, its feature map, the winner of each pooling window, and the gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from poolgrad.lab.plotting import (
    BLUE,
    GREY,
    ORANGE,
    add_arrow,
    add_frame,
    hide_axes,
    set_title,
    show_part,
    to_png,
    write_numbers,
)
from poolgrad.lab.pools import DOWNSAMPLINGS
from poolgrad.lab.settings import Settings
from poolgrad.lab.trace import Plane, Trace

# Largest rows and columns of a drawn feature map; of a larger map, the windows that fit are drawn.
_SHOWN = 10


@dataclass(frozen=True)
class _Words:
    """Captions of the picture for one kind of pooling."""

    name: str
    step: str  # over the arrow from the map to the output
    after: str  # title of the output
    share: str  # title of the panel below the image
    share_note: str
    share_numbers: str  # format of its numbers
    back: str  # note on the gradient of the feature map


_WORDS: dict[str, _Words] = {
    "max": _Words(
        "Max pooling",
        "largest of\neach window",
        "Pooled",
        "Winners",
        "number of windows that each input won",
        "{:.0f}",
        "only winners have a gradient",
    ),
    "avg": _Words(
        "Average pooling",
        "mean of\neach window",
        "Pooled",
        "Weights",
        "weight of each input, summed over its windows",
        "{:.2f}",
        "every input of a window gets an equal share",
    ),
    "strided": _Words(
        "Strided convolution",
        "learned weights\nin each window",
        "Downsampled",
        "Learned weights",
        "absolute weights of each input, summed",
        "{:.1f}",
        "summed over all output channels",
    ),
}


def _words(pool: str) -> _Words:
    if pool in _WORDS:
        return _WORDS[pool]
    entry = DOWNSAMPLINGS[pool]
    return _Words(
        entry.title[0].upper() + entry.title[1:],
        entry.step,
        "Unchanged" if pool == "none" else "Downsampled",
        "Influence",
        "size of the derivative of the summed outputs",
        "{:.2f}",
        "through the derivatives of the outputs",
    )


def draw_routes(trace: Trace, settings: Settings, classes: tuple[str, ...]) -> bytes:
    """Draw the forward pass in a first row, and the backward pass in a second.

    Parameters
    ----------
    trace
        What to draw.
    settings
        `pool`, `kernel` and `stride` of the windows.
    classes
        The names of the classes.

    Returns
    -------
    bytes
        A PNG.
    """
    words = _words(settings.pool)
    view = _View(trace, settings)
    figure = Figure(figsize=(15, 10.6))
    figure.suptitle(
        f"{words.name}, {settings.kernel} x {settings.kernel} windows, stride {settings.stride}",
        fontsize=22,
        fontweight="bold",
        y=0.985,
    )
    grid = figure.add_gridspec(
        2, 3, left=0.02, right=0.98, top=0.85, bottom=0.06, wspace=0.3, hspace=0.3
    )
    image, before, after, share, returned, arriving = (
        figure.add_subplot(grid[row, column]) for row in range(2) for column in range(3)
    )
    name = shorten(classes[trace.predicted], 24, placeholder="...")

    view.draw_image(image)
    set_title(image, "Image", f"{_extent(trace.image)}, classified as {name}")
    view.draw_map(before, trace.before, "gray", "{:.1f}")
    set_title(before, "Feature map", f"{_extent(trace.before)}, channel {trace.channel}")
    view.draw_outputs(after, trace.after, "gray", "{:.1f}")
    set_title(after, words.after, f"{_extent(trace.after)}, one value for each window")

    most = 1.5 * float(trace.share.max())
    view.draw_map(share, trace.share, "Blues", words.share_numbers, (0, most))
    view.draw_routes(share)
    set_title(share, words.share, words.share_note)
    largest = max(float(abs(trace.arriving).max()), float(abs(trace.returned).max())) or 1.0
    unit = 10.0 ** math.floor(math.log10(largest))
    limits = (-largest / unit, largest / unit)
    view.draw_map(returned, trace.returned / unit, "PRGn", "{:+.1f}", limits)
    set_title(returned, "Gradient of the feature map", words.back)
    view.draw_outputs(arriving, trace.arriving / unit, "PRGn", "{:+.1f}", limits)
    of_what = f"of the score for {name}, in units of {unit:g}"
    set_title(arriving, "Gradient of the output", of_what)

    add_arrow(image, before, "convolution,\nReLU", BLUE)
    add_arrow(before, after, words.step, BLUE)
    add_arrow(arriving, returned, "gradient", ORANGE)
    figure.text(0.5, 0.026, view.legend(), ha="center", va="center", fontsize=12.5, color=GREY)
    return to_png(figure)


class _View:
    """Draws maps with their windows; of a large map, whole windows around the strongest gradient.

    Windows at the border of the map reach into the padding, which is drawn, too.
    """

    def __init__(self, trace: Trace, settings: Settings) -> None:
        self._trace = trace
        windows = DOWNSAMPLINGS[settings.pool].windows(settings.kernel, settings.stride)
        self._kernel, self._stride, self._padding = windows
        influence = abs(trace.returned * trace.before)
        strongest = np.unravel_index(influence.argmax(), influence.shape)
        # The drawn windows, and the rows and columns that they cover: those before or beyond the
        # map are padding.
        self._outputs = tuple(
            self._windows_around(int(position), extent, count)
            for position, extent, count in zip(
                strongest, trace.before.shape, trace.after.shape, strict=True
            )
        )
        self._rows, self._columns = (
            self._inputs_of(outputs, extent)
            for outputs, extent in zip(self._outputs, trace.before.shape, strict=True)
        )
        self._overlap = self._kernel > self._stride
        every = [(i, j) for i in self._outputs[0] for j in self._outputs[1]]
        # The frames of overlapping windows are indistinguishable, so one is drawn for all.
        self._framed = [max(every, key=self._interest)] if self._overlap else every

    def _windows_around(self, position: int, extent: int, count: int) -> range:
        """All windows along an axis, or as many as fit, the one at `position` in their middle."""
        if extent <= _SHOWN:
            return range(count)
        fitting = min(max(_SHOWN - self._kernel, 0) // self._stride + 1, count)
        nearest = (position + self._padding - (self._kernel - 1) / 2) / self._stride
        first = min(max(round(nearest) - fitting // 2, 0), count - fitting)
        return range(first, first + fitting)

    def _inputs_of(self, outputs: range, extent: int) -> range:
        """The rows or columns of these windows; of a small map all others, too."""
        start = self._start(outputs[0])
        stop = self._start(outputs[-1]) + self._kernel
        return range(start, stop) if extent > _SHOWN else range(min(start, 0), max(stop, extent))

    def _start(self, output: int) -> int:
        return output * self._stride - self._padding

    def _middle(self, output: int) -> float:
        return self._start(output) + (self._kernel - 1) / 2

    def _interest(self, window: tuple[int, int]) -> tuple[float, float]:
        trace, wins = self._trace, 0.0
        if trace.winners is not None:
            wins = trace.share[tuple(trace.winners[window])]
        return wins, abs(trace.arriving[window])

    @property
    def _in_map(self) -> tuple[range, range]:
        """The rows and columns that are drawn, without padding."""
        height, width = self._trace.before.shape
        rows, columns = self._rows, self._columns
        return (
            range(max(rows.start, 0), min(rows.stop, height)),
            range(max(columns.start, 0), min(columns.stop, width)),
        )

    @property
    def _cropped(self) -> bool:
        rows, columns = self._in_map
        return (len(rows), len(columns)) != self._trace.before.shape

    def draw_image(self, axes: Axes) -> None:
        image = self._trace.image.astype(np.float64)
        lowest, highest = image.min(), image.max()
        axes.imshow((image - lowest) / ((highest - lowest) or 1), cmap="gray")
        if self._cropped:
            rows, columns = self._in_map
            add_frame(axes, (rows[0], columns[0]), (len(rows), len(columns)), ORANGE, 3)
        hide_axes(axes)

    def draw_map(
        self,
        axes: Axes,
        plane: Plane,
        colours: str,
        numbers: str,
        limits: tuple[float | None, float | None] = (None, None),
    ) -> None:
        """A map of the size of the feature map, with its windows and their winners."""
        axes.imshow(plane, cmap=colours, vmin=limits[0], vmax=limits[1])
        write_numbers(axes, plane, *self._in_map, numbers)
        for i, j in self._framed:
            corner = self._start(i), self._start(j)
            add_frame(axes, corner, (self._kernel, self._kernel), BLUE, self._line)
        if self._trace.winners is not None:
            for row, column in np.unique(self._trace.winners.reshape(-1, 2), axis=0):
                if row in self._rows and column in self._columns:
                    add_frame(axes, (row, column), (1, 1), ORANGE, 3, inset=0.07)
        show_part(axes, self._rows, self._columns)

    def draw_routes(self, axes: Axes) -> None:
        """A line from the middle of every window to its winner, where windows overlap."""
        if self._trace.winners is None or not self._overlap:
            return
        routes = [
            [(self._middle(j), self._middle(i)), tuple(self._trace.winners[i, j][::-1])]
            for i in self._outputs[0]
            for j in self._outputs[1]
        ]
        axes.add_collection(LineCollection(routes, colors=BLUE, linewidths=1.5))
        axes.plot(*zip(*(middle for middle, _ in routes), strict=True), "o", color=BLUE, ms=5)

    def draw_outputs(
        self,
        axes: Axes,
        plane: Plane,
        colours: str,
        numbers: str,
        limits: tuple[float | None, float | None] = (None, None),
    ) -> None:
        """A map of the size of the pooled map: one cell for each window."""
        axes.imshow(plane, cmap=colours, vmin=limits[0], vmax=limits[1])
        rows, columns = self._outputs
        write_numbers(axes, plane, rows, columns, numbers)
        for i, j in self._framed:
            add_frame(axes, (i, j), (1, 1), BLUE, self._line)
        show_part(axes, rows, columns)

    def legend(self) -> str:
        """Return the meaning of the colours of the lines."""
        parts = ["blue: one of the windows" if self._overlap else "blue: the windows"]
        if self._trace.winners is not None:
            parts.append("orange: winners (of equal values, the first)")
            if self._overlap:
                parts.append("lines: from a window's middle to its winner")
        if self._in_map != (self._rows, self._columns):
            parts.append("hatched: padding")
        if self._cropped:
            parts.append("frame in the image: what is shown")
        lines = [parts] if len(parts) < 4 else [parts[:3], parts[3:]]
        return "\n".join("   |   ".join(line) for line in lines)

    @property
    def _line(self) -> float:
        return 4.0 if self._overlap else 2.0


def _extent(plane: NDArray[Any]) -> str:
    return f"{plane.shape[0]} x {plane.shape[1]}"
