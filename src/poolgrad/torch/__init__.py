"""The front end for PyTorch: the functions of `poolgrad` take tensors; here are the modules."""

from poolgrad.torch import function as function  # defines torch.ops.poolgrad
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
