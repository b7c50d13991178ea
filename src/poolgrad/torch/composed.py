"""Derivatives beyond the first of curved operators: their definition in PyTorch's own operations.

The windows are laid out one after the other, which takes memory, so nothing but second derivatives
and forward mode comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from poolgrad.contract import Operator, Windows
from poolgrad.places import looks, spread
from poolgrad.windows import Axis, WindowSpec, resolve

Tensors = tuple[Tensor, ...]


def _windows(x: Tensor, axes: tuple[Axis, ...]) -> Windows:
    """The windows of the last axes of `x`."""
    dims = len(axes)
    index: list[Tensor] = []
    real, extent = None, None
    for a, axis in enumerate(axes):
        inputs, _, held, reach = (torch.tensor(t, device=x.device) for t in looks(axis))
        index.append(spread(inputs, a, dims))
        here, size = spread(held, a, dims), spread(reach, a, dims)
        real = here if real is None else real & here
        extent = size if extent is None else extent * size
    assert real is not None
    assert extent is not None
    values = x[(..., *index)]  # type: ignore[index]
    extent = extent.reshape(*real.shape[:dims], 1)
    return Windows(values.flatten(-dims), real.flatten(-dims), extent)


def define(
    operator: Operator, spec: WindowSpec, channels_last: bool, options: tuple[Any, ...]
) -> Callable[..., Tensor]:
    """The operator as a function of the input and, if it has one, its learned argument."""
    dims = spec.dims

    def pool(x: Tensor, *learned: Tensor) -> Tensor:
        first = x.dim() - dims - channels_last
        pooled, last = range(first, first + dims), range(x.dim() - dims, x.dim())
        moved = x.movedim(tuple(pooled), tuple(last))
        wide = torch.float64  # squares and differences of narrower types lose nothing here
        axes = resolve(spec, tuple(moved.shape[-dims:])).axes
        shape = (-1,) + (1,) * dims  # one for each channel, the axis before the pooled ones
        argument = (
            learned[0].to(wide).reshape(shape if learned[0].dim() else (1,) * dims)
            if learned
            else None
        )
        y = operator.compose(torch, _windows(moved.to(wide), axes), argument, *options)
        pooled_back: Tensor = y.movedim(tuple(last), tuple(pooled)).to(x.dtype)
        return pooled_back

    return pool


def pull_back(pool: Callable[..., Tensor]) -> Callable[..., Tensors]:
    """The pullback of a function, as a function of the gradient and of the function's arguments."""

    def pull(gy: Tensor, *arguments: Tensor) -> Tensors:
        result: Tensors = torch.func.vjp(pool, *arguments)[1](gy)
        return result

    return pull


def push_forward(function: Callable[..., Any], arguments: Tensors, tangents: Tensors) -> Any:
    """The derivative of a function along tangents, from its pullback alone.

    A pullback is linear, so its own pullback is the way forward: this needs no forward mode inside
    a forward mode.
    """
    y, pull, *_ = torch.func.vjp(function, *arguments)
    zero = torch.zeros_like(y) if isinstance(y, Tensor) else tuple(map(torch.zeros_like, y))
    return torch.func.vjp(pull, zero)[1](tangents)[0]
