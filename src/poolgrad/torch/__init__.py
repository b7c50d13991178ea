"""The front end for PyTorch: the functions of `poolgrad` take tensors; here are the modules."""

from torch import Tensor
from torch.nn import Parameter

from poolgrad import functional
from poolgrad.torch import function  # defines torch.ops.poolgrad
from poolgrad.torch.modules import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    GlobalAvgPool1d,
    GlobalAvgPool2d,
    GlobalAvgPool3d,
    GlobalMaxPool1d,
    GlobalMaxPool2d,
    GlobalMaxPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)

functional.adopt(function, Tensor, Parameter)  # the first call may be a compiled one

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "GlobalAvgPool1d",
    "GlobalAvgPool2d",
    "GlobalAvgPool3d",
    "GlobalMaxPool1d",
    "GlobalMaxPool2d",
    "GlobalMaxPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
]
