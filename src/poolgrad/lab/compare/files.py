"""Writes the tables and the protocol of a comparison."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from poolgrad.lab.compare.results import Comparison, Estimate, Summary
from poolgrad.lab.folder import write_atomic
from poolgrad.lab.pools import DOWNSAMPLINGS

_COSTS = (
    "step_ms",
    "step_spread",
    "inference_ms",
    "inference_spread",
    "saved_bytes",
    "peak_bytes",
    "parameters",
)


def write_results(comparison: Comparison, path: Path) -> None:
    """Write `results.csv`: one row for each method and head, estimates with their intervals."""
    write_atomic(path, _csv([_result_row(comparison, s) for s in comparison.summaries]))


def _result_row(comparison: Comparison, summary: Summary) -> dict[str, str]:
    score = comparison.metric.lower().replace(" ", "_")
    row = {
        "method": summary.method,
        "head": summary.head,
        "title": summary.title,
        "seeds": str(summary.seeds),
    }
    estimates: dict[str, Estimate | None] = {
        score: summary.score,
        f"{score}_minus_{comparison.baseline}": summary.difference,
        "circular_consistency": summary.circular_consistency,
        "cropped_consistency": summary.cropped_consistency,
        **summary.extra,
    }
    for name, found in estimates.items():
        for end, value in (
            ("", found and found.mean),
            ("_low", found and found.low),
            ("_high", found and found.high),
        ):
            row[name + end] = "" if value is None else f"{value:.6g}"
    for name in _COSTS:
        row[name] = "" if summary.cost is None else f"{getattr(summary.cost, name):.6g}"
    return row


def write_runs(comparison: Comparison, path: Path) -> None:
    """Write `runs.csv`: one row for each run, including failed runs."""
    rows = []
    for run in comparison.runs:
        row = {"method": run.method, "head": run.head, "seed": str(run.seed)}
        row |= {name: f"{values.mean():.6g}" for name, values in run.scores.items()}
        if run.shifts is not None:
            for kind in ("circular", "cropped"):
                share = getattr(run.shifts, f"{kind}_consistency")
                row[f"{kind}_consistency"] = f"{share:.6g}"
                curve = getattr(run.shifts, f"{kind}_accuracy")
                for distance, value in zip(run.shifts.distances, curve, strict=True):
                    row[f"{kind}_accuracy_at_{distance}"] = f"{value:.6g}"
        if run.curves:
            row |= {f"last_{k}": f"{v:.6g}" for k, v in run.curves[-1].items() if k != "seconds"}
        row |= {"seconds": f"{run.seconds:.6g}", "parameters": str(run.parameters), "failed": ""}
        rows.append(row)
    for failure in comparison.failures:
        row = {"method": failure.method, "head": failure.head, "seed": str(failure.seed)}
        rows.append(row | {"failed": failure.reason})
    write_atomic(path, _csv(rows))


def _csv(rows: Sequence[Mapping[str, str]]) -> bytes:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def write_protocol(comparison: Comparison, command: str, path: Path) -> None:
    """Write `protocol.md`, which describes how to repeat the comparison."""
    lines = [f"# Comparison of downsamplings on {comparison.data}", "", comparison.sentence, ""]
    lines += [f"- **{topic}**: {text}" for topic, text in comparison.facts.items()]
    lines += ["", "To repeat it:", "", "```", command, "```", "", "Methods:", ""]
    for method in dict.fromkeys(s.method for s in comparison.summaries):
        entry = DOWNSAMPLINGS.get(method)
        titled = next(s.title for s in comparison.summaries if s.method == method)
        source = f" ({entry.source})" if entry and entry.source else ""
        lines.append(f"- `{method}`: {entry.title if entry else titled}{source}")
    if comparison.warnings:
        lines += ["", "## Limits of these results", ""]
        lines += [f"- {warning}" for warning in comparison.warnings]
    if comparison.failures:
        lines += ["", "## Failed runs", ""]
        lines += [f"- {f.title}: {f.reason}" for f in comparison.failures]
    write_atomic(path, ("\n".join(lines) + "\n").encode())
