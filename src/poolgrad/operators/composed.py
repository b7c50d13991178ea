"""Operators that are composed of other operators and have no kernels.

Their derivatives, batching and front ends follow from those of their parts; see
`poolgrad.composition`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from poolgrad.interface import ComposedOperator
from poolgrad.operands import SecondInput

__all__ = ["COMPOSED"]


class Range(ComposedOperator):
    """The largest input of each window minus the smallest."""

    name = "range"

    def combine(self, xp: Any, pool: Callable[..., Any], x: Any, operand: Any, options: Any) -> Any:
        return pool("max", x) - pool("min", x)


class Lip(ComposedOperator):
    """The mean of each window, weighted with the softmax of logits."""

    name = "lip"
    operand = SecondInput("logits")

    def combine(self, xp: Any, pool: Callable[..., Any], x: Any, operand: Any, options: Any) -> Any:
        # A common factor of a plane cancels, so the largest weight is scaled to 1; `tiny` keeps the
        # smallest from becoming 0.
        logits = xp.constant(operand)
        known = xp.where(abs(logits) < math.inf, logits, -math.inf)
        largest = xp.max(known, axis=xp.pooled, keepdims=True)
        shift = xp.where(abs(largest) < math.inf, largest, 0.0)
        weights = xp.exp(operand - shift) + xp.tiny
        return pool("avg", x * weights, divisor=1) / pool("avg", weights, divisor=1)


COMPOSED = (Range(), Lip())
