"""Calls for which memory does not suffice, and many calls of changing shapes."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest
from frontend_calls import torch
from processes import assert_runs
from profiles import examples

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the limit and /proc are those of Linux"
)

# All that is called, with results for comparison, has been called once before the limit: threads
# are started and code is compiled then, which is not poolgrad's memory.
LIMITED = """
import contextlib, functools, gc, random, resource
import numpy as np
import poolgrad
{prepare}

poolgrad.set_num_threads(2)
rng = np.random.default_rng(0)

def there_and_back(name, args, x, gy):
    {there_and_back}

SMALL = [
    ("max_pool2d", (3, 2)), ("avg_pool2d", (3, 1)), ("median_pool2d", (5, 2)),
    ("soft_pool2d", (3,)), ("lp_pool2d", (2.5, 3)), ("min_pool2d", (31, 7)),
    ("adaptive_max_pool2d", (5,)),
]
LARGE = [*SMALL, ("max_pool2d", (41, 1, 20)), ("avg_pool2d", (31, 1))]
LARGE += [("log_mean_exp_pool2d", (9, 4))]
CALLS = []
for size, name, args in [("large", *each) for each in LARGE] + [("small", *each) for each in SMALL]:
    x = rng.random((2, 40, 50) if size == "small" else ({planes}, 400, 500), np.float32)
    gy = rng.random(getattr(poolgrad, name)(x, *args).shape, np.float32)
    call = name, args, {array}(x), {array}(gy)
    CALLS.append((size, call, there_and_back(*call)))

def equal(some, others):
    return all(a.tobytes() == b.tobytes() for a, b in zip(some, others, strict=True))

@contextlib.contextmanager
def limit(bytes):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + bytes, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)

moments, refused, done = random.Random(0), 0, 0
for turn in range({turns}):
    for size, call, expected in CALLS:
        result = error = None
        gc.collect()
        poolgrad.empty_cache()
        room = moments.choice([0, 1, 2, moments.randrange(2, {planes} * 3), {planes} * 8])
        try:
            with limit(room << 20) if size == "large" else contextlib.nullcontext():
                result = there_and_back(*call)
        except {errors} as error:
            refused += 1
            assert size == "large"
            assert {understood}, repr(error)
        else:
            done += size == "large"
            assert equal(result, expected), call
print(refused, done)
"""
# Large arrays get memory of their own, which goes back to the system.
FRESH = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
NUMPY = {
    "planes": "8",
    "prepare": "",
    "there_and_back": (
        "y, pullback = poolgrad.vjp(getattr(poolgrad, name), x, *args)\n    return y, pullback(gy)"
    ),
    "array": "np.asarray",
    "errors": "MemoryError",
    "understood": "True",
}
TENSORS = {
    "planes": "8",
    "prepare": "import torch\ntorch.set_num_threads(2)",
    "there_and_back": (
        "x = x.detach().requires_grad_()\n"
        "    y = getattr(poolgrad, name)(x, *args)\n"
        "    y.backward(gy)\n"
        "    return y.detach().numpy(), x.grad.numpy()"
    ),
    "array": "torch.from_numpy",
    "errors": "(MemoryError, RuntimeError)",
    "understood": "isinstance(error, MemoryError) or 'memory' in str(error)",
}


JAX = {
    "planes": "32",  # XLA keeps smaller arrays, and uses their memory again
    "prepare": (
        "import jax\n"
        "@functools.cache\n"
        "def compiled(name, args):\n"
        "    pool = functools.partial(jax.vjp, lambda x: getattr(poolgrad, name)(x, *args))\n"
        "    return jax.jit(lambda x, gy: (lambda y, pullback: (y, *pullback(gy)))(*pool(x)))"
    ),
    "there_and_back": "return jax.block_until_ready(compiled(name, args)(x, gy))",
    "array": "jax.numpy.asarray",
    "errors": "(MemoryError, ValueError, RuntimeError)",
    "understood": "'memory' in str(error) or 'allocate' in str(error)",
}


@linux
@pytest.mark.parametrize(
    ("library", "turns"),
    [
        (NUMPY, 2),
        pytest.param(NUMPY, examples(25), marks=pytest.mark.nightly),
        pytest.param(TENSORS, examples(5), marks=[needs_torch, pytest.mark.slow]),
        pytest.param(JAX, examples(3), marks=[needs_jax, pytest.mark.slow]),
    ],
    ids=["NumPy", "NumPy, more", "PyTorch", "JAX"],
)
def test_a_call_that_gets_no_memory_raises_and_later_calls_are_right(
    library: dict[str, str], turns: int
) -> None:
    code = LIMITED.format(**library, turns=turns)
    refused, done = assert_runs(code, timeout=300, **FRESH).split()
    assert int(refused) >= 2 * turns
    assert int(done) >= 2 * turns


NAMED = """
import resource
import numpy as np
import poolgrad

def refusal(call, free=4):  # MiB
    poolgrad.empty_cache()
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (free << 20), resource.RLIM_INFINITY))
    try:
        call()
    except MemoryError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)

poolgrad.set_num_threads(1)
rng = np.random.default_rng(0)
x = rng.random((2, 1500, 1600), np.float32)
for pool, args in [(poolgrad.max_pool2d, (3, 1)), (poolgrad.lp_pool2d, (2.5, 3, 1)),
                   (poolgrad.median_pool2d, (3, 1)), (poolgrad.avg_pool2d, (3, 1))]:
    for repeat in range(2):  # the second call is cached
        text = refusal(lambda: pool(x, *args))
        assert text and str(2 * 1498 * 1598 * 4) in text, text
        assert "(2, 1498, 1598)" in text and "x of shape (2, 1500, 1600)" in text, text
