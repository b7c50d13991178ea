"""Poolings where every input of a window has a part in the output: means of many kinds."""

from __future__ import annotations

from typing import Any

from poolgrad.contract import Averaging, Mixing, NoOptions, PowerMean, Request
from poolgrad.functional.public import divisor, in_dimensions
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
        Whether padding counts as zeros; else only real inputs are averaged.
    divisor_override : int, optional
        Divide every sum by this number instead.
    {channels_last}
    {out}

    Returns
    -------
    {y}
        {means}

    Raises
    ------
    {raises}
        Also if ``count_include_pad=False`` leaves a window with nothing to average.

    Notes
    -----
    The rules are those of ``torch.nn.functional.{name}``, without its limit on padding;
    dilation as in ONNX AveragePool-19.

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
    """Norm of every window of {axes}: ``sum(|x|**p) ** (1 / p)``.

    Parameters
    ----------
    {x_real}
    norm_type : float or array, shape (C,)
        The power p, above 0; ``inf`` gives the largest ``|x|``.
        {learned}
    {windows}
    mean : bool
        Whether to take the mean in place of the sum, over the real inputs: the power mean. It goes
        from the average (p = 1, of x >= 0) to the maximum (p = inf).
    {channels_last}
    {out}

    Returns
    -------
    {y}
        A window with a NaN gives NaN, one without any input 0.

    Raises
    ------
    {raises}
        Also if padding leaves a mean without any input.

    Notes
    -----
    ONNX LpPool-22. ``torch.nn.functional.lp_pool{dims}d`` gives the same where x >= 0 or p is even
    and no window is cut off; it has no absolute value. With ``mean=True`` and a learned p: GeM,
    Radenovic, Tolias & Chum, Fine-tuning CNN image retrieval with no human annotation, 2018.

    Where x is 0 its gradient is 0, and of an all-zero window that of p too.

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

    It lies between the average (r near 0) and the maximum (r large); the minimum for negative r.
    Only real inputs are averaged. Large values do not overflow.

    Parameters
    ----------
    {x_real}
    {windows}
    r : float or array, shape (C,)
        How sharply the largest inputs dominate; finite, not 0.
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

    Only real inputs have a weight. Large values do not overflow.

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
    """Mix of maximum and mean of every window of {axes}.

    It is ``alpha * max + (1 - alpha) * mean``.

    Parameters
    ----------
    {x_real}
    {windows}
    count_include_pad : bool
        Whether padding counts as zeros in the mean; it never is the maximum.
    alpha : float or array, shape (C,)
        The part of the maximum; any finite number.
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
    Of equal winners the first gets the gradient of the maximum. Lee, Gallagher & Tu, Generalizing
    pooling functions in convolutional neural networks: mixed, gated, and tree, 2016.

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


avg_pool1d, avg_pool2d, avg_pool3d = in_dimensions(_avg_pool)
lp_pool1d, lp_pool2d, lp_pool3d = in_dimensions(_lp_pool)
lse_pool1d, lse_pool2d, lse_pool3d = in_dimensions(_lse_pool)
soft_pool1d, soft_pool2d, soft_pool3d = in_dimensions(_soft_pool)
mixed_pool1d, mixed_pool2d, mixed_pool3d = in_dimensions(_mixed_pool)
