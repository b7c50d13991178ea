"""`LayoutKernels`: from the windows and shapes of a layout to tiles, sizes and constants."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from poolgrad.torch._compat import assert_later
from poolgrad.torch.triton.launch import (
    Tiles,
    View,
    align,
    axes_of,
    constants,
    contiguous,
    index_type,
    launch,
    tiles,
    view,
)
from poolgrad.windows import Axis, Layout

UNROLLED = 32  # taps of the largest window whose taps are unrolled; wider ones are separated

Axes = tuple[Axis, Axis, Axis]


class LayoutKernels:
    """The kernels of one layout, with the methods of the compiled ``_kernels.Plan``.

    Parameters
    ----------
    layout : Layout
        Windows, shapes and memory order.
    route_bits : int
        Bits of a packed route; 0 if routes are whole bytes.
    order : str
        The order of a selecting operator: "max", "median", ...; empty for other operators.
    """

    def __init__(self, layout: Layout, route_bits: int, order: str = "") -> None:
        self.layout, self.bits, self.order = layout, route_bits, order
        self.bound: dict[Any, Any] = {}  # see `launch.repeated`
        self.axes = axes_of(layout)
        self.places = math.prod(a.kernel for a in self.axes)
        self.out = tuple(a.out for a in self.axes)
        self.sizes = tuple(a.size for a in self.axes)
        self.channels_last = layout.order[-1] not in layout.pooled
        self.channels = layout.in_shape[layout.order[-1]] if self.channels_last else 1
        pooled = math.prod(layout.out_shape[a] for a in layout.pooled)
        self.planes = math.prod(layout.out_shape) // pooled // max(self.channels, 1)

    def _pooled_axes(self) -> list[int]:
        """Numbers of the axes with other windows than single inputs, from the outermost."""
        return [number for number, a in enumerate(self.axes) if not is_identity(a)]

    def _partial(self, like: Tensor, sizes: tuple[int, ...], dtype: torch.dtype) -> View:
        """Allocate an intermediate result of a separable pass."""
        made = like.new_empty((self.planes, *sizes, self.channels), dtype=dtype)
        return contiguous(made, self.planes, sizes, self.channels)

    def _by_outputs(
        self, kernel: Any, x: Tensor, beside: tuple[Tensor, ...], samples: Tensor | None,
        numbers: tuple[int, ...], made: tuple[Tensor, ...], extra: tuple[Tensor, ...] = (),
        padded: bool = False, elements: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        """Launch a kernel whose tiles are outputs; `padded`: it may write packed routes.

        `elements`: see `index_type`.
        """
        given = view(x, self.layout)
        bits, w = self.bits if padded else 0, self.out[2]
        row_w = -(-w // (8 // bits)) * (8 // bits) if bits and self.channels_last else w
        output = contiguous(made[0], self.planes, self.out, self.channels)
        index = index_type(given, output, axes=self.axes, elements=elements)
        cut = self._tiles_of(self.out, row_w, index)
        launch(
            kernel, cut.grid,
            given.tensor, *beside, self._first_inputs(samples, given.tensor), *extra,
            *self._sizes(cut, given, row_w), *numbers, *made,
            **constants(self.axes), **options, **cut.constants, **self._align(cut, given),
        )  # fmt: skip

    def _tiles_of(self, sizes: tuple[int, ...], row_w: int, index: Any) -> Tiles:
        """The tiles of outputs or inputs of these sizes."""
        rows = self.planes * sizes[0] * sizes[1] * (row_w if self.channels_last else 1)
        lanes = self.channels if self.channels_last else sizes[2]
        return tiles(rows, lanes, self.channels_last, index)

    def _sizes(self, cut: Tiles, given: View, row_w: int) -> tuple[int, ...]:
        """The numbers that every kernel takes: tiles, sizes of both sides, and strides."""
        return (cut.rows, cut.lanes, *self.sizes, *self.out, row_w, given.p, *given.strides)

    def _align(self, cut: Tiles, given: View) -> dict[str, tuple[int, ...]]:
        return align(cut, given, self.sizes[2], self.out[2])

    def _is_plane(self) -> bool:
        """Whether every plane is one window."""
        return all(
            a.out == 1 and a.kernel == a.size and not a.lo and not a.fractional and a.dilation == 1
            for a in self.axes
        )

    def _of_gradient(self) -> tuple[Axes, tuple[int, ...]]:
        """The windows and sizes of a gradient: a plane that is one window is one axis of memory."""
        if not self._is_plane():
            return self.axes, self.sizes
        size = math.prod(self.sizes)
        return (Axis(1, 1, 1), Axis(1, 1, 1), Axis(size, 1, size, size)), (1, 1, size)

    def _output(self, y: Tensor) -> View:
        return contiguous(storage(y), self.planes, self.out, self.channels)

    def _input(self, gx: Tensor) -> View:
        return contiguous(storage(gx), self.planes, self.sizes, self.channels)

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
                step = torch.full_like(sample, last) / torch.full_like(sample, a.out - 1)
                outputs = torch.arange(a.out - 1, dtype=torch.int64, device=each.device)
                begin = ((outputs.to(each.dtype) + sample) * step).to(torch.int64)
                parts.append((begin - (sample * step).to(torch.int64)).clamp(0, last))
            parts.append(torch.full_like(sample, last, dtype=torch.int64))
        return torch.cat(parts, 1).to(torch.int32)

    def _last_windows(self, first: Tensor) -> Tensor:
        """For each plane, the last window that begins at or before each input of each axis."""
        parts, begin = [], 0
        for a in self.axes:
            begins = first[:, begin : begin + a.out].contiguous()
            inputs = torch.arange(a.size, dtype=torch.int32, device=first.device)
            inputs = inputs.expand(self.planes, a.size).contiguous()
            # Inductor cannot compile a search for the input of an axis that has one.
            found = torch.searchsorted(begins, inputs, right=True) - 1 if a.size > 1 else inputs
            parts.append(found)
            begin += a.out
        return torch.cat(parts, 1).to(torch.int32).contiguous()

    def _tiles_of_planes(self) -> Tiles:
        """Tiles of whole planes: several planes or channels, some of their elements at a time."""
        lanes = self.channels if self.channels_last else 1
        width = 32 if self.channels_last else 1
        size = math.prod(self.sizes)
        taps = min(1024 // width, max(16, 1 << (size - 1).bit_length()))
        height = max(1, 1024 // (width * taps))
        grid = -(-self.planes // height) * -(-lanes // width)
        return Tiles(self.planes, lanes, grid, {"ROWS": height, "LANES": width, "TAPS": taps})


def written(tensor: Tensor | None, like: Tensor) -> Tensor:
    """Return the tensor, or an empty one for a pointer that a kernel does not write.

    A second reference to another argument would be an alias, which breaks the replacement of
    written arguments by copies when a compiler functionalises the launch.
    """
    return like.new_empty(0) if tensor is None else tensor


def flattened(v: View) -> tuple[int, ...]:
    """Sizes and strides of planes, as one long axis if their elements lie at equal distances."""
    (d, h, w), (s_p, s_n, s_d, s_h, s_w, s_c) = v.sizes, v.strides
    if (h == 1 or s_h == w * s_w) and (d == 1 or s_d == h * w * s_w):
        return (1, 1, d * h * w, v.p, s_p, s_n, 0, 0, s_w, s_c)
    return (*v.sizes, v.p, *v.strides)


def storage(tensor: Tensor) -> Tensor:
    """The tensor whose elements lie in the order of the layout, without bool."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def only(axes: Axes, pooled: int, sizes: tuple[int, int, int]) -> Axes:
    """Return the windows along axis `pooled`; the other axes, of these sizes, are not pooled."""
    kept = [a if k == pooled else Axis(sizes[k], sizes[k], 1) for k, a in enumerate(axes)]
    return kept[0], kept[1], kept[2]


def is_identity(axis: Axis) -> bool:
    """Whether every input of an axis is a window of its own."""
    return axis == Axis(axis.size, axis.size, 1)


def in_pairs(axis: Axis) -> bool:
    """Whether windows begin at every second input, so that one load gives pairs of taps."""
    return axis.stride == 2 and axis.dilation == 1 and not axis.adaptive and not axis.fractional


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which sums of this dtype are accumulated; see `launch.sum_type`."""
    return torch.float64 if dtype == torch.float64 else torch.float32
