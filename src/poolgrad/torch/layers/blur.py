"""Anti-aliased downsampling: a binomial low-pass filter before every stride (Zhang 2019)."""

from __future__ import annotations

from math import comb
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from poolgrad.torch._compat import mode_of
from poolgrad.torch.arrays import is_in_graph, shape_of
from poolgrad.torch.layers import arguments, exportable
from poolgrad.torch.layers.arguments import Layer, one_positive, pair
from poolgrad.torch.transposes import linear
from poolgrad.windows import Ints, in_memory

Pads = tuple[int, int]  # before and after one axis


def _filter(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the two-dimensional binomial filter of `size`: the outer square of a row.

    The row is one of Pascal's triangle, divided by its sum, a power of two.

    It is computed in every call, because a stored one would have the dtype and device of the
    module, and be lost where a module gets its memory later (`to_empty`). Its taps are integers
    over a power of two, which float32 represents exactly up to a size of 15.
    """
    taps = [comb(size - 1, k) / 2 ** (size - 1) for k in range(size)]
    if device.type == "cpu":
        row = torch.tensor(taps, dtype=dtype, device=device)
    else:  # a CUDA graph cannot capture a copy from the host
        row = torch.cat([torch.full((1,), tap, dtype=dtype, device=device) for tap in taps])
    return torch.outer(row, row)


@fx.wrap
def _blurred(x: Tensor, filter_size: int, stride: tuple[int, int], padding_mode: str) -> Tensor:
    """Blur and subsample; the sums of float16 and bfloat16 are computed in float32."""
    channels = arguments.check_maps(x).shape[-3]
    around = ((filter_size - 1) // 2, filter_size // 2)
    x = extend(x, around, around, padding_mode)
    dtype = arguments.sum_dtype(x)
    with mode_of(x):
        weight = _filter(filter_size, dtype, x.device).expand(channels, 1, -1, -1)
    with arguments.without_autocast(x):
        y = F.conv2d(x.to(dtype), weight, stride=stride, groups=channels)
    return y.to(x.dtype)


@fx.wrap
def _dense_maximum(x: Tensor, kernel_size: tuple[int, int]) -> Tensor:
    """Take the maximum of every window at stride one; a window is at most the map."""
    height, width = arguments.check_maps(x).shape[-2:]
    window = min(kernel_size[0], height), min(kernel_size[1], width)
    return exportable.pooled("max_pool2d", x, window, (1, 1))


def extend(x: Tensor, height: Pads, width: Pads, mode: str) -> Tensor:
    """Pad the last two axes; maps smaller than the padding are padded as `numpy.pad` pads them.

    Parameters
    ----------
    x : Tensor, shape (..., H, W)
        With three or four axes.
    height, width : (int, int)
        Rows before and after, columns before and after.
    mode : str
        A mode of `BlurPool2d`. ``"reflect"`` does not repeat the edge and, where the padding is
        longer than the map, reflects again and again: a map of one pixel is repeated.
        ``"circular"`` wraps around as often as needed.

    Returns
    -------
    Tensor, shape (..., H + sum(height), W + sum(width))
    """
    pads = [*width, *height]
    if not any(pads):
        return x
    if mode == "zeros":
        return F.pad(x, pads)
    if arguments.on_cpu(x):
        limits = [size - int(mode == "reflect") for size in shape_of(x)[-2:]]
        if mode == "replicate" or (max(height) <= limits[0] and max(width) <= limits[1]):
            with arguments.without_autocast(x):  # it would convert the map to float32
                return F.pad(x, pads, mode=mode)
    for axis, (before, after) in ((-2, height), (-1, width)):
        if before or after:
            x = _extended(x, axis, before, after, mode)
    return x


def _extended(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """Copy rows of a map to `before` rows before it and `after` rows after it.

    PyTorch's derivatives of its own padding and of a gather use atomics on GPUs; slices do not.
    """
    size = shape_of(x)[axis]
    outside = [*range(-before, 0), *range(size, size + after)]
    sources = [_source(i, size, mode) for i in outside]

    def apart(x: Tensor) -> Tensor:
        rows = [x.narrow(axis, source, 1) for source in sources]
        return torch.cat([*rows[:before], x, *rows[before:]], axis)

    def together(gy: Tensor) -> Tensor:
        gx = gy.narrow(axis, before, size).clone()
        for i, source in zip(outside, sources, strict=True):
            gx.narrow(axis, source, 1).add_(gy.narrow(axis, before + i, 1))
        return gx

    return apart(x) if is_in_graph() else linear(apart, together, x)


def _source(i: int, size: int, mode: str) -> int:
    """Return the row that is copied to row `i`, which lies outside the map."""
    if mode == "replicate":
        return 0 if i < 0 else size - 1
    if mode == "circular":
        return i % size
    period = max(2 * (size - 1), 1)
    return min(i % period, -i % period)


class BlurPool2d(Layer):
    """Blur with a binomial filter, then keep every `stride`-th pixel.

    It replaces a stride without a filter, which aliases: frequencies above half of the new sampling
    rate become low frequencies, so that a shift of the input by one pixel changes the output. The
    filter is the same for every channel and has no parameters.

    Parameters
    ----------
    filter_size : int
        Taps of the filter along each axis: 1 does not blur, 2 is a box, 3 (default) is
        ``[1, 2, 1] / 4``.
    stride : int or (int, int)
        The step between kept pixels. Default: 2.
    padding_mode : str
        Padding around the map: ``"reflect"`` (default, does not repeat the edge), ``"replicate"``,
        ``"zeros"`` or ``"circular"``. Maps smaller than the reflection are reflected repeatedly, as
        `numpy.pad` does, so that maps of any size, one pixel included, are accepted.

    Raises
    ------
    TypeError, ValueError
        In the constructor, if an argument has another type or value; in a call, if the input is not
        a floating tensor of shape (N, C, H, W) or (C, H, W).

    Notes
    -----
    Called with ``(N, C, H, W)`` or ``(C, H, W)`` of any floating dtype and any number of channels,
    it returns ``ceil(H / stride)`` rows and ``ceil(W / stride)`` columns of the same dtype. There
    are ``(filter_size - 1) // 2`` padded rows and columns before the map, ``filter_size // 2``
    after it.

    References
    ----------
    R. Zhang, "Making convolutional networks shift-invariant again", ICML 2019.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import BlurPool2d
    >>> stripes = torch.tensor([0.0, 1.0]).repeat(4, 2)[None, None]  # the highest frequency
    >>> stripes[..., ::2, ::2]
    tensor([[[[0., 0.],
              [0., 0.]]]])
    >>> BlurPool2d()(stripes)
    tensor([[[[0.5000, 0.5000],
              [0.5000, 0.5000]]]])
    """

    filter_size: int = 3
    stride: Ints = 2
    padding_mode: str = "reflect"

    def forward(self, x: Tensor) -> Tensor:
        """Blur and subsample."""
        return _blurred(x, *self.arguments)


class MaxBlurPool2d(Layer):
    """Take the maximum of every window with stride 1, then blur and subsample.

    Max pooling is a dense maximum, which commutes with shifts, followed by a bare stride, which
    does not. Here the stride is that of `BlurPool2d`.

    Parameters
    ----------
    kernel_size : int or (int, int)
        The windows of the maximum; default: 2. On a map smaller than the window, the window is the
        map.
    stride : int or (int, int)
        The step between kept pixels. Default: 2.
    filter_size, padding_mode
        As for `BlurPool2d`.

    Raises
    ------
    TypeError, ValueError
        In the constructor, if an argument has another type or value; in a call, if the input is not
        a floating tensor of shape (N, C, H, W) or (C, H, W).

    Notes
    -----
    Called with ``(N, C, H, W)`` or ``(C, H, W)``, it returns
    ``ceil((H - kernel_size + 1) / stride)`` rows, and columns likewise: half of an even size with
    the defaults. The maximum is `poolgrad.max_pool2d`.

    References
    ----------
    R. Zhang, "Making convolutional networks shift-invariant again", ICML 2019.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import MaxBlurPool2d
    >>> MaxBlurPool2d()(torch.rand(2, 8, 32, 32)).shape
    torch.Size([2, 8, 16, 16])
    """

    shown = ("kernel_size",)  # the blur prints its own arguments

    kernel_size: Ints = 2
    stride: Ints = 2
    filter_size: int = 3
    padding_mode: str = "reflect"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.blur = BlurPool2d(self.filter_size, self.stride, self.padding_mode)

    def forward(self, x: Tensor) -> Tensor:
        """Pool, blur and subsample."""
        return self.blur(_dense_maximum(x, self.arguments[0]))


class BlurConv2d(Layer):
    """Convolve with stride 1, apply ReLU, then blur and subsample, like a strided convolution.

    The order is Zhang's: the blur comes after the ReLU, because a ReLU after the blur would create
    high frequencies.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, padding, bias
        As for `torch.nn.Conv2d`. Default `padding`: 0; default `bias`: True.
    stride : int or (int, int)
        The step between kept pixels. Default: 2.
    filter_size, padding_mode
        As for `BlurPool2d`. The convolution itself pads with zeros, or around the map if the mode
        is ``"circular"``.

    Raises
    ------
    TypeError, ValueError
        In the constructor, if an argument has another type or value; in a call, if the input is not
        a floating tensor of shape (N, C, H, W) or (C, H, W).

    Notes
    -----
    Called with ``(N, in_channels, H, W)``, it returns ``(N, out_channels, ...)`` with
    ``ceil(h / stride)`` rows, where the convolution gives ``h``. The result is not negative.

    References
    ----------
    R. Zhang, "Making convolutional networks shift-invariant again", ICML 2019.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import BlurConv2d
    >>> BlurConv2d(3, 8, 3, padding=1)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 8, 16, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 2,
        padding: Any = 0,
        filter_size: int = 3,
        padding_mode: str = "reflect",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.blur = BlurPool2d(filter_size, stride, padding_mode)
        self.conv = nn.Conv2d(
            one_positive("in_channels", in_channels),
            one_positive("out_channels", out_channels),
            pair("kernel_size", kernel_size),
            padding=in_memory("padding", padding),
            bias=in_memory("bias", bias),
            padding_mode="circular" if padding_mode == "circular" else "zeros",
        )

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, rectify, blur and subsample."""
        x = arguments.check_maps(x, self.conv.in_channels)
        return self.blur(F.relu(self.conv(x)))
