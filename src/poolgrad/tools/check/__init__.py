"""Gradient checks of every public function in every front end that is installed.

Outputs, gradients and the gradients of learned arguments are compared with the reference
implementation in `poolgrad.reference`, with central finite differences in float64, and with
PyTorch's own operations where there are any. The layers of `poolgrad.torch.layers` are compared
with finite differences, for their input and every parameter, and with a repeated call.

`cases` lists the calls, `gradients` computes them by the front ends, the reference and finite
differences, `peers` by PyTorch's operations; `layers` has the layers, and `report` is the command.
Tests: ``tests/gradients/test_check.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolgrad.functional import FUNCTIONS
from poolgrad.tools.check.cases import Case, cases
from poolgrad.tools.check.gradients import (
    FRONT_ENDS,
    Gradients,
    differences,
    installed,
    takes,
    textbook,
)
from poolgrad.tools.check.peers import peer

__all__ = [
    "DIFFERENCES_TOLERANCE",
    "TOLERANCE",
    "Error",
    "Row",
    "check_function",
    "check_layer",
    "count",
    "layer_names",
    "run",
]

Array = NDArray[Any]

# Accepted differences, relative to the largest result.
TOLERANCE = {"float64": 1e-11, "float32": 2e-6}
DIFFERENCES_TOLERANCE = 1e-7  # of central differences with a step of 1e-6, in float64


class Error(NamedTuple):
    """The largest error of a check, its limit, and the call that has it."""

    worst: float
    accepted: float
    call: str

    @property
    def ok(self) -> bool:
        """Whether the check holds."""
        return self.worst <= self.accepted


@dataclass
class Row:
    """Stores the results of checking one function in one front end, or one layer.

    Attributes
    ----------
    function, front_end, dtype, layout : str
        What was checked.
    errors : dict of str to Error
        The largest error of each check that applies (textbook, differences, PyTorch; for layers,
        repeat).
    failure : str
        The error that was raised; empty if none was.
    """

    function: str
    front_end: str
    dtype: str
    layout: str
    errors: dict[str, Error] = field(default_factory=dict)
    failure: str = ""

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return not self.failure and all(error.ok for error in self.errors.values())

    def note(
        self, check: str, accepted: float, case: object, got: Gradients, expected: Gradients
    ) -> None:
        """Record the error of a result, if it is the largest so far."""
        apart = [_apart(got.y, expected.y), _apart(got.gx, expected.gx)]
        if got.parameters.keys() != expected.parameters.keys():
            apart.append(np.inf)
        else:
            apart += [_apart(g, expected.parameters[name]) for name, g in got.parameters.items()]
        if check not in self.errors or max(apart) > self.errors[check].worst:
            self.errors[check] = Error(max(apart), accepted, str(case))


def _apart(a: Array, b: Array) -> float:
    if a.shape != b.shape or not np.isfinite(a).all() or not np.isfinite(b).all():
        return np.inf
    scale = max(1.0, float(np.abs(b).max(initial=0)))
    return float(np.abs(a.astype(np.float64) - b).max(initial=0)) / scale


@lru_cache(maxsize=4)  # dtypes and layouts of one function, which all front ends use
def _expected(
    name: str, dtype: str, channels_last: bool
) -> list[tuple[Case, Array, Gradients, Gradients | None]]:
    """Return every case with a cotangent, and the results of the reference and of PyTorch."""
    expected = []
    for case in cases(name, dtype, channels_last):
        answer, gy = textbook(case)
        expected.append((case, gy, answer, peer(case, gy)))
    return expected


def check_function(name: str, front_end: str, dtype: str, channels_last: bool) -> Row:
    """Check one public function.

    Parameters
    ----------
    name : str
        Its name, such as ``"max_pool2d"``.
    front_end : str
        A key of `FRONT_ENDS`.
    dtype : str
        ``"float64"`` or ``"float32"``; finite differences are taken in float64 only.
    channels_last : bool
        The layout.

    Returns
    -------
    Row
    """
    row = Row(name, front_end, dtype, "channels last" if channels_last else "channels first")
    front = FRONT_ENDS[front_end]
    for case, gy, definition, theirs in _expected(name, dtype, channels_last):
        if not takes(front_end, case):
            continue
        try:
            got = front.answer(case, gy)
            slopes = differences(front.pool, case, gy) if dtype == "float64" else None
        except Exception as error:  # reported in the table, next to the passed checks
            row.failure = f"{type(error).__name__}: {error}, in {case}"
            continue
        row.note("textbook", TOLERANCE[dtype], case, got, definition)
        if slopes is not None:
            row.note("differences", DIFFERENCES_TOLERANCE, case, got, slopes)
        if theirs is not None:
            row.note("PyTorch", TOLERANCE[dtype], case, got, theirs)
    return row


def layer_names() -> list[str]:
    """Return the layers to check: none without PyTorch."""
    if "torch" not in installed():
        return []
    from poolgrad.tools.check.layers import LAYERS

    return list(LAYERS)


def check_layer(name: str) -> Row:
    """Check one layer, in float64.

    Parameters
    ----------
    name : str
        A key of `poolgrad.tools.check.layers.LAYERS`.

    Returns
    -------
    Row
    """
    from poolgrad.tools.check import layers

    row = Row(name, "torch", "float64", "channels first")
    for case in layers.LAYERS[name]:
        where = f"{name}, input of shape {case.shape}"
        try:
            layer, x = layers.prepared(case)
            where = f"{layer}, input of shape {case.shape}"
            got, gy = layers.answer(case, layer, x)
            again, _ = layers.answer(case, layer, x)
            gx, parameters = layers.differences(case, layer, x, gy)
        except Exception as error:  # as in `check_function`
            row.failure = f"{type(error).__name__}: {error}, in {where}"
            continue
        row.note("differences", DIFFERENCES_TOLERANCE, where, got, Gradients(got.y, gx, parameters))
        apart = 0.0 if layers.same(got, again) else np.inf
        if apart or "repeat" not in row.errors:
            row.errors["repeat"] = Error(apart, 0.0, where)
    return row


def _rows() -> list[tuple[str, str, str, bool]]:
    rows = itertools.product(FUNCTIONS, installed(), TOLERANCE, (False, True))
    return [row for row in rows if has(row[0], row[1])]


def has(name: str, front_end: str) -> bool:
    """Whether a front end supports a function in at least one of its cases."""
    return any(takes(front_end, case) for case in cases(name, "float64", False))


def count() -> int:
    """Return the number of rows that `run` yields."""
    return len(_rows()) + len(layer_names())


def run() -> Iterator[Row]:
    """Check everything that is installed, function by function, then layer by layer.

    Yields
    ------
    Row
        One for each function, front end, dtype and layout, and one for each layer.
    """
    for name, front_end, dtype, channels_last in _rows():
        yield check_function(name, front_end, dtype, channels_last)
    for name in layer_names():
        yield check_layer(name)
