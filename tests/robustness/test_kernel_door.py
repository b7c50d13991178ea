"""Checks of the compiled module's own functions, whose arguments may come from other programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frontend_calls import torch
from processes import assert_runs

import poolgrad
from poolgrad import _kernels
from poolgrad import numpy as front
from poolgrad.dtypes import DTYPE_NAMES
from poolgrad.interface import NONLINEAR, SELECTIONS

MAX, FLOAT32 = SELECTIONS.index("max"), DTYPE_NAMES.index("float32")
MANY = 2**62


def kernels_of(x: np.ndarray, kernel_size: int = 2, name: str = "max_pool2d") -> Any:
    function: Any = getattr(poolgrad, name)
    return front.FRONT_END.prepared(function.describe(x, kernel_size), x).kernels


X = np.arange(2 * 6 * 8, dtype=np.float32).reshape(2, 6, 8)
Y, ROUTES = np.zeros((2, 3, 4), np.float32), np.zeros((2, 3, 4), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X[:, :4]}, "another shape"),
        ({"x": X.reshape(2, 8, 6)}, "another shape"),
        ({"x": X[0]}, "another shape"),
        ({"x": np.broadcast_to(X[:1], (3, 6, 8))}, "another shape"),
        ({"x": X.astype(np.float64)}, "items of another size"),
        ({"y": Y[:1]}, "smaller than planned"),
        ({"routes": ROUTES[:, :2]}, "smaller than planned"),
        ({"y": Y.astype(np.float16)}, "items of another size"),
        ({"y": Y[:, ::-1]}, "not dense"),
        ({"y": np.zeros((2, 3, 8), np.float32)[..., ::2]}, "not dense"),
        ({"routes": np.lib.stride_tricks.as_strided(ROUTES, strides=(0, 4, 1))}, "not dense"),
        ({"x": np.frombuffer(bytes(4 * 96 + 1), np.uint8)[1:].view(np.float32).reshape(2, 6, 8)},
         "not aligned"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_the_plan(arrays: dict[str, Any], message: str) -> None:
    given = {"x": X, "y": Y, "routes": ROUTES} | arrays
    with pytest.raises(ValueError, match=message):
        kernels_of(X).select(MAX, given["x"], given["y"], given["routes"], False, None, 1)


@pytest.mark.parametrize("which", range(len(SELECTIONS)))
@pytest.mark.parametrize("size", [3, 31])
def test_empty_windows_are_routed_nowhere(size: int, which: int) -> None:
    """The windows of a stored program have not been validated: some may hold padding only."""
    pad, out = size + 2, 40 + size + 5
    # position, kind, in, out, kernel_size, stride, lo, hi, dilation, first, before, n, m
    axis = [1, 0, 40, out, size, 1, pad, pad, 1, 0, 0, 40, out]
    y, routes = np.full((2, out), 7, np.float32), np.full((2, out), 77, np.uint8)
    plan = _kernels.Plan(axis, [2, 40], -1, FLOAT32, FLOAT32, 0)
    plan.select(which, np.ones((2, 40), np.float32), y, routes, False, None, 1)
    empty = [o for o in range(out) if not 0 < o - pad + size < 40 + size]
    assert empty
    assert (routes[:, empty] == 255).all()
    assert not (y[:, empty] == 7).any()


class Elsewhere:
    """An object with a tensor's attributes, which could name any address."""

    is_cpu, itemsize, ndim = True, 4, 3
    data_ptr, is_neg = lambda self: X.ctypes.data, lambda self: False
    size, stride = lambda self: X.shape, lambda self: (48, 8, 1)


@pytest.mark.parametrize("array", [Elsewhere(), object(), 16, [[1.0]]])
def test_only_buffers_and_tensors_are_arrays(array: object) -> None:
    select = kernels_of(X).select
    for arrays in [(array, Y), (X, array)]:
        with pytest.raises(TypeError, match=r"buffer protocol or be a torch\.Tensor"):
            select(MAX, *arrays, None, False, None, 1)


