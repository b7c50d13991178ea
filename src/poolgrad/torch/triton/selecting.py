"""Kernels of operators where one input of each window wins: max, min, ReLU + max, median, draw.

Forward, one pass over the windows:  ``y[o] = x[input(o, r[o])]``  with the route ``r[o]`` of output
``o``, the number of the winning tap in row-major order; all ones if no tap wins.

Backward, one pass over the inputs:  ``gx[i] = sum of gy[o] over the windows o with
input(o, r[o]) == i``, in ascending order of ``o``. Each input is written once, by the program that
sums it: no atomics, no zero fill, the same bits in every run.

=====================  ===========================================================================
`select`               extreme of windows; one axis of it if `PRIOR` (separable filtering)
`select_planes`        extreme of whole planes, by a tree reduction of (value, tap)
`select_rank`          median, by a bitwise radix selection of the middle key
`draw`                 stochastic choice with splitmix64 numbers
`route_backward`       the backward pass above
`route_follow`         its transpose: ``y[o] = t[input(o, r[o])]``, also the winners' positions
`split_winners`        one bit for each tap that equals the output (``ties="split"``)
`split_backward`       equal shares of the gradient for these taps
`split_follow`         its transpose
=====================  ===========================================================================
"""

import triton
import triton.language as tl

from poolgrad.torch.triton.geometry import (
    aligned,
    divided,
    element,
    last_window,
    last_windows,
    position,
    tap_at,
    tap_of,
    tile,
    wide,
    windows_of,
)

# Which input wins.
MAX = tl.constexpr(0)
MIN = tl.constexpr(1)
RELU_MAX = tl.constexpr(2)


@triton.jit
def challenge(best, tap, several, value, t, valid, ORDER: tl.constexpr):
    """The winner so far against one more input: the first extreme wins, but for the last NaN."""
    a, b = wide(value), wide(best)
    if ORDER == MIN:
        better = a < b
    else:
        better = a > b
    takes = valid & (better | (a != a) | (tap < 0))
    several = (several | (valid & (a == b))) & ~takes
    return tl.where(takes, value, best), tl.where(takes, t, tap), several


@triton.jit
def lowest(like, ORDER: tl.constexpr, BOOL: tl.constexpr):
    """The output of a window without inputs, as a scalar of the type of `like`."""
    if like.dtype.is_floating():
        if ORDER == MAX:
            value = -float("inf")
        elif ORDER == MIN:
            value = float("inf")
        else:
            value = 0.0
    elif ORDER == RELU_MAX or BOOL:
        value = 1 if ORDER == MIN else 0
    elif like.dtype.is_int_unsigned():
        value = 2**like.dtype.primitive_bitwidth - 1 if ORDER == MIN else 0
    else:
        end: tl.constexpr = 2 ** (like.dtype.primitive_bitwidth - 1)
        value = end - 1 if ORDER == MIN else -end
    return tl.full((), value, like.dtype)


@triton.jit
def winner(best, tap, several, ORDER: tl.constexpr, ZERO_TIES: tl.constexpr, BOOL: tl.constexpr):
    """Output and route of a window whose inputs have all been compared; the route may be -1."""
    if ORDER == RELU_MAX:
        tap = tl.where(wide(best) <= 0, -1, tap)  # a NaN stays
    best = tl.where(tap < 0, lowest(best, ORDER, BOOL), best)
    if ZERO_TIES:
        tap = tl.where(several, -1, tap)
    return best, tap


