"""Every operator and its gradient as a textbook writes it: plain NumPy, slow, short.

This is what the kernels are tested against, and a place to read what they compute. An operator here
is a function of one window: its value, and how the value changes with each input of the window.

    >>> import numpy as np
    >>> from poolgrad import reference
    >>> y, pullback = reference.vjp(reference.max_pool2d, np.array([[1.0, 3.0], [2.0, 0.5]]), 2)
    >>> y, pullback(np.array([[2.5]]))
    (array([[3.]]), array([[0. , 2.5],
           [0. , 0. ]]))
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad import functional, operators
from poolgrad.operators import Request
from poolgrad.window import Window, resolve

Array = NDArray[Any]


@dataclass
class Inside:
    """What an operator sees: the real inputs of one window, row by row, and its other places."""

    values: Array
    extent: int  # places of the window that lie inside the padded input


def max(window: Inside, ties: str) -> tuple[Any, Array]:
    """The largest value; the last NaN if there is one; -inf for an empty window."""
    x, weights = window.values, np.zeros(len(window.values))
    if len(x) == 0:
        return -np.inf, weights
    if np.isnan(x).any():
        weights[np.flatnonzero(np.isnan(x))[-1]] = 1
        return np.nan, weights
    winners = np.flatnonzero(x == x.max())
    if ties == "first":
        weights[winners[0]] = 1
    elif ties == "split":
        weights[winners] = 1 / len(winners)
    elif len(winners) == 1:
        weights[winners] = 1
    return x.max(), weights


def avg(window: Inside, count_include_pad: bool, divisor: int) -> tuple[Any, Array]:
    """The sum of the values over their number, or over that of the window's places."""
    n = divisor or (window.extent if count_include_pad else len(window.values))
    return window.values.sum(dtype=np.float64) / n, np.full(len(window.values), 1 / n)


OPERATORS: dict[str, Callable[..., tuple[Any, Array]]] = {"max": max, "avg": avg}


class Pullback:
    """Weights of every window, and so the gradient: what `poolgrad.Pullback` is tested against."""

    def __init__(self, request: Request) -> None:
        x = np.asarray(request.x)
        dims = len(request.rule)
        first = x.ndim - dims - request.channels_last
        # pooled axes last, leading axes flat
        self._move = (tuple(range(first, first + dims)), tuple(range(x.ndim - dims, x.ndim)))
        planes = np.moveaxis(x, *self._move)
        self._leading = planes.shape[: x.ndim - dims]
        self._sizes = planes.shape[x.ndim - dims :]
        self._squeeze = None if request.keepdims else self._move[0]
        self._window = resolve(request.rule, self._sizes)
        operators.OPERATORS[request.operator].check(self._window, *request.options)
        self._entries: list[tuple[int, tuple[int, ...], list[tuple[int, ...]], Array]] = []
        planes = planes.reshape(-1, *self._sizes)
        y = np.empty((len(planes), *self._window.out), x.dtype)
        self._routes = np.full(y.shape, -1)
        for n, plane in enumerate(planes):
            for output in np.ndindex(*self._window.out):
                places, inputs, extent = _look(self._window, output)
                values = np.array([plane[i] for i in inputs], x.dtype)
                inside = Inside(values, extent)
                y[(n, *output)], weights = OPERATORS[request.operator](inside, *request.options)
                self._entries.append((n, output, inputs, weights))
                if 1 in weights:
                    self._routes[(n, *output)] = places[int(np.argmax(weights))]
        self.y = self._back(y)
        self._dtype = x.dtype

    def _back(self, planes: Array) -> Array:
        moved = planes.reshape(*self._leading, *planes.shape[1:])
        whole = np.moveaxis(moved, self._move[1], self._move[0])
        return whole if self._squeeze is None else whole.squeeze(self._squeeze)

    @property
    def routes(self) -> Array:
        """The place of the only winner of each window, -1 where there is none; pooled axes kept."""
        moved = self._routes.reshape(*self._leading, *self._window.out)
        return np.moveaxis(moved, self._move[1], self._move[0])

    def __call__(self, gy: Array) -> Array:
        """The gradient of the input: every output's gradient times its weights, added up."""
        gy = np.asarray(gy)
        if self._squeeze is not None:
            gy = np.expand_dims(gy, self._squeeze)
        gy = np.moveaxis(gy, *self._move).reshape(-1, *self._window.out)
        gx = np.zeros((len(gy), *self._sizes))
        for n, output, inputs, weights in self._entries:
            for i, weight in zip(inputs, weights, strict=True):
                if weight:  # 0 * inf is no gradient
                    gx[(n, *i)] += weight * gy[(n, *output)]
        moved = gx.reshape(*self._leading, *self._sizes)
        return np.moveaxis(moved, self._move[1], self._move[0]).astype(self._dtype)


def _look(window: Window, output: tuple[int, ...]) -> tuple[list[int], list[tuple[int, ...]], int]:
    """Places and inputs of one window, and how many of its places lie inside the padded input."""
    along = [a.places(o) for a, o in zip(window.axes, output, strict=True)]
    places, inputs = [], []
    for taps in itertools.product(*along):
        place = 0
        for (k, _), axis in zip(taps, window.axes, strict=True):
            place = place * axis.kernel + k
        places.append(place)
        inputs.append(tuple(i for _, i in taps))
    extents = [a.extent(o) for a, o in zip(window.axes, output, strict=True)]
    return places, inputs, int(np.prod(extents))


def vjp(fun: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> tuple[Array, Pullback]:
    """As `poolgrad.vjp`, for the functions of this module."""
    pullback = Pullback(fun.describe(x, *args, **kwargs))  # type: ignore[attr-defined]
    return pullback.y, pullback


def _slow(name: str) -> Callable[..., Any]:
    describe = getattr(functional, name).describe

    def pool(*args: Any, **kwargs: Any) -> Array:
        return Pullback(describe(*args, **kwargs)).y

    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"`poolgrad.{name}` as a textbook writes it."
    pool.describe = describe  # type: ignore[attr-defined]
    return pool


max_pool1d, max_pool2d, max_pool3d = (_slow(f"max_pool{d}d") for d in (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = (_slow(f"avg_pool{d}d") for d in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (
    _slow(f"adaptive_max_pool{d}d") for d in (1, 2, 3)
)
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (
    _slow(f"adaptive_avg_pool{d}d") for d in (1, 2, 3)
)
global_max_pool, global_avg_pool = _slow("global_max_pool"), _slow("global_avg_pool")
