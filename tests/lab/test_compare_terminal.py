"""What `poolgrad compare` prints at the end fits a terminal of 80 columns."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from lab.comparisons import fabricated
from poolgrad.lab.compare.results import Estimate
from poolgrad.lab.compare.terminal import show


def test_segmentation_has_a_second_table() -> None:
    comparison = fabricated("segment")
    difference = Estimate(-0.0213, -0.0441, 0.0021)
    comparison.summaries[0].extra["boundary_iou_minus_max_upsample"] = difference
    text = io.StringIO()
    show(Console(file=text, width=80), comparison, [Path("report.html")])
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    head = next(line for line in lines if "boundary IoU" in line)
    assert "minus max_upsample" in head
    name = comparison.summaries[0].method
    row = next(line for line in lines[lines.index(head) :] if line.startswith(name))
    assert "-.021 [-.044, +.002]" in row
    assert "report.html" in lines[-1]
