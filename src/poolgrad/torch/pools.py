"""Defines the module classes, one for each public function and number of pooled axes.

Their docstrings follow from those of the functions; see `modules.Pool`.
"""

# ruff: noqa: D101

from torch import nn

import poolgrad.functional as F
from poolgrad.functional import families
from poolgrad.torch import modules
from poolgrad.torch.base import Pool, constructor

__all__: list[str] = []


class _Max(modules.Maximum):
    @constructor(families.MaxModule)
    def __init__(self) -> None: ...


class MaxPool1d(_Max, nn.MaxPool1d, calls=F.max_pool1d): ...


class MaxPool2d(_Max, nn.MaxPool2d, calls=F.max_pool2d): ...


class MaxPool3d(_Max, nn.MaxPool3d, calls=F.max_pool3d): ...


__all__ += ["MaxPool1d", "MaxPool2d", "MaxPool3d"]


class _ReLUMax(modules.ReLUMaximum):
    @constructor(families.Selecting)
    def __init__(self) -> None: ...


class ReLUMaxPool1d(_ReLUMax, calls=F.relu_max_pool1d): ...


class ReLUMaxPool2d(_ReLUMax, calls=F.relu_max_pool2d): ...


class ReLUMaxPool3d(_ReLUMax, calls=F.relu_max_pool3d): ...


__all__ += ["ReLUMaxPool1d", "ReLUMaxPool2d", "ReLUMaxPool3d"]


class _Selecting(Pool):
    @constructor(families.Selecting)
    def __init__(self) -> None: ...


class MinPool1d(_Selecting, calls=F.min_pool1d): ...


class MinPool2d(_Selecting, calls=F.min_pool2d): ...


class MinPool3d(_Selecting, calls=F.min_pool3d): ...


__all__ += ["MinPool1d", "MinPool2d", "MinPool3d"]


class MedianPool1d(_Selecting, calls=F.median_pool1d): ...


class MedianPool2d(_Selecting, calls=F.median_pool2d): ...


class MedianPool3d(_Selecting, calls=F.median_pool3d): ...


__all__ += ["MedianPool1d", "MedianPool2d", "MedianPool3d"]


class _StochasticArguments(families.Drawn, families.Routed, families.Windows):
    """Those of the function without `training`, which is the mode of the module."""


class _Stochastic(modules.Stochastic):
    @constructor(_StochasticArguments)
    def __init__(self) -> None: ...


class StochasticPool1d(_Stochastic, calls=F.stochastic_pool1d): ...


class StochasticPool2d(_Stochastic, calls=F.stochastic_pool2d): ...


class StochasticPool3d(_Stochastic, calls=F.stochastic_pool3d): ...


__all__ += ["StochasticPool1d", "StochasticPool2d", "StochasticPool3d"]


class _Average(Pool):
    shown = ("kernel_size", "stride", "padding")

    @constructor(families.Average)
    def __init__(self) -> None: ...


class AvgPool1d(_Average, nn.AvgPool1d, calls=F.avg_pool1d): ...


class AvgPool2d(_Average, nn.AvgPool2d, calls=F.avg_pool2d): ...


class AvgPool3d(_Average, nn.AvgPool3d, calls=F.avg_pool3d): ...


__all__ += ["AvgPool1d", "AvgPool2d", "AvgPool3d"]


class _Power(Pool):
    @constructor(families.Power)
    def __init__(self) -> None: ...


class LPPool1d(_Power, nn.LPPool1d, calls=F.lp_pool1d): ...


class LPPool2d(_Power, nn.LPPool2d, calls=F.lp_pool2d): ...


class LPPool3d(_Power, nn.LPPool3d, calls=F.lp_pool3d): ...


__all__ += ["LPPool1d", "LPPool2d", "LPPool3d"]


class _LogMeanExp(Pool):
    @constructor(families.LogMeanExp)
    def __init__(self) -> None: ...


class LogMeanExpPool1d(_LogMeanExp, calls=F.log_mean_exp_pool1d): ...


class LogMeanExpPool2d(_LogMeanExp, calls=F.log_mean_exp_pool2d): ...


class LogMeanExpPool3d(_LogMeanExp, calls=F.log_mean_exp_pool3d): ...


__all__ += ["LogMeanExpPool1d", "LogMeanExpPool2d", "LogMeanExpPool3d"]


class _Plain(Pool):
    @constructor(families.Windows)
    def __init__(self) -> None: ...


class SoftPool1d(_Plain, calls=F.soft_pool1d): ...


class SoftPool2d(_Plain, calls=F.soft_pool2d): ...


class SoftPool3d(_Plain, calls=F.soft_pool3d): ...


__all__ += ["SoftPool1d", "SoftPool2d", "SoftPool3d"]


class _Mixed(modules.Mixed):
    @constructor(families.Mixed)
    def __init__(self) -> None: ...


class MixedPool1d(_Mixed, calls=F.mixed_pool1d): ...


class MixedPool2d(_Mixed, calls=F.mixed_pool2d): ...


class MixedPool3d(_Mixed, calls=F.mixed_pool3d): ...


__all__ += ["MixedPool1d", "MixedPool2d", "MixedPool3d"]


