"""Linear maps whose derivative is their transpose, so that derivatives of any order only gather.

PyTorch's derivative of a gather is a scatter, which adds in an arbitrary order on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from poolgrad.portable.arrays import namespace
from poolgrad.portable.geometry import Geometry
from poolgrad.torch.arrays import checked
from poolgrad.torch.derivatives import is_inference, save
from poolgrad.windows import Layout

Map = Callable[..., Tensor]


class _Linear(torch.autograd.Function):
    """A linear map of the first tensor; the other tensors are constants."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Tensor:
        *tensors, apply, _ = args
        return apply(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, *constants, ctx.map, ctx.transpose = inputs
        save(ctx, (*constants,))

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        constants = ctx.saved_tensors
        gx = linear(ctx.transpose, ctx.map, checked("gy", gy), *constants)
        return (gx, *(None,) * (len(constants) + 2))

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *unused: Any) -> Tensor:
        return linear(ctx.map, ctx.transpose, t, *ctx.saved_tensors)


def linear(apply: Map, transpose: Map, x: Tensor, *constants: Tensor) -> Tensor:
    """Return ``apply(x, *constants)``, whose derivative with respect to `x` is `transpose`."""
    if is_inference():
        return apply(x, *constants)
    function: Any = _Linear
    return function.apply(x, *constants, apply, transpose)


class TransposableGeometry(Geometry):
    """The windows of a layout, whose `unfold` is differentiated by `fold` and vice versa.

    Parameters
    ----------
    layout : Layout
        The windows, which do not depend on samples.
    like : Tensor
        A tensor on the device of the tables.
    """

    def __init__(self, layout: Layout, like: Tensor) -> None:
        super().__init__(namespace(like), layout, like)

    def unfold(self, x: Tensor) -> Tensor:
        """Gather the taps of each window; 0 where a tap is not in the input, as in `fold`."""

        # The tables are computed again inside each map: a tensor of one level of `torch.func`
        # cannot be used at another.
        def apart(x: Tensor) -> Tensor:
            geometry = Geometry(self._xp, self._layout, x)
            taps: Tensor = geometry.unfold(x)
            return torch.where(geometry.windows.valid, taps, 0)

        def together(parts: Tensor) -> Tensor:
            return Geometry(self._xp, self._layout, parts).fold(parts)

        return linear(apart, together, x)
