"""Kernels of power means, log-mean-exp, soft and expected pooling.

Two passes over a window: its largest term ``m``, then sums of terms relative to ``m``, so that
nothing overflows. With ``z <= 0`` for each input and 0 for the largest,

    s = sum e^z,  t = sum z e^z,  w = sum (e^z - 1),  h = sum (z e^z - e^z + 1).

============  ============================  =================================  ====================
operator      z                             y                                  kept for backward
============  ============================  =================================  ====================
lp            p log(abs(x) / m)             m (s / n)^(1 / p)                  m, dy / dx at m
log_mean_exp  abs(r) (x - m), of -x: r < 0  m + log(s / n) / abs(r)            m, 1 / s
soft          x - m                         m + t / s                          m, 1 / s, t / s
expected      (q = max(x, 0) / m)           m sum q^2 / sum q                  m, 1 / sum q, y / m
============  ============================  =================================  ====================

`n` is the number of inputs, and 1 for lp without `mean`. `w` and `h` give the derivative by `p` or
`r` without cancellation where all ``z`` are small.
"""

import triton
import triton.language as tl

from poolgrad.torch.triton.geometry import (
    OVER,
    contiguous_offset,
    divided,
    element,
    fold,
    prologue,
    strided_offset,
    window_over,
)


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
    if OPERATOR == "lp" or OPERATOR == "lp_mean":
        size = tl.abs(x)
        z = theta * log_one_plus(tl.where(size == m, 0.0, (size - m) / m))
        z = tl.where(size == 0, -float("inf"), z)
        return tl.where(size == m, 0.0, z)
    elif OPERATOR == "log_mean_exp":
        value = tl.where(theta < 0, -x, x)
        return tl.where(value == m, 0.0, tl.abs(theta) * (value - m))
    else:
        return tl.where(x == m, 0.0, x - m)


