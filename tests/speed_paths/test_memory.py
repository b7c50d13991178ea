"""Inputs are never modified, results never share memory, and memory does not grow."""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from adversarial_arrays import LAYOUTS, VALUES, Layout, rng
from frontend_calls import torch

import poolgrad

CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "max": ("max_pool2d", (3, 2, 1), {}),
    "max-split": ("max_pool2d", (3, 2, 1), {"ties": "split"}),
    "max-zero": ("max_pool2d", (3, 2, 1), {"ties": "zero"}),
    "max-large": ("max_pool2d", (5, 1, 3), {}),
    "avg": ("avg_pool2d", (3, 2, 1), {}),
    "adaptive-max": ("adaptive_max_pool2d", (3,), {}),
    "adaptive-avg": ("adaptive_avg_pool2d", (3,), {}),
    "global-max": ("global_max_pool", (), {}),
    "global-avg": ("global_avg_pool", (), {}),
    "relu_max": ("relu_max_pool2d", (3, 2, 1), {}),
    "min": ("min_pool2d", (3, 2, 1), {}),
    "median": ("median_pool2d", (3, 2, 1), {}),
    "lp": ("lp_pool2d", (3.0, 3, 2), {}),
    "log_mean_exp": ("log_mean_exp_pool2d", (3, 2, 1), {"r": 0.5}),
    "soft": ("soft_pool2d", (3, 2, 1), {}),
    "mean-of-draws": ("stochastic_pool2d", (3, 2, 1), {"training": False}),
    "mixed": ("mixed_pool2d", (3, 2, 1), {}),
}
calls = pytest.mark.parametrize(("fun", "args", "kwargs"), CALLS.values(), ids=CALLS)


