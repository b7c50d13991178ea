"""Ctrl-C, the end of the interpreter, and subinterpreters: each in a process of its own."""

from __future__ import annotations

import pytest
from frontend_calls import torch
from processes import assert_runs, run_python

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")

slow = pytest.mark.slow

LONGEST = 1.0  # seconds between Ctrl-C and KeyboardInterrupt

INTERRUPTED = """
import os, signal, threading, time
import numpy as np
import poolgrad

signal.signal(signal.SIGINT, signal.default_int_handler)
poolgrad.set_num_threads({threads})
x = np.random.default_rng(0).random((2, 3, 64, 64), np.float32)
expected = poolgrad.median_pool2d(x, 3, 1)
{prepare}
sent = []

def interrupt():
    time.sleep(1)
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    {call}
except KeyboardInterrupt:
    print(time.perf_counter() - sent[0])
else:
    raise SystemExit("the call ended before it was interrupted")
for threads in (1, 2, {threads}):
    poolgrad.set_num_threads(threads)
    assert (poolgrad.median_pool2d(x, 3, 1) == expected).all()
"""
LARGE = "large = np.random.default_rng(1).random({}, np.float32)"
# The first call on a tensor imports what is interrupted at once.
TENSOR = f"""
import torch
torch.set_num_threads({{threads}})
{LARGE}
large = torch.from_numpy(large)
poolgrad.log_mean_exp_pool2d(large[..., :40, :40], 31, 1)
"""
BACKWARD = "y, pullback = poolgrad.vjp(poolgrad.{}, large, {})\ngy = np.ones_like(y)"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "prepare", "call"),
    [
        # 10 to 30 s each, with one thread of an AVX2 processor.
        ("(2000, 4000)", LARGE, "poolgrad.log_mean_exp_pool2d(large, 31, 1)"),
        # A row of outputs takes 0.1 s.
        pytest.param("(500, 2000)", LARGE,
                     "poolgrad.log_mean_exp_pool2d(large, 201, 1)", marks=slow),
        pytest.param("(12, 400, 400)", LARGE,
                     "poolgrad.stochastic_pool2d(large, 31, 1, generator=3)", marks=slow),
    ],
    ids=["log-mean-exp", "large log-mean-exp", "draw"],
)  # fmt: skip
def test_a_long_call_is_interrupted(shape: str, prepare: str, call: str, threads: int) -> None:
    code = INTERRUPTED.format(prepare=prepare.format(shape), call=call, threads=threads)
    assert float(assert_runs(code, timeout=150)) < LONGEST


@slow
def test_a_long_backward_pass_is_interrupted() -> None:
    prepare = LARGE.format("(8, 400, 400)") + "\n" + BACKWARD.format("lp_pool2d", "3.5, 31, 1")
    code = INTERRUPTED.format(prepare=prepare, call="pullback(gy)", threads=1)
    assert float(assert_runs(code, timeout=150)) < LONGEST


@needs_torch
@pytest.mark.parametrize(
    ("threads", "shape", "more", "call"),
    [
        (1, "(2000, 4000)", "", "poolgrad.log_mean_exp_pool2d(large, 31, 1)"),
        # on OpenMP's threads
        (2, "(2, 2000, 4000)", "", "poolgrad.log_mean_exp_pool2d(large, 31, 1)"),
        pytest.param(
            1, "(8, 400, 400)", "y = poolgrad.lp_pool2d(large.requires_grad_(), 3.5, 31, 1).sum()",
            "y.backward()", marks=slow),
    ],
    ids=["forward", "forward, two threads", "backward"],
)  # fmt: skip
def test_a_long_call_on_tensors_is_interrupted(
    threads: int, shape: str, more: str, call: str
) -> None:
    prepare = TENSOR.format(shape, threads=threads) + "\n" + more
    code = INTERRUPTED.format(prepare=prepare, call=call, threads=threads)
    assert float(assert_runs(code, timeout=150)) < LONGEST


BESIDE = """
stop, results = threading.Event(), []

def pool_beside():
    while not stop.is_set():
        results.append(bool((poolgrad.median_pool2d(x, 3, 1) == expected).all()))

beside = threading.Thread(target=pool_beside)
beside.start()
"""


def test_a_call_of_another_thread_is_not_interrupted() -> None:
    prepare = LARGE.format("(2000, 4000)") + BESIDE
    code = INTERRUPTED.format(
        prepare=prepare, call="poolgrad.log_mean_exp_pool2d(large, 31, 1)", threads=2
    )
    code += "stop.set()\nbeside.join()\nassert len(results) > 10\nassert all(results)\n"
    assert float(assert_runs(code, timeout=150)) < LONGEST


HANDLED = """
import os, signal, threading, time
import numpy as np
import poolgrad

poolgrad.set_num_threads(2)
x = np.random.default_rng(0).random((8, 250, 250), np.float32)
expected = poolgrad.log_mean_exp_pool2d(x, 15, 1)
calls = []
signal.signal({signal}, lambda *_: calls.append(poolgrad.log_mean_exp_pool2d(x[:1], 15, 1)))
threading.Timer(0.1, os.kill, (os.getpid(), {signal})).start()
assert (poolgrad.log_mean_exp_pool2d(x, 15, 1) == expected).all()
time.sleep(0.2)
assert len(calls) == 1
assert (calls[0] == expected[:1]).all()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR1"])
def test_a_handler_that_returns_and_pools_does_not_disturb_the_call(name: str) -> None:
    assert_runs(HANDLED.format(signal=f"signal.{name}"))


EXIT = """
import threading, time
import numpy as np
import poolgrad
x = np.ones((16, 512, 512), np.float32)
poolgrad.set_num_threads(2)
begun = threading.Event()

def pool():
    while True:
        poolgrad.max_pool2d(x, 3, 1, 1)
        begun.set()

threading.Thread(target=pool, daemon=True).start()
assert begun.wait(30)
time.sleep(0.05)
"""


def test_the_interpreter_ends_while_a_daemon_thread_pools() -> None:
    """Of NumPy arrays: PyTorch's own functions end the process here with SIGABRT."""
    for _ in range(3):
        done = run_python(EXIT)
        assert (done.returncode, done.stderr) == (0, "")


SUBINTERPRETER = """
import numpy as np
try:
    import _interpreters
except ImportError:
    import _xxsubinterpreters as _interpreters
{before}
attempt = '''
try:
    import poolgrad
    poolgrad.max_pool2d([[1.0, 2.0]], 1)
except ImportError as error:
    assert str(error), "without a reason"
'''
for _ in range(2):
    name = _interpreters.create()
    try:
        failed = _interpreters.run_string(name, attempt)
        assert failed is None, failed
    finally:
        _interpreters.destroy(name)
import poolgrad
x = np.arange(16, dtype=np.float32).reshape(4, 4)
assert (poolgrad.max_pool2d(x, 2) == [[5, 7], [13, 15]]).all()
y, pullback = poolgrad.vjp(poolgrad.avg_pool2d, x, 2)
assert (pullback(np.ones_like(y)) == 0.25).all()
"""


@pytest.mark.parametrize("before", ["import poolgrad", ""], ids=["imported before", "or after"])
def test_the_main_interpreter_pools_after_an_import_in_a_subinterpreter(before: str) -> None:
    assert_runs(SUBINTERPRETER.format(before=before))
