"""Defines the module classes, one for each public function and number of pooled axes.

`modules.family` makes them; type checkers read `pools.pyi`, which tools/make_stubs.py writes.
"""

from poolgrad.torch.modules import (
    Fractional,
    Global,
    Lip,
    Maximum,
    Mixed,
    ReLUMaximum,
    Stochastic,
    Unpool,
    family,
)

MaxPool1d, MaxPool2d, MaxPool3d = family("MaxPool", "max_pool", Maximum, subclass=True)
ReLUMaxPool1d, ReLUMaxPool2d, ReLUMaxPool3d = family(
    "ReLUMaxPool", "relu_max_pool", ReLUMaximum, first=MaxPool1d.inherited
)
MinPool1d, MinPool2d, MinPool3d = family("MinPool", "min_pool", first=MaxPool1d.inherited)
MedianPool1d, MedianPool2d, MedianPool3d = family(
    "MedianPool", "median_pool", first=MaxPool1d.inherited
)
StochasticPool1d, StochasticPool2d, StochasticPool3d = family(
    "StochasticPool", "stochastic_pool", Stochastic, first=MaxPool1d.inherited
)
AvgPool1d, AvgPool2d, AvgPool3d = family(
    "AvgPool", "avg_pool", subclass=True, shown=("kernel_size", "stride", "padding")
)
LPPool1d, LPPool2d, LPPool3d = family("LPPool", "lp_pool", subclass=True)
LSEPool1d, LSEPool2d, LSEPool3d = family("LSEPool", "lse_pool")
SoftPool1d, SoftPool2d, SoftPool3d = family("SoftPool", "soft_pool")
MixedPool1d, MixedPool2d, MixedPool3d = family("MixedPool", "mixed_pool", Mixed)
RangePool1d, RangePool2d, RangePool3d = family("RangePool", "range_pool")
LipPool1d, LipPool2d, LipPool3d = family("LipPool", "lip_pool", Lip)
AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d = family(
    "AdaptiveMaxPool", "adaptive_max_pool", subclass=True
)
AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d = family(
    "AdaptiveAvgPool", "adaptive_avg_pool", subclass=True
)
GlobalMaxPool1d, GlobalMaxPool2d, GlobalMaxPool3d = family(
    "GlobalMaxPool", "global_max_pool", Global
)
GlobalAvgPool1d, GlobalAvgPool2d, GlobalAvgPool3d = family(
    "GlobalAvgPool", "global_avg_pool", Global
)
GlobalLPPool1d, GlobalLPPool2d, GlobalLPPool3d = family(
    "GlobalLPPool", "global_lp_pool", Global, first=("norm_type", "keepdims")
)
GlobalLSEPool1d, GlobalLSEPool2d, GlobalLSEPool3d = family(
    "GlobalLSEPool", "global_lse_pool", Global, first=("r", "keepdims")
)
FractionalMaxPool2d, FractionalMaxPool3d = family(
    "FractionalMaxPool", "fractional_max_pool", Fractional, subclass=True, dims=(2, 3)
)
MaxUnpool1d, MaxUnpool2d, MaxUnpool3d = family("MaxUnpool", "max_unpool", Unpool, subclass=True)

_CLASSES = sorted(name for name in globals() if name.endswith(("1d", "2d", "3d")))
__all__ = list(_CLASSES)
