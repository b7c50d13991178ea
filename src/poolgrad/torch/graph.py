"""Pools inside a compiled transformation with operations of PyTorch.

`function` imports this module only while a graph is made, because it imports the compiler.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poolgrad import portable
from poolgrad.dtypes import FLOATS
from poolgrad.interface import Operator, indexed
from poolgrad.torch.adapter import ADAPTERS
from poolgrad.torch.arrays import DTYPES, name_of, prepare_call, spec_of
from poolgrad.torch.transposes import TransposableGeometry, linear
from poolgrad.windows import Layout


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
    operator, layout = ready.operator, ready.layout
    y, routes = _differentiable(operator, layout, x, operand, named)
    if not with_indices:
        return y
    if named != indexed(named):
        _, routes = portable.forward(operator, layout, x, operand, indexed(named))
    return y, portable.indices(layout, routes[0], operand if layout.window.fractional else None)


def _differentiable(
    operator: Operator, layout: Layout, x: Tensor, operand: Any, options: Any
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute the output, in differentiable operations, and the residual.

    The derivative of a selecting operator is the linear map along its routes; where a window has no
    winner, its output is a constant.
    """
    if operator.windowed and not operator.selecting:
        theta, geometry = operand if operator.learned else None, TransposableGeometry(layout, x)
        y: Tensor = portable.formula(operator, layout, x, theta, options, geometry)
        return y.to(DTYPES[layout.out_dtype]), ()
    constant, residual = portable.forward(operator, layout, x.detach(), operand, options)
    if layout.dtype not in FLOATS:
        return constant, residual
    held = () if operand is None else (operand,)

    def along(t: Tensor, *constants: Tensor) -> Tensor:
        kept, own = constants[len(held) :], constants[0] if held else None
        ty: Tensor = portable.jvp(operator, layout, t, own, kept, options)
        return ty

    def back(gy: Tensor, *constants: Tensor) -> Tensor:
        kept, own = constants[len(held) :], constants[0] if held else None
        gx: Tensor = portable.vjp(operator, layout, gy, None, own, kept, options)[0]
        return gx

    selected = linear(along, back, x, *held, *residual)
    if not operator.windowed:
        return selected, ()
    nowhere = portable.without_winner(operator, layout, residual, options)
    return torch.where(nowhere, constant, selected), residual
