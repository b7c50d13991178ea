"""Positions of windows: index arithmetic, also beyond 2**31 and near 2**63, without arrays."""

from __future__ import annotations

import mmap
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from frontend_calls import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from processes import assert_runs

import poolgrad
from poolgrad.core import kernels_for
from poolgrad.windows import Axis, WindowSpec, adaptive, fixed, lay_out, resolve

HUGE = 2**40
WIDTH = 2  # the last of the kernels' three axes, also where it is the only one


def plan_of(spec: WindowSpec, *sizes: int) -> Any:
    """Compiled plan and Python's windows for one input of these sizes."""
    layout = lay_out(spec, sizes, False, -1, "float32", "float32")
    return SimpleNamespace(layout=layout, kernels=kernels_for(layout, -1, 0))


def brute_covering(axis: Axis, i: int) -> list[int]:
    return [o for o in range(axis.out) if any(i == j for _, j in axis.taps(o))]


@st.composite
def small_axes(draw: st.DrawFn) -> tuple[WindowSpec, int]:
    """Windows along one axis and a size that it fits."""
    size = draw(st.integers(1, 20))
    if draw(st.booleans()):
        return adaptive(1, draw(st.integers(1, 24))), size
    k, s, d = (draw(st.integers(1, n)) for n in (6, 7, 5))
    lo, hi = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    assume((k - 1) * d + 1 <= size + lo + hi)
    return fixed(1, k, s, [(lo, hi)], d, draw(st.booleans())), size


def extent_of(axis: Axis, output: int) -> int:
    """Return the number of taps of one window inside the padded input."""
    if axis.adaptive:
        return len(axis.taps(output))
    start = output * axis.stride - axis.lo
    return sum(start + k * axis.dilation < axis.size + axis.hi for k in range(axis.kernel))


@given(small_axes())
def test_spans_are_the_taps_of_windows(made: tuple[WindowSpec, int]) -> None:
    spec, size = made
    compiled = plan_of(spec, size)
    (axis,) = compiled.layout.window.axes
    for output in range(axis.out):
        begin, first_tap, taps, extent = compiled.kernels.span(WIDTH, output)
        spanned = [(first_tap + t, begin + t * axis.dilation) for t in range(taps)]
        assert spanned == axis.taps(output)
        assert extent == extent_of(axis, output)
        assert taps <= extent <= axis.kernel


@given(small_axes())
def test_covering_is_the_inverse_of_span(made: tuple[WindowSpec, int]) -> None:
    spec, size = made
    compiled = plan_of(spec, size)
    (axis,) = compiled.layout.window.axes
    for i in range(size):
        first, last = compiled.kernels.covering(WIDTH, i)
        assert 0 <= first <= last <= axis.out
        exact = brute_covering(axis, i)
        assert set(exact) <= set(range(first, last))
        if axis.dilation == 1 and axis.out > 1:  # else windows that step over it may be among them
            assert list(range(first, last)) == exact


@given(small_axes(), st.data())
def test_a_slice_has_the_taps_of_the_whole(
    made: tuple[WindowSpec, int], data: st.DataObject
) -> None:
    spec, size = made
    (axis,) = plan_of(spec, size).layout.window.axes
    first = data.draw(st.integers(0, axis.out - 1))
    stop = data.draw(st.integers(first + 1, axis.out))
    if axis.adaptive:
        begin, end = axis.bins(first)[0], axis.bins(stop - 1)[1]
    else:
        begin = max(first * axis.stride - axis.lo, 0)
        end = (stop - 1) * axis.stride - axis.lo + (axis.kernel - 1) * axis.dilation + 1
    end = min(end, size)
    assume(begin < end)
    part = axis.sliced((first, stop), (begin, end))
    compiled = plan_of(spec._replace(slices=(part,)), end - begin)
    (sliced,) = compiled.layout.window.axes
    assert sliced.out == stop - first
    for output in range(sliced.out):
        taps_of_whole = [(k, i - begin) for k, i in axis.taps(first + output)]
        start, first_tap, taps, extent = compiled.kernels.span(WIDTH, output)
        assert [(first_tap + t, start + t * axis.dilation) for t in range(taps)] == taps_of_whole
        assert sliced.taps(output) == taps_of_whole
        assert extent == extent_of(sliced, output) == extent_of(axis, first + output)
        for _, i in taps_of_whole:
            low, high = compiled.kernels.covering(WIDTH, i)
            assert low <= output < high