CTYPES = """
import ctypes, numpy as np
from poolgrad import _kernels, max_pool2d
from poolgrad import numpy as front
from poolgrad.interface import SELECTIONS
MAX = SELECTIONS.index("max")
x = np.arange(48, dtype=np.float32).reshape(6, 8)
array, y = ((ctypes.c_float * 8) * 6).from_buffer(x), np.zeros((3, 4), np.float32)
kernels = front.FRONT_END.prepared(max_pool2d.describe(x, 2), x).kernels
kernels.select(MAX, array, y, None, False, None, 1)
assert (y == max_pool2d(x, 2)).all()
target = ((ctypes.c_float * 4) * 3)()
kernels.select(MAX, array, target, None, False, None, 1)
assert (np.asarray(target) == y).all()
spec = _kernels.TensorSpec(type(array), (), (), (), (), "by buffer")
assert spec.parts(array) == (front.SPEC.parts(x)[0],)
"""


def test_arrays_of_ctypes_which_state_no_strides() -> None:
    assert_runs(CTYPES)


# `exchange` is False for PyTorch before 2.10, whose tensors have no exchange functions.
TENSORS = """
import numpy as np, pytest, torch
exchange = {exchange}
if not exchange and hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    del torch.Tensor.__dlpack_c_exchange_api__
import poolgrad
from poolgrad import numpy as front
from poolgrad.interface import SELECTIONS
from poolgrad.torch.arrays import kind
MAX = SELECTIONS.index("max")
n = 1000
x = np.random.default_rng(0).standard_normal((n, n), np.float32)
kernels = front.FRONT_END.prepared(poolgrad.max_pool2d.describe(x, 2), x).kernels
spec, expected = kind(exchange), poolgrad.max_pool2d(x, 2)

def select(x, y):
    kernels.select(MAX, x, y, None, False, None, 1)

def shrunk(*shape, size=64):
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(size)
    return tensor

def second(*shape):
    first, tensor = torch.ones(2, *shape)
    tensor.untyped_storage().resize_(first.nbytes)
    return tensor

class Own(torch.Tensor):
    pass

class Liar(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch.ones(8, n, n).untyped_storage() if "storage" in str(function) else False

for type in (torch.Tensor, torch.nn.Parameter, Own, Liar):
    with torch.no_grad():
        tensor = torch.from_numpy(x).clone().as_subclass(type)
        target = torch.zeros(n // 2, n // 2).as_subclass(type)
    select(tensor, target)
    assert (target.as_subclass(torch.Tensor).detach().numpy() == expected).all(), type
select(torch.from_numpy(x).T.contiguous().T, target)

memory = "no memory for all its elements"
for make, message in [
    (shrunk, memory),
    (lambda *shape: shrunk(*shape).as_subclass(Own), memory),
    (lambda *shape: shrunk(*shape).as_subclass(Liar), memory),
    (second, memory),
    (lambda *shape: shrunk(*shape, size=0), "memory"),
    (lambda *shape: torch._efficientzerotensor(shape), "memory"),
    (lambda *shape: torch._efficientzerotensor((2, *shape))[1], "memory"),
    (lambda *shape: torch._neg_view(torch.ones(shape)), "negative bit"),
    (lambda *shape: torch.ones(shape, device="meta"), "no memory"),
    (lambda *shape: torch.ones(shape).to_sparse(), "no memory"),
    (lambda *shape: torch.ones(shape).to_mkldnn(), "no memory"),
    (lambda *shape: torch.ones(shape).half(), "items of another size"),
    (lambda *shape: torch.ones(shape).double(), "items of another size"),
]:
    for arrays in [(make(n, n), expected), (x, make(n // 2, n // 2))]:
        with pytest.raises(ValueError, match=message):
            select(*arrays)
    assert "items" in message or spec.parts(make(n, n)) is None
"""


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("exchange", [True, False])
def test_tensors_are_read_only_where_their_storage_is(exchange: bool) -> None:
    if exchange and not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no exchange functions")
    assert_runs(TENSORS.format(exchange=exchange))


