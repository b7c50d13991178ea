"""Draws test images with their true masks, and the masks that the methods predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from poolgrad.lab.compare.results import Array, Example
from poolgrad.lab.plotting import BLUE, GREY, ORANGE, hide_axes, to_png
from poolgrad.lab.segment.scores import VOID

_RIGHT, _MISSED, _FALSE, _OTHER, _VOID = "#ffffff", ORANGE, BLUE, "#cc79a7", GREY
_BACKGROUND = "#1a1a1a"
_CELL = 1.7  # inches

Pixels = NDArray[np.float64]  # shape (H, W, 3), from 0 to 1


def colour_mask(mask: Array) -> Pixels:
    """Colour the classes of a mask: one foreground class white, several in different hues.

    Parameters
    ----------
    mask
        Class numbers, shape (H, W); `VOID` becomes grey.

    Returns
    -------
    NDArray[float64]
        Shape (H, W, 3).
    """
    pixels = np.empty((*mask.shape, 3))
    pixels[:] = to_rgb(_BACKGROUND)
    classes = np.setdiff1d(mask, [0, VOID])
    hues = mpl.colormaps["tab20"].colors  # type: ignore[attr-defined]
    for k in classes:
        pixels[mask == k] = to_rgb(_RIGHT) if classes.max() == 1 else hues[k % len(hues)]
    pixels[mask == VOID] = to_rgb(_VOID)
    return pixels


def colour_errors(true: Array, predicted: Array) -> Pixels:
    """Colour the errors of a predicted mask.

    Foreground that is right is white, foreground that is missed orange, background that is taken
    for foreground blue, foreground of another class pink, and what does not count grey.

    Parameters
    ----------
    true, predicted
        Class numbers, shape (H, W).

    Returns
    -------
    NDArray[float64]
        Shape (H, W, 3).
    """
    pixels = np.empty((*true.shape, 3))
    pixels[:] = to_rgb(_BACKGROUND)
    for colour, where in (
        (_RIGHT, (true > 0) & (predicted == true)),
        (_MISSED, (true > 0) & (predicted == 0)),
        (_FALSE, (true == 0) & (predicted > 0)),
        (_OTHER, (true > 0) & (predicted > 0) & (predicted != true)),
        (_VOID, true == VOID),
    ):
        pixels[where] = to_rgb(colour)
    return pixels


def draw_masks(examples: Sequence[Example], labels: Mapping[str, str]) -> bytes | None:
    """Draw one row for each test image: the image, its true mask, and each method's mask.

    Parameters
    ----------
    examples
        Examples of all methods. Those without masks are left out.
    labels
        The names of the methods that are written above their columns.

    Returns
    -------
    bytes or None
        A PNG; None if no example has masks.
    """
    rows: dict[str, dict[str, Example]] = {}
    for example in examples:
        if example.true_mask is not None and example.predicted_mask is not None:
            rows.setdefault(example.label, {})[example.method] = example
    if not rows:
        return None
    shown = {example.method for row in rows.values() for example in row.values()}
    methods = [method for method in labels if method in shown]
    columns = 2 + len(methods)
    figure = Figure(
        figsize=(_CELL * columns, (_CELL + 0.35) * len(rows) + 0.5), layout="constrained"
    )
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes in grid.flat:
        hide_axes(axes)
    for line, (label, row) in zip(grid, rows.items(), strict=True):
        first = next(iter(row.values()))
        line[0].imshow(first.image, cmap="gray")
        line[1].imshow(colour_mask(first.true_mask))  # type: ignore[arg-type]
        line[0].set_ylabel(label, fontsize=10)
        for axes, method in zip(line[2:], methods, strict=True):
            found = row.get(method)
            if found is not None:
                assert found.true_mask is not None
                assert found.predicted_mask is not None
                axes.imshow(colour_errors(found.true_mask, found.predicted_mask))
                axes.set_xlabel(found.predicted.replace(", ", "\n"), fontsize=9)
    for axes, title in zip(grid[0], ["image", "true mask", *map(labels.get, methods)], strict=True):
        axes.set_title(title, fontsize=11)
    errors = {_RIGHT: "right", _MISSED: "missed", _FALSE: "false", _OTHER: "another class"}
    figure.legend(
        handles=[
            Patch(facecolor=colour, edgecolor=GREY, label=name) for colour, name in errors.items()
        ],
        loc="outside lower center",
        ncols=len(errors),
        frameon=False,
    )
    return to_png(figure)
