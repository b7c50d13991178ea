"""Storages of large tensors: PyTorch's own, so that they can be resized; reused when idle."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest
from processes import assert_runs

import poolgrad

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from poolgrad.interface import Buffer  # noqa: E402
from poolgrad.torch.storages import Storages  # noqa: E402

SMALL, LARGE = 8, 800
SHAPE = (1, 512, 1024)
BYTES = 4 * 512 * 1024


def pooled(side: int) -> torch.Tensor:
    return poolgrad.max_pool2d(torch.rand(1, 3, side, side), 2)


@pytest.mark.parametrize("side", [SMALL, LARGE])
def test_storages_can_be_resized(side: int) -> None:
    """As FSDP frees storages, and as `out=` of another size resizes its tensor."""
    y = pooled(side)
    expected, size = y.clone(), y.untyped_storage().nbytes()
    assert y.untyped_storage().resizable()
    assert size == y.nbytes
    y.untyped_storage().resize_(0)
    assert y.untyped_storage().nbytes() == 0
    y.untyped_storage().resize_(size)
    y.copy_(expected)
    assert torch.equal(y, expected)
    y.resize_(3, side, side)
    assert torch.equal(y.flatten()[: expected.numel()], expected.flatten())
    with pytest.warns(UserWarning, match="resized"):
        torch.add(torch.ones(5, side, side), 1, out=y)
    assert torch.equal(y, torch.full((5, side, side), 2.0))
    (gx,) = torch.autograd.grad(poolgrad.max_pool2d(x := ones(side), 2).sum(), x)
    gx.untyped_storage().resize_(0)


def ones(side: int) -> torch.Tensor:
    return torch.ones(1, 3, side, side, requires_grad=True)


def tensor(storages: Storages) -> torch.Tensor:
    buffer = Buffer(SHAPE, (0, 1, 2), "float32", SHAPE)
    return storages.tensor(buffer, (512 * 1024, 1024, 1), torch.float32)


def test_the_storage_used_last_is_reused_first() -> None:
    """Its memory may still be in the caches of the processor."""
    storages = Storages(limit=8 * BYTES)
    held = [tensor(storages) for _ in range(3)]
    last = held[-1].data_ptr()
    del held
    assert [tensor(storages).data_ptr() for _ in range(3)] == [last] * 3


def test_an_idle_storage_is_reused() -> None:
    storages = Storages(limit=8 * BYTES)
    first = tensor(storages)
    address = first.data_ptr()
    assert storages.use() == (BYTES, 0)
    del first
    assert storages.use() == (0, BYTES)
    again, other = tensor(storages), tensor(storages)
    assert again.data_ptr() == address != other.data_ptr()
    assert storages.use() == (2 * BYTES, 0)
    del again, other
    storages.empty()
    assert storages.use() == (0, 0)


# What still refers to the memory of a tensor that was deleted.
REFERENCES: dict[str, Callable[[torch.Tensor], object]] = {
    "view": lambda y: y[0, 3:5],
    "detached": lambda y: y.detach(),
    "storage": lambda y: y.untyped_storage(),
    "typed storage": lambda y: torch.storage.TypedStorage(
        wrap_storage=y.untyped_storage(), dtype=y.dtype, _internal=True
    ),
    "NumPy": lambda y: y.numpy(),
    "NumPy view": lambda y: y.numpy()[0, :3],
    "DLPack": np.from_dlpack,
    "saved for backward": lambda y: (y * torch.ones(SHAPE, requires_grad=True)).grad_fn,
    "lazy copy": torch._lazy_clone,
    "memory view": lambda y: memoryview(y.numpy()),
    "weak copy of a view": lambda y: y.view(torch.uint8)[..., ::7],
}


@pytest.mark.parametrize("held", REFERENCES.values(), ids=REFERENCES)
def test_a_storage_that_something_refers_to_is_not_reused(
    held: Callable[[torch.Tensor], object],
) -> None:
    storages = Storages(limit=8 * BYTES)
    y = tensor(storages)
    address, reference = y.data_ptr(), held(y)
    del y
    later = [tensor(storages) for _ in range(3)]
    assert address not in [t.data_ptr() for t in later]
    del reference


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "freed": lambda y: y.untyped_storage().resize_(0),
    "resized": lambda y: y.untyped_storage().resize_(BYTES // 2),
    "shared": lambda y: y.share_memory_(),
    "no longer resizable": lambda y: y.numpy() is None,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_storage_leaves_the_cache(change: Callable[[torch.Tensor], object]) -> None:
    storages = Storages(limit=8 * BYTES)
    y = tensor(storages)
    change(y)
    storage = y.untyped_storage()
    del y
    gc.collect()
    later = tensor(storages)
    assert later.untyped_storage() is not storage
    assert later.untyped_storage().nbytes() == BYTES
    assert later.untyped_storage().resizable()
    assert not later.is_shared()


def test_the_cache_is_bounded() -> None:
    storages = Storages(limit=3 * BYTES)
    live = [tensor(storages) for _ in range(5)]
    assert storages.use() == (3 * BYTES, 0)
    live.clear()
    assert storages.use() == (0, 3 * BYTES)
    halves = Buffer((1, 256, 1024), (0, 1, 2), "float32", SHAPE)
    half = storages.tensor(halves, (256 * 1024, 1024, 1), torch.float32)
    assert storages.use() == (BYTES // 2, 2 * BYTES)  # an idle one of the older size was freed
    none = Storages(limit=0)
    del half
    tensor(none)
    assert none.use() == (0, 0)


def test_threads_share_it() -> None:
    storages, wrong = Storages(limit=8 * BYTES), []

    def write(number: int) -> None:
        for step in range(50):
            y = tensor(storages)
            value = number * 100 + step
            y.fill_(value)
            held = y[0, ::7]
            del y
            if not bool((held == value).all()):
                wrong.append((number, step))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


HANDLER = """
import signal
import torch, poolgrad

