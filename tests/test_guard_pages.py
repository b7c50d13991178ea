"""No kernel reads or writes outside its arrays: they lie against pages that nobody may touch."""

from __future__ import annotations

import sys

import pytest
from instruction_sets import each_instruction_set
from processes import assert_runs

# A child process: an access outside ends it with a segmentation fault. The case is printed first.
ARRAYS = """
import ctypes, faulthandler, mmap, sys
import numpy as np
import poolgrad

PAGE = mmap.PAGESIZE
protect = ctypes.CDLL(None, use_errno=True).mprotect
protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
kept = []

def guarded(shape, dtype, strides, at_end):
    "An array between two forbidden pages; its last (or first) byte is next to one of them."
    item = np.dtype(dtype).itemsize
    extent = item + sum((n - 1) * s * item for n, s in zip(shape, strides))
    pages = -(-extent // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (begin, begin + (pages + 1) * PAGE):
        assert protect(page, PAGE, 0) == 0
    kept.append(memory)
    offset = PAGE * (pages + 1) - extent if at_end else PAGE
    array = np.ndarray(shape, dtype, memory, offset, [s * item for s in strides])
    array[...] = rng.integers(-9, 10, shape)
    return array

def dense(shape, order):
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * shape[axis]
    return strides

def draw(shape, dtype, at_end):
    order = [list(range(4)), [0, 2, 3, 1], [1, 2, 3, 0], [0, 1, 3, 2]][rng.integers(4)]
    strides = dense(shape, order)
    if rng.integers(3) == 0:  # gaps between the elements
        strides = [2 * s for s in strides]
    return guarded(shape, dtype, strides, at_end)

rng = np.random.default_rng(1)
"""
RANDOM = """
for case in range({cases}):
    kept.clear()
    # Channels or rows, rows or columns, and so on: some tall and narrow, some many and narrow.
    few, high, wide = [(5, 20, 70), (12, 60, 70), (3, 900, 20), (70, 20, 24)][rng.integers(4)]
    shape = (rng.integers(1, 3), *(rng.integers(1, most) for most in (few, high, wide)))
    shape = tuple(map(int, shape))
    dtype = [np.float32, np.float64][rng.integers(2)]
    at_end, last = bool(rng.integers(2)), bool(rng.integers(2))
    pooled = shape[1:3] if last else shape[2:]
    pad = [tuple(map(int, rng.integers(0, 4, 2))) for _ in pooled]
    dilation = [int(d) for d in rng.integers(1, 3, 2)]
    kernel = [
        min(int(k), (n + sum(p) - 1) // d + 1)
        for k, n, p, d in zip(rng.integers(1, [10, 6][rng.integers(2)], 2), pooled, pad, dilation)
    ]
    stride = [int(s) for s in rng.integers(1, 5, 2)]
    how = dict(channels_last=last)
    inside = dict(padding=[tuple(min(p, k - 1) for p in ps) for ps, k in zip(pad, kernel)])
    ties = ["first", "split", "zero"][rng.integers(3)]
    windows = dict(padding=pad, dilation=dilation)
    fun, args, more = [
        (poolgrad.max_pool2d, (kernel, stride), dict(ties=ties) | windows),
        (poolgrad.max_pool2d, (kernel, stride), dict(ties=ties) | windows),
        (poolgrad.avg_pool2d, (kernel, stride), windows),
        (poolgrad.adaptive_max_pool2d, ([int(n) for n in rng.integers(1, 9, 2)],), dict(ties=ties)),
        (poolgrad.adaptive_avg_pool2d, ([int(n) for n in rng.integers(1, 9, 2)],), {{}}),
        (poolgrad.min_pool2d, (kernel, stride), dict(ties=ties) | windows),
        (poolgrad.relu_max_pool2d, (kernel, stride), dict(ties=ties) | windows),
        (poolgrad.median_pool2d, (kernel, stride), dict(ties=ties) | inside),
        (poolgrad.lp_pool2d, (float(rng.integers(1, 4)), kernel, stride), windows),
        (poolgrad.lse_pool2d, (kernel, stride), dict(r=2.0) | inside),
        (poolgrad.soft_pool2d, (kernel, stride), inside),
        (poolgrad.stochastic_pool2d, (kernel, stride), dict(generator=1) | inside),
        (poolgrad.stochastic_pool2d, (kernel, stride), dict(training=False) | inside),
        (poolgrad.mixed_pool2d, (kernel, stride), dict(alpha=0.3) | inside),
    ][rng.integers(14)]
    print(fun.__name__, shape, dtype.__name__, args, more, at_end, file=sys.stderr, flush=True)
    x = draw(shape, dtype, at_end)
    y, pullback = poolgrad.vjp(fun, x, *args, **more, **how)
    gy = draw(y.shape, dtype, at_end)
    out = draw(y.shape, dtype, at_end)
    assert np.array_equal(pullback(gy), pullback(gy.copy()))
    assert np.array_equal(fun(x, *args, **more, **how, out=out), y)
print("inside")
"""
# Padding is wider than a row of inputs: what a window reaches lies more than a row away.
WIDE_PADDING = """
for name, shape, kernel, padding, dilation in [
    ("max_pool2d", (8, 8), 3, 9, 4),
    ("max_pool2d", (3, 2), 3, 5, 3),
    ("avg_pool2d", (6, 1), 3, 6, 3),
    ("avg_pool2d", (9, 4), 3, 5, 2),
    ("max_pool3d", (2, 5, 1), 2, 5, 4),
]:
    for dtype in (np.float32, np.float64):
        for at_end in (False, True):
            print(name, shape, kernel, padding, dilation, dtype, at_end, file=sys.stderr)
            x = guarded(shape, dtype, dense(shape, range(len(shape))), at_end)
            for pool in (getattr(poolgrad, name), getattr(poolgrad, name.replace("max", "min"))):
                y = pool(x, kernel, 1, padding, dilation=dilation)
                assert np.array_equal(y, pool(x.copy(), kernel, 1, padding, dilation=dilation))
print("inside")
"""


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="pages are protected by Linux's mprotect here"
)


@pytest.mark.parametrize("cases", [1000, pytest.param(4000, marks=pytest.mark.slow)])
def test_kernels_stay_inside_their_arrays(cases: int) -> None:
    code = ARRAYS + RANDOM.format(cases=cases)
    assert assert_runs(code, timeout=100, POOLGRAD_NUM_THREADS="1").strip() == "inside"


@pytest.mark.dispatch
@each_instruction_set
def test_padding_wider_than_a_row(isa: str) -> None:
    code = ARRAYS + WIDE_PADDING
    assert assert_runs(code, POOLGRAD_ISA=isa, POOLGRAD_NUM_THREADS="1").strip() == "inside"
