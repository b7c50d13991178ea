"""Draws feature maps of each method: before, after, winners or weights, gradients."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from PIL import Image

from poolgrad.lab.compare.figures import INK, Canvas
from poolgrad.lab.compare.results import Array, Example
from poolgrad.lab.plotting import GREY, ORANGE

Pixels = NDArray[np.uint8]  # shape (H, W, 3)

COLUMNS = ("before", "after", "winners or weights", "gradient of the output", "gradient returned")
_FRAMED = 8  # pixels along a cell that has a frame
_MOST = 256  # cells along a side; of a larger map every second, third, ... is drawn


@dataclass(frozen=True)
class Strip:
    """The maps of one method for one test image.

    Attributes
    ----------
    example
        Where they come from.
    maps
        Pictures in the order of `COLUMNS`.
    """

    example: Example
    maps: tuple[Pixels, ...]


def group_by_image(examples: Sequence[Example]) -> list[list[Example]]:
    """Group the examples by test image, and keep the order of images and methods."""
    groups: dict[tuple[object, ...], list[Example]] = {}
    for example in examples:
        image = np.ascontiguousarray(example.image)
        key = (image.shape, image.dtype.str, image.tobytes(), example.label)
        groups.setdefault(key, []).append(example)
    return list(groups.values())


def draw_strip(example: Example) -> Strip:
    """Return the maps of an example, coloured as `routes.png` of `poolgrad train`.

    The feature maps are grey, the share of every input in the outputs blue with orange frames
    around the winners, the gradients green above and purple below zero, both on one scale.
    """
    largest = max(_largest(example.arriving), _largest(example.returned)) or 1.0
    share = _coloured(example.share, "Blues", 0.0, 1.5 * _largest(example.share) or 1.0)
    maps = (
        _thinned(_grey(example.before)),
        _thinned(_grey(example.after)),
        _framed(share, example.winners),
        _thinned(_coloured(example.arriving, "PRGn", -largest, largest)),
        _thinned(_coloured(example.returned, "PRGn", -largest, largest)),
    )
    return Strip(example, maps)


def draw_image(example: Example) -> Pixels:
    """Return the test image."""
    image = np.nan_to_num(np.asarray(example.image, float))
    if image.ndim == 2 or image.shape[-1] == 1:
        return _thinned(_grey(image.reshape(image.shape[:2])))
    low, high = image.min(), image.max()
    return _thinned((255 * (image - low) / ((high - low) or 1)).astype(np.uint8))


def to_png(pixels: Pixels) -> bytes:
    """Return the content of a PNG file."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="png")
    return content.getvalue()


def draw_sheet(strips: Sequence[Strip], labels: Sequence[str]) -> bytes:
    """Draw the maps of all methods for one test image as one PNG.

    Parameters
    ----------
    strips
        One a method.
    labels
        The names of the methods.
    """
    names = 150 + 6 * max(len(label) for label in labels)
    cell, top = 150, 64
    canvas = Canvas(names + cell * len(COLUMNS), top + cell * len(strips) + 6)
    first = strips[0].example
    segmented = first.true_mask is not None
    title = "test image"
    if first.label:
        title = first.label if segmented else f"true class: {first.label}"
    axes = canvas.axes(0, 0, canvas.width, canvas.height)
    _place(axes, draw_image(first), 8, 8, 48)
    canvas.text(66, 32, title if len(title) < 30 else title[:29] + "…", 13, INK, weight="bold")
    for j, column in enumerate(COLUMNS):
        canvas.text(names + cell * (j + 0.5) - 5, 46, column, 11, GREY, "center")
    for i, (strip, label) in enumerate(zip(strips, labels, strict=True)):
        middle = top + cell * (i + 0.5) - 6
        canvas.text(10, middle - 10, label, 13, INK, weight="bold")
        predicted = strip.example.predicted
        if predicted:
            if segmented:
                predicted = predicted.partition(",")[0]  # the first of its scores
            short = predicted if len(predicted) < 22 else predicted[:21] + "…"
            caption = short if segmented else f"predicted: {short}"
            canvas.text(10, middle + 10, caption, 11, GREY)
        for j, pixels in enumerate(strip.maps):
            _place(axes, pixels, names + cell * j, top + cell * i, cell - 10)
    axes.set(xlim=(0, canvas.width), ylim=(canvas.height, 0))
    axes.set_axis_off()
    return canvas.png()


def _place(axes: Axes, pixels: Pixels, left: float, top: float, side: float) -> None:
    """Draw pixels into a square, with their aspect ratio."""
    height, width = (side * extent / max(pixels.shape[:2]) for extent in pixels.shape[:2])
    left, top = left + (side - width) / 2, top + (side - height) / 2
    box = (left, left + width, top + height, top)
    axes.imshow(pixels, interpolation="nearest", extent=box, aspect="auto")


def _largest(plane: Array) -> float:
    return float(np.abs(np.nan_to_num(plane, posinf=0.0, neginf=0.0)).max(initial=0.0))


def _grey(plane: Array) -> Pixels:
    plane = np.nan_to_num(np.asarray(plane, float))
    return _coloured(plane, "gray", float(plane.min(initial=0)), float(plane.max(initial=0)))


def _coloured(plane: Array, colours: str, low: float, high: float) -> Pixels:
    plane = np.nan_to_num(np.asarray(plane, float))
    scaled = np.clip((plane - low) / ((high - low) or 1.0), 0, 1)
    return np.asarray(mpl.colormaps[colours](scaled)[..., :3] * 255, dtype=np.uint8)


def _thinned(pixels: Pixels) -> Pixels:
    step = math.ceil(max(pixels.shape[:2]) / _MOST)
    return np.ascontiguousarray(pixels[::step, ::step])


def _framed(pixels: Pixels, winners: Array | None) -> Pixels:
    """Frame the cells of the winners, where the map is small enough for that."""
    if winners is None or max(pixels.shape[:2]) * _FRAMED > 2 * _MOST:
        return _thinned(pixels)
    large = pixels.repeat(_FRAMED, 0).repeat(_FRAMED, 1)
    colour = np.array([int(ORANGE[i : i + 2], 16) for i in (1, 3, 5)], np.uint8)
    for row, column in np.unique(np.asarray(winners).reshape(-1, 2), axis=0):
        if 0 <= row < len(pixels) and 0 <= column < pixels.shape[1]:  # not in the padding
            top, left = row * _FRAMED, column * _FRAMED
            cell = large[top : top + _FRAMED, left : left + _FRAMED]
            cell[[0, -1]] = colour
            cell[:, [0, -1]] = colour
    return large