@triton.jit
def theta_of(theta_ptr, tile, channels, below, step, OPERATOR: tl.constexpr):
    """Load the parameter of these outputs or inputs: one for all, or one for each channel.

    The channel of a plane is ``plane // below % channels``; if channels lie innermost, `step` is 1.
    """
    _, _, position, ok, _, _ = tile
    plane, _, _, _, c = position
    if OPERATOR == "soft" or OPERATOR == "expected":
        return 1.0
    else:
        return tl.load(theta_ptr + plane // below % channels + c * step, mask=ok, other=1.0)


@triton.jit
def largest(state, value, t, valid, theta, OPERATOR: tl.constexpr):
    """Step of `fold`: the largest term m, and the number n of inputs."""
    m, n = state
    x = value.to(m.dtype)
    if OPERATOR == "lp" or OPERATOR == "lp_mean":
        x = tl.abs(x)
    elif OPERATOR == "log_mean_exp":
        x = tl.where(theta < 0, -x, x)
    return tl.where(valid & ((x > m) | (x != x)), x, m), n + valid.to(n.dtype)


@triton.jit
def sums(state, value, t, valid, given, OPERATOR: tl.constexpr):
    """Step of `fold`: the sums s, t, w and h; of `expected` those of q, q^2 and x."""
    s, t, w, h = state
    m, theta = given
    x = value.to(m.dtype)
    if OPERATOR == "expected":
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
    return s, t, w, h


@triton.jit
def nonlinear(
    x_ptr, theta_ptr, rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, channels, below, step,
    y_ptr, kept0_ptr, kept1_ptr, kept2_ptr, slope_ptr,
    OPERATOR: tl.constexpr, SUM: tl.constexpr, KEEP: tl.constexpr, SLOPE: tl.constexpr,
    W: tl.constexpr, INDEX: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Outputs, what backward needs of each window (`KEEP`), and dy / dtheta (`SLOPE`)."""
    array, tile = prologue(
        rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
        planes, s_p, s_n, s_d, s_h, s_w, s_c, False, INDEX, T,
    )  # fmt: skip
    _, _, _, ok, _, _ = tile
    theta = theta_of(theta_ptr, tile, channels, below, step, OPERATOR)
    zero = tl.zeros(ok.shape, SUM)
    one = tl.full((), 1.0, SUM)
    m = zero - float("inf") if OPERATOR == "log_mean_exp" or OPERATOR == "soft" else zero
    m, n = fold(
        largest, (m, zero), x_ptr, 0, array, tile, theta, OPERATOR, False, False, W, INDEX, T
    )  # fmt: skip
    s, t, w, h = fold(
        sums, (zero, zero, zero, zero), x_ptr, 0, array, tile, (m, theta), OPERATOR,
        False, False, W, INDEX, T,
    )  # fmt: skip
    slope = zero
    kept1 = divided(one, s)
    kept2 = zero
    if OPERATOR == "lp" or OPERATOR == "lp_mean":
        share = divided(one, n) if OPERATOR == "lp_mean" else one
        level = log_one_plus(w / n) if OPERATOR == "lp_mean" else log_one_plus(s - 1.0)
        y = tl.where(m == 0, 0.0, m * tl.exp(level / theta))
        kept1 = share * tl.exp(level / theta - level)
        if SLOPE:
            each = parameter_slope(s, t, w, h, n) if OPERATOR == "lp_mean" else t / s - level
            slope = tl.where(y == 0, 0.0, y * (each / theta / theta))
    elif OPERATOR == "log_mean_exp":
        rate = tl.abs(theta)
        size = m + log_one_plus(w / n) / rate
        y = tl.where(theta < 0, -size, size)
        if SLOPE:
            slope = parameter_slope(s, t, w, h, n) / rate / rate
    elif OPERATOR == "soft":
        kept2 = t * kept1
        y = m + kept2
    else:
        none = m == 0
        kept2 = t * kept1
        y = tl.where(none, divided(w, n), m * kept2)
        kept1 = tl.where(none, divided(one, n), kept1)
    at = element(array, tile, False, T)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=ok)
    if KEEP:
        tl.store(kept0_ptr + at, m, mask=ok)
        tl.store(kept1_ptr + at, kept1, mask=ok)
        if OPERATOR == "soft" or OPERATOR == "expected":
            tl.store(kept2_ptr + at, kept2, mask=ok)
    if SLOPE:
        tl.store(slope_ptr + at, slope, mask=ok)


@triton.jit
def weight(x, m, theta, kept1, kept2, OPERATOR: tl.constexpr):
    """dy / dx of an input of a window, from what forward kept of the window."""
    if OPERATOR == "lp" or OPERATOR == "lp_mean":
        z = exponent(x, m, theta - 1.0, "lp")
        power = tl.where(x < 0, -1.0, 1.0) * tl.exp(z)
        return tl.where(x == 0, 0.0, power * kept1)
    elif OPERATOR == "log_mean_exp":
        return tl.exp(exponent(x, m, theta, "log_mean_exp")) * kept1
    elif OPERATOR == "soft":
        z = exponent(x, m, theta, "soft")
        share = tl.exp(z) * kept1
        return tl.where(share == 0, 0.0, share * (1.0 + (z - kept2)))
    else:
        q = tl.where(x == m, 1.0, divided(x, m))
        own = tl.where(x > 0, (q + (q - kept2)) * kept1, tl.where(x <= 0, 0.0, x))
        return tl.where(m == 0, kept1, own)


@triton.jit
def nonlinear_backward(
    gy_ptr, x_ptr, theta_ptr, kept0_ptr, kept1_ptr, kept2_ptr,
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, channels, below, step,
    x_planes, x_p, x_n, x_d, x_h, x_w, x_c, gx_ptr,
    OPERATOR: tl.constexpr, SUM: tl.constexpr,
    W: tl.constexpr, INDEX: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """The gradient of the input: the sum over its windows of gy times dy / dx."""
    array, tile = prologue(
        rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
        planes, s_p, s_n, s_d, s_h, s_w, s_c, True, INDEX, T,
    )  # fmt: skip
    _, _, _, out, strides = array
    _, _, position, ok, origin, _ = tile
    x_origin = position[0] // x_planes * x_n + position[0] % x_planes * x_p + position[4] * x_c
    there = x_origin + strided_offset(position, (x_p, x_n, x_d, x_h, x_w, x_c))
    x = tl.load(x_ptr + there, mask=ok, other=0).to(SUM)
    theta = theta_of(theta_ptr, tile, channels, below, step, OPERATOR)
    total = tl.zeros(ok.shape, SUM)
    for k in range(W[OVER] * W[OVER + 1] * W[OVER + 2]):
        over, tap, inside = window_over(k, array, tile, W)
        window = contiguous_offset(over, out, array[1], T)
        m = tl.load(kept0_ptr + window, mask=inside, other=0)
        kept1 = tl.load(kept1_ptr + window, mask=inside, other=0)
        kept2 = kept1
        if OPERATOR == "soft" or OPERATOR == "expected":
            kept2 = tl.load(kept2_ptr + window, mask=inside, other=0)
        g = tl.load(gy_ptr + origin + strided_offset(over, strides), mask=inside, other=0)
        each = g.to(SUM) * weight(x, m, theta, kept1, kept2, OPERATOR)
        total += tl.where(inside, each, 0.0)
    tl.store(gx_ptr + element(array, tile, True, T), total.to(gx_ptr.dtype.element_ty), mask=ok)
