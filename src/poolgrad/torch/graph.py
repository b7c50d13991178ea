"""Pools inside a compiled transformation with operations of PyTorch.

`function` imports this module only while a graph is made, because it imports the compiler.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poolgrad import portable
from poolgrad.interface import indexed
from poolgrad.torch.adapter import ADAPTERS
from poolgrad.torch.arrays import name_of, prepared, spec_of


# The compiler cannot trace into it, but its transformations can.
@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def pool_in_graph(
    x: Tensor,
    operand: Any,
    name: str,
    window: list[int],
    last: bool,
    with_indices: bool,
    *options: Any,
) -> Any:
    """Return the output and, if requested, the indices, in differentiable operations."""
    named = ADAPTERS[name].operator.options(*options)
    where = (tuple(x.shape), last, -1, name_of(x.dtype))
    ready = prepared(name, spec_of(window), named, *where)
    operator, layout = ready.operator, ready.layout
    y, routes = portable.differentiable(operator, layout, x, operand, named)
    if not with_indices:
        return y
    if named != indexed(named):
        _, routes = portable.forward(operator, layout, x, operand, indexed(named))
    return y, portable.indices(layout, routes[0], operand if layout.window.fractional else None)
