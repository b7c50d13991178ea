"""Computes the taps of windows and the windows of inputs; unfolds and folds arrays by gathering.

All tables are computed by arithmetic on the device of the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from array_api_compat import is_jax_array

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


class InverseTaps(NamedTuple):
    """The windows that contain each input of one axis, in ascending order of outputs.

    Attributes
    ----------
    positions : int array, shape (inputs, windows) or (planes, inputs, windows)
        The position of the input among all taps of the axis, counted row by row.
    valid : bool array of the same shape
        Whether each of these windows contains the input.
    """

    positions: Any
    valid: Any


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
    samples : array, shape (..., pooled axes), optional
        The samples that determine the positions of fractional windows, a row for each plane.
    """

    def __init__(self, xp: Any, layout: Layout, like: Any, samples: Any = None) -> None:
        self._xp, self._axes, self._where = xp, layout.window.axes, placed(like)
        self._begins: list[Any] = [None] * len(self._axes)
        self._epsilon = 0.0  # the relative distance of neighbouring samples
        if samples is not None:
            self._begins = _begins(xp, self._axes, samples)
            self._epsilon = float(xp.finfo(samples.dtype).eps)
        self._taps = [
            _sampled_taps(xp, axis, begin, self._where)
            if begin is not None
            else _adaptive_taps(xp, axis, self._where)
            if axis.adaptive
            else _fixed_taps(xp, axis, self._where)
            for axis, begin in zip(self._axes, self._begins, strict=True)
        ]

    @property
    def windows(self) -> UnfoldedWindows:
        """Return the windows without values: (outputs, taps)."""
        xp, dims = self._xp, len(self._axes)
        outs = tuple(axis.out for axis in self._axes)
        valid, numbers, extent = None, 0, 1
        for a, taps in enumerate(self._taps):
            here = _along(xp, taps.valid, a, dims)
            valid = here if valid is None else valid & here
            inner = math.prod(axis.kernel for axis in self._axes[a + 1 :])
            numbers = numbers + _along(xp, taps.numbers, a, dims) * inner
            extent = extent * _along(xp, taps.extent, a, dims)
        shape = (*outs, math.prod(taps.valid.shape[1] for taps in self._taps))
        return UnfoldedWindows(
            None,
            xp.reshape(valid, shape),
            xp.reshape(extent, (*outs, 1)),
            xp.reshape(numbers, shape),
        )

    @property
    def places(self) -> tuple[Any, Any]:
        """Return the place of each tap in `windows`, and whether it has one: (outputs, numbers)."""
        xp, dims = self._xp, len(self._axes)
        valid, place = None, 0
        for a, (axis, taps) in enumerate(zip(self._axes, self._taps, strict=True)):
            at = xp.arange(axis.kernel, **self._where)[None, :] - taps.numbers[:, :1]
            here = _along(xp, (at >= 0) & (at < taps.numbers.shape[1]), a, dims)
            valid = here if valid is None else valid & here
            inner = math.prod(others.numbers.shape[1] for others in self._taps[a + 1 :])
            place = place + _along(xp, at, a, dims) * inner
        count = math.prod(axis.kernel for axis in self._axes)
        shape = (*(axis.out for axis in self._axes), count)
        return xp.reshape(xp.where(valid, place, 0), shape), xp.reshape(valid, shape)

    def unfold(self, x: Any) -> Any:
        """Gather the taps of each window: (planes, inputs...) to (planes, outputs..., taps)."""
        xp = self._xp
        for a, taps in enumerate(self._taps):
            at, shape = 1 + 2 * a, taps.inputs.shape
            flat = xp.reshape(taps.inputs, (*shape[:-2], shape[-2] * shape[-1]))
            x = _gather(xp, x, flat, at)
            x = xp.reshape(x, (*x.shape[:at], *shape[-2:], *x.shape[at + 1 :]))
        return self._grouped(x)

    def fold(self, parts: Any) -> Any:
        """Sum the parts of each input: (planes, outputs..., taps) to (planes, inputs...)."""
        xp, dims = self._xp, len(self._axes)
        counts = [taps.valid.shape[1] for taps in self._taps]
        apart = xp.reshape(parts, (*parts.shape[:-1], *counts))
        order = [0, *(n for a in range(dims) for n in (1 + a, 1 + dims + a))]
        sizes = [axis.out * n for axis, n in zip(self._axes, counts, strict=True)]
        x = xp.reshape(xp.permute_dims(apart, tuple(order)), (parts.shape[0], *sizes))
        valid: Any = None
        for a, holders in enumerate(map(self._inverse_taps, range(dims))):
            at, shape = 1 + 2 * a, holders.positions.shape
            flat = xp.reshape(holders.positions, (*shape[:-2], shape[-2] * shape[-1]))
            x = _gather(xp, x, flat, at)
            x = xp.reshape(x, (*x.shape[:at], *shape[-2:], *x.shape[at + 1 :]))
            here = _along(xp, holders.valid, a, dims)
            valid = here if valid is None else valid & here
        valid = xp.reshape(valid, (*valid.shape[:-dims], math.prod(valid.shape[-dims:])))
        return xp.sum(xp.where(valid, self._grouped(x), 0), axis=-1, dtype=parts.dtype)

    def positions(self, routes: Any) -> Any:
        """Convert tap indices (planes, outputs...) to flat positions in the plane of the input."""
        xp, rest, step, flat = self._xp, routes, 1, 0
        for a in reversed(range(len(self._axes))):
            axis = self._axes[a]
            rest, tap = rest // axis.kernel, rest % axis.kernel
            begin = self._begins[a]
            if begin is None:
                outputs = xp.arange(axis.out, **self._where)
                begin = (
                    axis.bins(outputs)[0] if axis.adaptive else outputs * axis.stride - axis.lo
                )[None, :]
            shape = [1] * routes.ndim
            shape[0], shape[1 + a] = begin.shape
            flat = flat + (xp.reshape(begin, tuple(shape)) + tap * axis.dilation) * step
            step *= axis.size
        return flat

    def _grouped(self, x: Any) -> Any:
        """Reshape (planes, a, m, b, n, ...) to (planes, a, b, ..., m * n * ...)."""
        dims = len(self._axes)
        order = (0, *range(1, 2 * dims, 2), *range(2, 2 * dims + 1, 2))
        moved = self._xp.permute_dims(x, order)
        shape = moved.shape
        return self._xp.reshape(moved, (*shape[: 1 + dims], math.prod(shape[1 + dims :])))

    def _inverse_taps(self, a: int) -> InverseTaps:
        xp, axis, begin = self._xp, self._axes[a], self._begins[a]
        inputs = xp.arange(axis.size, **self._where)[:, None]
        if begin is not None:
            return _sampled_inverse_taps(xp, axis, begin, self._epsilon, inputs, self._where)
        find = _adaptive_inverse_taps if axis.adaptive else _fixed_inverse_taps
        outputs, taps, valid = find(xp, axis, inputs, self._where)
        most = self._taps[a].valid.shape[1]
        return InverseTaps(xp.where(valid, outputs * most + taps, 0), valid)


