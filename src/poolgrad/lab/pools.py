"""The table of downsamplings of the lab: names, descriptions and constructors.

The only table of them. Reading it needs nothing but Python; `build` imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from torch import nn

Pool = Literal[
    "max",
    "avg",
    "strided",
    "blur",
    "aps",
    "lip",
    "gated",
    "mixed",
    "tree",
    "soft",
    "lp",
    "stochastic",
    "s3",
    "median",
    "none",
]
Head = Literal["avg", "flatten", "max", "gem", "attention"]
ConvPadding = Literal["zeros", "circular"]

NAMES: tuple[Pool, ...] = get_args(Pool)
HEADS: tuple[Head, ...] = get_args(Head)
CONV_PADDINGS: tuple[ConvPadding, ...] = get_args(ConvPadding)

HEAD_TITLES: dict[Head, str] = {
    "avg": "global average pooling, linear layer",
    "flatten": "flattened map, linear layer",
    "max": "global max pooling, linear layer",
    "gem": "generalised-mean pooling (GeM), linear layer",
    "attention": "attention pooling, linear layer",
}
_BLUR_FILTER = 3


class Windows(NamedTuple):
    """Which inputs an output can depend on: windows of a size, a stride and a padding."""

    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True)
class Downsampling:
    """One way to make feature maps smaller.

    Attributes
    ----------
    title
        Its name for people.
    source
        The paper that introduced the pooling; empty if the pooling has no paper.
    step
        What it computes from each window.
    make
        Channels, kernel, stride and whether borders are circular, to the layer.
    windows
        Kernel and stride to the windows of inputs that its outputs depend on.
    """

    title: str
    source: str
    step: str
    make: Callable[[int, int, int, bool], nn.Module]
    windows: Callable[[int, int], Windows]


def window_padding(kernel: int) -> int:
    """The padding that keeps the middle of every window inside the map."""
    return (kernel - 1) // 2


def build(
    name: Pool, channels: int, kernel: int = 2, stride: int = 2, padding: ConvPadding = "zeros"
) -> nn.Module:
    """Build a downsampling.

    Parameters
    ----------
    name
        One of `NAMES`. `"none"` is the identity: convolutions behind it are to be dilated instead.
    channels
        Channels of its input and output.
    kernel, stride
        Kernel and stride of its windows. `"aps"` has no kernel.
    padding
        `"circular"`: layers that pad read the other side of the map, so that a circular shift of
        the input meets the same values.

    Returns
    -------
    nn.Module
        Feature maps, shape (N, channels, H, W), to smaller ones.
    """
    return DOWNSAMPLINGS[name].make(channels, kernel, stride, padding == "circular")


def title(name: str, head: str = "avg") -> str:
    """The name for people of a downsampling, with its head where that is not the usual one."""
    return with_head(DOWNSAMPLINGS[name].title if name in DOWNSAMPLINGS else name, head)


def with_head(title: str, head: str) -> str:
    """The name for people of a downsampling, followed by its head where that is not `avg`."""
    return title if head == "avg" else f"{title}, {head} head"


def _max(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from poolgrad.torch import MaxPool2d

    return MaxPool2d(kernel, stride, window_padding(kernel))


def _avg(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from poolgrad.torch import AvgPool2d

    return AvgPool2d(kernel, stride, window_padding(kernel), count_include_pad=False)


def _strided(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from torch import nn

    mode: ConvPadding = "circular" if circular else "zeros"
    return nn.Conv2d(channels, channels, kernel, stride, window_padding(kernel), padding_mode=mode)


def _blur(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from torch import nn

    from poolgrad.torch import MaxBlurPool2d

    if not circular:
        return MaxBlurPool2d(kernel, stride, filter_size=_BLUR_FILTER)
    # The windows of the maximum wrap around, too.
    wrap = nn.CircularPad2d((0, kernel - 1, 0, kernel - 1))
    blur = MaxBlurPool2d(kernel, stride, filter_size=_BLUR_FILTER, padding_mode="circular")
    return nn.Sequential(wrap, blur)


def _aps(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from poolgrad.torch import AdaptivePolyphasePool2d

    return AdaptivePolyphasePool2d(stride)


def _lip(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from poolgrad.torch import LIP2d

    return LIP2d(channels, kernel, stride, window_padding(kernel))


def _gated(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from poolgrad.torch import GatedPool2d

    return GatedPool2d(channels, kernel, stride, window_padding(kernel))


def _mixed(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    import torch
    from torch import nn

    from poolgrad.torch import MixedPool2d

    share = nn.Parameter(torch.tensor(0.5))
    return MixedPool2d(kernel, stride, window_padding(kernel), alpha=share)


def _tree(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from poolgrad.torch import TreePool2d

    return TreePool2d(channels, kernel, stride, window_padding(kernel))


def _soft(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from poolgrad.torch import SoftPool2d

    return SoftPool2d(kernel, stride, window_padding(kernel))


def _lp(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from poolgrad.torch import LPPool2d

    return LPPool2d(2, kernel, stride, padding=window_padding(kernel), mean=True)


def _stochastic(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from poolgrad.torch import StochasticPool2d

    return StochasticPool2d(kernel, stride, window_padding(kernel))


def _s3(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from poolgrad.torch import S3Pool2d

    return S3Pool2d(kernel, stride)


def _median(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from poolgrad.torch import MedianPool2d

    return MedianPool2d(kernel, stride, window_padding(kernel))


def _none(channels: int, kernel: int, stride: int, circular: bool) -> nn.Module:
    from torch import nn

    return nn.Identity()


def _usual(kernel: int, stride: int) -> Windows:
    return Windows(kernel, stride, window_padding(kernel))


def _blurred(kernel: int, stride: int) -> Windows:
    return Windows(kernel + _BLUR_FILTER - 1, stride, _BLUR_FILTER // 2)


DOWNSAMPLINGS: dict[str, Downsampling] = {
    "max": Downsampling("max pooling", "", "largest of\neach window", _max, _usual),
    "avg": Downsampling("average pooling", "", "mean of\neach window", _avg, _usual),
    "strided": Downsampling(
        "strided convolution",
        "Springenberg et al. 2015, Striving for simplicity",
        "learned weights\nin each window",
        _strided,
        _usual,
    ),
    "blur": Downsampling(
        "max pooling with blur",
        "Zhang 2019, Making convolutional networks shift-invariant again",
        "largest of each window,\nstride 1; then a blur",
        _blur,
        _blurred,
    ),
    "aps": Downsampling(
        "adaptive polyphase sampling",
        "Chaman & Dokmanic 2021, Truly shift-invariant convolutional neural networks",
        "polyphase component\nof the largest norm",
        _aps,
        lambda kernel, stride: Windows(stride, stride, 0),
    ),
    "lip": Downsampling(
        "local importance pooling",
        "Gao et al. 2019, LIP: local importance-based pooling",
        "mean, weighted by\nlearned importance",
        _lip,
        _usual,
    ),
    "gated": Downsampling(
        "gated max-average pooling",
        "Lee et al. 2016, Generalizing pooling functions in convolutional neural networks",
        "max and mean,\nmixed by a learned gate",
        _gated,
        _usual,
    ),
    "mixed": Downsampling(
        "mixed max-average pooling",
        "Lee et al. 2016, Generalizing pooling functions in convolutional neural networks",
        "max and mean in a\nlearned proportion",
        _mixed,
        _usual,
    ),
    "tree": Downsampling(
        "tree pooling",
        "Lee et al. 2016, Generalizing pooling functions in convolutional neural networks",
        "learned filters, mixed\nby a tree of gates",
        _tree,
        _usual,
    ),
    "soft": Downsampling(
        "soft pooling",
        "Stergiou et al. 2021, Refining activation downsampling with SoftPool",
        "mean, weighted by\nthe softmax",
        _soft,
        _usual,
    ),
    "lp": Downsampling(
        "L2 pooling",
        "Sermanet et al. 2012, Convolutional neural networks applied to house numbers",
        "root mean square\nof each window",
        _lp,
        _usual,
    ),
    "stochastic": Downsampling(
        "stochastic pooling",
        "Zeiler & Fergus 2013, Stochastic pooling for regularization",
        "expectation of a draw\nby activation",
        _stochastic,
        _usual,
    ),
    "s3": Downsampling(
        "S3 pooling",
        "Zhai et al. 2017, S3Pool: pooling with stochastic spatial sampling",
        "max with stride 1, then\nrows and columns sampled",
        _s3,
        lambda kernel, stride: Windows(kernel + stride - 1, stride, 0),
    ),
    "median": Downsampling("median pooling", "", "median of\neach window", _median, _usual),
    "none": Downsampling(
        "no downsampling (dilated convolutions)",
        "Yu & Koltun 2016, Multi-scale context aggregation by dilated convolutions",
        "nothing: later\nconvolutions are dilated",
        _none,
        lambda kernel, stride: Windows(1, 1, 0),
    ),
}
