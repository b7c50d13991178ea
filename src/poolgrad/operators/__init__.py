"""The table of operators: each is defined here, once, for every front end.

An operator says what its forward keeps for the backward (its *residual*), which kernels compute it,
its pullback and its pushforward, and, if it is curved, how to write it with an array library's own
operations. A front end allocates what `Buffer` describes and hands all arrays over as the kernels
take them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from poolgrad.contract import Buffer, Operator
from poolgrad.core import Plan, lay_out, plan
from poolgrad.operators.blending import BLENDING
from poolgrad.operators.composed import COMPOSED
from poolgrad.operators.selecting import SELECTING
from poolgrad.rule import Rule

__all__ = ["OPERATORS", "Prepared", "prepare"]

OPERATORS: dict[str, Operator] = {op.name: op for op in (*SELECTING, *BLENDING, *COMPOSED)}


class Prepared(NamedTuple):
    """An operator ready to run on one kind of array."""

    operator: Operator
    plan: Plan
    residual: tuple[Buffer, ...]


@lru_cache(maxsize=4096)
def prepare(
    name: str,
    rule: Rule,
    options: tuple[Any, ...],
    shape: tuple[int, ...],
    channels_last: bool,
    inner: int,
    dtype: str,
) -> Prepared:
    """The plan of an operator, checked; remembered for each set of arguments.

    Raises
    ------
    TypeError, ValueError
        For anything that is wrong with windows, shape, dtype or options.
    """
    operator = OPERATORS[name]
    if not operator.accepts(dtype):
        raise operator.refuse_dtype(dtype)
    layout = lay_out(rule, shape, channels_last, inner, dtype, operator.result(dtype))
    operator.check(layout.window, *options)
    made = plan(layout, inner, operator.route_bits(layout.window, *options))
    return Prepared(operator, made, operator.residual(made, *options))
