"""Kernels of max, min and ReLU + max.

``y[o] = x[input(o, r[o])]`` with the route ``r[o]`` of output ``o``: the winning tap, counted in
row-major order; all ones if no tap wins.

===============  ==================================================================================
`select`         one pass over windows; separable filtering, one axis a pass, with `PRIOR`
`select_planes`  whole planes: tree reduction of (value, tap)
===============  ==================================================================================
"""

import triton
import triton.language as tl

from poolgrad.torch.triton.geometry import (
    double_lanes,
    element,
    first_valid_tap,
    load_pair,
    load_tap,
    prologue,
    tap_at,
    tile,
    wide,
    windows_of,
)
from poolgrad.torch.triton.routes import store_routes

# Which input wins.
MAX = tl.constexpr(0)
MIN = tl.constexpr(1)
RELU_MAX = tl.constexpr(2)


@triton.jit
def compare(
    best, tap, tied, value, t, valid, ORDER: tl.constexpr, STARTED: tl.constexpr
):  # fmt: skip
    """Compare the winner so far with the input at tap `t`: the first extreme or last NaN wins.

    `STARTED`: `tap` began as the first valid one, and padding holds the value that never wins. Else
    `tap` is -1 before the first input. `tied`: whether the winner occurred twice.
    """
    a, b = wide(value), wide(best)
    if ORDER == MIN:
        better = a < b
    else:
        better = a > b
    takes = better | (a != a)
    if not STARTED:
        takes = valid & (takes | (tap < 0))
    tied = (tied | (valid & (a == b) & (tap != t))) & ~takes
    return tl.where(takes, value, best), tl.where(takes, t, tap), tied


@triton.jit
def identity(like, ORDER: tl.constexpr, BOOL: tl.constexpr):
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
def winner(best, tap, tied, ORDER: tl.constexpr, ZERO_TIES: tl.constexpr, BOOL: tl.constexpr):
    """Output and route of a window whose inputs have all been compared; the route may be -1."""
    if ORDER == RELU_MAX:
        tap = tl.where(wide(best) <= 0, -1, tap)  # a NaN stays
    best = tl.where(tap < 0, identity(best, ORDER, BOOL), best)
    if ZERO_TIES:
        tap = tl.where(tied, -1, tap)
    return best, tap


@triton.jit
def select(
    x_ptr, prior_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c,
    y_ptr, route_ptr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    ORDER: tl.constexpr, ZERO_TIES: tl.constexpr, BOOL: tl.constexpr,
    PRIOR: tl.constexpr, LAST: tl.constexpr, ROUTES: tl.constexpr, BITS: tl.constexpr,
    PAIRS: tl.constexpr, UNROLL: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The extreme of each window and its tap.

    `PRIOR`: 0, or the taps of a window along the axes that were pooled before this one: then
    `prior_ptr` holds the winning tap of each input, -1 for none. `LAST`: nothing is pooled after.
    `PAIRS`: along a width of stride 2, neighbouring taps come from one contiguous load.
    """
    lanes, size, out, strides, row, lane, position, ok, origin = prologue(
        rows, lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), row_w,
        planes, (s_p, s_n, s_d, s_h, s_w, s_c), False, CHANNELS_LAST, INDEX, ROWS, LANES, ALIGN,
    )  # fmt: skip
    window = windows_of(position, size, S, LO, KIND)
    fill = identity(tl.full((), 0, x_ptr.dtype.element_ty), MIN if ORDER == MIN else MAX, BOOL)
    best = tl.zeros((ROWS, LANES), x_ptr.dtype.element_ty) + fill
    tap = tl.full((ROWS, LANES), -1, INDEX)
    if PRIOR == 0:
        tap += first_valid_tap(window, K, LO, DIL) + 1
    tied = tl.zeros((ROWS, LANES), tl.int1)
    if PAIRS:
        both = double_lanes(lanes, LANES, INDEX)
        WIDTH: tl.constexpr = K[2]
        for line in tl.static_range(K[0] * K[1]):
            for k in tl.static_range(-(LO[2] % 2), WIDTH, 2):  # a pair begins at an even input
                t = line * K[2] + k
                even, in_even, odd, in_odd = load_pair(
                    x_ptr, line, k, window, position[3], both, row < rows, size, origin, strides,
                    fill, K, LO, DIL, ROWS, LANES,
                )  # fmt: skip
                if k >= 0:
                    best, tap, tied = compare(best, tap, tied, even, t, in_even, ORDER, True)
                if k + 1 < WIDTH:
                    best, tap, tied = compare(best, tap, tied, odd, t + 1, in_odd, ORDER, True)
    else:
        TAPS: tl.constexpr = K[0] * K[1] * K[2]
        STEP: tl.constexpr = TAPS if UNROLL else 1
        for begin in range(0, TAPS, STEP):
            for j in tl.static_range(STEP):
                t = begin + j
                value, valid = load_tap(x_ptr, t, window, origin, strides, ok, fill, K, DIL)
                number = t
                if PRIOR:
                    there, _ = tap_at(t, window, strides, K, DIL)
                    prior = tl.load(prior_ptr + origin + there, mask=ok & valid, other=-1)
                    number = tl.full((), t, tap.dtype) * PRIOR + prior
                    valid &= prior >= 0
                best, tap, tied = compare(
                    best, tap, tied, value, number, valid, ORDER, PRIOR == 0
                )  # fmt: skip
    if LAST:
        best, tap = winner(best, tap, tied, ORDER, ZERO_TIES, BOOL)
    at = element(row, position, lanes, out[2], row_w, CHANNELS_LAST)
    tl.store(y_ptr + at, best, mask=ok)
    if ROUTES:
        store_routes(
            route_ptr, tap, row, lane, rows, lanes, ok, at, BITS, CHANNELS_LAST, ROWS, LANES
        )


@triton.jit
def better(a, i, b, j, ORDER: tl.constexpr):
    """The winner of two (value, tap) in any order; a tap of -1 is none."""
    u, v = wide(a), wide(b)
    nan, other = u != u, v != v
    if ORDER == MIN:
        beats = u < v
    else:
        beats = u > v
    first = tl.where(nan | other, tl.where(nan & other, i > j, nan), beats | ((u == v) & (i < j)))
    first = (j < 0) | ((i >= 0) & first)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def better_max(a, i, b, j):
    """`better` of a maximum, as `tl.reduce` takes it."""
    return better(a, i, b, j, MAX)


@triton.jit
def better_min(a, i, b, j):
    """`better` of a minimum, as `tl.reduce` takes it."""
    return better(a, i, b, j, MIN)


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
    tied = tl.zeros((ROWS, LANES, TAPS), tl.int1)
    total = tl.full((), depth, INDEX) * height * width
    for begin in range(0, total, TAPS):
        t = (begin + tl.arange(0, TAPS).to(INDEX))[None, None, :]
        at = t // width // height * s_d + t // width % height * s_h + t % width * s_w
        valid = t < total
        value = tl.load(x_ptr + origin[:, :, None] + at, mask=ok[:, :, None] & valid, other=0)
        best, tap, tied = compare(best, tap, tied, value, t, valid, ORDER, False)
    if ORDER == MIN:
        most, taps = tl.reduce((best, tap), 2, better_min)
    else:
        most, taps = tl.reduce((best, tap), 2, better_max)
    most, taps = winner(most, taps, taps < 0, ORDER, False, BOOL)
    tl.store(y_ptr + row * lanes + lane, most, mask=ok)
    if ROUTES:
        tl.store(route_ptr + row * lanes + lane, taps.to(route_ptr.dtype.element_ty), mask=ok)