@calls
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda m: m.id)
def test_inputs_are_never_modified(
    layout: Layout, fun: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    pool = getattr(poolgrad, fun)
    for values in VALUES:
        x = layout.make(values.make((2, 3, 6, 7), np.float32))
        before, strides, flags = x.tobytes(), x.strides, str(x.flags)
        pool(x, *args, **kwargs)
        y, pullback = poolgrad.vjp(pool, x, *args, **kwargs)
        gy = layout.make(rng(y.shape).standard_normal(y.shape).astype(np.float32))
        gradient = gy.tobytes()
        pullback(gy)
        assert x.tobytes() == before
        assert gy.tobytes() == gradient
        assert (x.strides, str(x.flags)) == (strides, flags)


@calls
def test_results_are_new_memory(fun: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    x = rng((2, 3, 6, 7)).standard_normal((2, 3, 6, 7))
    y, pullback = poolgrad.vjp(getattr(poolgrad, fun), x, *args, **kwargs)
    gy = np.ones_like(y)
    results = [y, pullback(gy), pullback(gy), getattr(poolgrad, fun)(x, *args, **kwargs)]
    for i, a in enumerate(results):
        assert a.flags.writeable
        for b in [x, gy, *results[i + 1 :]]:
            assert not np.shares_memory(a, b)


def test_pooling_by_one_is_a_copy_too() -> None:
    x = np.ones((2, 4, 4))
    for fun in (poolgrad.max_pool2d, poolgrad.avg_pool2d):
        y = fun(x, 1)
        assert not np.shares_memory(x, y)
        np.testing.assert_array_equal(x, y)


def test_routes_are_read_only() -> None:
    _, pullback = poolgrad.vjp(poolgrad.max_pool2d, np.ones((4, 4)), 2)
    with pytest.raises(ValueError, match="read-only"):
        pullback.routes[...] = 0


@pytest.mark.parametrize("fun", ["max_pool2d", "avg_pool2d", "adaptive_max_pool2d"])
@pytest.mark.parametrize("layout", [m for m in LAYOUTS if m.id not in {
    "read-only", "byte-swapped", "expanded", "expanded-batch", "overlapping"
}], ids=lambda m: m.id)  # fmt: skip
def test_out_of_any_layout(fun: str, layout: Layout) -> None:
    x = rng((2, 3, 6, 8)).standard_normal((2, 3, 6, 8))
    expected = getattr(poolgrad, fun)(x, 2)
    out = layout.make(np.full(expected.shape, 7.0))
    assert getattr(poolgrad, fun)(x, 2, out=out) is out
    np.testing.assert_array_equal(out, expected)
    if fun == "max_pool2d":
        out[...] = 7
        made, indices = poolgrad.max_pool2d(x, 2, out=out, return_indices=True)
        assert made is out
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(indices, poolgrad.max_pool2d(x, 2, return_indices=True)[1])


@pytest.mark.parametrize("fun", ["max_pool1d", "avg_pool1d"])
@pytest.mark.parametrize(("begin", "step"), [(0, 1), (1, 1), (7, 1), (8, 1), (0, 2), (1, 2)])
def test_out_that_overlaps_the_input(fun: str, begin: int, step: int) -> None:
    memory = rng((40,)).standard_normal(40)
    x = memory[:16]
    expected = getattr(poolgrad, fun)(x.copy(), 3, 1)
    out = memory[begin : begin + 14 * step : step]
    getattr(poolgrad, fun)(x, 3, 1, out=out)
    np.testing.assert_array_equal(out, expected)


def test_out_writes_nothing_but_itself() -> None:
    whole = np.full((6, 6), 7.0)
    x = rng((8, 8)).standard_normal((8, 8))
    for part in (whole[1:5, 1:5], whole[1:5, ::-1][:, :4], whole[:4].T[:4]):
        whole[...] = 7
        poolgrad.max_pool2d(x, 2, out=part)
        np.testing.assert_array_equal(part, poolgrad.max_pool2d(x, 2))
        assert (whole == 7).sum() == 36 - 16


# Growth


def resident() -> int:
    """Bytes of this process that lie in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def calls_that_might_leak() -> list[Callable[[], Any]]:
    shape = (4, 2, 24, 24)
    x = rng(shape).standard_normal(shape).astype(np.float32)
    swapped, bad = x.astype(">f4"), np.ones(shape, complex)

    def refused(*args: Any, **kwargs: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            poolgrad.max_pool2d(*args, **kwargs)

    def there_and_back(fun: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        y, pullback = poolgrad.vjp(getattr(poolgrad, fun), x, *args, **kwargs)
        pullback(y)

    made: list[Callable[[], Any]] = [
        lambda c=call: there_and_back(*c)  # type: ignore[misc]
        for call in CALLS.values()
    ]
    out = np.empty((4, 2, 12, 12), np.float32)
    made += [
        lambda: poolgrad.max_pool2d(x, 2, out=out),
        lambda: poolgrad.max_pool2d(x, 2, return_indices=True),
        lambda: poolgrad.max_pool2d(swapped, 2),
        lambda: np.add(poolgrad.vjp(poolgrad.max_pool2d, x, 3)[1].mask(), 1),
        lambda: refused(x, 0),
        lambda: refused(bad, 2),
        lambda: refused(x, 2, out=out[:1]),
    ]
    if torch is not None:

        def tensors() -> None:
            leaf = torch.from_numpy(x).requires_grad_()
            poolgrad.max_pool2d(leaf, 3, 2, 1).sum().backward()
            poolgrad.avg_pool2d(leaf, 3, 2, 1).sum().backward()

        made.append(tensors)
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_memory_does_not_grow_over_1000_calls() -> None:
    """Of each kind. One kind that leaks its routes would leave 1.1 MB, its output 4.5 MB."""
    poolgrad.set_num_threads(2)
    made = calls_that_might_leak()

    def round_of_calls() -> None:
        for call in made:
            call()

    for _ in range(30):
        round_of_calls()
    gc.collect()
    before = resident()
    for _ in range(1000):
        round_of_calls()
    gc.collect()
    grown = resident() - before
    assert grown < 1 << 20, f"{grown / 2**20:.1f} MiB more after 1,000 calls of each kind"


@pytest.mark.parametrize("kind", range(len(calls_that_might_leak())))
def test_no_python_object_is_left_behind(kind: int) -> None:
    """Finer than resident memory: a single small object left by every other call would show."""
    call, grown = calls_that_might_leak()[kind], [120]
    while grown[-1] > 30 and len(grown) < 30:  # caches fill up; a leak grows with every call
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(120):
            call()
        gc.collect()
        grown.append(sys.getallocatedblocks() - before)
    assert grown[-1] <= 30, grown


def test_a_reference_to_the_input_is_given_back() -> None:
    x = rng((1, 1, 8, 8)).standard_normal((1, 1, 8, 8))
    count = sys.getrefcount(x)
    kept = [poolgrad.vjp(poolgrad.max_pool2d, x, 2) for _ in range(10)]
    assert sys.getrefcount(x) == count  # a pullback keeps routes, not the input
    assert len(kept) == 10
    with pytest.raises(ValueError, match="kernel_size"):
        poolgrad.max_pool2d(x, 0)
    assert sys.getrefcount(x) == count


def test_a_pullback_of_a_maximum_keeps_one_byte_for_each_output() -> None:
    x = rng((16, 8, 64, 64)).standard_normal((16, 8, 64, 64)).astype(np.float32)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 2)[1]
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert pullback.routes.nbytes == x.size // 4
    assert kept < x.size // 4 + 8192
