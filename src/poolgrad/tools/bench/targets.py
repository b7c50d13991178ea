"""Targets of the benchmark, by the name of the row."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """The targets of a row; None if the row has no such target.

    Attributes
    ----------
    floor, share, seconds : float, optional
        At most: the time over the floor, over that of the row beside it, and the time itself.
    kept, apart : float, optional
        At most, of a network: the bytes kept for backward over PyTorch's; the relative difference.
    faster : float, optional
        At least: the time of PyTorch, or of JAX's own pooling, over poolgrad's; 1 if not given.
    """

    floor: float | None = None
    faster: float | None = None
    share: float | None = None
    seconds: float | None = None
    kept: float | None = None
    apart: float | None = None


_COLUMNS = ["name", *(field.name for field in fields(Limits))]


def read(path: Path) -> dict[str, Limits]:
    """Read a CSV file of targets, with a column for each attribute of `Limits`.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If a column is missing or unknown, or a target is not a number.
    """
    with path.open(newline="") as file:
        lines = csv.reader(file)
        head = next(lines, [])
        if head != _COLUMNS:
            raise ValueError(f"the columns must be {', '.join(_COLUMNS)}, got {', '.join(head)}")
        targets = {}
        for name, *numbers in lines:
            try:
                values = [float(text) if text else None for text in numbers]
                targets[name] = Limits(**dict(zip(_COLUMNS[1:], values, strict=True)))
            except ValueError:
                raise ValueError(
                    f"targets must be {len(_COLUMNS) - 1} numbers or empty, got"
                    f" {','.join(numbers)!r} for {name!r}"
                ) from None
    return targets
