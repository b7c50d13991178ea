"""Make the pictures of the documentation: docs/*.png, operators/*.png and backpropagation/*.png."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image, ImageOps

import poolgrad as pg

HERE = Path(__file__).parent
CELL, GAP, TOP, BOTTOM = 0.46, 0.4, 0.5, 0.62  # inches
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
WINDOWS = [BLUE, ORANGE, GREEN, PURPLE]  # distinct for colour-blind readers (Okabe & Ito)
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
    "log_mean_exp": Picture(
        pg.log_mean_exp_pool2d, (2,), 2, "the softmax of x / 2 in each window", {"r": 0.5}
    ),
    "soft": Picture(pg.soft_pool2d, (2,), 2, SIGNS),
    "stochastic": Picture(pg.stochastic_pool2d, (2,), 2, "1 to what was drawn", {"generator": 3}),
    "expected": Picture(pg.stochastic_pool2d, (2,), 2, SIGNS, {"training": False}),
    "mixed": Picture(pg.mixed_pool2d, (2,), 2, "0.6 to the largest, 0.1 to each", {"alpha": 0.6}),
    "range": Picture(pg.range_pool2d, (3, 1), 3, "red: negative, there an\ninput was the smallest"),
    "lip": Picture(
        pg.lip_pool2d, (X / 2, 2), 2, "the softmax of x / 2 in each window", shown="x, x / 2, 2"
    ),
    "adaptive_max": Picture(pg.adaptive_max_pool2d, (4,), 2, f"{WON};\nthey overlap"),
    "adaptive_avg": Picture(pg.adaptive_avg_pool2d, (4,), 2, "1/4 from each bin around it"),
    "global_max": Picture(pg.global_max_pool, (), 6, "of two 9s the first"),
    "global_avg": Picture(pg.global_avg_pool, (), 6, "1/36 to each input"),
    "global_lp": Picture(pg.global_lp_pool, (), 6, "$|x|\\,/\\,y$", {"norm_type": 2.0}),
    "global_log_mean_exp": Picture(
        pg.global_log_mean_exp_pool, (), 6, "the softmax of all x / 4", {"r": 0.25}
    ),
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
    colour: str = ""  # of the numbers that are not 0; by default a grey by their size
    decimals: int = 2


def short(value: float, decimals: int = 2) -> str:
    """The value, rounded."""
    return f"{round(float(value), decimals) + 0.0:g}"  # + 0.0: no "-0"


def cells(ax: Axes, panel: Panel) -> None:
    """Draw an array as a grid of numbers; with colours for signs, if some are negative."""
    values = panel.values
    rows, columns = values.shape
    contrast = 1.8 if np.ptp(values) else 6  # all the same: pale
    peak = contrast * (panel.peak or np.abs(values).max())
    signed = values.min() < 0
    if panel.colour:
        tint = LinearSegmentedColormap.from_list("tint", ["white", panel.colour])
        ax.imshow(values != 0, cmap=tint, vmin=0, vmax=3)
    else:
        colours = "RdBu" if signed else "Greys"
        ax.imshow(values, cmap=colours, vmin=-peak if signed else 0, vmax=peak)
    for (i, j), value in np.ndenumerate(values):
        text = short(value, panel.decimals)
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


def save(figure: Figure, name: str, least_width: int = 0) -> None:
    """Write a small file: a picture of numbers needs few colours.

    With `least_width`, blank margins are cut and narrow pictures get wider ones, so that a page
    that fits pictures to its width shows their text in one size.
    """
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    if least_width:
        image = ImageOps.expand(image.crop(ImageOps.invert(image).getbbox()), 12, "white")
        width = max(image.width, least_width)
        image = ImageOps.pad(image, (width, image.height), color="white")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(HERE / name, optimize=True)


def operator(name: str, picture: Picture) -> None:
    """Draw one operator: input, output, gradient of the output, gradient of the input."""
    y, pullback = pg.vjp(picture.function, picture.x, *picture.args, **picture.kwargs)
    gy = np.ones_like(y) if picture.gy is None else picture.gy.reshape(y.shape)
    learned = [
        f"gradient of {n}: {short(g)}" for n, g in pullback.parameters(gy).items() if g.ndim == 0
    ]
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


SMALL = np.array([[1, 3], [2, 0.5]])
PLANE = np.array([[1, 3, 2, 1], [4, 6, 5, 0], [7, 2, 1, 3], [0, 1, 8, 2.0]])
UP, DOWN = "gradient of the output", "gradient of the input"


def one_window(pool: Callable[..., Any]) -> Figure:
    """The window 1, 3, 2, 0.5, its output, the cotangent 2.5 and where it goes."""
    y, pullback = pg.vjp(pool, SMALL, 2)
    figure, axes = row_of(
        [
            Panel(SMALL, "input x"),
            Panel(y, f"{pool.__name__}(x, 2)", call=True, peak=3, decimals=3),
            Panel(np.array([[2.5]]), UP, colour=PURPLE),
            Panel(pullback(2.5), DOWN, colour=GREEN, decimals=3),
        ]
    )
    outline(axes[0], 0, 0, 2, BLUE)
    if pool is pg.max_pool2d:
        outline(axes[0], 0, 1, 1, ORANGE, 0.1)
        outline(axes[3], 0, 1, 1, ORANGE, 0.1)
    return figure


def kink() -> Figure:
    """The graph of max(x, 2), and slopes that are subgradients at 2."""
    figure = Figure(figsize=(5.6, 3.0), dpi=DPI, layout="constrained")
    ax = figure.add_subplot()
    x = np.array([0.0, 2, 4])
    for slope, style in ((0, ":"), (0.5, "--"), (1, ":")):
        line = 2 + slope * (x - 2)
        ax.plot(x, line, style, color=PURPLE, linewidth=1.8)
        ax.annotate(f"slope {slope:g}", (4, line[-1]), (6, 0), textcoords="offset points",
                    color="#97376E", va="center", fontsize=11, annotation_clip=False)  # fmt: skip
    ax.plot(x, np.maximum(x, 2), color=BLUE, linewidth=3)
    ax.plot(2, 2, "o", color=ORANGE, markersize=9, zorder=3)
    ax.annotate("kink: both inputs are 2", (2, 2), (-6, 16), textcoords="offset points",
                ha="right", fontsize=11)  # fmt: skip
    ax.set(xlabel="x", ylabel="max(x, 2)", xlim=(0, 4), ylim=(0, 4.1), xticks=range(5))
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def ties() -> Figure:
    """Four equal inputs, and their gradients under the three rules."""
    equal = np.full((2, 2), 3.0)
    panels = [Panel(equal, "input x")]
    notes = {"first": "the first winner", "split": "equal shares", "zero": "none of several"}
    for rule, note in notes.items():
        _, pullback = pg.vjp(pg.max_pool2d, equal, 2, ties=rule)
        panels.append(Panel(pullback(1.0), f'ties="{rule}"', note, call=True, colour=GREEN))
    figure, axes = row_of(panels)
    outline(axes[0], 0, 0, 2, BLUE)
    return figure


def matrix() -> Figure:
    """An input, its maxima, the mask of winners and the Jacobian."""
    y, pullback = pg.vjp(pg.max_pool2d, PLANE, 2)
    figure, axes = row_of(
        [
            Panel(PLANE, "input x", "read row by row"),
            Panel(y, "output y"),
            Panel(pullback.mask(), "mask", colour=ORANGE),
            Panel(pullback.matrix().toarray(), "Jacobian J", "one row for each output, "
                  "one column for each input", colour=ORANGE),
        ]
    )  # fmt: skip
    for k, colour in enumerate(WINDOWS):
        i, j = divmod(k, 2)
        outline(axes[0], 2 * i, 2 * j, 2, colour)
        outline(axes[1], i, j, 1, colour)
    return figure


def chain() -> Figure:
    """Convolution, ReLU and maximum; delta, and the gradient of the filter."""
    x = np.array([[1, 0, 2, 1, 0], [0, 3, 1, 0, 1], [2, 1, 0, 2, 0], [0, 1, 4, 0, 1],
                  [1, 0, 0, 1, 2.0]])  # fmt: skip
    w = np.array([[1, -1], [0, 1.0]])

    def slide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("ijuv,uv->ij", np.lib.stride_tricks.sliding_window_view(a, b.shape), b)

    z = slide(x, w) - 1
    y, pullback = pg.vjp(pg.max_pool2d, np.maximum(z, 0), 2)
    delta = pullback(np.array([[1, 2], [3, 4.0]])) * (z > 0)
    figure, _ = row_of(
        [
            Panel(x, "image x"),
            Panel(z, "z = w ⋆ x + b", "w = [[1, -1], [0, 1]], b = -1"),
            Panel(y, "maxpool(relu(z))", "gradient: [[1, 2], [3, 4]]"),
            Panel(delta, "delta", "winners with z > 0", colour=GREEN),
            Panel(slide(x, delta), "dw = x ⋆ delta", colour=GREEN),
        ]
    )
    return figure


def batch() -> Figure:
    """Two examples, each with its own winner; the mean of their weight gradients."""
    examples = np.array([[[1, 3], [2, 0.5]], [[4, 1], [0, 2.0]]])
    y, pullback = pg.vjp(pg.max_pool2d, examples, 2)
    gx = pullback(np.ones_like(y))
    each = (gx * examples).sum((1, 2))
    panels = []
    for n, name in enumerate(("first", "second")):
        panels += [
            Panel(examples[n], f"{name} example", f"its gradient of w: {each[n]:g}"),
            Panel(gx[n], DOWN, colour=GREEN),
        ]
    panels.append(
        Panel(np.array([[each.mean()]]), "gradient of w", "mean of 3 and 4", colour=GREEN)
    )
    figure, axes = row_of(panels)
    for n in range(2):
        winner = np.unravel_index(np.argmax(examples[n]), (2, 2))
        outline(axes[2 * n], *map(int, winner), 1, ORANGE)
        outline(axes[2 * n + 1], *map(int, winner), 1, ORANGE)
    return figure


def shift() -> Figure:
    """A row with a 5 that moves by one and by two."""
    row = np.array([0, 0, 5, 0, 0, 0, 0, 0.0])
    moved = np.array([np.roll(row, k) for k in range(3)])
    pooled = np.array([pg.max_pool1d(r, 2) for r in moved])
    figure, axes = row_of(
        [
            Panel(moved, "input", "top: x; below: moved by 1 and by 2", colour=ORANGE),
            Panel(pooled, "max_pool1d(x, 2)", "moved by 1: the same", call=True, colour=ORANGE),
        ]
    )
    for i in range(3):
        for j in range(4):
            axes[0].add_patch(Rectangle((2 * j - 0.46, i - 0.46), 1.92, 0.92, fill=False,
                                        edgecolor=BLUE, linewidth=2))  # fmt: skip
    return figure


CHAPTER = {
    "max": lambda: one_window(pg.max_pool2d),
    "avg": lambda: one_window(pg.avg_pool2d),
    "kink": kink,
    "ties": ties,
    "matrix": matrix,
    "chain": chain,
    "batch": batch,
    "shift": shift,
}


def main() -> None:
    """Make all pictures."""
    (HERE / "backpropagation").mkdir(exist_ok=True)
    for name, figure in CHAPTER.items():
        save(figure(), f"backpropagation/{name}.png", least_width=1100)
    (HERE / "operators").mkdir(exist_ok=True)
    routes()
    for name, picture in PICTURES.items():
        operator(name, picture)


if __name__ == "__main__":
    main()
