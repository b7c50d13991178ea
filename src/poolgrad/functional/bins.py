"""Declares functions whose windows follow from the output size: adaptive, global, fractional."""

from __future__ import annotations

from numbers import Real
from typing import Any, Generic

from poolgrad.functional import families
from poolgrad.functional.declare import (
    Flag,
    Function,
    No,
    RealFunction,
    Yes,
    functions,
    mean_functions,
    selecting_functions,
)
from poolgrad.functional.inputs import pooled_sizes, shape_of
from poolgrad.operands import Samples
from poolgrad.windows import WindowSpec, adaptive, axis_names, brief, fractional, whole


class _Adaptive(Function, families.Adaptive):
    """Declares a function of a given number of bins."""

    def windows(self, x: Any, dims: int, channels_last: bool) -> WindowSpec:
        """Return the bins."""
        return adaptive(dims, self.output_size)


class _AdaptiveMaxPool(_Adaptive, families.AdaptiveSelecting, Generic[Flag]):
    """Maximum of each of a given number of bins along {axes}.

    {parameters}

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

    operator = "max"
    return_indices: Flag = False  # type: ignore[assignment]


class _AdaptiveAvgPool(_Adaptive):
    """Mean of each of a given number of bins along {axes}.

    {parameters}

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

    operator = "avg"


class _Global(Function, families.Global):
    """Declares a function that pools every axis but batch and channels."""

    def windows(self, x: Any, dims: int, channels_last: bool) -> WindowSpec:
        """Return a window over all pooled axes."""
        if dims:
            return whole(dims)
        rank = len(shape_of(x))
        if not (3 <= rank <= 5 or (rank == 2 and not channels_last)):
            plane = "" if channels_last else "two (height, width) or "
            raise ValueError(
                f"x must have {plane}three to five axes (batch, channels and those that are "
                f"pooled) for global_{self.operator}_pool, got shape {shape_of(x)}"
            )
        return whole(rank - 2 or 2)  # an array of two axes is one plane


class _GlobalMaxPool(_Global, families.GlobalSelecting, Generic[Flag], kw_only=True):
    """Maximum over {axes}.

    {parameters}

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

    operator = "max"
    return_indices: Flag = False  # type: ignore[assignment]


class _GlobalAvgPool(_Global):
    """Mean over {axes}.

    {parameters}

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

    operator = "avg"


class _GlobalLPPool(RealFunction, _Global, families.GlobalPower):
    """p-norm over {axes}: ``sum(|x|**p) ** (1 / p)``.

    {parameters}

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

    operator = "lp"


class _GlobalLogMeanExpPool(RealFunction, _Global, families.GlobalLogMeanExp):
    """Log-mean-exp over {axes}: ``log(mean(exp(r * x))) / r``.

    {parameters}

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

    operator = "log_mean_exp"


def _sizes_of_ratio(sizes: tuple[int, ...], output_ratio: Any) -> tuple[int, ...]:
    """Return the output sizes that `output_ratio` gives, checked."""
    dims, came = len(sizes), brief(output_ratio)
    given = [*output_ratio] if isinstance(output_ratio, list | tuple) else [output_ratio]
    words = f"output_ratio must be a number or {dims} of them, got {came}"
    if any(isinstance(r, bool) or not isinstance(r, Real) for r in given):
        raise TypeError(words)
    if len(given) not in (1, dims):
        raise ValueError(words)
    if not all(0 < r < 1 for r in given):
        raise ValueError(f"output_ratio must lie between 0 and 1, got {came}")
    ratios = map(float, given * (dims // len(given)))
    outputs = tuple(int(n * r) for n, r in zip(sizes, ratios, strict=True))
    for name, size, n in zip(axis_names(dims), sizes, outputs, strict=True):
        if n < 1:
            raise ValueError(
                f"output_ratio {came} gives no output for {size} inputs along the {name}"
            )
    return outputs


class _FractionalMaxPool(Function, families.RandomSamples, families.Fractional, Generic[Flag]):
    """Maximum of windows at random, almost equal distances along {axes}.

    Along an axis of `size` inputs, window o begins at ``floor((o + s) * step) - floor(s * step)``,
    where ``step = (size - kernel_size) / (output_size - 1)`` and s is random in [0, 1). The last
    window begins at ``size - kernel_size``.

    {parameters}

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

    operator = "fractional_max"
    return_indices: Flag = False  # type: ignore[assignment]

    def windows(self, x: Any, dims: int, channels_last: bool) -> WindowSpec:
        """Return the windows, whose number `output_size` or `output_ratio` determines."""
        output_size = self.output_size
        if (output_size is None) == (self.output_ratio is None):
            raise ValueError(
                "exactly one of output_size and output_ratio must be set, "
                f"got {brief(output_size)} and {brief(self.output_ratio)}"
            )
        if self.output_ratio is not None:
            output_size = _sizes_of_ratio(pooled_sizes(x, dims, channels_last), self.output_ratio)
        return fractional(dims, self.kernel_size, output_size)

    def operands(self) -> tuple[Any, ...]:
        """Return the random samples, or their source."""
        return (Samples(self._random_samples, self.generator),)


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = selecting_functions(
    "adaptive_max_pool", _AdaptiveMaxPool[No], _AdaptiveMaxPool[Yes], _AdaptiveMaxPool[bool]
)
__all__ = ["adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"]
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = mean_functions(
    "adaptive_avg_pool", _AdaptiveAvgPool
)
__all__ += ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"]
(global_max_pool,) = selecting_functions(
    "global_max_pool", _GlobalMaxPool[No], _GlobalMaxPool[Yes], _GlobalMaxPool[bool], (0,)
)
__all__ += ["global_max_pool"]
(global_avg_pool,) = mean_functions("global_avg_pool", _GlobalAvgPool, (0,))
__all__ += ["global_avg_pool"]
(global_lp_pool,) = functions("global_lp_pool", _GlobalLPPool, (0,))
__all__ += ["global_lp_pool"]
(global_log_mean_exp_pool,) = functions("global_log_mean_exp_pool", _GlobalLogMeanExpPool, (0,))
__all__ += ["global_log_mean_exp_pool"]
fractional_max_pool2d, fractional_max_pool3d = selecting_functions(
    "fractional_max_pool",
    _FractionalMaxPool[No],
    _FractionalMaxPool[Yes],
    _FractionalMaxPool[bool],
    (2, 3),
)
__all__ += ["fractional_max_pool2d", "fractional_max_pool3d"]
