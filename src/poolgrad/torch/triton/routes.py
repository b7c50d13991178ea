"""Stores and loads the routes of selecting operators, and computes their vjp and jvp.

The backward pass is a gather over inputs: ``gx[i] = sum of gy[o] over the windows o with
input(o, r[o]) == i``, in ascending order of ``o``. Each input is stored once, by the program that
sums it: no atomics, no zero fill, the same bits in every run.

=====================  ============================================================================
`route_backward`       the backward pass above
`route_backward_axis`  one axis of it, for extremes over wide windows (separable)
`route_jvp`            its transpose: ``y[o] = t[input(o, r[o])]``, also the winners' positions
=====================  ============================================================================

Separable backward pass: an extreme is the extreme along one axis of extremes along the others, so
the winner's position along the later axes depends on the window's position there only. From the
outermost axis inward, `route_backward_axis` sums the cotangents of each element of the array that
was pooled along the later axes, and stores the rest of its winning tap. The cost grows with the sum
of the kernel sizes. The sum of an input is nested by axis.
"""

import triton
import triton.language as tl

from poolgrad.torch.triton.geometry import (
    contiguous_offset,
    double_lanes,
    element,
    last_window,
    last_windows,
    prologue,
    strided_offset,
    tap_at,
    tap_of,
    tap_position,
    window_over,
    windows_of,
)


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
    route_ptr, position, out, lanes, inside,
    BITS: tl.constexpr, CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Load the routes of these outputs; the route of no winner is larger than every tap."""
    if BITS == 0:
        at = contiguous_offset(position, out, lanes, CHANNELS_LAST)
        return tl.load(route_ptr + at, mask=inside, other=0).to(INDEX)
    else:
        P: tl.constexpr = 8 // BITS
        plane, d, h, w, c = position
        bytes_of = (out[0], out[1], (out[2] + P - 1) // P)
        at = contiguous_offset((plane, d, h, w // P, c), bytes_of, lanes, CHANNELS_LAST)
        byte = tl.load(route_ptr + at, mask=inside, other=0).to(INDEX)
        return byte >> w % P * BITS & (2**BITS - 1)


@triton.jit
def route_backward(
    gy_ptr, route_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    gx_ptr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    OVER: tl.constexpr,
    SUM: tl.constexpr, BITS: tl.constexpr, PAIRS: tl.constexpr, UNROLL: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The gradient of the input: each input sums the cotangents of the windows it wins.

    `PAIRS`: along a width of stride 2, lane ``q`` is the two inputs ``2 q`` and ``2 q + 1``.
    """
    lanes, size, out, strides, row, lane, position, ok, origin = prologue(
        rows, lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), row_w,
        planes, (s_p, s_n, s_d, s_h, s_w, s_c), True, CHANNELS_LAST, INDEX, ROWS, LANES, ALIGN,
    )  # fmt: skip
    total = tl.zeros((ROWS, LANES), SUM)
    if PAIRS:
        plane, d, h, _, c = position
        right = tl.zeros((ROWS, LANES), SUM)
        # The last window over inputs 2 q and 2 q + 1 is q + AHEAD.
        AHEAD: tl.constexpr = (LO[2] + 1) // 2
        DEPTH: tl.constexpr = OVER[0]
        HEIGHT: tl.constexpr = OVER[1]
        WIDTH: tl.constexpr = OVER[2]
        last_d = tl.minimum(last_window(d, size[0], out[0], S[0], LO[0], KIND[0]), out[0] - 1)
        last_h = tl.minimum(last_window(h, size[1], out[1], S[1], LO[1], KIND[1]), out[1] - 1)
        for kd in tl.static_range(DEPTH):
            od = last_d - (DEPTH - 1 - kd)
            td, in_depth = tap_of(d, od, size[0], out[0], K[0], S[0], LO[0], DIL[0], KIND[0])
            for kh in tl.static_range(HEIGHT):
                oh = last_h - (HEIGHT - 1 - kh)
                th, in_height = tap_of(h, oh, size[1], out[1], K[1], S[1], LO[1], DIL[1], KIND[1])
                for kw in tl.static_range(WIDTH):
                    back = WIDTH - 1 - kw
                    left = LO[2] - 2 * AHEAD + 2 * back  # the tap of input 2 q
                    ow = lane + (AHEAD - back)
                    inside = ok & in_depth & in_height & (ow >= 0) & (ow < out[2])
                    over = (plane, od, oh, ow, c)
                    route = load_route(
                        route_ptr, over, out, lanes, inside, BITS, CHANNELS_LAST, INDEX
                    )
                    there = origin + strided_offset(over, strides)
                    g = tl.load(gy_ptr + there, mask=inside, other=0).to(SUM)
                    tap = (td * K[1] + th) * K[2] + left
                    if left >= 0 and left < K[2]:
                        total += tl.where(inside & (route == tap), g, 0.0)
                    if left + 1 < K[2]:
                        right += tl.where(inside & (route == tap + 1), g, 0.0)
        column = double_lanes(lanes, LANES, INDEX)
        gx = tl.reshape(tl.join(total, right), (ROWS, 2 * LANES))
        inside = (row < rows) & (column < size[2])
        tl.store(gx_ptr + row * size[2] + column, gx.to(gx_ptr.dtype.element_ty), mask=inside)
    else:
        at = row * lanes + lane
        last = last_windows(position, size, out, S, LO, KIND)
        WINDOWS: tl.constexpr = OVER[0] * OVER[1] * OVER[2]
        STEP: tl.constexpr = WINDOWS if UNROLL else 1
        for begin in range(0, WINDOWS, STEP):
            for j in tl.static_range(STEP):
                over, tap, inside = window_over(
                    begin + j, last, position, ok, size, out, K, S, LO, DIL, KIND, OVER
                )
                route = load_route(route_ptr, over, out, lanes, inside, BITS, CHANNELS_LAST, INDEX)
                wins = inside & (route == tap)
                # Of few windows all cotangents are loaded, many at a time; else those that count.
                there = origin + strided_offset(over, strides)
                g = tl.load(gy_ptr + there, mask=inside if UNROLL else wins, other=0)
                total += tl.where(wins, g.to(SUM), 0.0)
        tl.store(gx_ptr + at, total.to(gx_ptr.dtype.element_ty), mask=ok)


