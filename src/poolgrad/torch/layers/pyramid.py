"""Spatial pyramid pooling: maps of any size become vectors of one length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from poolgrad.torch.arrays import shape_of
from poolgrad.torch.layers import arguments
from poolgrad.torch.layers.arguments import Layer, one_of, one_positive
from poolgrad.torch.pools import AdaptiveAvgPool2d, AdaptiveMaxPool2d
from poolgrad.windows import adaptive, brief, resolve

_MODES = {"max": AdaptiveMaxPool2d, "avg": AdaptiveAvgPool2d}


class SpatialPyramidPool2d(Layer):
    """Adaptive pooling into grids of several sizes, concatenated to one vector.

    Level l divides a map of any size into l x l bins. The output holds the bins of the
    first level, flattened in the order (C, row, column), then those of the next.

    Parameters
    ----------
    levels : sequence of int
        The number of bins along each side, one for each level. Default: (1, 2, 4).
    mode : str
        The reduction of a bin: ``"max"`` (default) or ``"avg"``.

    Raises
    ------
    TypeError, ValueError
        In the constructor, for an invalid argument; in a call, for an input that is not a
        floating tensor of shape (N, C, H, W) or (C, H, W).

    Notes
    -----
    He, Zhang, Ren & Sun, Spatial pyramid pooling in deep convolutional networks for visual
    recognition, 2014. Each level is a `poolgrad.torch.AdaptiveMaxPool2d` or `AdaptiveAvgPool2d`.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import SpatialPyramidPool2d
    >>> pool = SpatialPyramidPool2d((1, 2, 4))
    >>> pool(torch.rand(2, 8, 13, 13)).shape, pool(torch.rand(2, 8, 6, 9)).shape
    (torch.Size([2, 168]), torch.Size([2, 168]))
    """

    levels: Sequence[int] = (1, 2, 4)
    mode: str = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        levels = self.levels
        if not isinstance(levels, Sequence) or isinstance(levels, str | bytes):
            raise TypeError(f"levels must be a sequence of integers, got {brief(levels)}")
        if len(levels) == 0:
            raise ValueError("levels must hold at least one level, got none")
        self.levels = tuple(one_positive("levels", level) for level in levels)
        one_of("mode", self.mode, tuple(_MODES))
        self.pools = nn.ModuleList(_MODES[self.mode](level) for level in self.levels)

    def features(self, channels: int) -> int:
        """Return the length of the output for a number of channels."""
        return channels * sum(level * level for level in self.levels)

    def forward(self, x: Tensor) -> Tensor:
        """Pool a tensor of shape (N, C, H, W) to (N, C * sum(l * l for each level l))."""
        x = arguments.check_maps(x)
        exported = torch.onnx.is_in_onnx_export()
        bins = [
            self._sliced(x, level) if exported else pool(x)
            for level, pool in zip(self.levels, self.pools, strict=True)
        ]
        return torch.cat([y.flatten(-3) for y in bins], -1)

    def _sliced(self, x: Tensor, level: int) -> Tensor:
        """Return the bins of one level, computed from slices: ONNX has no adaptive pooling."""
        axes = resolve(adaptive(2, level), shape_of(x)[-2:]).axes
        rows, columns = ([slice(*axis.bins(o)) for o in range(level)] for axis in axes)
        reduce = torch.amax if self.mode == "max" else torch.mean
        bins = [reduce(x[..., row, column], (-2, -1)) for row in rows for column in columns]
        return torch.stack(bins, -1)[..., None]
