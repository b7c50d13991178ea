"""Public functions of selecting operators, in which one input of each window wins."""

from __future__ import annotations

from typing import Any

from poolgrad.functional.public import checked_string, in_dimensions, selection
from poolgrad.interface import NoOptions, Request, Routes, Routing, Ties
from poolgrad.windows import Ints, Padding, fixed, flag


def _max_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: Ties = "first",
    routes: Routes = "bytes",
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Maximum of every window of {axes}.

    Parameters
    ----------
    {x}
    {windows}
    {return_indices}
    {ties}
    {routes}
    {channels_last}
    {out}

    Returns
    -------
    {y}
        Padding never wins. A window without any input gives -inf (for integers, the lowest
        integer). A window with a NaN gives NaN.
    {indices}

    Raises
    ------
    {raises}

    Notes
    -----
    The rules for sizes, ties and NaN are those of ``torch.nn.functional.{name}``, without its limit
    on padding. Ranzato, Huang, Boureau & LeCun, Unsupervised learning of invariant feature
    hierarchies with applications to object recognition, 2007.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}1.0, 3.0, 2.0, 6.0{close})
    >>> poolgrad.{name}(x, {two})
    array({open}3., 6.{close})
    >>> poolgrad.{name}(np.zeros(({sixes})), 2).shape
    ({threes})
    """
    spec = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    indices = flag("return_indices", return_indices)
    last = flag("channels_last", channels_last)
    return Request("max", x, spec, selection(ties, routes), (), last, True, indices, out)


def _relu_max_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: Ties = "first",
    routes: Routes = "bytes",
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Maximum of the ReLU of every window of {axes}, in one pass.

    It equals `max_pool{dims}d` of ``max(x, 0)``, but that array is neither computed nor stored.

    Parameters
    ----------
    {x}
    {windows}
    {return_indices}
    {ties}
    {routes}
    {channels_last}
    {out}

    Returns
    -------
    {y}
        The maximum, or 0 where no input is positive; then no input gets a gradient. A window with
        a NaN gives NaN.
    {indices} Also -1 for a window without a positive input.

    Raises
    ------
    {raises}

    Notes
    -----
    The rules for sizes, ties and NaN are those of PyTorch's ``max_pool{dims}d``; the derivative at
    0 is 0, as for its ``relu``. A window without any input gives 0, whereas PyTorch's two functions
    give -inf.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}1.0, 3.0, -2.0, -6.0{close})
    >>> poolgrad.{name}(x, {two})
    array({open}3., 0.{close})
    """
    spec = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    indices = flag("return_indices", return_indices)
    last = flag("channels_last", channels_last)
    return Request("relu_max", x, spec, selection(ties, routes), (), last, True, indices, out)


def _min_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: Ties = "first",
    routes: Routes = "bytes",
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Minimum of every window of {axes}.

    Parameters
    ----------
    {x}
    {windows}
    {return_indices}
    {ties}
    {routes}
    {channels_last}
    {out}

    Returns
    -------
    {y}
        Padding never wins. A window without any input gives +inf (for integers, the highest
        integer). A window with a NaN gives NaN.
    {indices}

    Raises
    ------
    {raises}

    Notes
    -----
    The rules for sizes, ties and NaN are those of PyTorch's ``max_pool{dims}d``. In image
    processing, the minimum is the erosion by a flat rectangle (Serra, Image analysis and
    mathematical morphology, 1982).

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}1.0, 3.0, 2.0, 6.0{close})
    >>> poolgrad.{name}(x, {two})
    array({open}1., 2.{close})
    """
    spec = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    indices = flag("return_indices", return_indices)
    last = flag("channels_last", channels_last)
    return Request("min", x, spec, selection(ties, routes), (), last, True, indices, out)


def _median_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: Ties = "first",
    routes: Routes = "bytes",
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Median of every window of {axes}.

    The median of an even number of inputs is the lower of the two in the middle, so that it is
    always an input. Padding does not count.

    Parameters
    ----------
    {x}
    {windows}
    {return_indices}
    {ties}
    {routes}
    {channels_last}
    {out}

    Returns
    -------
    {y}
        A window with a NaN gives NaN.
    {indices}

    Raises
    ------
    {raises_if_empty}

    Notes
    -----
    Inputs that equal the median are tied winners (see `ties`). The lower median is that of
    ``torch.median``.
    Huang, Yang & Tang, A fast two-dimensional median filtering algorithm, 1979.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}4.0, 1.0, 3.0, 2.0, 2.0, 9.0{close})
    >>> poolgrad.{name}(x, {three})
    array({open}3., 2.{close})
    """
    spec = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    indices = flag("return_indices", return_indices)
    last = flag("channels_last", channels_last)
    return Request("median", x, spec, selection(ties, routes), (), last, True, indices, out)


def _stochastic_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    training: bool = True,
    generator: Any = None,
    routes: Routes = "bytes",
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Random input of every window of {axes}, or its expected value.

    With ``a = max(x, 0)``, input j of a window wins with probability ``a_j / sum(a)``. If no input
    is positive, all inputs are equally likely. With ``training=False``, the result is the expected
    value, ``sum(a * x) / sum(a)``.

    Parameters
    ----------
    {x_real}
        If `training`, every value must be finite.
    {windows}
    {return_indices}
    training : bool
        If True (default), draw an input; if False, compute the expected value, which has no
        indices.
    generator : None, int, numpy.random.Generator, torch.Generator or key of jax.random
        Source of randomness. The same seed gives the same winners for every memory format and
        number of threads. None (default; not for JAX): a new draw in every call. Ignored if not
        `training`.
    {routes}
    {channels_last}
    {out}

    Returns
    -------
    {y}
        The winner gets the gradient. The gradient of the expected value includes the weights.
    {indices}

    Raises
    ------
    {raises_if_empty}
        Also if `training` and a value of `x` is not finite.

    Notes
    -----
    Zeiler & Fergus, Stochastic pooling for regularization of deep convolutional neural networks,
    2013, where x is not negative. Negative inputs have probability 0.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}0.0, 3.0, 2.0, -1.0{close})
    >>> poolgrad.{name}(x, {two}, generator=0)  # one positive input per window
    array({open}3., 2.{close})
    >>> x = np.array({open}1.0, 3.0, 2.0, 6.0{close})
    >>> poolgrad.{name}(x, {two}, training=False)
    array({open}2.5, 5. {close})
    """
    spec = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    indices = flag("return_indices", return_indices)
    last = flag("channels_last", channels_last)
    kept = Routing(checked_string("routes", routes))
    if flag("training", training):
        return Request("stochastic", x, spec, kept, (generator,), last, True, indices, out)
    if indices:
        raise ValueError("return_indices=True needs training=True: a mean has no winners")
    return Request("expected", x, spec, NoOptions(), (), last, True, False, out)


max_pool1d, max_pool2d, max_pool3d = in_dimensions(_max_pool)
relu_max_pool1d, relu_max_pool2d, relu_max_pool3d = in_dimensions(_relu_max_pool)
min_pool1d, min_pool2d, min_pool3d = in_dimensions(_min_pool)
median_pool1d, median_pool2d, median_pool3d = in_dimensions(_median_pool)
stochastic_pool1d, stochastic_pool2d, stochastic_pool3d = in_dimensions(_stochastic_pool)
