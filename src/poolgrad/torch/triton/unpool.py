"""Kernels of max-unpooling: ``y[index[p]] = x[p]``, else 0; the last of equal indices wins.

The host sorts the targets with a stable sort. Of a run of equal targets in the sorted order only
the last one is stored, so no two programs write one element: no atomics, the same bits in every
run. Backward, ``gx[p] = gy[index[p]]`` if `p` is the last of its run, else 0.
"""

import triton
import triton.language as tl


@triton.jit
def is_last(target_ptr, at, target, count, inside):
    """Whether the next element in sorted order has another target."""
    following = tl.load(target_ptr + at + 1, mask=inside & (at + 1 < count), other=-1)
    return inside & (following != target)


@triton.jit
def unpool(x_ptr, target_ptr, place_ptr, count, y_ptr, BLOCK: tl.constexpr):
    """Store the inputs; `place_ptr`: the input of each sorted target."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    target = tl.load(target_ptr + at, mask=inside, other=-1)
    last = is_last(target_ptr, at, target, count, inside)
    place = tl.load(place_ptr + at, mask=last, other=0)
    tl.store(y_ptr + target, tl.load(x_ptr + place, mask=last, other=0), mask=last)


@triton.jit
def unpool_backward(gy_ptr, target_ptr, place_ptr, count, gx_ptr, BLOCK: tl.constexpr):
    """Store the gradient of every input."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    target = tl.load(target_ptr + at, mask=inside, other=-1)
    last = is_last(target_ptr, at, target, count, inside)
    place = tl.load(place_ptr + at, mask=inside, other=0)
    g = tl.load(gy_ptr + target, mask=last, other=0)
    tl.store(gx_ptr + place, tl.where(last, g, 0.0), mask=inside)
