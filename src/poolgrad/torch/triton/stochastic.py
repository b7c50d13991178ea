"""Kernel of stochastic pooling (Zeiler & Fergus 2013).

Each window is sampled by inversion of its cumulative distribution.
"""

import triton
import triton.language as tl

from poolgrad.torch.triton.geometry import (
    aligned_sizes,
    element,
    load_tap,
    places,
    plane_offset,
    strided_offset,
    tap_at,
    tile,
    windows_of,
)
from poolgrad.torch.triton.routes import store_routes


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
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    ROUTES: tl.constexpr, BITS: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """One input of each window, drawn with a probability proportional to its positive part.

    `i_planes` ... `i_c`: strides of the outputs in logical order, which number the draws.
    Probabilities are added up in float64, scaled down where their sum would overflow.
    """
    lanes, size, out, strides = aligned_sizes(
        lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), (s_p, s_n, s_d, s_h, s_w, s_c),
        CHANNELS_LAST, ALIGN,
    )  # fmt: skip
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    place, ok = places(row, lane, rows, lanes, out, row_w, CHANNELS_LAST)
    window = windows_of(place, ok, size, out, first_ptr, S, LO, KIND)
    origin = plane_offset(place, planes, strides)
    largest = tl.zeros((ROWS, LANES), tl.float64)
    count = tl.zeros((ROWS, LANES), tl.int32)
    for t in range(K[0] * K[1] * K[2]):
        x, valid = load_tap(x_ptr, t, window, origin, strides, ok, 0, K, DIL)
        value = x.to(tl.float64)
        count += valid.to(tl.int32)
        largest = tl.where(valid & (value > largest), value, largest)
    scale = tl.where(largest > 2.0**900, 2.0**-100, tl.full((), 1.0, tl.float64))
    total = tl.zeros((ROWS, LANES), tl.float64)
    for t in range(K[0] * K[1] * K[2]):
        x, valid = load_tap(x_ptr, t, window, origin, strides, ok, 0, K, DIL)
        value = x.to(tl.float64)
        total += tl.where(valid & (value > 0), value * scale, 0.0)
    logical = (i_p, i_n, i_d, i_h, i_w, i_c)
    number = plane_offset(place, i_planes, logical) + strided_offset(place, logical)
    u = uniform(tl.load(seed_ptr), number)
    limit, alike = u * total, (u * count).to(tl.int32)
    below = tl.zeros((ROWS, LANES), tl.float64)
    seen = tl.zeros((ROWS, LANES), tl.int32)
    tap = tl.full((ROWS, LANES), -1, INDEX)
    for t in range(K[0] * K[1] * K[2]):
        x, valid = load_tap(x_ptr, t, window, origin, strides, ok, 0, K, DIL)
        value = x.to(tl.float64)
        positive = valid & (value > 0)
        drawn = positive & (below <= limit)  # until the sum passes the limit
        even = valid & (seen == alike)  # where nothing is positive
        tap = tl.where(tl.where(total > 0, drawn, even), t, tap)
        below += tl.where(positive, value * scale, 0.0)
        seen += valid.to(tl.int32)
    there, valid = tap_at(tap, window, strides, K, DIL)
    at = element(row, place, lanes, out[2], row_w, CHANNELS_LAST)
    tl.store(y_ptr + at, tl.load(x_ptr + origin + there, mask=ok & valid, other=0), mask=ok)
    if ROUTES:
        store_routes(
            route_ptr, tap, row, lane, rows, lanes, ok, at, BITS, CHANNELS_LAST, ROWS, LANES
        )
