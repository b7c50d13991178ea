"""Kernels of power means, log-sum-exp, soft and expected pooling.

Two passes over a window: its largest term ``m``, then sums of terms relative to ``m``, so that
nothing overflows. With ``z <= 0`` for each input and 0 for the largest,

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
    contiguous_offset,
    divided,
    element,
    last_windows,
    load_tap,
    prologue,
    strided_offset,
    window_over,
    windows_of,
)

LP = tl.constexpr(0)
LSE = tl.constexpr(1)
SOFT = tl.constexpr(2)
EXPECTED = tl.constexpr(3)


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
def exponent(x, m, theta, OPERATOR: tl.constexpr):
    """z of an input, 0 for the largest, also where both are infinite."""
    if OPERATOR == LP:
        size = tl.abs(x)
        z = theta * log_one_plus(tl.where(size == m, 0.0, (size - m) / m))
        z = tl.where(size == 0, -float("inf"), z)
        return tl.where(size == m, 0.0, z)
    elif OPERATOR == LSE:
        value = tl.where(theta < 0, -x, x)
        return tl.where(value == m, 0.0, tl.abs(theta) * (value - m))
    else:
        return tl.where(x == m, 0.0, x - m)


@triton.jit
def theta_of(theta_ptr, position, LEARNED: tl.constexpr, channels, below):
    """Load the parameter of these outputs: one for all, or one for each of `channels`.

    The channel of a plane is ``plane // below % channels``, unless channels lie innermost
    (`below` is 0).
    """
    plane, _, _, _, c = position
    if LEARNED == 0:
        return 1.0
    elif LEARNED == 1:
        return tl.load(theta_ptr)
    elif LEARNED == 2:
        return tl.load(theta_ptr + plane // below % channels)
    else:
        return tl.load(theta_ptr + c, mask=c < channels, other=1.0)


@triton.jit
def taps_of(taps, K: tl.constexpr, INDEX: tl.constexpr):
    """The taps of a window along each axis: `K` or, for whole planes, where `K` is 0, `taps`.

    Planes have any size, and a constant would be one more kernel to compile for each.
    """
    if K[0] == 0:
        return tl.cast(taps[0], INDEX), tl.cast(taps[1], INDEX), tl.cast(taps[2], INDEX)
    else:
        return tl.cast(K[0], tl.int32), tl.cast(K[1], tl.int32), tl.cast(K[2], tl.int32)


@triton.jit
def nonlinear(
    x_ptr, theta_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, channels, below, k_d, k_h, k_w,
    y_ptr, kept0_ptr, kept1_ptr, kept2_ptr, slope_ptr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    OPERATOR: tl.constexpr, MEAN: tl.constexpr, LEARNED: tl.constexpr, SUM: tl.constexpr,
    KEEP: tl.constexpr, SLOPE: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """Outputs, what backward needs of each window (`KEEP`), and dy / dtheta (`SLOPE`)."""
    lanes, size, out, strides, row, lane, position, ok, origin = prologue(
        rows, lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), row_w,
        planes, (s_p, s_n, s_d, s_h, s_w, s_c), False, CHANNELS_LAST, INDEX, ROWS, LANES, ALIGN,
    )  # fmt: skip
    window = windows_of(position, size, S, LO, KIND)
    taps = taps_of((k_d, k_h, k_w), K, INDEX)
    theta = theta_of(theta_ptr, position, LEARNED, channels, below)
    least = -float("inf") if OPERATOR == LSE or OPERATOR == SOFT else 0.0
    m = tl.full((ROWS, LANES), least, SUM)
    n = tl.zeros((ROWS, LANES), SUM)
    for k in range(taps[0] * taps[1] * taps[2]):
        value, valid = load_tap(x_ptr, k, window, origin, strides, ok, 0, taps, DIL)
        x = value.to(SUM)
        if OPERATOR == LP:
            x = tl.abs(x)
        elif OPERATOR == LSE:
            x = tl.where(theta < 0, -x, x)
        m = tl.where(valid & ((x > m) | (x != x)), x, m)
        n += valid.to(SUM)
    s = tl.zeros((ROWS, LANES), SUM)
    t = tl.zeros((ROWS, LANES), SUM)
    w = tl.zeros((ROWS, LANES), SUM)
    h = tl.zeros((ROWS, LANES), SUM)
    for k in range(taps[0] * taps[1] * taps[2]):
        value, valid = load_tap(x_ptr, k, window, origin, strides, ok, 0, taps, DIL)
        x = value.to(SUM)
        if OPERATOR == EXPECTED:
            q = tl.where(x > 0, tl.where(x == m, 1.0, divided(x, m)), 0.0)
            s += tl.where(valid, q, 0.0)
            t += tl.where(valid, q * q, 0.0)
            w += tl.where(valid, x, 0.0)
        else:
            z = exponent(x, m, theta, OPERATOR)
            e, dead = tl.exp(z), z == -float("inf")
            far = beyond_first_order(tl.where(dead, 0.0, z))
            s += tl.where(valid, e, 0.0)
            t += tl.where(valid & ~dead, z * e, 0.0)
            w += tl.where(valid, tl.where(dead, -1.0, z + far), 0.0)
            h += tl.where(valid, tl.where(dead, 1.0, z * (z + far) - far), 0.0)
    slope = tl.zeros((ROWS, LANES), SUM)
    kept1 = divided(tl.full((), 1.0, SUM), s)
    kept2 = slope
    if OPERATOR == LP:
        share = divided(tl.full((), 1.0, SUM), n) if MEAN else tl.full((), 1.0, SUM)
        level = log_one_plus(w / n) if MEAN else log_one_plus(s - 1.0)
        y = tl.where(m == 0, 0.0, m * tl.exp(level / theta))
        kept1 = share * tl.exp(level / theta - level)
        if SLOPE:
            each = parameter_slope(s, t, w, h, n) if MEAN else t / s - level
            slope = tl.where(y == 0, 0.0, y * (each / theta / theta))
    elif OPERATOR == LSE:
        rate = tl.abs(theta)
        size = m + log_one_plus(w / n) / rate
        y = tl.where(theta < 0, -size, size)
        if SLOPE:
            slope = parameter_slope(s, t, w, h, n) / rate / rate
    elif OPERATOR == SOFT:
        kept2 = t * kept1
        y = m + kept2
    else:
        none = m == 0
        kept2 = t * kept1
        y = tl.where(none, divided(w, n), m * kept2)
        kept1 = tl.where(none, divided(tl.full((), 1.0, SUM), n), kept1)
    at = element(row, position, lanes, out[2], row_w, CHANNELS_LAST)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=ok)
    if KEEP:
        tl.store(kept0_ptr + at, m, mask=ok)
        tl.store(kept1_ptr + at, kept1, mask=ok)
        if OPERATOR == SOFT or OPERATOR == EXPECTED:
            tl.store(kept2_ptr + at, kept2, mask=ok)
    if SLOPE:
        tl.store(slope_ptr + at, slope, mask=ok)


@triton.jit
def nonlinear_backward(
    gy_ptr, x_ptr, theta_ptr, kept0_ptr, kept1_ptr, kept2_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, channels, below, k_d, k_h, k_w,
    x_planes, x_p, x_n, x_d, x_h, x_w, x_c,
    gx_ptr,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    OVER: tl.constexpr,
    OPERATOR: tl.constexpr, LEARNED: tl.constexpr, SUM: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The gradient of the input: the sum over its windows of gy times dy / dx."""
    lanes, size, out, strides, row, lane, position, ok, origin = prologue(
        rows, lanes, (in_d, in_h, in_w), (out_d, out_h, out_w), row_w,
        planes, (s_p, s_n, s_d, s_h, s_w, s_c), True, CHANNELS_LAST, INDEX, ROWS, LANES, ALIGN,
    )  # fmt: skip
    of_x = (x_p, x_n, x_d, x_h, x_w, x_c)
    x_plane = position[0] // x_planes * x_n + position[0] % x_planes * x_p + position[4] * x_c
    there = x_plane + strided_offset(position, of_x)
    x = tl.load(x_ptr + there, mask=ok, other=0).to(SUM)
    theta = theta_of(theta_ptr, position, LEARNED, channels, below)
    last = last_windows(position, size, out, S, LO, KIND)
    taps = taps_of((k_d, k_h, k_w), K, INDEX)
    total = tl.zeros((ROWS, LANES), SUM)
    for k in range(OVER[0] * OVER[1] * OVER[2]):
        over, _, inside = window_over(
            k, last, position, ok, size, out, taps, S, LO, DIL, KIND, OVER
        )
        window = contiguous_offset(over, out, lanes, CHANNELS_LAST)
        m = tl.load(kept0_ptr + window, mask=inside, other=0)
        kept1 = tl.load(kept1_ptr + window, mask=inside, other=0)
        if OPERATOR == LP:
            z = exponent(x, m, theta - 1.0, LP)
            power = tl.where(x < 0, -1.0, 1.0) * tl.exp(z)
            weight = tl.where(x == 0, 0.0, power * kept1)
        elif OPERATOR == LSE:
            weight = tl.exp(exponent(x, m, theta, LSE)) * kept1
        elif OPERATOR == SOFT:
            z = exponent(x, m, theta, SOFT)
            share = tl.exp(z) * kept1
            shift = tl.load(kept2_ptr + window, mask=inside, other=0)
            weight = tl.where(share == 0, 0.0, share * (1.0 + (z - shift)))
        else:
            q = tl.where(x == m, 1.0, divided(x, m))
            ratio = tl.load(kept2_ptr + window, mask=inside, other=0)
            own = tl.where(x > 0, (q + (q - ratio)) * kept1, tl.where(x <= 0, 0.0, x))
            weight = tl.where(m == 0, kept1, own)
        g = tl.load(gy_ptr + origin + strided_offset(over, strides), mask=inside, other=0)
        total += tl.where(inside, g.to(SUM) * weight, 0.0)
    tl.store(gx_ptr + row * lanes + lane, total.to(gx_ptr.dtype.element_ty), mask=ok)
