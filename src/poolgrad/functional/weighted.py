"""Declares the functions of weighted reductions, in which every input of a window has a weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from poolgrad.arguments import REALS, plain
from poolgrad.functional import families
from poolgrad.functional.declare import Function, RealFunction, functions, mean_functions
from poolgrad.windows import brief

_DIVISOR_LIMIT = 2**63


def divisor(value: object) -> int:
    """Return the value of `divisor_override`, checked; 0 stands for None."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"divisor_override must be an integer or None, got {brief(value)}")
    if value == 0:
        raise ValueError(
            f"divisor_override must not be zero, as every sum is divided by it, got {brief(value)}"
        )
    if abs(value) >= _DIVISOR_LIMIT:
        raise ValueError(
            f"divisor_override must be less than 2**63 in magnitude, got {brief(value)}"
        )
    return value


def rounding(value: object) -> tuple[float, ...]:
    """Return the option `rounding` for a value of `quantization`, checked."""
    if value is None:
        return ()
    form = (
        "(scale, zero_point), or one such pair for x and one for the output, with positive scales "
        "and zero points from -128 to 255"
    )
    given = plain("quantization", value, form)
    are_real = given.ndim > 0 and given.dtype.name in REALS
    if are_real and given.shape in ((2,), (2, 2)):
        (scale, zero_point), (scale_of_y, zero_point_of_y) = np.broadcast_to(given, (2, 2)).tolist()
        ratio = scale / scale_of_y if min(scale, scale_of_y) > 0 else 0.0
        if 2.0**-60 < ratio < 2.0**60 and {zero_point, zero_point_of_y} <= {*range(-128, 256)}:
            return float(np.float32(ratio)), float(zero_point), 0.0, float(zero_point_of_y)
    kind = ValueError if are_real else TypeError
    raise kind(f"quantization must be {form}, got {brief(value)}")


class _AvgPool(Function, families.Average):
    """Mean of every window of {axes}.

    {parameters}

    Returns
    -------
    {y}
        {means}
        With `quantization`, it is rounded, ties to even, and clamped to the range of the dtype.

    Raises
    ------
    {raises}
        Also if ``count_include_pad=False`` and a window holds padding only.

    Notes
    -----
    The rules are those of ``torch.nn.functional.{name}``, without its limit on padding.
    Dilation is that of ONNX AveragePool-19. LeCun, Bottou, Bengio & Haffner, Gradient-based
    learning applied to document recognition, 1998.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}1.0, 3.0, 2.0, 6.0{close})
    >>> poolgrad.{name}(x, {two})
    array({open}2., 4.{close})
    >>> poolgrad.{name}(np.zeros(({sixes})), 2).shape
    ({threes})
    >>> x = np.array({open}1, 4, 2, 6{close}, np.uint8)
    >>> poolgrad.{name}(x, {two}, quantization=(0.1, 0))
    array({open}2, 4{close}, dtype=uint8)
    """

    operator = "avg"

    def options(self) -> Any:
        """Return the options of the operator."""
        given = {"divisor": divisor(self.divisor_override), "rounding": rounding(self.quantization)}
        return super().options()._replace(**given)


class _LPPool(RealFunction, families.Power):
    """p-norm of every window of {axes}: ``sum(|x|**p) ** (1 / p)``.

    {parameters}

    Returns
    -------
    {y}
        A window with a NaN gives NaN; a window without any input gives 0.

    Raises
    ------
    {raises}
        Also if ``mean=True`` and a window holds padding only.

    Notes
    -----
    The operator is ONNX LpPool-22. ``torch.nn.functional.lp_pool{dims}d`` takes no absolute value:
    it gives the same where x >= 0 or p is even, and no window extends beyond the input. With
    ``mean=True`` and a learned p it is GeM pooling: Radenovic, Tolias & Chum, Fine-tuning CNN image
    retrieval with no human annotation, 2018. Sermanet, Chintala & LeCun, Convolutional neural
    networks applied to house numbers digit classification, 2012.

    The gradient of an input that is 0 is defined as 0. A window of zeros contributes nothing to
    the gradient of p.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}3.0, -4.0, 5.0, 12.0{close})
    >>> poolgrad.{name}(x, 2.0, {two})
    array({open} 5., 13.{close})
    """

    operator = "lp"


class _LogMeanExpPool(RealFunction, families.LogMeanExp):
    """Log-mean-exp of every window of {axes}: ``log(mean(exp(r * x))) / r``.

    The result is near the average for r near 0, near the maximum for large r, and near the minimum
    for large negative r. Only valid inputs are averaged. Large values do not overflow.

    {parameters}

    Returns
    -------
    {y}
        A window with a NaN gives NaN.

    Raises
    ------
    {raises_if_empty}

    Notes
    -----
    Pinheiro & Collobert, From image-level to pixel-level labeling with convolutional networks,
    2015.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.log({open}1.0, 3.0, 2.0, 6.0{close})
    >>> np.exp(poolgrad.{name}(x, {two}))
    array({open}2., 4.{close})
    """

    operator = "log_mean_exp"


