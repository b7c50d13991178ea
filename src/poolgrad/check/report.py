"""Formats the results of `poolgrad check`."""

from __future__ import annotations

from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.table import Table

from poolgrad.check import Row

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
_HEADS = {"differences": "differ-\nences"}


def table(rows: list[Row]) -> Table:
    """Return a table with a line for each function and front end (worst layout), and each layer."""
    made = Table(
        title="largest relative error of outputs and gradients, over both layouts",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,  # all columns fit into 80 characters
    )
    made.add_column("function", no_wrap=True)
    made.add_column("arrays", no_wrap=True)
    for dtype, check in _CHECKS:
        made.add_column(f"{dtype}\n{_HEADS.get(check, check)}", justify="right", no_wrap=True)
    made.add_column(no_wrap=True)
    above = ""
    for (function, front_end), found in groupby(rows, lambda r: (r.function, r.front_end)):
        group = list(found)
        cells = [_worst(group, dtype, check) for dtype, check in _CHECKS]
        ok = all(row.ok for row in group)
        verdict = "[green]ok[/]" if ok else "[bold red]FAILED[/]"
        made.add_row("" if function == above else function, front_end, *cells, verdict)
        above = function
    return made


def _worst(rows: list[Row], dtype: str, check: str) -> str:
    errors = [r.errors[check] for r in rows if r.dtype == dtype and check in r.errors]
    if not errors:
        return "-"
    worst = f"{max(error.worst for error in errors):.0e}"
    return worst if all(error.ok for error in errors) else f"[bold red]{worst}[/]"


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
