"""Heads of classifiers, which compute class scores from the last feature map of a network."""

from __future__ import annotations

from torch import Tensor, nn

from poolgrad.torch.layers import arguments, exportable
from poolgrad.torch.layers.arguments import Layer, one_of, one_positive, pair
from poolgrad.torch.layers.attention import AttentionPool2d
from poolgrad.torch.layers.power import GeM2d


class _Average(nn.Module):
    """The average of every channel: (N, C, H, W) to (N, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return exportable.global_average(x)


class _Maximum(nn.Module):
    """The maximum of every channel; of equal inputs the first gets the gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return exportable.global_maximum(x)


_POOLS = {"flatten": nn.Flatten, "avg": _Average, "max": _Maximum, "gem": GeM2d}

HEADS = (*_POOLS, "attention")
"""The names of the heads that `make_head` makes."""


class Head(Layer):
    """The head of a classifier, returned by `make_head`.

    Attributes
    ----------
    name : str
        One of `HEADS`.
    channels, size, classes : int, (int, int), int
        Channels and size of the feature map, and the number of scores.
    pool : nn.Module
        From (N, C, H, W) to (N, features).
    classify : nn.Module
        From (N, features) to (N, classes).
    parameter_count : int
        The number of its learned numbers, which is also printed.
    """

    def __init__(
        self,
        name: str,
        channels: int,
        size: tuple[int, int],
        classes: int,
        pool: nn.Module,
        classify: nn.Module,
    ) -> None:
        super().__init__()
        self.name, self.channels, self.size, self.classes = name, channels, size, classes
        self.pool, self.classify = pool, classify

    @property
    def parameter_count(self) -> int:
        """The number of learned numbers."""
        return sum(p.numel() for p in self.parameters())

    def forward(self, x: Tensor) -> Tensor:
        """Score a tensor of shape (N, C, H, W); the scores have shape (N, classes)."""
        size = self.size if self.name in ("flatten", "attention") else None
        x = arguments.check_maps(x, self.channels, size)
        return arguments.unbatched(self.classify(self.pool(arguments.batched(x))), x)

    def extra_repr(self) -> str:
        """Return the arguments and the number of parameters."""
        return (
            f"{self.name!r}, channels={self.channels}, size={self.size}, classes={self.classes}, "
            f"parameters={self.parameter_count}"
        )


def make_head(name: str, channels: int, size: int | tuple[int, int], classes: int) -> Head:
    """Make the head of a classifier: from feature maps of shape (N, C, H, W) to (N, classes).

    ================ ======================================== ============================
    name             head                                     parameters
    ================ ======================================== ============================
    ``"flatten"``    all values of the map, linear map        ``(C*H*W + 1) * classes``
    ``"avg"``        global average, linear map               ``(C + 1) * classes``
    ``"max"``        global maximum, linear map               ``(C + 1) * classes``
    ``"gem"``        `GeM2d` with one power, linear map       ``(C + 1) * classes + 1``
    ``"attention"``  `AttentionPool2d`, whose output is the   ``(H*W + 1) * C +
                     scores                                   3 * (C + 1) * C +
                                                              (C + 1) * classes``
    ================ ======================================== ============================

    Parameters
    ----------
    name : str
        One of ``poolgrad.torch.HEADS``.
    channels : int
        The channels C of the feature maps.
    size : int or (int, int)
        The height H and the width W of the feature maps. The heads ``"avg"``, ``"max"`` and
        ``"gem"`` take maps of any other size, too.
    classes : int
        The number of scores.

    Returns
    -------
    Head
        A module; its attribute `parameter_count`, which is printed, too, counts its parameters.

    Raises
    ------
    TypeError, ValueError
        For an invalid argument; the module raises them for an input of another shape.

    Notes
    -----
    Global average: Lin, Chen & Yan, Network in network, 2014.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import make_head
    >>> head = make_head("gem", channels=64, size=(4, 4), classes=10)
    >>> head
    Head(
      'gem', channels=64, size=(4, 4), classes=10, parameters=651
      (pool): GeM2d(norm_type=3.0, eps=1e-06)
      (classify): Linear(in_features=64, out_features=10, bias=True)
    )
    >>> head(torch.rand(2, 64, 4, 4)).shape
    torch.Size([2, 10])
    """
    name = one_of("name", name, HEADS)
    channels, classes = one_positive("channels", channels), one_positive("classes", classes)
    height, width = pair("size", size)
    if name == "attention":
        attention = AttentionPool2d(channels, (height, width), out_channels=classes)
        return Head(name, channels, (height, width), classes, attention, nn.Identity())
    linear = nn.Linear(channels * height * width if name == "flatten" else channels, classes)
    return Head(name, channels, (height, width), classes, _POOLS[name](), linear)
