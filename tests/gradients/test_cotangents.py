"""Which cotangents a pullback accepts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from expected_errors import refused

import poolgrad

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64)]
X = np.random.default_rng(1).permutation(32).reshape(1, 2, 4, 4)
GY = np.arange(1.0, 9.0).reshape(1, 2, 2, 2) / 4  # the same numbers in every float


def as_given(x: np.ndarray) -> np.ndarray:
    return x


def in_chunks(x: np.ndarray) -> Any:
    return pytest.importorskip("dask.array").from_array(x, chunks=(1, 1, 2, 4))


each_kind = pytest.mark.parametrize("made", [as_given, in_chunks])


@each_kind
@pytest.mark.parametrize("given", [*FLOATS, np.dtype(">f4"), np.dtype("g")], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_floating_dtype_is_converted(made: Any, dtype: Any, given: Any) -> None:
    x = made(X.astype(dtype))
    for fun in (poolgrad.max_pool2d, poolgrad.avg_pool2d, poolgrad.soft_pool2d):
        y, pullback = poolgrad.vjp(fun, x, 2)
        gx, expected = (np.asarray(pullback(GY.astype(d))) for d in (given, y.dtype))
        assert gx.dtype == dtype
        assert gx.tobytes() == expected.tobytes()


def test_it_is_rounded_once() -> None:
    _, pullback = poolgrad.vjp(poolgrad.max_pool1d, np.ones(2, np.float16), 2)
    assert pullback([1 + 2.0**-10])[0] == np.float16(1 + 2.0**-10)
    assert pullback(np.array([1 + 2.0**-11 + 2.0**-30]))[0] == np.float16(1 + 2.0**-10)


@each_kind
def test_parameters_too(made: Any) -> None:
    _, pullback = poolgrad.vjp(poolgrad.lp_pool2d, made(X.astype(np.float32)), 3.0, 2)
    given, expected = (pullback.parameters(GY.astype(d))["norm_type"] for d in ("f8", "f4"))
    assert (given.dtype, float(given)) == (np.float32, float(expected))


@each_kind
@pytest.mark.parametrize(
    "gy", [2.5, np.float64(2.5), np.array(2.5), [[2.5]], [[[[2.5]]]]], ids=repr
)
def test_a_number_for_one_output(made: Any, gy: Any) -> None:
    x = made(X[:, :1].astype(np.float32))
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 4)
    if np.shape(gy) not in ((), y.shape):
        with refused(ValueError, "gy must have the shape of the output", np.shape(gy)):
            pullback(gy)
        return
    gx = np.asarray(pullback(gy))
    assert gx.shape == x.shape
    assert gx.sum() == gx.ravel()[np.argmax(X[:, :1])] == 2.5


@each_kind
def test_whole_numbers_of_python_are_numbers(made: Any) -> None:
    _, pullback = poolgrad.vjp(poolgrad.max_pool2d, made(X[:, :1].astype(float)), 4)
    for gy in (3, [[[[3]]]]):
        assert np.asarray(pullback(gy)).sum() == 3


@each_kind
@pytest.mark.parametrize(
    "gy", [np.int64(3), np.array(3), True, 1j, "3", None, np.ones((1, 1, 1, 1), int)], ids=repr
)
def test_other_kinds_of_numbers_are_refused(made: Any, gy: Any) -> None:
    _, pullback = poolgrad.vjp(poolgrad.max_pool2d, made(X[:, :1].astype(float)), 4)
    came = "None" if gy is None else np.asarray(gy).dtype
    with refused(TypeError, "gy must be an array of a floating dtype, got", came):
        pullback(gy)


@each_kind
def test_one_number_is_not_for_several_outputs(made: Any) -> None:
    _, pullback = poolgrad.vjp(poolgrad.max_pool2d, made(X.astype(float)), 4)
    for gy in (1.0, np.ones((1, 1)), np.ones((1, 1, 1, 1))):
        with refused(
            ValueError, r"gy must have the shape of the output, \(1, 2, 1, 1\), got", np.shape(gy)
        ):
            pullback(gy)


def test_tensors_are_cast_by_pytorch() -> None:
    torch = pytest.importorskip("torch")
    for _ in range(2):  # the second call is one that is known
        x = torch.tensor(X, dtype=torch.float32, requires_grad=True)
        y = poolgrad.max_pool2d(x, 2)
        (gx,) = torch.autograd.grad(y, x, torch.tensor(GY, dtype=torch.float32))
        y = poolgrad.max_pool2d(x, 2)
        (cast,) = torch.autograd.grad(y, x, torch.tensor(GY))
        assert cast.dtype == torch.float32
        assert torch.equal(gx, cast)
