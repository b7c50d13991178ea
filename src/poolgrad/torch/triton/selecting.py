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
    ADAPTIVE,
    TABLE,
    divided,
    last_window,
    position,
    tap_of,
    tile,
    wide,
    window_range,
)

# Which input wins.
MAX = tl.constexpr(0)
MIN = tl.constexpr(1)
RELU_MAX = tl.constexpr(2)


@triton.jit
def tap_at(
    t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
    KH: tl.constexpr, KW: tl.constexpr, DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
):  # fmt: skip
    """Offset of tap `t` from the first element of a plane, and whether the tap is an input."""
    d = first_d + t // (KH * KW) * DD
    h = first_h + t // KW % KH * DH
    w = first_w + t % KW * DW
    valid = (d >= 0) & (d < end_d) & (h >= 0) & (h < end_h) & (w >= 0) & (w < end_w)
    return d * s_d + h * s_h + w * s_w, valid


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
):  # fmt: skip
    """The extreme of each window and its tap.

    `PRIOR`: 0, or the taps of a window along the axes that were pooled before this one: then
    `prior_ptr` holds the winning tap of each input, -1 for none. `LAST`: nothing is pooled after.
    `PAIRS`: along a width of stride 2, neighbouring taps come from one contiguous load.
    """
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, od, oh, ow, c = position(row, lane, out_d, out_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes) & (ow < out_w)
    table = plane * (out_d + out_h + out_w)
    first_d, end_d = window_range(od, in_d, first_ptr, table, SD, LD, KIND_D)
    first_h, end_h = window_range(oh, in_h, first_ptr, table + out_d, SH, LH, KIND_H)
    first_w, end_w = window_range(ow, in_w, first_ptr, table + out_d + out_h, SW, LW, KIND_W)
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
    if CHANNELS_LAST:
        at = (row // row_w * out_w + ow) * lanes + c
    else:
        at = row * out_w + ow
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
        tl.store(
            route_ptr + row * lanes + lane, taps.to(route_ptr.dtype.element_ty), mask=ok
        )


@triton.jit
def add_if(total, gy_ptr, at, wins):
    """The sum with the cotangents of the windows that an input wins."""
    g = tl.load(gy_ptr + at, mask=wins, other=0)
    return total + tl.where(wins, g.to(total.dtype), 0.0)


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
):  # fmt: skip
    """The gradient of the input: each input sums the cotangents of the windows it wins.

    `TD, TH, TW`: how many windows of each axis may hold one input. `last_ptr`: of windows from a
    table, the last one over each input. `PAIRS`: along a width of stride 2, a lane is two inputs,
    which the same windows hold: block ``q`` is the inputs ``2 q - LW`` and ``2 q - LW + 1``.
    """
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, d, h, w, c = position(row, lane, in_d, in_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes)
    table, over = plane * (out_d + out_h + out_w), plane * (in_d + in_h + in_w)
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    total = tl.zeros((ROWS, LANES), SUM)
    if PAIRS:
        right = tl.zeros((ROWS, LANES), SUM)
        for kd in tl.static_range(TD):
            od = last_window(d, in_d, SD, LD, KIND_D) - (TD - 1 - kd)
            td, in_depth = tap_of(d, od, in_d, out_d, first_ptr, table, KD, SD, LD, DD, KIND_D)
            for kh in tl.static_range(TH):
                oh = last_window(h, in_h, SH, LH, KIND_H) - (TH - 1 - kh)
                th, in_height = tap_of(h, oh, in_h, out_h, first_ptr, table, KH, SH, LH, DH, KIND_H)
                for kw in tl.static_range(TW):
                    back = TW - 1 - kw
                    ow = lane - back
                    inside = ok & in_depth & in_height & (ow >= 0) & (ow < out_w)
                    route = load_route(
                        route_ptr, plane, od, oh, ow, c, out_d, out_h, out_w, lanes, inside,
                        BITS, CHANNELS_LAST, INDEX,
                    )  # fmt: skip
                    g = tl.load(
                        gy_ptr + origin + od * s_d + oh * s_h + ow * s_w, mask=inside, other=0
                    ).to(SUM)
                    tap = (td * KH + th) * KW + 2 * back
                    total += tl.where(inside & (route == tap), g, 0.0)
                    if 2 * back + 1 < KW:
                        right += tl.where(inside & (route == tap + 1), g, 0.0)
        block = tl.program_id(0).to(INDEX) % tl.cdiv(lanes, LANES) * (2 * LANES)
        column = (block + tl.arange(0, 2 * LANES))[None, :] - LW
        gx = tl.reshape(tl.join(total, right), (ROWS, 2 * LANES))
        inside = (row < rows) & (column < in_w)
        if LW > 0:
            inside &= column >= 0
        tl.store(gx_ptr + row * in_w + column, gx.to(gx_ptr.dtype.element_ty), mask=inside)
    else:
        if KIND_W == TABLE:
            last_d = tl.load(last_ptr + over + d, mask=ok, other=0)
            last_h = tl.load(last_ptr + over + in_d + h, mask=ok, other=0)
            last_w = tl.load(last_ptr + over + in_d + in_h + w, mask=ok, other=0)
        else:
            last_d = last_window(d, in_d, SD, LD, KIND_D)
            last_h = last_window(h, in_h, SH, LH, KIND_H)
            last_w = last_window(w, in_w, SW, LW, KIND_W)
        if UNROLL:
            for k in tl.static_range(TD * TH * TW):
                total = gathered(
                    total, k, last_d, last_h, last_w, gy_ptr, route_ptr, first_ptr, table,
                    plane, d, h, w, c, ok, lanes, in_d, in_h, in_w, out_d, out_h, out_w,
                    origin, s_d, s_h, s_w, KD, KH, KW, SD, SH, SW, LD, LH, LW, DD, DH, DW,
                    KIND_D, KIND_H, KIND_W, TD, TH, TW, BITS, CHANNELS_LAST, INDEX,
                )  # fmt: skip
        else:
            for k in range(TD * TH * TW):
                total = gathered(
                    total, k, last_d, last_h, last_w, gy_ptr, route_ptr, first_ptr, table,
                    plane, d, h, w, c, ok, lanes, in_d, in_h, in_w, out_d, out_h, out_w,
                    origin, s_d, s_h, s_w, KD, KH, KW, SD, SH, SW, LD, LH, LW, DD, DH, DW,
                    KIND_D, KIND_H, KIND_W, TD, TH, TW, BITS, CHANNELS_LAST, INDEX,
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
    BITS: tl.constexpr, CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The sum with the cotangent of the k-th window over each input, if the input wins it."""
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
    return add_if(total, gy_ptr, origin + od * s_d + oh * s_h + ow * s_w, wins)
