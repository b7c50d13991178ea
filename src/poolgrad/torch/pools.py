"""Defines the module classes, one for each public function and number of pooled axes.

Their docstrings follow from those of the functions; see `modules.Pool`.
"""

from typing import TYPE_CHECKING

from torch import nn

import poolgrad.functional as F
from poolgrad.functional import families
from poolgrad.torch import modules
from poolgrad.torch.base import Pool, constructor


class MaxPool1d(modules.Maximum, nn.MaxPool1d, calls=F.max_pool1d): ...


class MaxPool2d(modules.Maximum, nn.MaxPool2d, calls=F.max_pool2d): ...


class MaxPool3d(modules.Maximum, nn.MaxPool3d, calls=F.max_pool3d): ...


class ReLUMaxPool1d(modules.ReLUMaximum, calls=F.relu_max_pool1d): ...


class ReLUMaxPool2d(modules.ReLUMaximum, calls=F.relu_max_pool2d): ...


class ReLUMaxPool3d(modules.ReLUMaximum, calls=F.relu_max_pool3d): ...


class MinPool1d(modules.Selecting, calls=F.min_pool1d): ...


class MinPool2d(modules.Selecting, calls=F.min_pool2d): ...


class MinPool3d(modules.Selecting, calls=F.min_pool3d): ...


class MedianPool1d(modules.Selecting, calls=F.median_pool1d): ...


class MedianPool2d(modules.Selecting, calls=F.median_pool2d): ...


class MedianPool3d(modules.Selecting, calls=F.median_pool3d): ...


class StochasticPool1d(modules.Stochastic, calls=F.stochastic_pool1d): ...


class StochasticPool2d(modules.Stochastic, calls=F.stochastic_pool2d): ...


class StochasticPool3d(modules.Stochastic, calls=F.stochastic_pool3d): ...


class _Average(Pool):
    shown = ("kernel_size", "stride", "padding")

    @constructor(families.Average)
    def __init__(self) -> None: ...


class AvgPool1d(_Average, nn.AvgPool1d, calls=F.avg_pool1d): ...


class AvgPool2d(_Average, nn.AvgPool2d, calls=F.avg_pool2d): ...


class AvgPool3d(_Average, nn.AvgPool3d, calls=F.avg_pool3d): ...


class _Power(Pool):
    @constructor(families.Power)
    def __init__(self) -> None: ...


class LPPool1d(_Power, nn.LPPool1d, calls=F.lp_pool1d): ...


class LPPool2d(_Power, nn.LPPool2d, calls=F.lp_pool2d): ...


class LPPool3d(_Power, nn.LPPool3d, calls=F.lp_pool3d): ...


class _LogMeanExp(Pool):
    @constructor(families.LogMeanExp)
    def __init__(self) -> None: ...


class LogMeanExpPool1d(_LogMeanExp, calls=F.log_mean_exp_pool1d): ...


class LogMeanExpPool2d(_LogMeanExp, calls=F.log_mean_exp_pool2d): ...


class LogMeanExpPool3d(_LogMeanExp, calls=F.log_mean_exp_pool3d): ...


class SoftPool1d(modules.Plain, calls=F.soft_pool1d): ...


class SoftPool2d(modules.Plain, calls=F.soft_pool2d): ...


class SoftPool3d(modules.Plain, calls=F.soft_pool3d): ...


class MixedPool1d(modules.Mixed, calls=F.mixed_pool1d): ...


class MixedPool2d(modules.Mixed, calls=F.mixed_pool2d): ...


class MixedPool3d(modules.Mixed, calls=F.mixed_pool3d): ...


class RangePool1d(modules.Plain, calls=F.range_pool1d): ...


class RangePool2d(modules.Plain, calls=F.range_pool2d): ...


class RangePool3d(modules.Plain, calls=F.range_pool3d): ...


class LipPool1d(modules.Lip, calls=F.lip_pool1d): ...


class LipPool2d(modules.Lip, calls=F.lip_pool2d): ...


class LipPool3d(modules.Lip, calls=F.lip_pool3d): ...


class _AdaptiveSelecting(Pool):
    @constructor(families.AdaptiveSelecting)
    def __init__(self) -> None: ...


class AdaptiveMaxPool1d(_AdaptiveSelecting, nn.AdaptiveMaxPool1d, calls=F.adaptive_max_pool1d): ...


class AdaptiveMaxPool2d(_AdaptiveSelecting, nn.AdaptiveMaxPool2d, calls=F.adaptive_max_pool2d): ...


class AdaptiveMaxPool3d(_AdaptiveSelecting, nn.AdaptiveMaxPool3d, calls=F.adaptive_max_pool3d): ...


class _Adaptive(Pool):
    @constructor(families.Adaptive)
    def __init__(self) -> None: ...


class AdaptiveAvgPool1d(_Adaptive, nn.AdaptiveAvgPool1d, calls=F.adaptive_avg_pool1d): ...


class AdaptiveAvgPool2d(_Adaptive, nn.AdaptiveAvgPool2d, calls=F.adaptive_avg_pool2d): ...


class AdaptiveAvgPool3d(_Adaptive, nn.AdaptiveAvgPool3d, calls=F.adaptive_avg_pool3d): ...


class _GlobalSelecting(Pool):
    @constructor(families.GlobalSelecting)
    def __init__(self) -> None: ...


class GlobalMaxPool1d(_GlobalSelecting, calls=F.global_max_pool): ...


class GlobalMaxPool2d(_GlobalSelecting, calls=F.global_max_pool): ...


class GlobalMaxPool3d(_GlobalSelecting, calls=F.global_max_pool): ...


class _Global(Pool):
    @constructor(families.Global)
    def __init__(self) -> None: ...


class GlobalAvgPool1d(_Global, calls=F.global_avg_pool): ...


class GlobalAvgPool2d(_Global, calls=F.global_avg_pool): ...


class GlobalAvgPool3d(_Global, calls=F.global_avg_pool): ...


class _GlobalPower(Pool):
    @constructor(families.GlobalPower)
    def __init__(self) -> None: ...


class GlobalLPPool1d(_GlobalPower, calls=F.global_lp_pool): ...


class GlobalLPPool2d(_GlobalPower, calls=F.global_lp_pool): ...


class GlobalLPPool3d(_GlobalPower, calls=F.global_lp_pool): ...


class _GlobalLogMeanExp(Pool):
    @constructor(families.GlobalLogMeanExp)
    def __init__(self) -> None: ...


class GlobalLogMeanExpPool1d(_GlobalLogMeanExp, calls=F.global_log_mean_exp_pool): ...


class GlobalLogMeanExpPool2d(_GlobalLogMeanExp, calls=F.global_log_mean_exp_pool): ...


class GlobalLogMeanExpPool3d(_GlobalLogMeanExp, calls=F.global_log_mean_exp_pool): ...


class FractionalMaxPool2d(
    modules.Fractional, nn.FractionalMaxPool2d, calls=F.fractional_max_pool2d
): ...


class FractionalMaxPool3d(
    modules.Fractional, nn.FractionalMaxPool3d, calls=F.fractional_max_pool3d
): ...


class MaxUnpool1d(modules.Unpool, nn.MaxUnpool1d, calls=F.max_unpool1d): ...


class MaxUnpool2d(modules.Unpool, nn.MaxUnpool2d, calls=F.max_unpool2d): ...


class MaxUnpool3d(modules.Unpool, nn.MaxUnpool3d, calls=F.max_unpool3d): ...


if not TYPE_CHECKING:  # type checkers find the names themselves
    __all__ = [name for name in globals() if name.endswith(("1d", "2d", "3d"))]