class _SoftPool(RealFunction, families.Windows):
    """Softmax-weighted mean of every window of {axes}: ``sum(exp(x) * x) / sum(exp(x))``.

    Only valid inputs have a weight. Large values do not overflow.

    {parameters}

    Returns
    -------
    {y}
        A window with a NaN gives NaN.

    Raises
    ------
    {raises_if_empty}

    Notes
    -----
    Stergiou, Poppe & Kalliatakis, Refining activation downsampling with SoftPool, 2021.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.log({open}1.0, 3.0, 1.0, 1.0{close})
    >>> poolgrad.{name}(x, {two}).round(3)  # log(3) with the weight 3 / 4
    array({open}0.824, 0.   {close})
    """

    operator = "soft"


class _MixedPool(RealFunction, families.Mixed):
    """Mixture of maximum and mean of every window of {axes}.

    It is ``alpha * max + (1 - alpha) * mean``.

    {parameters}

    Returns
    -------
    {y}
        A window with a NaN gives NaN.

    Raises
    ------
    {raises_if_empty}

    Notes
    -----
    Among equal maxima, the first gets the gradient of the maximum. Lee, Gallagher & Tu,
    Generalizing pooling functions in convolutional neural networks: mixed, gated, and tree, 2016.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}1.0, 3.0, 2.0, 6.0{close})
    >>> poolgrad.{name}(x, {two})
    array({open}2.5, 5. {close})
    """

    operator = "mixed"


class _RangePool(RealFunction, families.Windows):
    """Largest minus smallest input of every window of {axes}: the morphological gradient.

    The result is high at edges and in textured regions, and 0 where all inputs are equal.

    {parameters}

    Returns
    -------
    {y}
        A window with a NaN gives NaN.

    Raises
    ------
    {raises_if_empty}

    Notes
    -----
    Among equal inputs, the first gets the gradient. Rivest, Soille & Beucher, Morphological
    gradients, 1993.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}1.0, 3.0, 2.0, 6.0{close})
    >>> poolgrad.{name}(x, {two})
    array({open}2., 4.{close})
    """

    operator = "range"


class _LipPool(RealFunction, families.Windows, families.Logits):
    """Mean of every window of {axes}, weighted with the softmax of logits.

    It is ``sum(exp(logits) * x) / sum(exp(logits))`` over the valid inputs of a window. Logits of 0
    give the average; logits equal to ``x`` give soft pooling.

    {parameters}

    Returns
    -------
    {y}
        A window with a NaN gives NaN.

    Raises
    ------
    {raises_if_empty}

    Notes
    -----
    Gao, Wang & Wu, LIP: Local importance-based pooling, 2019; their logits come from a network.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}1.0, 3.0, 2.0, 6.0{close})
    >>> poolgrad.{name}(x, np.zeros_like(x), {two})
    array({open}2., 4.{close})
    >>> poolgrad.{name}(x, np.log(x), {two})
    array({open}2.5, 5. {close})
    """

    operator = "lip"


avg_pool1d, avg_pool2d, avg_pool3d = mean_functions("avg_pool", _AvgPool)
__all__ = ["avg_pool1d", "avg_pool2d", "avg_pool3d"]
lp_pool1d, lp_pool2d, lp_pool3d = functions("lp_pool", _LPPool)
__all__ += ["lp_pool1d", "lp_pool2d", "lp_pool3d"]
log_mean_exp_pool1d, log_mean_exp_pool2d, log_mean_exp_pool3d = functions(
    "log_mean_exp_pool", _LogMeanExpPool
)
__all__ += ["log_mean_exp_pool1d", "log_mean_exp_pool2d", "log_mean_exp_pool3d"]
soft_pool1d, soft_pool2d, soft_pool3d = functions("soft_pool", _SoftPool)
__all__ += ["soft_pool1d", "soft_pool2d", "soft_pool3d"]
mixed_pool1d, mixed_pool2d, mixed_pool3d = functions("mixed_pool", _MixedPool)
__all__ += ["mixed_pool1d", "mixed_pool2d", "mixed_pool3d"]
range_pool1d, range_pool2d, range_pool3d = functions("range_pool", _RangePool)
__all__ += ["range_pool1d", "range_pool2d", "range_pool3d"]
lip_pool1d, lip_pool2d, lip_pool3d = functions("lip_pool", _LipPool)
__all__ += ["lip_pool1d", "lip_pool2d", "lip_pool3d"]
