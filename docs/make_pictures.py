"""Make the pictures of the documentation: docs/routes.png and docs/operators/*.png."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

import poolgrad as pg

HERE = Path(__file__).parent
CELL, GAP, TOP, BOTTOM = 0.46, 0.4, 0.5, 0.62  # inches
WINDOWS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7"]  # told apart by everybody (Okabe & Ito)
FADED, NEGATIVE = "0.6", "#B2182B"
DPI, COLOURS = 130, 128

X = np.array(  # in the first window, of two by two and of three by three, two 7s tie
    [
        [3.0, 7.0, 4.0, 2.0, 5.0, 6.0],
        [7.0, 2.0, 6.0, 3.0, 9.0, 4.0],
        [5.0, 5.0, 3.0, 7.0, 1.0, 5.0],
        [8.0, 4.0, 6.0, 2.0, 7.0, 3.0],
        [2.0, 6.0, 0.0, 5.0, 3.0, 7.0],
        [9.0, 4.0, 8.0, 2.0, 6.0, 1.0],
    ]
)[None, None]
POOLED, INDICES = pg.max_pool2d(X, 2, return_indices=True)


@dataclass
class Picture:
    """One call, and what is said about its gradient.

    Attributes
    ----------
    function, args, kwargs
        What is called, with the input before `args`.
    window : int
        Side of the windows that are framed; 0 for none.
    note : str
        Goes below the gradient of the input.
    x, gy : array
        The input, and the gradient of the output (ones, unless given).
    shown : str
        The arguments as the title has them, where they are not plain numbers.
    corners : sequence of (row, column)
        Where the framed windows begin: those of the outputs (0, 0), (1, 1), ...
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    window: int
    note: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    x: np.ndarray = field(default_factory=lambda: X)
    gy: np.ndarray | None = None
    shown: str = ""
    corners: Sequence[tuple[int, int]] = ((0, 0),)

    @property
    def title(self) -> str:
        """The call as one would write it."""
        words = [f"{a}" for a in self.args] + [f"{k}={v}" for k, v in self.kwargs.items()]
        return f"{self.function.__name__}({self.shown or ', '.join(['x', *words])})"


WON = "how many windows each input won"
SIGNS = "red: negative, there a larger\ninput lowers the mean"
PICTURES = {
    "max": Picture(pg.max_pool2d, (3, 1), 3, f"{WON};\nof two 7s the first"),
    "relu_max": Picture(
        pg.relu_max_pool2d, (3, 1), 3, f"{WON};\nof a window of 0 none did", x=X - 7
    ),
    "min": Picture(pg.min_pool2d, (3, 1), 3, WON),
    "median": Picture(pg.median_pool2d, (3, 1), 3, f"{WON};\nof two 5s the first"),
    "avg": Picture(pg.avg_pool2d, (3, 1), 3, "1/9 from each window around it"),
    "lp": Picture(pg.lp_pool2d, (3.0, 2), 2, "$(|x|\\,/\\,y)^{\\,2}$ with the y of the window"),
    "lse": Picture(pg.lse_pool2d, (2,), 2, "the softmax of x / 2 in each window", {"r": 0.5}),
    "soft": Picture(pg.soft_pool2d, (2,), 2, SIGNS),
    "stochastic": Picture(pg.stochastic_pool2d, (2,), 2, "1 to what was drawn", {"generator": 3}),
    "expected": Picture(pg.stochastic_pool2d, (2,), 2, SIGNS, {"training": False}),
    "mixed": Picture(pg.mixed_pool2d, (2,), 2, "0.6 to the largest, 0.1 to each", {"alpha": 0.6}),
    "adaptive_max": Picture(pg.adaptive_max_pool2d, (4,), 2, f"{WON};\nthey overlap"),
    "adaptive_avg": Picture(pg.adaptive_avg_pool2d, (4,), 2, "1/4 from each bin around it"),
    "global_max": Picture(pg.global_max_pool, (), 6, "of two 9s the first"),
    "global_avg": Picture(pg.global_avg_pool, (), 6, "1/36 to each input"),
    "global_lp": Picture(pg.global_lp_pool, (), 6, "$|x|\\,/\\,y$", {"norm_type": 2.0}),
    "global_lse": Picture(pg.global_lse_pool, (), 6, "the softmax of all x / 4", {"r": 0.25}),
    "fractional_max": Picture(
        pg.fractional_max_pool2d, (2, 4), 2, f"{WON};\nthey are one or two apart",
        {"_random_samples": np.array([[[0.6, 0.3]]])}, shown="x, 2, 4",
        corners=((0, 0), (1, 2), (3, 3), (4, 4)),
    ),
    "max_unpool": Picture(
        pg.max_unpool2d, (INDICES, 2), 0, "read where each value went",
        x=POOLED, gy=np.add.outer(np.arange(6.0), np.arange(6.0)), shown="y, indices, 2",
    ),
}  # fmt: skip


class Panel(NamedTuple):
    """A grid of numbers with words above and below."""

    values: np.ndarray
    title: str
    note: str = ""
    call: bool = False
    peak: float = 0.0  # what is as dark as can be; by default the largest number


def short(value: float) -> str:
    """Two decimals at most."""
    return f"{round(float(value), 2) + 0.0:g}"  # + 0.0: no "-0"


