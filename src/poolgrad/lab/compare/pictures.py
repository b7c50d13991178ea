"""Charts of a comparison: differences, consistency, shifts, learning curves, costs.

Every function returns a `Canvas` of the given width and the text that stands for the picture where
it cannot be viewed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from poolgrad.lab.compare.figures import (
    INK,
    LINE,
    NARROW,
    PAPER,
    Canvas,
    Style,
    key_of,
    limits_of,
    spread_labels,
)
from poolgrad.lab.compare.findings import (
    COSTS,
    find_baseline,
    has_interval,
    number,
    signed,
    validation_curve,
    verdict_of,
    with_interval,
)
from poolgrad.lab.compare.results import Comparison, Estimate, Summary
from poolgrad.lab.plotting import GREY

Styles = dict[tuple[str, str], Style]
Picture = tuple[Canvas, str]

_LABEL = 12.5  # size of the methods' names
_CHARACTER = 7.4  # width of a character of that size, on average


def draw_differences(
    comparison: Comparison, summaries: Sequence[Summary], styles: Styles, width: int
) -> Picture:
    """Draw the paired differences to the baseline with their intervals (a forest plot).

    Parameters
    ----------
    comparison
        What to draw.
    summaries
        Its summaries in the order of the rows.
    styles
        From `choose_styles`.
    width
        Width of the picture, in pixels.
    """
    narrow = width <= NARROW
    row = 50 if narrow else 32
    names = 0 if narrow else min(_names_width(summaries, styles), 210)
    words = 0 if narrow else 330
    top = 30
    left, right = names + 12, width - words - 12
    canvas = Canvas(width, top + row * len(summaries) + 44)
    axes = canvas.axes(left, top, right - left, row * len(summaries) + 6)
    shown = [s.difference for s in summaries if s.difference is not None]
    values = [v for d in shown for v in (d.mean, d.low, d.high)]
    axes.set_xlim(*limits_of([0.0, *values]))
    axes.set_ylim(row * len(summaries) + 6, 0)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: signed(value)))
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    axes.axvline(0, color=GREY, linewidth=1.4)
    zero = left + (right - left) * axes.transLimits.transform((0.0, 0.0))[0]
    for words_of, shift, align in (("← worse", -10, "right"), ("better →", 10, "left")):
        canvas.text(min(max(zero + shift, 58), width - 62), 14, words_of, 11.5, GREY, align)
    baseline = find_baseline(comparison)
    name = styles[key_of(baseline)].label if baseline else comparison.baseline
    title = f"{comparison.metric} minus that of {name}"
    canvas.text(left, canvas.height - 9, title, 11.5, GREY)
    spoken = []
    for i, summary in enumerate(summaries):
        style, difference = styles[key_of(summary)], summary.difference
        verdict = verdict_of(summary, baseline)
        middle = row * i + (34 if narrow else row / 2 + 3)
        line = top + row * i + 13 if narrow else top + middle
        canvas.mark(7, line, style)
        canvas.text(20, line, _fit(style.label, 180), _LABEL)
        if narrow:
            canvas.text(width, line, str(verdict), 11.5, GREY, "right")
        else:
            canvas.text(width - 136, line, verdict.sign, 11, GREY, "right")
            canvas.text(width - 130, line, verdict.words, 12.5, GREY)
        said = with_interval(summary.score)
        if difference is not None:
            said = with_interval(difference, signed)
            if not narrow:
                canvas.text(width - words + 8, line, said, 12.5)
            if has_interval(difference):
                ends = [difference.low, difference.high]
                axes.plot(ends, [middle, middle], color=style.colour, linewidth=2.4)
        if difference is not None or summary is baseline:
            axes.plot(difference.mean if difference else 0, middle, **_marker(style, 7))
        spoken.append(f"{style.label}: {said}, {verdict.words}")
    alt = f"Differences of {comparison.metric} to {name}. " + "; ".join(spoken) + "."
    return canvas, alt


def draw_together(
    comparison: Comparison, summaries: Sequence[Summary], styles: Styles, width: int
) -> Picture | None:
    """Draw the score against consistency under both kinds of shifts, or against boundary IoU.

    Parameters
    ----------
    comparison, summaries, styles, width
        As in `draw_differences`.

    Returns
    -------
    Canvas, str or None
        None where there is nothing to draw the score against.
    """
    panels: list[tuple[str, dict[tuple[str, str], Estimate]]] = []
    for title, pick in _BESIDE:
        found = {key_of(s): e for s in summaries if (e := pick(s)) is not None}
        if found:
            panels.append((title, found))
    if not panels:
        return None
    narrow = width <= NARROW
    columns = 1 if narrow else 2
    extent = 300 if narrow else 420
    rows = math.ceil(len(panels) / columns)
    canvas = Canvas(width, rows * (extent + 42))
    ys = [s.score for s in summaries]
    spoken = []
    for i, (title, found) in enumerate(panels):
        row, column = divmod(i, columns)
        left = 44 + column * (width / columns)
        size = (width / columns - 44 - 18, extent - 34)
        top = row * (extent + 42) + 30
        axes = canvas.axes(left, top, *size)
        axes.set_xlim(*_limits(list(found.values()), most=1.0))
        axes.set_ylim(*_limits(ys, most=1.0))
        axes.grid(color=LINE, linewidth=0.8)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(4 if narrow else 6))
        axes.set_xticks([t for t in axes.get_xticks() if axes.get_xlim()[0] <= t <= 1])
        axes.set_xlabel(title, fontsize=12, color=GREY, labelpad=5)
        canvas.text(left - 40, top - 18, comparison.metric, 12, GREY)
        shown = [s for s in summaries if key_of(s) in found]
        for summary in shown:
            style, x, y = styles[key_of(summary)], found[key_of(summary)], summary.score
            for estimate, ends in ((x, _across(x, y)), (y, _along(x, y))):
                if has_interval(estimate):
                    axes.plot(*ends, color=style.colour, linewidth=1.6, alpha=0.55, zorder=2)
            axes.plot(x.mean, y.mean, **_marker(style, 7.5))
            spoken.append(f"{style.label}: {number(y.mean)} at {title} {number(x.mean)}")
        _label_points(
            axes,
            size,
            [(found[key_of(s)].mean, s.score.mean) for s in shown],
            [styles[key_of(s)].label for s in shown],
        )
    return canvas, f"{comparison.metric} and consistency. " + "; ".join(spoken) + "."


_BESIDE: tuple[tuple[str, Callable[[Summary], Estimate | None]], ...] = (
    ("consistency, cropped shifts", lambda s: s.cropped_consistency),
    ("consistency, circular shifts", lambda s: s.circular_consistency),
    ("boundary IoU", lambda s: s.extra.get("boundary_iou")),
)


def _limits(estimates: Sequence[Estimate], most: float) -> list[float]:
    values = [v for e in estimates for v in (e.mean, e.low, e.high)]
    low, high = limits_of(values, 0.09, 0.02)
    return [low, min(high, most + 0.06 * (high - low))]


def _across(x: Estimate, y: Estimate) -> tuple[list[float], list[float]]:
    return [x.low, x.high], [y.mean, y.mean]


def _along(x: Estimate, y: Estimate) -> tuple[list[float], list[float]]:
    return [x.mean, x.mean], [y.low, y.high]


def _label_points(
    axes: Axes,
    size: tuple[float, float],
    points: Sequence[tuple[float, float]],
    labels: Sequence[str],
) -> None:
    """Write names beside points; where there is no space, further away with a leader line.

    Greedy: every name takes the position, out of 16 directions and some distances, that overlaps
    the fewest names and points, and of these the nearest.
    """
    extent = np.asarray(size)
    positions = axes.transLimits.transform(points) * extent
    taken = [_box(position, 9, 9) for position in positions]
    angles = np.arange(16) * (2 * np.pi / 16)
    back = axes.transLimits.inverted()
    for position, label in sorted(
        zip(positions, labels, strict=True), key=lambda pair: -pair[0][0]
    ):
        wide = _CHARACTER * len(label)
        candidates = []
        for far, angle in product((13, 24, 38, 54, 74, 100), angles):
            direction = np.array([np.cos(angle), np.sin(angle)])
            centre = position + direction * (far + np.array([wide / 2, 3]) * abs(direction))
            box = _box(centre, wide, 15)
            outside = box[0] < -4 or box[1] < 2 or box[2] > extent[0] + 14 or box[3] > extent[1] + 8
            cost = far + 60 * sum(_overlap(box, other) for other in taken) + 1000 * outside
            cost += 4 * (1 - direction[0])  # to the right of the point, if all else is equal
            candidates.append((cost, far, centre))
        _, far, centre = min(candidates, key=lambda candidate: candidate[0])
        taken.append(_box(centre, wide, 15))
        (x, y), (label_x, label_y) = back.transform([position / extent, centre / extent])
        arrow = {"arrowstyle": "-", "color": GREY, "linewidth": 0.7, "shrinkB": 5}
        axes.annotate(
            label,
            (x, y),
            (label_x, label_y),
            ha="center",
            va="center",
            fontsize=_LABEL - 0.5,
            color=INK,
            zorder=6,
            bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
            annotation_clip=False,
            arrowprops=arrow if far > 13 else None,
        )


def _box(
    centre: NDArray[np.float64], width: float, height: float
) -> tuple[float, float, float, float]:
    x, y = centre
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def draw_shifts(
    comparison: Comparison, summaries: Sequence[Summary], styles: Styles, width: int
) -> Picture | None:
    """Draw the accuracy against the length of the shift, circular and cropped.

    Parameters
    ----------
    comparison, summaries, styles, width
        As in `draw_differences`.

    Returns
    -------
    Canvas, str or None
        None where no run was tested with shifts.
    """
    curves = {}
    for summary in summaries:
        runs = [
            run.shifts
            for run in comparison.runs
            if (run.method, run.head) == key_of(summary) and run.shifts is not None
        ]
        if runs:
            curves[key_of(summary)] = (
                np.asarray(runs[0].distances, float),
                np.mean([run.circular_accuracy for run in runs], 0),
                np.mean([run.cropped_accuracy for run in runs], 0),
            )
    if not curves:
        return None
    narrow = width <= NARROW
    columns = 1 if narrow else 2
    extent = max(300, 15 * len(curves) + 40)
    labels = min(30 + _CHARACTER * max(len(styles[key].label) for key in curves), 150, width / 3)
    canvas = Canvas(width, (extent + 62) * (2 // columns))
    limits = _limits(
        [Estimate(v, v, v) for c in curves.values() for part in c[1:] for v in part.tolist()], 1.0
    )
    for i, title in enumerate(("circular shifts", "cropped shifts")):
        row, column = divmod(i, columns)
        left, top = 44 + column * (width / columns + 4), row * (extent + 62) + 34
        size = (width / columns - 44 - labels - 8, extent - 14)
        axes = canvas.axes(left, top, *size)
        axes.set_ylim(*limits)
        axes.grid(axis="y", color=LINE, linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("shift in pixels", fontsize=12, color=GREY, labelpad=4)
        canvas.text(left - 40, top - 20, f"{comparison.metric}, {title}", 12.5, INK, weight="bold")
        lines = []
        for key, (distances, *accuracies) in curves.items():
            style = styles[key]
            axes.plot(
                distances,
                accuracies[i],
                color=style.colour,
                linestyle=style.dashes,
                linewidth=1.9,
                zorder=3,
            )
            axes.plot(distances, accuracies[i], **_marker(style, 4.5))
            lines.append((accuracies[i][-1], style))
        axes.margins(x=0.03)
        _label_ends(canvas, axes, (left, top, *size), lines, labels - 24)
    ends = [
        f"{styles[key].label}: from {number(c[0])} to {number(c[-1])} (circular),"
        f" from {number(d[0])} to {number(d[-1])} (cropped)"
        for key, (_, c, d) in curves.items()
    ]
    return canvas, f"{comparison.metric} against shift. " + "; ".join(ends) + "."


def _label_ends(
    canvas: Canvas,
    axes: Axes,
    position: tuple[float, float, float, float],
    lines: Sequence[tuple[float, Style]],
    space: float,
) -> None:
    """Write the names of lines at their right ends, joined to them by thin lines."""
    left, top, width, height = position
    low, high = axes.get_ylim()
    finite = [(value, style) for value, style in lines if np.isfinite(value)]
    ends = [top + height * (high - value) / (high - low) for value, _ in finite]
    heights = spread_labels(ends, 15, top, top + height)
    last = float(axes.transLimits.transform(axes.dataLim.max)[0])
    for end, y, (_, style) in zip(ends, heights, finite, strict=True):
        canvas.line([left + width * last + 5, left + width + 8], [end, y], GREY, 0.6)
        canvas.mark(left + width + 15, y, style, 5.5)
        canvas.text(left + width + 24, y, _fit(style.label, space), _LABEL - 0.5)


def draw_learning(
    comparison: Comparison, summaries: Sequence[Summary], styles: Styles, width: int
) -> Picture | None:
    """Draw the validation score over the epochs, one panel per method: mean and range over seeds.

    Parameters
    ----------
    comparison, summaries, styles, width
        As in `draw_differences`.

    Returns
    -------
    Canvas, str or None
        None where no run has a curve.
    """
    found = {
        s_key: c for s in summaries if (c := validation_curve(comparison, *(s_key := key_of(s))))
    }
    if not found:
        return None
    narrow = width <= NARROW
    several = not narrow and len(found) > 2
    columns = min((4, 3), key=lambda n: (-len(found) % n, -n)) if several else 2
    rows = math.ceil(len(found) / columns)
    cell, extent = (width + 12) / columns, 150 if narrow else 190
    canvas = Canvas(width, rows * extent + 4)
    last = max(epochs[-1] for epochs, *_ in found.values())
    # The first epochs are far below the others and would compress their range.
    late = [v for e, *lines in found.values() for line in lines for v in line[e > last / 4]]
    limits = _limits([Estimate(v, v, v) for v in late], 1.0)
    for i, (key, (epochs, low, mean, high)) in enumerate(found.items()):
        style = styles[key]
        row, column = divmod(i, columns)
        left, top = 36 + column * cell, row * extent + 30
        axes = canvas.axes(left, top, cell - 36 - 14, extent - 62)
        axes.set_ylim(*limits)
        axes.set_xlim(0.5, last + 0.5)
        axes.grid(axis="y", color=LINE, linewidth=0.8)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_locator(MaxNLocator(3 if narrow else 5, integer=True))
        for other, (other_epochs, _, other_mean, _) in found.items():
            if other != key:
                axes.plot(other_epochs, other_mean, color=LINE, linewidth=1, zorder=1)
        axes.fill_between(epochs, low, high, color=style.colour, alpha=0.2, linewidth=0, zorder=2)
        axes.plot(epochs, mean, color=style.colour, linewidth=2, zorder=3)
        axes.plot(epochs[-1], mean[-1], **_marker(style, 5.5))
        canvas.mark(left - 26, top - 15, style, 6)
        name = _fit(style.label, cell - 84)
        canvas.text(left - 15, top - 15, name, _LABEL, weight="bold")
        canvas.text(left + cell - 50, top - 15, number(float(mean[-1])), 11.5, GREY, "right")
    canvas.text(36, canvas.height - 10, "epoch", 11.5, GREY)
    ends = [f"{styles[key].label}: {number(float(c[2][-1]))}" for key, c in found.items()]
    return canvas, "Validation score at the last epoch. " + "; ".join(ends) + "."


def draw_costs(
    comparison: Comparison, summaries: Sequence[Summary], styles: Styles, width: int
) -> Picture | None:
    """Draw time and memory as bars from zero, one panel for each quantity.

    Parameters
    ----------
    comparison, summaries, styles, width
        As in `draw_differences`.

    Returns
    -------
    Canvas, str or None
        None where nothing was measured.
    """
    if all(s.cost is None for s in summaries):
        return None
    narrow = width <= NARROW
    columns = 1 if narrow else len(COSTS)
    names = min(_names_width(summaries, styles), 120 if narrow else 150)
    bar, extent = 22, 22 * len(summaries) + (46 if narrow else 40)
    canvas = Canvas(width, extent * (len(COSTS) // columns))
    cell = (width - names) / columns
    spoken = []
    for i, cost in enumerate(COSTS):
        row, column = divmod(i, columns)
        left, top = names + column * cell, row * extent + 32
        size = (cell - 12, bar * len(summaries))
        axes = canvas.axes(left, top, *size)
        axes.spines["bottom"].set_visible(False)
        axes.set_xticks([])
        axes.set_yticks([])
        values = [math.nan if s.cost is None else cost.value(s.cost) for s in summaries]
        spreads = [cost.spread(s.cost) if s.cost and cost.spread else 0.0 for s in summaries]
        spreads = [v if math.isfinite(v) else 0.0 for v in spreads]
        ends = [v + w for v, w in zip(values, spreads, strict=True) if math.isfinite(v)]
        axes.set_xlim(0, 1.75 * max([*ends, 0.0]) or 1.0)  # space for the numbers
        axes.set_ylim(bar * len(summaries), 0)
        axes.axvline(0, color=GREY, linewidth=1.2)
        canvas.text(0 if narrow else left, top - 18, cost.title, 11.5, INK, weight="bold")
        for j, (summary, value, spread) in enumerate(zip(summaries, values, spreads, strict=True)):
            style, middle = styles[key_of(summary)], bar * (j + 0.5)
            if column == 0:
                canvas.mark(7, top + middle, style, 6)
                canvas.text(20, top + middle, _fit(style.label, names - 24), _LABEL - 0.5)
            said = number(value, cost.digits)
            reach = 0.0
            if math.isfinite(value):
                axes.barh(
                    middle, value, bar - 9, color=style.face, edgecolor=style.colour, linewidth=1.2
                )
                reach = value
                if spread > 0:
                    span = [max(value - spread, 0), value + spread]
                    axes.plot(span, [middle] * 2, color=GREY, linewidth=1.4)
                    reach += spread
            axes.text(
                reach + axes.get_xlim()[1] * 0.03, middle, said, fontsize=11, va="center", color=INK
            )
            spoken.append(f"{style.label}: {said}")
        spoken[-len(summaries)] = f"{cost.title}: {spoken[-len(summaries)]}"
    return canvas, "; ".join(spoken) + "."


def _names_width(summaries: Sequence[Summary], styles: Styles) -> float:
    return 34 + _CHARACTER * max(len(styles[key_of(s)].label) for s in summaries)


def _fit(label: str, space: float) -> str:
    """The label, cut off where it is longer than some pixels."""
    most = max(int(space / _CHARACTER), 4)
    return label if len(label) <= most else label[: most - 1] + "…"


def _marker(style: Style, size: float) -> dict[str, Any]:
    return {
        "marker": style.marker,
        "markersize": size,
        "color": style.colour,
        "markerfacecolor": style.face,
        "markeredgewidth": 1.4,
        "linestyle": "none",
        "zorder": 4,
    }
