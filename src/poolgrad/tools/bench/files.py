"""Writes the results: the CSV file, and the pictures that are drawn from it."""

from __future__ import annotations

from pathlib import Path

from poolgrad.lab.folder import write_atomic
from poolgrad.tools.bench.pictures import draw_bars, draw_kernels
from poolgrad.tools.bench.report import Report, write_csv


def write(folder: Path, report: Report, name: str = "bench") -> list[Path]:
    """Write the CSV, and from it the pictures, under this name.

    Returns
    -------
    list of Path
        What was written: without any size of kernel, there is no picture of them.

    Raises
    ------
    LabError
        If the system refuses to write a file; the message names it.
    """
    files = [folder / f"{name}.csv"]
    write_csv(files[0], report)
    for file, draw in ((f"{name}.png", draw_bars), (f"{name}_kernels.png", draw_kernels)):
        picture = draw(report.results, report.caption)
        if picture:
            files.append(folder / file)
            write_atomic(files[-1], picture)
    return files