@triton.jit
def route_backward_axis(
    g_ptr, tap_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    total_ptr, rest_ptr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    OVER: tl.constexpr, SUM: tl.constexpr, BELOW: tl.constexpr, LAST: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """One axis of the backward pass: sums of cotangents, and the winning taps of the axes after it.

    `BELOW`: the taps of a window along the axes after this one; ``tap // BELOW`` is the tap along
    this axis. `LAST`: there are none after it, and the sums are the gradient. An element that wins
    no window gets the tap `BELOW`, which no input has.
    """
    lanes, size, out, strides, row, lane, position, ok, origin = prologue(
        rows, lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), row_w,
        planes, (s_p, s_n, s_d, s_h, s_w, s_c), True, CHANNELS_LAST, INDEX, ROWS, LANES, ALIGN,
    )  # fmt: skip
    last = last_windows(position, size, out, S, LO, KIND)
    total = tl.zeros((ROWS, LANES), SUM)
    rest = tl.full((ROWS, LANES), BELOW, INDEX)
    for k in range(OVER[0] * OVER[1] * OVER[2]):
        over, tap, inside = window_over(k, last, position, ok, size, out, K, S, LO, DIL, KIND, OVER)
        route = load_route(tap_ptr, over, out, lanes, inside, 0, CHANNELS_LAST, INDEX)
        wins = inside & (route >= 0) & (route // BELOW == tap)
        g = tl.load(g_ptr + origin + strided_offset(over, strides), mask=wins, other=0)
        total += tl.where(wins, g.to(SUM), 0.0)
        rest = tl.where(wins, route % BELOW, rest)
    at = row * lanes + lane
    tl.store(total_ptr + at, total.to(total_ptr.dtype.element_ty), mask=ok)
    if not LAST:
        tl.store(rest_ptr + at, rest.to(rest_ptr.dtype.element_ty), mask=ok)


@triton.jit
def route_jvp(
    t_ptr, route_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    y_ptr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    POSITIONS: tl.constexpr, BITS: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The tangent at each winner, 0 if there is none; or its flat position in the plane, or -1."""
    lanes, size, out, strides, row, lane, position, ok, origin = prologue(
        rows, lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), row_w,
        planes, (s_p, s_n, s_d, s_h, s_w, s_c), False, CHANNELS_LAST, INDEX, ROWS, LANES, ALIGN,
    )  # fmt: skip
    window = windows_of(position, size, S, LO, KIND)
    at = element(row, position, lanes, out[2], row_w, CHANNELS_LAST)
    t = load_route(route_ptr, position, out, lanes, ok, BITS, CHANNELS_LAST, INDEX)
    won = ok & (t >= 0) & (t < K[0] * K[1] * K[2])
    if POSITIONS:
        d, h, w = tap_position(t, window, K, DIL)
        index = ((d * size[1] + h) * size[2] + w).to(tl.int64)
        tl.store(y_ptr + at, tl.where(won, index, -1), mask=ok)
    else:
        there, valid = tap_at(t, window, strides, K, DIL)
        value = tl.load(t_ptr + origin + there, mask=won & valid, other=0)
        tl.store(y_ptr + at, tl.where(won & valid, value, 0.0), mask=ok)
