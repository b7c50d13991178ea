"""The same bits for every number of threads and instruction set, concurrently and after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from frontend_calls import torch
from instruction_sets import BEST, each_but_the_best
from large_calls import CALLS, example, there_and_back
from processes import assert_runs

import poolgrad

THREADS = (1, 2, 5)

calls = pytest.mark.parametrize(("fun", "shape", "args", "kwargs"), CALLS.values(), ids=CALLS)


@calls
def test_number_of_threads_changes_no_bit(fun: str, shape: Any, args: Any, kwargs: Any) -> None:
    x = example(shape)
    results = []
    for threads in THREADS:
        poolgrad.set_num_threads(threads)
        assert poolgrad.get_num_threads() == threads
        results.append(there_and_back(fun, x, args, kwargs))
    assert results[0] == results[1]
    assert results[0] == results[2]


@pytest.fixture
def _torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.usefixtures("_torch_threads")
@calls
def test_torchs_number_of_threads_changes_no_bit(
    fun: str, shape: Any, args: Any, kwargs: Any
) -> None:
    x = torch.from_numpy(example(shape))
    args = [torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args]
    results = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        leaf = x.clone().requires_grad_()
        y = getattr(poolgrad, fun)(leaf, *args, **kwargs)
        y.backward(torch.linspace(-1, 1, y.numel()).view_as(y))
        results.append((y.detach(), leaf.grad))
    for y, gradient in results[1:]:
        assert torch.equal(y, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_several_python_threads_at_once() -> None:
    """More callers than processors, each with work for several threads, different work for each."""
    poolgrad.set_num_threads(3)
    jobs = [(CALLS[name], seed) for seed, name in enumerate([*CALLS] * 3)]
    jobs = [(call, example(call[1], seed)) for call, seed in jobs]
    expected = [there_and_back(fun, x, args, kw) for (fun, _, args, kw), x in jobs]
    start = threading.Barrier(8)

    def work(first: int) -> list[bool]:
        start.wait()
        return [
            there_and_back(fun, x, args, kw) == answer
            for ((fun, _, args, kw), x), answer in list(zip(jobs, expected, strict=True))[first::8]
        ]

    with ThreadPoolExecutor(8) as callers:
        right = [r for rs in callers.map(work, range(8)) for r in rs]
    assert len(right) == len(jobs)
    assert all(right)


def test_threads_share_one_pullback() -> None:
    poolgrad.set_num_threads(2)
    x = example((4, 8, 96, 96))
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 3, 2)
    gradients = [np.full(y.shape, n, np.float32) for n in range(1, 9)]
    one = pullback(gradients[0])
    with ThreadPoolExecutor(8) as callers:
        for n, gx in enumerate(callers.map(pullback, gradients), start=1):
            np.testing.assert_array_equal(gx, n * one)


def test_plans_are_made_by_many_threads_at_once() -> None:
    """Several threads request the same uncached plans at the same time."""
    x = example((2, 64, 67))
    sizes = [(k, s) for k in range(1, 9) for s in range(1, 9)]

    def work(size: tuple[int, int]) -> bytes:
        return poolgrad.max_pool2d(x, *size).tobytes()

    with ThreadPoolExecutor(8) as callers:
        made = list(callers.map(work, sizes * 4))
    assert made == [work(s) for s in sizes * 4]


FORK = """
import os, sys, threading
import numpy as np
import poolgrad

poolgrad.set_num_threads(3)
x = np.random.default_rng(0).standard_normal((8, 16, 64, 64))

def pool():
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 3, 2)
    a, spread = poolgrad.vjp(poolgrad.avg_pool2d, x, 3, 2)
    return b"".join(v.tobytes() for v in (y, pullback(y), a, spread(a)))

