"""The small networks of the lab, with poolgrad's pooling in them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poolgrad.lab.pools import ConvPadding, Head, build, window_padding
from poolgrad.lab.settings import Settings, check_windows, steps_per_epoch
from poolgrad.torch import GlobalAvgPool2d

# Standard deviation of a ReLU's output for a standard normal input, inverted.
_RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))
_EPSILON = 1e-4


@dataclass(frozen=True)
class Design:
    """The design that the networks of one command share.

    Attributes
    ----------
    widths
        Channels of the convolutions, from the image on; there are at most as many downsamplings as
        convolutions but one.
    normalisation
        `"batch"`: of activations, over the batch; `"weights"`: of the convolutions' weights
        (`ScaledConv2d`), so that nothing depends on the other images of a batch.
    padding
        Padding of the convolutions and downsamplings. With `"circular"`, a circular shift of the
        image is one of the feature maps, up to the first downsampling.
    """

    widths: tuple[int, ...]
    normalisation: Literal["batch", "weights"]
    padding: ConvPadding = "zeros"


TRAIN = Design((32, 64, 128, 128, 128), "batch")  # of `poolgrad train`


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
        """Shape (N, C, H, W) to the same shape, float32 (float64 after `.double()`)."""
        return (images.to(self.mean.dtype) - self.mean) / self.deviation


class ScaledConv2d(nn.Conv2d):
    """A convolution with scaled weight standardisation: its output keeps the input's variance.

    The weights of each filter are used with mean 0 and variance 2 / (1 - 1 / pi) / fan-in, times a
    learned gain, so that activations behind a ReLU neither grow nor vanish from layer to layer.
    Batch normalisation is not needed then. Source: Brock, De & Smith 2021, "Characterizing signal
    propagation to close the performance gap in unnormalized ResNets".

    Parameters
    ----------
    *args, **kwargs
        Those of `torch.nn.Conv2d`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @classmethod
    def like(cls, layer: nn.Conv2d) -> ScaledConv2d:
        """A convolution with the arguments of another one."""
        return cls(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            padding_mode=layer.padding_mode,
        )

    @property
    def used_weight(self) -> Tensor:
        """The weights after standardisation, shape of `weight`."""
        deviation, mean = torch.std_mean(self.weight, (1, 2, 3), correction=0, keepdim=True)
        fan_in = self.weight[0].numel()
        scale = _RELU_GAIN * self.gain / (deviation * math.sqrt(fan_in) + _EPSILON)
        return (self.weight - mean) * scale

    def forward(self, x: Tensor) -> Tensor:
        """Shape (N, in_channels, H, W) to (N, out_channels, H', W')."""
        return self._conv_forward(x, self.used_weight, self.bias)


class Network(nn.Module):
    """Convolution, ReLU, downsampling, ..., head.

    It downsamples two to four times, the more the larger the images, and fewer times where the
    feature map becomes smaller than a window or than a stride. Every convolution is 3 x 3 and
    normalised as the design says, and windows are padded by `(kernel - 1) // 2`, so that odd
    kernels lose no border. The running statistics of batch normalisation span at most an epoch:
    over more, those of a network that takes few steps would still be those of its first weights.

    With `pool="none"` maps keep their size; a convolution is dilated by the product of the strides
    that the other networks have before it, so that the receptive field is the same.

    Parameters
    ----------
    images
        The training images, shape (N, C, H, W): they fix the first layer and the pixel scale.
    classes
        The number of classes.
    settings
        `pool`, `head`, `kernel`, `stride` and `batch_size` are used.
    design
        Widths, normalisation and padding.

    Attributes
    ----------
    before
        All layers up to the first downsampling.
    pool
        The first downsampling.
    after
        All layers behind it; gives one score a class, shape (N, classes).
    maps
        Height and width of the feature map before the first downsampling and after each.

    Raises
    ------
    LabError
        If the images are smaller than one window or one stride.
    """

    def __init__(
        self,
        images: NDArray[np.generic],
        classes: int,
        settings: Settings,
        design: Design = TRAIN,
    ) -> None:
        super().__init__()
        channels, height, width = images.shape[1:]
        widths, kernel, stride = design.widths, settings.kernel, settings.stride
        poolings = _poolings((height, width), kernel, stride, len(widths) - 1)
        momentum = _momentum(len(images), settings)

        def pooling(filters: int) -> nn.Module:
            layer = build(settings.pool, filters, kernel, stride, design.padding)
            if isinstance(layer, nn.Conv2d) and design.normalisation == "weights":
                return ScaledConv2d.like(layer)
            return layer

        first = _convolution(channels, widths[0], design, momentum)
        self.before = nn.Sequential(Standardise(images), *first)
        self.pool = pooling(widths[0])
        self.after = nn.Sequential()
        self.maps = [(height, width), _size_after(self.pool, widths[0], (height, width))]
        dilation = 1
        for i in range(1, poolings + 1):
            if settings.pool == "none":
                dilation *= stride
            self.after.extend(_convolution(widths[i - 1], widths[i], design, momentum, dilation))
            if i < poolings:
                self.after.append(pooling(widths[i]))
                self.maps.append(_size_after(self.after[-1], widths[i], self.maps[-1]))
        self.after.extend(_head(settings.head, widths[poolings], self.maps[-1], classes))

    def forward(self, images: Tensor) -> Tensor:
        """Scores, shape (N, classes), of images, shape (N, C, H, W)."""
        return self.after(self.pool(self.before(images)))

    @property
    def parameter_count(self) -> int:
        """The number of trained weights."""
        return sum(parameter.numel() for parameter in self.parameters())


def _momentum(images: int, settings: Settings) -> float:
    """Weight of the latest batch in the running statistics: 0.1, as usual, from 10 steps on."""
    batch_size = settings.for_images(images).batch_size
    assert batch_size is not None
    return max(0.1, 1 / steps_per_epoch(images, batch_size))


def _convolution(
    channels: int, filters: int, design: Design, momentum: float, dilation: int = 1
) -> list[nn.Module]:
    location: dict[str, Any] = {
        "padding": dilation,
        "dilation": dilation,
        "padding_mode": design.padding,
    }
    if design.normalisation == "weights":
        return [ScaledConv2d(channels, filters, 3, **location), nn.ReLU()]
    # The normalisation has a bias.
    return [
        nn.Conv2d(channels, filters, 3, bias=False, **location),
        nn.BatchNorm2d(filters, momentum=momentum),
        nn.ReLU(),
    ]


def _head(name: Head, channels: int, size: tuple[int, int], classes: int) -> list[nn.Module]:
    if name == "avg":
        return [GlobalAvgPool2d(), nn.Linear(channels, classes)]
    from poolgrad.torch import make_head

    return [make_head(name, channels, size, classes)]


def _size_after(layer: nn.Module, channels: int, size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the output of a downsampling."""
    if isinstance(layer, nn.Identity):
        return size
    training = layer.training
    with torch.no_grad():
        height, width = layer.eval()(torch.zeros(1, channels, *size)).shape[2:]
    layer.train(training)
    return height, width


def _poolings(size: tuple[int, int], kernel: int, stride: int, most: int) -> int:
    """Return the number of downsamplings, which is the same for every kind."""
    check_windows(kernel, stride, size)
    # Four times for 32 x 32 and more, twice for 8 x 8: the last map keeps some extent.
    most = min(max(min(size).bit_length() - 2, 1), most)
    count = 0
    while count < most and max(kernel, stride) <= min(size):
        height, width = (
            (extent + 2 * window_padding(kernel) - kernel) // stride + 1 for extent in size
        )
        size, count = (height, width), count + 1
    return count
