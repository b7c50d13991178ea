"""`Kernels`: the methods of the compiled kernels for a layout, implemented in Triton."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from poolgrad.torch.triton import averages, extremes, nonlinear, routes
from poolgrad.torch.triton.launch import launch, repeated
from poolgrad.torch.triton.views import (
    FEW,
    Axes,
    Sizes,
    View,
    align,
    axes_of,
    contiguous,
    flattened,
    in_pairs,
    index_type,
    only,
    sum_dtype,
    sum_type,
    tiles,
    tiles_of_planes,
    view,
    window_constants,
    windows_over,
)
from poolgrad.windows import Axis, Layout

UNROLLED = 32  # taps of the largest window whose taps are unrolled; wider ones are separated

_ORDERS = {"max": 0, "min": 1, "relu_max": 2}
_OPERATORS = {"lp": 0, "lp_mean": 0, "lse": 1, "soft": 2, "expected": 3}


class Kernels:
    """The Triton kernels of one layout, with methods of the compiled ``_kernels.Plan``.

    There are methods for the operators whose `kernels` include "cuda", and none for fractional
    windows: `samples` is always None. `threads` is not read.

    Parameters
    ----------
    layout : Layout
        Windows, shapes and memory order.
    route_bits : int
        Bits of a packed route; 0 if routes are whole bytes.
    """

    def __init__(self, layout: Layout, route_bits: int) -> None:
        self.layout, self.bits = layout, route_bits
        self.bound: dict[Any, Any] = {}  # see `launch.repeated`
        self.axes = axes_of(layout)
        self.taps = math.prod(a.kernel for a in self.axes)
        self.out, self.sizes = _sizes(self.axes)
        self.channels_last = layout.order[-1] not in layout.pooled
        self.channels = layout.in_shape[layout.order[-1]] if self.channels_last else 1
        pooled = math.prod(layout.out_shape[a] for a in layout.pooled)
        self.planes = math.prod(layout.out_shape) // pooled // max(self.channels, 1)
        self.is_plane = all(  # every plane is one window
            a.out == 1 and a.kernel == a.size and not a.lo and a.dilation == 1 for a in self.axes
        )
        several = [k for k, a in enumerate(self.axes) if a != Axis(a.size, a.size, 1)]
        self.separable = several if len(several) > 1 else []  # axes, from the outermost

    # Selecting operators

    @repeated
    def select(
        self, which: str, x: Tensor, y: Tensor, routes: Tensor | None, zero_ties: bool,
        samples: None, threads: int,
    ) -> None:  # fmt: skip
        """Fill the output and the routes; `zero_ties`: an extreme that occurs twice has no route.

        Extremes of wide windows are separable: one axis after the other, from the innermost.
        """
        source, made, has_routes = view(x, self.layout), self._output(y), routes is not None
        options: dict[str, Any] = {"ORDER": _ORDERS[which], "BOOL": x.dtype == torch.bool}
        options["ROUTES"] = has_routes
        is_wide = self.taps > UNROLLED and not zero_ties
        if self.is_plane and is_wide and not self.bits:
            self._launch_planes(extremes.select_planes, source, made, (routes,), **options)
            return
        prior, below = None, 0
        for axes, is_last in self._passes(self.separable[::-1] if is_wide else [], forward=True):
            target, tap, bits = made, routes, self.bits
            if not is_last:
                target, bits = self._partial(x, _sizes(axes)[0], x.dtype), 0
                kept = torch.int64 if self.taps >= 2**31 else torch.int32
                tap = torch.empty_like(target.tensor, dtype=kept) if has_routes else None
            self._launch(
                extremes.select, source, axes, target, (source.tensor if prior is None else prior,),
                written=(tap,), packed_bits=bits, ZERO_TIES=zero_ties, PRIOR=below,
                LAST=is_last or not has_routes, BITS=bits, **options,
                **self._unrolling(axes, prior is None),
            )  # fmt: skip
            if has_routes:
                prior, below = tap, max(below, 1) * math.prod(a.kernel for a in axes)
            source = target

    @repeated
    def route_backward(
        self, gy: Tensor, routes: Tensor, gx: Tensor, samples: None, threads: int
    ) -> None:
        """Fill the gradient of the input; of extremes over wide windows, one axis at a time."""
        self._route_backward(gy, routes, gx)

    def _route_backward(self, gy: Tensor, route: Tensor, gx: Tensor) -> None:
        source, target = view(gy, self.layout), self._input(gx)
        axes = self._gradient_axes()
        over = windows_over(axes)
        unroll = math.prod(over) <= UNROLLED
        if self.separable and not unroll:
            self._separable_backward(source, route, target)
            return
        pairs, lanes = unroll and not self.channels_last and in_pairs(axes[2]), None
        if pairs:
            lo, ahead = axes[2].lo, (axes[2].lo + 1) // 2
            lanes = (axes[2].size + 1) // 2
            over = (*over[:2], (axes[2].kernel - 1 + 2 * ahead - lo) // 2 + 1)
        self._launch(
            routes.route_backward, source, axes, target, (route,), of_inputs=True, lanes=lanes,
            OVER=over, SUM=sum_type(gx.dtype), BITS=self.bits, PAIRS=pairs, UNROLL=unroll,
        )  # fmt: skip

    def _separable_backward(self, source: View, route: Tensor, made: View) -> None:
        dtype = made.tensor.dtype
        passes = self._passes(self.separable, forward=False)
        for pooled, (axes, is_last) in zip(self.separable, passes, strict=True):
            below = math.prod(a.kernel for a in self.axes[pooled + 1 :])  # taps along later axes
            target, rest = made, None
            if not is_last:
                target = self._partial(made.tensor, _sizes(axes)[1], sum_dtype(dtype))
                kept = torch.uint8 if below < 2**8 else torch.int32
                rest = torch.empty_like(target.tensor, dtype=kept)
            self._launch(
                routes.route_backward_axis, source, axes, target, (route,), written=(rest,),
                of_inputs=True, SUM=sum_type(dtype), BELOW=below, LAST=is_last,
            )  # fmt: skip
            if rest is not None:
                source, route = target, rest

    @repeated
    def route_jvp(self, t: Tensor, routes: Tensor, y: Tensor, samples: None, threads: int) -> None:
        """Fill the tangent of the output."""
        self._route_jvp(t, routes, y, is_positions=False)

    @repeated
    def route_indices(self, routes: Tensor, indices: Tensor, samples: None, threads: int) -> None:
        """Fill the flat positions of the winners in their planes; -1 if there is none."""
        self._route_jvp(routes, routes, indices, is_positions=True)

    def _route_jvp(self, t: Tensor, route: Tensor, y: Tensor, is_positions: bool) -> None:
        self._launch(
            routes.route_jvp, view(t, self.layout), self.axes, self._output(y), (route,),
            elements=math.prod(self.sizes) * is_positions, POSITIONS=is_positions, BITS=self.bits,
        )  # fmt: skip

    # Averages

    @repeated
    def average(
        self, x: Tensor, y: Tensor, count_padding: bool, divisor: int, threads: int
    ) -> None:
        """Fill the mean of each window; wide windows are summed one axis after the other."""
        source, made = view(x, self.layout), self._output(y)
        is_wide = self.taps > UNROLLED
        if self.is_plane and is_wide:
            numbers = (divisor or self.taps,)
            self._launch_planes(
                averages.average_planes, source, made, (), numbers, SUM=sum_type(y.dtype)
            )
            return
        for axes, is_last in self._passes(self.separable[::-1] if is_wide else [], forward=True):
            target = made if is_last else self._partial(y, _sizes(axes)[0], sum_dtype(y.dtype))
            self._launch(
                averages.average, source, axes, target, numbers=(divisor,), HI=_paddings(axes),
                SUM=sum_type(y.dtype), DIVIDE=not divisor, BY_DIVISOR=bool(divisor) and is_last,
                PADDED=count_padding, **self._unrolling(axes),
            )  # fmt: skip
            source = target

    @repeated
    def average_backward(
        self, gy: Tensor, gx: Tensor, count_padding: bool, divisor: int, threads: int
    ) -> None:
        """Fill the gradient of the input, one axis after the other where windows are wide."""
        source, made = view(gy, self.layout), self._input(gx)
        sums, is_wide = sum_dtype(gx.dtype), self.taps > UNROLLED and not self.is_plane
        order = self.separable[::-1] if is_wide else []
        # Each cotangent is divided once, not once for each input of its window.
        shared = bool(order) or math.prod(windows_over(self.axes)) > 1
        if shared:
            target = self._partial(gy, self.out, sums)
            self._launch(
                averages.average_shares, source, self.axes, target, numbers=(divisor,),
                HI=_paddings(self.axes), BY_DIVISOR=bool(divisor), PADDED=count_padding,
            )  # fmt: skip
            source = target
        for axes, is_last in self._passes(order, forward=False):
            target = made if is_last else self._partial(gx, _sizes(axes)[1], sums)
            self._launch(
                averages.average_backward, source, axes, target, numbers=(divisor,),
                of_inputs=True, HI=_paddings(axes), SUM=sum_type(gx.dtype),
                DIVIDE=not shared and not divisor, BY_DIVISOR=not shared and bool(divisor),
                PADDED=count_padding, UNROLL=math.prod(windows_over(axes)) <= UNROLLED,
            )  # fmt: skip
            source = target

    def mixed(
        self, x: Tensor, alpha: Tensor, count: int, count_padding: bool, y: Tensor,
        routes: Tensor | None, slope: Tensor | None, threads: int,
    ) -> None:  # fmt: skip
        """Write ``alpha * max + (1 - alpha) * mean``, from the kernels of both."""
        wide = sum_dtype(y.dtype)
        most, mean = torch.empty_like(y), torch.empty_like(y, dtype=wide)
        self.select("max", x, most, routes, False, None, threads)
        self.average(x, mean, count_padding, 0, threads)
        a, most = self._by_channel(alpha, count, wide), most.to(wide)
        both = a * most + (1 - a) * mean
        y.copy_(torch.where(a == 1, most, torch.where(a == 0, mean, both)))
        if slope is not None:
            slope.copy_(most - mean)

    def mixed_backward(
        self, gy: Tensor, alpha: Tensor, count: int, count_padding: bool, routes: Tensor,
        gx: Tensor, threads: int,
    ) -> None:  # fmt: skip
        """Fill the gradient of the input."""
        wide = sum_dtype(gx.dtype)
        a = self._by_channel(alpha, count, wide)
        of_most, of_mean = torch.empty_like(gx, dtype=wide), torch.empty_like(gx, dtype=wide)
        self._route_backward(gy, routes, of_most)
        self.average_backward(gy, of_mean, count_padding, 0, threads)
        gx.copy_(a * of_most + (1 - a) * of_mean)

    def _by_channel(self, values: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        """Reshape a learned argument to broadcast with inputs and outputs."""
        shape = [1] * len(self.layout.in_shape)
        if count > 1:
            shape[self.layout.channel] = count
        return values.to(dtype).reshape(shape)

    # Nonlinear operators

    @repeated
    def nonlinear(
        self, which: str, x: Tensor, theta: Any, count: int, y: Tensor, residuals: list[Tensor],
        slope: Tensor | None, threads: int,
    ) -> None:  # fmt: skip
        """Fill outputs of a nonlinear operator, what backward needs, and the parameter's slope."""
        parameter, numbers, learned = self._parameter(theta, count, x)
        self._launch(
            nonlinear.nonlinear, view(x, self.layout), self.axes, self._output(y), (parameter,),
            numbers=numbers, written=(*(*residuals, None, None, None)[:3], slope),
            **self._plane_windows(), OPERATOR=_OPERATORS[which], MEAN=which == "lp_mean",
            LEARNED=learned, SUM=sum_type(x.dtype), KEEP=bool(residuals), SLOPE=slope is not None,
        )  # fmt: skip

    @repeated
    def nonlinear_backward(
        self, which: str, gy: Tensor, x: Tensor, theta: Any, count: int, residuals: list[Tensor],
        gx: Tensor, threads: int,
    ) -> None:  # fmt: skip
        """Fill the gradient of the input of a nonlinear operator."""
        read = view(x, self.layout)
        parameter, numbers, learned = self._parameter(theta, count, x)
        kept = (*residuals, *residuals[-1:] * (3 - len(residuals)))
        self._launch(
            nonlinear.nonlinear_backward, view(gy, self.layout), self.axes, self._input(gx),
            (read.tensor, parameter, *kept), numbers=(*numbers, read.p, *read.strides),
            views=(read,), of_inputs=True, **self._plane_windows(), OPERATOR=_OPERATORS[which],
            LEARNED=learned, SUM=sum_type(gx.dtype),
        )  # fmt: skip

    def _plane_windows(self) -> dict[str, Any]:
        """The constants of whole planes: equal for all sizes, so that a kernel is compiled once."""
        return {"K": (0, 0, 0), "S": (1, 1, 1), "KIND": (FEW,) * 3} if self.is_plane else {}

    def _parameter(
        self, theta: Any, count: int, like: Tensor
    ) -> tuple[Tensor, tuple[int, ...], int]:
        """A learned argument as `nonlinear.theta_of` reads it: memory, sizes and taps, kind."""
        layout, taps = self.layout, tuple(a.kernel for a in self.axes)
        if not isinstance(theta, Tensor):
            return like, (1, 1, *taps), 0
        if count == 1:
            return theta, (1, 1, *taps), 1
        if self.channels_last and layout.channel == layout.order[-1]:
            return theta, (count, 1, *taps), 3
        outer = layout.order[: len(layout.order) - len(layout.pooled) - self.channels_last]
        below = outer[outer.index(layout.channel) + 1 :]
        return theta, (count, math.prod(layout.in_shape[a] for a in below), *taps), 2

    # Launches

    def _launch(
        self, kernel: Any, source: View, axes: Axes, target: View, read: tuple[Tensor, ...] = (),
        *, numbers: tuple[int, ...] = (), written: tuple[Tensor | None, ...] = (),
        views: tuple[View, ...] = (), elements: int = 0, packed_bits: int = 0,
        of_inputs: bool = False, lanes: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Launch a kernel whose tiles are outputs or, `of_inputs`, inputs of the windows `axes`.

        Its arguments are the pointers that it reads (`source` and `read`), the numbers that
        `geometry.prologue` takes and `numbers`, the pointers that it writes (`target` and
        `written`), and constants. `views`, `elements`: see `index_type`; `packed_bits`: of the
        routes that it writes; `lanes`: of a line of the width, if not its size.
        """
        out, sizes = _sizes(axes)
        depth, height, row_w = sizes if of_inputs else out
        if packed_bits and self.channels_last:
            row_w = -(-row_w // (8 // packed_bits)) * (8 // packed_bits)
        rows = self.planes * depth * height * (row_w if self.channels_last else 1)
        lanes = self.channels if self.channels_last else lanes or row_w
        elements = max(elements, self.taps)
        index = index_type(source, target, *views, axes=self.axes, elements=elements)
        cut = tiles(rows, lanes, self.channels_last, index)
        over = {"OVER": windows_over(axes)} if of_inputs else {}
        launch(
            kernel, cut.grid, source.tensor, *read,
            cut.rows, cut.lanes, *sizes, *out, row_w, source.p, *source.strides, *numbers,
            target.tensor, *_pointers(written, target.tensor),
            **(window_constants(axes) | over | options | cut.constants),
            ALIGN=align(cut, source, sizes[2], out[2]),
        )  # fmt: skip

    def _launch_planes(
        self, kernel: Any, source: View, target: View, written: tuple[Tensor | None, ...],
        numbers: tuple[int, ...] = (), **options: Any,
    ) -> None:  # fmt: skip
        """Launch a tree reduction of whole planes."""
        cut = tiles_of_planes(source, self.channels_last, index_type(source, target))
        launch(
            kernel, cut.grid, source.tensor, cut.rows, cut.lanes, *flattened(source), *numbers,
            target.tensor, *_pointers(written, target.tensor), **options, **cut.constants,
        )  # fmt: skip

    def _unrolling(self, axes: Axes, is_possible: bool = True) -> dict[str, Any]:
        """Whether all taps of a window are unrolled, and loaded in pairs along the width."""
        unroll = is_possible and math.prod(a.kernel for a in axes) <= UNROLLED
        pairs = unroll and not self.channels_last and in_pairs(axes[2]) and axes[2].kernel > 1
        return {"UNROLL": unroll, "PAIRS": pairs}

    def _passes(self, order: list[int], forward: bool) -> Iterator[tuple[Axes, bool]]:
        """The windows of each pass over an array, and whether it is the last one.

        One pass for each axis of `order`, or one over all axes if there is none.
        """
        if not order:
            yield self.axes if forward else self._gradient_axes(), True
        sizes, pooled = (self.sizes, self.out) if forward else (self.out, self.sizes)
        now = [*sizes]
        for a in order:
            yield only(self.axes, a, now), a == order[-1]
            now[a] = pooled[a]

    def _gradient_axes(self) -> Axes:
        """The windows of a gradient: a plane that is one window is one axis of memory."""
        if not self.is_plane:
            return self.axes
        size = math.prod(self.sizes)
        return Axis(1, 1, 1), Axis(1, 1, 1), Axis(size, 1, size, size)

    def _partial(self, like: Tensor, sizes: Sizes, dtype: torch.dtype) -> View:
        """Allocate an intermediate result of a separable pass."""
        made = like.new_empty((self.planes, *sizes, self.channels), dtype=dtype)
        return contiguous(made, self.planes, sizes, self.channels)

    def _output(self, y: Tensor) -> View:
        return contiguous(y, self.planes, self.out, self.channels)

    def _input(self, gx: Tensor) -> View:
        return contiguous(gx, self.planes, self.sizes, self.channels)


def _sizes(axes: Axes) -> tuple[Sizes, Sizes]:
    """Return the numbers of windows along the axes, and the sizes of the input."""
    depth, height, width = axes
    return (depth.out, height.out, width.out), (depth.size, height.size, width.size)


def _paddings(axes: Axes) -> tuple[int, ...]:
    """High paddings, which count in averages."""
    return tuple(a.hi for a in axes)


def _pointers(written: tuple[Tensor | None, ...], like: Tensor) -> list[Tensor]:
    """Replace None by an empty tensor, for a pointer that a kernel does not write.

    A second reference to another argument would be an alias, which breaks the replacement of
    written arguments by copies when a compiler functionalises the launch.
    """
    return [like.new_empty(0) if t is None else t for t in written]
