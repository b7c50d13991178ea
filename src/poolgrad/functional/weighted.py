"""Public functions of weighted reductions, in which every input of a window has a weight."""

from __future__ import annotations

from typing import Any

from poolgrad.functional.public import divisor, in_dimensions
from poolgrad.interface import Averaging, Mixing, NoOptions, PowerMean, Request
from poolgrad.windows import Ints, Padding, fixed, flag


def _avg_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: Ints = 1,
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Mean of every window of {axes}.

    Parameters
    ----------
    {x}
    {windows}
    count_include_pad : bool
        If True (default), padding counts as zeros; if False, only valid inputs are averaged.
    divisor_override : int, optional
        Divisor of every sum, in place of the number of inputs; an integer other than 0.
    {channels_last}
    {out}

    Returns
    -------
    {y}
        {means}

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
    """
    spec = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    counted = flag("count_include_pad", count_include_pad)
    options = Averaging(counted, divisor(divisor_override))
    last = flag("channels_last", channels_last)
    return Request("avg", x, spec, options, (), last, True, False, out)


def _lp_pool(
    dims: int,
    x: Any,
    norm_type: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    ceil_mode: bool = False,
    *,
    padding: Padding = 0,
    dilation: Ints = 1,
    mean: bool = False,
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """p-norm of every window of {axes}: ``sum(|x|**p) ** (1 / p)``.

    Parameters
    ----------
    {x_real}
    norm_type : float or array, shape (C,)
        The power p, positive; ``inf`` gives the largest ``|x|``.
        {learned}
    {windows}
    mean : bool
        If True, compute the mean of the powers of valid inputs instead of their sum: the power
        mean, which is the average for p = 1 (and x >= 0) and the maximum for p = inf. Default:
        False.
    {channels_last}
    {out}

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
    spec = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    options = PowerMean(flag("mean", mean))
    last = flag("channels_last", channels_last)
    return Request("lp", x, spec, options, (norm_type,), last, True, False, out)


def _lse_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    r: Any = 1.0,
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Log-mean-exp of every window of {axes}: ``log(mean(exp(r * x))) / r``.

    The result is near the average for r near 0, near the maximum for large r, and near the minimum
    for large negative r. Only valid inputs are averaged. Large values do not overflow.

    Parameters
    ----------
    {x_real}
    {windows}
    r : float or array, shape (C,)
        Sharpness: for larger r, large inputs dominate more. Finite, not 0; default: 1.
        {learned}
    {channels_last}
    {out}

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
    spec = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    last = flag("channels_last", channels_last)
    return Request("lse", x, spec, NoOptions(), (r,), last, True, False, out)


def _soft_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Softmax-weighted mean of every window of {axes}: ``sum(exp(x) * x) / sum(exp(x))``.

    Only valid inputs have a weight. Large values do not overflow.

    Parameters
    ----------
    {x_real}
    {windows}
    {channels_last}
    {out}

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
    spec = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    last = flag("channels_last", channels_last)
    return Request("soft", x, spec, NoOptions(), (), last, True, False, out)


def _mixed_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    *,
    alpha: Any = 0.5,
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Mixture of maximum and mean of every window of {axes}.

    It is ``alpha * max + (1 - alpha) * mean``.

    Parameters
    ----------
    {x_real}
    {windows}
    count_include_pad : bool
        If True (default), padding counts as zeros in the mean. It is never the maximum.
    alpha : float or array, shape (C,)
        The weight of the maximum, any finite number; default: 0.5.
        {learned}
    {channels_last}
    {out}

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
    spec = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    options = Mixing(flag("count_include_pad", count_include_pad))
    last = flag("channels_last", channels_last)
    return Request("mixed", x, spec, options, (alpha,), last, True, False, out)


def _range_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    channels_last: bool = False,
) -> Request:
    """Largest minus smallest input of every window of {axes}: the morphological gradient.

    The result is high at edges and in textured regions, and 0 where all inputs are equal.

    Parameters
    ----------
    {x_real}
    {windows}
    {channels_last}

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
    spec = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    return Request("range", x, spec, NoOptions(), (), flag("channels_last", channels_last))


def _lip_pool(
    dims: int,
    x: Any,
    logits: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    channels_last: bool = False,
) -> Request:
    """Mean of every window of {axes}, weighted with the softmax of logits.

    It is ``sum(exp(logits) * x) / sum(exp(logits))`` over the valid inputs of a window. Logits of 0
    give the average; logits equal to ``x`` give soft pooling.

    Parameters
    ----------
    {x_real}
    logits : array, shape of `x`
        The logarithm of the weight of each input, of any floating dtype. It has a gradient, too.
        Weights smaller than ``2**-100`` (float64: ``2**-1000``) times the largest weight of their
        plane are replaced by that value.
    {windows}
    {channels_last}

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
    spec = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    return Request("lip", x, spec, NoOptions(), (logits,), flag("channels_last", channels_last))


avg_pool1d, avg_pool2d, avg_pool3d = in_dimensions(_avg_pool)
lp_pool1d, lp_pool2d, lp_pool3d = in_dimensions(_lp_pool)
lse_pool1d, lse_pool2d, lse_pool3d = in_dimensions(_lse_pool)
soft_pool1d, soft_pool2d, soft_pool3d = in_dimensions(_soft_pool)
mixed_pool1d, mixed_pool2d, mixed_pool3d = in_dimensions(_mixed_pool)
range_pool1d, range_pool2d, range_pool3d = in_dimensions(_range_pool)
lip_pool1d, lip_pool2d, lip_pool3d = in_dimensions(_lip_pool)
