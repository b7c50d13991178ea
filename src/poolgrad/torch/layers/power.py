"""Global pooling with a learned exponent: the generalised mean and log-mean-exp."""

from __future__ import annotations

from typing import Any

import torch
from array_api_compat import torch as namespace
from torch import Tensor, fx, nn

from poolgrad.functional import global_lp_pool, global_lse_pool
from poolgrad.interface import UnfoldedWindows
from poolgrad.operators import OPERATORS
from poolgrad.torch._compat import mode_of
from poolgrad.torch.arrays import pools
from poolgrad.torch.layers.arguments import (
    Layer,
    batched,
    check_maps,
    number,
    optional_count,
    sum_dtype,
    unbatched,
)
from poolgrad.windows import brief, flag


def _learned(channels: int | None, value: float) -> nn.Parameter:
    """Return a parameter filled with a number: of shape (), or one for each channel."""
    shape = () if channels is None else (channels,)
    return nn.Parameter(torch.full(shape, value))


def _by_formula(operator: str, x: Tensor, argument: Tensor, *options: Any) -> Tensor:
    """Compute an operator over the last two axes, which stay, with operations of PyTorch."""
    values = x.to(sum_dtype(x)).flatten(-2)
    valid = values.new_ones(values.shape[-1:], dtype=torch.bool)
    windows = UnfoldedWindows(values, valid, None, None)
    formula = OPERATORS[operator].formula
    with mode_of(values):
        y: Tensor = formula(namespace, windows, argument.to(values.dtype), *options)
    return y.to(x.dtype)[..., None, None]


@fx.wrap
def _generalised_mean(
    x: Tensor, p: Tensor, channels: int | None, keepdims: bool, eps: float
) -> Tensor:
    """Compute the generalised mean of `GeM2d`."""
    check_maps(x, channels)
    size = x.clamp(min=eps) if eps else x
    if pools(x):
        y = global_lp_pool(batched(size), keepdims=True, norm_type=p, mean=True)
        y = unbatched(y, x)
    else:
        y = _by_formula("lp", size, p, True)
    return y if keepdims else y.flatten(-3)


@fx.wrap
def _smooth_maximum(x: Tensor, r: Tensor, channels: int | None, keepdims: bool) -> Tensor:
    """Compute the log-mean-exp of `LogSumExp2d`."""
    check_maps(x, channels)
    if pools(x):
        y = unbatched(global_lse_pool(batched(x), keepdims=True, r=r), x)
    else:
        y = _by_formula("lse", x, r)
    return y if keepdims else y.flatten(-3)


class GeM2d(Layer):
    """Generalised mean over height and width, with a learned power.

    Computes ``mean(max(x, eps) ** p) ** (1 / p)`` of every channel. With ``p = 1`` that is the
    average of a map that is nowhere below `eps`; with a large p it comes close to the maximum.

    Parameters
    ----------
    channels : int, optional
        The number of channels, for one power per channel. None (default): one power for all.
    p : float
        The initial power, above 0. Default: 3.
    keepdims : bool
        If True, height and width stay, with length one. Default: False.
    eps : float
        Inputs below `eps` count as `eps` and get no gradient, as in the authors' code; default:
        1e-6. With 0, nothing is clamped, and powers are taken of ``|x|``.

    Attributes
    ----------
    p : nn.Parameter, shape () or (C,)
        The learned power. It must stay above 0: on the CPU, a call with another one raises
        ValueError (about `norm_type`, the argument of `poolgrad.global_lp_pool`); on other devices
        the value is not read.

    Raises
    ------
    TypeError, ValueError
        In the constructor, for an invalid argument; in a call, for an input that is not a
        floating tensor of shape (N, C, H, W) or (C, H, W), or has another number of channels.

    Notes
    -----
    Radenovic, Tolias & Chum, Fine-tuning CNN image retrieval with no human annotation, 2018. The
    layer calls `poolgrad.global_lp_pool`; where a network is exported, and on devices that the
    compiled kernels do not reach, it computes the same with PyTorch's operations.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import GeM2d
    >>> gem = GeM2d(8)
    >>> gem
    GeM2d(8, p=3.0, eps=1e-06)
    >>> gem(torch.rand(2, 8, 5, 7)).shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        channels: int | None = None,
        p: float = 3.0,
        keepdims: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.channels = optional_count("channels", channels)
        self.initial = number("p", p)
        if self.initial <= 0:
            raise ValueError(f"p must be above 0, got {brief(p)}")
        self.eps = number("eps", eps)
        if self.eps < 0:
            raise ValueError(f"eps must not be negative, got {brief(eps)}")
        self.keepdims = flag("keepdims", keepdims)
        self.p = _learned(self.channels, self.initial)

    def forward(self, x: Tensor) -> Tensor:
        """Pool a tensor of shape (N, C, H, W) to (N, C), with `keepdims` to (N, C, 1, 1)."""
        return _generalised_mean(x, self.p, self.channels, self.keepdims, self.eps)

    def extra_repr(self) -> str:
        """Return the arguments for `repr`."""
        channels = "" if self.channels is None else f"{self.channels}, "
        kept = ", keepdims=True" if self.keepdims else ""
        return f"{channels}p={self.initial}, eps={self.eps}{kept}"


class LogSumExp2d(Layer):
    """Log-mean-exp over height and width, with a learned sharpness.

    Computes ``log(mean(exp(r * x))) / r`` of every channel. With a small r that comes close to the
    average, with a large r to the maximum.

    Parameters
    ----------
    channels : int, optional
        The number of channels, for one sharpness per channel. None (default): one for all.
    r : float
        The initial sharpness, not 0. Default: 1.
    keepdims : bool
        If True, height and width stay, with length one. Default: False.

    Attributes
    ----------
    r : nn.Parameter, shape () or (C,)
        The learned sharpness. A call with an r of exactly 0 raises ValueError on the
        CPU; on other devices the value is not read.

    Raises
    ------
    TypeError, ValueError
        In the constructor, for an invalid argument; in a call, for an input that is not a
        floating tensor of shape (N, C, H, W) or (C, H, W), or has another number of channels.

    Notes
    -----
    Pinheiro & Collobert, From image-level to pixel-level labeling with convolutional networks,
    2015; they keep r fixed. The layer calls `poolgrad.global_lse_pool`; where a network is
    exported, and on devices that the compiled kernels do not reach, it computes the same with
    PyTorch's operations.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import LogSumExp2d
    >>> pool = LogSumExp2d(r=2.0)
    >>> pool
    LogSumExp2d(r=2.0)
    >>> pool(torch.rand(2, 8, 5, 7)).shape
    torch.Size([2, 8])
    """

    def __init__(self, channels: int | None = None, r: float = 1.0, keepdims: bool = False) -> None:
        super().__init__()
        self.channels = optional_count("channels", channels)
        self.initial = number("r", r)
        if self.initial == 0:
            raise ValueError("r must not be 0; the limit there is the average: use GlobalAvgPool2d")
        self.keepdims = flag("keepdims", keepdims)
        self.r = _learned(self.channels, self.initial)

    def forward(self, x: Tensor) -> Tensor:
        """Pool a tensor of shape (N, C, H, W) to (N, C), with `keepdims` to (N, C, 1, 1)."""
        return _smooth_maximum(x, self.r, self.channels, self.keepdims)

    def extra_repr(self) -> str:
        """Return the arguments for `repr`."""
        channels = "" if self.channels is None else f"{self.channels}, "
        kept = ", keepdims=True" if self.keepdims else ""
        return f"{channels}r={self.initial}{kept}"
