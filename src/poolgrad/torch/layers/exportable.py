"""Maximum and average for layers, computed by PyTorch in exported programs."""

from __future__ import annotations

from torch import Tensor, fx
from torch.nn import functional as F

from poolgrad.functional import FUNCTIONS, global_max_pool
from poolgrad.functional.modules import limited
from poolgrad.torch.arrays import pools

Pair = tuple[int, int]

_global_avg_pool2d = limited(FUNCTIONS["global_avg_pool"], 2)


@fx.wrap
def pooled(name: str, x: Tensor, kernel_size: Pair, stride: Pair, padding: Pair = (0, 0)) -> Tensor:
    """Call ``max_pool2d`` or ``avg_pool2d``; exported programs get PyTorch's operator."""
    pool = FUNCTIONS[name] if pools(x) else getattr(F, name)
    return pool(x, kernel_size, stride, padding)


@fx.wrap
def global_average(x: Tensor) -> Tensor:
    """Average every channel, shape (..., C, H, W) to (..., C); exports get PyTorch's operator."""
    return _global_avg_pool2d(x) if pools(x) else x.mean((-2, -1))


@fx.wrap
def global_maximum(x: Tensor) -> Tensor:
    """Take the maximum of every channel; of equal inputs the first gets the gradient."""
    return global_max_pool(x) if pools(x) else x.flatten(-2).max(-1).values
