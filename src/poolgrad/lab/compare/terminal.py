"""Prints the result of a comparison in a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from poolgrad.lab.compare.results import Comparison, Estimate
from poolgrad.lab.compare.sentence import name_of


def show(console: Console, comparison: Comparison, files: Sequence[Path]) -> None:
    """Print the sentence, the tables, warnings and files."""
    console.print()
    console.print(comparison.sentence, style="bold", markup=False, highlight=False)
    console.print()
    console.print(scores(comparison))
    if any(summary.extra for summary in comparison.summaries):
        console.print()
        console.print(further_scores(comparison))
    if any(summary.cost for summary in comparison.summaries):
        console.print()
        console.print(costs(comparison))
    for text in comparison.warnings:
        console.print(f"\n{text}", style="yellow", markup=False, highlight=False)
    if comparison.failures:
        console.print()
    for failure in comparison.failures:
        text = f"{failure.title}: {failure.reason}"
        # Long lines are left to the terminal, so that paths can be copied.
        console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    console.print("\nwritten:")
    for path in files:
        console.print(f"  {path}", markup=False, highlight=False, soft_wrap=True)


def scores(comparison: Comparison) -> Table:
    """Scores, differences and consistencies, with their 95 % intervals."""
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shifted = any(summary.circular_consistency for summary in comparison.summaries)
    shown.add_column("", overflow="fold", min_width=6)
    shown.add_column(comparison.metric, justify="right", no_wrap=True)
    shown.add_column(f"minus {comparison.baseline}", justify="right", no_wrap=True)
    if shifted:
        shown.add_column("shift consistency\ncircular", justify="right", no_wrap=True)
        shown.add_column("\ncropped", justify="right", no_wrap=True)
    for summary in comparison.summaries:
        row = [
            name_of(summary),
            _interval(summary.score),
            _difference(summary.difference),
        ]
        if shifted:
            row += [_interval(summary.circular_consistency), _mean(summary.cropped_consistency)]
        shown.add_row(*row)
    return shown


def further_scores(comparison: Comparison) -> Table:
    """The scores beside the main one, such as boundary IoU, and their paired differences."""
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    names = list(dict.fromkeys(name for s in comparison.summaries for name in s.extra))
    shown.add_column("", overflow="fold", min_width=6)
    for name in names:
        score, minus, baseline = name.partition("_minus_")
        head = f"minus {baseline}" if minus else score.replace("_", " ").replace("iou", "IoU")
        shown.add_column(head, justify="right", no_wrap=True)
    for summary in comparison.summaries:
        cells = [
            (_difference if "_minus_" in name else _interval)(summary.extra.get(name))
            for name in names
        ]
        shown.add_row(name_of(summary), *cells)
    return shown


def costs(comparison: Comparison) -> Table:
    """Time and memory: 1 kB is 1000 bytes, 1 MB is 1000 kB, as in the report."""
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown.add_column("", overflow="fold", min_width=6)
    for head in (
        "training step\nms",
        "inference\nms",
        "kept for\nbackward, kB",
        "peak\nMB",
        "parameters",
    ):
        shown.add_column(head, justify="right", no_wrap=True)
    for summary in comparison.summaries:
        cost = summary.cost
        if cost is None:
            continue
        shown.add_row(
            name_of(summary),
            f"{cost.step_ms:.1f} ± {cost.step_spread:.1f}",
            f"{cost.inference_ms:.1f} ± {cost.inference_spread:.1f}",
            f"{cost.saved_bytes / 1e3:,.0f}",
            f"{cost.peak_bytes / 1e6:.1f}",
            f"{cost.parameters:,}",
        )
    return shown


def _interval(found: Estimate | None) -> str:
    if found is None:
        return ""
    return f"{_share(found.mean)} [{_share(found.low)}, {_share(found.high)}]"


def _mean(found: Estimate | None) -> str:
    return "" if found is None else _share(found.mean)


def _difference(found: Estimate | None) -> str:
    if found is None:
        return ""
    return f"{_signed(found.mean)} [{_signed(found.low)}, {_signed(found.high)}]"


def _share(value: float) -> str:
    return f"{value:.3f}".removeprefix("0") if value < 0.9995 else "1.00"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("0.", ".", 1)
