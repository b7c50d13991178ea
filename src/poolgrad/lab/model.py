"""The small network of the lab, with poolgrad's pooling in it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poolgrad.lab.settings import Pool, Settings, check_windows, steps_per_epoch
from poolgrad.torch import AvgPool2d, GlobalAvgPool2d, MaxPool2d

_WIDTHS = (32, 64, 128, 128, 128)  # channels of the convolutions, from the image on


class Standardise(nn.Module):
    """Pixels of any dtype to float32 with mean 0 and standard deviation 1 in every channel.

    Parameters
    ----------
    images
        The training images, shape (N, C, H, W), from which mean and deviation are taken.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, images: NDArray[np.generic]) -> None:
        super().__init__()
        deviation = images.std(axis=(0, 2, 3), dtype=np.float64)
        deviation[deviation == 0] = 1  # a constant channel becomes zero, not NaN
        mean = images.mean(axis=(0, 2, 3), dtype=np.float64)
        for name, value in (("mean", mean), ("deviation", deviation)):
            self.register_buffer(name, torch.from_numpy(value).float()[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """Shape (N, C, H, W) to the same shape, float32."""
        return (images.float() - self.mean) / self.deviation


class Network(nn.Module):
    """Convolution, ReLU, pooling, ..., global average pooling, linear head.

    It pools two to four times, the more the larger the images, and fewer times where the feature
    map becomes smaller than a window or than a stride. Every convolution is 3 x 3 and followed by
    batch normalisation, and windows are padded by `(kernel - 1) // 2`, so that odd kernels lose no
    border. The running statistics of the normalisation span at most an epoch: over more, those of a
    network that takes few steps would still be those of its first weights.

    Parameters
    ----------
    images
        The training images, shape (N, C, H, W): they fix the first layer and the pixel scale.
    classes
        The number of classes.
    settings
        `pool`, `kernel`, `stride` and `batch_size` are used.

    Attributes
    ----------
    before
        All layers up to the first pooling.
    pool
        The first pooling.
    after
        All layers behind it; gives one score a class, shape (N, classes).
    maps
        Height and width of the feature map before the first pooling and after each.

    Raises
    ------
    LabError
        If the images are smaller than one window or one stride.
    """

    def __init__(self, images: NDArray[np.generic], classes: int, settings: Settings) -> None:
        super().__init__()
        channels, height, width = images.shape[1:]
        self.maps = _map_sizes((height, width), settings.kernel, settings.stride)
        momentum = _momentum(len(images), settings)
        first = _convolution(channels, _WIDTHS[0], momentum)
        self.before = nn.Sequential(Standardise(images), *first)
        self.pool = _pooling(settings.pool, _WIDTHS[0], settings.kernel, settings.stride)
        self.after = nn.Sequential()
        poolings = len(self.maps) - 1
        for i in range(1, poolings + 1):
            self.after.extend(_convolution(_WIDTHS[i - 1], _WIDTHS[i], momentum))
            if i < poolings:
                self.after.append(
                    _pooling(settings.pool, _WIDTHS[i], settings.kernel, settings.stride)
                )
        self.after.extend([GlobalAvgPool2d(), nn.Linear(_WIDTHS[poolings], classes)])

    def forward(self, images: Tensor) -> Tensor:
        """Scores, shape (N, classes), of images, shape (N, C, H, W)."""
        scores: Tensor = self.after(self.pool(self.before(images)))
        return scores

    @property
    def parameter_count(self) -> int:
        """The number of trained weights."""
        return sum(parameter.numel() for parameter in self.parameters())


def window_padding(kernel: int) -> int:
    """The padding that keeps the middle of every window inside the map."""
    return (kernel - 1) // 2


def _momentum(images: int, settings: Settings) -> float:
    """Weight of the latest batch in the running statistics: 0.1, as usual, from 10 steps on."""
    batch_size = settings.for_images(images).batch_size
    assert batch_size is not None
    return max(0.1, 1 / steps_per_epoch(images, batch_size))


def _convolution(channels: int, filters: int, momentum: float) -> list[nn.Module]:
    # The normalisation has its own bias.
    return [
        nn.Conv2d(channels, filters, 3, padding=1, bias=False),
        nn.BatchNorm2d(filters, momentum=momentum),
        nn.ReLU(),
    ]


def _pooling(pool: Pool, channels: int, kernel: int, stride: int) -> nn.Module:
    padding = window_padding(kernel)
    if pool == "max":
        return MaxPool2d(kernel, stride, padding)
    if pool == "avg":
        return AvgPool2d(kernel, stride, padding, count_include_pad=False)
    # The same windows, with learned weights instead of a rule (Springenberg et al., 2015,
    # "Striving for simplicity").
    return nn.Conv2d(channels, channels, kernel, stride, padding)


def _map_sizes(size: tuple[int, int], kernel: int, stride: int) -> list[tuple[int, int]]:
    """Size of the map before the first pooling and after each."""
    check_windows(kernel, stride, size)
    # Four times for 32 x 32 and more, twice for 8 x 8: the last map keeps some extent.
    most = min(max(min(size).bit_length() - 2, 1), len(_WIDTHS) - 1)
    maps = [size]
    while len(maps) <= most and max(kernel, stride) <= min(maps[-1]):
        height, width = (
            (extent + 2 * window_padding(kernel) - kernel) // stride + 1 for extent in maps[-1]
        )
        maps.append((height, width))
    return maps