@triton.jit
def store_routes(
    route_ptr, tap, row, lane, rows, lanes, ok, at,
    BITS: tl.constexpr, CHANNELS_LAST: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Store routes, packed along the width if they have `BITS` < 8; -1 becomes all ones."""
    if BITS == 0:
        tl.store(route_ptr + at, tap.to(route_ptr.dtype.element_ty), mask=ok)
    else:
        P: tl.constexpr = 8 // BITS
        bits = tl.where(ok, tap, 0) & (2**BITS - 1)
        if CHANNELS_LAST:
            shift = (tl.arange(0, P) * BITS)[None, :, None]
            byte = tl.sum(tl.reshape(bits, (ROWS // P, P, LANES)) << shift, 1)
            line = tl.min(tl.reshape(row, (ROWS // P, P)), 1)[:, None] // P
            inside = (line < rows // P) & (lane < lanes)
            at = line * lanes + lane
        else:
            shift = (tl.arange(0, P) * BITS)[None, None, :]
            byte = tl.sum(tl.reshape(bits, (ROWS, LANES // P, P)) << shift, 2)
            column = tl.min(tl.reshape(lane, (LANES // P, P)), 1)[None, :] // P
            width = (lanes + P - 1) // P
            inside = (row < rows) & (column < width)
            at = row * width + column
        tl.store(route_ptr + at, byte.to(tl.uint8), mask=inside)


@triton.jit
def load_route(
    route_ptr, plane, d, h, w, c, out_d, out_h, out_w, lanes, inside,
    BITS: tl.constexpr, CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The routes of these outputs; "no tap" is a number that no tap has."""
    line = (plane * out_d + d) * out_h + h
    if BITS == 0:
        at = (line * out_w + w) * lanes + c if CHANNELS_LAST else line * out_w + w
        return tl.load(route_ptr + at, mask=inside, other=0).to(INDEX)
    else:
        P: tl.constexpr = 8 // BITS
        at = line * ((out_w + P - 1) // P) + w // P
        if CHANNELS_LAST:
            at = at * lanes + c
        byte = tl.load(route_ptr + at, mask=inside, other=0).to(INDEX)
        return byte >> w % P * BITS & (2**BITS - 1)


@triton.jit
def select(
    x_ptr, prior_ptr, first_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    y_ptr, route_ptr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    ORDER: tl.constexpr, ZERO_TIES: tl.constexpr, BOOL: tl.constexpr,
    PRIOR: tl.constexpr, LAST: tl.constexpr, ROUTES: tl.constexpr, BITS: tl.constexpr,
    PAIRS: tl.constexpr, UNROLL: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The extreme of each window and its tap.

    `PRIOR`: 0, or the taps of a window along the axes that were pooled before this one: then
    `prior_ptr` holds the winning tap of each input, -1 for none. `LAST`: nothing is pooled after.
    `PAIRS`: along a width of stride 2, neighbouring taps come from one contiguous load.
    """
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, od, oh, ow, c = position(row, lane, out_d, out_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes) & (ow < out_w)
    first_d, end_d, first_h, end_h, first_w, end_w = windows_of(
        plane, od, oh, ow, in_d, in_h, in_w, out_d, out_h, first_ptr, out_d + out_h + out_w,
        SD, SH, SW, LD, LH, LW, KIND_D, KIND_H, KIND_W,
    )  # fmt: skip
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    best = tl.zeros((ROWS, LANES), x_ptr.dtype.element_ty)
    tap = tl.full((ROWS, LANES), -1, INDEX)
    several = tl.zeros((ROWS, LANES), tl.int1)
    if PAIRS:
        # The block of 2 * LANES inputs from tap j on holds taps j and j + 1 of all windows.
        block = tl.program_id(0).to(INDEX) % tl.cdiv(lanes, LANES) * (2 * LANES)
        both = (block + tl.arange(0, 2 * LANES))[None, :]
        for line in tl.static_range(KD * KH):
            for k in tl.static_range(KW):
                t = line * KW + k
                if k % 2 == LW % 2 and k + 1 < KW:
                    d, h = first_d + line // KH * DD, first_h + line % KH * DH
                    w = both + (k - LW)
                    valid = (d >= 0) & (d < in_d) & (h >= 0) & (h < in_h) & (row < rows)
                    if k < LW:
                        inside = valid & (w >= 0) & (w < in_w)
                    else:
                        inside = valid & (w < in_w)
                    at = origin + d * s_d + h * s_h + w * s_w
                    pair = tl.load(x_ptr + at, mask=inside, other=0)
                    even, odd = tl.split(tl.reshape(pair, (ROWS, LANES, 2)))
                    left = ow * 2 + (k - LW)
                    first = valid & (left >= 0) & (left < in_w)
                    second = valid & (left + 1 >= 0) & (left + 1 < in_w)
                    best, tap, several = challenge(best, tap, several, even, t, first, ORDER)
                    best, tap, several = challenge(best, tap, several, odd, t + 1, second, ORDER)
                elif k % 2 == LW % 2 or k == 0:
                    at, valid = tap_at(
                        t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
                        KH, KW, DD, DH, DW,
                    )  # fmt: skip
                    value = tl.load(x_ptr + origin + at, mask=ok & valid, other=0)
                    best, tap, several = challenge(best, tap, several, value, t, valid, ORDER)
    elif UNROLL:
        for t in tl.static_range(KD * KH * KW):
            at, valid = tap_at(
                t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
                KH, KW, DD, DH, DW,
            )  # fmt: skip
            value = tl.load(x_ptr + origin + at, mask=ok & valid, other=0)
            best, tap, several = challenge(best, tap, several, value, t, valid, ORDER)
    else:
        for t in range(KD * KH * KW):
            at, valid = tap_at(
                t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
                KH, KW, DD, DH, DW,
            )  # fmt: skip
            value = tl.load(x_ptr + origin + at, mask=ok & valid, other=0)
            if PRIOR:
                prior = tl.load(prior_ptr + origin + at, mask=ok & valid, other=-1)
                number = (t * PRIOR + prior).to(INDEX)
                valid &= prior >= 0
                best, tap, several = challenge(best, tap, several, value, number, valid, ORDER)
            else:
                best, tap, several = challenge(best, tap, several, value, t, valid, ORDER)
    if LAST:
        best, tap = winner(best, tap, several, ORDER, ZERO_TIES, BOOL)
    at = element(row, ow, c, lanes, out_w, row_w, CHANNELS_LAST)
    tl.store(y_ptr + at, best, mask=ok)
    if ROUTES:
        store_routes(
            route_ptr, tap, row, lane, rows, lanes, ok, at, BITS, CHANNELS_LAST, ROWS, LANES
        )


@triton.jit
def better_max(a, i, b, j):
    """The winner of two (value, tap) of a maximum; a tap of -1 is none."""
    u, v = wide(a), wide(b)
    nan, other = u != u, v != v
    first = tl.where(nan | other, tl.where(nan & other, i > j, nan), (u > v) | ((u == v) & (i < j)))
    first = (j < 0) | ((i >= 0) & first)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def better_min(a, i, b, j):
    """The winner of two (value, tap) of a minimum; a tap of -1 is none."""
    u, v = wide(a), wide(b)
    nan, other = u != u, v != v
    first = tl.where(nan | other, tl.where(nan & other, i > j, nan), (u < v) | ((u == v) & (i < j)))
    first = (j < 0) | ((i >= 0) & first)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def select_planes(
    x_ptr,
    rows, lanes, depth, height, width,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    y_ptr, route_ptr,
    ORDER: tl.constexpr, BOOL: tl.constexpr, ROUTES: tl.constexpr,
    INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """The extreme of each plane and its tap: `ROWS` planes, `LANES` channels, `TAPS` at a time."""
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    ok = (row < rows) & (lane < lanes)
    origin = row // planes * s_n + row % planes * s_p + lane * s_c
    best = tl.zeros((ROWS, LANES, TAPS), x_ptr.dtype.element_ty)
    tap = tl.full((ROWS, LANES, TAPS), -1, INDEX)
    several = tl.zeros((ROWS, LANES, TAPS), tl.int1)
    total = depth * height * width
    for begin in range(0, total, TAPS):
        t = (begin + tl.arange(0, TAPS).to(INDEX))[None, None, :]
        at = t // width // height * s_d + t // width % height * s_h + t % width * s_w
        valid = t < total
        value = tl.load(x_ptr + origin[:, :, None] + at, mask=ok[:, :, None] & valid, other=0)
        best, tap, several = challenge(best, tap, several, value, t, valid, ORDER)
    if ORDER == MIN:
        most, taps = tl.reduce((best, tap), 2, better_min)
    else:
        most, taps = tl.reduce((best, tap), 2, better_max)
    most, taps = winner(most, taps, taps < 0, ORDER, False, BOOL)
    tl.store(y_ptr + row * lanes + lane, most, mask=ok)
    if ROUTES:
        tl.store(route_ptr + row * lanes + lane, taps.to(route_ptr.dtype.element_ty), mask=ok)


@triton.jit
def route_backward(
    gy_ptr, route_ptr, first_ptr, last_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    gx_ptr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
    SUM: tl.constexpr, BITS: tl.constexpr, PAIRS: tl.constexpr, UNROLL: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The gradient of the input: each input sums the cotangents of the windows it wins.

    `TD, TH, TW`: how many windows of each axis may hold one input. `last_ptr`: of windows from a
    table, the last one over each input. `PAIRS`: along a width of stride 2, lane ``q`` is the two
    inputs ``2 q`` and ``2 q + 1``.
    """
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, d, h, w, c = position(row, lane, in_d, in_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes)
    table = plane * (out_d + out_h + out_w)
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    total = tl.zeros((ROWS, LANES), SUM)
    if PAIRS:
        right = tl.zeros((ROWS, LANES), SUM)
        # The last window over inputs 2 q and 2 q + 1 is q + AHEAD.
        AHEAD: tl.constexpr = (LW + 1) // 2
        for kd in tl.static_range(TD):
            od = last_window(d, in_d, SD, LD, KIND_D) - (TD - 1 - kd)
            td, in_depth = tap_of(d, od, in_d, out_d, first_ptr, table, KD, SD, LD, DD, KIND_D)
            for kh in tl.static_range(TH):
                oh = last_window(h, in_h, SH, LH, KIND_H) - (TH - 1 - kh)
                th, in_height = tap_of(h, oh, in_h, out_h, first_ptr, table, KH, SH, LH, DH, KIND_H)
                for kw in tl.static_range(TW):
                    back = TW - 1 - kw
                    left = LW - 2 * AHEAD + 2 * back  # the tap of input 2 q
                    ow = lane + (AHEAD - back)
                    inside = ok & in_depth & in_height & (ow >= 0) & (ow < out_w)
                    route = load_route(
                        route_ptr, plane, od, oh, ow, c, out_d, out_h, out_w, lanes, inside,
                        BITS, CHANNELS_LAST, INDEX,
                    )  # fmt: skip
                    g = tl.load(
                        gy_ptr + origin + od * s_d + oh * s_h + ow * s_w, mask=inside, other=0
                    ).to(SUM)
                    tap = (td * KH + th) * KW + left
                    if left >= 0 and left < KW:
                        total += tl.where(inside & (route == tap), g, 0.0)
                    if left + 1 < KW:
                        right += tl.where(inside & (route == tap + 1), g, 0.0)
        block = tl.program_id(0).to(INDEX) % tl.cdiv(lanes, LANES) * (2 * LANES)
        column = (block + tl.arange(0, 2 * LANES))[None, :]
        gx = tl.reshape(tl.join(total, right), (ROWS, 2 * LANES))
        inside = (row < rows) & (column < in_w)
        tl.store(gx_ptr + row * in_w + column, gx.to(gx_ptr.dtype.element_ty), mask=inside)
    else:
        last_d, last_h, last_w = last_windows(
            plane, d, h, w, ok, in_d, in_h, in_w, last_ptr, SD, SH, SW, LD, LH, LW,
            KIND_D, KIND_H, KIND_W,
        )  # fmt: skip
        if UNROLL:
            for k in tl.static_range(TD * TH * TW):
                total = gathered(
                    total, k, last_d, last_h, last_w, gy_ptr, route_ptr, first_ptr, table,
                    plane, d, h, w, c, ok, lanes, in_d, in_h, in_w, out_d, out_h, out_w,
                    origin, s_d, s_h, s_w, KD, KH, KW, SD, SH, SW, LD, LH, LW, DD, DH, DW,
                    KIND_D, KIND_H, KIND_W, TD, TH, TW, BITS, CHANNELS_LAST, INDEX, not UNROLL,
                )  # fmt: skip
        else:
            for k in range(TD * TH * TW):
                total = gathered(
                    total, k, last_d, last_h, last_w, gy_ptr, route_ptr, first_ptr, table,
                    plane, d, h, w, c, ok, lanes, in_d, in_h, in_w, out_d, out_h, out_w,
                    origin, s_d, s_h, s_w, KD, KH, KW, SD, SH, SW, LD, LH, LW, DD, DH, DW,
                    KIND_D, KIND_H, KIND_W, TD, TH, TW, BITS, CHANNELS_LAST, INDEX, not UNROLL,
                )  # fmt: skip
        at = row * lanes + lane
        tl.store(gx_ptr + at, total.to(gx_ptr.dtype.element_ty), mask=ok)


@triton.jit
def gathered(
    total, k, last_d, last_h, last_w, gy_ptr, route_ptr, first_ptr, table,
    plane, d, h, w, c, ok, lanes, in_d, in_h, in_w, out_d, out_h, out_w,
    origin, s_d, s_h, s_w,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
    BITS: tl.constexpr, CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, SPARSE: tl.constexpr,
):  # fmt: skip
    """The sum with the cotangent of the k-th window over each input, if the input wins it.

    `SPARSE`: only those cotangents are loaded, one by one; else all of them, many at a time.
    """
    od = last_d - (TD - 1 - k // (TH * TW))
    oh = last_h - (TH - 1 - k // TW % TH)
    ow = last_w - (TW - 1 - k % TW)
    td, in_depth = tap_of(d, od, in_d, out_d, first_ptr, table, KD, SD, LD, DD, KIND_D)
    th, in_height = tap_of(h, oh, in_h, out_h, first_ptr, table + out_d, KH, SH, LH, DH, KIND_H)
    tw, in_width = tap_of(
        w, ow, in_w, out_w, first_ptr, table + out_d + out_h, KW, SW, LW, DW, KIND_W
    )
    inside = ok & in_depth & in_height & in_width
    route = load_route(
        route_ptr, plane, od, oh, ow, c, out_d, out_h, out_w, lanes, inside,
        BITS, CHANNELS_LAST, INDEX,
    )  # fmt: skip
    wins = inside & (route == (td * KH + th) * KW + tw)
    at = origin + od * s_d + oh * s_h + ow * s_w
    g = tl.load(gy_ptr + at, mask=wins if SPARSE else inside, other=0)
    return total + tl.where(wins, g.to(total.dtype), 0.0)


@triton.jit
def ordered_key(value):
    """An int64 that orders values as they are ordered; -0 and +0 have the same."""
    if value.dtype.is_floating():
        B: tl.constexpr = value.dtype.primitive_bitwidth
        if B == 64:
            bits = value.to(tl.int64, bitcast=True)
        elif B == 32:
            bits = value.to(tl.int32, bitcast=True).to(tl.int64)
        else:
            bits = value.to(tl.int16, bitcast=True).to(tl.int64)
        low: tl.constexpr = 2 ** (B - 1) - 1
        key = tl.where(bits < 0, bits ^ low, bits)
        return tl.where(wide(value) == 0, 0, key)
    else:
        return value.to(tl.int64)


@triton.jit
def select_rank(
    x_ptr, first_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    y_ptr, route_ptr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    ZERO_TIES: tl.constexpr, ROUTES: tl.constexpr, BITS: tl.constexpr, KEY_BITS: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The lower median of each window and its tap: the middle key is found bit by bit."""
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, od, oh, ow, c = position(row, lane, out_d, out_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes) & (ow < out_w)
    first_d, end_d, first_h, end_h, first_w, end_w = windows_of(
        plane, od, oh, ow, in_d, in_h, in_w, out_d, out_h, first_ptr, out_d + out_h + out_w,
        SD, SH, SW, LD, LH, LW, KIND_D, KIND_H, KIND_W,
    )  # fmt: skip
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    at = element(row, ow, c, lanes, out_w, row_w, CHANNELS_LAST)
    count = tl.zeros((ROWS, LANES), tl.int32)
    nan_tap = tl.full((ROWS, LANES), -1, INDEX)
    for t in range(KD * KH * KW):
        there, valid = tap_at(
            t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
            KH, KW, DD, DH, DW,
        )  # fmt: skip
        value = wide(tl.load(x_ptr + origin + there, mask=ok & valid, other=0))
        count += valid.to(tl.int32)
        nan_tap = tl.where(valid & (value != value), t, nan_tap)
    rank = (count - 1) // 2
    # The largest number below which lie at most `rank` keys, from the least one up.
    middle = tl.zeros((ROWS, LANES), tl.int64) + (-1 << (KEY_BITS - 1))
    for b in range(KEY_BITS):
        higher = middle + (tl.full((), 1, tl.int64) << (KEY_BITS - 1 - b))
        below = tl.zeros((ROWS, LANES), tl.int32)
        for t in range(KD * KH * KW):
            there, valid = tap_at(
                t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
                KH, KW, DD, DH, DW,
            )  # fmt: skip
            key = ordered_key(tl.load(x_ptr + origin + there, mask=ok & valid, other=0))
            below += (valid & (key < higher)).to(tl.int32)
        middle = tl.where(below <= rank, higher, middle)
    tap = tl.full((ROWS, LANES), -1, INDEX)
    equal = tl.zeros((ROWS, LANES), tl.int32)
    for t in range(KD * KH * KW):
        there, valid = tap_at(
            t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
            KH, KW, DD, DH, DW,
        )  # fmt: skip
        key = ordered_key(tl.load(x_ptr + origin + there, mask=ok & valid, other=0))
        hit = valid & (key == middle)
        tap = tl.where(hit & (tap < 0), t, tap)
        equal += hit.to(tl.int32)
    tap = tl.where(nan_tap >= 0, nan_tap, tap)
    there, valid = tap_at(
        tap, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w, KH, KW, DD, DH, DW
    )
    tl.store(y_ptr + at, tl.load(x_ptr + origin + there, mask=ok & valid, other=0), mask=ok)
    if ROUTES:
        if ZERO_TIES:
            tap = tl.where((equal > 1) & (nan_tap < 0), -1, tap)
        store_routes(
            route_ptr, tap, row, lane, rows, lanes, ok, at, BITS, CHANNELS_LAST, ROWS, LANES
        )


@triton.jit
def uniform(seed, index):
    """A number in [0, 1) for each index: splitmix64 (Steele, Lea & Flood 2014)."""
    z = (index.to(tl.int64) + 1).to(tl.uint64) * 0x9E3779B97F4A7C15 + seed.to(tl.uint64)
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return ((z ^ (z >> 31)) >> 11).to(tl.int64).to(tl.float64) * 2.0**-53


@triton.jit
def draw(
    x_ptr, first_ptr, seed_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    i_planes, i_p, i_n, i_d, i_h, i_w, i_c,
    y_ptr, route_ptr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    ROUTES: tl.constexpr, BITS: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """One input of each window, drawn with a probability proportional to its positive part.

    `i_planes` ... `i_c`: strides of the outputs in logical order, which number the draws.
    Probabilities are added up in float64, scaled down where their sum would overflow.
    """
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, od, oh, ow, c = position(row, lane, out_d, out_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes) & (ow < out_w)
    first_d, end_d, first_h, end_h, first_w, end_w = windows_of(
        plane, od, oh, ow, in_d, in_h, in_w, out_d, out_h, first_ptr, out_d + out_h + out_w,
        SD, SH, SW, LD, LH, LW, KIND_D, KIND_H, KIND_W,
    )  # fmt: skip
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    at = element(row, ow, c, lanes, out_w, row_w, CHANNELS_LAST)
    largest = tl.zeros((ROWS, LANES), tl.float64)
    count = tl.zeros((ROWS, LANES), tl.int32)
    for t in range(KD * KH * KW):
        there, valid = tap_at(
            t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
            KH, KW, DD, DH, DW,
        )  # fmt: skip
        value = tl.load(x_ptr + origin + there, mask=ok & valid, other=0).to(tl.float64)
        count += valid.to(tl.int32)
        largest = tl.where(valid & (value > largest), value, largest)
    scale = tl.where(largest > 2.0**900, 2.0**-100, tl.full((), 1.0, tl.float64))
    total = tl.zeros((ROWS, LANES), tl.float64)
    for t in range(KD * KH * KW):
        there, valid = tap_at(
            t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
            KH, KW, DD, DH, DW,
        )  # fmt: skip
        value = tl.load(x_ptr + origin + there, mask=ok & valid, other=0).to(tl.float64)
        total += tl.where(valid & (value > 0), value * scale, 0.0)
    number = plane // i_planes * i_n + plane % i_planes * i_p
    number += od * i_d + oh * i_h + ow * i_w + c * i_c
    u = uniform(tl.load(seed_ptr), number)
    limit, alike = u * total, (u * count).to(tl.int32)
    below = tl.zeros((ROWS, LANES), tl.float64)
    seen = tl.zeros((ROWS, LANES), tl.int32)
    tap = tl.full((ROWS, LANES), -1, INDEX)
    for t in range(KD * KH * KW):
        there, valid = tap_at(
            t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
            KH, KW, DD, DH, DW,
        )  # fmt: skip
        value = tl.load(x_ptr + origin + there, mask=ok & valid, other=0).to(tl.float64)
        positive = valid & (value > 0)
        drawn = positive & (below <= limit)  # until the sum passes the limit
        even = valid & (seen == alike)  # where nothing is positive
        tap = tl.where(tl.where(total > 0, drawn, even), t, tap)
        below += tl.where(positive, value * scale, 0.0)
        seen += valid.to(tl.int32)
    there, valid = tap_at(
        tap, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w, KH, KW, DD, DH, DW
    )
    tl.store(y_ptr + at, tl.load(x_ptr + origin + there, mask=ok & valid, other=0), mask=ok)
    if ROUTES:
        store_routes(
            route_ptr, tap, row, lane, rows, lanes, ok, at, BITS, CHANNELS_LAST, ROWS, LANES
        )


@triton.jit
def route_follow(
    t_ptr, route_ptr, first_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    y_ptr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    POSITIONS: tl.constexpr, BITS: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The tangent at each winner, 0 if there is none; or its flat position in the plane, or -1."""
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, od, oh, ow, c = position(row, lane, out_d, out_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes) & (ow < out_w)
    first_d, end_d, first_h, end_h, first_w, end_w = windows_of(
        plane, od, oh, ow, in_d, in_h, in_w, out_d, out_h, first_ptr, out_d + out_h + out_w,
        SD, SH, SW, LD, LH, LW, KIND_D, KIND_H, KIND_W,
    )  # fmt: skip
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    at = element(row, ow, c, lanes, out_w, row_w, CHANNELS_LAST)
    t = load_route(
        route_ptr, plane, od, oh, ow, c, out_d, out_h, out_w, lanes, ok, BITS, CHANNELS_LAST, INDEX
    )
    won = ok & (t >= 0) & (t < KD * KH * KW)
    if POSITIONS:
        d, h = first_d + t // (KH * KW) * DD, first_h + t // KW % KH * DH
        index = ((d * in_h + h) * in_w + first_w + t % KW * DW).to(tl.int64)
        tl.store(y_ptr + at, tl.where(won, index, -1), mask=ok)
    else:
        there, valid = tap_at(
            t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w, KH, KW, DD, DH, DW
        )
        value = tl.load(t_ptr + origin + there, mask=won & valid, other=0)
        tl.store(y_ptr + at, tl.where(won & valid, value, 0.0), mask=ok)


@triton.jit
def split_winners(
    x_ptr, y_ptr, first_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    bits_ptr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    POSITIVE: tl.constexpr, BYTES: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """One bit for each tap that equals the output, or for the last NaN; `POSITIVE`: no zeros."""
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, od, oh, ow, c = position(row, lane, out_d, out_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes) & (ow < out_w)
    first_d, end_d, first_h, end_h, first_w, end_w = windows_of(
        plane, od, oh, ow, in_d, in_h, in_w, out_d, out_h, first_ptr, out_d + out_h + out_w,
        SD, SH, SW, LD, LH, LW, KIND_D, KIND_H, KIND_W,
    )  # fmt: skip
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    at = element(row, ow, c, lanes, out_w, row_w, CHANNELS_LAST)
    best = wide(tl.load(y_ptr + at, mask=ok, other=0))
    nan_tap = tl.full((ROWS, LANES), -1, INDEX)
    for t in range(KD * KH * KW):
        there, valid = tap_at(
            t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
            KH, KW, DD, DH, DW,
        )  # fmt: skip
        value = wide(tl.load(x_ptr + origin + there, mask=ok & valid, other=0))
        nan_tap = tl.where(valid & (value != value), t, nan_tap)
    for b in range(BYTES):
        byte = tl.zeros((ROWS, LANES), tl.int32)
        for j in tl.static_range(8):
            number = row * 0 + (b * 8 + j)
            there, valid = tap_at(
                number, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
                KH, KW, DD, DH, DW,
            )  # fmt: skip
            valid &= number < KD * KH * KW
            value = wide(tl.load(x_ptr + origin + there, mask=ok & valid, other=0))
            wins = value == best
            if POSITIVE:
                wins &= value != 0
            wins = valid & tl.where(nan_tap >= 0, number == nan_tap, wins)
            byte |= wins.to(tl.int32) << j
        tl.store(bits_ptr + at * BYTES + b, byte.to(tl.uint8), mask=ok)


@triton.jit
def winners_of(bits_ptr, at, ok, BYTES: tl.constexpr):
    """The number of winners of each output."""
    count = tl.zeros_like(at).to(tl.int32)
    for b in range(BYTES):
        byte = tl.load(bits_ptr + at * BYTES + b, mask=ok, other=0).to(tl.int32)
        for j in tl.static_range(8):
            count += byte >> j & 1
    return count


@triton.jit
def split_shares(
    gy_ptr, bits_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    share_ptr,
    BYTES: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The share of its cotangent that an output sends to each of its winners."""
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, od, oh, ow, c = position(row, lane, out_d, out_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes)
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    at = element(row, ow, c, lanes, out_w, row_w, CHANNELS_LAST)
    g = tl.load(gy_ptr + origin + od * s_d + oh * s_h + ow * s_w, mask=ok, other=0)
    count = tl.maximum(winners_of(bits_ptr, at, ok, BYTES), 1)
    share_type = share_ptr.dtype.element_ty
    tl.store(share_ptr + at, divided(g.to(share_type), count.to(share_type)), mask=ok)


@triton.jit
def split_backward(
    share_ptr, bits_ptr, first_ptr, last_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    gx_ptr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, BYTES: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The sum of the shares of the windows that an input wins, alone or with others."""
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, d, h, w, c = position(row, lane, in_d, in_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes)
    table = plane * (out_d + out_h + out_w)
    last_d, last_h, last_w = last_windows(
        plane, d, h, w, ok, in_d, in_h, in_w, last_ptr, SD, SH, SW, LD, LH, LW,
        KIND_D, KIND_H, KIND_W,
    )  # fmt: skip
    total = tl.zeros((ROWS, LANES), share_ptr.dtype.element_ty)
    for k in range(TD * TH * TW):
        od = last_d - (TD - 1 - k // (TH * TW))
        oh = last_h - (TH - 1 - k // TW % TH)
        ow = last_w - (TW - 1 - k % TW)
        td, in_depth = tap_of(d, od, in_d, out_d, first_ptr, table, KD, SD, LD, DD, KIND_D)
        th, in_height = tap_of(h, oh, in_h, out_h, first_ptr, table + out_d, KH, SH, LH, DH, KIND_H)
        tw, in_width = tap_of(
            w, ow, in_w, out_w, first_ptr, table + out_d + out_h, KW, SW, LW, DW, KIND_W
        )
        inside = ok & in_depth & in_height & in_width
        tap = (td * KH + th) * KW + tw
        line = (plane * out_d + od) * out_h + oh
        at = (line * out_w + ow) * lanes + c if CHANNELS_LAST else line * out_w + ow
        byte = tl.load(bits_ptr + at * BYTES + tap // 8, mask=inside, other=0).to(tl.int32)
        wins = inside & ((byte >> (tap % 8).to(tl.int32) & 1) == 1)
        total += tl.where(wins, tl.load(share_ptr + at, mask=wins, other=0), 0.0)
    tl.store(gx_ptr + row * lanes + lane, total.to(gx_ptr.dtype.element_ty), mask=ok)


@triton.jit
def split_follow(
    t_ptr, bits_ptr, first_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    y_ptr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    SUM: tl.constexpr, BYTES: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The mean of the tangents at the winners of each window, 0 if there is none."""
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, od, oh, ow, c = position(row, lane, out_d, out_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes) & (ow < out_w)
    first_d, end_d, first_h, end_h, first_w, end_w = windows_of(
        plane, od, oh, ow, in_d, in_h, in_w, out_d, out_h, first_ptr, out_d + out_h + out_w,
        SD, SH, SW, LD, LH, LW, KIND_D, KIND_H, KIND_W,
    )  # fmt: skip
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    at = element(row, ow, c, lanes, out_w, row_w, CHANNELS_LAST)
    total = tl.zeros((ROWS, LANES), SUM)
    for t in range(KD * KH * KW):
        there, valid = tap_at(
            t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
            KH, KW, DD, DH, DW,
        )  # fmt: skip
        byte = tl.load(bits_ptr + at * BYTES + t // 8, mask=ok, other=0).to(tl.int32)
        wins = ok & valid & ((byte >> t % 8 & 1) == 1)
        value = tl.load(t_ptr + origin + there, mask=wins, other=0).to(SUM)
        total += tl.where(wins, value, 0.0)
    count = tl.maximum(winners_of(bits_ptr, at, ok, BYTES), 1)
    tl.store(y_ptr + at, divided(total, count.to(SUM)).to(y_ptr.dtype.element_ty), mask=ok)
