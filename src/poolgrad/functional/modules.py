"""Checks the arguments of modules, and limits global functions to the axes of a module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, update_wrapper
from inspect import signature
from types import SimpleNamespace
from typing import Any

from poolgrad.functional.declare import described
from poolgrad.interface import Operator, Request
from poolgrad.operators import OPERATORS
from poolgrad.windows import Window

LEARNED = {o.operand.name for o in OPERATORS.values() if o.learned}
"""The names of learned arguments."""

LEADING_AXES = "There may be any number of leading axes."
"""A sentence for the docstrings of global modules."""


@cache
def limited(function: Any, dims: int) -> Any:
    """Return a function for `dims` pooled axes: global functions themselves pool any number."""
    if function.dims:
        return function
    x_like = SimpleNamespace(shape=(1,) * (dims + 2))  # only the shape is read

    def describe(x: Any, **given: Any) -> Request:
        request: Request = function.describe(x_like, **given)
        return replace(request, x=x)

    name = f"{function.__name__}{dims}d"
    made = described(describe, name, __name__)
    globals()[name] = update_wrapper(made, function, ["__doc__"], [])  # where pickles find it
    return made


def operator_of(function: Callable[..., Any], dims: int, given: dict[str, Any]) -> Operator:
    """Check the arguments of a module, and return the operator of its function.

    Parameters
    ----------
    function : callable
        The public function.
    dims : int
        Number of pooled axes.
    given : dict
        The arguments that the module stores. Those of its calls are not checked.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid for every input. The values of learned arguments are not checked.
    """
    takes = signature(function).parameters.values()
    required = (p.name for p in takes if (p.default, p.kind) == (p.empty, p.POSITIONAL_OR_KEYWORD))
    calls = dict.fromkeys(required)
    x = SimpleNamespace(shape=(2**31,) * (dims + 2))
    request = function.describe(**calls | given | {"x": x})  # type: ignore[attr-defined]
    operator = OPERATORS[request.operator]
    operator.check(Window(()), request.options)
    return operator
