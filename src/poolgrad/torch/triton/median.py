"""Kernel of the median: radix selection of the middle key of each window, bit by bit."""

import triton
import triton.language as tl

from poolgrad.torch.triton.geometry import (
    aligned_sizes,
    element,
    load_tap,
    places,
    plane_offset,
    tap_at,
    tile,
    wide,
    windows_of,
)
from poolgrad.torch.triton.routes import store_routes


@triton.jit
def ordered_key(value):
    """Return an int64 key with the order of the values; -0 and +0 have the same key."""
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
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    ZERO_TIES: tl.constexpr, ROUTES: tl.constexpr, BITS: tl.constexpr, KEY_BITS: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The lower median of each window and its tap; the last NaN wins."""
    lanes, size, out, strides = aligned_sizes(
        lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), (s_p, s_n, s_d, s_h, s_w, s_c),
        CHANNELS_LAST, ALIGN,
    )  # fmt: skip
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    place, ok = places(row, lane, rows, lanes, out, row_w, CHANNELS_LAST)
    window = windows_of(place, ok, size, out, first_ptr, S, LO, KIND)
    origin = plane_offset(place, planes, strides)
    count = tl.zeros((ROWS, LANES), tl.int32)
    nan_tap = tl.full((ROWS, LANES), -1, INDEX)
    for t in range(K[0] * K[1] * K[2]):
        x, valid = load_tap(x_ptr, t, window, origin, strides, ok, 0, K, DIL)
        value = wide(x)
        count += valid.to(tl.int32)
        nan_tap = tl.where(valid & (value != value), t, nan_tap)
    rank = (count - 1) // 2
    # The largest number below which lie at most `rank` keys, from the least one up.
    middle = tl.zeros((ROWS, LANES), tl.int64) + (-1 << (KEY_BITS - 1))
    for b in range(KEY_BITS):
        higher = middle + (tl.full((), 1, tl.int64) << (KEY_BITS - 1 - b))
        below = tl.zeros((ROWS, LANES), tl.int32)
        for t in range(K[0] * K[1] * K[2]):
            x, valid = load_tap(x_ptr, t, window, origin, strides, ok, 0, K, DIL)
            below += (valid & (ordered_key(x) < higher)).to(tl.int32)
        middle = tl.where(below <= rank, higher, middle)
    tap = tl.full((ROWS, LANES), -1, INDEX)
    equal = tl.zeros((ROWS, LANES), tl.int32)
    for t in range(K[0] * K[1] * K[2]):
        x, valid = load_tap(x_ptr, t, window, origin, strides, ok, 0, K, DIL)
        hit = valid & (ordered_key(x) == middle)
        tap = tl.where(hit & (tap < 0), t, tap)
        equal += hit.to(tl.int32)
    tap = tl.where(nan_tap >= 0, nan_tap, tap)
    there, valid = tap_at(tap, window, strides, K, DIL)
    at = element(row, place, lanes, out[2], row_w, CHANNELS_LAST)
    tl.store(y_ptr + at, tl.load(x_ptr + origin + there, mask=ok & valid, other=0), mask=ok)
    if ROUTES:
        if ZERO_TIES:
            tap = tl.where((equal > 1) & (nan_tap < 0), -1, tap)
        store_routes(
            route_ptr, tap, row, lane, rows, lanes, ok, at, BITS, CHANNELS_LAST, ROWS, LANES
        )
