"""Declares the arguments of each family of functions and modules, once, as dataclasses.

The declarations of public functions (`selecting`, `weighted`, `bins`, `unpool`) and the modules of
`poolgrad.torch` and `poolgrad.jax.nn` take their arguments from these classes. Signatures, types
and the descriptions of arguments in docstrings follow from the fields and docstrings here. In a
docstring, ``{names}`` stand for the words of `docstrings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from inspect import Signature, signature
from typing import Any, dataclass_transform

from poolgrad.interface import Routes, Ties
from poolgrad.windows import Ints, Padding


@dataclass_transform(frozen_default=True)
class Arguments:
    """Base class. Every subclass is a frozen dataclass, and its fields are arguments.

    The fields of the last base class come first: those of ``B`` before those of ``A`` in
    ``class C(A, B)``. A field that a subclass declares again keeps its place.
    """

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=kw_only)(cls)


class Axes(Arguments, kw_only=True):
    """Which axes are pooled.

    Parameters
    ----------
    channels_last : bool
        If True, {pooled_before_last}. Default: False.{trap}
    """

    channels_last: bool = False


def signature_of(arguments: Any) -> Signature:
    """Return the signature of a class of arguments; those that most classes have come last."""
    last = ("ties", "routes", "channels_last", "out", "dim")
    known = signature(arguments).parameters.values()
    found = [p.replace(annotation="bool") if p.annotation == "Flag" else p for p in known]
    return Signature(sorted(found, key=lambda p: last.index(p.name) if p.name in last else -1))


class Windows(Axes):
    """Windows of a fixed size.

    Parameters
    ----------
    kernel_size : int or sequence of {count} int
        Number of taps of a window along each axis.
    stride : int or sequence of {count} int, optional
        Distance between neighbouring windows; default: `kernel_size`.
    padding : int, sequence of int, sequence of (low, high), "valid" or "same"
        Padding at both ends of each axis, of any size; "same" gives ``ceil(size / stride)``
        outputs, with the odd element of padding at the high end. Default: 0.
    dilation : int or sequence of {count} int
        Distance between neighbouring taps of a window; default: 1.
    ceil_mode : bool
        The number of outputs along an axis is
        ``floor((size + low + high - dilation * (kernel_size - 1) - 1) / stride) + 1``. If True,
        ceil replaces floor, so that a last, partial window is kept if it begins in the input or its
        low padding. Default: False.
    """

    kernel_size: Ints
    stride: Ints | None = None
    padding: Padding = 0
    _: KW_ONLY
    dilation: Ints = 1
    ceil_mode: bool = False


class Routed(Arguments, kw_only=True):
    """Whether the winners are returned, and how they are stored.

    Parameters
    ----------
    return_indices : bool
        If True, return the positions of the winners, too. Default: False.
    routes : "bytes" or "packed"
        Storage of routes for the backward pass: one byte or more for each output ("bytes", the
        default), or two or four bits for windows of at most 4 or 16 taps (3 or 15 if a window can
        be without a winner). Results do not depend on it.
    """

    return_indices: bool = False
    routes: Routes = "bytes"


class Winners(Routed, kw_only=True):
    """Which of several equal winners get the gradient.

    Parameters
    ----------
    ties : "first", "split" or "zero"
        If several inputs of a window equal the output, the first in row-major order gets the
        gradient ("first", the default), all get equal shares ("split"), or none gets it ("zero").
    """

    ties: Ties = "first"


class Selecting(Winners, Windows):
    """One input of each window wins."""


class MaxModule(Axes):
    """The arguments of `Selecting` in the order of ``torch.nn.MaxPool2d``."""

    kernel_size: Ints
    stride: Ints | None = None
    padding: Padding = 0
    dilation: Ints = 1
    return_indices: bool = False
    ceil_mode: bool = False
    _: KW_ONLY
    ties: Ties = "first"
    routes: Routes = "bytes"


class Stochastic(Routed, Windows, kw_only=True):
    """One input of each window is drawn.

    Parameters
    ----------
    training : bool
        If True (default), draw an input; if False, compute the expected value, which has no
        indices and needs no random numbers.
    """

    training: bool = True


class Drawn(Arguments, kw_only=True):
    """A source of random numbers.

    Parameters
    ----------
    generator : None, int, numpy.random.Generator, torch.Generator or key of jax.random
        Source of randomness. The same seed gives the same result for every memory format and number
        of threads. None (default; not for JAX): a new draw in every call.
    """

    generator: Any = None


class Average(Windows):
    """The mean of each window.

    Parameters
    ----------
    count_include_pad : bool
        If True (default), padding counts as zeros; if False, only valid inputs are averaged.
    divisor_override : int, optional
        Divisor of every sum, in place of the number of inputs; an integer other than 0.
    quantization : (scale, zero_point) or ((scale, zero_point), (scale, zero_point)), optional
        An int8 or uint8 `x` stands for the real numbers ``scale * (x - zero_point)``, and so does
        the output, which then has the dtype of `x`. Two pairs: the quantisation of `x` and that of
        the output; one pair: that of both. Default: the integers are numbers.
    """

    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None
    _: KW_ONLY
    quantization: Sequence[Any] | None = None


class Norm(Arguments):
    """The power of a norm.

    Parameters
    ----------
    norm_type : float or array, shape (C,)
        The power p, positive; ``inf`` gives the largest ``|x|``.
        {learned}
    """

    norm_type: Any


class Power(Windows, Norm):
    """The p-norm or the power mean of each window.

    Parameters
    ----------
    mean : bool
        If True, compute the mean of the powers of valid inputs instead of their sum: the power
        mean, which is the average for p = 1 (and x >= 0) and the maximum for p = inf. Default:
        False.
    """

    ceil_mode: bool = False
    _: KW_ONLY
    padding: Padding = 0
    mean: bool = False


class LogMeanExp(Windows, kw_only=True):
    """The log-mean-exp of each window.

    Parameters
    ----------
    r : float or array, shape (C,)
        Sharpness: for larger r, large inputs dominate more. Finite, not 0; default: 1.
        {learned}
    """

    r: Any = 1.0


class Mixed(Windows, kw_only=True):
    """A mixture of the maximum and the mean of each window.

    Parameters
    ----------
    count_include_pad : bool
        If True (default), padding counts as zeros in the mean. It is never the maximum.
    alpha : float or array, shape (C,)
        The weight of the maximum, any finite number; default: 0.5.
        {learned}
    """

    count_include_pad: bool = True
    alpha: Any = 0.5


class Logits(Arguments):
    """The logarithms of weights.

    Parameters
    ----------
    logits : array, shape of `x`
        The logarithm of the weight of each input, of any floating dtype. It has a gradient, too.
        Weights smaller than ``2**-100`` (float64: ``2**-1000``) times the largest weight of their
        plane are replaced by that value.
    """

    logits: Any


class Adaptive(Axes):
    """A given number of bins.

    Parameters
    ----------
    output_size : int, None, or sequence of {count} of them
        Number of bins along each axis; None keeps the size of the axis. Bin o holds the inputs from
        ``floor(o * size / output_size)`` up to, not including,
        ``ceil((o + 1) * size / output_size)``.
    """

    output_size: Any


class AdaptiveSelecting(Winners, Adaptive):
    """One input of each bin wins."""

    return_indices: bool = False


class Global(Axes, kw_only=True):
    """One window over all pooled axes.

    Parameters
    ----------
    keepdims : bool
        If True, the result keeps the pooled axes, with length one. Default: False.
    """

    keepdims: bool = False


class GlobalSelecting(Winners, Global):
    """One input of each plane wins."""


class GlobalPower(Global):
    """The p-norm or the power mean of each plane.

    Parameters
    ----------
    norm_type : float or array, shape (C,)
        The power p, positive; ``inf`` gives the largest ``|x|``. Default: 2.
        {learned}
    mean : bool
        If True, compute the mean of the powers instead of their sum: GeM pooling. Default: False.
    """

    norm_type: Any = 2.0
    _: KW_ONLY
    mean: bool = False


class GlobalLogMeanExp(Global, kw_only=True):
    """The log-mean-exp of each plane.

    Parameters
    ----------
    r : float or array, shape (C,)
        Sharpness: for larger r, large inputs dominate more. Finite, not 0; default: 1.
        {learned}
    """

    r: Any = 1.0


class FractionalWindows(Axes):
    """Windows at random, almost equal distances.

    Parameters
    ----------
    kernel_size : int or sequence of {count} int
        Number of taps of a window along each axis.
    output_size : int or sequence of {count} int, optional
        Number of outputs along each axis; at most ``size - kernel_size + 1``.
    output_ratio : float or sequence of {count} float, optional
        Instead of `output_size`: there are ``int(size * output_ratio)`` outputs. Between 0 and 1.
    """

    kernel_size: Ints
    output_size: Ints | None = None
    output_ratio: Any = None


class Fractional(Winners, FractionalWindows):
    """One input of each fractional window wins."""

    return_indices: bool = False


class RandomSamples(Drawn):
    """The random numbers from which fractional windows follow.

    Parameters
    ----------
    _random_samples : array, shape (N, C, {dims}), optional
        Instead of a random draw: s for each plane and pooled axis, in PyTorch's order of axes (for
        two axes the width comes first, for three axes the depth).
    """

    _random_samples: Any = None


class Indices(Arguments):
    """The indices of maxima.

    Parameters
    ----------
    indices : int64 array, shape of `x`
        For each value its flat position in the pooled axes of its plane of the output, as
        ``max_pool{dims}d`` returns it. If several values have the same index, the last in row-major
        order is kept, and it alone gets the gradient.
    """

    indices: Any


class Unpool(Axes):
    """The windows of the pooling that is inverted.

    Parameters
    ----------
    kernel_size : int or sequence of {count} int
        Number of taps of a window of the pooling that is inverted. This argument, `stride` and
        `padding` only determine the size of the output.
    stride : int or sequence of {count} int, optional
        Distance between neighbouring windows of that pooling; default: `kernel_size`.
    padding : int or sequence of {count} int
        Padding of that pooling; default: 0.
    """

    kernel_size: Ints
    stride: Ints | None = None
    padding: Ints = 0


class UnpoolOutput(Arguments):
    """The output of unpooling.

    Parameters
    ----------
    output_size : int or sequence of int, optional
        Sizes of the pooled axes of the output, or of all its axes. Default along each axis:
        ``(size - 1) * stride - 2 * padding + kernel_size``.
    """

    output_size: Any = None
