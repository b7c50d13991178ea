"""The picture of a passage: image, feature map, who won each window, the gradient on its way."""

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

from poolgrad.lab.model import window_padding
from poolgrad.lab.panels import (
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
from poolgrad.lab.passage import Passage, Plane
from poolgrad.lab.settings import Pool, Settings

# Rows and columns of a feature map; of a larger one a part is drawn, with a window or more.
_SHOWN = 10


@dataclass(frozen=True)
class _Words:
    """What the picture says about one kind of pooling."""

    name: str
    step: str  # over the arrow from the map to the output
    after: str  # title of the output
    share: str  # title of the panel below the image
    share_note: str
    share_numbers: str  # format of its numbers
    back: str  # what the gradient does on its way back


_WORDS: dict[Pool, _Words] = {
    "max": _Words(
        "Max pooling",
        "largest of\neach window",
        "Pooled",
        "Who won",
        "number of windows that each input won",
        "{:.0f}",
        "it went to the winners only",
    ),
    "avg": _Words(
        "Average pooling",
        "mean of\neach window",
        "Pooled",
        "No winners: equal shares",
        "weight of each input in all outputs",
        "{:.2f}",
        "every input of a window has its share",
    ),
    "strided": _Words(
        "Strided convolution",
        "learned weights\nin each window",
        "Downsampled",
        "No winners: learned weights",
        "summed size of each input's weights",
        "{:.1f}",
        "collected from all channels",
    ),
}


def draw_routes(passage: Passage, settings: Settings, classes: tuple[str, ...]) -> bytes:
    """Draw the way there in a first row, and the way back in a second.

    Parameters
    ----------
    passage
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
    words = _WORDS[settings.pool]
    view = _View(passage, settings)
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
    name = shorten(classes[passage.predicted], 24, placeholder="...")

    view.draw_image(image)
    set_title(image, "Image", f"{_extent(passage.image)}, recognised as {name}")
    view.draw_map(before, passage.before, "gray", "{:.1f}")
    set_title(before, "Feature map", f"{_extent(passage.before)}, channel {passage.channel}")
    view.draw_outputs(after, passage.after, "gray", "{:.1f}")
    set_title(after, words.after, f"{_extent(passage.after)}, one value for each window")

    most = 1.5 * float(passage.share.max())
    view.draw_map(share, passage.share, "Blues", words.share_numbers, (0, most))
    view.draw_routes(share)
    set_title(share, words.share, words.share_note)
    largest = max(float(abs(passage.arriving).max()), float(abs(passage.returned).max())) or 1.0
    unit = 10.0 ** math.floor(math.log10(largest))
    limits = (-largest / unit, largest / unit)
    view.draw_map(returned, passage.returned / unit, "PRGn", "{:+.1f}", limits)
    set_title(returned, "The gradient that came back", words.back)
    view.draw_outputs(arriving, passage.arriving / unit, "PRGn", "{:+.1f}", limits)
    of_what = f"of the score for {name}, in units of {unit:g}"
    set_title(arriving, "The gradient that arrived", of_what)

    add_arrow(image, before, "convolution,\nReLU", BLUE)
    add_arrow(before, after, words.step, BLUE)
    add_arrow(arriving, returned, "gradient", ORANGE)
    figure.text(0.5, 0.015, view.legend(), ha="center", fontsize=12.5, color=GREY)
    return to_png(figure)


class _View:
    """Draws maps with their windows; of a large map, the part with the strongest gradient."""

    def __init__(self, passage: Passage, settings: Settings) -> None:
        self._passage = passage
        self._kernel, self._stride = settings.kernel, settings.stride
        self._padding = window_padding(settings.kernel)
        seen = abs(passage.returned * passage.before)
        strongest = np.unravel_index(seen.argmax(), seen.shape)
        # Rows and columns of the map that are drawn, and the windows whose middle is in them.
        self._rows, self._columns = (
            _around(int(place), max(_SHOWN, self._kernel + self._stride), extent)
            for place, extent in zip(strongest, passage.before.shape, strict=True)
        )
        self._outputs = tuple(
            [o for o in range(count) if math.floor(self._middle(o) + 0.5) in shown]
            for count, shown in zip(passage.after.shape, (self._rows, self._columns), strict=True)
        )
        self._overlap = settings.kernel > settings.stride
        windows = [(i, j) for i in self._outputs[0] for j in self._outputs[1]]
        # The frames of windows that overlap cannot be told apart: one stands for all.
        self._framed = [max(windows, key=self._interest)] if self._overlap else windows

    def _middle(self, output: int) -> float:
        return output * self._stride - self._padding + (self._kernel - 1) / 2

    def _interest(self, window: tuple[int, int]) -> tuple[float, float]:
        passage, wins = self._passage, 0.0
        if passage.winners is not None:
            wins = passage.share[tuple(passage.winners[window])]
        return wins, abs(passage.arriving[window])

    @property
    def _cropped(self) -> bool:
        return (len(self._rows), len(self._columns)) != self._passage.before.shape

    def draw_image(self, axes: Axes) -> None:
        image = self._passage.image.astype(np.float64)
        lowest, highest = image.min(), image.max()
        axes.imshow((image - lowest) / ((highest - lowest) or 1), cmap="gray")
        if self._cropped:
            rows, columns = self._rows, self._columns
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
        write_numbers(axes, plane, self._rows, self._columns, numbers)
        for window in self._framed:
            (top, bottom), (left, right) = (
                (max(start, 0), min(start + self._kernel, extent))
                for start, extent in zip(self._starts(window), plane.shape, strict=True)
            )
            add_frame(axes, (top, left), (bottom - top, right - left), BLUE, self._line)
        if self._passage.winners is not None:
            for row, column in np.unique(self._passage.winners.reshape(-1, 2), axis=0):
                if row in self._rows and column in self._columns:
                    add_frame(axes, (row, column), (1, 1), ORANGE, 3, inset=0.07)
        show_part(axes, self._rows, self._columns)

    def draw_routes(self, axes: Axes) -> None:
        """A line from the middle of every window to its winner, where windows overlap."""
        if self._passage.winners is None or not self._overlap:
            return
        routes = [
            [(self._middle(j), self._middle(i)), tuple(self._passage.winners[i, j][::-1])]
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
        rows, columns = (range(shown[0], shown[-1] + 1) for shown in self._outputs)
        write_numbers(axes, plane, rows, columns, numbers)
        for i, j in self._framed:
            add_frame(axes, (i, j), (1, 1), BLUE, self._line)
        show_part(axes, rows, columns)

    def legend(self) -> str:
        """What the colours of the lines mean."""
        parts = ["blue: one of the windows" if self._overlap else "blue: the windows"]
        if self._passage.winners is not None:
            parts.append("orange: winners (of equals, the first)")
            if self._overlap:
                parts.append("lines: from a window's middle to its winner")
        if self._cropped:
            parts.append("frame in the image: what is shown")
        return "   |   ".join(parts)

    @property
    def _line(self) -> float:
        return 4.0 if self._overlap else 2.0

    def _starts(self, window: tuple[int, int]) -> tuple[int, ...]:
        return tuple(o * self._stride - self._padding for o in window)


def _around(place: int, length: int, extent: int) -> range:
    """So many rows or columns of a map (or all), the place in their middle if it can be."""
    length = min(length, extent)
    start = min(max(place - length // 2, 0), extent - length)
    return range(start, start + length)


def _extent(plane: NDArray[Any]) -> str:
    return f"{plane.shape[0]} x {plane.shape[1]}"
