"""Memory of large results: reused, bounded, never lost and never shared by two results."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from processes import assert_runs, run_python

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import poolgrad  # noqa: E402
from poolgrad import core  # noqa: E402

SIDE = 1024  # a pooled image of 1 MiB
BYTES = SIDE * SIDE * 4


def cache_use() -> tuple[int, int]:
    """Return the bytes of live large results, and the bytes that are kept for later ones."""
    uses = [cache.use() for cache in core.CACHES]
    return sum(used for used, _ in uses), sum(kept for _, kept in uses)


@pytest.fixture(autouse=True)
def _no_leak() -> object:
    gc.collect()
    poolgrad.empty_cache()
    before = cache_use()[0]
    yield
    gc.collect()
    assert cache_use()[0] == before
    poolgrad.empty_cache()
    assert cache_use() == (before, 0)


def image(kind: str) -> object:
    x = np.random.default_rng(0).standard_normal((2 * SIDE, SIDE), np.float32)
    return x if kind == "numpy" else torch.tensor(x)


def address(y: object) -> int:
    # `Tensor.numpy` would make the storage one that cannot be resized, which is not reused.
    return y.data_ptr() if isinstance(y, torch.Tensor) else y.ctypes.data  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_memory_is_used_again(kind: str) -> None:
    x = image(kind)
    y = poolgrad.max_pool1d(x, 2)
    first = address(y)
    used = cache_use()[0]
    assert used >= BYTES
    del y
    assert cache_use()[1] >= BYTES
    again = poolgrad.max_pool1d(x, 2)
    assert address(again) == first
    other = poolgrad.max_pool1d(x, 2)
    assert address(other) != first
    np.testing.assert_array_equal(np.asarray(again), np.asarray(other))


def test_views_keep_it() -> None:
    x = image("numpy")
    part = poolgrad.max_pool1d(x, 2)[5:7, ::2]
    expected = part.copy()
    for _ in range(3):
        poolgrad.min_pool1d(x, 2)
    np.testing.assert_array_equal(part, expected)
    tensor = poolgrad.max_pool1d(torch.tensor(x), 2)
    storage, used = tensor.untyped_storage(), cache_use()[0]
    del tensor
    assert cache_use()[0] == used
    size = storage.nbytes()
    del storage
    assert cache_use()[0] == used - size


def test_results_are_ordinary_arrays() -> None:
    y = poolgrad.max_pool1d(image("numpy"), 2)
    assert y.flags.writeable
    assert y.flags.c_contiguous
    assert y.dtype == np.float32
    y += 1
    t = poolgrad.max_pool1d(image("torch"), 2)
    t.add_(1)
    np.testing.assert_array_equal(t.numpy(), y)
    assert torch.equal(t.clone().share_memory_(), t)


def test_gradients_and_routes_lie_there_too() -> None:
    x, before = image("torch").requires_grad_(), cache_use()[0]  # type: ignore[attr-defined]
    y = poolgrad.max_pool1d(x, 2)
    routes = cache_use()[0] - before - y.nbytes
    assert routes >= y.numel()
    (gx,) = torch.autograd.grad(y.sum(), x)
    assert cache_use()[0] == before + y.nbytes + gx.nbytes  # routes are gone
    del y, gx


def test_bounded() -> None:
    code = """
import numpy as np, poolgrad
from poolgrad import core
x = np.zeros((2048, 2048), np.float32)
results = [poolgrad.max_pool1d(x, 2) for _ in range(6)]
assert core.CACHES[0].use()[0] >= 6 * 8 << 20, core.CACHES[0].use()
results.clear()
print(core.CACHES[0].use())
"""
    for limit, most in (("0", 0), (str(20 << 20), 20 << 20)):
        used, kept = eval(assert_runs(code, POOLGRAD_CACHE_BYTES=limit))
        assert (used, kept <= most) == (0, True)
    done = run_python(code, POOLGRAD_CACHE_BYTES="much")
    assert "POOLGRAD_CACHE_BYTES must be a number of bytes, got 'much'" in done.stderr


def test_results_that_outlive_everything() -> None:
    code = """
import atexit, threading
import numpy as np, torch, poolgrad
x = np.zeros((2048, 2048), np.float32)
keep = [poolgrad.max_pool1d(x, 2), poolgrad.max_pool1d(torch.tensor(x), 2)]
atexit.register(lambda: keep.append(poolgrad.max_pool1d(x, 2)))
torch.kept = keep
def loop():
    for _ in range(20):
        poolgrad.max_pool1d(torch.tensor(x, requires_grad=True), 2).sum().backward()
threads = [threading.Thread(target=loop) for _ in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
print("ended")
"""
    assert assert_runs(code).strip() == "ended"


def test_a_fork_has_its_own() -> None:
    code = """
import os
import numpy as np, poolgrad
x = np.arange(1 << 22, dtype=np.float32).reshape(2048, 2048)
y = poolgrad.max_pool1d(x, 2)
child = os.fork()
if child == 0:
    z = poolgrad.max_pool1d(-x, 2)
    y[:] = 0
    os._exit(int(z[0, 0] != -0.0))
_, status = os.waitpid(child, 0)
print(status, y[0, 0])
"""
    assert assert_runs(code).split() == ["0", "1.0"]