def in_child(expected):
    "A child of a fork pools too, and so does its own child."
    child = os.fork()
    if child == 0:
        os._exit(0 if pool() == expected and pool() == expected else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

{before}
child = os.fork()
if child == 0:
    first = pool()
    os._exit(0 if first == pool() and in_child(first) == 0 else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert code == 0, code
once = pool()
assert in_child(once) == 0
assert pool() == once
{after}
print("alive")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("used", [False, True], ids=["unused", "used before the fork"])
def test_pooling_goes_on_after_a_fork(used: bool) -> None:
    code = FORK.format(before="pool()" if used else "", after="")
    code = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + code
    assert assert_runs(code, timeout=60).strip() == "alive"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_while_other_threads_are_pooling() -> None:
    """The child may inherit a lock that nobody will ever release."""
    before = """
stop = threading.Event()
def forever():
    while not stop.is_set():
        pool()
others = [threading.Thread(target=forever) for _ in range(2)]
for t in others: t.start()
for _ in range(8):
    assert in_child(pool()) == 0
"""
    after = "stop.set()\nfor t in others: t.join()"
    # Python 3.12 and later warn of every fork in a process with threads: here it is the point.
    code = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + FORK.format(
        before=before, after=after
    )
    assert assert_runs(code, timeout=100).strip() == "alive"


WITH_TORCH = """
import os
import time
import torch
import poolgrad

torch.set_num_threads(3)
poolgrad.set_num_threads(2)
x = torch.randn(8, 16, 64, 64)
torch.relu(x)  # PyTorch has its threads now

def threads():
    return len(os.listdir("/proc/self/task"))

def pool():
    answer = []
    for a in (x, x.numpy()):
        time.sleep(0.15)  # PyTorch's threads are not used for 0.1 s after they kept a call waiting
        answer.append(poolgrad.max_pool2d(a, 3, 2).__array__().tobytes())
    return answer

before = threads()
answer = pool()
assert answer[0] == answer[1]
assert threads() == before, (before, threads())
child = os.fork()
if child == 0:
    right = pool() == answer and threads() == 3  # of its own: PyTorch's are not there
    os._exit(0 if right else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert code == 0, code
poolgrad.set_num_threads(5)  # more than PyTorch has
assert pool() == answer
assert threads() > before
print("alive")
"""


@pytest.mark.skipif(
    torch is None or "backend: OpenMP" not in torch.__config__.parallel_info(),
    reason="there is no PyTorch that has threads of OpenMP",
)
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads cannot be counted here")
def test_pytorchs_threads_do_the_work() -> None:
    """They spin for a while after each call of PyTorch's: others would wait for a processor."""
    assert assert_runs(WITH_TORCH, timeout=60).strip() == "alive"


DIGEST = """
import hashlib, sys
import numpy as np
import poolgrad
from poolgrad import core

sys.path.insert(0, {tests!r})
from large_calls import CALLS, example, there_and_back

poolgrad.set_num_threads(1)
assert core.instruction_set() == {isa!r}, core.instruction_set()
for name, (fun, shape, args, kwargs) in CALLS.items():
    for dtype in (np.float32, np.float64):
        small = tuple(min(n, 37) for n in shape)
        x = example(small).astype(dtype)
        y, pullback = poolgrad.vjp(getattr(poolgrad, fun), x, *args, **kwargs)
        gx = pullback(np.random.default_rng(1).standard_normal(y.shape).astype(dtype))
        kept = [r.tobytes() for r in pullback._residual]
        digest = hashlib.sha256(b"".join([y.tobytes(), gx.tobytes(), *kept]))
        print(name, np.dtype(dtype).name, digest.hexdigest(), sep="; ")
"""


@pytest.fixture(scope="module")
def best() -> list[str]:
    return digests(BEST)


def digests(isa: str) -> list[str]:
    code = DIGEST.format(isa=isa, tests=os.path.dirname(os.path.dirname(__file__)))
    return assert_runs(code, POOLGRAD_ISA=isa).splitlines()


@pytest.mark.dispatch
@each_but_the_best
def test_instruction_set_changes_no_bit(isa: str, best: list[str]) -> None:
    assert len(best) == 2 * len(CALLS)
    assert digests(isa) == best


@pytest.mark.dispatch
def test_unknown_instruction_set_is_refused() -> None:
    code = """
import numpy as np, poolgrad
try:
    poolgrad.max_pool1d(np.ones(4), 2)
except RuntimeError as error:
    print(error)
"""
    said = assert_runs(code, POOLGRAD_ISA="sse17")
    assert said.startswith("POOLGRAD_ISA must be one of")
    assert "sse17" in said


@pytest.mark.parametrize(
    ("env", "threads"),
    [
        ({"POOLGRAD_NUM_THREADS": "3", "OMP_NUM_THREADS": "7"}, "3"),
        ({"POOLGRAD_NUM_THREADS": "", "OMP_NUM_THREADS": "7"}, "7"),
    ],
)
def test_number_of_threads_from_the_environment(env: dict[str, str], threads: str) -> None:
    assert assert_runs("import poolgrad; print(poolgrad.get_num_threads())", **env).strip() == (
        threads
    )


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "99999999999"])
def test_bad_number_of_threads_in_the_environment(value: str) -> None:
    code = """
import numpy as np, poolgrad
try:
    poolgrad.max_pool2d(np.ones((4, 4)), 2)
except ValueError as error:
    print(error)
"""
    said = assert_runs(code, POOLGRAD_NUM_THREADS=value)
    assert said.strip() == f"POOLGRAD_NUM_THREADS must be a positive integer, got {value!r}"


FLUSHED = """
import numpy as np, torch, poolgrad
x = np.full((64, 128, 128), 1e-40, np.float32)
def make(threads):
    poolgrad.set_num_threads(threads)
    torch.set_num_threads(threads)
    results = [poolgrad.avg_pool2d(x, 2), poolgrad.log_mean_exp_pool2d(x, 2, r=1.0)]
    results.append(poolgrad.avg_pool2d(torch.from_numpy(x), 2).numpy())
    return [np.ascontiguousarray(y).tobytes() for y in results]
make(2)  # new threads have the floating-point mode of the thread that starts them
assert torch.set_flush_denormal(True)
alone = make(1)
assert all(make(2) == alone for _ in range(20))
"""


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_threads_take_the_callers_floating_point_mode() -> None:
    """All planes are made alike if the caller flushes subnormal numbers to zero."""
    assert_runs(FLUSHED)
