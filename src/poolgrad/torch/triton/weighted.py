"""Kernels of operators where every input of a window has a weight.

Average: ``y[o] = sum of x over window o / count[o]``, ``gx[i] = sum of gy[o] / count[o]`` over the
windows that hold input ``i``. `average` and `average_backward` work on one axis at a time where
windows are wide (separable filtering), `average_planes` adds up whole planes.

Nonlinear operators take two passes over a window: its largest term ``m``, then sums of terms
relative to ``m``, so that nothing overflows. With ``z <= 0`` for each input and 0 for the largest,

    s = sum e^z,  t = sum z e^z,  w = sum (e^z - 1),  h = sum (z e^z - e^z + 1).

==========  ============================  =================================  ====================
operator    z                             y                                  kept for backward
==========  ============================  =================================  ====================
lp          p log(abs(x) / m)             m (s / n)^(1 / p)                  m, dy / dx at m
lse         abs(r) (x - m), of -x: r < 0  m + log(s / n) / abs(r)            m, 1 / s
soft        x - m                         m + t / s                          m, 1 / s, t / s
expected    (q = max(x, 0) / m)           m sum q^2 / sum q                  m, 1 / sum q, y / m
==========  ============================  =================================  ====================

`n` is the number of inputs, and 1 for lp without `mean`. `w` and `h` give the derivative by `p` or
`r` without cancellation where all ``z`` are small.
"""

import triton
import triton.language as tl

from poolgrad.torch.triton.geometry import (
    ADAPTIVE,
    aligned,
    divided,
    element,
    last_windows,
    position,
    tap_at,
    tap_of,
    tile,
    windows_of,
)

LP = tl.constexpr(0)
LSE = tl.constexpr(1)
SOFT = tl.constexpr(2)
EXPECTED = tl.constexpr(3)


