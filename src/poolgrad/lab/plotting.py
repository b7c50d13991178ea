"""Elements of the lab's pictures: colours, frames, titles, maps with numbers, PNG files."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from poolgrad.lab.trace import Plane

# Colours that are distinguishable for everybody (Okabe & Ito).
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#595959"
_PALE = "#b0b0b0"

_MOST_NUMBERS = 12  # in a row of a panel


def to_png(figure: Figure) -> bytes:
    """The figure as the content of a PNG file."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()


def add_frame(
    axes: Axes,
    corner: tuple[int, int],
    extent: tuple[int, int],
    colour: str,
    line: float,
    inset: float = 0.0,
) -> None:
    """Frame some cells of a map that is shown with `imshow`.

    Parameters
    ----------
    axes
        Axes of the map.
    corner
        Row and column of the first cell.
    extent
        How many rows and columns.
    colour, line
        Colour and line of the frame; its width in points.
    inset
        How far inside the cells it runs.
    """
    frame = Rectangle(
        (corner[1] - 0.5 + inset, corner[0] - 0.5 + inset),
        extent[1] - 2 * inset,
        extent[0] - 2 * inset,
        fill=False,
        edgecolor=colour,
        linewidth=line,
        joinstyle="miter",
        zorder=5,  # above the numbers and their background boxes
        clip_on=False,  # half of a line at the border of the panel is outside of it
    )
    axes.add_patch(frame)


def write_numbers(axes: Axes, plane: Plane, rows: range, columns: range, numbers: str) -> None:
    """Write the values of a map that is shown with `imshow` into its cells.

    Zeros are left out, and all numbers where the cells are too small for them.

    Parameters
    ----------
    axes
        Axes of the map.
    plane
        The values, shape (H, W).
    rows, columns
        Where to write.
    numbers
        The format, such as `"{:.1f}"`.
    """
    if max(len(rows), len(columns)) > _MOST_NUMBERS:
        return
    (image,) = axes.get_images()
    size = 13 - 0.45 * max(len(rows), len(columns))
    for i in rows:
        for j in columns:
            text = numbers.format(plane[i, j])
            if float(text) == 0:
                continue
            red, green, blue, _ = behind = image.to_rgba(plane[i : i + 1, j])[0]
            dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
            axes.text(
                j,
                i,
                text,
                ha="center",
                va="center",
                fontsize=size,
                color="white" if dark else "black",
                bbox={"facecolor": behind, "edgecolor": "none", "pad": 1},  # hides lines below
                zorder=4,
            )


def set_title(axes: Axes, title: str, note: str) -> None:
    """Write a title, and a smaller note under it."""
    axes.set_title(note, fontsize=12.5, color=GREY, pad=7)
    axes.text(
        0.5,
        1.09,
        title,
        transform=axes.transAxes,
        ha="center",
        va="bottom",
        fontsize=16,
        fontweight="bold",
    )


def add_arrow(begin: Axes, end: Axes, words: str, colour: str) -> None:
    """Draw an arrow from a panel to one that stands beside it, with words over it."""
    figure = begin.get_figure()
    assert figure is not None
    here, there = begin.get_position(), end.get_position()
    gap = (here.x1, there.x0) if here.x1 <= there.x0 else (here.x0, there.x1)
    height = (here.y0 + here.y1) / 2
    arrow = FancyArrowPatch(
        (gap[0], height),
        (gap[1], height),
        transform=figure.transFigure,
        arrowstyle="simple,head_width=14,head_length=12,tail_width=4",
        shrinkA=8,
        shrinkB=8,
        color=colour,
    )
    figure.add_artist(arrow)
    figure.text(
        sum(gap) / 2, height + 0.025, words, ha="center", va="bottom", fontsize=12, color=colour
    )


def show_part(axes: Axes, rows: range, columns: range) -> None:
    """Cut a map that is shown with `imshow` to some rows and columns; hatch what lies beyond it."""
    axes.set_xlim(columns.start - 0.5, columns.stop - 0.5)
    axes.set_ylim(rows.stop - 0.5, rows.start - 0.5)
    hide_axes(axes)
    axes.spines[:].set(visible=True, color=_PALE)  # white cells end somewhere, too
    axes.patch.set(facecolor="white", edgecolor=_PALE, hatch="////", linewidth=0)


def hide_axes(axes: Axes) -> None:
    """Leave nothing but the picture."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