CACHED = """
import numpy as np, pytest, torch
from poolgrad import max_pool2d
from poolgrad import numpy as front
from poolgrad.core import BoundCalls
from poolgrad.interface import SELECTIONS
x = torch.ones(1000, 1000)
kernels = front.FRONT_END.prepared(max_pool2d.describe(x.numpy(), 2), x.numpy()).kernels
a, b, threads = object(), object(), object()
kernel = (kernels.select, (SELECTIONS.index("max"), a, b, None, False, None, threads))
new = torch.empty_strided, ((500, 500), (500, 1)), {"dtype": torch.float32}

def bound(*calls, allocate=new):
    return BoundCalls(calls, (a, b, threads), (allocate,), lambda: 1, 1).run

def shrink(tensor):
    tensor.untyped_storage().resize_(64)
    return tensor

assert (bound(kernel)(x) == 1).all()
shrunk = lambda *args, **kwargs: shrink(torch.empty_strided(*args, **kwargs))
for run in [
    bound(kernel, allocate=(shrunk, *new[1:])),
    bound((shrink, (b,)), kernel),
    bound((shrink, (a,)), kernel),
]:
    with pytest.raises(ValueError, match="no memory for all its elements"):
        run(x.clone())
"""


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_bound_calls_check_tensors_that_change() -> None:
    assert_runs(CACHED)


UNINITIALISED = """
import copy, pytest
from poolgrad import _kernels

class Own(_kernels.CachedBlock):
    def __init__(self):
        pass

for block in (_kernels.CachedBlock.__new__(_kernels.CachedBlock), Own()):
    with pytest.raises(BufferError, match="not initialised"):
        memoryview(block)
with pytest.raises(TypeError):
    copy.copy(_kernels.CachedBlock(8))
"""


def test_blocks_that_were_not_initialised() -> None:
    assert_runs(UNINITIALISED)


@pytest.mark.parametrize("gradient", [Y[:, :2], Y[:1], np.empty((2, 4, 3), np.float32)])
def test_cotangents_that_do_not_fit_the_plan(gradient: np.ndarray) -> None:
    with pytest.raises(ValueError, match="another shape"):
        kernels_of(X, name="avg_pool2d").average_backward(gradient, np.empty_like(X), True, 0, 1)


REGULAR = {
    "kind": 0, "in": 8, "out": 4, "kernel": 2, "stride": 2, "lo": 0, "hi": 0, "dilation": 1,
    "first": 0, "before": 0, "n": 8, "m": 4,
}  # fmt: skip
BINS = REGULAR | {"kind": 1, "out": 3, "kernel": 4, "stride": 3, "m": 3}
TABLE = REGULAR | {"kind": 2}


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (REGULAR | {"in": 9, "n": 9}, "another size than the input"),
        (REGULAR | {"kind": 3}, "out of range"),
        (REGULAR | {"out": 0}, "empty"),
        (REGULAR | {"out": MANY, "m": MANY}, "too large"),
        (REGULAR | {"kernel": MANY, "dilation": MANY}, "too large"),
        (REGULAR | {"kernel": 2**32}, "too many taps"),
        (REGULAR | {"lo": -1}, "out of range"),
        (REGULAR | {"lo": MANY}, "out of range"),
        (REGULAR | {"m": -MANY}, "no part of the whole"),
        (BINS | {"kernel": 3}, "a bin is larger"),
        (BINS | {"stride": 2}, "out of range"),
        (TABLE | {"kernel": 9}, "a window is larger"),
    ],
)
def test_axes_that_lead_beyond_the_input(axis: dict[str, int], message: str) -> None:
    kernels = type(kernels_of(X))
    arguments: Any = ([1, *axis.values()], [5, 8], -1, FLOAT32, FLOAT32, 0)
    with pytest.raises(ValueError, match=message):
        kernels(*arguments)


@pytest.mark.parametrize(
    ("pooled", "inner", "message"),
    [(2, -1, "no such pooled axis"), (-1, -1, "no such pooled axis"), (1, 1, "inner axis"),
     (1, 2, "inner axis"), (1, -2, "inner axis")],
)  # fmt: skip
def test_axes_that_do_not_exist(pooled: int, inner: int, message: str) -> None:
    kernels = type(kernels_of(X))
    with pytest.raises(ValueError, match=message):
        kernels([pooled, *REGULAR.values()], [5, 8], inner, FLOAT32, FLOAT32, 0)


@pytest.mark.parametrize(
    "dtypes", [("float64", "float32"), ("float32", "float64"), ("int32", "float32")]
)
def test_outputs_of_another_dtype(dtypes: tuple[str, str]) -> None:
    kernels = type(kernels_of(X))
    with pytest.raises(ValueError, match="another dtype than inputs or their sums"):
        kernels([1, *REGULAR.values()], [5, 8], -1, *map(DTYPE_NAMES.index, dtypes), 0)


