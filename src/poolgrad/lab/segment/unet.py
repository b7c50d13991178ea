"""A small U-Net whose downsampling, and the upsampling that belongs to it, are exchanged.

Ronneberger et al., 2015, "U-Net: Convolutional networks for biomedical image segmentation".
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from poolgrad.lab.model import ScaledConv2d
from poolgrad.lab.pools import ConvPadding, Pool, build, window_padding
from poolgrad.lab.segment.variants import REFERENCE, check_variant
from poolgrad.torch import MaxPool2d, MaxUnpool2d


class Resampling(nn.Module):
    """A downsampling of the encoder and the upsampling of the decoder that belongs to it.

    Parameters
    ----------
    width, deeper
        Channels of this level and of the next, smaller one.

    Attributes
    ----------
    pool
        The layer that downsamples.
    """

    pool: nn.Module

    def __init__(self, width: int, deeper: int) -> None:
        super().__init__()
        self.width, self.deeper = width, deeper

    def down(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The map of the next level, with `width` channels, and what `up` needs of it beside."""
        raise NotImplementedError

    def up(self, x: Tensor, kept: Tensor | None, size: tuple[int, int]) -> Tensor:
        """A map of `deeper` channels enlarged to `size`, with `width` channels."""
        raise NotImplementedError


class Unpooling(Resampling):
    """Max pooling, and unpooling: values return to the positions of the maxima, among zeros.

    Badrinarayanan et al., 2017, "SegNet: A deep convolutional encoder-decoder architecture for
    image segmentation". A 1 x 1 convolution makes the channels those of the indices.

    Parameters
    ----------
    width, deeper
        Channels of this level and of the next.
    kernel
        Size of the windows.
    """

    def __init__(self, width: int, deeper: int, kernel: int = 2) -> None:
        super().__init__(width, deeper)
        padding = window_padding(kernel)
        self.pool = MaxPool2d(kernel, 2, padding, return_indices=True)
        self.reduce = ScaledConv2d(deeper, width, 1)
        self.unpool = MaxUnpool2d(kernel, 2, padding)

    def down(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Maxima and their indices."""
        values, indices = self.pool(x)
        return values, indices

    def up(self, x: Tensor, kept: Tensor | None, size: tuple[int, int]) -> Tensor:
        """Write values to the positions of their indices."""
        return self.unpool(self.reduce(x), kept, size)


class Interpolation(Resampling):
    """Any pooling; a 1 x 1 convolution and bilinear interpolation lead back.

    Parameters
    ----------
    width, deeper
        Channels of this level and of the next.
    pool
        The pooling: shape (N, width, H, W) to about half of the height and width.
    """

    def __init__(self, width: int, deeper: int, pool: nn.Module) -> None:
        super().__init__(width, deeper)
        self.pool = pool
        self.reduce = ScaledConv2d(deeper, width, 1)

    def down(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The pooled map."""
        return self.pool(x), None

    def up(self, x: Tensor, kept: Tensor | None, size: tuple[int, int]) -> Tensor:
        """Interpolate to `size`."""
        # A 1 x 1 convolution and interpolation commute; this order is the cheaper one.
        return functional.interpolate(self.reduce(x), size, mode="bilinear", align_corners=False)


class StridedConvolutions(Resampling):
    """A convolution with stride 2, and a transposed one back.

    Parameters
    ----------
    width, deeper
        Channels of this level and of the next.
    kernel
        Kernel size of both convolutions.
    """

    def __init__(self, width: int, deeper: int, kernel: int = 2) -> None:
        super().__init__(width, deeper)
        padding = window_padding(kernel)
        self.pool = ScaledConv2d(width, width, kernel, 2, padding)
        self.transposed = nn.ConvTranspose2d(deeper, width, kernel, 2, padding)
        # Keeps the variance, as the scaled convolutions do: about (kernel / 2)^2 weights of each
        # channel meet in an output.
        nn.init.normal_(self.transposed.weight, std=2 / (kernel * math.sqrt(deeper)))
        nn.init.zeros_(self.transposed.bias)  # type: ignore[arg-type]

    def down(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Convolve with a stride."""
        return self.pool(x), None

    def up(self, x: Tensor, kept: Tensor | None, size: tuple[int, int]) -> Tensor:
        """Convolve with the transposed stride."""
        return self.transposed(x, output_size=list(size))


class SameSize(Resampling):
    """No downsampling: the next level's convolutions are dilated twice as much instead.

    Yu & Koltun, 2016, "Multi-scale context aggregation by dilated convolutions".
    """

    def __init__(self, width: int, deeper: int) -> None:
        super().__init__(width, deeper)
        self.pool = nn.Identity()
        self.reduce = ScaledConv2d(deeper, width, 1)

    def down(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The map itself."""
        return self.pool(x), None

    def up(self, x: Tensor, kept: Tensor | None, size: tuple[int, int]) -> Tensor:
        """Change the channels only."""
        return self.reduce(x)


class UNet(nn.Module):
    """Encoder, decoder, and connections between equal sizes; one score for each class and pixel.

    Each level has two 3 x 3 convolutions in the encoder and two in the decoder, with scaled weight
    standardisation (`ScaledConv2d`), which works alike for every batch size, and ReLU.

    Parameters
    ----------
    channels
        Channels of the images.
    classes
        Number of scores for a pixel.
    variant
        A name from `poolgrad.lab.segment.variants.VARIANTS`.
    widths
        Channels of the levels: from the image's size down, one downsampling between two.
    kernel
        Size of the windows of the downsampling; its stride is 2.
    padding
        Padding of the convolutions, `"zeros"` or `"circular"`.

    Attributes
    ----------
    encoder, resamplings, decoder
        By level, the image's size first; the decoder has no last level.

    Raises
    ------
    LabError
        If the variant does not exist.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.lab.segment.unet import UNet
    >>> UNet(1, 2, "max_unpool", (8, 16))(torch.zeros(1, 1, 31, 45)).shape
    torch.Size([1, 2, 31, 45])
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        variant: str,
        widths: Sequence[int],
        kernel: int = 2,
        padding: ConvPadding = "zeros",
    ) -> None:
        super().__init__()
        check_variant(variant)
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        self.resamplings = nn.ModuleList()
        before = channels
        for level, width in enumerate(widths):
            dilation = 2**level if variant == "dilated" else 1
            self.encoder.append(_convolutions(before, width, dilation, padding))
            if level + 1 < len(widths):
                deeper = widths[level + 1]
                self.resamplings.append(make_resampling(variant, width, deeper, kernel, padding))
                self.decoder.append(_convolutions(2 * width, width, dilation, padding))
            before = width
        self.classify = nn.Conv2d(widths[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Scores, shape (N, classes, H, W), of images, shape (N, channels, H, W), float32."""
        maps: list[Tensor] = []
        memory: list[Tensor | None] = []
        x = images
        for encode, resampling in zip(self.encoder, self.resamplings, strict=False):
            x = encode(x)
            maps.append(x)
            x, kept = resampling.down(x)  # type: ignore[operator]
            memory.append(kept)
        x = self.encoder[-1](x)
        for level in reversed(range(len(maps))):
            here = maps[level]
            size = (here.shape[2], here.shape[3])
            x = self.resamplings[level].up(x, memory[level], size)  # type: ignore[operator]
            x = self.decoder[level](torch.cat([here, x], 1))
        return self.classify(x)


def make_resampling(
    variant: str, width: int, deeper: int, kernel: int = 2, padding: ConvPadding = "zeros"
) -> Resampling:
    """The downsampling and upsampling between a level of `width` and one of `deeper` channels."""
    if variant == "max_unpool":
        return Unpooling(width, deeper, kernel)
    if variant == "strided":
        return StridedConvolutions(width, deeper, kernel)
    if variant == "dilated":
        return SameSize(width, deeper)
    name: Pool = "max" if variant == "max_upsample" else cast(Pool, variant)
    return Interpolation(width, deeper, build(name, width, kernel, 2, padding))


def parameter_count(network: nn.Module) -> int:
    """The number of trained weights."""
    return sum(parameter.numel() for parameter in network.parameters())


def matched_widths(
    channels: int,
    classes: int,
    variant: str,
    widths: Sequence[int],
    kernel: int = 2,
) -> tuple[int, ...]:
    """Widths with which a variant has about as many weights as the reference has.

    The width of the deepest level is changed, in steps of two, such that the number of weights
    comes closest to that of `max_upsample` with the given widths.
    """

    def count(variant: str, deepest: int) -> int:
        with torch.device("meta"):  # no memory, and no random numbers
            return parameter_count(
                UNet(channels, classes, variant, (*widths[:-1], deepest), kernel)
            )

    budget = count(REFERENCE, widths[-1])
    if count(variant, widths[-1]) == budget:
        return tuple(widths)
    candidates = range(2, 2 * widths[-1], 2)
    # The number of weights grows with the width.
    above = bisect_left(candidates, budget, key=lambda deepest: count(variant, deepest))
    nearest = candidates[max(above - 1, 0) : above + 1]
    best = min(nearest, key=lambda deepest: abs(count(variant, deepest) - budget))
    return (*widths[:-1], best)


def _convolutions(
    channels: int, filters: int, dilation: int, padding: ConvPadding
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (channels, filters):
        layers += [
            ScaledConv2d(
                before, filters, 3, padding=dilation, dilation=dilation, padding_mode=padding
            ),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)
