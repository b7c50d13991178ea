"""One image through the first downsampling of a network, and the gradient back through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import poolgrad
from poolgrad.lab.model import Network, ScaledConv2d
from poolgrad.lab.pools import window_padding
from poolgrad.lab.settings import Settings

Plane = NDArray[Any]  # shape (H, W)


@dataclass(frozen=True)
class Trace:
    """One channel before and after the first downsampling, with its gradients.

    Attributes
    ----------
    image
        Shape (H, W) or (H, W, 3).
    before, after
        The feature map, and the result of the pooling.
    arriving, returned
        The gradient of the winning class's score with respect to `after` and `before`.
    share
        How much each input has to do with the outputs: how many windows it won (maximum), the
        weights that it got (average), the sizes of its weights (convolution), or the absolute value
        of the derivative of the sum of this channel's outputs (all others).
    winners
        Row and column of every window's winner, shape (*after.shape, 2); None but for a maximum.
    channel, predicted
        Which channel it is, and the number of the class.
    """

    image: NDArray[Any]
    before: Plane
    after: Plane
    arriving: Plane
    returned: Plane
    share: Plane
    winners: NDArray[np.int64] | None
    channel: int
    predicted: int


def follow(network: Network, settings: Settings, image: NDArray[Any]) -> Trace:
    """Send an image through the network and the gradient of its score back to the feature map.

    The channel has many windows that are not empty, and a large gradient.

    Parameters
    ----------
    network
        In evaluation mode afterwards.
    settings
        `pool`, `kernel` and `stride` are used.
    image
        Shape (C, H, W), as the network was trained on.
    """
    network.eval()
    before = network.before(torch.from_numpy(image)[None]).detach().requires_grad_()
    after = network.pool(before)
    after.retain_grad()
    scores = network.after(after)[0]
    scores.max().backward()
    assert before.grad is not None
    assert after.grad is not None
    gradient = after.grad[0].abs().sum(dim=(1, 2))
    filled = (after[0] != 0).sum(dim=(1, 2))
    channel = int((gradient * filled).argmax())
    share, winners = share_of(network.pool, settings, before.detach(), channel)
    return Trace(
        image=image[0] if len(image) != 3 else np.moveaxis(image, 0, -1),
        before=before.detach()[0, channel].numpy(),
        after=after.detach()[0, channel].numpy(),
        arriving=after.grad[0, channel].numpy(),
        returned=before.grad[0, channel].numpy(),
        share=share,
        winners=winners,
        channel=channel,
        predicted=int(scores.argmax()),
    )


def share_of(
    layer: nn.Module, settings: Settings, before: Tensor, channel: int
) -> tuple[Plane, NDArray[np.int64] | None]:
    """Return the influence of each value of a map on the output of a downsampling.

    Parameters
    ----------
    layer
        The downsampling.
    settings
        `pool`, `kernel` and `stride` are used.
    before
        Its input, shape (1, C, H, W).
    channel
        Which one.

    Returns
    -------
    share, winners
        As in `Trace`.
    """
    plane = before[0, channel].numpy()
    kernel, stride, padding = settings.kernel, settings.stride, window_padding(settings.kernel)
    if settings.pool == "max":
        y, pullback = poolgrad.vjp(poolgrad.max_pool2d, plane, kernel, stride, padding)
        positions = np.divmod(pullback.routes.astype(np.int64), kernel)
        starts = np.indices(y.shape) * stride - padding
        return pullback.mask(), np.moveaxis(starts + np.array(positions), 0, -1)
    if settings.pool == "avg":
        y, pullback = poolgrad.vjp(
            poolgrad.avg_pool2d, plane, kernel, stride, padding, count_include_pad=False
        )
        return pullback(np.ones_like(y)), None
    inputs = before.clone().requires_grad_()
    if settings.pool == "strided":
        assert isinstance(layer, nn.Conv2d)
        used = layer.used_weight if isinstance(layer, ScaledConv2d) else layer.weight
        # The size of every weight on the way from this channel to any output.
        weights = used.detach()[:, channel].abs().sum(0)[None, None]
        nn.functional.conv2d(
            inputs[:, channel, None], weights, None, stride, padding
        ).sum().backward()
    else:
        layer(inputs)[0, channel].sum().backward()
    assert inputs.grad is not None
    return inputs.grad[0, channel].abs().numpy(), None
