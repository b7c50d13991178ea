"""Declares the functions of selecting operators, in which one input of each window wins."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from typing import Any, Generic

from poolgrad.functional import families
from poolgrad.functional.declare import Flag, Function, No, RealFunction, Yes, selecting_functions
from poolgrad.interface import NoOptions, Request
from poolgrad.windows import Ints, flag


class _Selecting(Function, families.Selecting, Generic[Flag], kw_only=True):
    """Declares a function of windows of which one input wins."""

    return_indices: Flag = False  # type: ignore[assignment]


class _MaxPool(_Selecting[Flag]):
    """Maximum of every window of {axes}.

    {parameters}

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

    operator = "max"
    # In this order, as in ``torch.nn.functional``.
    dilation: Ints = 1
    ceil_mode: bool = False
    return_indices: Flag = False  # type: ignore[assignment]


class _ReLUMaxPool(_Selecting[Flag]):
    """Maximum of the ReLU of every window of {axes}, in one pass.

    It equals `max_pool{dims}d` of ``max(x, 0)``, but that array is neither computed nor stored.

    {parameters}

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

    operator = "relu_max"


class _MinPool(_Selecting[Flag]):
    """Minimum of every window of {axes}.

    {parameters}

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

    operator = "min"


class _MedianPool(_Selecting[Flag]):
    """Median of every window of {axes}.

    The median of an even number of inputs is the lower of the two in the middle, so that it is
    always an input. Padding does not count.

    {parameters}

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

    operator = "median"


class _StochasticPool(RealFunction, families.Drawn, families.Stochastic, Generic[Flag]):
    """Random input of every window of {axes}, or its expected value.

    With ``a = max(x, 0)``, input j of a window wins with probability ``a_j / sum(a)``. If no input
    is positive, all inputs are equally likely. With ``training=False``, the result is the expected
    value, ``sum(a * x) / sum(a)``.

    {parameters}

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

    operator = "stochastic"
    _: KW_ONLY
    return_indices: Flag = False  # type: ignore[assignment]

    def request(self, x: Any, dims: int) -> Request:
        """Return the request of a draw or, without training, of the expected value."""
        request = super().request(x, dims)
        if flag("training", self.training):
            return request
        if request.return_indices:
            raise ValueError("return_indices=True needs training=True: a mean has no winners")
        return replace(request, operator="expected", options=NoOptions(), operands=())


max_pool1d, max_pool2d, max_pool3d = selecting_functions(
    "max_pool", _MaxPool[No], _MaxPool[Yes], _MaxPool[bool]
)
__all__ = ["max_pool1d", "max_pool2d", "max_pool3d"]
relu_max_pool1d, relu_max_pool2d, relu_max_pool3d = selecting_functions(
    "relu_max_pool", _ReLUMaxPool[No], _ReLUMaxPool[Yes], _ReLUMaxPool[bool]
)
__all__ += ["relu_max_pool1d", "relu_max_pool2d", "relu_max_pool3d"]
min_pool1d, min_pool2d, min_pool3d = selecting_functions(
    "min_pool", _MinPool[No], _MinPool[Yes], _MinPool[bool]
)
__all__ += ["min_pool1d", "min_pool2d", "min_pool3d"]
median_pool1d, median_pool2d, median_pool3d = selecting_functions(
    "median_pool", _MedianPool[No], _MedianPool[Yes], _MedianPool[bool]
)
__all__ += ["median_pool1d", "median_pool2d", "median_pool3d"]
stochastic_pool1d, stochastic_pool2d, stochastic_pool3d = selecting_functions(
    "stochastic_pool", _StochasticPool[No], _StochasticPool[Yes], _StochasticPool[bool]
)
__all__ += ["stochastic_pool1d", "stochastic_pool2d", "stochastic_pool3d"]