def cells(ax: Axes, panel: Panel) -> None:
    """Draw an array as a grid of numbers; with colours for signs, if some are negative."""
    values = panel.values
    rows, columns = values.shape
    contrast = 1.8 if np.ptp(values) else 6  # all the same: pale
    peak = contrast * (panel.peak or np.abs(values).max())
    signed = values.min() < 0
    ax.imshow(values, cmap="RdBu" if signed else "Greys", vmin=-peak if signed else 0, vmax=peak)
    for (i, j), value in np.ndenumerate(values):
        text = short(value)
        characters = len(text.lstrip("-"))
        size = 13 if characters < 3 else 10.5 if characters < 5 else 9
        colour = FADED if text == "0" else NEGATIVE if value < 0 else "black"
        ax.text(j, i, text, ha="center", va="center", fontsize=size, color=colour)
    ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="0.8", linewidth=1)
    ax.tick_params(which="both", length=0, labelbottom=False, labelleft=False)
    ax.set_title(panel.title, fontsize=11 if panel.call else 12, pad=9,
                 family="monospace" if panel.call else None)  # fmt: skip
    ax.set_xlabel(panel.note, fontsize=10.5, labelpad=7)


def row_of(panels: Sequence[Panel]) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, all cells of one size, titles beside each other."""
    slots = [max(p.values.shape[1] * CELL, len(p.title) * 0.094) for p in panels]
    tall = max(p.values.shape[0] for p in panels) * CELL
    width, height = sum(slots) + GAP * (len(panels) + 1), tall + TOP + BOTTOM
    figure = Figure(figsize=(width, height), dpi=DPI)
    axes, left = [], GAP
    for panel, slot in zip(panels, slots, strict=True):
        rows, columns = (n * CELL for n in panel.values.shape)
        x, y = left + (slot - columns) / 2, BOTTOM + (tall - rows) / 2
        ax = figure.add_axes((x / width, y / height, columns / width, rows / height))
        cells(ax, panel)
        axes.append(ax)
        left += slot + GAP
    return figure, axes


def outline(ax: Axes, i: float, j: float, side: float, colour: str, shrink: float = 0.04) -> None:
    """Frame a window or a cell."""
    ax.add_patch(Rectangle((j - 0.5 + shrink, i - 0.5 + shrink), side - 2 * shrink,
                           side - 2 * shrink, fill=False, edgecolor=colour, linewidth=3, zorder=3,
                           clip_on=False))  # fmt: skip


def save(figure: Figure, name: str) -> None:
    """Write a small file: a picture of numbers needs few colours."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(HERE / name, optimize=True)


def operator(name: str, picture: Picture) -> None:
    """Draw one operator: input, output, gradient of the output, gradient of the input."""
    y, pullback = pg.vjp(picture.function, picture.x, *picture.args, **picture.kwargs)
    gy = np.ones_like(y) if picture.gy is None else picture.gy.reshape(y.shape)
    learned = [f"gradient of {n}: {short(g)}" for n, g in pullback.parameters(gy).items()]
    grid = y.shape[2:] or (1, 1)
    figure, axes = row_of(
        [
            Panel(picture.x[0, 0], "input y" if picture.x is POOLED else "input x", peak=X.max()),
            Panel(y.reshape(grid), picture.title, call=True, peak=max(X.max(), y.max())),
            Panel(gy.reshape(grid), "gradient of the output"),
            Panel(pullback(gy)[0, 0], "gradient of the input", "\n".join([picture.note, *learned])),
        ]
    )
    for k, (i, j) in enumerate(picture.corners if picture.window else ()):
        outline(axes[0], i, j, picture.window, WINDOWS[k])
        outline(axes[1], k, k, 1, WINDOWS[k])
        outline(axes[2], k, k, 1, WINDOWS[k])
    save(figure, f"operators/{name}.png")


def routes() -> None:
    """Draw how a maximum goes forward, and its gradient back along the routes."""
    x = np.array(
        [
            [1.0, 0.0, 2.0, 1.0, 0.0],
            [3.0, 2.0, 9.0, 1.0, 4.0],
            [0.0, 1.0, 0.0, 2.0, 1.0],
            [5.0, 0.0, 1.0, 6.0, 0.0],
            [1.0, 3.0, 0.0, 2.0, 1.0],
        ]
    )
    gy = np.array([[1.0, 2.0], [3.0, 4.0]])
    y, pullback = pg.vjp(pg.max_pool2d, x, 3, stride=2)
    figure, (first, out, up, back) = row_of(
        [
            Panel(x, "input", "four 3x3 windows, two apart", peak=x.max()),
            Panel(y, "max_pool2d(x, 3, 2)", "each window's largest", call=True, peak=x.max()),
            Panel(gy, "gradient of the output", "from the layers above"),
            Panel(
                pullback(gy),
                "gradient of the input",
                "along the routes: 9 won two windows,\nso it gets 1 + 2; losers get nothing",
            ),
        ]
    )
    winners = [np.unravel_index(int(r), (3, 3)) for r in pullback.routes.ravel()]
    for k, colour in enumerate(WINDOWS):
        i, j = divmod(k, 2)
        outline(first, 2 * i, 2 * j, 3, colour, 0.05 + 0.05 * k)
        outline(out, i, j, 1, colour, 0.06)
        outline(up, i, j, 1, colour, 0.06)
        di, dj = winners[k]
        outline(back, 2 * i + int(di), 2 * j + int(dj), 1, colour, 0.04 + 0.07 * k)
    save(figure, "routes.png")


def main() -> None:
    """Make all pictures."""
    (HERE / "operators").mkdir(exist_ok=True)
    routes()
    for name, picture in PICTURES.items():
        operator(name, picture)


if __name__ == "__main__":
    main()
