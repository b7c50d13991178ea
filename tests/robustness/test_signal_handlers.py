"""Signal handlers, which run between two tasks of a long call, may pool, fork and raise."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest
from frontend_calls import torch
from processes import assert_runs

pytestmark = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs os.fork")
needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")

# A long call, during which the signal arrives that `handler` handles.
HANDLED = """
import os, signal, sys, threading, time
import numpy as np
import poolgrad
{prepare}

poolgrad.set_num_threads({threads})
small, of_small = {array}(np.ones((1, 1, 4, 4), np.float32)), np.ones((1, 1, 2, 2), np.float32)
large = {array}(np.random.default_rng(0).random({shape}, np.float32))
short = large[:1, :40, :40]
expected_short = np.asarray(poolgrad.log_mean_exp_pool2d(short, 15, 1))
expected = np.asarray(poolgrad.log_mean_exp_pool2d(large, 15, 1))
handled, child = [], []

def handler(number, frame):
    handled.append(number)
    {handler}

started = threading.Event()

def send():
    started.wait()
    time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGUSR1)

signal.signal(signal.SIGUSR1, handler)
sender = threading.Thread(target=send)
sender.start()
raised = False
started.set()
try:
    y = np.asarray(poolgrad.log_mean_exp_pool2d(large, 15, 1))
except RuntimeError as error:
    raised = error.args == ("from the handler",)
else:
    assert (y == expected).all()
assert handled == [signal.SIGUSR1], "the call ended before the signal"
assert raised == ("raise" in {handler!r} and child in ([], [0]))
assert (np.asarray(poolgrad.log_mean_exp_pool2d(short, 15, 1)) == expected_short).all()
if child == [0]:
    os._exit(0)
for pid in child:
    assert os.waitpid(pid, 0)[1] == 0
sender.join()
assert (np.asarray(poolgrad.log_mean_exp_pool2d(short, 15, 1)) == expected_short).all()
"""
POOL = "assert (np.asarray(poolgrad.max_pool2d(small, 2)) == of_small).all()"
POOL_LARGE = (
    "assert (np.asarray(poolgrad.log_mean_exp_pool2d(large[:3], 15, 1)) == expected[:3]).all()"
)
HANDLERS = {
    "pools": POOL,
    "pools with threads, for longer than a poll": POOL_LARGE,
    "forks, and the child ends": (
        f"child.append(os.fork())\n    if child == [0]:\n        {POOL}\n        {POOL_LARGE}\n"
        "        os._exit(0)"
    ),
    "forks, and the child goes on": f"child.append(os.fork())\n    {POOL}",
    "raises": f"{POOL}\n    raise RuntimeError('from the handler')",
    "forks, and the child raises": (
        "child.append(os.fork())\n    if child == [0]: raise RuntimeError('from the handler')"
    ),
    "imports PyTorch's part": "import poolgrad.torch",
}
LIBRARIES = {
    "NumPy": {"prepare": "", "array": "np.asarray"},
    "PyTorch": {
        "prepare": "import torch\nimport poolgrad.torch\ntorch.set_num_threads(2)",
        "array": "torch.from_numpy",
    },
}


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize(
    ("library", "threads"),
    [
        pytest.param("NumPy", 1, marks=pytest.mark.slow),
        ("NumPy", 2),
        pytest.param("PyTorch", 2, marks=needs_torch),  # the threads of its OpenMP library
    ],
)
def test_a_handler_may(library: str, threads: int, handler: str) -> None:
    if "PyTorch" in handler and torch is None:
        pytest.skip("PyTorch is not installed")
    code = HANDLED.format(
        handler=HANDLERS[handler], threads=threads, shape="(8, 160, 160)", **LIBRARIES[library]
    )
    assert_runs(code, timeout=30)


@needs_jax
@pytest.mark.skipif(sys.platform != "linux", reason="tested on Linux")
def test_a_handler_may_call_a_compiled_function() -> None:
    prepare = (
        "import jax\n"
        "ones = jax.numpy.ones((1, 1, 200, 200))\n"
        "compiled = jax.jit(lambda x: poolgrad.log_mean_exp_pool2d(x, 15, 1))\n"
        "jax.block_until_ready(compiled(ones))"
    )
    handler = "assert (np.asarray(compiled(ones)) == 1).all()"
    code = HANDLED.format(
        prepare=prepare, array="np.asarray", threads=2, shape="(8, 160, 160)", handler=handler
    )
    assert_runs(code, timeout=60)
