"""Kernels of averages.

``y[o] = sum of x over window o / count[o]``, ``gx[i] = sum of gy[o] / count[o]`` over the windows
that hold input ``i``. `average` and `average_backward` work on one axis at a time where windows
are wide (separable filtering); `average_planes` reduces whole planes.
"""

import triton
import triton.language as tl

from poolgrad.torch.triton.geometry import (
    ADAPTIVE,
    divided,
    double_lanes,
    element,
    last_windows,
    load_pair,
    load_tap,
    prologue,
    strided_offset,
    tile,
    window_over,
    windows_of,
)


@triton.jit
def taps_along(
    o, size, HI: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """The number of taps of window `o` in the input, or with `PADDED` in the padded input."""
    if KIND == ADAPTIVE:
        return ((o + 1) * size + S - 1) // S - o * size // S
    first = o * S - LO
    if PADDED:
        return tl.minimum((tl.maximum(size + HI - first, 0) + DIL - 1) // DIL, K)
    outside = tl.minimum((tl.maximum(-first, 0) + DIL - 1) // DIL, K)
    reached = tl.minimum((tl.maximum(size - first, 0) + DIL - 1) // DIL, K)
    return tl.maximum(reached - outside, 0)


@triton.jit
def count_of(
    position, size, HI: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """The number of taps that count, at least 1, so that the mean of an empty window is 0."""
    _, od, oh, ow, _ = position
    depth = taps_along(od, size[0], HI[0], K[0], S[0], LO[0], DIL[0], KIND[0], PADDED)
    height = taps_along(oh, size[1], HI[1], K[1], S[1], LO[1], DIL[1], KIND[1], PADDED)
    width = taps_along(ow, size[2], HI[2], K[2], S[2], LO[2], DIL[2], KIND[2], PADDED)
    return tl.maximum(depth * height * width, 1)


@triton.jit
def average(
    x_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, divisor,
    y_ptr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    HI: tl.constexpr,
    SUM: tl.constexpr, DIVIDE: tl.constexpr, BY_DIVISOR: tl.constexpr, PADDED: tl.constexpr,
    PAIRS: tl.constexpr, UNROLL: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The sum of each window, divided by the number of its taps or by `divisor` (`BY_DIVISOR`).

    `DIVIDE`: whether to divide along these axes; `PAIRS` as in `extremes.select`.
    """
    lanes, size, out, strides, row, lane, position, ok, origin = prologue(
        rows, lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), row_w,
        planes, (s_p, s_n, s_d, s_h, s_w, s_c), False, CHANNELS_LAST, INDEX, ROWS, LANES, ALIGN,
    )  # fmt: skip
    window = windows_of(position, size, S, LO, KIND)
    total = tl.zeros((ROWS, LANES), SUM)
    if PAIRS:
        both = double_lanes(lanes, LANES, INDEX)
        WIDTH: tl.constexpr = K[2]
        for line in tl.static_range(K[0] * K[1]):
            for k in tl.static_range(-(LO[2] % 2), WIDTH, 2):  # a pair begins at an even input
                even, _, odd, _ = load_pair(
                    x_ptr, line, k, window, position[3], both, row < rows, size, origin, strides,
                    0, K, LO, DIL, ROWS, LANES,
                )  # fmt: skip
                if k >= 0:
                    total += even.to(SUM)
                if k + 1 < WIDTH:
                    total += odd.to(SUM)
    else:
        TAPS: tl.constexpr = K[0] * K[1] * K[2]
        STEP: tl.constexpr = TAPS if UNROLL else 1
        for begin in range(0, TAPS, STEP):
            for j in tl.static_range(STEP):
                x, _ = load_tap(x_ptr, begin + j, window, origin, strides, ok, 0, K, DIL)
                total += x.to(SUM)
    if BY_DIVISOR:
        total = divided(total, tl.full((), divisor, SUM))
    elif DIVIDE:
        count = count_of(position, size, HI, K, S, LO, DIL, KIND, PADDED)
        total = divided(total, count.to(SUM))
    at = element(row, position, lanes, out[2], row_w, CHANNELS_LAST)
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=ok)


@triton.jit
def average_planes(
    x_ptr,
    rows, lanes, depth, height, width,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, divisor,
    y_ptr,
    SUM: tl.constexpr,
    INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """The sum of each plane over `divisor`: `ROWS` planes, `LANES` channels, `TAPS` at a time."""
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    ok = (row < rows) & (lane < lanes)
    origin = row // planes * s_n + row % planes * s_p + lane * s_c
    total = tl.zeros((ROWS, LANES, TAPS), SUM)
    size = tl.full((), depth, INDEX) * height * width
    for begin in range(0, size, TAPS):
        t = (begin + tl.arange(0, TAPS).to(INDEX))[None, None, :]
        at = t // width // height * s_d + t // width % height * s_h + t % width * s_w
        inside = ok[:, :, None] & (t < size)
        total += tl.load(x_ptr + origin[:, :, None] + at, mask=inside, other=0).to(SUM)
    mean = divided(tl.sum(total, 2), tl.full((), divisor, SUM))
    tl.store(y_ptr + row * lanes + lane, mean.to(y_ptr.dtype.element_ty), mask=ok)


@triton.jit
def average_shares(
    gy_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, divisor,
    share_ptr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    HI: tl.constexpr, BY_DIVISOR: tl.constexpr, PADDED: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The cotangent of each output over the number of its taps, or over `divisor`."""
    lanes, size, out, strides, row, lane, position, ok, origin = prologue(
        rows, lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), row_w,
        planes, (s_p, s_n, s_d, s_h, s_w, s_c), False, CHANNELS_LAST, INDEX, ROWS, LANES, ALIGN,
    )  # fmt: skip
    there = origin + strided_offset(position, strides)
    share = tl.load(gy_ptr + there, mask=ok, other=0).to(share_ptr.dtype.element_ty)
    if BY_DIVISOR:
        share = divided(share, tl.full((), divisor, share.dtype))
    else:
        count = count_of(position, size, HI, K, S, LO, DIL, KIND, PADDED)
        share = divided(share, count.to(share.dtype))
    at = element(row, position, lanes, out[2], row_w, CHANNELS_LAST)
    tl.store(share_ptr + at, share, mask=ok)


@triton.jit
def average_backward(
    share_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, divisor,
    gx_ptr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    HI: tl.constexpr, OVER: tl.constexpr,
    SUM: tl.constexpr, DIVIDE: tl.constexpr, BY_DIVISOR: tl.constexpr, PADDED: tl.constexpr,
    UNROLL: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The gradient of the input along these axes: the sum of the shares of the windows over it.

    `share_ptr`: the shares, or with `DIVIDE` or `BY_DIVISOR` the cotangents.
    """
    lanes, size, out, strides, row, lane, position, ok, origin = prologue(
        rows, lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), row_w,
        planes, (s_p, s_n, s_d, s_h, s_w, s_c), True, CHANNELS_LAST, INDEX, ROWS, LANES, ALIGN,
    )  # fmt: skip
    last = last_windows(position, size, out, S, LO, KIND)
    total = tl.zeros((ROWS, LANES), SUM)
    WINDOWS: tl.constexpr = OVER[0] * OVER[1] * OVER[2]
    STEP: tl.constexpr = WINDOWS if UNROLL else 1
    for begin in range(0, WINDOWS, STEP):
        for j in tl.static_range(STEP):
            over, _, inside = window_over(
                begin + j, last, position, ok, size, out, K, S, LO, DIL, KIND, OVER
            )
            there = origin + strided_offset(over, strides)
            share = tl.load(share_ptr + there, mask=inside, other=0).to(SUM)
            if BY_DIVISOR:
                share = divided(share, tl.full((), divisor, SUM))
            elif DIVIDE:
                count = count_of(over, size, HI, K, S, LO, DIL, KIND, PADDED)
                share = divided(share, count.to(SUM))
            total += tl.where(inside, share, 0.0)
    tl.store(gx_ptr + row * lanes + lane, total.to(gx_ptr.dtype.element_ty), mask=ok)
