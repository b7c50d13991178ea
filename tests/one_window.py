"""Evaluates an operator of the reference implementation on one window."""

from __future__ import annotations

from typing import Any

import numpy as np

from poolgrad.reference import OPERATORS, Inside, Pooled


def pool(operator: str, x: Any, *options: Any, extent: int = 0, **drawn: Any) -> Pooled:
    """What the operator makes of the values `x`; `drawn`: its `theta` or `u`."""
    values = np.asarray(x)
    exact = values.dtype.kind in "iub"
    values = values if exact else values.astype(np.float64)
    with np.errstate(all="ignore"):
        return OPERATORS[operator](Inside(values, extent or len(values), **drawn), *options)
