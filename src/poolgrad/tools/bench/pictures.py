"""Draws the results of a run: every row relative to the floor; time against kernel size."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from matplotlib.figure import Figure

from poolgrad.lab.plotting import BLUE, GREY, ORANGE, to_png
from poolgrad.tools.bench.result import EAGER, Result
from poolgrad.tools.bench.rows import KERNELS, kernel_row


def draw_bars(results: Sequence[Result], caption: str) -> bytes | None:
    """Draw the times of poolgrad and PyTorch relative to the floor, for each row that has one.

    Parameters
    ----------
    results
        Results of a run.
    caption
        The machine, the threads, the versions.

    Returns
    -------
    bytes or None
        A PNG, if there is anything to draw.
    """
    rows = [(result, result.floor) for result in results if result.floor]
    if not rows:
        return None
    figure = Figure(figsize=(11, 1.8 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    positions = range(len(rows))
    ours = [result.seconds / floor for result, floor in rows]
    theirs = [result.peers.get(EAGER, 0.0) / floor for result, floor in rows]
    axes.barh([i - 0.2 for i in positions], ours, 0.4, color=BLUE, label="poolgrad")
    axes.barh([i + 0.2 for i in positions], theirs, 0.4, color=ORANGE, label=EAGER)
    limits = [(result.limits.floor, i - 0.2) for i, (result, _) in enumerate(rows)]
    kept = [(limit, i) for limit, i in limits if limit]
    if kept:
        axes.plot(*zip(*kept, strict=True), "|k", markersize=8, label="target")
    axes.axvline(1, color=GREY, linestyle="--", label="floor: copy of as many bytes")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(left=min(0.5, *ours))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(positions, [result.name for result, _ in rows], fontsize=9)
    axes.set_xlabel("time / floor (shorter is better)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    figure.supxlabel(fill(caption, 100), fontsize=8, color=GREY)
    return to_png(figure)


def draw_kernels(results: Sequence[Result], caption: str) -> bytes | None:
    """Draw the time of a stride-1 maximum against the kernel size, as `draw_bars`."""
    found = {result.name: result for result in results}
    rows = [(k, found[name]) for k in KERNELS if (name := kernel_row(k).name) in found]
    if not rows:
        return None
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    theirs = [(k, result.peers[EAGER] * 1e3) for k, result in rows if EAGER in result.peers]
    axes.plot([k for k, _ in rows], [result.seconds * 1e3 for _, result in rows],
              color=BLUE, marker="o", label="poolgrad")  # fmt: skip
    if theirs:
        axes.plot(*zip(*theirs, strict=True), color=ORANGE, marker="s", label=EAGER)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([k for k, _ in rows], [str(k) for k, _ in rows])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"height and width of the kernel (stride 1, input {rows[0][1].shape})")
    axes.set_ylabel("time, ms")
    axes.set_title("Max pooling, forward pass of an input that requires a gradient")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.supxlabel(fill(caption, 100), fontsize=8, color=GREY)
    return to_png(figure)
