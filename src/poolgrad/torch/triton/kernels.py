"""`Kernels`: the methods of the compiled kernels for a layout, implemented in Triton."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from poolgrad.dtypes import FLOATS, limits
from poolgrad.interface import NONLINEAR, SELECTIONS
from poolgrad.torch.triton import averages, extremes, gradients, nonlinear
from poolgrad.torch.triton.launch import Launch, launch, repeated
from poolgrad.torch.triton.routes import route_jvp
from poolgrad.torch.triton.views import (
    THREADS,
    Axes,
    View,
    alignment,
    axes_of,
    contiguous,
    flattened,
    in_pairs,
    index_type,
    sum_dtype,
    sum_type,
    tile_shape,
    view,
    window_constants,
    windows_over,
)
from poolgrad.windows import Axis, Layout

UNROLLED = 32  # taps of the largest window whose taps are unrolled; wider ones are separated


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
        self.out, self.sizes = [a.out for a in self.axes], [a.size for a in self.axes]
        self.channels_last = layout.order[-1] not in layout.pooled
        self.channels = layout.in_shape[layout.order[-1]] if self.channels_last else 1
        self.planes = math.prod(layout.out_shape) // math.prod(self.out) // max(self.channels, 1)
        self.is_plane = all(  # every plane is one window
            a.out == 1 and a.kernel == a.size and not a.lo and a.dilation == 1 for a in self.axes
        )
        self.windows = self.gradient_axes = self.axes
        if self.is_plane:
            # The windows are the same constants for planes of all sizes; a gradient is that of
            # one axis of memory.
            self.windows = tuple(Axis(size, 1, 0) for size in self.sizes)
            size = math.prod(self.sizes)
            self.gradient_axes = Axis(1, 1, 1), Axis(1, 1, 1), Axis(size, 1, size, size)
        several = [k for k, a in enumerate(self.axes) if a != Axis(a.size, a.size, 1)]
        # Axes that wide windows are pooled along one after the other, from the outermost
        self.separable = several if len(several) > 1 and not self.is_plane else []

    # Selecting operators

    @repeated
    def select(
        self, which: int, x: Tensor, y: Tensor, routes: Tensor | None, zero_ties: bool,
        samples: None, threads: int,
    ) -> None:  # fmt: skip
        """Fill the output and the routes; `zero_ties`: an extreme that occurs twice has no route.

        Extremes of wide windows are separable: one axis after the other, from the innermost.
        """
        source, has_routes, prior, below = view(x, self.layout), routes is not None, None, 0
        is_wide, dtype = self.taps > UNROLLED and not zero_ties, self.layout.dtype
        limit = 0 if dtype in FLOATS else limits(dtype)[SELECTIONS[which] == "min"]
        order = self.separable[::-1] if is_wide else []
        for axes, target, is_last in self._passes(order, y, x.dtype):
            tap, bits = routes, self.bits
            if has_routes and not is_last:
                kept = torch.int64 if self.taps >= 2**31 else torch.int32
                tap, bits = torch.empty_like(target.tensor, dtype=kept), 0
            self._launch(
                extremes.select, source, axes, target.tensor,
                (source.tensor if prior is None else prior,), written=(tap,), packed_bits=bits,
                is_plane=self.is_plane and is_wide, ORDER=SELECTIONS[which], LIMIT=limit,
                ZERO_TIES=zero_ties, PRIOR=below, LAST=is_last or not has_routes,
                ROUTES=has_routes, BITS=bits, **self._unrolling(axes),
            )  # fmt: skip
            if has_routes:
                prior, below = tap, max(below, 1) * math.prod(a.kernel for a in axes)
            source = target

    @repeated
    def route_backward(
        self, gy: Tensor, routes: Tensor, gx: Tensor, samples: None, threads: int
    ) -> None:
        """Fill the gradient of the input; of extremes over wide windows, one axis at a time."""
        is_wide = math.prod(windows_over(self.gradient_axes)) > UNROLLED
        order = self.separable if is_wide else []
        self._gather(view(gy, self.layout), gx, order, routes, "none", 1)

    def _gather(
        self, source: View, gx: Tensor, order: list[int], routes: Tensor | None, count: str,
        divisor: int,
    ) -> None:  # fmt: skip
        """Launch the backward pass of an extreme with `routes`, or of an average."""
        has_routes, below = routes is not None, self.taps
        for axes, target, is_last in self._passes(order, gx, sum_dtype(gx.dtype), of_inputs=True):
            below //= math.prod(a.kernel for a in axes)  # taps along the axes of later passes
            rest = None
            if has_routes and not is_last:
                kept = torch.uint8 if below < 2**8 else torch.int32
                rest = torch.empty_like(target.tensor, dtype=kept)
            unroll = math.prod(windows_over(axes)) <= UNROLLED and not (has_routes and order)
            pairs = has_routes and unroll and not self.channels_last and in_pairs(axes[2])
            self._launch(
                gradients.gather, source, axes, target.tensor,
                (source.tensor if routes is None else routes,), numbers=(divisor,), written=(rest,),
                of_inputs=True, SUM=sum_type(gx.dtype), COUNT=count, ROUTES=has_routes,
                BITS=self.bits, BELOW=below if has_routes else 1,
                REST=rest is not None, PAIRS=pairs, UNROLL=unroll,
            )  # fmt: skip
            source, routes = target, rest

    @repeated
    def route_jvp(self, t: Tensor, routes: Tensor, y: Tensor, samples: None, threads: int) -> None:
        """Fill the tangent of the output."""
        self._launch(
            route_jvp, view(t, self.layout), self.axes, y, (routes,),
            POSITIONS=False, BITS=self.bits,
        )  # fmt: skip

    @repeated
    def route_indices(self, routes: Tensor, indices: Tensor, samples: None, threads: int) -> None:
        """Fill the flat positions of the winners in their planes; -1 if there is none."""
        self._launch(
            route_jvp, view(routes, self.layout), self.axes, indices, (routes,),
            elements=math.prod(self.sizes), POSITIONS=True, BITS=self.bits,
        )  # fmt: skip

    # Averages

    @repeated
    def average(
        self, x: Tensor, y: Tensor, count_padding: bool, divisor: int, threads: int
    ) -> None:
        """Fill the mean of each window; wide windows are summed one axis after the other."""
        source, sums = view(x, self.layout), sum_type(y.dtype)
        is_wide, count = self.taps > UNROLLED, _count(count_padding, divisor)
        is_plane = self.is_plane and is_wide
        if is_plane:
            divisor, count = divisor or self.taps, "divisor"
        order = self.separable[::-1] if is_wide else []
        for axes, target, is_last in self._passes(order, y, sum_dtype(y.dtype)):
            self._launch(
                averages.average, source, axes, target.tensor, numbers=(divisor,),
                is_plane=is_plane, SUM=sums, SHARES=False,
                COUNT=count if is_last or not divisor else "none", **self._unrolling(axes),
            )  # fmt: skip
            source = target

    @repeated
    def average_backward(
        self, gy: Tensor, gx: Tensor, count_padding: bool, divisor: int, threads: int
    ) -> None:
        """Fill the gradient of the input, one axis after the other where windows are wide."""
        source, count = view(gy, self.layout), _count(count_padding, divisor)
        order = self.separable[::-1] if self.taps > UNROLLED else []
        # Each cotangent is divided once, not once for each input of its window.
        if order or math.prod(windows_over(self.axes)) > 1:
            target = self._partial(gy, self.out, sum_dtype(gx.dtype))
            self._launch(
                averages.average, source, self.axes, target.tensor, numbers=(divisor,),
                SUM=sum_type(gx.dtype), SHARES=True, COUNT=count, UNROLL=False, PAIRS=False,
            )  # fmt: skip
            source, count = target, "none"
        self._gather(source, gx, order, None, count, divisor)

    def mixed(
        self, x: Tensor, alpha: Tensor, count: int, count_padding: bool, y: Tensor,
        routes: Tensor | None, slope: Tensor | None, threads: int,
    ) -> None:  # fmt: skip
        """Write ``alpha * max + (1 - alpha) * mean``, from the kernels of both."""
        wide = sum_dtype(y.dtype)
        most, mean = torch.empty_like(y), torch.empty_like(y, dtype=wide)
        self.select(SELECTIONS.index("max"), x, most, routes, False, None, threads)
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
        self.route_backward(gy, routes, of_most, None, threads)
        self.average_backward(gy, of_mean, count_padding, 0, threads)
        gx.copy_(a * of_most + (1 - a) * of_mean)

    def _by_channel(self, values: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        """Reshape a learned argument to broadcast with inputs and outputs."""
        shape = [1] * len(self.layout.in_shape)
        shape[self.layout.channel] = count
        return values.to(dtype).reshape(shape)

    # Nonlinear operators

    @repeated
    def nonlinear(
        self, which: int, x: Tensor, theta: Any, count: int, y: Tensor, a: Tensor | None,
        b: Tensor | None, c: Tensor | None, slope: Tensor | None, threads: int,
    ) -> None:  # fmt: skip
        """Fill outputs of a nonlinear operator, its residual (a, b, c), and the slope of theta."""
        parameter, numbers = self._parameter(theta, count, x)
        self._launch(
            nonlinear.nonlinear, view(x, self.layout), self.windows, y,
            (parameter,), numbers=numbers, written=(a, b, c, slope),
            OPERATOR=NONLINEAR[which], SUM=sum_type(x.dtype),
            KEEP=a is not None, SLOPE=slope is not None,
        )  # fmt: skip

    @repeated
    def nonlinear_backward(
        self, which: int, gy: Tensor, x: Tensor, theta: Any, count: int, a: Tensor, b: Tensor,
        c: Tensor | None, gx: Tensor, threads: int,
    ) -> None:  # fmt: skip
        """Fill the gradient of the input of a nonlinear operator from its residual (a, b, c)."""
        read = view(x, self.layout)
        parameter, numbers = self._parameter(theta, count, x)
        kept = (a, b, b if c is None else c)
        self._launch(
            nonlinear.nonlinear_backward, view(gy, self.layout), self.windows,
            gx, (read.tensor, parameter, *kept),
            numbers=(*numbers, read.shape[0], *read.strides), views=(read,), of_inputs=True,
            OPERATOR=NONLINEAR[which], SUM=sum_type(gx.dtype),
        )  # fmt: skip

    def _parameter(
        self, theta: Any, count: int, like: Tensor
    ) -> tuple[Tensor, tuple[int, int, int]]:
        """A learned argument as `nonlinear.theta_of` reads it: memory and numbers."""
        order, channel = self.layout.order, self.layout.channel
        if count == 1:
            return theta if isinstance(theta, Tensor) else like, (1, 1, 0)
        if channel == order[-1]:
            return theta, (1, 1, 1)
        outer = order[: len(order) - len(self.layout.pooled) - self.channels_last]
        below = outer[outer.index(channel) + 1 :]
        return theta, (count, math.prod(self.layout.in_shape[a] for a in below), 0)

    # Launches

    def _launch(
        self, kernel: Any, source: View, axes: Axes, target: Tensor, read: tuple[Tensor, ...] = (),
        *, numbers: tuple[int, ...] = (), written: tuple[Tensor | None, ...] = (),
        views: tuple[View, ...] = (), elements: int = 0, packed_bits: int = 0,
        of_inputs: bool = False, is_plane: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        """Launch a kernel whose tiles are outputs or, `of_inputs`, inputs of the windows `axes`.

        Its arguments are the pointers that it reads (`source` and `read`), the numbers that
        `geometry.prologue` takes and `numbers`, the pointers that it writes (`target` and
        `written`), and constants. `views`, `elements`: see `index_type`; `packed_bits`: of the
        routes that it writes; `is_plane`: windows are whole planes, which are reduced as a tree.

        None in `written` is a pointer that the kernel does not write. It gets an empty tensor. A
        second reference to another argument would be an alias, which breaks the replacement of
        written arguments by copies when a compiler functionalises the launch.
        """
        elements = max(elements, self.taps, target.numel())
        index = index_type(source, *views, axes=self.axes, elements=elements)
        out, sizes = [a.out for a in axes], [a.size for a in axes]
        if is_plane:
            axes, source = self.windows, flattened(source)
            _, _, *sizes, _ = source.shape
        depth, height, row_w = sizes if of_inputs else out
        last, pairs = self.channels_last, options.get("PAIRS", False)
        if packed_bits and last:
            row_w = -(-row_w // (8 // packed_bits)) * (8 // packed_bits)
        rows = self.planes * depth * height * (row_w if last else 1)
        lanes = self.channels if last else (row_w + 1) // 2 if pairs and of_inputs else row_w
        shape = tile_shape(lanes, last, math.prod(sizes) if is_plane else 0)
        made = [target.new_empty(0) if t is None else t for t in written]
        constants = options | {
            "W": window_constants(axes, pairs and of_inputs),
            "INDEX": index,
            "T": (*shape, last, *alignment(source, last, lanes, sizes[2], out[2])),
        }
        # Measured: along the width without pairs, outputs, and inputs under windows of stride 1,
        # are faster with fewer elements for each thread.
        fewer = not last and not pairs and not is_plane
        fewer = fewer and (not of_inputs or axes[2].stride_or_bins == 1)
        launch(
            Launch(
                kernel,
                -(-rows // shape[0]) * -(-lanes // shape[1]),
                THREADS * (2 if fewer else 1),
                (source.tensor, *read),
                (rows, lanes, *sizes, *out, row_w, source.shape[0], *source.strides, *numbers),
                (target, *made),
                constants,
            )
        )

    def _unrolling(self, axes: Axes) -> dict[str, Any]:
        """Whether all taps of a window are unrolled, and loaded in pairs along the width."""
        unroll = math.prod(a.kernel for a in axes) <= UNROLLED
        pairs = unroll and not self.channels_last and in_pairs(axes[2]) and axes[2].kernel > 1
        return {"UNROLL": unroll, "PAIRS": pairs}

    def _passes(
        self, order: list[int], result: Tensor, dtype: torch.dtype, of_inputs: bool = False
    ) -> Iterator[tuple[Axes, View, bool]]:
        """The windows of each pass over an array, what it writes, and whether it is the last one.

        One pass for each axis of `order`, or one over all axes if it is empty. The last pass
        writes `result`, the others write new arrays of this dtype.
        """
        sizes, last = (self.out, self.sizes) if of_inputs else (self.sizes, self.out)
        if not order:
            axes = self.gradient_axes if of_inputs else self.axes
            yield axes, contiguous(result, self.planes, last, self.channels), True
        now = [*sizes]
        for a in order:
            others = [Axis(size, size, 1) for size in now]  # not pooled
            axes = (*others[:a], self.axes[a], *others[a + 1 :])
            now[a] = last[a]
            if a != order[-1]:
                yield axes, self._partial(result, now, dtype), False
            else:
                yield axes, contiguous(result, self.planes, last, self.channels), True

    def _partial(self, like: Tensor, sizes: Sequence[int], dtype: torch.dtype) -> View:
        """Allocate an intermediate result of a separable pass."""
        made = like.new_empty((self.planes, *sizes, self.channels), dtype=dtype)
        return contiguous(made, self.planes, sizes, self.channels)


def _count(padding: bool, divisor: int) -> str:
    """Return how `averages.share` divides."""
    return "divisor" if divisor else "padded" if padding else "input"
