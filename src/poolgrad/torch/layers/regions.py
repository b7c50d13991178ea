"""Pooling of regions of interest, as layers of detectors."""

from __future__ import annotations

from torch import Tensor

from poolgrad.region_maps import bins
from poolgrad.regions import roi_align, roi_pool
from poolgrad.torch.layers.arguments import Layer
from poolgrad.windows import Ints


class RoIPool2d(Layer):
    """Maximum of each bin of regions of interest (RoIPool): the layer of `poolgrad.roi_pool`.

    Parameters
    ----------
    output_size : int or (int, int)
        The number of bins of each region along the height and the width.
    spatial_scale : float
        Factor of box coordinates; 1/16 if the feature map has a sixteenth of the rows and columns
        of the image that the boxes belong to. Default: 1.

    Raises
    ------
    TypeError, ValueError
        In the constructor, for an invalid argument; in a call, for an input that is not a floating
        tensor of shape (N, C, H, W), and for boxes that `poolgrad.roi_pool` does not accept.

    Notes
    -----
    Girshick, Fast R-CNN, 2015. Constructor and geometry are those of ``torchvision.ops.RoIPool``.
    Boxes have no gradient. `torch.onnx.export` writes ONNX's MaxRoiPool, which does the same.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import RoIPool2d
    >>> pool = RoIPool2d(7, spatial_scale=1 / 16)
    >>> pool
    RoIPool2d(output_size=(7, 7), spatial_scale=0.0625)
    >>> boxes = [torch.tensor([[0.0, 0.0, 320.0, 240.0]]), torch.empty(0, 4)]  # one, and none
    >>> pool(torch.rand(2, 64, 30, 40), boxes).shape
    torch.Size([1, 64, 7, 7])
    """

    output_size: Ints
    spatial_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.output_size, self.spatial_scale, *_ = bins(*self.arguments)

    def forward(self, input: Tensor, boxes: Tensor | list[Tensor]) -> Tensor:
        """Pool (N, C, H, W) and K boxes to (K, C, output height, output width)."""
        return roi_pool(input, boxes, *self.arguments)


class RoIAlign2d(Layer):
    """Average of bilinear samples of regions of interest: the layer of `poolgrad.roi_align`.

    Parameters
    ----------
    output_size : int or (int, int)
        The number of bins of each region along the height and the width.
    spatial_scale : float
        Factor of box coordinates; 1/16 if the feature map has a sixteenth of the rows and columns
        of the image that the boxes belong to. Default: 1.
    sampling_ratio : int
        The number of points in a bin along each axis, at most 65536. If it is not positive
        (default: -1), it is the number of pixels of a bin, rounded up.
    aligned : bool
        If True, the centre of the first pixel has the coordinate 0.5, as it should in new networks.
        Default: False.

    Raises
    ------
    TypeError, ValueError
        In the constructor, for an invalid argument; in a call, for an input that is not a floating
        tensor of shape (N, C, H, W), and for boxes that `poolgrad.roi_align` does not accept.

    Notes
    -----
    He et al., Mask R-CNN, 2017. Constructor and geometry are those of ``torchvision.ops.RoIAlign``.
    Boxes have no gradient. `torch.onnx.export` writes ONNX's RoiAlign, which does the same.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import RoIAlign2d
    >>> pool = RoIAlign2d((7, 7), spatial_scale=1 / 16, sampling_ratio=2, aligned=True)
    >>> boxes = torch.tensor([[0.0, 8.0, 8.0, 320.0, 240.0], [1.0, 0.0, 0.0, 100.0, 50.0]])
    >>> pool(torch.rand(2, 64, 30, 40), boxes).shape
    torch.Size([2, 64, 7, 7])
    """

    output_size: Ints
    spatial_scale: float = 1.0
    sampling_ratio: int = -1
    aligned: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.output_size, self.spatial_scale, _, self.aligned = bins(*self.arguments)
        self.sampling_ratio = int(self.sampling_ratio)

    def forward(self, input: Tensor, boxes: Tensor | list[Tensor]) -> Tensor:
        """Pool (N, C, H, W) and K boxes to (K, C, output height, output width)."""
        return roi_align(input, boxes, *self.arguments)
