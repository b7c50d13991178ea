"""`SelectingKernels`: launches of operators where one input of each window wins."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from poolgrad.torch.triton import extremes, median, stochastic, ties
from poolgrad.torch.triton.launch import (
    View,
    align,
    constants,
    contiguous,
    index_type,
    launch,
    repeated,
    sum_type,
    tiles,
    view,
    windows_over,
)
from poolgrad.torch.triton.layout import (
    UNROLLED,
    Axes,
    LayoutKernels,
    flattened,
    in_pairs,
    only,
    sum_dtype,
    written,
)
from poolgrad.torch.triton.routes import route_backward, route_backward_axis, route_jvp

_ORDERS = {"max": 0, "min": 1, "relu_max": 2}


class SelectingKernels(LayoutKernels):
    """Extremes, medians, draws and shared winners; see `LayoutKernels`."""

    @repeated
    def select(
        self, which: str, x: Tensor, y: Tensor, routes: Tensor | None, zero_ties: bool,
        samples: Tensor | None, threads: int,
    ) -> None:  # fmt: skip
        """Fill the output and the routes; `zero_ties`: an extreme that occurs twice has no route.

        Extremes of wide windows are separable: one axis after the other, from the innermost.
        """
        if which == "median":
            return self._select_rank(x, y, routes, zero_ties)
        given, made = view(x, self.layout), self._output(y)
        first = self._first_inputs(samples, given.tensor)
        order = {"ORDER": _ORDERS[which], "BOOL": x.dtype == torch.bool}
        if self._is_plane() and self.places > UNROLLED and not zero_ties and not self.bits:
            return self._select_planes(given, made, routes, order)
        several = self._pooled_axes()
        if self.places <= UNROLLED or len(several) < 2 or zero_ties or samples is not None:
            index = index_type(given, made, axes=self.axes, elements=self.places)
            self._select(given, None, first, self.axes, made, routes, order, zero_ties, 0, index)
            return None
        prior, taps = None, 1
        for a in reversed(several):
            axes = only(self.axes, a, given.sizes)
            target, tap = made, routes
            if a != several[0]:
                target = self._partial(x, tuple(axis.out for axis in axes), x.dtype)
                kept = torch.int64 if self.places >= 2**31 else torch.int32
                tap = None if routes is None else torch.empty_like(target.tensor, dtype=kept)
            last = a == several[0] or routes is None
            index = index_type(given, target, axes=self.axes, elements=self.places)
            self._select(given, prior, first, axes, target, tap, order, False, taps, index, last)
            given, prior, taps = target, tap, taps * axes[a].kernel
        return None

    def _select(
        self, x: View, prior: Tensor | None, first: Tensor, axes: Axes, y: View,
        routes: Tensor | None, order: dict[str, Any], zero_ties: bool, taps: int, index: Any,
        last: bool = True,
    ) -> None:  # fmt: skip
        bits, (d, h, w) = self.bits if last else 0, (a.out for a in axes)
        row_w = -(-w // (8 // bits)) * (8 // bits) if bits and self.channels_last else w
        rows = y.planes * d * h * (row_w if self.channels_last else 1)
        cut = tiles(rows, y.channels if self.channels_last else w, self.channels_last, index)
        unroll = math.prod(a.kernel for a in axes) <= UNROLLED and prior is None
        pairs = unroll and not self.channels_last and in_pairs(axes[2]) and axes[2].kernel > 1
        launch(
            extremes.select, cut.grid,
            x.tensor, first if prior is None else prior, first,
            cut.rows, cut.lanes, *(a.size for a in axes), d, h, w, row_w, x.p, *x.strides,
            y.tensor, written(routes, y.tensor),
            **constants(axes), **order, ZERO_TIES=zero_ties, PRIOR=0 if prior is None else taps,
            LAST=last, ROUTES=routes is not None, BITS=bits, PAIRS=pairs, UNROLL=unroll,
            **cut.constants, **align(cut, x, axes[2].size, w),
        )  # fmt: skip

    def _select_planes(
        self, x: View, y: View, routes: Tensor | None, order: dict[str, Any]
    ) -> None:
        cut, index = self._tiles_of_planes(), index_type(x, y)
        launch(
            extremes.select_planes, cut.grid, x.tensor, cut.rows, cut.lanes, *flattened(x),
            y.tensor, written(routes, y.tensor),
            **order, ROUTES=routes is not None, INDEX=index, **cut.constants,
        )  # fmt: skip

    @repeated
    def route_backward(
        self, gy: Tensor, routes: Tensor, gx: Tensor, samples: Tensor | None, threads: int
    ) -> None:
        """Fill the gradient of the input; of extremes over wide windows, one axis at a time."""
        self._route_backward(gy, routes, gx, samples, separable=self.order in _ORDERS)

    def _route_backward(
        self, gy: Tensor, routes: Tensor, gx: Tensor, samples: Tensor | None, separable: bool
    ) -> None:
        given, made = view(gy, self.layout), self._input(gx)
        axes, sizes = self._of_gradient()
        over = windows_over(axes, samples)
        windows = math.prod(over["OVER"])
        several = self._pooled_axes()
        if separable and windows > UNROLLED and len(several) > 1 and samples is None:
            return self._separable_backward(given, routes, made, several)
        first = self._first_inputs(samples, given.tensor)
        last = first if samples is None else self._last_windows(first)
        index = index_type(given, made, axes=self.axes, elements=self.places)
        unroll = windows <= UNROLLED and samples is None
        pairs = unroll and not self.channels_last and in_pairs(axes[2])
        d, h, w = sizes
        cut = self._tiles_of(sizes, w, index)
        if pairs:
            ahead = (axes[2].lo + 1) // 2
            along_w = (axes[2].kernel - 1 + 2 * ahead - axes[2].lo) // 2 + 1
            over = {"OVER": (*over["OVER"][:2], along_w)}
            cut = tiles(self.planes * d * h, (w + 1) // 2, False, index)
        launch(
            route_backward, cut.grid, given.tensor, routes, first, last,
            cut.rows, cut.lanes, *sizes, *self.out, w, given.p, *given.strides, made.tensor,
            **constants(axes), **over,
            SUM=sum_type(gx.dtype), BITS=self.bits, PAIRS=pairs, UNROLL=unroll, **cut.constants,
            **align(cut, given, w, self.out[2]),
        )  # fmt: skip
        return None

    def _separable_backward(
        self, given: View, routes: Tensor, made: View, several: list[int]
    ) -> None:
        """`route_backward` along the axes `several`, from the outermost."""
        sizes, dtype = list(self.out), made.tensor.dtype
        for a in several:
            sizes[a] = self.sizes[a]
            axes = only(self.axes, a, (sizes[0], sizes[1], sizes[2]))
            below = math.prod(axis.kernel for axis in self.axes[a + 1 :])
            last = a == several[-1]
            target, rest = made, written(None, routes)
            if not last:
                target = self._partial(made.tensor, tuple(sizes), sum_dtype(dtype))
                kept = torch.uint8 if below < 2**8 else torch.int32
                rest = torch.empty_like(target.tensor, dtype=kept)
            index = index_type(given, target, axes=self.axes, elements=self.places)
            cut = self._tiles_of(tuple(sizes), sizes[2], index)
            launch(
                route_backward_axis, cut.grid, given.tensor, routes,
                cut.rows, cut.lanes, *sizes, *(axis.out for axis in axes), sizes[2],
                given.p, *given.strides, target.tensor, rest,
                **constants(axes), **windows_over(axes), SUM=sum_type(dtype), BELOW=below,
                LAST=last, **cut.constants, **align(cut, given, sizes[2], axes[2].out),
            )  # fmt: skip
            given, routes = target, rest

    @repeated
    def route_jvp(
        self, t: Tensor, routes: Tensor, y: Tensor, samples: Tensor | None, threads: int
    ) -> None:
        """Fill the tangent of the output."""
        self._by_outputs(
            route_jvp, t, (routes,), samples, (), (self._output(y).tensor,),
            POSITIONS=False, BITS=self.bits,
        )  # fmt: skip

    @repeated
    def route_indices(
        self, routes: Tensor, indices: Tensor, samples: Tensor | None, threads: int
    ) -> None:
        """Fill the flat positions of the winners in their planes; -1 if there is none."""
        self._by_outputs(
            route_jvp, routes, (routes,), samples, (), (indices,),
            elements=max(math.prod(self.sizes), self.places), POSITIONS=True, BITS=self.bits,
        )  # fmt: skip

    def _select_rank(self, x: Tensor, y: Tensor, routes: Tensor | None, zero_ties: bool) -> None:
        signed = x.dtype.is_floating_point or x.dtype.is_signed
        made = self._output(y).tensor
        self._by_outputs(
            median.select_rank, x, (), None, (), (made, written(routes, made)),
            padded=True, ZERO_TIES=zero_ties, ROUTES=routes is not None, BITS=self.bits,
            KEY_BITS=8 * x.itemsize + (not signed),
        )  # fmt: skip

    def draw(
        self, x: Tensor, y: Tensor, routes: Tensor | None, seed: Tensor | int, threads: int
    ) -> None:
        """Fill a random choice of each window, of a probability given by its positive part."""
        made = self._output(y).tensor
        if not isinstance(seed, Tensor):
            seed = torch.full((), seed, dtype=torch.int64, device=x.device)
        shape = torch.empty(self.layout.out_shape, dtype=torch.int8, device="meta")
        numbers = view(shape, self.layout)
        self._by_outputs(
            stochastic.draw, x, (), None, (numbers.p, *numbers.strides),
            (made, written(routes, made)), extra=(seed.reshape(1),),
            padded=True, ROUTES=routes is not None, BITS=self.bits,
        )  # fmt: skip

    @repeated
    def split_winners(
        self, which: str, x: Tensor, y: Tensor, winners: Tensor, samples: Tensor | None,
        threads: int,
    ) -> None:  # fmt: skip
        """Fill one bit for each tap that wins."""
        self._by_outputs(
            ties.split_winners, x, (self._output(y).tensor,), samples, (), (winners,),
            elements=winners.numel(), POSITIVE=which == "relu_max", BYTES=winners.shape[-1],
        )  # fmt: skip

    @repeated
    def split_backward(
        self, gy: Tensor, winners: Tensor, gx: Tensor, samples: Tensor | None, threads: int
    ) -> None:
        """Fill the gradient of the input from equal shares."""
        size = winners.shape[-1]
        shares = gy.new_empty(winners.numel() // size, dtype=sum_dtype(gy.dtype))
        given = view(gy, self.layout)
        shared = contiguous(shares, self.planes, self.out, self.channels)
        made = self._input(gx)
        index = index_type(given, made, axes=self.axes, elements=winners.numel())
        cut = self._tiles_of(self.out, self.out[2], index)
        launch(
            ties.split_shares, cut.grid, given.tensor, winners,
            *self._sizes(cut, given, self.out[2]), shares, BYTES=size, **cut.constants,
            **self._align(cut, given),
        )  # fmt: skip
        first = self._first_inputs(samples, shares)
        last = first if samples is None else self._last_windows(first)
        cut = self._tiles_of(self.sizes, self.sizes[2], index)
        launch(
            ties.split_backward, cut.grid, shares, winners, first, last,
            *self._sizes(cut, shared, self.sizes[2]), made.tensor,
            **constants(self.axes), **windows_over(self.axes, samples), BYTES=size, **cut.constants,
            **self._align(cut, shared),
        )  # fmt: skip

    @repeated
    def split_jvp(
        self, t: Tensor, winners: Tensor, y: Tensor, samples: Tensor | None, threads: int
    ) -> None:
        """Fill the tangent of the output from equal shares."""
        self._by_outputs(
            ties.split_jvp, t, (winners,), samples, (), (y,),
            elements=winners.numel(), SUM=sum_type(y.dtype), BYTES=winners.shape[-1],
        )  # fmt: skip
