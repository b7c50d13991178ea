"""Fuses a ReLU with the maximum that follows it in an `nn.Sequential`.

The tensor between them is neither computed nor kept. Only the container passes this tensor on, so
nothing else in the network can read it. No other module changes: a slice of the container, or its
ReLU called alone, computes what it did before.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from poolgrad.torch._compat import has_global_hooks
from poolgrad.torch.arrays import is_direct_for_kernels
from poolgrad.torch.modules import Maximum
from poolgrad.torch.pools import MaxPool1d, MaxPool2d, MaxPool3d

# A ReLU, after its position in a container and before the maximum that follows it
Pair = tuple[int, nn.ReLU, Maximum]


class FusedSequential(nn.Sequential):
    """A container that computes each ReLU and the maximum that follows it in one pass."""

    def forward(self, input: Any) -> Any:
        """Return what `nn.Sequential` returns, except that -0 may become +0."""
        if torch.compiler.is_compiling() or has_global_hooks():
            return nn.Sequential.forward(self, input)  # type: ignore[no-untyped-call]
        # Modules and hooks may have changed since the last call.
        pools = {position: pool for position, _, pool in pairs(self)}
        modules = enumerate(self)
        for position, module in modules:
            pool = pools.get(position)
            if pool is not None and is_direct_for_kernels(input) and input.is_floating_point():
                input = pool.rectified(input)
                next(modules)  # the maximum
            else:
                input = module(input)
        return input

    def __prepare_scriptable__(self) -> nn.Module:
        """Return the module that TorchScript compiles instead."""
        module = copy(self)
        module._modules = self._modules.copy()
        unfuse(module)
        return module


def fuse(model: nn.Module) -> list[Pair]:
    """Fuse ReLUs and maxima in each `nn.Sequential` of a model, and return their `pairs`."""
    found: list[Pair] = []
    for module in model.modules():
        unfuse(module)
        if type(module) is nn.Sequential and (own := [*pairs(module)]):
            module.__class__ = FusedSequential
            found += own
    return found


def unfuse(module: nn.Module) -> None:
    """Undo what `fuse` did to a module."""
    if type(module) is FusedSequential:
        module.__class__ = nn.Sequential  # type: ignore[assignment]


def pairs(container: nn.Sequential) -> Iterator[Pair]:
    """Yield each ReLU that can be fused with the maximum that follows it, after its position.

    No hooks may observe the tensor between them. If the ReLU works in place, nothing else may hold
    its input, which fusing leaves unchanged.
    """
    before: nn.Module | None = None
    for position, (relu, pool) in enumerate(pairwise(container)):
        if type(relu) is nn.ReLU and isinstance(pool, Maximum) and type(pool) in _MAXIMA:
            overwrites = relu.inplace and not (type(before) in _NEW_OUTPUT and _is_own(before))
            if not overwrites and _is_own(relu) and _is_own(pool) and pool.may_be_fused():
                yield position, relu, pool
        before = relu


_MAXIMA = (MaxPool1d, MaxPool2d, MaxPool3d)

# Modules that return a new tensor, which nothing else holds
_NEW_OUTPUT = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm,
)  # fmt: skip


def _is_own(module: Any) -> bool:
    """Whether a call of a module is a call of its class' `forward` and nothing else."""
    own = vars(module)
    return "forward" not in own and not any(map(own.get, _HOOKS))


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
