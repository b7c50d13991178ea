"""docs/errors.md: every call in it raises the error that the page shows."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import poolgrad

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
ROW = re.compile(r"^\| `(?P<call>.+)` \| `(?P<error>\w+): (?P<message>.+)` \|$")
ARRAYS: dict[str, Callable[[Any], Any]] = {
    "NumPy": np.asarray,
    "PyTorch": lambda x: importlib.import_module("torch").from_numpy(x),
    "JAX": lambda x: importlib.import_module("jax.numpy").asarray(x),
    "Dask": lambda x: importlib.import_module("dask.array").from_array(x),
}
MODULES = {"PyTorch": "torch", "JAX": "jax", "Dask": "dask"}
# Which arrays a section's calls are made with.
SECTIONS = {
    "Windows": tuple(ARRAYS),
    "Options and parameters": tuple(ARRAYS),
    "Fractional windows": ("NumPy", "PyTorch", "JAX"),
    "Arrays": ("NumPy",),
    "PyTorch": ("PyTorch",),
    "JAX": ("JAX",),
    "Dask": ("Dask",),
    "Command line": (),  # has no calls
}


class Row(NamedTuple):
    """One call of the page, and the arrays it is made with."""

    library: str
    call: str
    error: str
    message: str


def rows() -> list[Row]:
    """All calls of the page, once for each library that its section is about."""
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        title, *lines = section.splitlines()
        matches = [match for match in map(ROW.match, lines) if match]
        assert len(matches) == sum(line.startswith("| `") for line in lines), title
        found += [Row(name, *m.groups()) for name in SECTIONS[title] for m in matches]
    return found


ROWS = rows()


def test_the_page_has_sixty_calls() -> None:
    assert len({row.call for row in ROWS}) >= 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.library}: {row.call}")
def test_message(row: Row) -> None:
    names: dict[str, Any] = {"np": np, "poolgrad": poolgrad}
    if row.library in MODULES:
        names["torch"] = pytest.importorskip(MODULES[row.library])
    names["x"] = ARRAYS[row.library](np.ones((2, 3, 8, 8), np.float32))
    with pytest.raises((TypeError, ValueError)) as raised:
        eval(row.call, names)  # the calls are those of our own page
    assert (type(raised.value).__name__, str(raised.value)) == (row.error, row.message)
