"""The backward pass of extremes and averages: a gather over inputs.

``gx[i] = sum of gy[o] over the windows o with input(o, r[o]) == i``, for averages the sum of
``gy[o] / count[o]`` over the windows that hold input ``i``, in ascending order of ``o``. Each input
is stored once, by the program that sums it: no atomics, no zero fill, the same bits in every run.

Wide windows are separable, one axis a pass, so that the cost grows with the sum of the kernel
sizes; the sum of an input is nested by axis. An extreme is the extreme along one axis of extremes
along the others, so the winner's position along the later axes depends on the window's position
there only. From the outermost axis inward, a pass sums the cotangents of each element of the array
that was pooled along the later axes, and stores the rest of its winning tap.
"""

import triton
import triton.language as tl

from poolgrad.torch.triton.averages import share
from poolgrad.torch.triton.geometry import (
    KERNEL,
    LANES,
    LOW,
    OVER,
    ROWS,
    double_lanes,
    element,
    prologue,
    strided_offset,
    window_over,
)
from poolgrad.torch.triton.routes import load_route


@triton.jit
def gather(
    g_ptr, route_ptr, rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
    planes, s_p, s_n, s_d, s_h, s_w, s_c, divisor, total_ptr, rest_ptr,
    SUM: tl.constexpr, COUNT: tl.constexpr, ROUTES: tl.constexpr, BITS: tl.constexpr,
    BELOW: tl.constexpr, REST: tl.constexpr, PAIRS: tl.constexpr, UNROLL: tl.constexpr,
    W: tl.constexpr, INDEX: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """The gradient of the input along these axes.

    Each input sums the cotangents, divided by `share`, of the windows that hold it or, with
    `ROUTES`, of those that it wins. `BELOW`: the taps of a window along the axes after these;
    ``route // BELOW`` is the tap along these axes. `REST`: the rest of the winning tap is stored,
    `BELOW` for an element that wins no window: a tap that no input has. `PAIRS`: along a width of
    stride 2, lane ``q`` is the two inputs ``2 q`` and ``2 q + 1``.
    """
    array, tile = prologue(
        rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w,
        planes, s_p, s_n, s_d, s_h, s_w, s_c, True, INDEX, T,
    )  # fmt: skip
    _, _, size, _, strides = array
    row, _, _, ok, origin, _ = tile
    total = tl.zeros(ok.shape, SUM)
    right = tl.zeros(ok.shape, SUM)
    rest = tl.full(ok.shape, BELOW, INDEX)
    OVER_W: tl.constexpr = W[OVER + 2]
    ODD: tl.constexpr = W[LOW + 2] % 2
    WINDOWS: tl.constexpr = W[OVER] * W[OVER + 1] * OVER_W
    STEP: tl.constexpr = WINDOWS if UNROLL else 1
    for begin in range(0, WINDOWS, STEP):
        for j in tl.static_range(STEP):
            over, tap, inside = window_over(begin + j, array, tile, W)
            wins = inside
            if ROUTES:
                route = load_route(route_ptr, over, array, inside, BITS, INDEX, T)
                wins &= route // BELOW == tap
            if BELOW > 1:
                wins &= route >= 0
            # Of few windows all cotangents are loaded, many at a time; else those that count.
            there = origin + strided_offset(over, strides)
            g = tl.load(g_ptr + there, mask=inside if UNROLL else wins, other=0).to(SUM)
            g = share(g, over, size, divisor, COUNT, W)
            if PAIRS:  # along the width, the tap of input 2 q is 2 (OVER_W - 1 - j % OVER_W) - ODD
                if 2 * (OVER_W - 1 - j % OVER_W) >= ODD:
                    total += tl.where(wins, g, 0.0)
                if 2 * (OVER_W - 1 - j % OVER_W) - ODD + 1 < W[KERNEL + 2]:
                    right += tl.where(inside & (route == tap + 1), g, 0.0)
            else:
                total += tl.where(wins, g, 0.0)
            if REST:
                rest = tl.where(wins, route % BELOW, rest)
    at = element(array, tile, True, T)
    if REST:
        tl.store(rest_ptr + at, rest.to(rest_ptr.dtype.element_ty), mask=ok)
    if PAIRS:
        column = double_lanes(lanes, INDEX, T)
        total = tl.reshape(tl.join(total, right), (T[ROWS], 2 * T[LANES]))
        at, ok = row * size[2] + column, (row < rows) & (column < size[2])
    tl.store(total_ptr + at, total.to(total_ptr.dtype.element_ty), mask=ok)