class RangePool1d(_Plain, calls=F.range_pool1d): ...


class RangePool2d(_Plain, calls=F.range_pool2d): ...


class RangePool3d(_Plain, calls=F.range_pool3d): ...


__all__ += ["RangePool1d", "RangePool2d", "RangePool3d"]


class _Lip(modules.Lip):
    @constructor(families.Windows)
    def __init__(self) -> None: ...


class LipPool1d(_Lip, calls=F.lip_pool1d): ...


class LipPool2d(_Lip, calls=F.lip_pool2d): ...


class LipPool3d(_Lip, calls=F.lip_pool3d): ...


__all__ += ["LipPool1d", "LipPool2d", "LipPool3d"]


class _AdaptiveSelecting(Pool):
    @constructor(families.AdaptiveSelecting)
    def __init__(self) -> None: ...


class AdaptiveMaxPool1d(_AdaptiveSelecting, nn.AdaptiveMaxPool1d, calls=F.adaptive_max_pool1d): ...


class AdaptiveMaxPool2d(_AdaptiveSelecting, nn.AdaptiveMaxPool2d, calls=F.adaptive_max_pool2d): ...


class AdaptiveMaxPool3d(_AdaptiveSelecting, nn.AdaptiveMaxPool3d, calls=F.adaptive_max_pool3d): ...


__all__ += ["AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d"]


class _Adaptive(Pool):
    @constructor(families.Adaptive)
    def __init__(self) -> None: ...


class AdaptiveAvgPool1d(_Adaptive, nn.AdaptiveAvgPool1d, calls=F.adaptive_avg_pool1d): ...


class AdaptiveAvgPool2d(_Adaptive, nn.AdaptiveAvgPool2d, calls=F.adaptive_avg_pool2d): ...


class AdaptiveAvgPool3d(_Adaptive, nn.AdaptiveAvgPool3d, calls=F.adaptive_avg_pool3d): ...


__all__ += ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"]


class _GlobalSelecting(modules.Global):
    @constructor(families.GlobalSelecting)
    def __init__(self) -> None: ...


class GlobalMaxPool1d(_GlobalSelecting, calls=F.global_max_pool): ...


class GlobalMaxPool2d(_GlobalSelecting, calls=F.global_max_pool): ...


class GlobalMaxPool3d(_GlobalSelecting, calls=F.global_max_pool): ...


__all__ += ["GlobalMaxPool1d", "GlobalMaxPool2d", "GlobalMaxPool3d"]


class _Global(modules.Global):
    @constructor(families.Global)
    def __init__(self) -> None: ...


class GlobalAvgPool1d(_Global, calls=F.global_avg_pool): ...


class GlobalAvgPool2d(_Global, calls=F.global_avg_pool): ...


class GlobalAvgPool3d(_Global, calls=F.global_avg_pool): ...


__all__ += ["GlobalAvgPool1d", "GlobalAvgPool2d", "GlobalAvgPool3d"]


class _GlobalPower(modules.Global):
    @constructor(families.GlobalPower)
    def __init__(self) -> None: ...


class GlobalLPPool1d(_GlobalPower, calls=F.global_lp_pool): ...


class GlobalLPPool2d(_GlobalPower, calls=F.global_lp_pool): ...


class GlobalLPPool3d(_GlobalPower, calls=F.global_lp_pool): ...


__all__ += ["GlobalLPPool1d", "GlobalLPPool2d", "GlobalLPPool3d"]


class _GlobalLogMeanExp(modules.Global):
    @constructor(families.GlobalLogMeanExp)
    def __init__(self) -> None: ...


class GlobalLogMeanExpPool1d(_GlobalLogMeanExp, calls=F.global_log_mean_exp_pool): ...


class GlobalLogMeanExpPool2d(_GlobalLogMeanExp, calls=F.global_log_mean_exp_pool): ...


class GlobalLogMeanExpPool3d(_GlobalLogMeanExp, calls=F.global_log_mean_exp_pool): ...


__all__ += ["GlobalLogMeanExpPool1d", "GlobalLogMeanExpPool2d", "GlobalLogMeanExpPool3d"]


class _FractionalArguments(families.RandomSamples, families.Fractional):
    """Those of the function."""


class _Fractional(modules.Fractional):
    @constructor(_FractionalArguments)
    def __init__(self) -> None: ...


class FractionalMaxPool2d(_Fractional, nn.FractionalMaxPool2d, calls=F.fractional_max_pool2d): ...


class FractionalMaxPool3d(_Fractional, nn.FractionalMaxPool3d, calls=F.fractional_max_pool3d): ...


__all__ += ["FractionalMaxPool2d", "FractionalMaxPool3d"]


class _Unpool(modules.Unpool):
    @constructor(families.Unpool)
    def __init__(self) -> None: ...


class MaxUnpool1d(_Unpool, nn.MaxUnpool1d, calls=F.max_unpool1d): ...


class MaxUnpool2d(_Unpool, nn.MaxUnpool2d, calls=F.max_unpool2d): ...


class MaxUnpool3d(_Unpool, nn.MaxUnpool3d, calls=F.max_unpool3d): ...


__all__ += ["MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d"]
