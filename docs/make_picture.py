"""Make docs/routes.png: how a maximum goes forward, and its gradient back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import poolgrad

WINDOWS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7"]  # told apart by everybody (Okabe & Ito)
X = np.array(
    [
        [1.0, 0.0, 2.0, 1.0, 0.0],
        [3.0, 2.0, 9.0, 1.0, 4.0],
        [0.0, 1.0, 0.0, 2.0, 1.0],
        [5.0, 0.0, 1.0, 6.0, 0.0],
        [1.0, 3.0, 0.0, 2.0, 1.0],
    ]
)
GY = np.array([[1.0, 2.0], [3.0, 4.0]])


def cells(ax: Axes, values: np.ndarray, title: str, note: str, peak: float) -> None:
    """Draw an array as a grid of numbers."""
    rows, columns = values.shape
    ax.imshow(values, cmap="Greys", vmin=0, vmax=peak * 1.8)
    for (i, j), value in np.ndenumerate(values):
        ax.text(j, i, f"{value:g}", ha="center", va="center", fontsize=15,
                color="black" if value else "0.6")  # fmt: skip
    ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="0.8", linewidth=1)
    ax.tick_params(which="both", length=0, labelbottom=False, labelleft=False)
    ax.set_title(title, fontsize=15, pad=10)
    ax.set_xlabel(note, fontsize=12, labelpad=10)


def outline(ax: Axes, i: float, j: float, side: float, colour: str, shrink: float) -> None:
    """Frame a window or a cell."""
    ax.add_patch(Rectangle((j - 0.5 + shrink, i - 0.5 + shrink), side - 2 * shrink,
                           side - 2 * shrink, fill=False, edgecolor=colour, linewidth=3.5,
                           clip_on=False))  # fmt: skip


def main() -> None:
    """Draw and save."""
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, X, 3, stride=2)
    gx = pullback(GY)
    figure = Figure(figsize=(15, 4.8), layout="constrained")
    figure.get_layout_engine().set(wspace=0.08)
    first, out, up, back = figure.subplots(1, 4, width_ratios=[5, 3, 3, 5])
    cells(first, X, "input", "four 3x3 windows, two apart", X.max())
    cells(out, y, "max_pool2d(x, 3, 2)", "each window's largest", X.max())
    cells(up, GY, "gradient of the output", "from the layers above", GY.max())
    cells(back, gx, "gradient of the input",
          "along the routes: 9 won two windows,\nso it gets 1 + 2; losers get nothing",
          gx.max())  # fmt: skip
    winners = [np.unravel_index(int(r), (3, 3)) for r in pullback.routes.ravel()]
    for k, colour in enumerate(WINDOWS):
        i, j = divmod(k, 2)
        outline(first, 2 * i, 2 * j, 3, colour, 0.05 + 0.05 * k)
        outline(out, i, j, 1, colour, 0.06)
        outline(up, i, j, 1, colour, 0.06)
        di, dj = winners[k]
        outline(back, 2 * i + di, 2 * j + dj, 1, colour, 0.04 + 0.07 * k)
    figure.savefig(Path(__file__).with_name("routes.png"), dpi=110)


if __name__ == "__main__":
    main()
