"""The front end for PyTorch: the functions of `poolgrad` take tensors; here are the modules.

An unmodified network pools with our kernels after `convert`, or inside `accelerate`.

A module takes what its function takes. An argument that has a gradient may be an `nn.Parameter`,
which is then learned with the rest of a network: generalised-mean pooling (GeM) is

    >>> import torch
    >>> from poolgrad.torch import GlobalLPPool2d
    >>> gem = GlobalLPPool2d(torch.nn.Parameter(torch.full((8,), 3.0)), mean=True)
    >>> gem
    GlobalLPPool2d(norm_type=Parameter of shape (8,), keepdims=False, mean=True)
    >>> gem(torch.rand(2, 8, 5, 5)).shape
    torch.Size([2, 8])
"""

try:
    import torch as _torch  # noqa: F401 - to say what is missing
except ImportError as error:
    raise ModuleNotFoundError(
        'poolgrad.torch needs torch: pip install "poolgrad[torch]"', name="torch"
    ) from error

from poolgrad.torch import function as function  # defines torch.ops.poolgrad
from poolgrad.torch.accelerate import accelerate
from poolgrad.torch.convert import Report, convert, revert
from poolgrad.torch.layers import (
    AdaptivePolyphasePool2d,
    BlurConv2d,
    BlurPool2d,
    GatedPool2d,
    LIP2d,
    MaxBlurPool2d,
    TreePool2d,
    lip_pool2d,
)
from poolgrad.torch.modules import (
    MODULES,
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    FractionalMaxPool2d,
    FractionalMaxPool3d,
    GlobalAvgPool1d,
    GlobalAvgPool2d,
    GlobalAvgPool3d,
    GlobalLPPool1d,
    GlobalLPPool2d,
    GlobalLPPool3d,
    GlobalLSEPool1d,
    GlobalLSEPool2d,
    GlobalLSEPool3d,
    GlobalMaxPool1d,
    GlobalMaxPool2d,
    GlobalMaxPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    LSEPool1d,
    LSEPool2d,
    LSEPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MaxUnpool1d,
    MaxUnpool2d,
    MaxUnpool3d,
    MedianPool1d,
    MedianPool2d,
    MedianPool3d,
    MinPool1d,
    MinPool2d,
    MinPool3d,
    MixedPool1d,
    MixedPool2d,
    MixedPool3d,
    ReLUMaxPool1d,
    ReLUMaxPool2d,
    ReLUMaxPool3d,
    SoftPool1d,
    SoftPool2d,
    SoftPool3d,
    StochasticPool1d,
    StochasticPool2d,
    StochasticPool3d,
)

__all__ = [
    "MODULES",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AdaptivePolyphasePool2d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BlurConv2d",
    "BlurPool2d",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "GatedPool2d",
    "GlobalAvgPool1d",
    "GlobalAvgPool2d",
    "GlobalAvgPool3d",
    "GlobalLPPool1d",
    "GlobalLPPool2d",
    "GlobalLPPool3d",
    "GlobalLSEPool1d",
    "GlobalLSEPool2d",
    "GlobalLSEPool3d",
    "GlobalMaxPool1d",
    "GlobalMaxPool2d",
    "GlobalMaxPool3d",
    "LIP2d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "LSEPool1d",
    "LSEPool2d",
    "LSEPool3d",
    "MaxBlurPool2d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "MedianPool1d",
    "MedianPool2d",
    "MedianPool3d",
    "MinPool1d",
    "MinPool2d",
    "MinPool3d",
    "MixedPool1d",
    "MixedPool2d",
    "MixedPool3d",
    "ReLUMaxPool1d",
    "ReLUMaxPool2d",
    "ReLUMaxPool3d",
    "Report",
    "SoftPool1d",
    "SoftPool2d",
    "SoftPool3d",
    "StochasticPool1d",
    "StochasticPool2d",
    "StochasticPool3d",
    "TreePool2d",
    "accelerate",
    "convert",
    "lip_pool2d",
    "revert",
]
