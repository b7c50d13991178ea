"""Modules for Flax NNX, Equinox and plain JAX.

There is a class for each public function and number of pooled axes, with the arguments of the
function. Its objects are immutable dataclasses and pytrees.

Arrays are channels last, as in Flax: ``(..., H, W, C)`` with any number of leading axes.
``channels_last=False`` pools arrays of Equinox, ``(..., C, H, W)``. The stride is the kernel size
by default.

    >>> import jax, jax.numpy as jnp
    >>> from poolgrad.jax import nn
    >>> x = jnp.arange(16.0).reshape(1, 4, 4, 1)
    >>> pool = nn.MaxPool2d(2)
    >>> pool(x)[0, :, :, 0]
    Array([[ 5.,  7.],
           [13., 15.]], dtype=float32)

A learned argument is an array or an ``nnx.Param``. It is a leaf of the pytree, so that gradients
and optimisers find it. A number is a constant.

    >>> gem = nn.GlobalLPPool2d(norm_type=jnp.array(3.0), mean=True)
    >>> gradient = jax.grad(lambda gem: gem(x).sum())(gem)
    >>> round(float(gradient.norm_type), 3)
    0.715

Random poolings are called with a key.

    >>> nn.StochasticPool2d(2)(x, key=jax.random.key(0)).shape
    (1, 2, 2, 1)
"""

from typing import TYPE_CHECKING, Any

from jax import Array

import poolgrad.functional as F
from poolgrad.functional import families
from poolgrad.jax.modules import Lip, Pool, Random, Stochastic, Unpool


class MaxPool1d(Pool[Any], families.MaxModule, calls=F.max_pool1d): ...


class MaxPool2d(Pool[Any], families.MaxModule, calls=F.max_pool2d): ...


class MaxPool3d(Pool[Any], families.MaxModule, calls=F.max_pool3d): ...


class ReLUMaxPool1d(Pool[Any], families.Selecting, calls=F.relu_max_pool1d): ...


class ReLUMaxPool2d(Pool[Any], families.Selecting, calls=F.relu_max_pool2d): ...


class ReLUMaxPool3d(Pool[Any], families.Selecting, calls=F.relu_max_pool3d): ...


class MinPool1d(Pool[Any], families.Selecting, calls=F.min_pool1d): ...


class MinPool2d(Pool[Any], families.Selecting, calls=F.min_pool2d): ...


class MinPool3d(Pool[Any], families.Selecting, calls=F.min_pool3d): ...


class MedianPool1d(Pool[Any], families.Selecting, calls=F.median_pool1d): ...


class MedianPool2d(Pool[Any], families.Selecting, calls=F.median_pool2d): ...


class MedianPool3d(Pool[Any], families.Selecting, calls=F.median_pool3d): ...


class StochasticPool1d(Stochastic, families.Stochastic, calls=F.stochastic_pool1d): ...


class StochasticPool2d(Stochastic, families.Stochastic, calls=F.stochastic_pool2d): ...


class StochasticPool3d(Stochastic, families.Stochastic, calls=F.stochastic_pool3d): ...


class AvgPool1d(Pool[Array], families.Average, calls=F.avg_pool1d): ...


class AvgPool2d(Pool[Array], families.Average, calls=F.avg_pool2d): ...


class AvgPool3d(Pool[Array], families.Average, calls=F.avg_pool3d): ...


class LPPool1d(Pool[Array], families.Power, calls=F.lp_pool1d): ...


class LPPool2d(Pool[Array], families.Power, calls=F.lp_pool2d): ...


class LPPool3d(Pool[Array], families.Power, calls=F.lp_pool3d): ...


class LogMeanExpPool1d(Pool[Array], families.LogMeanExp, calls=F.log_mean_exp_pool1d): ...


class LogMeanExpPool2d(Pool[Array], families.LogMeanExp, calls=F.log_mean_exp_pool2d): ...


class LogMeanExpPool3d(Pool[Array], families.LogMeanExp, calls=F.log_mean_exp_pool3d): ...