def _along(xp: Any, table: Any, axis: int, dims: int) -> Any:
    """Reshape a table (..., m, n) of one axis to broadcast with those of the other axes."""
    shape = [1] * (2 * dims)
    shape[axis], shape[dims + axis] = table.shape[-2:]
    return xp.reshape(table, (*table.shape[:-2], *shape))


def _gather(xp: Any, x: Any, index: Any, axis: int) -> Any:
    """Take elements along an axis; `index` may differ from plane to plane."""
    if index.ndim == 1:
        return xp.take(x, index, axis=axis)
    shape = [1] * x.ndim
    shape[0], shape[axis] = index.shape
    full = (*x.shape[:axis], index.shape[1], *x.shape[axis + 1 :])
    return xp.take_along_axis(x, xp.broadcast_to(xp.reshape(index, tuple(shape)), full), axis=axis)


# Windows of one size at equal distances


def _skipped(xp: Any, axis: Axis, outputs: Any) -> Any:
    """Return the number of leading taps of each window that are low padding."""
    start = outputs * axis.stride - axis.lo
    return xp.clip(-(start // axis.dilation), min=0)


def _fixed_taps(xp: Any, axis: Axis, where: dict[str, Any]) -> Taps:
    outputs = xp.arange(axis.out, **where)[:, None]
    most = min(axis.kernel, -(-axis.size // axis.dilation))
    numbers = _skipped(xp, axis, outputs) + xp.arange(most, **where)[None, :]
    start = outputs * axis.stride - axis.lo
    inputs = start + numbers * axis.dilation
    valid = (numbers < axis.kernel) & (inputs < axis.size)
    extent = xp.clip(-((start - axis.size - axis.hi) // axis.dilation), max=axis.kernel)
    return Taps(xp.where(valid, inputs, 0), valid, numbers, extent)


def _fixed_inverse_taps(
    xp: Any, axis: Axis, inputs: Any, where: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """Return output, tap (without padding) and validity of the windows that contain each input."""
    kernel, stride, dilation = axis.kernel, axis.stride, axis.dilation
    position = inputs + axis.lo
    most = min((kernel - 1) * dilation // stride + 1, axis.out)
    if kernel < most:  # few taps, far apart: one candidate window for each tap
        taps = kernel - 1 - xp.arange(kernel, **where)[None, :]
        begin = position - taps * dilation
        outputs = begin // stride
        valid = (begin >= 0) & (begin % stride == 0) & (outputs < axis.out)
    else:
        first = xp.clip(-((dilation * (kernel - 1) - position) // stride), min=0)
        outputs = first + xp.arange(most, **where)[None, :]
        begin = position - outputs * stride
        taps = begin // dilation
        valid = (begin >= 0) & (begin % dilation == 0) & (taps < kernel) & (outputs < axis.out)
    return outputs, taps - _skipped(xp, axis, outputs), valid


# Adaptive bins


def _adaptive_taps(xp: Any, axis: Axis, where: dict[str, Any]) -> Taps:
    begin, end = axis.bins(xp.arange(axis.out, **where)[:, None])
    numbers = xp.arange(axis.kernel, **where)[None, :] + 0 * begin
    valid = numbers < end - begin
    return Taps(xp.where(valid, begin + numbers, 0), valid, numbers, end - begin)


def _adaptive_inverse_taps(
    xp: Any, axis: Axis, inputs: Any, where: dict[str, Any]
) -> tuple[Any, Any, Any]:
    first, before, bins, size = axis.origin
    most = min(-(-bins // size) + 1, axis.out)
    least = xp.clip((inputs + before) * bins // size - first, min=0)
    outputs = least + xp.arange(most, **where)[None, :]
    begin, end = axis.bins(outputs)
    valid = (begin <= inputs) & (inputs < end) & (outputs < axis.out)
    return outputs, inputs - begin, valid


# Fractional windows, whose positions depend on samples


def _begins(xp: Any, axes: Sequence[Axis], samples: Any) -> list[Any]:
    """Return the begins of the windows of each plane, along each axis: (planes, outputs)."""
    dims = len(axes)
    rows = xp.reshape(samples, (math.prod(samples.shape) // dims, dims))
    # PyTorch's order of samples is width, height for two axes; depth, height, width for three.
    columns = [rows[:, dims - 1 - a if dims == 2 else a] for a in range(dims)]
    return [_starts(xp, axis, column) for axis, column in zip(axes, columns, strict=True)]


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


def _sampled_taps(xp: Any, axis: Axis, begin: Any, where: dict[str, Any]) -> Taps:
    numbers = xp.arange(axis.kernel, **where)[None, :] + xp.zeros(
        (axis.out, 1), dtype=begin.dtype, **where
    )
    inputs = begin[:, :, None] + xp.arange(axis.kernel, **where)[None, None, :]
    return Taps(inputs, numbers >= 0, numbers, numbers[:, :1] * 0 + axis.kernel)


def _sampled_inverse_taps(
    xp: Any, axis: Axis, begin: Any, epsilon: float, inputs: Any, where: dict[str, Any]
) -> InverseTaps:
    step = max((axis.size - axis.kernel) // max(axis.out - 1, 1), 1)
    # Begins are rounded four times, each by at most half of epsilon: in narrow dtypes many windows
    # may begin at one input.
    error = int(4 * axis.size * epsilon)
    most = min(axis.out, (axis.kernel + error) // step + 3)
    over = xp.astype(begin[:, None, :] + axis.kernel <= inputs[None, :, :], begin.dtype)
    outputs = xp.sum(over, axis=-1)[:, :, None] + xp.arange(most, **where)[None, None, :]
    valid = outputs < axis.out
    outputs = xp.where(valid, outputs, 0)
    flat = xp.reshape(outputs, (outputs.shape[0], axis.size * most))
    own = xp.reshape(xp.take_along_axis(begin, flat, axis=1), outputs.shape)
    taps = inputs[None, :, :] - own
    valid = valid & (taps >= 0) & (taps < axis.kernel)
    return InverseTaps(xp.where(valid, outputs * axis.kernel + taps, 0), valid)
