"""Pools inside a compiled transformation with operations of PyTorch.

`function` imports this module only while a graph is made, because it imports the compiler.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poolgrad import portable
from poolgrad.dtypes import FLOATS, name_of
from poolgrad.interface import indexed
from poolgrad.operators import Prepared
from poolgrad.torch import formulas
from poolgrad.torch.adapter import ADAPTERS
from poolgrad.torch.arrays import prepare_call, spec_of
from poolgrad.torch.transposes import linear


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
    ready = prepare_call(name, spec_of(window), named, *where)
    operator = ready.operator
    if operator.windowed and not operator.selecting:
        learned = (operand,) if operator.learned else ()
        return formulas.define(operator, ready.spec, last, named)(x, *learned)
    y, routes = _selected(ready, x, operand)
    if not with_indices:
        return y
    if named != indexed(named):
        routed = prepare_call(name, ready.spec, indexed(named), *where)
        _, routes = portable.forward(routed, x, operand)
    return y, portable.indices(ready.layout, routes[0], operand)


def _selected(ready: Prepared, x: Tensor, operand: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute the output of a selecting operator, in differentiable operations, and the residual.

    The derivative is the linear map along the routes; where a window has no winner, its output is a
    constant.
    """
    constant, residual = portable.forward(ready, x.detach(), operand)
    if ready.layout.dtype not in FLOATS:
        return constant, residual
    held = () if operand is None else (operand,)

    def split(constants: tuple[Tensor, ...]) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        return (constants[0] if held else None), constants[len(held) :]

    def along(t: Tensor, *constants: Tensor) -> Tensor:
        return portable.jvp(ready, t, *split(constants))

    def back(gy: Tensor, *constants: Tensor) -> Tensor:
        return portable.vjp(ready, gy, None, *split(constants))[0]

    selected = linear(along, back, x, *held, *residual)
    if not ready.operator.windowed:
        return selected, ()
    nowhere = portable.without_winner(ready, residual)
    return torch.where(nowhere, constant, selected), residual
