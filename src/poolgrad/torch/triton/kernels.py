"""`Kernels`: what the compiled kernels do for a layout, done by Triton on the tensors' device."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from poolgrad.core import Layout
from poolgrad.torch.triton import selecting
from poolgrad.torch.triton.launch import (
    View,
    axes_of,
    constants,
    contiguous,
    index_type,
    launch,
    sum_type,
    tiles,
    view,
    windows_over,
)
from poolgrad.window import Axis

_ORDERS = {"max": 0, "min": 1, "relu_max": 2}
UNROLLED = 32  # taps of the largest window whose taps are unrolled; wider ones are separated

Axes = tuple[Axis, Axis, Axis]


class Kernels:
    """The kernels of one layout, with the methods of the compiled ``_kernels.Plan``.

    Parameters
    ----------
    layout : Layout
        Windows, shapes and memory order.
    route_bits : int
        Of a packed route; 0 where routes are whole bytes.
    """

    def __init__(self, layout: Layout, route_bits: int) -> None:
        self.layout, self.bits = layout, route_bits
        self.axes = axes_of(layout)
        self.places = math.prod(a.kernel for a in self.axes)
        self.out = tuple(a.out for a in self.axes)
        self.sizes = tuple(a.size for a in self.axes)
        self.channels_last = layout.order[-1] not in layout.pooled
        self.channels = layout.in_shape[layout.order[-1]] if self.channels_last else 1
        pooled = math.prod(layout.out_shape[a] for a in layout.pooled)
        self.planes = math.prod(layout.out_shape) // pooled // max(self.channels, 1)

    # Selecting operators

    def select(
        self, which: str, x: Tensor, y: Tensor, routes: Tensor | None, lone: bool,
        samples: Tensor | None, threads: int,
    ) -> None:  # fmt: skip
        """Fill the output and the routes; `lone`: an extreme that occurs twice has no route."""
        if which == "median":
            return self._select_rank(x, y, routes, lone)
        order, first = _ORDERS[which], self._first_inputs(samples)
        bits = {"ORDER": order, "BOOL": x.dtype == torch.bool}
        given, made = view(x, self.layout), self._output(y)
        if self._is_plane() and self.places > UNROLLED and not lone and not self.bits:
            return self._select_planes(given, made, routes, bits)
        wide = [a for a, axis in enumerate(self.axes) if axis.kernel > 1]
        if self.places <= UNROLLED or len(wide) == 1 or lone or samples is not None:
            self._select(given, None, first, self.axes, made, routes, bits, lone, 0, True)
            return None
        prior, taps = None, 1
        index = index_type(given, made, axes=self.axes)
        for a in reversed(wide):  # separable: one axis after the other, from the innermost
            last = a == wide[0]
            axes = _only(self.axes, a, given.sizes)
            out = tuple(axis.out for axis in axes)
            if last:
                target, tap = made, routes
            else:
                shape = (self.planes, *out, self.channels)
                target = contiguous(x.new_empty(shape), self.planes, out, self.channels)
                kept = torch.int64 if self.places >= 2**31 else torch.int32
                tap = x.new_empty(shape, dtype=kept)
            self._select(given, prior, first, axes, target, tap, bits, lone, taps, last, index)
            given, prior, taps = target, tap, taps * axes[a].kernel
        return None

    def _select(
        self, x: View, prior: Tensor | None, first: Tensor, axes: Axes, y: View,
        routes: Tensor | None, order: dict[str, Any], lone: bool, taps: int, last: bool,
        index: Any = None,
    ) -> None:  # fmt: skip
        index = index or index_type(x, y, axes=axes)
        bits, (d, h, w) = self.bits if last else 0, (a.out for a in axes)
        row_w = -(-w // (8 // bits)) * (8 // bits) if bits and self.channels_last else w
        rows = y.planes * d * h * (row_w if self.channels_last else 1)
        cut = tiles(rows, y.channels if self.channels_last else w, self.channels_last, index)
        unroll = math.prod(a.kernel for a in axes) <= UNROLLED and prior is None
        pairs = unroll and not self.channels_last and _in_pairs(axes[2]) and axes[2].kernel > 1
        launch(
            selecting.select, cut.grid,
            x.tensor, first if prior is None else prior, first,
            cut.rows, cut.lanes, *(a.size for a in axes), d, h, w, row_w, x.p, *x.strides,
            y.tensor, y.tensor if routes is None else routes,
            **constants(axes), **order, ZERO_TIES=lone, PRIOR=0 if prior is None else taps,
            LAST=last, ROUTES=routes is not None, BITS=bits, PAIRS=pairs, UNROLL=unroll,
            **cut.constants,
        )  # fmt: skip

    def _select_planes(
        self, x: View, y: View, routes: Tensor | None, order: dict[str, Any]
    ) -> None:
        index = index_type(x, y)
        lanes = self.channels if self.channels_last else 1
        width = 32 if self.channels_last else 1
        size = math.prod(self.sizes)
        taps = min(1024 // width, max(16, 1 << (size - 1).bit_length()))
        height = max(1, 1024 // (width * taps))
        grid = -(-y.planes // height) * -(-lanes // width)
        launch(
            selecting.select_planes, grid, x.tensor, y.planes, lanes, *self.sizes, x.p, *x.strides,
            y.tensor, y.tensor if routes is None else routes,
            **order, ROUTES=routes is not None, INDEX=index, ROWS=height, LANES=width, TAPS=taps,
        )  # fmt: skip

    def route_backward(
        self, gy: Tensor, routes: Tensor, gx: Tensor, samples: Tensor | None, threads: int
    ) -> None:
        """Fill the gradient of the input."""
        first = self._first_inputs(samples)
        last = first if samples is None else self._last_windows(first)
        given, made = view(gy, self.layout), self._input(gx)
        index = index_type(given, made, axes=self.axes)
        over = [windows_over(a) for a in self.axes]
        unroll = math.prod(over) <= UNROLLED and samples is None
        pairs = unroll and not self.channels_last and _in_pairs(self.axes[2])
        d, h, w = self.sizes
        lanes = self.channels if self.channels_last else w
        if pairs:
            lanes = (w + self.axes[2].lo + 1) // 2
        rows = self.planes * d * h * (w if self.channels_last else 1)
        cut = tiles(rows, lanes, self.channels_last, index)
        launch(
            selecting.route_backward, cut.grid, given.tensor, routes, first, last,
            cut.rows, cut.lanes, d, h, w, *self.out, w, given.p, *given.strides,
            made.tensor,
            **constants(self.axes), TD=over[0], TH=over[1], TW=over[2],
            SUM=sum_type(gx.dtype), BITS=self.bits, PAIRS=pairs, UNROLL=unroll, **cut.constants,
        )  # fmt: skip

    # What all have in common

    def _is_plane(self) -> bool:
        """Whether every plane is one window."""
        return all(
            a.out == 1 and a.kernel == a.size and not a.lo and not a.table and a.dilation == 1
            for a in self.axes
        )

    def _output(self, y: Tensor) -> View:
        return contiguous(_storage(y), self.planes, self.out, self.channels)

    def _input(self, gx: Tensor) -> View:
        return contiguous(_storage(gx), self.planes, self.sizes, self.channels)

    def _first_inputs(self, samples: Tensor | None) -> Tensor:
        raise NotImplementedError


def _storage(tensor: Tensor) -> Tensor:
    """The tensor whose elements lie in the order of the layout, without bool."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _only(axes: Axes, pooled: int, sizes: tuple[int, int, int]) -> Axes:
    """The windows of one axis; the others of these sizes are left alone."""
    kept = [a if k == pooled else Axis(sizes[k], sizes[k], 1) for k, a in enumerate(axes)]
    return kept[0], kept[1], kept[2]


def _in_pairs(axis: Axis) -> bool:
    """Whether windows of a width begin at every second input, so that pairs of inputs go along."""
    return axis.stride == 2 and axis.dilation == 1 and not axis.adaptive and not axis.table
