"""Checks the arguments of modules, which store them for calls of a public function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from poolgrad.interface import Operator
from poolgrad.operators import OPERATORS
from poolgrad.windows import Window

LEARNED = {o.operand.name for o in OPERATORS.values() if o.learned}
"""The names of learned arguments."""


class Placeholder(NamedTuple):
    """A placeholder for an input: only its shape is read."""

    shape: tuple[int, ...]


def operator_of(
    function: Callable[..., Any], dims: int, given: dict[str, Any], required: Iterable[str]
) -> Operator:
    """Check the arguments of a module, and return the operator of its function.

    Parameters
    ----------
    function : callable
        The public function.
    dims : int
        Number of pooled axes.
    given : dict
        The arguments.
    required : iterable of str
        Arguments without a default that each call of the module takes.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid for every input. The values of learned arguments are not checked.
    """
    x = Placeholder((2**31,) * (dims + 2))
    request = function.describe(x, **dict.fromkeys(required), **given)  # type: ignore[attr-defined]
    operator = OPERATORS[request.operator]
    operator.check(Window(()), request.options)
    return operator
