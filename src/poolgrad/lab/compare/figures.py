"""Figures of the report: colours and markers of the methods, a canvas in pixels, PNG and SVG."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from poolgrad.lab.compare.findings import find_baseline
from poolgrad.lab.compare.results import Comparison, Summary
from poolgrad.lab.plotting import GREY

INK, LINE, PAPER = "#1b2127", "#dcdbd5", "#ffffff"
# Okabe & Ito's colours, with grey instead of yellow, which is too pale for lines. The baseline has
# the colour of text, black or white.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#999999")
# Every method has its own marker, so that pictures can be read without colours.
_MARKERS: tuple[str | tuple[int, int, int], ...] = (
    "s",
    "^",
    "D",
    "v",
    "P",
    "X",
    "<",
    ">",
    "p",
    "h",
    "*",
    "d",
    "8",
    "H",
    (4, 1, 0),
)
_DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (5, 1.6)), (0, (1.5, 1.3)))
# In an SVG these become variables of the page's style, which has a light and a dark theme.
_VARIABLES = {
    INK: "--ink",
    GREY: "--muted",
    LINE: "--line",
    PAPER: "--card",
    **{colour: f"--series-{i}" for i, colour in enumerate(_COLOURS)},
}
WIDE, NARROW = 960, 330  # widths of the figures in pixels of the page
_DPI = 72  # of a canvas: one pixel is one point
_PNG_DPI = 160


@dataclass(frozen=True)
class Style:
    """The style of a method in every picture.

    Attributes
    ----------
    label
        Short name, for labels in pictures.
    colour, marker, dashes
        Of points and lines, in the words of matplotlib.
    filled
        Whether the marker is filled; it is not where a colour is used again.
    """

    label: str
    colour: str
    marker: str | tuple[int, int, int]
    dashes: str | tuple[int, tuple[float, ...]]
    filled: bool

    @property
    def face(self) -> str:
        """Colour inside the marker."""
        return self.colour if self.filled else PAPER


def choose_styles(comparison: Comparison) -> dict[tuple[str, str], Style]:
    """Return the style of every method and head, in the order of the comparison.

    Parameters
    ----------
    comparison
        Its summaries and failures name the methods. The head is part of the label if there are
        several.
    """
    heads = {s.head for s in comparison.summaries}
    baseline = find_baseline(comparison)
    styles = {}
    others = 0
    for summary in comparison.summaries:
        label = summary.method if len(heads) < 2 else f"{summary.method}, {summary.head}"
        if summary is baseline:
            style = Style(label, INK, "o", "-", True)
        else:
            again, colour = divmod(others, len(_COLOURS))
            style = Style(
                label,
                _COLOURS[colour],
                _MARKERS[others % len(_MARKERS)],
                _DASHES[again % len(_DASHES)],
                again % 2 == 0,
            )
            others += 1
        styles[summary.method, summary.head] = style
    return styles


def key_of(summary: Summary) -> tuple[str, str]:
    """Return the method and the head of a summary, which `choose_styles` uses as keys."""
    return summary.method, summary.head


class Canvas:
    """A figure whose parts are placed in pixels, from the top left corner.

    Parameters
    ----------
    width, height
        Size in pixels.
    """

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
        FigureCanvasAgg(self.figure)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes without frame and ticks, with a thin line below."""
        axes = self.figure.add_axes(
            (
                left / self.width,
                1 - (top + height) / self.height,
                width / self.width,
                height / self.height,
            )
        )
        axes.patch.set_visible(False)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(LINE)
        axes.tick_params(length=0, labelsize=11, colors=GREY, pad=5)
        axes.set_axisbelow(True)
        return axes

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12.5,
        colour: str = INK,
        align: str = "left",
        weight: str = "normal",
    ) -> None:
        """Write a line of text whose middle has the height y."""
        self.figure.text(
            x / self.width,
            1 - y / self.height,
            text,
            fontsize=size,
            color=colour,
            ha=align,
            va="center_baseline",
            fontweight=weight,
        )

    def mark(self, x: float, y: float, style: Style, size: float = 6.5) -> None:
        """Draw a method's marker."""
        self.figure.add_artist(
            mpl.lines.Line2D(
                [x / self.width],
                [1 - y / self.height],
                marker=MarkerStyle(style.marker),
                markersize=size,
                color=style.colour,
                markerfacecolor=style.face,
                markeredgewidth=1.4,
                linestyle="none",
            )
        )

    def line(
        self, xs: Sequence[float], ys: Sequence[float], colour: str = LINE, width: float = 1.0
    ) -> None:
        """Draw a line through points that are given in pixels."""
        self.figure.add_artist(
            mpl.lines.Line2D(
                np.asarray(xs) / self.width,
                1 - np.asarray(ys) / self.height,
                color=colour,
                linewidth=width,
            )
        )

    def png(self) -> bytes:
        """Return the content of a PNG file, in the light theme."""
        content = io.BytesIO()
        self.figure.savefig(content, format="png", dpi=_PNG_DPI, facecolor="white")
        return content.getvalue()

    def svg(self, name: str, alt: str) -> str:
        """Return an SVG element for a page, in the colours and the font of the page.

        Parameters
        ----------
        name
            Different for every figure of a page: the element's identifiers begin with it.
        alt
            What the figure shows, for those who cannot see it; HTML's special characters are
            escaped here. Empty: an ornament.
        """
        content = io.StringIO()
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
            self.figure.savefig(
                content, format="svg", transparent=True, metadata=dict.fromkeys(_METADATA)
            )
        return _for_page(content.getvalue(), name, alt)


