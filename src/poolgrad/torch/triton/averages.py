"""The kernel of averages, and how sums and cotangents are divided.

``y[o] = sum of x over window o / count[o]``. Wide windows are separable, one axis a pass; whole
planes are a tree reduction. `gradients.gather` is the backward pass.
"""

import triton
import triton.language as tl

from poolgrad.torch.triton.geometry import (
    ADAPTIVE,
    DILATION,
    HIGH,
    KERNEL,
    KIND,
    LOW,
    STRIDE,
    TAPS,
    divided,
    element,
    fold,
    prologue,
    state_of,
    strided_offset,
)


@triton.jit
def add(state, value, t, valid, given, OPTION: tl.constexpr):
    """Add an input to the sum of its window."""
    return (state[0] + value.to(state[0].dtype),)


@triton.jit
def count_along(position, size, A: tl.constexpr, COUNT: tl.constexpr, W: tl.constexpr):
    """The number of taps of each window along an axis in the input, or `"padded"`."""
    o, step = position[A + 1], W[STRIDE + A]
    if W[KIND + A] == ADAPTIVE:
        return ((o + 1) * size[A] + step - 1) // step - o * size[A] // step
    first = o * step - W[LOW + A]
    K: tl.constexpr = W[KERNEL + A]
    DIL: tl.constexpr = W[DILATION + A]
    if COUNT == "padded":
        return tl.minimum((tl.maximum(size[A] + W[HIGH + A] - first, 0) + DIL - 1) // DIL, K)
    outside = tl.minimum((tl.maximum(-first, 0) + DIL - 1) // DIL, K)
    reached = tl.minimum((tl.maximum(size[A] - first, 0) + DIL - 1) // DIL, K)
    return tl.maximum(reached - outside, 0)


@triton.jit
def share(total, position, size, divisor, COUNT: tl.constexpr, W: tl.constexpr):
    """Divide sums or cotangents of the windows at these positions.

    `COUNT`: by the number of taps in the `"input"` or in the `"padded"` input, which is at least 1,
    so that the mean of an empty window is 0; by the `"divisor"`; or by nothing, `"none"`.
    """
    if COUNT == "none":
        return total
    elif COUNT == "divisor":
        return divided(total, tl.full((), divisor, total.dtype))
    else:
        depth = count_along(position, size, 0, COUNT, W)
        height = count_along(position, size, 1, COUNT, W)
        width = count_along(position, size, 2, COUNT, W)
        return divided(total, tl.maximum(depth * height * width, 1).to(total.dtype))


@triton.jit
def average(
    x_ptr, rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, divisor, y_ptr,
    SUM: tl.constexpr, COUNT: tl.constexpr, SHARES: tl.constexpr,
    PAIRS: tl.constexpr, UNROLL: tl.constexpr,
    W: tl.constexpr, INDEX: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """The sum of each window, divided as `share` does.

    `SHARES`: of the backward pass. `x_ptr` holds the cotangents of the windows, not inputs.
    """
    array, tile = prologue(
        rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
        planes, s_p, s_n, s_d, s_h, s_w, s_c, False, INDEX, T,
    )  # fmt: skip
    _, _, size, _, strides = array
    _, _, position, ok, origin, _ = tile
    if SHARES:
        there = origin + strided_offset(position, strides)
        total = tl.load(x_ptr + there, mask=ok, other=0).to(SUM)
    else:
        state = (state_of(ok, SUM, T),)
        state = fold(add, state, x_ptr, 0, array, tile, 0, 0, PAIRS, UNROLL, W, INDEX, T)
        total = tl.sum(state[0], 2) if T[TAPS] > 1 else state[0]
    total = share(total, position, size, divisor, COUNT, W)
    tl.store(y_ptr + element(array, tile, False, T), total.to(y_ptr.dtype.element_ty), mask=ok)