class SoftPool1d(Pool[Array], families.Windows, calls=F.soft_pool1d): ...


class SoftPool2d(Pool[Array], families.Windows, calls=F.soft_pool2d): ...


class SoftPool3d(Pool[Array], families.Windows, calls=F.soft_pool3d): ...


class MixedPool1d(Pool[Array], families.Mixed, calls=F.mixed_pool1d): ...


class MixedPool2d(Pool[Array], families.Mixed, calls=F.mixed_pool2d): ...


class MixedPool3d(Pool[Array], families.Mixed, calls=F.mixed_pool3d): ...


class RangePool1d(Pool[Array], families.Windows, calls=F.range_pool1d): ...


class RangePool2d(Pool[Array], families.Windows, calls=F.range_pool2d): ...


class RangePool3d(Pool[Array], families.Windows, calls=F.range_pool3d): ...


class LipPool1d(Lip, families.Windows, calls=F.lip_pool1d): ...


class LipPool2d(Lip, families.Windows, calls=F.lip_pool2d): ...


class LipPool3d(Lip, families.Windows, calls=F.lip_pool3d): ...


class AdaptiveMaxPool1d(Pool[Any], families.AdaptiveSelecting, calls=F.adaptive_max_pool1d): ...


class AdaptiveMaxPool2d(Pool[Any], families.AdaptiveSelecting, calls=F.adaptive_max_pool2d): ...


class AdaptiveMaxPool3d(Pool[Any], families.AdaptiveSelecting, calls=F.adaptive_max_pool3d): ...


class AdaptiveAvgPool1d(Pool[Array], families.Adaptive, calls=F.adaptive_avg_pool1d): ...


class AdaptiveAvgPool2d(Pool[Array], families.Adaptive, calls=F.adaptive_avg_pool2d): ...


class AdaptiveAvgPool3d(Pool[Array], families.Adaptive, calls=F.adaptive_avg_pool3d): ...


class GlobalMaxPool1d(Pool[Any], families.GlobalSelecting, calls=F.global_max_pool): ...


class GlobalMaxPool2d(Pool[Any], families.GlobalSelecting, calls=F.global_max_pool): ...


class GlobalMaxPool3d(Pool[Any], families.GlobalSelecting, calls=F.global_max_pool): ...


class GlobalAvgPool1d(Pool[Array], families.Global, calls=F.global_avg_pool): ...


class GlobalAvgPool2d(Pool[Array], families.Global, calls=F.global_avg_pool): ...


class GlobalAvgPool3d(Pool[Array], families.Global, calls=F.global_avg_pool): ...


class GlobalLPPool1d(Pool[Array], families.GlobalPower, calls=F.global_lp_pool): ...


class GlobalLPPool2d(Pool[Array], families.GlobalPower, calls=F.global_lp_pool): ...


class GlobalLPPool3d(Pool[Array], families.GlobalPower, calls=F.global_lp_pool): ...


class GlobalLogMeanExpPool1d(
    Pool[Array], families.GlobalLogMeanExp, calls=F.global_log_mean_exp_pool
): ...


class GlobalLogMeanExpPool2d(
    Pool[Array], families.GlobalLogMeanExp, calls=F.global_log_mean_exp_pool
): ...


class GlobalLogMeanExpPool3d(
    Pool[Array], families.GlobalLogMeanExp, calls=F.global_log_mean_exp_pool
): ...


class FractionalMaxPool2d(Random, families.Fractional, calls=F.fractional_max_pool2d): ...


class FractionalMaxPool3d(Random, families.Fractional, calls=F.fractional_max_pool3d): ...


class MaxUnpool1d(Unpool, families.Unpool, calls=F.max_unpool1d): ...


class MaxUnpool2d(Unpool, families.Unpool, calls=F.max_unpool2d): ...


class MaxUnpool3d(Unpool, families.Unpool, calls=F.max_unpool3d): ...


if not TYPE_CHECKING:  # type checkers find the names themselves
    __all__ = [name for name in globals() if name.endswith(("1d", "2d", "3d"))]