_METADATA = ("Creator", "Date", "Format", "Type")


def _for_page(svg: str, name: str, alt: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # repeated in every figure, and never referenced
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"(font(?:-family)?: ?[^;\"]*?)'DejaVu Sans'[^;\"]*", r"\1inherit", svg)
    svg = re.sub(r"font: (?:(bold|\d+) )?([\d.]+)px inherit", _font, svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    label = alt.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    spoken = f'role="img" aria-label="{label}"' if label else 'aria-hidden="true"'
    opening = f"<svg {view[0]} {spoken}>"
    return opening + svg[svg.index(">") + 1 :].strip()


def _font(found: re.Match[str]) -> str:
    # The shorthand takes no `inherit`, so its parts are written one by one.
    weight = f"font-weight: {found[1]}; " if found[1] else ""
    return f"{weight}font-size: {found[2]}px"


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draw names literally, without warnings about characters that the font does not have."""
    with (
        mpl.rc_context({"text.parse_math": False, "font.family": "DejaVu Sans"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        yield


def spread_labels(
    wanted: Sequence[float], gap: float, lowest: float, highest: float
) -> NDArray[np.float64]:
    """Move labels along an axis as little as possible, so that none overlaps another.

    A bounded isotonic regression on the positions minus the height of the labels before them.

    Parameters
    ----------
    wanted
        Best position of each label, in any order.
    gap
        Smallest distance of two labels.
    lowest, highest
        Bounds of the positions; if the labels do not fit between, they reach beyond the highest.

    Returns
    -------
    array
        Positions in the order of `wanted`.

    Examples
    --------
    >>> spread_labels([10.0, 10.0, 40.0], 12, 0, 100).tolist()
    [4.0, 16.0, 40.0]
    """
    order = np.argsort(wanted, kind="stable")
    taken = gap * np.arange(len(order))
    fitted = isotonic_regression(np.asarray(wanted, float)[order] - taken).x
    room = max(lowest, highest - gap * (len(order) - 1))
    positions = np.empty(len(order))
    positions[order] = np.clip(fitted, lowest, room) + taken
    return positions


def limits_of(values: Sequence[float], margin: float = 0.06, least: float = 0.01) -> list[float]:
    """Return limits of an axis that hold all finite values, with a margin.

    Parameters
    ----------
    values
        NaN and infinities are left out.
    margin
        Share of the extent that is added on each side.
    least
        Smallest extent.
    """
    finite = [v for v in values if np.isfinite(v)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    extent = max(high - low, least)
    middle = (low + high) / 2
    reach = extent * (0.5 + margin)
    return [middle - reach, middle + reach]
