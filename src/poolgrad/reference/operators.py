"""Defines each operator as a function of one window.

All arithmetic is in float64, except that selecting operators keep integers as integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolgrad.dtypes import limits

Array = NDArray[Any]


@dataclass
class Inside:
    """The contents of one window.

    Attributes
    ----------
    values : array, shape (n,)
        The valid inputs, in row-major order.
    extent : int
        Number of taps of the window inside the padded input.
    theta : float
        The learned parameter, if the operator has one.
    u : float
        A uniform number in [0, 1), if the operator draws.
    operand : array, shape (n,)
        The extra operand at the inputs, if it has the shape of the input.
    """

    values: Array
    extent: int
    theta: float = 0.0
    u: float = 0.0
    operand: Array | None = None


class Pooled(NamedTuple):
    """The result of an operator for one window.

    Attributes
    ----------
    y : number
        The value.
    dx : array, shape (n,)
        The derivative of `y` with respect to each input.
    dtheta : float
        The derivative of `y` with respect to the learned parameter.
    winner : int
        Index of the selected input (the first of several); -1 for none.
    doperand : array, shape (n,)
        The derivative of `y` with respect to each element of the extra operand.
    """

    y: Any
    dx: Array
    dtheta: float = 0.0
    winner: int = -1
    doperand: Array | None = None


def max(window: Inside, ties: str) -> Pooled:
    """The largest value; the last NaN if there is one; the lowest of the dtype if empty."""
    return _select(window.values, np.max, ties, _extreme(window.values.dtype, highest=False))


def relu_max(window: Inside, ties: str) -> Pooled:
    """The largest value, or zero and no winner if it is not positive."""
    best = max(window, ties)
    if best.y <= 0:
        return Pooled(window.values.dtype.type(0), np.zeros(len(window.values)))
    return best


def min(window: Inside, ties: str) -> Pooled:
    """The smallest value; the last NaN if there is one; the highest of the dtype if empty."""
    return _select(window.values, np.min, ties, _extreme(window.values.dtype, highest=True))


def median(window: Inside, ties: str) -> Pooled:
    """The middle value, the lower one of two; the last NaN if there is one."""
    return _select(window.values, lambda x: np.sort(x)[(len(x) - 1) // 2], ties)


def stochastic(window: Inside) -> Pooled:
    """One of the inputs, drawn with a probability in proportion to its positive part."""
    x, reached = window.values, np.cumsum(np.maximum(window.values, 0))
    total = reached[-1]
    if total == 0:
        winner = int(window.u * len(x))
    else:  # a product of subnormal numbers may round up to the total, which nothing exceeds
        threshold = np.fmin(window.u * total, np.nextafter(total, 0))
        winner = int(np.argmax(reached > threshold))
    return Pooled(x[winner], np.where(np.arange(len(x)) == winner, 1.0, 0.0), winner=winner)


def avg(
    window: Inside, count_include_pad: bool, divisor: int, rounding: tuple[float, ...] = ()
) -> Pooled:
    """The sum of the values divided by their number, or by the number of taps.

    That of quantised integers (`rounding`) is multiplied with a reciprocal, in float32.
    """
    x = window.values
    n = divisor or (window.extent if count_include_pad else len(x))
    if rounding:
        scale, zero_point, before, after = map(np.float32, rounding)
        total = np.float32(x.sum(dtype=np.int64) - int(zero_point) * len(x))
        y = np.rint(total * np.float32(scale / n) + before) + after
        return Pooled(np.clip(y, *limits(x.dtype.name)), np.full(len(x), 1 / n))
    return Pooled(x.sum(dtype=np.float64) / n, np.full(len(x), 1 / n))


def lp(window: Inside, mean: bool) -> Pooled:
    """The p-norm ``(sum |x|^p)^(1/p)``, or the power mean ``(sum |x|^p / n)^(1/p)``."""
    x, p, size = window.values, window.theta, np.abs(window.values)
    if not size.any():
        return Pooled(0.0, np.zeros(len(x)))
    largest = size.max()
    if np.isinf(p):
        shares = np.sign(x) * (size == largest)
        return Pooled(largest, shares / np.abs(shares).sum())
    scale = largest if np.isfinite(largest) else 1.0  # so that no power overflows
    relative = size / scale
    powers = relative**p
    n = len(x) if mean else 1
    y = scale * (powers.sum() / n) ** (1 / p)
    if y == 0:  # the mean of the powers underflowed
        return Pooled(0.0, np.zeros(len(x)))
    dx = np.where(x == 0, 0, np.sign(x) * (size / y) ** (p - 1) / n)
    logs = _expectation(powers / powers.sum(), np.log(relative))
    return Pooled(y, dx, y / p * (logs - np.log(y / scale)))


def log_mean_exp(window: Inside) -> Pooled:
    """``log(mean(exp(r x))) / r``: the mean as r goes to 0, the maximum as r goes to inf."""
    x, r = window.values, window.theta
    top = x.max() if r > 0 else x.min()
    weights = _softmax(r * x)
    if np.isinf(top):
        return Pooled(top, weights, np.nan)
    # expm1 and log1p instead of exp and log: exact for small r, too
    y = top + np.log1p(np.expm1(r * (x - top)).mean()) / r
    return Pooled(y, weights, _expectation(weights, x - y) / r)


def soft(window: Inside) -> Pooled:
    """The mean with the weights ``softmax(x)``."""
    x, weights = window.values, _softmax(window.values)
    top = x.max() if np.isfinite(x.max()) else 0.0
    below = _expectation(weights, x - top)  # 1 + x - y would lose the 1 where x is large
    return Pooled(top + below, np.where(weights == 0, 0, weights * (1 + (x - top - below))))


def expected(window: Inside) -> Pooled:
    """The expected value of `stochastic`."""
    x, positive = window.values, np.maximum(window.values, 0)
    total = positive.sum()
    if total == 0:
        return Pooled(x.mean(), np.full(len(x), 1 / len(x)))
    y = (positive / total * positive).sum()
    return Pooled(y, np.where(x > 0, (2 * x - y) / total, 0))


def mixed(window: Inside, count_include_pad: bool) -> Pooled:
    """``alpha`` times the maximum and ``1 - alpha`` times the average."""
    alpha = window.theta
    top, mean = max(window, "first"), avg(window, count_include_pad, 0)
    parts = ((alpha, top.y), (1 - alpha, mean.y))
    y = sum(share * value for share, value in parts if share)  # 0 * inf counts as 0
    return Pooled(y, alpha * top.dx + (1 - alpha) * mean.dx, top.y - mean.y)


def range(window: Inside) -> Pooled:
    """The largest value minus the smallest."""
    most, least = max(window, "first"), min(window, "first")
    return Pooled(most.y - least.y, most.dx - least.dx)


def lip(window: Inside) -> Pooled:
    """The mean with the weights ``softmax(operand)``."""
    assert window.operand is not None
    x, weights = window.values, _softmax(window.operand)
    y = _expectation(weights, x)
    return Pooled(y, weights, doperand=np.where(weights == 0, 0, weights * (x - y)))


_SELECTING = (max, relu_max, min, median, stochastic, range)
_WEIGHTED = (avg, lp, log_mean_exp, soft, expected, mixed, lip)
OPERATORS: dict[str, Callable[..., Pooled]] = {f.__name__: f for f in (*_SELECTING, *_WEIGHTED)}
OPERATORS["fractional_max"] = max  # only its windows differ


def _select(x: Array, choose: Callable[[Array], Any], ties: str, empty: Any = None) -> Pooled:
    if ties not in ("first", "split", "zero"):
        raise ValueError(f'ties must be "first", "split" or "zero", got {ties!r}')
    if len(x) == 0:
        return Pooled(empty, np.zeros(0))
    nans = np.flatnonzero(np.isnan(x))
    winners = nans[-1:] if len(nans) else np.flatnonzero(x == choose(x))
    sharing = winners[:1] if ties == "first" else winners
    if ties == "zero" and len(winners) > 1:
        sharing = winners[:0]
    dx = np.isin(np.arange(len(x)), sharing) / np.maximum(len(sharing), 1)
    return Pooled(x[winners[0]], dx, winner=int(winners[0]))


def _extreme(dtype: np.dtype[Any], *, highest: bool) -> Any:
    if dtype.kind == "b":
        return highest
    if np.issubdtype(dtype, np.integer):
        return np.iinfo(dtype).max if highest else np.iinfo(dtype).min
    return np.inf if highest else -np.inf


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max())
    return np.asarray(powers / powers.sum())


def _expectation(weights: Array, x: Array) -> Any:
    return np.where(weights == 0, 0, weights * x).sum()  # 0 * inf counts as 0
