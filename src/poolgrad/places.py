"""Where windows look, as tables: what an array library's own operations need instead of kernels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolgrad.windows import Axis

Array = NDArray[Any]


class Looks(NamedTuple):
    """The windows of one axis, of which padding is left out: there may be far more of it.

    Attributes
    ----------
    inputs : int array, shape (outputs, taps)
        The inputs of each window, in order; any where there are no more.
    places : int array, shape (outputs, taps)
        The place of each in its window.
    real : bool array, shape (outputs, taps)
        Which of the others are inputs.
    extent : int array, shape (outputs, 1)
        How many places of each window lie inside the padded input.
    """

    inputs: Array
    places: Array
    real: Array
    extent: Array


class Seen(NamedTuple):
    """The same from the other side: which windows hold an input.

    Attributes
    ----------
    outputs, taps : int array, shape (inputs, windows)
        The windows, and the tap at which each holds the input; any where there are no more.
    real : bool array, shape (inputs, windows)
        Which of these are windows.
    """

    outputs: Any
    taps: Any
    real: Any


def spread(table: Any, axis: int, dims: int) -> Any:
    """A table (outputs, taps) of one axis, to be combined with those of the others.

    An array of any library: shape (..., outputs, ..., taps, ...), one of each for every axis.
    """
    shape = [1] * (2 * dims)
    shape[axis], shape[dims + axis] = table.shape
    return table.reshape(shape)


@lru_cache(maxsize=256)
def looks(axis: Axis) -> Looks:
    """Where the windows of an axis look, unless samples place them."""
    outputs = np.arange(axis.out)[:, None]
    if axis.adaptive:
        start, end = axis.bins(outputs)
        taps = np.arange((end - start).max())
        real = taps < end - start
        return Looks(np.where(real, start + taps, 0), taps + 0 * start, real, end - start)
    start = outputs * axis.stride - axis.lo
    first = np.maximum(-(start // axis.dilation), 0)
    taps = np.arange(min(axis.kernel, -(-axis.size // axis.dilation)))
    inputs = start + (first + taps) * axis.dilation
    real = (first + taps < axis.kernel) & (inputs < axis.size)
    extent = np.minimum(-((start - axis.size - axis.hi) // axis.dilation), axis.kernel)
    return Looks(np.where(real, inputs, 0), first + taps, real, extent)


@lru_cache(maxsize=256)
def seen(axis: Axis) -> Seen:
    """Which windows of an axis hold each input, unless samples place them."""
    table = looks(axis)
    outputs, taps = np.nonzero(table.real)
    inputs = table.inputs[outputs, taps]
    order = np.argsort(inputs, kind="stable")
    outputs, taps, inputs = outputs[order], taps[order], inputs[order]
    counts = np.bincount(inputs, minlength=axis.size)
    rank = np.arange(len(inputs)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = (axis.size, max(int(counts.max(initial=0)), 1))
    found = Seen(np.zeros(shape, int), np.zeros(shape, int), np.zeros(shape, bool))
    found.outputs[inputs, rank], found.taps[inputs, rank] = outputs, taps
    found.real[inputs, rank] = True
    return found
