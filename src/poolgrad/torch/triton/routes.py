"""Stores and loads the routes of selecting operators, and computes their jvp.

``y[o] = t[input(o, r[o])]``, with the route ``r[o]`` of output ``o``.
"""

import triton
import triton.language as tl

from poolgrad.torch.triton.geometry import (
    CHANNELS_LAST,
    KERNEL,
    LANES,
    ROWS,
    contiguous_offset,
    element,
    prologue,
    tap_at,
    tap_position,
    taps_of,
    windows_of,
)


@triton.jit
def store_routes(route_ptr, tap, at, array, tile, BITS: tl.constexpr, T: tl.constexpr):
    """Store routes at `element`, or packed along the width (`BITS` < 8); -1 becomes all ones."""
    rows, lanes, _, _, _ = array
    row, lane, position, ok, _, _ = tile
    if BITS == 0:
        tl.store(route_ptr + at, tap.to(route_ptr.dtype.element_ty), mask=ok)
    else:
        P: tl.constexpr = 8 // BITS
        bits = (tl.where(ok, tap, 0) & (2**BITS - 1)) << position[3] % P * BITS
        # The routes of a byte are neighbours along axis 1 of the tile in another shape.
        if T[CHANNELS_LAST]:
            SHAPE: tl.constexpr = (T[ROWS] // P, P, T[LANES])
            at = row // P * lanes + lane
        else:
            SHAPE: tl.constexpr = (T[ROWS] * T[LANES] // P, P, 1)  # type: ignore[no-redef]
            at = row * tl.cdiv(lanes, P) + lane // P
        byte = tl.sum(tl.reshape(bits, SHAPE), 1)
        at = tl.min(tl.reshape(at, SHAPE), 1)
        inside = tl.max(tl.reshape(ok.to(tl.int32), SHAPE), 1) > 0
        tl.store(route_ptr + at, byte.to(tl.uint8), mask=inside)


@triton.jit
def load_route(
    route_ptr, position, array, inside, BITS: tl.constexpr, INDEX: tl.constexpr, T: tl.constexpr
):
    """Load the routes of these outputs; the route of no winner is larger than every tap."""
    _, lanes, _, out, _ = array
    plane, d, h, w, c = position
    P: tl.constexpr = 8 // BITS if BITS else 1
    shape = (out[0], out[1], (out[2] + P - 1) // P)
    at = contiguous_offset((plane, d, h, w // P, c), shape, lanes, T)
    route = tl.load(route_ptr + at, mask=inside, other=0).to(INDEX)
    if BITS:
        route = route >> w % P * BITS & (2**BITS - 1)
    return route


@triton.jit
def route_jvp(
    t_ptr, route_ptr, rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, y_ptr,
    POSITIONS: tl.constexpr, BITS: tl.constexpr,
    W: tl.constexpr, INDEX: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """The tangent at each winner, 0 if there is none; or its flat position in the plane, or -1."""
    array, tile = prologue(
        rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
        planes, s_p, s_n, s_d, s_h, s_w, s_c, False, INDEX, T,
    )  # fmt: skip
    _, _, size, _, strides = array
    _, _, position, ok, origin, _ = tile
    at = element(array, tile, False, T)
    window, K = windows_of(position, size, W), taps_of(size, W, INDEX)
    t = load_route(route_ptr, position, array, ok, BITS, INDEX, T)
    won = ok & (t >= 0) & (t < W[KERNEL] * W[KERNEL + 1] * W[KERNEL + 2])
    if POSITIONS:
        d, h, w = tap_position(t, window, K, W)
        index = ((d * size[1] + h) * size[2] + w).to(tl.int64)
        tl.store(y_ptr + at, tl.where(won, index, -1), mask=ok)
    else:
        there, valid = tap_at(t, window, strides, K, W)
        value = tl.load(t_ptr + origin + there, mask=won & valid, other=0)
        tl.store(y_ptr + at, tl.where(won & valid, value, 0.0), mask=ok)
