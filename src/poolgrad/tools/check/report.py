"""Formats the results of `poolgrad check` as text without colours, which needs no package."""

from __future__ import annotations

from itertools import groupby

from poolgrad.tools import check as checks
from poolgrad.tools.check import Row
from poolgrad.tools.progress import Progress

_CHECKS = [
    ("float64", "textbook"),
    ("float64", "differences"),
    ("float64", "PyTorch"),
    ("float32", "textbook"),
    ("float32", "PyTorch"),
]
_REFERENCES = {
    "textbook": "the textbook definition",
    "differences": "finite differences",
    "repeat": "the same call again",
}
_HEADS = {"differences": "differ."}


def run() -> int:
    """Check everything, print it, and return the exit code of the command."""
    rows = []
    with Progress() as progress:
        progress.show("checking gradients; the libraries of arrays are imported first")
        total = checks.count()
        for row in checks.run():
            rows.append(row)
            progress.show(f"checked {len(rows)} of {total}: {row.function}")
    held = sum(row.ok for row in rows)
    ending = f"{held} of {total} checks passed: one per function, library, dtype, layout; per layer"
    print("\n".join([table(rows), *complaints(rows), ending]))
    return 0 if held == total else 1


def table(rows: list[Row]) -> str:
    """Return a table with a line for each function and front end (worst layout), and each layer."""
    cells = [["", "", *(dtype for dtype, _ in _CHECKS), ""]]
    cells.append(["function", "arrays", *(_HEADS.get(check, check) for _, check in _CHECKS), ""])
    above = ""
    for (function, front_end), found in groupby(rows, lambda r: (r.function, r.front_end)):
        group = list(found)
        verdict = "ok" if all(row.ok for row in group) else "FAILED"
        worst = [_worst(group, dtype, check) for dtype, check in _CHECKS]
        cells.append(["" if function == above else function, front_end, *worst, verdict])
        above = function
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        left = [text.ljust(width) for text, width in zip(line[:2], widths, strict=False)]
        right = [text.rjust(width) for text, width in zip(line[2:-1], widths[2:], strict=False)]
        lines.append(" ".join([*left, *right, line[-1]]).rstrip())
    title = "largest relative error of outputs and gradients, over both layouts"
    return "\n".join([title, "", *lines, ""])


def _worst(rows: list[Row], dtype: str, check: str) -> str:
    errors = [r.errors[check] for r in rows if r.dtype == dtype and check in r.errors]
    return f"{max(error.worst for error in errors):.0e}" if errors else "-"


def complaints(rows: list[Row]) -> list[str]:
    """Return a line for each failed check: the function, the arrays, the error and the call."""
    lines = []
    for row in rows:
        where = f"{row.function}, {row.front_end}, {row.dtype}, {row.layout}"
        if row.failure:
            lines.append(f"{where}: {row.failure}")
        lines += [
            f"{where}: relative error {error.worst:.0e} against {_REFERENCES.get(check, check)},"
            f" at most {error.accepted:.0e} is accepted: {error.call}"
            for check, error in row.errors.items()
            if not error.ok
        ]
    return lines