@given(
    st.integers(2**31, HUGE), st.integers(1, 2**20), st.integers(1, 2**33),
    st.integers(0, HUGE), st.integers(0, HUGE), st.integers(1, 2**20),
    st.floats(0, 1, exclude_max=True),
)  # fmt: skip
def test_spans_beyond_two_to_the_31(
    size: int, k: int, s: int, lo: int, hi: int, d: int, where: float
) -> None:
    assume((k - 1) * d + 1 <= size + lo + hi)
    compiled = plan_of(fixed(1, k, s, [(lo, hi)], d), size)
    out = compiled.layout.out_shape[0]
    assert out == (size + lo + hi - d * (k - 1) - 1) // s + 1
    output = int(where * out)
    start = output * s - lo
    # the taps on inputs, in Python's unlimited integers
    first = max(0, -(start // d)) if start < 0 else 0
    end = min(k, -(-(size - start) // d)) if start < size else 0
    begin, first_tap, taps, extent = compiled.kernels.span(WIDTH, output)
    assert taps == max(0, end - first)
    assert extent == min(k, -(-(size + hi - start) // d))
    if taps:
        assert (first_tap, begin) == (first, start + first * d)
        for i in (begin, begin + (taps - 1) * d):
            low, high = compiled.kernels.covering(WIDTH, i)
            assert low <= output < high


@given(st.integers(2**31, HUGE), st.integers(2**10, 2**22), st.floats(0, 1, exclude_max=True))
def test_adaptive_bins_beyond_two_to_the_31(size: int, out: int, where: float) -> None:
    out = min(out, 2**62 // size - 1)
    compiled = plan_of(adaptive(1, out), size)
    output = int(where * out)
    begin, end = output * size // out, -(-(output + 1) * size // out)
    assert compiled.kernels.span(WIDTH, output) == (begin, 0, end - begin, end - begin)
    low, high = compiled.kernels.covering(WIDTH, begin)
    assert low <= output < high
    low, high = compiled.kernels.covering(WIDTH, end - 1)
    assert low <= output < high


def test_the_widest_adaptive_bin_is_the_kernel() -> None:
    for size in range(1, 41):
        for out in range(1, 61):
            (axis,) = resolve(adaptive(1, out), (size,)).axes
            bins = [-(-(o + 1) * size // out) - o * size // out for o in range(out)]
            assert axis.kernel == max(bins), (size, out)
            assert axis.out == out


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_adaptive_bins_are_pytorchs() -> None:
    """Indices of the first and of the last first_tap of every bin, for 40 x 40 sizes."""
    for size in range(1, 41):
        rising = torch.arange(float(size))[None]
        for out in range(1, 41):
            ours = poolgrad.adaptive_max_pool1d(torch.cat([rising, -rising]), out, True)[1]
            theirs = torch.nn.functional.adaptive_max_pool1d(
                torch.cat([rising, -rising])[None], out, True
            )[1][0]
            assert torch.equal(ours, theirs), (size, out)


def test_huge_plans_cost_nothing() -> None:
    compiled = plan_of(fixed(3, (3, 2, 1), (1, 2, 3)), 2**20, 2**20, 2**19)
    assert compiled.layout.out_shape == (2**20 - 2, 2**19, (2**19 - 1) // 3 + 1)
    assert compiled.kernels.taps == 6
    assert compiled.kernels.route_bytes == 1
    assert compiled.kernels.span(1, 2**19 - 1) == (2**20 - 2, 0, 2, 2)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("fun", ["max_pool2d", "avg_pool2d"])
def test_virtual_array_of_two_to_the_33_elements(fun: str, threads: int) -> None:
    poolgrad.set_num_threads(threads)
    pool = getattr(poolgrad, fun)
    tall = np.broadcast_to(np.arange(4, dtype=np.float32), (2**31, 4))
    expected = np.tile([[1.0, 3.0]] if fun == "max_pool2d" else [[0.5, 2.5]], (4, 1))
    np.testing.assert_array_equal(pool(tall, (1, 2), (2**29, 2)), expected)
    wide = np.broadcast_to(np.arange(4, dtype=np.float32)[:, None], (4, 2**31))
    np.testing.assert_array_equal(pool(wide, (2, 1), (2, 2**29)), expected.T)


@pytest.fixture(scope="module")
def sparse() -> np.ndarray:
    """2**33 float32 zeros, of which only the pages that are touched exist."""
    flags = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python names it from 3.13 on
    if sys.platform != "linux":
        pytest.skip("memory is reserved without being taken on Linux only")
    try:
        memory = mmap.mmap(-1, 2**35, flags | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        pytest.skip(f"the system reserves no 32 GiB of addresses: {error}")
    return np.frombuffer(memory, np.float32)


@pytest.mark.parametrize("threads", [1, 3])
def test_values_beyond_two_to_the_31(sparse: np.ndarray, threads: int) -> None:
    poolgrad.set_num_threads(threads)
    step = 2**30
    where = np.arange(8) * step + np.array([0, 1, 1, 0, 1, 0, 0, 1])
    sparse[where] = np.arange(1, 9)
    y, indices = poolgrad.max_pool1d(sparse, 2, step, return_indices=True)
    np.testing.assert_array_equal(y, np.arange(1, 9))
    np.testing.assert_array_equal(indices, where)
    assert poolgrad.avg_pool1d(sparse, 2, step).tolist() == [n / 2 for n in range(1, 9)]
    image = sparse.reshape(2**17, 2**16)
    rows = step // 2**16
    y, indices = poolgrad.max_pool2d(image, (1, 2), (rows, 2**16), return_indices=True)
    np.testing.assert_array_equal(y.ravel(), np.arange(1, 9))
    np.testing.assert_array_equal(indices.ravel(), where)
    batch = sparse.reshape(8, step)
    np.testing.assert_array_equal(poolgrad.max_pool1d(batch, 2, step).ravel(), np.arange(1, 9))
    last = sparse.reshape(2**31, 4)  # channels last, of which two are written
    y = poolgrad.max_pool1d(last, 1, step // 4, channels_last=True)
    assert y.max(axis=1).tolist() == list(range(1, 9))
    sparse[where] = 0


@pytest.mark.parametrize("ties", ["first", "split"])
@pytest.mark.parametrize("exponent", [16, 31, 40, 58])
def test_huge_padding_and_stride(exponent: int, ties: str) -> None:
    """Any padding, at no cost: only windows that exist are visited."""
    far = 2**exponent
    assert poolgrad.max_pool1d(np.array([1.0, 5, 3]), 2, far, far, ties=ties).tolist() == [
        -np.inf, 5.0, -np.inf,
    ]  # fmt: skip
    assert poolgrad.avg_pool1d(np.array([1.0, 5, 3]), 2, far, far).tolist() == [0, 3, 0]


BACKWARD = """
import resource
import numpy as np
import poolgrad

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
y, pullback = poolgrad.vjp(poolgrad.{fun}, np.array([1.0, 5, 3]), {kernel}, {far}, {padding})
gx = pullback(np.ones_like(y))
assert gx.tolist() == {expected}, gx
"""


@pytest.mark.parametrize("fun", ["max_pool1d", "avg_pool1d"])
@pytest.mark.parametrize("exponent", [28, 60])
def test_backward_with_huge_padding(fun: str, exponent: int) -> None:
    """In a process of its own, with little memory: only three inputs have a gradient."""
    far = 2**exponent
    code = BACKWARD.format(fun=fun, kernel=1, far=far, padding=far, expected=[1, 0, 0])
    assert_runs(code, timeout=10)


@pytest.mark.parametrize("fun", ["max_pool1d", "avg_pool1d"])
def test_backward_with_huge_dilation(fun: str) -> None:
    code = BACKWARD.format(
        fun=fun, kernel=2, far=1, padding="[(2**40, 0)], dilation=2**40",
        expected=[1, 1, 1] if fun == "max_pool1d" else [0.5, 0.5, 0.5],
    )  # fmt: skip
    assert_runs(code, timeout=10)


@pytest.mark.parametrize("kernel", [2**16, 2**20, 2**31])
def test_windows_far_larger_than_the_input(kernel: int) -> None:
    y, pullback = poolgrad.vjp(poolgrad.max_pool1d, np.array([1.0, 5, 3]), kernel, kernel, kernel)
    assert y.tolist() == [-np.inf, 5]
    assert pullback(np.array([1.0, 2])).tolist() == [0, 2, 0]
    average = poolgrad.avg_pool1d(np.array([1.0, 5, 3]), kernel, kernel, kernel)
    assert average.tolist() == [0, 9 / kernel]
