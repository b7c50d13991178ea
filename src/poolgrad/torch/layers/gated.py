"""Learned combinations of poolings: gates, and trees of filters.

The source of both is Lee, Gallagher & Tu 2016.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from poolgrad.torch.layers import exportable
from poolgrad.torch.layers.arguments import WindowedLayer, check_fits, check_maps


@fx.wrap
def _responses(x: Tensor, weight: Tensor, channels: int, *windows: tuple[int, int]) -> Tensor:
    """Multiply every filter with every window; the shape is ``(..., C, filters, H', W')``."""
    kernel_size, stride, padding = windows
    check_fits(check_maps(x, channels), kernel_size, padding)
    filters = weight.shape[1]
    each = weight.expand(channels, -1, -1, -1).reshape(-1, 1, *kernel_size)
    y = F.conv2d(x, each, stride=stride, padding=padding, groups=channels)
    return y.unflatten(-3, (channels, filters))


def _filters(layer: GatedPool2d | TreePool2d, count: int) -> nn.Parameter:
    """Return zeros for filters of the size of the windows, for all channels or for each channel."""
    sets = 1 if layer.per == "layer" else layer.channels
    return nn.Parameter(torch.zeros(sets, count, *layer.windows[0]))


class GatedPool2d(WindowedLayer):
    """Mix maximum and average by a gate that is computed from each window.

    ``y = s * max + (1 - s) * avg`` with ``s = sigmoid(w . window)``: unlike in `MixedPool2d`, the
    mixture depends on the inputs of the window.

    Parameters
    ----------
    channels : int
        Number of channels of the input.
    kernel_size : int or (int, int)
        The windows, and the size of the gate's mask ``w``. Default: 2.
    stride : int or (int, int), optional
        The step between windows; default: `kernel_size`.
    padding : int or (int, int)
        Rows and columns of zeros around the map, at most half of `kernel_size`; default: 0. They
        count in the average and are never the maximum.
    per : str
        ``"layer"`` (default): one mask for all channels; ``"channel"``: one for each.

    Attributes
    ----------
    weight : nn.Parameter, shape (1 or C, 1, kernel height, kernel width)
        The masks, initialised to 0: maximum and average in equal parts.

    Raises
    ------
    TypeError, ValueError
        In the constructor, if an argument has another type or value; in a call, if the input is not
        a floating tensor of shape (N, C, H, W) or (C, H, W) with `channels` channels, or no window
        fits.

    Notes
    -----
    Called with ``(N, C, H, W)`` or ``(C, H, W)``, it returns
    ``(H + 2 * padding - kernel_size) // stride + 1`` rows, and columns likewise. The parts are
    `poolgrad.max_pool2d` and `poolgrad.avg_pool2d`: where the gate is 1 or 0 in floating point,
    the result is one of them, to the last bit.

    References
    ----------
    C.-Y. Lee, P. W. Gallagher, Z. Tu, "Generalizing pooling functions in convolutional neural
    networks: mixed, gated, and tree", AISTATS 2016.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import GatedPool2d
    >>> pool = GatedPool2d(1)
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 6.0]])[None]
    >>> pool(x).item()
    4.5
    >>> _ = torch.nn.init.constant_(pool.weight, 100.0)  # positive windows open the gate
    >>> pool(x).item()
    6.0
    """

    per: str = "layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weight = _filters(self, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Pool with the gates of the input."""
        responses = _responses(x, self.weight, self.channels, *self.windows).squeeze(-3)
        gate = responses.sigmoid().to(x.dtype)  # autocast may change it
        mean = exportable.pooled("avg_pool2d", x, *self.windows)
        # Exact at both ends, because PyTorch documents that lerp starts from the nearer one.
        return torch.lerp(mean, exportable.pooled("max_pool2d", x, *self.windows), gate)


class TreePool2d(WindowedLayer):
    """Pool with learned filters, combined by a binary tree of gates.

    A leaf is the scalar product of a window with a learned filter. A node above combines its two
    branches: ``s * left + (1 - s) * right`` with ``s = sigmoid(w . window)``.

    Parameters
    ----------
    channels : int
        Number of channels of the input.
    kernel_size : int or (int, int)
        The windows, and the size of every filter and mask. Default: 2.
    stride : int or (int, int), optional
        The step between windows; default: `kernel_size`.
    padding : int or (int, int)
        Rows and columns of zeros around the map, at most half of `kernel_size`. Default: 0.
    depth : int
        Levels of the tree, leaves included: ``2 ** (depth - 1)`` leaves and one gate less. 1 is a
        single learned filter, 2 (default) the authors' smallest tree. At most 10.
    per : str
        ``"layer"`` (default): one tree for all channels; ``"channel"``: one for each.

    Attributes
    ----------
    leaves : nn.Parameter, shape (1 or C, leaves, kernel height, kernel width)
        The filters, from left to right. They are initialised to the weight of the average at every
        tap plus normal noise of a tenth of it, because equal leaves would stay equal.
    gates : nn.Parameter, shape (1 or C, leaves - 1, kernel height, kernel width)
        The masks, level by level from the root, initialised to 0: both branches in equal parts.

    Raises
    ------
    TypeError, ValueError
        In the constructor, if an argument has another type or value; in a call, if the input is not
        a floating tensor of shape (N, C, H, W) or (C, H, W) with `channels` channels, or no window
        fits.

    Notes
    -----
    Called with ``(N, C, H, W)`` or ``(C, H, W)``, it returns
    ``(H + 2 * padding - kernel_size) // stride + 1`` rows, and columns likewise.

    References
    ----------
    C.-Y. Lee, P. W. Gallagher, Z. Tu, "Generalizing pooling functions in convolutional neural
    networks: mixed, gated, and tree", AISTATS 2016.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import TreePool2d
    >>> pool = TreePool2d(8, kernel_size=3, stride=2, padding=1)
    >>> pool(torch.rand(2, 8, 32, 32)).shape
    torch.Size([2, 8, 16, 16])
    >>> sum(p.numel() for p in pool.parameters())  # two filters and a mask
    27
    """

    DEEPEST = 10
    shown = (*WindowedLayer.__match_args__, "per", "depth")

    depth: int = 2
    per: str = "layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth > self.DEEPEST:
            raise ValueError(f"depth must be at most {self.DEEPEST}, got {self.depth}")
        count = 2 ** (self.depth - 1)
        self.leaves = _filters(self, count)
        self.gates = _filters(self, count - 1)
        share = 1 / math.prod(self.windows[0])
        nn.init.normal_(self.leaves, share, share / 10)

    def forward(self, x: Tensor) -> Tensor:
        """Pool with the leaves, combined by the gates of the input."""
        filters = torch.cat((self.leaves, self.gates), 1)
        responses = _responses(x, filters, self.channels, *self.windows)
        count = self.leaves.shape[1]
        branches, gates = responses[..., :count, :, :], responses[..., count:, :, :]
        for level in range(self.depth - 2, -1, -1):  # from the leaves' parents to the root
            first = 2**level - 1
            gate = gates[..., first : 2 * first + 1, :, :].sigmoid()
            branches = torch.lerp(branches[..., 1::2, :, :], branches[..., ::2, :, :], gate)
        return branches.squeeze(-3)
