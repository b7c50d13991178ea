"""One image through the first downsampling of a U-Net, and the gradient back through it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poolgrad.lab.pools import NAMES
from poolgrad.lab.segment.unet import Resampling, UNet
from poolgrad.lab.settings import Settings
from poolgrad.lab.trace import Plane, share_of

# Entries of the lab's table that the variants use for downsampling.
_POOLS = {"max_unpool": "max", "max_upsample": "max", "dilated": "none"}


@dataclass(frozen=True)
class MaskTrace:
    """One channel before and after the first downsampling, its gradients, and the predicted mask.

    Attributes
    ----------
    image
        Shape (H, W) or (H, W, 3).
    before, after
        The feature map, and what the downsampling makes of it.
    arriving
        The gradient with respect to `after` of the scores of the predicted classes, summed over the
        pixels that are predicted to be foreground (over all, if none is).
    returned
        The gradient of `before` through the downsampling alone, without the gradient through the
        connection to the decoder.
    share, winners
        As in `poolgrad.lab.trace.Trace`.
    mask
        The predicted classes, shape (H, W), uint8.
    """

    image: NDArray[Any]
    before: Plane
    after: Plane
    arriving: Plane
    returned: Plane
    share: Plane
    winners: NDArray[np.int64] | None
    mask: NDArray[np.uint8]


def follow(
    network: nn.Sequential, method: str, settings: Settings, image: NDArray[Any]
) -> MaskTrace:
    """Send an image through the network and the gradient of its scores back to the first pooling.

    The channel has many values that are not zero, and a large gradient.

    Parameters
    ----------
    network
        Standardisation and `UNet`; in evaluation mode afterwards.
    method
        The U-Net's variant.
    settings
        `kernel` and `stride` are used.
    image
        Shape (C, H, W), as the network was trained on.
    """
    network.eval()
    unet = network[-1]
    assert isinstance(unet, UNet)
    first = unet.resamplings[0]
    assert isinstance(first, Resampling)
    traced: list[Tensor] = []

    def note(_: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> Any:
        # A copy, also of what is not downsampled at all: its gradient is what arrives here, and
        # not what comes through the connection to the decoder.
        values = (output[0] if isinstance(output, tuple) else output).clone()
        values.retain_grad()
        traced.extend((inputs[0].detach(), values))
        return (values, *output[1:]) if isinstance(output, tuple) else values

    hook = first.pool.register_forward_hook(note)
    scores = network(torch.from_numpy(image)[None])[0]
    hook.remove()
    before, after = traced
    best, classes = scores.max(0)
    counted = classes > 0
    (best[counted] if counted.any() else best).sum().backward()
    assert after.grad is not None
    channel = int((after.grad[0].abs().sum((1, 2)) * (after[0] != 0).sum((1, 2))).argmax())
    inputs = before.clone().requires_grad_()
    output = first.down(inputs)[0]
    (returned,) = torch.autograd.grad(output, inputs, after.grad)
    name = _POOLS.get(method, method)
    assert name in NAMES
    share, winners = share_of(first.pool, replace(settings, pool=name), before, channel)
    return MaskTrace(
        image=image[0] if len(image) != 3 else np.moveaxis(image, 0, -1),
        before=before[0, channel].numpy(),
        after=after.detach()[0, channel].numpy(),
        arriving=after.grad[0, channel].numpy(),
        returned=returned[0, channel].numpy(),
        share=share,
        winners=winners,
        mask=classes.to(torch.uint8).numpy(),
    )
