"""Higher derivatives of nonlinear operators, from their formulas.

The taps of all windows are in memory at once, so this is used only for second derivatives and
forward mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from poolgrad import portable
from poolgrad.dtypes import name_of
from poolgrad.interface import Operator
from poolgrad.torch.arrays import DTYPES
from poolgrad.torch.transposes import TransposableGeometry
from poolgrad.windows import WindowSpec, lay_out

Tensors = tuple[Tensor, ...]


def define(
    operator: Operator, spec: WindowSpec, channels_last: bool, options: tuple[Any, ...]
) -> Callable[..., Tensor]:
    """Return the operator as a function of the input and, if it has one, its learned argument."""

    def pool(x: Tensor, *learned: Tensor) -> Tensor:
        dtype = name_of(x.dtype)
        result = operator.result(dtype, options)
        layout = lay_out(spec, tuple(x.shape), channels_last, -1, dtype, result)
        theta = learned[0] if learned else None
        geometry = TransposableGeometry(layout, x)
        y: Tensor = portable.formula(operator, layout, x, theta, options, geometry)
        return y.to(DTYPES[result])

    return pool


def pullback_of(pool: Callable[..., Tensor]) -> Callable[..., Tensors]:
    """Return the pullback of a function, as a function of the cotangent and the arguments."""

    def vjp(gy: Tensor, *arguments: Tensor) -> Tensors:
        return torch.func.vjp(pool, *arguments)[1](gy)

    return vjp


def jvp_by_double_vjp(function: Callable[..., Any], arguments: Tensors, tangents: Tensors) -> Any:
    """Compute the jvp of a function from its pullback alone.

    A pullback is linear, so the pullback of the pullback is the jvp. This needs no nested forward
    mode.
    """
    y, vjp, *_ = torch.func.vjp(function, *arguments)
    zero = torch.zeros_like(y) if isinstance(y, Tensor) else tuple(map(torch.zeros_like, y))
    return torch.func.vjp(vjp, zero)[1](tangents)[0]