@triton.jit
def taps_along(
    o, size, HI: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """How many taps of window `o` lie in the input, or with `PADDED` in the padded input."""
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
    od, oh, ow, in_d, in_h, in_w,
    HD: tl.constexpr, HH: tl.constexpr, HW: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """How many taps of these windows count."""
    depth = taps_along(od, in_d, HD, KD, SD, LD, DD, KIND_D, PADDED)
    height = taps_along(oh, in_h, HH, KH, SH, LH, DH, KIND_H, PADDED)
    width = taps_along(ow, in_w, HW, KW, SW, LW, DW, KIND_W, PADDED)
    return depth * height * width


@triton.jit
def average(
    x_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, divisor,
    y_ptr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    HD: tl.constexpr, HH: tl.constexpr, HW: tl.constexpr,
    SUM: tl.constexpr, DIVIDE: tl.constexpr, FIXED: tl.constexpr, PADDED: tl.constexpr,
    PAIRS: tl.constexpr, UNROLL: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The sum of each window, divided by the number of its taps or by `divisor` (`FIXED`).

    `DIVIDE`: whether to divide along these axes; `PAIRS` as in `selecting.select`.
    """
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, od, oh, ow, c = position(row, lane, out_d, out_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes)
    first_d, end_d, first_h, end_h, first_w, end_w = windows_of(
        plane, od, oh, ow, in_d, in_h, in_w, out_d, out_h, x_ptr, 0,
        SD, SH, SW, LD, LH, LW, KIND_D, KIND_H, KIND_W,
    )  # fmt: skip
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    total = tl.zeros((ROWS, LANES), SUM)
    if PAIRS:
        block = tl.program_id(0).to(INDEX) % tl.cdiv(lanes, LANES) * (2 * LANES)
        both = (block + tl.arange(0, 2 * LANES))[None, :]
        for line in tl.static_range(KD * KH):
            for k in tl.static_range(KW):
                if k % 2 == LW % 2 and k + 1 < KW:
                    d, h = first_d + line // KH * DD, first_h + line % KH * DH
                    w = both + (k - LW)
                    inside = (d >= 0) & (d < in_d) & (h >= 0) & (h < in_h) & (row < rows)
                    if k < LW:
                        inside &= w >= 0
                    inside &= w < in_w
                    at = origin + d * s_d + h * s_h + w * s_w
                    pair = tl.load(x_ptr + at, mask=inside, other=0).to(SUM)
                    even, odd = tl.split(tl.reshape(pair, (ROWS, LANES, 2)))
                    total = total + even + odd
                elif k % 2 == LW % 2 or k == 0:
                    at, valid = tap_at(
                        line * KW + k, first_d, end_d, first_h, end_h, first_w, end_w,
                        s_d, s_h, s_w, KH, KW, DD, DH, DW,
                    )  # fmt: skip
                    total += tl.load(x_ptr + origin + at, mask=ok & valid, other=0).to(SUM)
    elif UNROLL:
        for t in tl.static_range(KD * KH * KW):
            at, valid = tap_at(
                t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
                KH, KW, DD, DH, DW,
            )  # fmt: skip
            total += tl.load(x_ptr + origin + at, mask=ok & valid, other=0).to(SUM)
    else:
        for t in range(KD * KH * KW):
            at, valid = tap_at(
                t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
                KH, KW, DD, DH, DW,
            )  # fmt: skip
            total += tl.load(x_ptr + origin + at, mask=ok & valid, other=0).to(SUM)
    if FIXED:
        total = divided(total, tl.full((), divisor, SUM))
    elif DIVIDE:
        count = count_of(
            od, oh, ow, in_d, in_h, in_w, HD, HH, HW, KD, KH, KW, SD, SH, SW, LD, LH, LW,
            DD, DH, DW, KIND_D, KIND_H, KIND_W, PADDED,
        )  # fmt: skip
        # A window that lies beyond the padding holds nothing: 0, not 0 / 0.
        total = divided(total, tl.maximum(count, 1).to(SUM))
    at = element(row, ow, c, lanes, out_w, row_w, CHANNELS_LAST)
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
    size = depth * height * width
    for begin in range(0, size, TAPS):
        t = (begin + tl.arange(0, TAPS).to(INDEX))[None, None, :]
        at = t // width // height * s_d + t // width % height * s_h + t % width * s_w
        inside = ok[:, :, None] & (t < size)
        total += tl.load(x_ptr + origin[:, :, None] + at, mask=inside, other=0).to(SUM)
    mean = divided(tl.sum(total, 2), tl.full((), divisor, SUM))
    tl.store(y_ptr + row * lanes + lane, mean.to(y_ptr.dtype.element_ty), mask=ok)


@triton.jit
def average_backward(
    gy_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, divisor,
    gx_ptr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    HD: tl.constexpr, HH: tl.constexpr, HW: tl.constexpr,
    TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
    SUM: tl.constexpr, DIVIDE: tl.constexpr, FIXED: tl.constexpr, PADDED: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The gradient of the input along these axes: the sum of the windows' equal shares."""
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, d, h, w, c = position(row, lane, in_d, in_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes)
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    last_d, last_h, last_w = last_windows(
        plane, d, h, w, ok, in_d, in_h, in_w, gy_ptr, SD, SH, SW, LD, LH, LW,
        KIND_D, KIND_H, KIND_W,
    )  # fmt: skip
    total = tl.zeros((ROWS, LANES), SUM)
    for k in range(TD * TH * TW):
        od = last_d - (TD - 1 - k // (TH * TW))
        oh = last_h - (TH - 1 - k // TW % TH)
        ow = last_w - (TW - 1 - k % TW)
        _, in_depth = tap_of(d, od, in_d, out_d, gy_ptr, 0, KD, SD, LD, DD, KIND_D)
        _, in_height = tap_of(h, oh, in_h, out_h, gy_ptr, 0, KH, SH, LH, DH, KIND_H)
        _, in_width = tap_of(w, ow, in_w, out_w, gy_ptr, 0, KW, SW, LW, DW, KIND_W)
        inside = ok & in_depth & in_height & in_width
        at = origin + od * s_d + oh * s_h + ow * s_w
        g = tl.load(gy_ptr + at, mask=inside, other=0).to(SUM)
        if FIXED:
            g = divided(g, tl.full((), divisor, SUM))
        elif DIVIDE:
            count = count_of(
                od, oh, ow, in_d, in_h, in_w, HD, HH, HW, KD, KH, KW, SD, SH, SW, LD, LH, LW,
                DD, DH, DW, KIND_D, KIND_H, KIND_W, PADDED,
            )  # fmt: skip
            g = divided(g, tl.maximum(count, 1).to(SUM))
        total += tl.where(inside, g, 0.0)
    at = element(row, w, c, lanes, in_w, row_w, CHANNELS_LAST)
    tl.store(gx_ptr + at, total.to(gx_ptr.dtype.element_ty), mask=ok)


@triton.jit
def beyond_first_order(z):
    """e^z - 1 - z without cancellation, for z <= 0: by its series near 0."""
    series = tl.zeros_like(z) + 1.0
    for k in tl.static_range(18):
        series = 1.0 + series * z * (1.0 / (20 - k))
    return tl.where(z > -0.5, 0.5 * z * z * series, tl.exp(z) - 1.0 - z)


@triton.jit
def odd_series(q):
    """q^3 / 3 + q^5 / 5 + ..., what the inverse hyperbolic tangent of a small q has beyond q."""
    square = q * q
    series = tl.zeros_like(q)
    for k in tl.static_range(17):
        series = series * square + 1.0 / (35 - 2 * k)
    return series * square * q


@triton.jit
def log_one_plus(v):
    """log(1 + v) without cancellation, for v >= -1."""
    q = v / (2.0 + v)
    near = (v > -0.5) & (v < 1.0)
    return tl.where(near, 2.0 * (q + odd_series(tl.where(near, q, 0.0))), tl.log(1.0 + v))


@triton.jit
def parameter_slope(s, t, w, h, n):
    """t / s - log(s / n), from the sums of the module's docstring, exact for small z, too."""
    v = w / n
    q = tl.where(v > -0.5, v / (2.0 + v), 0.0)
    beyond = 2.0 * (q * q / (1.0 + q) + odd_series(q))  # log(1 + v) - v / (1 + v)
    return tl.where(v > -0.5, h / (n * (1.0 + v)) - beyond, t / s - tl.log(s / n))


@triton.jit
def exponent(x, m, theta, KIND: tl.constexpr):
    """z of an input, 0 for the largest, also where both are infinite."""
    if KIND == LP:
        size = tl.abs(x)
        z = theta * log_one_plus(tl.where(size == m, 0.0, (size - m) / m))
        z = tl.where(size == 0, -float("inf"), z)
        return tl.where(size == m, 0.0, z)
    elif KIND == LSE:
        value = tl.where(theta < 0, -x, x)
        return tl.where(value == m, 0.0, tl.abs(theta) * (value - m))
    else:
        return tl.where(x == m, 0.0, x - m)


@triton.jit
def theta_of(theta_ptr, plane, c, LEARNED: tl.constexpr, channels, below):
    """The parameter of these outputs: one for all, or one for each of `channels`.

    The channel of a plane is ``plane // below % channels``, unless channels lie innermost
    (`below` is 0).
    """
    if LEARNED == 0:
        return 1.0
    elif LEARNED == 1:
        return tl.load(theta_ptr)
    elif LEARNED == 2:
        return tl.load(theta_ptr + plane // below % channels)
    else:
        return tl.load(theta_ptr + c, mask=c < channels, other=1.0)


@triton.jit
def nonlinear(
    x_ptr, theta_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, channels, below,
    y_ptr, kept0_ptr, kept1_ptr, kept2_ptr, slope_ptr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    KIND: tl.constexpr, MEAN: tl.constexpr, LEARNED: tl.constexpr, SUM: tl.constexpr,
    KEEP: tl.constexpr, SLOPE: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Outputs, what backward needs of each window (`KEEP`), and dy / dtheta (`SLOPE`)."""
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, od, oh, ow, c = position(row, lane, out_d, out_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes)
    first_d, end_d, first_h, end_h, first_w, end_w = windows_of(
        plane, od, oh, ow, in_d, in_h, in_w, out_d, out_h, x_ptr, 0,
        SD, SH, SW, LD, LH, LW, KIND_D, KIND_H, KIND_W,
    )  # fmt: skip
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    theta = theta_of(theta_ptr, plane, c, LEARNED, channels, below)
    m = tl.zeros((ROWS, LANES), SUM) + (-float("inf") if KIND == LSE or KIND == SOFT else 0.0)
    n = tl.zeros((ROWS, LANES), SUM)
    for k in range(KD * KH * KW):
        at, valid = tap_at(
            k, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w, KH, KW, DD, DH, DW
        )
        x = tl.load(x_ptr + origin + at, mask=ok & valid, other=0).to(SUM)
        if KIND == LP:
            x = tl.abs(x)
        elif KIND == LSE:
            x = tl.where(theta < 0, -x, x)
        m = tl.where(valid & ((x > m) | (x != x)), x, m)
        n += valid.to(SUM)
    s = tl.zeros((ROWS, LANES), SUM)
    t = tl.zeros((ROWS, LANES), SUM)
    w = tl.zeros((ROWS, LANES), SUM)
    h = tl.zeros((ROWS, LANES), SUM)
    for k in range(KD * KH * KW):
        at, valid = tap_at(
            k, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w, KH, KW, DD, DH, DW
        )
        x = tl.load(x_ptr + origin + at, mask=ok & valid, other=0).to(SUM)
        if KIND == EXPECTED:
            q = tl.where(x > 0, tl.where(x == m, 1.0, divided(x, m)), 0.0)
            s += tl.where(valid, q, 0.0)
            t += tl.where(valid, q * q, 0.0)
            w += tl.where(valid, x, 0.0)
        else:
            z = exponent(x, m, theta, KIND)
            e, dead = tl.exp(z), z == -float("inf")
            far = beyond_first_order(tl.where(dead, 0.0, z))
            s += tl.where(valid, e, 0.0)
            t += tl.where(valid & ~dead, z * e, 0.0)
            w += tl.where(valid, tl.where(dead, -1.0, z + far), 0.0)
            h += tl.where(valid, tl.where(dead, 1.0, z * (z + far) - far), 0.0)
    slope = tl.zeros((ROWS, LANES), SUM)
    kept1 = divided(tl.full((), 1.0, SUM), s)
    kept2 = slope
    if KIND == LP:
        share = divided(tl.full((), 1.0, SUM), n) if MEAN else tl.full((), 1.0, SUM)
        level = log_one_plus(w / n) if MEAN else log_one_plus(s - 1.0)
        y = tl.where(m == 0, 0.0, m * tl.exp(level / theta))
        kept1 = share * tl.exp(level / theta - level)
        if SLOPE:
            each = parameter_slope(s, t, w, h, n) if MEAN else t / s - level
            slope = tl.where(y == 0, 0.0, y * (each / theta / theta))
    elif KIND == LSE:
        rate = tl.abs(theta)
        size = m + log_one_plus(w / n) / rate
        y = tl.where(theta < 0, -size, size)
        if SLOPE:
            slope = parameter_slope(s, t, w, h, n) / rate / rate
    elif KIND == SOFT:
        kept2 = t * kept1
        y = m + kept2
    else:
        none = m == 0
        kept2 = t * kept1
        y = tl.where(none, divided(w, n), m * kept2)
        kept1 = tl.where(none, divided(tl.full((), 1.0, SUM), n), kept1)
    at = element(row, ow, c, lanes, out_w, row_w, CHANNELS_LAST)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=ok)
    if KEEP:
        tl.store(kept0_ptr + at, m, mask=ok)
        tl.store(kept1_ptr + at, kept1, mask=ok)
        if KIND == SOFT or KIND == EXPECTED:
            tl.store(kept2_ptr + at, kept2, mask=ok)
    if SLOPE:
        tl.store(slope_ptr + at, slope, mask=ok)


@triton.jit
def nonlinear_backward(
    gy_ptr, x_ptr, theta_ptr, kept0_ptr, kept1_ptr, kept2_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, channels, below,
    x_planes, x_p, x_n, x_d, x_h, x_w, x_c,
    gx_ptr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
    TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
    KIND: tl.constexpr, LEARNED: tl.constexpr, SUM: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    LANE_UNIT: tl.constexpr, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The gradient of the input: the sum over its windows of gy times dy / dx."""
    lanes, in_w = aligned(lanes, LANE_UNIT), aligned(in_w, IN_UNIT)
    out_w = aligned(out_w, OUT_UNIT)
    s_p, s_n = aligned(s_p, UNIT), aligned(s_n, UNIT)
    s_d, s_h = aligned(s_d, UNIT), aligned(s_h, UNIT)
    if CHANNELS_LAST:
        s_w = aligned(s_w, UNIT)
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    plane, d, h, w, c = position(row, lane, in_d, in_h, row_w, CHANNELS_LAST)
    ok = (row < rows) & (lane < lanes)
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    at_x = plane // x_planes * x_n + plane % x_planes * x_p + c * x_c
    x = tl.load(x_ptr + at_x + d * x_d + h * x_h + w * x_w, mask=ok, other=0).to(SUM)
    theta = theta_of(theta_ptr, plane, c, LEARNED, channels, below)
    last_d, last_h, last_w = last_windows(
        plane, d, h, w, ok, in_d, in_h, in_w, gy_ptr, SD, SH, SW, LD, LH, LW,
        KIND_D, KIND_H, KIND_W,
    )  # fmt: skip
    total = tl.zeros((ROWS, LANES), SUM)
    for k in range(TD * TH * TW):
        od = last_d - (TD - 1 - k // (TH * TW))
        oh = last_h - (TH - 1 - k // TW % TH)
        ow = last_w - (TW - 1 - k % TW)
        _, in_depth = tap_of(d, od, in_d, out_d, gy_ptr, 0, KD, SD, LD, DD, KIND_D)
        _, in_height = tap_of(h, oh, in_h, out_h, gy_ptr, 0, KH, SH, LH, DH, KIND_H)
        _, in_width = tap_of(w, ow, in_w, out_w, gy_ptr, 0, KW, SW, LW, DW, KIND_W)
        inside = ok & in_depth & in_height & in_width
        line = (plane * out_d + od) * out_h + oh
        at = (line * out_w + ow) * lanes + c if CHANNELS_LAST else line * out_w + ow
        m = tl.load(kept0_ptr + at, mask=inside, other=0)
        kept1 = tl.load(kept1_ptr + at, mask=inside, other=0)
        if KIND == LP:
            z = exponent(x, m, theta - 1.0, LP)
            power = tl.where(x < 0, -1.0, 1.0) * tl.exp(z)
            weight = tl.where(x == 0, 0.0, power * kept1)
        elif KIND == LSE:
            weight = tl.exp(exponent(x, m, theta, LSE)) * kept1
        elif KIND == SOFT:
            z = exponent(x, m, theta, SOFT)
            share = tl.exp(z) * kept1
            shift = tl.load(kept2_ptr + at, mask=inside, other=0)
            weight = tl.where(share == 0, 0.0, share * (1.0 + (z - shift)))
        else:
            q = tl.where(x == m, 1.0, divided(x, m))
            ratio = tl.load(kept2_ptr + at, mask=inside, other=0)
            own = tl.where(x > 0, (q + (q - ratio)) * kept1, tl.where(x <= 0, 0.0, x))
            weight = tl.where(m == 0, kept1, own)
        g = tl.load(gy_ptr + origin + od * s_d + oh * s_h + ow * s_w, mask=inside, other=0)
        total += tl.where(inside, g.to(SUM) * weight, 0.0)
    at = element(row, w, c, lanes, in_w, row_w, CHANNELS_LAST)
    tl.store(gx_ptr + at, total.to(gx_ptr.dtype.element_ty), mask=ok)
