"""Kernels of max, min and ReLU + max.

``y[o] = x[input(o, r[o])]`` with the route ``r[o]`` of output ``o``: the winning tap, counted in
row-major order; all ones if no tap wins.

`select` is one pass over windows. Wide windows are separable, one axis a pass, with `PRIOR`; whole
planes are a tree reduction of (value, tap).
"""

import triton
import triton.language as tl

from poolgrad.torch.triton.geometry import (
    DILATION,
    KERNEL,
    LOW,
    TAPS,
    element,
    fold,
    prologue,
    state_of,
    tap_at,
    taps_of,
    wide,
    windows_of,
)
from poolgrad.torch.triton.routes import store_routes


@triton.jit
def compare(state, value, t, valid, STARTED: tl.constexpr, ORDER: tl.constexpr):
    """Compare the winner so far with the input at tap `t`: the first extreme or last NaN wins.

    `STARTED`: `tap` began as the first valid one, and padding holds the value that never wins. Else
    `tap` is -1 before the first input. `tied`: whether the winner occurred twice.
    """
    best, tap, tied = state
    a, b = wide(value), wide(best)
    takes = (a < b if ORDER == "min" else a > b) | (a != a)
    if not STARTED:
        takes = valid & (takes | (tap < 0))
    tied = (tied | (valid & (a == b) & (tap != t))) & ~takes
    return tl.where(takes, value, best), tl.where(takes, t, tap), tied


@triton.jit
def first_valid(first, A: tl.constexpr, W: tl.constexpr):
    """The first tap of each window along an axis that is not low padding."""
    if W[LOW + A] == 0:
        return 0 * first[A]
    return tl.maximum(W[DILATION + A] - 1 - first[A], 0) // W[DILATION + A]


@triton.jit
def first_valid_tap(window, W: tl.constexpr):
    """The first tap of each window that is an input, counted in row-major order; -1 if none is."""
    first, end = window
    d, h, w = first_valid(first, 0, W), first_valid(first, 1, W), first_valid(first, 2, W)
    found = (d < W[KERNEL]) & (first[0] + d * W[DILATION] < end[0])
    found &= (h < W[KERNEL + 1]) & (first[1] + h * W[DILATION + 1] < end[1])
    found &= (w < W[KERNEL + 2]) & (first[2] + w * W[DILATION + 2] < end[2])
    return tl.where(found, (d * W[KERNEL + 1] + h) * W[KERNEL + 2] + w, -1)


@triton.jit
def winner(state, fill, ORDER: tl.constexpr, ZERO_TIES: tl.constexpr):
    """Output and route of a window whose inputs have all been compared; the route may be -1."""
    best, tap, tied = state
    if ORDER == "relu_max":
        tap = tl.where(wide(best) <= 0, -1, tap)  # a NaN stays
        fill = tl.zeros_like(fill)
    best = tl.where(tap < 0, fill, best)
    if ZERO_TIES:
        tap = tl.where(tied, -1, tap)
    return best, tap


@triton.jit
def better(a, i, b, j, ORDER: tl.constexpr):
    """The winner of two (value, tap) in any order; a tap of -1 is none."""
    u, v = wide(a), wide(b)
    nan, other = u != u, v != v
    beats = u < v if ORDER == "min" else u > v
    first = tl.where(nan | other, tl.where(nan & other, i > j, nan), beats | ((u == v) & (i < j)))
    first = (j < 0) | ((i >= 0) & first)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def better_max(a, i, b, j):
    """`better` of a maximum, as `tl.reduce` takes it."""
    return better(a, i, b, j, "max")


@triton.jit
def better_min(a, i, b, j):
    """`better` of a minimum, as `tl.reduce` takes it."""
    return better(a, i, b, j, "min")


@triton.jit
def select(
    x_ptr, prior_ptr, rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, y_ptr, route_ptr,
    ORDER: tl.constexpr, LIMIT: tl.constexpr, ZERO_TIES: tl.constexpr,
    PRIOR: tl.constexpr, LAST: tl.constexpr, ROUTES: tl.constexpr, BITS: tl.constexpr,
    PAIRS: tl.constexpr, UNROLL: tl.constexpr,
    W: tl.constexpr, INDEX: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """The extreme of each window and its tap.

    `LIMIT`: the integer that no input is worse than.
    `PRIOR`: 0, or the taps of a window along the axes that were pooled before this one: then
    `prior_ptr` holds the winning tap of each input, -1 for none. `LAST`: nothing is pooled after.
    """
    array, tile = prologue(
        rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
        planes, s_p, s_n, s_d, s_h, s_w, s_c, False, INDEX, T,
    )  # fmt: skip
    _, _, size, _, strides = array
    _, _, position, ok, origin, _ = tile
    IS_PLANE: tl.constexpr = T[TAPS] > 1
    window = windows_of(position, size, W)
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    infinity = float("inf") if ORDER == "min" else -float("inf")
    fill = tl.full((), infinity if DTYPE.is_floating() else LIMIT, DTYPE)
    best = state_of(ok, DTYPE, T) + fill
    tap = tl.full(best.shape, -1, INDEX)
    tied = tl.zeros(best.shape, tl.int1)
    if PRIOR:
        K = taps_of(size, W, INDEX)
        for t in range(K[0] * K[1] * K[2]):
            there, valid = tap_at(t, window, strides, K, W)
            value = tl.load(x_ptr + origin + there, mask=ok & valid, other=fill)
            prior = tl.load(prior_ptr + origin + there, mask=ok & valid, other=-1)
            number = tl.full((), t, INDEX) * PRIOR + prior
            state = best, tap, tied
            best, tap, tied = compare(state, value, number, valid & (prior >= 0), False, ORDER)
    else:
        if not IS_PLANE:
            tap += first_valid_tap(window, W) + 1
        best, tap, tied = fold(
            compare, (best, tap, tied), x_ptr, fill, array, tile, not IS_PLANE, ORDER,
            PAIRS, UNROLL, W, INDEX, T,
        )  # fmt: skip
    if IS_PLANE:
        best, tap = tl.reduce((best, tap), 2, better_min if ORDER == "min" else better_max)
        tied = tap < 0
    if LAST:
        best, tap = winner((best, tap, tied), fill, ORDER, ZERO_TIES)
    at = element(array, tile, False, T)
    tl.store(y_ptr + at, best, mask=ok)
    if ROUTES:
        store_routes(route_ptr, tap, at, array, tile, BITS, T)