y, pullback = poolgrad.vjp(poolgrad.avg_pool2d, x, 3)
text = refusal(lambda: pullback(y))
assert text and str(4 * x.size) in text and "x of shape (2, 1500, 1600)" in text, text
y, pullback = poolgrad.vjp(poolgrad.avg_pool2d, x, 3, 1)
text = refusal(lambda: pullback(y))
assert text and "x of shape (2, 1500, 1600)" in text, text
small = np.ones((1, 2, 2))
text = refusal(lambda: poolgrad.max_unpool2d(small, np.zeros((1, 2, 2), int), 2000))
assert text and "x of shape (1, 2, 2) and the windows" in text, text
boxes = np.array([[0, 1, 1, 4, 4]])
for region in (poolgrad.roi_pool, poolgrad.roi_align):
    text = refusal(lambda: region(np.ones((1, 1, 5, 5)), boxes, (2000, 2000)))
    assert text and "input of shape (1, 1, 5, 5), boxes and output_size" in text, text
wide, out = np.ones((1, 8_000_000), np.float16), np.empty((1, 7_999_998), np.float16)
text = refusal(lambda: poolgrad.avg_pool1d(wide, 3, 1, out=out))
assert text and "bytes of scratch memory" in text, text

packed = [
    refusal(lambda: poolgrad.vjp(poolgrad.max_pool2d, x, 3, 1, routes="packed"), free)
    for free in range(16, 40, 2)
]
assert all("x of shape (2, 1500, 1600)" in text for text in packed if text), packed
expected = f"{2 * 1498 * 1598} bytes for an array of shape (2, 1498, 1598) and dtype uint8"
assert any(expected in text for text in packed if text), packed
planes = np.ones((400_000, 1, 4, 4), np.float32)
samples = np.zeros((400_000, 1, 2), np.float32)
text = refusal(lambda: poolgrad.fractional_max_pool2d(planes, 2, output_size=3,
                                                      _random_samples=samples), 24)
assert text and f"{400_000 * 6 * 8} bytes for tables of the windows" in text, text
image, bins = np.ones((1, 1, 4, 4), np.float32), 4_000_000
for threads in (1, 2):
    poolgrad.set_num_threads(threads)
    poolgrad.max_pool2d(x, 2)
    text = refusal(lambda: poolgrad.roi_pool(image, np.tile([0.0, 0, 0, 3, 3], (threads, 1)),
                                             (1, bins)), (8 * bins * threads >> 20) + 8)
    assert text and f"{16 * bins} bytes for tables of boxes and bins" in text, text
boxes = np.tile([0.0, 0, 0, 1, 1], (400_000, 1))
text = refusal(lambda: poolgrad.roi_align(image, boxes, 1), 24)
assert text and f"{40 * len(boxes)} bytes for tables of boxes and bins" in text, text
"""


@linux
def test_the_error_names_bytes_and_shapes() -> None:
    assert_runs(NAMED, **FRESH)


OF_GRADIENTS = """
import resource
import torch
import poolgrad

x = torch.ones(4, 16, 512, 512, requires_grad=True)
# Leave memory for an output and what it keeps for the backward pass.
poolgrad.soft_pool2d(x.detach(), 2, 1), poolgrad.max_pool2d(x.detach(), 1, 1)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (30 << 20), resource.RLIM_INFINITY))
y = poolgrad.lp_pool2d(x, 3.0, 2, 1)
try:
    poolgrad.lp_pool2d(x, 3.0, 2, 1)
except MemoryError as error:
    assert "(4, 16, 511, 511)" in str(error) and "x of shape (4, 16, 512, 512)" in str(error), error
else:
    raise AssertionError("there was memory for a second output")
"""


@linux
@needs_torch
def test_memory_is_found_for_a_first_call_with_a_gradient() -> None:
    assert_runs(OF_GRADIENTS, **FRESH)


MANY = """
import gc, resource
import numpy as np
import poolgrad
{prepare}

values = {array}(np.random.default_rng(0).random((40, 52, 52), np.float32))

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

POOLS = [
    (poolgrad.max_pool2d, (3, 2)), (poolgrad.avg_pool2d, (2,)), (poolgrad.median_pool2d, (3,)),
    (poolgrad.adaptive_max_pool2d, (2,)), (poolgrad.lp_pool2d, (2.0, 3)),
]
before = None
for call in range({calls}):
    if call == {calls} // 4:
        before = resident()
    pool, args = POOLS[call % len(POOLS)]
    x = values[: 1 + call // 2500 % 40, : 3 + call // 50 % 50, : 3 + call % 50]  # never twice
    {there_and_back}
print((resident() - before) / 2**20)
"""
SHAPES = {
    "NumPy": {
        "prepare": "",
        "array": "np.asarray",
        "there_and_back": (
            "y, pullback = poolgrad.vjp(pool, x, *args); gx = pullback(y); y = pool(x, *args)"
        ),
    },
    "PyTorch": {
        "prepare": "import torch\ntorch.set_num_threads(1)",
        "array": "torch.from_numpy",
        "there_and_back": (
            "x = x.detach().requires_grad_(); y = pool(x, *args); y.backward(y.detach())"
        ),
    },
}


@linux
@pytest.mark.nightly
@pytest.mark.parametrize("library", ["NumPy", pytest.param("PyTorch", marks=needs_torch)])
def test_calls_of_changing_shapes_do_not_fill_the_memory(library: str) -> None:
    """Whatever is kept of earlier calls is bounded; a quarter of the calls has filled it."""
    grown = assert_runs(MANY.format(calls=100_000, **SHAPES[library]), timeout=500)
    assert float(grown) < 60  # MiB
