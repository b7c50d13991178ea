"""Kernels of ``ties="split"``: every input that equals the extreme gets an equal share.

A mask of one bit for each tap marks the winners of a window: those that equal the output, or the
last NaN.

================  =================================================================================
`split_winners`   the masks
`split_shares`    ``share[o] = gy[o] / winners[o]``
`split_backward`  ``gx[i] = sum of share[o]`` over the windows that the input wins
`split_jvp`       its transpose: the mean of the tangents at the winners
================  =================================================================================
"""

import triton
import triton.language as tl

from poolgrad.torch.triton.geometry import (
    aligned_sizes,
    contiguous_offset,
    divided,
    element,
    last_windows,
    load_tap,
    places,
    plane_offset,
    strided_offset,
    tap_at,
    tile,
    wide,
    window_over,
    windows_of,
)


@triton.jit
def split_winners(
    x_ptr, y_ptr, first_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    mask_ptr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    POSITIVE: tl.constexpr, BYTES: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The winners of each window in `BYTES` bytes; `POSITIVE`: zeros do not win."""
    lanes, size, out, strides = aligned_sizes(
        lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), (s_p, s_n, s_d, s_h, s_w, s_c),
        CHANNELS_LAST, ALIGN,
    )  # fmt: skip
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    place, ok = places(row, lane, rows, lanes, out, row_w, CHANNELS_LAST)
    window = windows_of(place, ok, size, out, first_ptr, S, LO, KIND)
    origin = plane_offset(place, planes, strides)
    at = element(row, place, lanes, out[2], row_w, CHANNELS_LAST)
    best = wide(tl.load(y_ptr + at, mask=ok, other=0))
    nan_tap = tl.full((ROWS, LANES), -1, INDEX)
    for t in range(K[0] * K[1] * K[2]):
        x, valid = load_tap(x_ptr, t, window, origin, strides, ok, 0, K, DIL)
        value = wide(x)
        nan_tap = tl.where(valid & (value != value), t, nan_tap)
    for b in range(BYTES):
        byte = tl.zeros((ROWS, LANES), tl.int32)
        for j in tl.static_range(8):
            number = row * 0 + (b * 8 + j)
            x, valid = load_tap(x_ptr, number, window, origin, strides, ok, 0, K, DIL)
            valid &= number < K[0] * K[1] * K[2]
            value = wide(x)
            wins = value == best
            if POSITIVE:
                wins &= value != 0
            wins = valid & tl.where(nan_tap >= 0, number == nan_tap, wins)
            byte |= wins.to(tl.int32) << j
        tl.store(mask_ptr + at * BYTES + b, byte.to(tl.uint8), mask=ok)


@triton.jit
def count_winners(mask_ptr, at, ok, BYTES: tl.constexpr):
    """The number of winners of each output, at least 1."""
    count = tl.zeros_like(at).to(tl.int32)
    for b in range(BYTES):
        byte = tl.load(mask_ptr + at * BYTES + b, mask=ok, other=0).to(tl.int32)
        for j in tl.static_range(8):
            count += byte >> j & 1
    return tl.maximum(count, 1)


@triton.jit
def wins_at(mask_ptr, at, tap, ok, BYTES: tl.constexpr):
    """Whether the tap is a winner of the output."""
    byte = tl.load(mask_ptr + at * BYTES + tap // 8, mask=ok, other=0).to(tl.int32)
    return ok & ((byte >> tap % 8 & 1) == 1)


@triton.jit
def split_shares(
    gy_ptr, mask_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    share_ptr,
    BYTES: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The share of the cotangent of an output for each of its winners."""
    lanes, _, out, strides = aligned_sizes(
        lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), (s_p, s_n, s_d, s_h, s_w, s_c),
        CHANNELS_LAST, ALIGN,
    )  # fmt: skip
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    place, ok = places(row, lane, rows, lanes, out, row_w, CHANNELS_LAST)
    given = plane_offset(place, planes, strides) + strided_offset(place, strides)
    at = element(row, place, lanes, out[2], row_w, CHANNELS_LAST)
    share_type = share_ptr.dtype.element_ty
    g = tl.load(gy_ptr + given, mask=ok, other=0).to(share_type)
    count = count_winners(mask_ptr, at, ok, BYTES)
    tl.store(share_ptr + at, divided(g, count.to(share_type)), mask=ok)


@triton.jit
def split_backward(
    share_ptr, mask_ptr, first_ptr, last_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    gx_ptr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    OVER: tl.constexpr, BYTES: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The sum of the shares of the windows that an input wins, alone or with others."""
    lanes, size, out, _ = aligned_sizes(
        lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), (s_p, s_n, s_d, s_h, s_w, s_c),
        CHANNELS_LAST, ALIGN,
    )  # fmt: skip
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    place, ok = places(row, lane, rows, lanes, size, row_w, CHANNELS_LAST)
    last = last_windows(place, ok, size, out, last_ptr, S, LO, KIND)
    total = tl.zeros((ROWS, LANES), share_ptr.dtype.element_ty)
    for k in range(OVER[0] * OVER[1] * OVER[2]):
        over, tap, inside = window_over(
            k, last, place, ok, size, out, first_ptr, K, S, LO, DIL, KIND, OVER
        )
        at = contiguous_offset(over, out, lanes, CHANNELS_LAST)
        wins = wins_at(mask_ptr, at, tap, inside, BYTES)
        total += tl.where(wins, tl.load(share_ptr + at, mask=wins, other=0), 0.0)
    tl.store(gx_ptr + row * lanes + lane, total.to(gx_ptr.dtype.element_ty), mask=ok)


@triton.jit
def split_jvp(
    t_ptr, mask_ptr, first_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    y_ptr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    SUM: tl.constexpr, BYTES: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The mean of the tangents at the winners of each window, 0 if there is none."""
    lanes, size, out, strides = aligned_sizes(
        lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), (s_p, s_n, s_d, s_h, s_w, s_c),
        CHANNELS_LAST, ALIGN,
    )  # fmt: skip
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    place, ok = places(row, lane, rows, lanes, out, row_w, CHANNELS_LAST)
    window = windows_of(place, ok, size, out, first_ptr, S, LO, KIND)
    origin = plane_offset(place, planes, strides)
    at = element(row, place, lanes, out[2], row_w, CHANNELS_LAST)
    total = tl.zeros((ROWS, LANES), SUM)
    for t in range(K[0] * K[1] * K[2]):
        there, valid = tap_at(t, window, strides, K, DIL)
        wins = wins_at(mask_ptr, at, t, ok & valid, BYTES)
        value = tl.load(t_ptr + origin + there, mask=wins, other=0).to(SUM)
        total += tl.where(wins, value, 0.0)
    mean = divided(total, count_winners(mask_ptr, at, ok, BYTES).to(SUM))
    tl.store(y_ptr + at, mean.to(y_ptr.dtype.element_ty), mask=ok)
