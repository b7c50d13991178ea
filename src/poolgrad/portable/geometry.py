"""Computes the taps of windows and the windows of inputs; unfolds and folds arrays by gathering.

All tables are computed by arithmetic on the device of the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import and_, mul
from typing import Any, NamedTuple

from array_api_compat import is_jax_array

from poolgrad.dtypes import limits
from poolgrad.interface import UnfoldedWindows
from poolgrad.portable.arrays import placed
from poolgrad.windows import Axis, Layout


class Taps(NamedTuple):
    """The taps of the windows of one axis, without low padding.

    Taps in the low padding are skipped, so that a window has at most ``ceil(size / dilation)``
    taps in these tables.

    Attributes
    ----------
    inputs : int array, shape (outputs, taps) or (planes, outputs, taps)
        The input of each tap; 0 where there is none.
    valid : bool array, shape (outputs, taps)
        Whether each tap lies in the input.
    numbers : int array, shape (outputs, taps)
        The number of each tap in its window.
    extent : int array, shape (outputs, 1)
        The number of taps inside the padded input, those of low padding included.
    """

    inputs: Any
    valid: Any
    numbers: Any
    extent: Any


class Geometry:
    """The windows of the planes of an array.

    Parameters
    ----------
    xp : module
        The array library.
    layout : Layout
        The windows, and the shape of the input.
    like : array
        An array on the device of the tables.
    operand : array, optional
        The extra operand. For fractional windows it is read: samples of shape (..., pooled axes),
        which determine the positions of windows, a row for each plane.
    """

    def __init__(self, xp: Any, layout: Layout, like: Any, operand: Any = None) -> None:
        self._xp, self._layout, self._where = xp, layout, placed(like)
        self._window = layout.window
        dims, columns = len(self._window.axes), [None] * len(self._window.axes)
        if self._window.fractional:
            rows = xp.reshape(operand, (math.prod(operand.shape) // dims, dims))
            # PyTorch's order of samples: width, height for two axes; depth, height, width for three
            columns = [rows[:, 1 - a if dims == 2 else a] for a in range(dims)]
        pairs = zip(self._window.axes, columns, strict=True)
        self._lines = [_Line(xp, axis, self._where, column) for axis, column in pairs]
        self._taps = [line.taps() for line in self._lines]
        self._counts = [taps.valid.shape[1] for taps in self._taps]

    @property
    def windows(self) -> UnfoldedWindows:
        """Return the windows without values: (outputs, taps)."""
        xp, outs = self._xp, self._window.out
        shape = (*outs, math.prod(self._counts))
        valid = reduce(and_, _apart(xp, [taps.valid for taps in self._taps]))
        extent = reduce(mul, _apart(xp, [taps.extent for taps in self._taps]))
        numbers = _numbered(xp, [taps.numbers for taps in self._taps], self._window.kernel)
        return UnfoldedWindows(
            None,
            xp.reshape(valid, shape),
            xp.reshape(extent, (*outs, 1)),
            xp.reshape(numbers, shape),
            *limits(self._layout.dtype),
        )

    @property
    def tap_columns(self) -> tuple[Any, Any]:
        """Return the column of each tap in `windows`, and whether it has one: (outputs, taps)."""
        xp, shape = self._xp, (*self._window.out, self._window.tap_count)
        columns = [
            xp.arange(kernel, **self._where)[None, :] - taps.numbers[:, :1]
            for kernel, taps in zip(self._window.kernel, self._taps, strict=True)
        ]
        exists = [(c >= 0) & (c < n) for c, n in zip(columns, self._counts, strict=True)]
        valid = reduce(and_, _apart(xp, exists))
        column = xp.where(valid, _numbered(xp, columns, self._counts), 0)
        return xp.reshape(column, shape), xp.reshape(valid, shape)

    def unfold(self, x: Any) -> Any:
        """Gather the taps of each window: (planes, inputs...) to (planes, outputs..., taps)."""
        for a, taps in enumerate(self._taps):
            x = _gather(self._xp, x, taps.inputs, 1 + 2 * a)
        return self._grouped(x)

    def fold(self, parts: Any) -> Any:
        """Sum the parts of each input: (planes, outputs..., taps) to (planes, inputs...)."""
        xp, dims, counts = self._xp, len(self._taps), self._counts
        apart = xp.reshape(parts, (*parts.shape[:-1], *counts))
        order = [0, *(n for a in range(dims) for n in (1 + a, 1 + dims + a))]
        sizes = [out * n for out, n in zip(self._window.out, counts, strict=True)]
        x = xp.reshape(xp.permute_dims(apart, tuple(order)), (parts.shape[0], *sizes))
        positions, holds = zip(*[line.inverse_taps() for line in self._lines], strict=True)
        for a, table in enumerate(positions):
            x = _gather(xp, x, table, 1 + 2 * a)
        valid = reduce(and_, _apart(xp, holds))
        valid = xp.reshape(valid, (*valid.shape[:-dims], math.prod(valid.shape[-dims:])))
        return xp.sum(xp.where(valid, self._grouped(x), 0), axis=-1, dtype=parts.dtype)

    def positions(self, routes: Any) -> Any:
        """Convert tap indices (planes, outputs...) to flat positions in the plane of the input."""
        xp, rest, step, flat = self._xp, routes, 1, 0
        for a, line in reversed([*enumerate(self._lines)]):
            axis, begin = line.axis, line.begin
            rest, tap = rest // axis.kernel, rest % axis.kernel
            begin = begin[None, :] if begin.ndim == 1 else begin
            shape = [1] * routes.ndim
            shape[0], shape[1 + a] = begin.shape
            flat = flat + (xp.reshape(begin, tuple(shape)) + tap * axis.dilation) * step
            step *= axis.size
        return flat

    def _grouped(self, x: Any) -> Any:
        """Reshape (planes, a, m, b, n, ...) to (planes, a, b, ..., m * n * ...)."""
        dims = len(self._taps)
        order = (0, *range(1, 2 * dims, 2), *range(2, 2 * dims + 1, 2))
        moved = self._xp.permute_dims(x, order)
        shape = moved.shape
        return self._xp.reshape(moved, (*shape[: 1 + dims], math.prod(shape[1 + dims :])))


def _apart(xp: Any, tables: Sequence[Any]) -> list[Any]:
    """Reshape the tables (..., m, n) of all axes to broadcast: (..., m, m, ..., n, n, ...)."""
    dims, made = len(tables), []
    for axis, table in enumerate(tables):
        shape = [1] * (2 * dims)
        shape[axis], shape[dims + axis] = table.shape[-2:]
        made.append(xp.reshape(table, (*table.shape[:-2], *shape)))
    return made


def _numbered(xp: Any, tables: Sequence[Any], counts: Sequence[int]) -> Any:
    """Join the numbers below `counts` of all axes to one number, in row-major order."""
    number = 0
    for table, count in zip(_apart(xp, tables), counts, strict=True):
        number = number * count + table
    return number


def _gather(xp: Any, x: Any, table: Any, axis: int) -> Any:
    """Take elements along an axis, which becomes two: those of a table (m, n) or (planes, m, n)."""
    around = x.shape[:axis], x.shape[axis + 1 :]
    index = xp.reshape(table, (*table.shape[:-2], table.shape[-2] * table.shape[-1]))
    if index.ndim == 1:
        x = xp.take(x, index, axis=axis)
    else:
        shape = [1] * x.ndim
        shape[0], shape[axis] = index.shape
        full = xp.reshape(index, tuple(shape))
        full = xp.broadcast_to(full, (*around[0], index.shape[1], *around[1]))
        x = xp.take_along_axis(x, full, axis=axis)
    return xp.reshape(x, (*around[0], *table.shape[-2:], *around[1]))


class _Line:
    """The windows of one axis.

    Attributes
    ----------
    axis : Axis
        The windows.
    begin : int array, shape (outputs,) or (planes, outputs)
        The input of the first tap of each window; negative in low padding.
    sizes : int array, shape (outputs,)
        Number of taps.
    """

    def __init__(self, xp: Any, axis: Axis, where: dict[str, Any], samples: Any) -> None:
        self._xp, self.axis, self._where, self._epsilon = xp, axis, where, 0.0
        outputs = xp.arange(axis.out, **where)
        self.begin, self.sizes = outputs * axis.stride - axis.lo, 0 * outputs + axis.kernel
        if axis.adaptive:
            self.begin, end = axis.bins(outputs)
            self.sizes = end - self.begin
        elif samples is not None:
            self.begin = _starts(xp, axis, samples)
            self._epsilon = float(xp.finfo(samples.dtype).eps)
        self._most = min(axis.kernel, -(-axis.size // axis.dilation))  # taps in the input

    def taps(self) -> Taps:
        """Return the taps of each window."""
        xp, axis = self._xp, self.axis
        # Fractional windows lie in the input, so that their tables do not depend on their begins.
        begin = (self.begin if self.begin.ndim == 1 else 0 * self.sizes)[:, None]
        numbers = self._skipped(begin) + xp.arange(self._most, **self._where)[None, :]
        inputs = begin + numbers * axis.dilation
        valid = (numbers < self.sizes[:, None]) & (inputs < axis.size)
        extent = -((begin - axis.size - axis.hi) // axis.dilation)
        extent = xp.where(extent < self.sizes[:, None], extent, self.sizes[:, None])
        if self.begin.ndim > 1:
            inputs = self.begin[:, :, None] + numbers
        return Taps(xp.where(valid, inputs, 0), valid, numbers, extent)

    def inverse_taps(self) -> tuple[Any, Any]:
        """Return the windows that contain each input, in ascending order of outputs.

        Returns
        -------
        positions : int array, shape (inputs, windows) or (planes, inputs, windows)
            The position of the input among all taps of the axis, counted row by row.
        valid : bool array of the same shape
            Whether each of these windows contains the input.
        """
        xp, axis = self._xp, self.axis
        inputs = xp.arange(axis.size, **self._where)[:, None]
        most = self._most_windows()
        if axis.kernel < most and axis.dilation > 1:  # few taps, far apart: a window for each tap
            taps = axis.kernel - 1 - xp.arange(axis.kernel, **self._where)[None, :]
            begin = inputs + axis.lo - taps * axis.dilation
            outputs = begin // axis.stride
            valid = (begin >= 0) & (begin % axis.stride == 0) & (outputs < axis.out)
            begin = begin - axis.lo
        else:
            outputs = self._first_windows(inputs) + xp.arange(most, **self._where)
            valid = outputs < axis.out
            outputs = xp.where(valid, outputs, 0)
            begin = _gather(xp, self.begin, outputs, outputs.ndim - 2)
            apart = inputs - begin
            taps = apart // axis.dilation
            sizes = xp.broadcast_to(self.sizes, self.begin.shape)
            sizes = _gather(xp, sizes, outputs, outputs.ndim - 2)
            valid = valid & (apart >= 0) & (apart % axis.dilation == 0) & (taps < sizes)
        positions = outputs * self._most + taps - self._skipped(begin)
        return xp.where(valid, positions, 0), valid

    def _skipped(self, begin: Any) -> Any:
        """Return the number of leading taps of each window that are low padding."""
        return self._xp.clip(-(begin // self.axis.dilation), min=0)

    def _first_windows(self, inputs: Any) -> Any:
        """Return the first window that does not end before each input: (..., inputs, 1)."""
        xp, axis = self._xp, self.axis
        if axis.fractional:
            before = self.begin[:, None, :] + axis.kernel <= inputs[None, :, :]
            return xp.sum(xp.astype(before, self.begin.dtype), axis=-1)[..., None]
        if axis.adaptive:
            first, before, bins, size = axis.origin
            return xp.clip((inputs + before) * bins // size - first, min=0)
        last = (axis.kernel - 1) * axis.dilation - axis.lo
        return xp.clip(-((last - inputs) // axis.stride), min=0)

    def _most_windows(self) -> int:
        """Return at most how many windows contain an input, or lie between those that do."""
        axis = self.axis
        if axis.adaptive:
            return min(-(-axis.origin.outputs // axis.origin.inputs) + 1, axis.out)
        if not axis.fractional:
            return min((axis.kernel - 1) * axis.dilation // axis.stride + 1, axis.out)
        step = max((axis.size - axis.kernel) // max(axis.out - 1, 1), 1)
        # Begins are rounded four times, each by at most half of epsilon: in narrow dtypes many
        # windows may begin at one input.
        error = int(4 * axis.size * self._epsilon)
        return min(axis.out, (axis.kernel + error) // step + 3)


# Fractional windows, whose positions depend on samples


def _starts(xp: Any, axis: Axis, samples: Any) -> Any:
    """Compute begins (Graham, Fractional max-pooling, 2014) in the dtype of the samples."""
    where, dtype, last = placed(samples), samples.dtype, axis.size - axis.kernel

    def rounded(value: Any) -> Any:
        return _kept_narrow(xp, xp.astype(value, dtype))

    def number(value: int) -> Any:
        return rounded(xp.full((), value, **where))  # `asarray` would copy from the host

    def whole(value: Any) -> Any:
        return xp.astype(value, xp.arange(1).dtype)

    step = rounded(number(last) / number(max(axis.out - 1, 1)))
    shift = whole(rounded(samples * step))[:, None]
    outputs = rounded(xp.arange(axis.out - 1, **where))[None, :]
    at = whole(rounded(rounded(outputs + samples[:, None]) * step))
    begins = xp.clip(at - shift, 0, last)  # narrow dtypes may round beyond the end
    return xp.concat([begins, xp.zeros_like(shift) + last], axis=1)


def _kept_narrow(xp: Any, x: Any) -> Any:
    """Round to the dtype; XLA might otherwise keep more bits than the dtype has."""
    if not is_jax_array(x):
        return x
    from jax import lax

    info = xp.finfo(x.dtype)
    return lax.reduce_precision(x, info.bits - info.nmant - 1, info.nmant)
