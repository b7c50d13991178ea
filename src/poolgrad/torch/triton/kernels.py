"""`Kernels`: what the compiled kernels do for a layout, done by Triton on the tensors' device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from poolgrad.core import Layout
from poolgrad.torch._compat import assert_later
from poolgrad.torch.triton import selecting, unpool, weighted
from poolgrad.torch.triton.launch import (
    TILE,
    Tiles,
    View,
    axes_of,
    constants,
    contiguous,
    index_type,
    launch,
    sum_type,
    tiles,
    units,
    view,
    windows_over,
)
from poolgrad.windows import Axis

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
        given, made = view(x, self.layout), self._output(y)
        first = self._first_inputs(samples, given.tensor)
        bits = {"ORDER": _ORDERS[which], "BOOL": x.dtype == torch.bool}
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
            **cut.constants, **units(cut, x, axes[2].size, w),
        )  # fmt: skip

    def _select_planes(
        self, x: View, y: View, routes: Tensor | None, order: dict[str, Any]
    ) -> None:
        cut, index = self._tiles_of_planes(), index_type(x, y)
        launch(
            selecting.select_planes, cut.grid, x.tensor, cut.rows, cut.lanes, *_flattened(x),
            y.tensor, y.tensor if routes is None else routes,
            **order, ROUTES=routes is not None, INDEX=index, **cut.constants,
        )  # fmt: skip

    def route_backward(
        self, gy: Tensor, routes: Tensor, gx: Tensor, samples: Tensor | None, threads: int
    ) -> None:
        """Fill the gradient of the input."""
        given, made = view(gy, self.layout), self._input(gx)
        first = self._first_inputs(samples, given.tensor)
        last = first if samples is None else self._last_windows(first)
        index = index_type(given, made, axes=self.axes)
        over = self._windows_over(samples)
        unroll = math.prod(over.values()) <= UNROLLED and samples is None
        pairs = unroll and not self.channels_last and _in_pairs(self.axes[2])
        d, h, w = self.sizes
        cut = self._tiles_of(self.sizes, w, index)
        if pairs:
            ahead = (self.axes[2].lo + 1) // 2
            over["TW"] = (self.axes[2].kernel - 1 + 2 * ahead - self.axes[2].lo) // 2 + 1
            cut = tiles(self.planes * d * h, (w + 1) // 2, False, index)
        launch(
            selecting.route_backward, cut.grid, given.tensor, routes, first, last,
            *self._sizes(cut, given, w), made.tensor,
            **constants(self.axes), **over,
            SUM=sum_type(gx.dtype), BITS=self.bits, PAIRS=pairs, UNROLL=unroll, **cut.constants,
            **units(cut, given, w, self.out[2]),
        )  # fmt: skip

    def route_follow(
        self, t: Tensor, routes: Tensor, y: Tensor, samples: Tensor | None, threads: int
    ) -> None:
        """Fill the tangent of the output."""
        self._by_outputs(
            selecting.route_follow, t, (routes,), samples, (), (self._output(y).tensor,),
            POSITIONS=False, BITS=self.bits,
        )  # fmt: skip

    def route_indices(
        self, routes: Tensor, indices: Tensor, samples: Tensor | None, threads: int
    ) -> None:
        """Fill the flat positions of the winners in their planes; -1 if there is none."""
        self._by_outputs(
            selecting.route_follow, routes, (routes,), samples, (), (indices,),
            POSITIONS=True, BITS=self.bits,
        )  # fmt: skip

    def _select_rank(self, x: Tensor, y: Tensor, routes: Tensor | None, lone: bool) -> None:
        signed = x.dtype.is_floating_point or x.dtype.is_signed
        made = self._output(y).tensor
        self._by_outputs(
            selecting.select_rank, x, (), None, (), (made, made if routes is None else routes),
            padded=True, ZERO_TIES=lone, ROUTES=routes is not None, BITS=self.bits,
            KEY_BITS=8 * x.itemsize + (not signed),
        )  # fmt: skip

    def draw(
        self, x: Tensor, y: Tensor, routes: Tensor | None, seed: Tensor | int, threads: int
    ) -> None:
        """Fill a random choice of each window, of a probability given by its positive part."""
        made = self._output(y).tensor
        drawn = seed if isinstance(seed, Tensor) else torch.tensor(seed, device=x.device)
        numbers = view(torch.empty(self.layout.out_shape, device="meta"), self.layout)
        self._by_outputs(
            selecting.draw, x, (), None, (numbers.p, *numbers.strides),
            (made, made if routes is None else routes), extra=(drawn.reshape(1),),
            padded=True, ROUTES=routes is not None, BITS=self.bits,
        )  # fmt: skip

    def split_winners(
        self, which: str, x: Tensor, y: Tensor, winners: Tensor, samples: Tensor | None,
        threads: int,
    ) -> None:  # fmt: skip
        """Fill one bit for each tap that wins."""
        self._by_outputs(
            selecting.split_winners, x, (self._output(y).tensor,), samples, (), (winners,),
            POSITIVE=which == "relu_max", BYTES=winners.shape[-1],
        )  # fmt: skip

    def split_backward(
        self, gy: Tensor, winners: Tensor, gx: Tensor, samples: Tensor | None, threads: int
    ) -> None:
        """Fill the gradient of the input from equal shares."""
        size = winners.shape[-1]
        wide = torch.float64 if gy.dtype == torch.float64 else torch.float32
        shares = gy.new_empty(winners.numel() // size, dtype=wide)
        given = view(gy, self.layout)
        shared = contiguous(shares, self.planes, self.out, self.channels)
        made, index = self._input(gx), index_type(given, self._input(gx), axes=self.axes)
        cut = self._tiles_of(self.out, self.out[2], index)
        launch(
            selecting.split_shares, cut.grid, given.tensor, winners,
            *self._sizes(cut, given, self.out[2]), shares, BYTES=size, **cut.constants,
            **self._units(cut, given),
        )  # fmt: skip
        first = self._first_inputs(samples, shares)
        last = first if samples is None else self._last_windows(first)
        cut = self._tiles_of(self.sizes, self.sizes[2], index)
        launch(
            selecting.split_backward, cut.grid, shares, winners, first, last,
            *self._sizes(cut, shared, self.sizes[2]), made.tensor,
            **constants(self.axes), **self._windows_over(samples), BYTES=size, **cut.constants,
            **self._units(cut, shared),
        )  # fmt: skip

    def split_follow(
        self, t: Tensor, winners: Tensor, y: Tensor, samples: Tensor | None, threads: int
    ) -> None:
        """Fill the tangent of the output from equal shares."""
        self._by_outputs(
            selecting.split_follow, t, (winners,), samples, (), (y,),
            SUM=sum_type(y.dtype), BYTES=winners.shape[-1],
        )  # fmt: skip

    # Unpooling

    def unpool(self, x: Tensor, indices: Tensor, y: Tensor, threads: int) -> None:
        """Fill the output with zeros and every input where its index says."""
        targets, places = self._targets(indices)
        y.zero_()
        self._scatter(unpool.unpool, self._in_memory_order(x), targets, places, self._output(y))

    def unpool_backward(self, gy: Tensor, indices: Tensor, gx: Tensor, threads: int) -> None:
        """Fill the gradient of the input."""
        targets, places = self._targets(indices)
        self._scatter(
            unpool.unpool_backward, self._in_memory_order(gy), targets, places, self._input(gx)
        )

    def _scatter(
        self, kernel: Any, values: Tensor, targets: Tensor, places: Tensor, made: View
    ) -> None:
        count = targets.numel()
        grid = -(-count // TILE)
        launch(kernel, grid, values, targets, places, count, made.tensor, BLOCK=TILE)

    def _targets(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The sorted positions of inputs in the output's memory, and where each stood before."""
        size = math.prod(self.out)
        assert_later(
            ((indices >= 0) & (indices < size)).all(), f"indices must be from 0 to {size - 1}"
        )
        flat = self._in_memory_order(indices).reshape(self.planes, -1, self.channels)
        device = indices.device
        plane = torch.arange(self.planes, device=device).reshape(-1, 1, 1)
        channel = torch.arange(self.channels, device=device)
        target = (plane * size + flat) * self.channels + channel
        ordered, place = torch.sort(target.reshape(-1), stable=True)
        return ordered, place

    def _in_memory_order(self, tensor: Tensor) -> Tensor:
        return _storage(tensor).permute(self.layout.order).contiguous()

    # Weighted operators

    def average(
        self, x: Tensor, y: Tensor, count_padding: bool, divisor: float, threads: int
    ) -> None:
        """Fill the mean of each window; wide windows are summed one axis after the other."""
        given, made = view(x, self.layout), self._output(y)
        if self._is_plane() and self.places > UNROLLED:
            cut, index = self._tiles_of_planes(), index_type(given, made)
            launch(
                weighted.average_planes, cut.grid, given.tensor, cut.rows, cut.lanes,
                *_flattened(given), float(divisor or self.places), made.tensor,
                SUM=sum_type(y.dtype), INDEX=index, **cut.constants,
            )  # fmt: skip
            return
        index = index_type(given, made, axes=self.axes)
        for axes, last in self._passes(reverse=True):
            out = tuple(a.out for a in axes)
            target = made if last else self._partial(y, out)
            cut = self._tiles_of(out, out[2], index)
            unroll = math.prod(a.kernel for a in axes) <= UNROLLED
            pairs = unroll and not self.channels_last and _in_pairs(axes[2]) and axes[2].kernel > 1
            launch(
                weighted.average, cut.grid, given.tensor,
                cut.rows, cut.lanes, *(a.size for a in axes), *out, out[2], given.p, *given.strides,
                float(divisor), target.tensor,
                **constants(axes), **_paddings(axes), **_dividing(divisor, last),
                SUM=sum_type(y.dtype), PADDED=count_padding, PAIRS=pairs, UNROLL=unroll,
                **cut.constants, **units(cut, given, axes[2].size, out[2]),
            )  # fmt: skip
            given = target

    def average_backward(
        self, gy: Tensor, gx: Tensor, count_padding: bool, divisor: float, threads: int
    ) -> None:
        """Fill the gradient of the input, one axis after the other where windows are wide."""
        given, made = view(gy, self.layout), self._input(gx)
        index = index_type(given, made, axes=self.axes)
        for axes, last in self._passes(reverse=False):
            sizes = tuple(a.size for a in axes)
            target = made if last else self._partial(gx, sizes)
            cut = self._tiles_of(sizes, sizes[2], index)
            over = {f"T{n}": windows_over(a) for n, a in zip("DHW", axes, strict=True)}
            launch(
                weighted.average_backward, cut.grid, given.tensor,
                cut.rows, cut.lanes, *sizes, *(a.out for a in axes), sizes[2],
                given.p, *given.strides, float(divisor), target.tensor,
                **constants(axes), **_paddings(axes), **over, **_dividing(divisor, last),
                SUM=sum_type(gx.dtype), PADDED=count_padding, **cut.constants,
                **units(cut, given, sizes[2], axes[2].out),
            )  # fmt: skip
            given = target

    def mixed(
        self, x: Tensor, alpha: Tensor, count: int, count_padding: bool, y: Tensor,
        routes: Tensor | None, sensitivity: Tensor | None, threads: int,
    ) -> None:  # fmt: skip
        """Fill a share of the maximum and the rest of the mean, from the kernels of both."""
        wide = _wide(y.dtype)
        most, mean = torch.empty_like(y), torch.empty_like(y, dtype=wide)
        self.select("max", x, most, routes, False, None, threads)
        self.average(x, mean, count_padding, 0, threads)
        a, most = self._by_channel(alpha, count, wide), most.to(wide)
        blend = torch.where(a == 1, most, torch.where(a == 0, mean, a * most + (1 - a) * mean))
        y.copy_(blend)
        if sensitivity is not None:
            sensitivity.copy_(most - mean)

    def mixed_backward(
        self, gy: Tensor, alpha: Tensor, count: int, count_padding: bool, routes: Tensor,
        gx: Tensor, threads: int,
    ) -> None:  # fmt: skip
        """Fill the gradient of the input."""
        wide = _wide(gx.dtype)
        a = self._by_channel(alpha, count, wide)
        of_most, of_mean = torch.empty_like(gx, dtype=wide), torch.empty_like(gx, dtype=wide)
        self.route_backward(gy, routes, of_most, None, threads)
        self.average_backward(gy, of_mean, count_padding, 0, threads)
        gx.copy_(a * of_most + (1 - a) * of_mean)

    def curved(
        self, which: str, x: Tensor, theta: Any, count: int, y: Tensor, kept: list[Tensor],
        sensitivity: Tensor | None, threads: int,
    ) -> None:  # fmt: skip
        """Fill outputs of a nonlinear operator, what backward needs, and the parameter's slope."""
        given, made = view(x, self.layout), self._output(y)
        index = index_type(given, made, axes=self.axes)
        cut = self._tiles_of(self.out, self.out[2], index)
        parameter, numbers, learned = self._parameter(theta, count, x)
        kinds = {"lp": 0, "lp_mean": 0, "lse": 1, "soft": 2, "expected": 3}
        beside = [*kept, *(made.tensor,) * (3 - len(kept))]
        launch(
            weighted.nonlinear, cut.grid, given.tensor, parameter,
            *self._sizes(cut, given, self.out[2]), *numbers,
            made.tensor, *beside, made.tensor if sensitivity is None else sensitivity,
            **constants(self.axes), KIND=kinds[which], MEAN=which == "lp_mean", LEARNED=learned,
            SUM=sum_type(x.dtype), KEEP=bool(kept), SLOPE=sensitivity is not None,
            **cut.constants, **self._units(cut, given),
        )  # fmt: skip

    def curved_backward(
        self, which: str, gy: Tensor, x: Tensor, theta: Any, count: int, kept: list[Tensor],
        gx: Tensor, threads: int,
    ) -> None:  # fmt: skip
        """Fill the gradient of the input of a nonlinear operator."""
        given, read, made = view(gy, self.layout), view(x, self.layout), self._input(gx)
        index = index_type(given, read, made, axes=self.axes)
        cut = self._tiles_of(self.sizes, self.sizes[2], index)
        parameter, numbers, learned = self._parameter(theta, count, x)
        kinds = {"lp": 0, "lp_mean": 0, "lse": 1, "soft": 2, "expected": 3}
        launch(
            weighted.nonlinear_backward, cut.grid, given.tensor, read.tensor, parameter,
            *kept, *kept[-1:] * (3 - len(kept)),
            *self._sizes(cut, given, self.sizes[2]), *numbers, read.p, *read.strides,
            made.tensor, **constants(self.axes), **self._windows_over(None),
            KIND=kinds[which], LEARNED=learned, SUM=sum_type(gx.dtype), **cut.constants,
            **self._units(cut, given),
        )  # fmt: skip

    def _passes(self, reverse: bool) -> Iterator[tuple[Axes, bool]]:
        """The windows of each pass over an average, and whether it is the last one.

        One pass if windows are small, else one for each axis with windows of several taps.
        """
        several = [k for k, a in enumerate(self.axes) if a.kernel > 1]
        if self.places <= UNROLLED or len(several) < 2:
            yield self.axes, True
            return
        order = several[::-1]
        sizes = list(self.sizes if reverse else self.out)
        for k in order:
            one = (sizes[0], sizes[1], sizes[2])
            yield _only(self.axes, k, one), k == order[-1]
            sizes[k] = self.axes[k].out if reverse else self.axes[k].size

    def _partial(self, like: Tensor, sizes: tuple[int, ...]) -> View:
        """Memory for sums of these sizes."""
        shape = (self.planes, *sizes, self.channels)
        made = like.new_empty(shape, dtype=_wide(like.dtype))
        return contiguous(made, self.planes, sizes, self.channels)

    def _by_channel(self, values: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        """A learned argument in a shape that goes with inputs and outputs."""
        shape = [1] * len(self.layout.in_shape)
        if count > 1:
            shape[self.layout.channel] = count
        return values.to(dtype).reshape(shape)

    def _parameter(
        self, theta: Any, count: int, like: Tensor
    ) -> tuple[Tensor, tuple[int, int], int]:
        """A learned argument as `weighted.theta_of` reads it: memory, sizes, kind."""
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

    def _tiles_of_planes(self) -> Tiles:
        """Tiles of whole planes: several planes or channels, some of their elements at a time."""
        lanes = self.channels if self.channels_last else 1
        width = 32 if self.channels_last else 1
        size = math.prod(self.sizes)
        taps = min(1024 // width, max(16, 1 << (size - 1).bit_length()))
        height = max(1, 1024 // (width * taps))
        grid = -(-self.planes // height) * -(-lanes // width)
        return Tiles(self.planes, lanes, grid, {"ROWS": height, "LANES": width, "TAPS": taps})

    # What all have in common

    def _by_outputs(
        self, kernel: Any, x: Tensor, beside: tuple[Tensor, ...], samples: Tensor | None,
        numbers: tuple[int, ...], made: tuple[Tensor, ...], extra: tuple[Tensor, ...] = (),
        padded: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        """Launch a kernel whose tiles are outputs; `padded`: it may write packed routes."""
        given = view(x, self.layout)
        bits, w = self.bits if padded else 0, self.out[2]
        row_w = -(-w // (8 // bits)) * (8 // bits) if bits and self.channels_last else w
        index = index_type(
            given, contiguous(made[0], self.planes, self.out, self.channels), axes=self.axes
        )
        cut = self._tiles_of(self.out, row_w, index)
        launch(
            kernel, cut.grid,
            given.tensor, *beside, self._first_inputs(samples, given.tensor), *extra,
            *self._sizes(cut, given, row_w), *numbers, *made,
            **constants(self.axes), **options, **cut.constants, **self._units(cut, given),
        )  # fmt: skip

    def _tiles_of(self, sizes: tuple[int, ...], row_w: int, index: Any) -> Tiles:
        """The tiles of outputs or inputs of these sizes."""
        rows = self.planes * sizes[0] * sizes[1] * (row_w if self.channels_last else 1)
        lanes = self.channels if self.channels_last else sizes[2]
        return tiles(rows, lanes, self.channels_last, index)

    def _sizes(self, cut: Tiles, given: View, row_w: int) -> tuple[int, ...]:
        """The numbers that every kernel takes: tiles, sizes of both sides, and strides."""
        return (cut.rows, cut.lanes, *self.sizes, *self.out, row_w, given.p, *given.strides)

    def _units(self, cut: Tiles, given: View) -> dict[str, int]:
        return units(cut, given, self.sizes[2], self.out[2])

    def _windows_over(self, samples: Tensor | None) -> dict[str, int]:
        coarse = samples is not None and samples.itemsize == 2
        return {f"T{n}": windows_over(a, coarse) for n, a in zip("DHW", self.axes, strict=True)}

    def _is_plane(self) -> bool:
        """Whether every plane is one window."""
        return all(
            a.out == 1 and a.kernel == a.size and not a.lo and not a.fractional and a.dilation == 1
            for a in self.axes
        )

    def _output(self, y: Tensor) -> View:
        return contiguous(_storage(y), self.planes, self.out, self.channels)

    def _input(self, gx: Tensor) -> View:
        return contiguous(_storage(gx), self.planes, self.sizes, self.channels)

    def _first_inputs(self, samples: Tensor | None, like: Tensor) -> Tensor:
        """For each plane, the first inputs of its windows along depth, height and width.

        The sequence of Graham (2014) as PyTorch computes it, in the type of the samples: one sample
        for each axis, of two axes the width first.
        """
        if samples is None:
            return like  # never read
        placed = [a for a in self.axes if a.fractional]
        each = samples.reshape(self.planes, len(placed))
        assert_later(((each >= 0) & (each < 1)).all(), "_random_samples must be in [0, 1)")
        each = each.flip(1) if len(placed) == 2 else each
        parts = [each.new_zeros((self.planes, 3 - len(placed)), dtype=torch.int64)]
        for number, a in enumerate(placed):
            sample, last = each[:, number, None], a.size - a.kernel
            if a.out > 1:
                spread = torch.full_like(sample, last) / torch.full_like(sample, a.out - 1)
                steps = torch.arange(a.out - 1, device=each.device).to(each.dtype)
                begin = ((steps + sample) * spread).to(torch.int64)
                parts.append((begin - (sample * spread).to(torch.int64)).clamp(0, last))
            parts.append(torch.full_like(sample, last, dtype=torch.int64))
        return torch.cat(parts, 1).to(torch.int32)

    def _last_windows(self, first: Tensor) -> Tensor:
        """For each plane, the last window that begins at or before each input of each axis."""
        parts, begin = [], 0
        for a in self.axes:
            begins = first[:, begin : begin + a.out].contiguous()
            inputs = torch.arange(a.size, dtype=torch.int32, device=first.device)
            inputs = inputs.expand(self.planes, a.size).contiguous()
            parts.append(torch.searchsorted(begins, inputs, right=True) - 1)
            begin += a.out
        return torch.cat(parts, 1).to(torch.int32).contiguous()


def _flattened(v: View) -> tuple[int, ...]:
    """Sizes and strides of planes, as one long axis if their elements lie at equal distances."""
    (d, h, w), (s_p, s_n, s_d, s_h, s_w, s_c) = v.sizes, v.strides
    if (h == 1 or s_h == w * s_w) and (d == 1 or s_d == h * w * s_w):
        return (1, 1, d * h * w, v.p, s_p, s_n, 0, 0, s_w, s_c)
    return (*v.sizes, v.p, *v.strides)


def _storage(tensor: Tensor) -> Tensor:
    """The tensor whose elements lie in the order of the layout, without bool."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _only(axes: Axes, pooled: int, sizes: tuple[int, int, int]) -> Axes:
    """The windows of one axis; the others of these sizes are left alone."""
    kept = [a if k == pooled else Axis(sizes[k], sizes[k], 1) for k, a in enumerate(axes)]
    return kept[0], kept[1], kept[2]


def _in_pairs(axis: Axis) -> bool:
    """Whether windows of a width begin at every second input, so that pairs of inputs go along."""
    return axis.stride == 2 and axis.dilation == 1 and not axis.adaptive and not axis.fractional


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _paddings(axes: Axes) -> dict[str, int]:
    """High paddings, which count in averages."""
    return {f"H{n}": a.hi for n, a in zip("DHW", axes, strict=True)}


def _dividing(divisor: float, last: bool) -> dict[str, bool]:
    """How a pass divides: by its own windows' taps, or the last one by a given number."""
    return {"DIVIDE": not divisor, "FIXED": bool(divisor) and last}