@pytest.mark.parametrize("number", [-1, len(DTYPE_NAMES), 2**32 + 2, -MANY])
def test_numbers_of_no_dtype(number: int) -> None:
    kernels = type(kernels_of(X))
    for dtypes in [(number, FLOAT32), (FLOAT32, number)]:
        with pytest.raises(ValueError, match="no such dtype"):
            kernels([1, *REGULAR.values()], [5, 8], -1, *dtypes, 0)


@pytest.mark.parametrize("number", [-1, 2**32, MANY])
def test_numbers_of_no_reduction(number: int) -> None:
    kernels, one = kernels_of(X), np.ones(1, np.float32)
    for which in (number, len(SELECTIONS)):
        with pytest.raises(ValueError, match="no such selection"):
            kernels.select(which, X, Y, None, False, None, 1)
        with pytest.raises(ValueError, match="no such selection"):
            kernels.split_winners(which, X, Y, np.empty((2, 3, 4, 1), np.uint8), None, 1)
    for which in (number, len(NONLINEAR)):
        with pytest.raises(ValueError, match="no such nonlinear reduction"):
            kernels.nonlinear(which, X, one, 1, Y, None, None, None, None, 1)
        with pytest.raises(ValueError, match="no such nonlinear reduction"):
            kernels.nonlinear_backward(which, Y, X, one, 1, Y, Y, Y, np.empty_like(X), 1)


def test_selections_of_another_dtype() -> None:
    """Averages of integers are floating numbers, maxima of them are not."""
    made = kernels_of(X.astype(np.int8), name="avg_pool2d")
    with pytest.raises(ValueError, match="the dtype of the inputs"):
        made.select(MAX, X.astype(np.int8), Y, None, False, None, 1)


def test_outputs_that_would_overflow_memory() -> None:
    long = REGULAR | {"in": 2**40, "out": 2**40, "kernel": 1, "stride": 1, "n": 2**40, "m": 2**40}
    kernels = type(kernels_of(X))
    with pytest.raises(ValueError, match="too large"):
        kernels([1, *long.values()], [2**40, 2**40], -1, FLOAT32, FLOAT32, 0)


RACE = """
import ctypes, threading, time, numpy as np, poolgrad
x = np.zeros((1, 1 << 16), np.float32)
stop = time.monotonic() + 5
def change():
    while time.monotonic() < stop:
        ctypes.memset(x.ctypes.data, 0x3F, 4)  # x[0, 0] = 0.747..., which wins
        x[0, 0] = 0
thread = threading.Thread(target=change)
thread.start()
while time.monotonic() < stop:
    y, index = poolgrad.global_max_pool(x, return_indices=True)
    assert 0 <= index < x.size
thread.join()
"""


@pytest.mark.slow
def test_an_input_that_another_thread_changes_is_not_left() -> None:
    """The scan for the winner ends with the array, also if the winner is gone."""
    assert_runs(RACE)


FINALIZED = """
import gc
import numpy as np
from poolgrad import _kernels
x = np.ones((1, 1, 8, 8), np.float32)
spec = _kernels.TensorSpec(np.ndarray, (), (), (), (), "by buffer")
tuples = [tuple([i] * n) for n in (1, 2, 3) for i in range(3000)]  # no free tuple is left

class Finalizer:
    def __init__(self, changed):
        self.cycle, self.changed = self, changed

    def __del__(self):
        self.changed.clear()
        self.memory = [b"0" * (8 * n - 33) for n in range(20, 40) for _ in range(40)]

for moment in range(1, 60):
    gc.disable()
    gc.collect()
    nested = [[[1000, 1001] for _ in range(25)]]
    {arguments}
    Finalizer({changed})
    gc.set_threshold(gc.get_count()[0] + moment, 1000, 1000)
    gc.enable()
    spec.key(args, kwargs)
"""


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ("args, kwargs = (x, nested), {}", "nested"),
        ("args, kwargs = (x,), {'padding': nested.pop()}", "kwargs"),
    ],
)
def test_finalizers_that_change_arguments(arguments: str, changed: str) -> None:
    """The garbage collector may run wherever a key is computed."""
    assert_runs(FINALIZED.format(arguments=arguments, changed=changed))