x = torch.rand(4, 64, 128, 128)
expected, live = poolgrad.max_pool2d(x, 2), []

def pool(*_):
    live.append(poolgrad.max_pool2d(x, 2))
    del live[:-3]

signal.signal(signal.SIGALRM, pool)
for turn in range(300):
    signal.setitimer(signal.ITIMER_REAL, 1e-6 + 1e-5 * (turn % 60))  # once, at another moment
    y = poolgrad.max_pool2d(x, 2)
    assert torch.equal(y, expected), turn
signal.setitimer(signal.ITIMER_REAL, 0)
assert live and all(torch.equal(y, expected) for y in live)
"""


def test_a_signal_handler_may_pool() -> None:
    assert_runs(HANDLER)


IMPORTED_UNDER_A_MODE = """
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {{}}))
        {keep}
        return made

class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {{}}))
        {keep}
        return made

kept = []
with {mode}():
    import poolgrad.torch
import poolgrad
x = torch.rand(1, 1, 1024, 2048)
expected = torch.nn.functional.max_pool2d(x, 2)
for held in (lambda y: [y], lambda y: [y, y.detach()], lambda y: [y, y.untyped_storage()]):
    y, *_ = results = held(poolgrad.max_pool2d(x, 2))
    poolgrad.max_pool2d(x + 100, 2)
    assert torch.equal(y, expected)
"""


@pytest.mark.parametrize("keep", ["kept[:] = [made]", "kept.append(made)"], ids=["last", "all"])
@pytest.mark.parametrize("mode", ["Functions", "Operators"])
def test_an_import_under_a_mode_does_not_confuse_storages(mode: str, keep: str) -> None:
    assert_runs(IMPORTED_UNDER_A_MODE.format(mode=mode, keep=keep))


FINALIZED = """
import gc, torch, poolgrad, poolgrad.torch
LARGE = (1 << 20) // 4
kept = [poolgrad.avg_pool1d(torch.zeros(1, LARGE + 64 * k), 1) for k in range(1, 60)]
finalized = 0

class Finalizer:
    def __init__(self):
        self.cycle = self

    def __del__(self):
        global finalized
        gc.disable()
        finalized += 1
        kept.append(poolgrad.avg_pool1d(torch.zeros(1, LARGE + 64 * (1000 + finalized)), 1))

gc.disable()
for k in range(1, 60):
    x = torch.zeros(1, LARGE + 64 * (5000 + k))
    gc.collect()
    gc.collect()
    Finalizer()
    gc.set_threshold(k, 1000, 1000)
    gc.enable()
    kept.append(poolgrad.avg_pool1d(x, 1))
    gc.disable()
assert finalized > 30
"""


def test_finalizers_that_pool_while_the_cache_is_read() -> None:
    assert_runs(FINALIZED)


SHRUNK_TWICE = """
import gc, torch, poolgrad, poolgrad.torch
COUNT = 1 << 24

class Finalizer:
    def __init__(self, x):
        self.cycle, self.x = self, x

    def __del__(self):
        gc.disable()
        storage, kept = self.x.untyped_storage(), []
        before = storage.data_ptr()
        for _ in range(2):
            storage.resize_(0)
            storage.resize_(4 * COUNT - 64)
            if storage.data_ptr() == before:
                break
            kept.append(torch.empty(4 * COUNT - 64, dtype=torch.uint8))
        storage.fill_(1)

poolgrad.max_pool1d(torch.zeros(1, COUNT), 2)
gc.disable()
refused = 0
for k in range(1, 22):
    x = torch.zeros(1, COUNT)
    gc.collect()
    Finalizer(x)
    gc.set_threshold(k, 1000, 1000)
    gc.enable()
    try:
        y = poolgrad.max_pool1d(x, 2)
        assert not y.any(), "computed after the change"
    except (RuntimeError, ValueError):
        refused += 1
    gc.disable()
assert refused
"""


@pytest.mark.slow
def test_finalizers_that_shrink_a_storage_at_its_place() -> None:
    """Resized to nothing and back, a storage may have its former address."""
    assert_runs(SHRUNK_TWICE)
