"""Checks of the compiled module's own functions, whose arguments may come from other programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frontend_calls import torch
from processes import assert_runs

import poolgrad
from poolgrad import numpy as front
from poolgrad.core import Plan

MANY = 2**62


def plan(x: np.ndarray, kernel_size: int = 2, name: str = "max_pool2d") -> Plan:
    function: Any = getattr(poolgrad, name)
    return front.prepared(function.describe(x, kernel_size), x).plan


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
        plan(X).kernels.select("max", given["x"], given["y"], given["routes"], False, None, 1)


class OldTensor:
    """The memory of an array, as PyTorch's tensors offer it before version 2.10."""

    def __init__(self, array: np.ndarray, is_cpu: bool = True) -> None:
        self.array, self.is_cpu, self.itemsize = array, is_cpu, array.itemsize
        self.data_ptr = lambda: array.ctypes.data
        self.size = lambda: array.shape
        self.stride = lambda: tuple(s // array.itemsize for s in array.strides)


def test_tensors_without_dlpack_are_checked_as_arrays_are() -> None:
    y, expected = np.zeros_like(Y), poolgrad.max_pool2d(X, 2)
    select = plan(X).kernels.select
    select("max", OldTensor(X), OldTensor(y), None, False, None, 1)
    assert (y == expected).all()
    for tensor, message in [
        (OldTensor(Y.astype(np.float16)), "items of another size"),  # would be overrun
        (OldTensor(Y.astype(np.float64)), "items of another size"),
        (OldTensor(Y, is_cpu=False), "no memory on the CPU"),
    ]:
        with pytest.raises(ValueError, match=message):
            select("max", X, tensor, None, False, None, 1)
        with pytest.raises(ValueError, match=message):
            select("max", tensor, Y, None, False, None, 1)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_tensors_that_are_not_exported_are_refused() -> None:
    x = torch.from_numpy(X)
    others: list[Any] = [x.to("meta"), x.to_sparse(), x.half()]
    for tensor in others:
        with pytest.raises((ValueError, AttributeError)):
            plan(X).kernels.select("max", tensor, Y, None, False, None, 1)


@pytest.mark.parametrize("gradient", [Y[:, :2], Y[:1], np.empty((2, 4, 3), np.float32)])
def test_cotangents_that_do_not_fit_the_plan(gradient: np.ndarray) -> None:
    with pytest.raises(ValueError, match="another shape"):
        plan(X, name="avg_pool2d").kernels.average_backward(gradient, np.empty_like(X), True, 0, 1)


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
    kernels = type(plan(X).kernels)
    arguments: Any = ([[*axis.values()]], [5, 8], [1], -1, "float32", "float32", 0)
    with pytest.raises(ValueError, match=message):
        kernels(*arguments)


@pytest.mark.parametrize(
    ("pooled", "inner", "message"),
    [([2], -1, "no such pooled axis"), ([-1], -1, "no such pooled axis"), ([1], 1, "inner axis"),
     ([1], 2, "inner axis"), ([1], -2, "inner axis")],
)  # fmt: skip
def test_axes_that_do_not_exist(pooled: list[int], inner: int, message: str) -> None:
    kernels = type(plan(X).kernels)
    with pytest.raises(ValueError, match=message):
        kernels([[*REGULAR.values()]], [5, 8], pooled, inner, "float32", "float32", 0)


@pytest.mark.parametrize(
    "dtypes", [("float64", "float32"), ("float32", "float64"), ("int32", "float32")]
)
def test_outputs_of_another_dtype(dtypes: tuple[str, str]) -> None:
    kernels = type(plan(X).kernels)
    with pytest.raises(ValueError, match="another dtype than inputs or their sums"):
        kernels([[*REGULAR.values()]], [5, 8], [1], -1, *dtypes, 0)


def test_selections_of_another_dtype() -> None:
    """Averages of integers are floating numbers, maxima of them are not."""
    made = plan(X.astype(np.int8), name="avg_pool2d").kernels
    with pytest.raises(ValueError, match="the dtype of the inputs"):
        made.select("max", X.astype(np.int8), Y, None, False, None, 1)


def test_outputs_that_would_overflow_memory() -> None:
    long = REGULAR | {"in": 2**40, "out": 2**40, "kernel": 1, "stride": 1, "n": 2**40, "m": 2**40}
    kernels = type(plan(X).kernels)
    with pytest.raises(ValueError, match="too large"):
        kernels([[*long.values()]], [2**40, 2**40], [1], -1, "float32", "float32", 0)


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
