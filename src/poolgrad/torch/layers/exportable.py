"""Maximum and average for layers, computed by PyTorch in exported programs."""

from __future__ import annotations

from torch import Tensor, fx
from torch.nn import functional as F

from poolgrad.functional import FUNCTIONS, global_avg_pool, global_max_pool
from poolgrad.torch.arrays import pools

Pair = tuple[int, int]

_max_pool2d, _avg_pool2d = FUNCTIONS["max_pool2d"], FUNCTIONS["avg_pool2d"]


@fx.wrap
def max_pool2d(x: Tensor, kernel_size: Pair, stride: Pair, padding: Pair = (0, 0)) -> Tensor:
    """Take the maximum of every window; exported programs get PyTorch's operator."""
    pool = _max_pool2d if pools(x) else F.max_pool2d
    y: Tensor = pool(x, kernel_size, stride, padding)
    return y


@fx.wrap
def avg_pool2d(x: Tensor, kernel_size: Pair, stride: Pair, padding: Pair = (0, 0)) -> Tensor:
    """Average every window, padding included; exported programs get PyTorch's operator."""
    pool = _avg_pool2d if pools(x) else F.avg_pool2d
    y: Tensor = pool(x, kernel_size, stride, padding)
    return y


@fx.wrap
def global_average(x: Tensor) -> Tensor:
    """Average every channel, shape (N, C, H, W) to (N, C); exports get PyTorch's operator."""
    y: Tensor = global_avg_pool(x) if pools(x) else x.mean((-2, -1))
    return y


@fx.wrap
def global_maximum(x: Tensor) -> Tensor:
    """Take the maximum of every channel; of equal inputs the first gets the gradient."""
    y: Tensor = global_max_pool(x) if pools(x) else x.flatten(-2).max(-1).values
    return y
