"""Memory views, tiles and constants: the arguments of the kernels, computed on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from poolgrad.windows import Axis, Layout, WindowKind

Axes = tuple[Axis, ...]  # depth, height and width

TILE = 1024  # elements of a tile
THREADS = 128  # of a program: eight elements for each, 128 bits of a 2-byte type

# More kinds of windows: fixed ones if an axis has fewer than could hold one input, and those of a
# gather whose lanes are two neighbouring inputs under windows of stride 2.
FEW, PAIRED = len(WindowKind), len(WindowKind) + 1
_IDENTITY = Axis(1, 1, 1)


class View(NamedTuple):
    """A tensor with the axes (p, n, depth, height, width, channel): sizes and strides.

    The axes p and n are those that are not pooled, merged: ``p`` is the faster one.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def view(tensor: Tensor, layout: Layout) -> View:
    """Return the memory view of an input or output of this layout; too many strides: of a copy."""
    tensor = as_bytes(tensor)
    order, pooled = layout.order, layout.pooled
    inner = order[-1:] if order[-1] not in pooled else ()
    outer = order[: len(order) - len(inner) - len(pooled)]
    merged: list[tuple[int, int]] = []
    for size, stride in [(tensor.shape[a], tensor.stride(a)) for a in outer]:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    if len(merged) > 2:
        back = [order.index(a) for a in range(len(order))]
        return view(tensor.permute(order).contiguous().permute(back), layout)
    n, p = [(1, 0)] * (2 - len(merged)) + merged
    along = [(tensor.shape[a], tensor.stride(a)) for a in (*pooled, *inner)]
    channel = [] if inner else [(1, 0)]
    axes = [p, n, *[(1, 0)] * (3 - len(pooled)), *along, *channel]
    return View(tensor, *zip(*axes, strict=True))


def contiguous(tensor: Tensor, planes: int, sizes: Sequence[int], channels: int) -> View:
    """Return the memory view of a tensor whose elements lie in the order of the axes."""
    d, h, w = sizes
    strides = (d * h * w * channels, 0, h * w * channels, w * channels, channels, 1)
    return View(as_bytes(tensor), (planes, 1, d, h, w, channels), strides)


def flattened(v: View) -> View:
    """Return planes as one long axis if their elements lie at equal distances."""
    (p, n, d, h, w, c), (s_p, s_n, s_d, s_h, s_w, s_c) = v.shape, v.strides
    if (h == 1 or s_h == w * s_w) and (d == 1 or s_d == h * w * s_w):
        return View(v.tensor, (p, n, 1, 1, d * h * w, c), (s_p, s_n, 0, 0, s_w, s_c))
    return v


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the tensor, of bool as a view of its bytes, which Triton reads."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


# Windows


def axes_of(layout: Layout) -> Axes:
    """Depth, height and width; axes that are not pooled have one window of one tap."""
    axes = layout.window.axes
    return (_IDENTITY,) * (3 - len(axes)) + axes


def in_pairs(axis: Axis) -> bool:
    """Whether windows begin at every second input, so that one load gives pairs of taps."""
    return axis.stride == 2 and axis.dilation == 1 and not axis.adaptive


def window_constants(axes: Axes, paired: bool) -> tuple[int, ...]:
    """Return the constants that describe windows, `geometry.W`.

    `paired`: the windows along the width are `PAIRED`.
    """
    kinds, over = [*map(_kind, axes)], [*windows_over(axes)]
    if paired:
        kinds[2], over[2] = PAIRED, (axes[2].kernel - 1 + axes[2].lo % 2) // 2 + 1
    fields = [(a.kernel, a.stride_or_bins, a.lo, a.hi, a.dilation) for a in axes]
    return tuple(n for three in (*zip(*fields, strict=True), kinds, over) for n in three)


def _kind(axis: Axis) -> int:
    if axis.adaptive:
        return int(WindowKind.ADAPTIVE)
    return int(WindowKind.FIXED) if _most_fixed(axis) <= axis.out else FEW


def windows_over(axes: Axes) -> tuple[int, ...]:
    """Return along each axis how many windows may hold one input."""
    most = (-(-a.out // a.size) + 1 if a.adaptive else _most_fixed(a) for a in axes)
    return tuple(min(m, a.out) for m, a in zip(most, axes, strict=True))


def _most_fixed(axis: Axis) -> int:
    """Return how many windows of a fixed stride may hold one input, if the axis is long."""
    kernel = axis.kernel or axis.size
    return (kernel - 1) * axis.dilation // axis.stride + 1


# Types and tiles


def index_type(*views: View, axes: tuple[Axis, ...] = (), elements: int = 0) -> Any:
    """The type of offsets and positions: int64 if one of them may be 2**31 or more.

    `elements`: the number of taps of a window or of elements of an array, which may be larger.
    """
    limit = 2**31 - TILE * 8
    large = elements >= limit or any(_largest_position(a) >= limit for a in axes)
    for v in views:
        reach = sum((n - 1) * abs(s) for n, s in zip(v.shape, v.strides, strict=True))
        large |= max(reach, math.prod(v.shape)) >= limit
    return tl.int64 if large else tl.int32


def _largest_position(axis: Axis) -> int:
    """Return a bound of the numbers that `geometry` computes along an axis."""
    if axis.adaptive:
        return axis.size * axis.out + max(axis.size, axis.out)
    return axis.size + axis.lo + axis.hi + axis.kernel * axis.dilation


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which sums of this dtype are accumulated."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def sum_type(dtype: torch.dtype) -> Any:
    """Return `sum_dtype` as a type of Triton."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def tile_shape(lanes: int, channels_last: bool, plane: int) -> tuple[int, int, int]:
    """Return the rows, lanes and taps of a tile; `channels_last`: lanes are channels.

    The width of a tile is the power of two from 8 to 128 that leaves the fewest lanes unused. If
    windows are planes, of `plane` elements: several of them, some of their taps at a time.
    """
    if plane:
        width = 32 if channels_last else 1
        taps = min(TILE // width, max(16, 1 << (plane - 1).bit_length()))
        return max(1, TILE // (width * taps)), width, taps
    width = min((128, 64, 32, 16, 8), key=lambda n: (-(-lanes // n) * n, -n))
    return TILE // width, width, 1


def alignment(source: View, channels_last: bool, *sizes: int) -> tuple[int, ...]:
    """Return powers of two up to 16 that divide the terms of addresses: sizes, and all strides.

    Triton itself specialises on multiples of 16 only, but rows of 56 two-byte elements are also
    aligned to 128 bits.
    """
    steps = source.strides[: 5 if channels_last else 4]
    return (*[math.gcd(16, n) for n in sizes], math.gcd(16, *steps))
