"""`WeightedKernels`: launches of operators where every input of a window has a weight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from poolgrad.torch.triton import averages, nonlinear
from poolgrad.torch.triton.launch import (
    FEW,
    View,
    align,
    constants,
    index_type,
    launch,
    repeated,
    sum_type,
    view,
    windows_over,
)
from poolgrad.torch.triton.layout import (
    UNROLLED,
    Axes,
    flattened,
    in_pairs,
    only,
    sum_dtype,
    written,
)
from poolgrad.torch.triton.selecting import SelectingKernels

_OPERATORS = {"lp": 0, "lp_mean": 0, "lse": 1, "soft": 2, "expected": 3}


class WeightedKernels(SelectingKernels):
    """Averages, mixtures with a maximum, and nonlinear operators; see `LayoutKernels`."""

    @repeated
    def average(
        self, x: Tensor, y: Tensor, count_padding: bool, divisor: int, threads: int
    ) -> None:
        """Fill the mean of each window; wide windows are summed one axis after the other."""
        given, made = view(x, self.layout), self._output(y)
        if self._is_plane() and self.places > UNROLLED:
            cut, index = self._tiles_of_planes(), index_type(given, made)
            launch(
                averages.average_planes, cut.grid, given.tensor, cut.rows, cut.lanes,
                *flattened(given), divisor or self.places, made.tensor,
                SUM=sum_type(y.dtype), INDEX=index, **cut.constants,
            )  # fmt: skip
            return
        for axes, last in self._passes(reverse=True):
            out = tuple(a.out for a in axes)
            target = made if last else self._partial(y, out, sum_dtype(y.dtype))
            index = index_type(given, target, axes=self.axes)
            cut = self._tiles_of(out, out[2], index)
            unroll = math.prod(a.kernel for a in axes) <= UNROLLED
            pairs = unroll and not self.channels_last and in_pairs(axes[2]) and axes[2].kernel > 1
            launch(
                averages.average, cut.grid, given.tensor,
                cut.rows, cut.lanes, *(a.size for a in axes), *out, out[2], given.p, *given.strides,
                divisor, target.tensor,
                **constants(axes), **_paddings(axes), **_dividing(divisor, last),
                SUM=sum_type(y.dtype), PADDED=count_padding, PAIRS=pairs, UNROLL=unroll,
                **cut.constants, **align(cut, given, axes[2].size, out[2]),
            )  # fmt: skip
            given = target

    @repeated
    def average_backward(
        self, gy: Tensor, gx: Tensor, count_padding: bool, divisor: int, threads: int
    ) -> None:
        """Fill the gradient of the input, one axis after the other where windows are wide."""
        given, made = view(gy, self.layout), self._input(gx)
        passes = [*self._passes(reverse=False)]
        # Each cotangent is divided once, not once for each input of its window.
        shared = len(passes) > 1 or math.prod(windows_over(self.axes)["OVER"]) > 1
        if shared:
            given = self._shares(given, sum_dtype(gx.dtype), count_padding, divisor)
        for axes, last in passes:
            sizes = tuple(a.size for a in axes)
            target = made if last else self._partial(gx, sizes, sum_dtype(gx.dtype))
            index = index_type(given, target, axes=self.axes)
            cut, over = self._tiles_of(sizes, sizes[2], index), windows_over(axes)
            launch(
                averages.average_backward, cut.grid, given.tensor,
                cut.rows, cut.lanes, *sizes, *(a.out for a in axes), sizes[2],
                given.p, *given.strides, divisor, target.tensor,
                **constants(axes), **_paddings(axes), **over, SUM=sum_type(gx.dtype),
                DIVIDE=not shared and not divisor, BY_DIVISOR=not shared and bool(divisor),
                PADDED=count_padding, UNROLL=math.prod(over["OVER"]) <= UNROLLED,
                **cut.constants, **align(cut, given, sizes[2], axes[2].out),
            )  # fmt: skip
            given = target

    def _shares(self, given: View, dtype: torch.dtype, count_padding: bool, divisor: int) -> View:
        """Divide cotangents by the numbers of taps or by `divisor`."""
        shares = self._partial(given.tensor, self.out, dtype)
        index = index_type(given, shares, axes=self.axes)
        cut = self._tiles_of(self.out, self.out[2], index)
        launch(
            averages.average_shares, cut.grid, given.tensor,
            *self._sizes(cut, given, self.out[2]), divisor, shares.tensor,
            **constants(self.axes), **_paddings(self.axes), BY_DIVISOR=bool(divisor),
            PADDED=count_padding, **cut.constants, **self._align(cut, given),
        )  # fmt: skip
        return shares

    def mixed(
        self, x: Tensor, alpha: Tensor, count: int, count_padding: bool, y: Tensor,
        routes: Tensor | None, sensitivity: Tensor | None, threads: int,
    ) -> None:  # fmt: skip
        """Write ``alpha * max + (1 - alpha) * mean``, from the kernels of both."""
        wide = sum_dtype(y.dtype)
        most, mean = torch.empty_like(y), torch.empty_like(y, dtype=wide)
        self.select("max", x, most, routes, False, None, threads)
        self.average(x, mean, count_padding, 0, threads)
        a, most = self._by_channel(alpha, count, wide), most.to(wide)
        both = a * most + (1 - a) * mean
        y.copy_(torch.where(a == 1, most, torch.where(a == 0, mean, both)))
        if sensitivity is not None:
            sensitivity.copy_(most - mean)

    def mixed_backward(
        self, gy: Tensor, alpha: Tensor, count: int, count_padding: bool, routes: Tensor,
        gx: Tensor, threads: int,
    ) -> None:  # fmt: skip
        """Fill the gradient of the input."""
        wide = sum_dtype(gx.dtype)
        a = self._by_channel(alpha, count, wide)
        of_most, of_mean = torch.empty_like(gx, dtype=wide), torch.empty_like(gx, dtype=wide)
        self._route_backward(gy, routes, of_most, None, separable=True)
        self.average_backward(gy, of_mean, count_padding, 0, threads)
        gx.copy_(a * of_most + (1 - a) * of_mean)

    @repeated
    def nonlinear(
        self, which: str, x: Tensor, theta: Any, count: int, y: Tensor, residuals: list[Tensor],
        sensitivity: Tensor | None, threads: int,
    ) -> None:  # fmt: skip
        """Fill outputs of a nonlinear operator, what backward needs, and the parameter's slope."""
        given, made = view(x, self.layout), self._output(y)
        index = index_type(given, made, axes=self.axes)
        cut = self._tiles_of(self.out, self.out[2], index)
        parameter, numbers, learned = self._parameter(theta, count, x)
        kept = [written(t, made.tensor) for t in (*residuals, None, None, None)[:3]]
        launch(
            nonlinear.nonlinear, cut.grid, given.tensor, parameter,
            *self._sizes(cut, given, self.out[2]), *numbers, *self._taps(),
            made.tensor, *kept, written(sensitivity, made.tensor),
            **self._windows(), OPERATOR=_OPERATORS[which], MEAN=which == "lp_mean",
            LEARNED=learned, SUM=sum_type(x.dtype), KEEP=bool(residuals),
            SLOPE=sensitivity is not None, **cut.constants, **self._align(cut, given),
        )  # fmt: skip

    @repeated
    def nonlinear_backward(
        self, which: str, gy: Tensor, x: Tensor, theta: Any, count: int, residuals: list[Tensor],
        gx: Tensor, threads: int,
    ) -> None:  # fmt: skip
        """Fill the gradient of the input of a nonlinear operator."""
        given, read, made = view(gy, self.layout), view(x, self.layout), self._input(gx)
        index = index_type(given, read, made, axes=self.axes)
        cut = self._tiles_of(self.sizes, self.sizes[2], index)
        parameter, numbers, learned = self._parameter(theta, count, x)
        launch(
            nonlinear.nonlinear_backward, cut.grid, given.tensor, read.tensor, parameter,
            *residuals, *residuals[-1:] * (3 - len(residuals)),
            *self._sizes(cut, given, self.sizes[2]), *numbers, *self._taps(),
            read.p, *read.strides, made.tensor, **self._windows(), **windows_over(self.axes),
            OPERATOR=_OPERATORS[which], LEARNED=learned, SUM=sum_type(gx.dtype), **cut.constants,
            **self._align(cut, given),
        )  # fmt: skip

    def _taps(self) -> tuple[int, ...]:
        return tuple(a.kernel for a in self.axes)

    def _windows(self) -> dict[str, tuple[int, ...]]:
        """The constants of windows; those of whole planes are equal for all sizes."""
        whole = {"K": (0, 0, 0), "S": (1, 1, 1), "KIND": (FEW,) * 3} if self._is_plane() else {}
        return constants(self.axes) | whole

    def _passes(self, reverse: bool) -> Iterator[tuple[Axes, bool]]:
        """The windows of each pass over an average, and whether it is the last one.

        One pass if windows are small, else one for each axis that is pooled.
        """
        axes, _ = (self.axes, self.sizes) if reverse else self._of_gradient()
        several = self._pooled_axes()
        if self.places <= UNROLLED or len(several) < 2 or axes != self.axes:
            yield axes, True
            return
        order = several[::-1]
        sizes = list(self.sizes if reverse else self.out)
        for k in order:
            one = (sizes[0], sizes[1], sizes[2])
            yield only(self.axes, k, one), k == order[-1]
            sizes[k] = self.axes[k].out if reverse else self.axes[k].size

    def _by_channel(self, values: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        """Reshape a learned argument to broadcast with inputs and outputs."""
        shape = [1] * len(self.layout.in_shape)
        if count > 1:
            shape[self.layout.channel] = count
        return values.to(dtype).reshape(shape)

    def _parameter(
        self, theta: Any, count: int, like: Tensor
    ) -> tuple[Tensor, tuple[int, int], int]:
        """A learned argument as `nonlinear.theta_of` reads it: memory, sizes, kind."""
        if not isinstance(theta, Tensor):
            return like, (1, 1), 0
        layout = self.layout
        if count == 1:
            return theta, (1, 1), 1
        if self.channels_last and layout.channel == layout.order[-1]:
            return theta, (count, 1), 3
        outer = layout.order[: len(layout.order) - len(layout.pooled) - self.channels_last]
        below = outer[outer.index(layout.channel) + 1 :]
        return theta, (count, math.prod(layout.in_shape[a] for a in below)), 2


def _paddings(axes: Axes) -> dict[str, tuple[int, ...]]:
    """High paddings, which count in averages."""
    return {"HI": tuple(a.hi for a in axes)}


def _dividing(divisor: int, last: bool) -> dict[str, bool]:
    """Return how a pass divides: by its numbers of taps, or the last pass by `divisor`."""
    return {"DIVIDE": not divisor, "BY_DIVISOR": bool(divisor) and last}
