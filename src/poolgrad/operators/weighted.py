"""Weighted operators: every input of a window has a weight."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from poolgrad.dtypes import FLOATS
from poolgrad.interface import (
    NONLINEAR,
    ON_CPUS_AND_GPUS,
    Averaging,
    Buffer,
    KernelCall,
    Mixing,
    Operator,
    PowerMean,
    UnfoldedWindows,
    per_output,
)
from poolgrad.operands import Parameter
from poolgrad.windows import Layout, Window, require_valid_inputs

__all__ = ["WEIGHTED"]


def _count(xp: Any, windows: UnfoldedWindows, padding: bool, dtype: Any) -> Any:
    """The number of inputs of each window or, with `padding`, of taps in the padded input."""
    if padding:
        return xp.astype(windows.extent[..., 0], dtype)
    # Of integers, and a sum, because older exporters to ONNX support no other count.
    return xp.astype(xp.sum(xp.astype(windows.valid, xp.arange(1).dtype), axis=-1), dtype)


def _sum(xp: Any, windows: UnfoldedWindows) -> Any:
    """The sum of the inputs of each window."""
    return xp.sum(xp.where(windows.valid, windows.values, 0.0), axis=-1)


def _mean(xp: Any, windows: UnfoldedWindows) -> Any:
    """The mean of the inputs of each window."""
    return _sum(xp, windows) / _count(xp, windows, False, windows.values.dtype)


class Avg(Operator):
    """The mean of each window."""

    name = "avg"
    kernels = ON_CPUS_AND_GPUS
    options = Averaging
    integers = True

    def result(self, dtype: str, options: Any) -> str:
        if options.rounding and dtype not in ("int8", "uint8"):
            raise TypeError(f"x must be of dtype int8 or uint8 for quantization, got {dtype}")
        wide, kept = dtype in ("int32", "uint32", "int64"), dtype in FLOATS or options.rounding
        return dtype if kept else "float64" if wide else "float32"

    def check(self, window: Window, options: Any) -> None:
        if not options.count_include_pad and not options.divisor:
            require_valid_inputs(window)

    def has_kernels(self, device: str, options: Any) -> bool:
        return super().has_kernels(device, options) and not (device == "cuda" and options.rounding)

    def forward(self, call: KernelCall) -> None:
        padding, divisor, rounding = call.options
        average = call.kernels.average_quantized if rounding else call.kernels.average
        average(call.source, call.target, padding, divisor, *rounding, call.threads)

    def vjp(self, call: KernelCall) -> None:
        call.kernels.average_backward(call.source, call.target, *call.options[:2], call.threads)

    jvp = forward

    def share(
        self, xp: Any, amounts: Any, windows: UnfoldedWindows, routes: Any, options: Any
    ) -> Any:
        padding, divisor, _ = options
        count = divisor or xp.expand_dims(_count(xp, windows, padding, amounts.dtype), axis=-1)
        return xp.where(windows.valid, amounts / count, 0.0)

    def formula(self, xp: Any, windows: UnfoldedWindows, argument: Any, options: Any) -> Any:
        padding, divisor, rounding = options
        count = divisor or _count(xp, windows, padding, windows.values.dtype)
        if not rounding:
            return _sum(xp, windows) / count
        scale, zero_point, before, after = rounding
        integers = xp.astype(windows.values, xp.int32) - int(zero_point)
        total = xp.sum(xp.where(windows.valid, integers, 0), axis=-1, dtype=xp.int64)
        mean = xp.astype(total, windows.values.dtype) * (scale / count)
        return xp.clip(xp.round(mean + before) + after, windows.lowest, windows.highest)


@lru_cache
def _ones(dtype: str) -> tuple[Any, int]:
    """The parameter of operators without one: their kernels take a parameter of 1."""
    return np.ones(1, dtype), 1


class _Nonlinear(Operator):
    """Base class of nonlinear operators: the weights depend on the inputs."""

    nonlinear = True
    kernels = ON_CPUS_AND_GPUS
    kept: ClassVar[int]  # residual numbers for each window

    def kernel(self, options: Any) -> str:
        """Return the name of the kernel."""
        return self.name

    def residual(self, layout: Layout, options: Any) -> tuple[Buffer, ...]:
        return (per_output(layout, layout.sum_dtype),) * (self.kept + self.learned)

    def _arguments(self, call: KernelCall) -> tuple[int, tuple[Any, int], tuple[Any, ...]]:
        kept, which = (*call.residual[: self.kept], None, None, None)[:3], self.kernel(call.options)
        return NONLINEAR.index(which), call.operand or _ones(call.layout.sum_dtype), kept

    def forward(self, call: KernelCall) -> None:
        (which, parameter, kept), pool = self._arguments(call), call.kernels.nonlinear
        slope = call.residual[-1] if call.residual and self.learned else None
        pool(which, call.source, *parameter, call.target, *kept, slope, call.threads)

    def vjp(self, call: KernelCall) -> None:
        (which, parameter, kept), pull = self._arguments(call), call.kernels.nonlinear_backward
        pull(which, call.source, call.x, *parameter, *kept, call.target, call.threads)


def _finite(name: str, values: list[float]) -> None:
    for value in values:
        if not abs(value) < float("inf"):
            raise ValueError(f"{name} must be finite, got {value}")


def _bounded(xp: Any, values: Any) -> Any:
    """Replace infinities by the largest numbers of the dtype; NaN stays.

    Differences and quotients of infinities would be NaN.
    """
    most = float(xp.finfo(values.dtype).max)
    return xp.where(values > most, most, xp.where(values < -most, -most, values))


def _relative(xp: Any, sizes: Any) -> tuple[Any, Any]:
    """Return the numbers of each window, scaled by a power of two to about 1, and its inverse.

    The scale is a constant for derivatives. If the divisor were the largest number, they would
    divide by its square, which overflows and underflows much earlier.
    """
    largest = xp.max(sizes, axis=-1)
    most = math.frexp(float(xp.finfo(sizes.dtype).max))[1] - 3
    exponent = xp.floor(xp.log2(xp.where(largest > 0, largest, 1.0)))
    scale = 2.0 ** -xp.clip(exponent, -most, most)
    return sizes * xp.expand_dims(scale, axis=-1), 1 / scale


class Lp(_Nonlinear):
    """The p-norm of each window, or its generalised mean."""

    name = "lp"
    options = PowerMean
    operand = Parameter("norm_type")
    kept = 2

    def check(self, window: Window, options: Any) -> None:
        if options.mean:
            require_valid_inputs(window)

    def check_operand(self, values: list[float]) -> None:
        for value in values:
            if not value > 0:
                raise ValueError(f"norm_type must be positive, got {value}")

    def kernel(self, options: Any) -> str:
        return "lp_mean" if options.mean else "lp"

    def formula(self, xp: Any, windows: UnfoldedWindows, argument: Any, options: Any) -> Any:
        # Also excludes 0, where libraries define the derivative of the absolute value differently.
        given = xp.where(windows.valid & (windows.values != 0), xp.abs(windows.values), 0.0)
        unlimited = xp.max(given, axis=-1) == math.inf
        size, unit = _relative(xp, _bounded(xp, given))
        largest = xp.max(size, axis=-1)
        scale = xp.where(largest > 0, largest, 1.0)
        positive = size > 0
        infinite = argument == math.inf
        p = xp.where(infinite, 1.0, argument)
        ratio = xp.where(positive, size / xp.expand_dims(scale, axis=-1), 1.0)
        powers = xp.exp(xp.expand_dims(p, axis=-1) * xp.log(ratio))
        total = xp.sum(xp.where(positive, powers, 0.0), axis=-1)
        if options.mean:
            total = total / _count(xp, windows, False, windows.values.dtype)
        root = xp.exp(xp.log(xp.where(largest > 0, total, 1.0)) / p)
        return xp.where(unlimited, math.inf, largest * xp.where(infinite, 1.0, root) * unit)


class LogMeanExp(_Nonlinear):
    """The logarithm of the mean exponential of each window."""

    name = "log_mean_exp"
    operand = Parameter("r")
    kept = 2

    def check_operand(self, values: list[float]) -> None:
        _finite("r", values)
        if 0 in values:
            raise ValueError("r must not be 0; the limit there is the mean: use avg_pool")

    def formula(self, xp: Any, windows: UnfoldedWindows, argument: Any, options: Any) -> Any:
        valid, values = windows.valid, _bounded(xp, windows.values)
        count = _count(xp, windows, False, values.dtype)
        mean = _mean(xp, windows._replace(values=values))
        centred = xp.where(valid, values - xp.expand_dims(mean, axis=-1), 0.0)
        near = xp.abs(argument) * xp.max(xp.abs(centred), axis=-1) < 1e-3
        rate = xp.where(near, 1.0, argument)
        # The input that dominates: the smallest one for a negative rate.
        sign = xp.where(argument < 0, -1.0, argument * 0.0 + 1.0)  # `xp.sign` reads values
        signed = xp.where(valid, windows.values * xp.expand_dims(sign, axis=-1), -math.inf)
        limit = xp.max(signed, axis=-1)
        most = _bounded(xp, limit) * sign
        apart = xp.where(valid, _bounded(xp, values - xp.expand_dims(most, axis=-1)), 0.0)
        powers = xp.exp(apart * xp.expand_dims(rate, axis=-1))
        total = xp.sum(xp.where(valid, powers, 0.0), axis=-1)
        far = most + xp.log(total / count) / rate
        # Near the mean the formula would cancel, so the first cumulants are used.
        small = xp.where(xp.expand_dims(near, axis=-1), centred, 0.0)
        second, third, fourth = (xp.sum(small**k, axis=-1) / count for k in (2, 3, 4))
        r, fourth = xp.where(near, argument, 0.0), fourth - 3 * second * second
        close = mean + r * (second / 2 + r * (third / 6 + r * fourth / 24))
        infinite = xp.abs(limit) == math.inf
        return xp.where(infinite, limit * sign, xp.where(near, close, far))


class Soft(_Nonlinear):
    """The mean of each window, weighted with its softmax."""

    name = "soft"
    kept = 3

    def formula(self, xp: Any, windows: UnfoldedWindows, argument: Any, options: Any) -> Any:
        valid, values = windows.valid, _bounded(xp, windows.values)
        limit = xp.max(xp.where(valid, windows.values, -math.inf), axis=-1)
        largest = _bounded(xp, limit)
        apart = xp.where(valid, _bounded(xp, values - xp.expand_dims(largest, axis=-1)), 0.0)
        weights = xp.where(valid, xp.exp(apart), 0.0)
        mean = largest + xp.sum(weights * apart, axis=-1) / xp.sum(weights, axis=-1)
        return xp.where(xp.abs(limit) == math.inf, limit, mean)


class Expected(_Nonlinear):
    """The expected value of `Stochastic`."""

    name = "expected"
    kept = 3

    def formula(self, xp: Any, windows: UnfoldedWindows, argument: Any, options: Any) -> Any:
        counted = (windows.values > 0) | (windows.values != windows.values)  # NaN stays
        given = xp.where(windows.valid & counted, windows.values, 0.0)
        unlimited = xp.max(given, axis=-1) == math.inf
        positive, unit = _relative(xp, _bounded(xp, given))  # so that squares do not overflow
        total = xp.sum(positive, axis=-1)
        squares = xp.sum(positive * positive, axis=-1)
        drawn = xp.where(unlimited, math.inf, squares / xp.where(total > 0, total, 1.0) * unit)
        return xp.where(total > 0, drawn, _mean(xp, windows))


class Mixed(Operator):
    """A mixture of the maximum and the mean of each window."""

    name = "mixed"
    kernels = ON_CPUS_AND_GPUS
    options = Mixing
    operand = Parameter("alpha")
    nonlinear = True

    def check_operand(self, values: list[float]) -> None:
        _finite("alpha", values)

    def residual(self, layout: Layout, options: Any) -> tuple[Buffer, ...]:
        return (per_output(layout, layout.route_dtype), per_output(layout, layout.sum_dtype))

    def forward(self, call: KernelCall) -> None:
        kept = call.residual or (None, None)
        how = (*call.operand, *call.options)
        call.kernels.mixed(call.source, *how, call.target, *kept, call.threads)

    def vjp(self, call: KernelCall) -> None:
        how = (*call.operand, *call.options)
        kernel, routes = call.kernels.mixed_backward, call.residual[0]
        kernel(call.source, *how, routes, call.target, call.threads)

    def formula(self, xp: Any, windows: UnfoldedWindows, argument: Any, options: Any) -> Any:
        values = xp.where(windows.valid, windows.values, -math.inf)
        equal = values == xp.expand_dims(xp.max(values, axis=-1), axis=-1)
        first = equal & (xp.cumulative_sum(xp.astype(equal, xp.int32), axis=-1) == 1)
        most = xp.sum(xp.where(first, windows.values, 0.0), axis=-1)
        total, (padding,) = _sum(xp, windows), options
        # For alpha of 0 or 1 the result is one of the two, even if the other is infinite or the
        # difference of infinities.
        bounded = _sum(xp, windows._replace(values=_bounded(xp, windows.values)))
        total = xp.where(argument == 1, bounded, total)
        most = xp.where((argument == 0) & (xp.abs(most) == math.inf), 0.0, most)
        total = xp.where((argument == 1) & (xp.abs(total) == math.inf), 0.0, total)
        count = _count(xp, windows, padding, windows.values.dtype)
        return argument * most + (1 - argument) * total / count


WEIGHTED = (Avg(), Lp(), LogMeanExp(), Soft(), Expected(), Mixed())
