"""Local importance-based pooling: averages with learned weights (Gao, Wang & Wu 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from poolgrad.torch.layers import arguments
from poolgrad.torch.layers.arguments import WindowedLayer, pair, sum_dtype
from poolgrad.torch.layers.exportable import pooled
from poolgrad.windows import Ints, brief


@fx.wrap
def lip_pool2d(
    x: Tensor, logits: Tensor, kernel_size: Ints = 3, stride: Ints = 2, padding: Ints = 1
) -> Tensor:
    """Average every window with weights that are the softmax of logits in that window.

    It is ``sum(exp(logits) * x) / sum(exp(logits))`` over the valid inputs of a window. Logits of 0
    give the average, logits ``x`` soft pooling, logits ``r * x`` with large ``r`` the maximum.

    Parameters
    ----------
    x : Tensor, shape (N, C, H, W) or (C, H, W)
        Floating-point numbers.
    logits : Tensor, shape of `x`, or with one channel
        The log-importance of each input, any real number: the largest of a window is subtracted
        before exponentials are computed.
    kernel_size, stride : int or (int, int)
        Size of the windows (default: 3) and distance between them (default: 2).
    padding : int or (int, int)
        Padding around the map, without weight; at most half of `kernel_size`. Default: 1.

    Returns
    -------
    Tensor, shape (N, C, H', W') or (C, H', W')
        ``H' = (H + 2 * padding - kernel_size) // stride + 1``; the dtype of `x`.

    Raises
    ------
    TypeError, ValueError
        If an argument has another type or value, or no window fits.

    References
    ----------
    Z. Gao, L. Wang, G. Wu, "LIP: Local importance-based pooling", ICCV 2019.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch.layers.lip import lip_pool2d
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 6.0]])[None]
    >>> lip_pool2d(x, torch.zeros_like(x), 2, padding=0)
    tensor([[[3.]]])
    >>> lip_pool2d(x, 20 * x, 2, padding=0)
    tensor([[[6.]]])
    """
    window, step = pair("kernel_size", kernel_size), pair("stride", stride)
    height, width = arguments.padding_of(padding, window)
    logits = _expanded(logits, arguments.check_maps(x))
    arguments.check_fits(x, window, (height, width))
    around = (width, width, height, height)
    low, values = F.pad(logits, around, value=-torch.inf), F.pad(x, around)
    shape = [(n - k) // s + 1 for n, k, s in zip(values.shape[-2:], window, step, strict=True)]

    def taps(maps: Tensor) -> Tensor:
        return F.unfold(maps, window, stride=step).unflatten(-2, (x.shape[-3], -1))

    weights = taps(low).softmax(-2)
    y: Tensor = (weights * taps(values)).sum(-2).unflatten(-1, shape)
    return y.to(x.dtype)


def _expanded(logits: Any, x: Tensor) -> Tensor:
    """Return the logits in the shape of `x`."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        came = logits.dtype if isinstance(logits, Tensor) else brief(logits)
        raise TypeError(f"logits must be a tensor of floating-point numbers, got {came}")
    one_channel = (*x.shape[:-3], 1, *x.shape[-2:])
    if logits.shape not in (x.shape, one_channel):
        raise ValueError(
            f"logits must have the shape of x, {tuple(x.shape)}, or one channel, "
            f"got {tuple(logits.shape)}"
        )
    return logits.expand_as(x)


@fx.wrap
def _bounded_average(x: Tensor, logits: Tensor, *windows: tuple[int, int]) -> Tensor:
    """Compute the quotient of two averages, for logits whose exponentials do not overflow."""
    dtype = sum_dtype(x)
    weights = logits.to(dtype).exp()
    over = pooled("avg_pool2d", x.to(dtype) * weights, *windows)
    return (over / pooled("avg_pool2d", weights, *windows)).to(x.dtype)


class _ImportanceLogits(nn.Module):
    """A 3x3 convolution, instance normalisation and `HIGH` times a sigmoid.

    The convolution is initialised to 0: then all weights are equal, and the layer averages.
    """

    HIGH = 12.0

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        nn.init.zeros_(self.conv.weight)
        # A group for each channel: instance normalisation, which traces in both modes.
        self.norm = nn.GroupNorm(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y, norm = self.conv(arguments.batched(x)), self.norm
        # Not `norm` itself, which refuses one map of one pixel.
        y = torch.group_norm(y, norm.num_groups, norm.weight, norm.bias, norm.eps)
        return arguments.unbatched(self.HIGH * y.sigmoid(), x)


class LIP2d(WindowedLayer):
    """Average every window with weights that a small network computes from the input.

    The weights are ``exp(logits(x))``, normalised in each window. `logits` learns which inputs
    matter: the result lies between average and maximum, and need not follow the largest input.

    Parameters
    ----------
    channels : int
        Channels of the input.
    kernel_size, stride : int or (int, int)
        Size of the windows (default: 3) and distance between them (default: 2).
    padding : int or (int, int)
        Padding around the map, without weight; at most half of `kernel_size`. Default: 1.
    logits : nn.Module, optional
        Computes logits of the shape of the input, or with one channel. Default: the authors'
        simplified form, a 3x3 convolution without bias that is initialised to 0, instance
        normalisation with scale and shift, and ``12 * sigmoid``. The layer then starts as an
        average, and no weight of a window is more than ``exp(12)`` times another.

    Raises
    ------
    TypeError, ValueError
        If an argument has another type or value; in a call, if logits have another shape.

    Notes
    -----
    For inputs of shape ``(N, C, H, W)`` or ``(C, H, W)``, the output has
    ``(H + 2 * padding - kernel_size) // stride + 1`` rows, and columns likewise. The default logits
    are bounded, so that two averages (`poolgrad.avg_pool2d`) are enough; the logits of another
    module may have any size. `LipPool2d` takes logits in each call, and raises very small weights.

    References
    ----------
    Z. Gao, L. Wang, G. Wu, "LIP: Local importance-based pooling", ICCV 2019.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import LIP2d
    >>> LIP2d(8)(torch.rand(2, 8, 32, 32)).shape
    torch.Size([2, 8, 16, 16])
    >>> soft_pool = LIP2d(8, 2, padding=0, logits=torch.nn.Identity())
    >>> soft_pool(torch.rand(2, 8, 32, 32)).shape
    torch.Size([2, 8, 16, 16])
    """

    def __init__(
        self,
        channels: int,
        kernel_size: Ints = 3,
        stride: Ints = 2,
        padding: Ints = 1,
        logits: nn.Module | None = None,
    ) -> None:
        super().__init__(channels, kernel_size, stride, padding)
        if logits is not None and not isinstance(logits, nn.Module):
            raise TypeError(f"logits must be a module or None, got {brief(logits)}")
        self.logits = _ImportanceLogits(self.channels) if logits is None else logits

    def forward(self, x: Tensor) -> Tensor:
        """Pool with the logits of the input."""
        x = arguments.check_maps(x, self.channels)
        kernel_size, stride, padding = self.windows
        x = arguments.check_fits(x, kernel_size, padding)
        average = _bounded_average if isinstance(self.logits, _ImportanceLogits) else lip_pool2d
        return average(x, self.logits(x), kernel_size, stride, padding)
