"""Public functions whose windows follow from the output size: adaptive, global, fractional."""

from __future__ import annotations

from numbers import Real
from typing import Any

from poolgrad.functional.public import (
    in_all_dimensions,
    in_dimensions,
    pooled_sizes,
    selection,
    shape_of,
)
from poolgrad.interface import Averaging, NoOptions, PowerMean, Request, Routes, Ties
from poolgrad.operands import Samples
from poolgrad.windows import Ints, WindowSpec, adaptive, axis_names, brief, flag, fractional, whole


def _adaptive_max_pool(
    dims: int,
    x: Any,
    output_size: Any,
    return_indices: bool = False,
    *,
    ties: Ties = "first",
    routes: Routes = "bytes",
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Maximum of each of a given number of bins along {axes}.

    Parameters
    ----------
    {x}
    {bins}
    {return_indices}
    {ties}
    {routes}
    {channels_last}
    {out}

    Returns
    -------
    {y}
        A bin with a NaN gives NaN.
    {indices}

    Raises
    ------
    {raises}

    Notes
    -----
    The bins are those of ``torch.nn.functional.{name}``. He, Zhang, Ren & Sun, Spatial pyramid
    pooling in deep convolutional networks for visual recognition, 2014.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}1.0, 3.0, 2.0, 6.0{close})
    >>> poolgrad.{name}(x, {two})
    array({open}3., 6.{close})
    >>> poolgrad.{name}(np.zeros(({sixes})), 3).shape
    ({threes})
    """
    spec = adaptive(dims, output_size)
    indices = flag("return_indices", return_indices)
    last = flag("channels_last", channels_last)
    return Request("max", x, spec, selection(ties, routes), (), last, True, indices, out)


def _adaptive_avg_pool(
    dims: int, x: Any, output_size: Any, *, channels_last: bool = False, out: Any = None
) -> Request:
    """Mean of each of a given number of bins along {axes}.

    Parameters
    ----------
    {x}
    {bins}
    {channels_last}
    {out}

    Returns
    -------
    {y}
        {means}

    Raises
    ------
    {raises}

    Notes
    -----
    The bins are those of ``torch.nn.functional.{name}``. He, Zhang, Ren & Sun, Spatial pyramid
    pooling in deep convolutional networks for visual recognition, 2014.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}1.0, 3.0, 2.0, 6.0{close})
    >>> poolgrad.{name}(x, {two})
    array({open}2., 4.{close})
    >>> poolgrad.{name}(np.zeros(({sixes})), 3).shape
    ({threes})
    """
    last = flag("channels_last", channels_last)
    return Request("avg", x, adaptive(dims, output_size), Averaging(), (), last, True, False, out)


def _global_spec(x: Any, name: str, channels_last: bool) -> WindowSpec:
    rank = len(shape_of(x))
    if rank == 2 and not channels_last:  # one plane, without batch and channels
        return whole(2)
    if not 3 <= rank <= 5:
        plane = "" if channels_last else "two (height, width) or "
        raise ValueError(
            f"x must have {plane}three to five axes (batch, channels and those that are pooled) "
            f"for {name}, got shape {shape_of(x)}"
        )
    return whole(rank - 2)


def _global_max_pool(
    x: Any,
    keepdims: bool = False,
    return_indices: bool = False,
    *,
    ties: Ties = "first",
    routes: Routes = "bytes",
    channels_last: bool = False,
) -> Request:
    """Maximum over every axis but batch and channels.

    Parameters
    ----------
    {x}
    {keepdims}
    {return_indices}
    {ties}
    {routes}
    {channels_last}

    Returns
    -------
    {y}
        A NaN gives NaN.
    {indices}

    Raises
    ------
    {raises}

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> poolgrad.{name}(np.array([[[1.0, 3.0, 2.0, 6.0]]]))
    array([[6.]])
    >>> poolgrad.{name}(np.zeros((2, 3, 6, 6))).shape
    (2, 3)
    """
    last, keep = flag("channels_last", channels_last), flag("keepdims", keepdims)
    spec = _global_spec(x, "global_max_pool", last)
    indices = flag("return_indices", return_indices)
    return Request("max", x, spec, selection(ties, routes), (), last, keep, indices)


def _global_avg_pool(x: Any, keepdims: bool = False, *, channels_last: bool = False) -> Request:
    """Mean over every axis but batch and channels.

    Parameters
    ----------
    {x}
    {keepdims}
    {channels_last}

    Returns
    -------
    {y}
        {means}

    Raises
    ------
    {raises}

    Notes
    -----
    Lin, Chen & Yan, Network in network, 2014.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> poolgrad.{name}(np.array([[[1.0, 3.0, 2.0, 6.0]]]))
    array([[3.]])
    >>> poolgrad.{name}(np.zeros((2, 3, 6, 6))).shape
    (2, 3)
    """
    last, keep = flag("channels_last", channels_last), flag("keepdims", keepdims)
    spec = _global_spec(x, "global_avg_pool", last)
    return Request("avg", x, spec, Averaging(), (), last, keep)


def _global_lp_pool(
    x: Any,
    keepdims: bool = False,
    *,
    norm_type: Any = 2.0,
    mean: bool = False,
    channels_last: bool = False,
) -> Request:
    """p-norm over every axis but batch and channels: ``sum(|x|**p) ** (1 / p)``.

    Parameters
    ----------
    {x_real}
    {keepdims}
    norm_type : float or array, shape (C,)
        The power p, positive; ``inf`` gives the largest ``|x|``. Default: 2.
        {learned}
    mean : bool
        If True, compute the mean of the powers instead of their sum: GeM pooling. Default: False.
    {channels_last}

    Returns
    -------
    {y}
        A NaN gives NaN.

    Raises
    ------
    {raises}

    Notes
    -----
    The operator is ONNX GlobalLpPool-22. With ``mean=True`` and a learned p it is GeM pooling:
    Radenovic, Tolias & Chum, Fine-tuning CNN image retrieval with no human annotation, 2018.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> poolgrad.{name}(np.array([[[3.0, -4.0]]]))
    array([[5.]])
    """
    options = PowerMean(flag("mean", mean))
    last, keep = flag("channels_last", channels_last), flag("keepdims", keepdims)
    spec = _global_spec(x, "global_lp_pool", last)
    return Request("lp", x, spec, options, (norm_type,), last, keep)


def _global_lse_pool(
    x: Any, keepdims: bool = False, *, r: Any = 1.0, channels_last: bool = False
) -> Request:
    """Log-mean-exp over every axis but batch and channels: ``log(mean(exp(r * x))) / r``.

    Parameters
    ----------
    {x_real}
    {keepdims}
    r : float or array, shape (C,)
        Sharpness: for larger r, large inputs dominate more. Finite, not 0; default: 1.
        {learned}
    {channels_last}

    Returns
    -------
    {y}
        A NaN gives NaN.

    Raises
    ------
    {raises}

    Notes
    -----
    Pinheiro & Collobert, From image-level to pixel-level labeling with convolutional networks,
    2015.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> np.exp(poolgrad.{name}(np.log([[[1.0, 3.0]]])))
    array([[2.]])
    """
    last, keep = flag("channels_last", channels_last), flag("keepdims", keepdims)
    spec = _global_spec(x, "global_lse_pool", last)
    return Request("lse", x, spec, NoOptions(), (r,), last, keep)


def _ratios(dims: int, output_ratio: Any) -> tuple[float, ...]:
    given = tuple(output_ratio) if isinstance(output_ratio, list | tuple) else (output_ratio,)
    if any(isinstance(r, bool) or not isinstance(r, Real) for r in given):
        raise TypeError(
            f"output_ratio must be a number or {dims} of them, got {brief(output_ratio)}"
        )
    if len(given) not in (1, dims):
        raise ValueError(
            f"output_ratio must be a number or {dims} of them, got {brief(output_ratio)}"
        )
    if not all(0 < r < 1 for r in given):
        raise ValueError(f"output_ratio must lie between 0 and 1, got {brief(output_ratio)}")
    return tuple(float(r) for r in given) * (dims // len(given))


def _sizes_of_ratio(sizes: tuple[int, ...], output_ratio: Any) -> tuple[int, ...]:
    """Return the output sizes that `output_ratio` gives."""
    dims = len(sizes)
    outputs = tuple(int(n * r) for n, r in zip(sizes, _ratios(dims, output_ratio), strict=True))
    for name, size, n in zip(axis_names(dims), sizes, outputs, strict=True):
        if n < 1:
            raise ValueError(
                f"output_ratio {brief(output_ratio)} gives no output for {size} inputs along the "
                f"{name}"
            )
    return outputs


def _fractional_max_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    output_size: Ints | None = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Any = None,
    *,
    generator: Any = None,
    ties: Ties = "first",
    routes: Routes = "bytes",
    channels_last: bool = False,
) -> Request:
    """Maximum of windows at random, almost equal distances along {axes}.

    Along an axis of `size` inputs, window o begins at ``floor((o + s) * step) - floor(s * step)``,
    where ``step = (size - kernel_size) / (output_size - 1)`` and s is random in [0, 1). The last
    window begins at ``size - kernel_size``.

    Parameters
    ----------
    {x}
    kernel_size : int or sequence of {count} int
        Number of taps of a window along each axis.
    output_size : int or sequence of {count} int, optional
        Number of outputs along each axis; at most ``size - kernel_size + 1``.
    output_ratio : float or sequence of {count} float, optional
        Instead of `output_size`: there are ``int(size * output_ratio)`` outputs. Between 0 and 1.
    {return_indices}
    _random_samples : array, shape (N, C, {dims}), optional
        Instead of a random draw: s for each plane and pooled axis, in PyTorch's order of axes (for
        two axes the width comes first, for three axes the depth).
    generator : None, int, numpy.random.Generator, torch.Generator or key of jax.random
        Source of randomness. None (default; not for JAX): a new draw in every call.
    {ties}
    {routes}
    {channels_last}

    Returns
    -------
    {y}
        A window with a NaN gives NaN.
    {indices}

    Raises
    ------
    {raises}

    Notes
    -----
    Graham, Fractional max-pooling, 2014. The windows are those of
    ``torch.nn.functional.{name}``, with the same samples.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.zeros(({sixes}))
    >>> poolgrad.{name}(x, 2, output_size=4).shape
    ({fours})
    >>> poolgrad.{name}(x, 2, output_ratio=0.5, generator=0).shape
    ({threes})
    """
    indices = flag("return_indices", return_indices)
    last = flag("channels_last", channels_last)
    if (output_size is None) == (output_ratio is None):
        raise ValueError(
            "exactly one of output_size and output_ratio must be set, "
            f"got {brief(output_size)} and {brief(output_ratio)}"
        )
    if output_ratio is not None:
        output_size = _sizes_of_ratio(pooled_sizes(x, dims, last), output_ratio)
    spec = fractional(dims, kernel_size, output_size)
    samples = Samples(_random_samples, generator)
    options = selection(ties, routes)
    return Request("fractional_max", x, spec, options, (samples,), last, True, indices)


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = in_dimensions(_adaptive_max_pool)
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = in_dimensions(_adaptive_avg_pool)
global_max_pool = in_all_dimensions(_global_max_pool)
global_avg_pool = in_all_dimensions(_global_avg_pool)
global_lp_pool = in_all_dimensions(_global_lp_pool)
global_lse_pool = in_all_dimensions(_global_lse_pool)
fractional_max_pool2d, fractional_max_pool3d = in_dimensions(_fractional_max_pool, (2, 3))
