"""Wrong arrays: input, gradient and output are refused by name before a kernel runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expected_errors import refused
from frontend_calls import Front, as_tensor, torch

import poolgrad

X = np.ones((1, 2, 4, 4))

# What is pooled


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("name", ["complex64", "uint64", "float8_e5m2"])
def test_dtypes_of_tensors_that_are_not_pooled(name: str) -> None:
    x = torch.ones(1, 1, 4, 4, dtype=getattr(torch, name))
    for fun in (poolgrad.max_pool2d, poolgrad.avg_pool2d):
        with refused(
            TypeError, "x must be of dtype float16, bfloat16, float32, .* or bool for", name
        ):
            fun(x, 2)


@pytest.mark.parametrize(
    ("name", "args", "argument"),
    [
        ("max_pool2d", ("empty", 2), "x"),
        ("range_pool2d", ("empty", 2), "x"),
        ("lip_pool2d", (X, "empty", 2), "logits"),
        ("max_unpool2d", (X, "empty", 2), "indices"),
        ("roi_pool", ("empty", [], 2), "input"),
    ],
)
def test_elements_of_no_bytes(name: str, args: Any, argument: str) -> None:
    for empty in (np.empty(X.shape, "V0"), np.zeros(X.shape, [("a", "V0"), ("b", "f8")])["a"]):
        given = [empty if isinstance(a, str) else a for a in args]
        with refused(TypeError, argument, "dtype"):
            getattr(poolgrad, name)(*given)


def test_masked_arrays() -> None:
    for fun in (poolgrad.max_pool2d, poolgrad.avg_pool2d):
        with refused(TypeError, "x must have no mask", "fill"):
            fun(np.ma.masked_equal(X, 1), 2)


@pytest.mark.parametrize(
    "x",
    [None, 3, 2.5, "abc", {}, object(), memoryview(X), iter([])],
    ids=lambda x: type(x).__name__,
)
def test_what_is_no_array(x: object) -> None:
    for fun, args in ((poolgrad.max_pool2d, (2,)), (poolgrad.global_avg_pool, ())):
        came = "None" if x is None else f"({type(x).__qualname__})"
        with refused(
            TypeError,
            "x must be an array of NumPy, PyTorch, JAX, Dask or an array-API",
            came,
        ):
            fun(x, *args)


@pytest.mark.parametrize(
    ("x", "came"),
    [
        (np.ndarray, "the class ndarray itself"),
        (np, "the module numpy"),
        (np.ones, "the function ones itself"),
        (np.random.default_rng(0), "Generator"),
        (np.dtype("f4"), "object: Python objects, not numbers"),
        ([[None, 1.0]], "object: Python objects, not numbers"),
    ],
    ids=["class", "module", "function", "generator", "dtype", "list"],
)
def test_what_stands_for_arrays_but_is_none(x: Any, came: str) -> None:
    with refused(TypeError, "x must be", came):
        poolgrad.max_pool2d(x, 1)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_a_module_in_place_of_its_output() -> None:
    with refused(
        TypeError,
        "x must be an array of NumPy, PyTorch, JAX, Dask or an array-API",
        "Conv2d(1, 2",
    ):
        poolgrad.max_pool2d(torch.nn.Conv2d(1, 2, 3), 2)


def test_an_array_in_the_place_of_a_number_is_not_printed() -> None:
    words = r"^kernel_size must be an integer or a sequence of 2 integers, got an array of shape "
    with pytest.raises(TypeError, match=words + r"\(1, 2, 4, 4\) \(ndarray\)$"):
        poolgrad.max_pool2d(2, X)
    with pytest.raises(TypeError, match=r"^fun must be .*, got an array of shape \(1, 2, 4, 4\)"):
        poolgrad.vjp(X, poolgrad.max_pool2d, 2)
    with refused(ValueError, "kernel_size", "..."):
        poolgrad.max_pool2d(X, ["2"] * 1000)


@pytest.mark.parametrize(
    ("fun", "args", "came"),
    [
        ("range_pool1d", ([["abc", "d"]], 1), "<U3"),
        ("range_pool1d", (np.array([[1, 2]]), 1), "int64"),
        ("lip_pool1d", (np.ones((1, 2)), "abc", 1), "'abc'"),
        ("lip_pool1d", (np.ones((1, 2)), np.array(["abc"]), 1), "<U3"),
        ("lip_pool1d", (np.ones((1, 2)), None, 1), "None"),
        ("lip_pool1d", (np.ones((1, 2)), np.ones((1, 2), np.int32), 1), "int32"),
    ],
    ids=str,
)
def test_composed_operators_name_what_came(fun: str, args: Any, came: str) -> None:
    with pytest.raises(TypeError, match=rf"^(x|logits) must be of .*, got {came}$"):
        getattr(poolgrad, fun)(*args)


def test_ragged_lists() -> None:
    with pytest.raises((TypeError, ValueError), match=r"^x\b"):
        poolgrad.max_pool2d([[1.0, 2.0], [3.0]], 2)


@pytest.mark.parametrize("fun", ["max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_too_few_axes(front: Front, fun: str, dims: int) -> None:
    for channels_last in (False, True):
        shape = (4,) * (dims - 1 + channels_last)
        names = {1: ["length"], 2: ["height", "width"], 3: ["depth", "height", "width"]}[dims]
        names += ["channels"] * channels_last
        with pytest.raises(ValueError, match=r"^x must have at least ") as e:
            front.run(f"{fun}{dims}d", np.ones(shape), 2, channels_last=channels_last)
        words = f"{len(names)} {'axis' if len(names) == 1 else 'axes'} ({', '.join(names)})"
        words += " with channels_last=True" if channels_last else ""
        assert str(e.value) == f"x must have at least {words}, got shape {shape}"


@pytest.mark.parametrize("shape", [(), (4,), (1,) * 6])
def test_global_pooling_of_another_rank(front: Front, shape: tuple[int, ...]) -> None:
    for fun in ("global_max_pool", "global_avg_pool"):
        words = rf"x must have two \(height, width\) or three to five axes .* for {fun}, got shape"
        with refused(ValueError, words, shape):
            front.run(fun, np.ones(shape))


def test_global_pooling_of_channels_without_a_batch(front: Front) -> None:
    with refused(ValueError, "x must have three to five axes", (4, 4)):
        front.run("global_max_pool", np.ones((4, 4)), channels_last=True)


# The gradient and the output


def pullback_of(fun: str) -> Any:
    return poolgrad.vjp(getattr(poolgrad, fun), X, 2)[1]


@pytest.mark.parametrize("fun", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize(
    "shape", [(), (2, 2), (1, 2, 2), (1, 2, 4, 4), (1, 2, 2, 1), (2, 1, 2, 2), (0, 2, 2, 2), (8,)]
)
def test_gradient_of_another_shape(fun: str, shape: tuple[int, ...]) -> None:
    with refused(ValueError, r"gy must have the shape of the output, \(1, 2, 2, 2\), got", shape):
        pullback_of(fun)(np.ones(shape))


@pytest.mark.parametrize("fun", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("dtype", ["i8", "u1", "c16", "O", "?", "U1"])
def test_gradient_that_is_not_floating(fun: str, dtype: str) -> None:
    gy = np.zeros((1, 2, 2, 2), dtype)
    with refused(TypeError, "gy must be an array of a floating dtype, got", gy.dtype):
        pullback_of(fun)(gy)


@pytest.mark.parametrize(
    "gy",
    [None, "abc", 1.0, [[1.0], [1.0, 2.0]], [[1j]], object(), np.ma.ones((1, 2, 2, 2))],
    ids=["none", "str", "float", "ragged", "complex", "object", "masked"],
)
def test_gradient_that_is_no_array(gy: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^gy\b"):
        pullback_of("max_pool2d")(gy)


def read_only() -> np.ndarray:
    out = np.empty((1, 2, 2, 2))
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("out", "error", "came"),
    [
        (np.zeros((1, 2, 2)), ValueError, (1, 2, 2)),
        (np.zeros((1, 2, 2, 3)), ValueError, (1, 2, 2, 3)),
        (np.zeros((1, 2, 2, 2), "f4"), TypeError, "float32"),
        (np.zeros((1, 2, 2, 2), "i8"), TypeError, "int64"),
        (read_only(), ValueError, "read-only"),
        (
            np.lib.stride_tricks.as_strided(np.zeros(2), (1, 2, 2, 2), (0, 0, 0, 8)),
            ValueError,
            "(0, 0, 0, 8)",
        ),
        (
            np.lib.stride_tricks.as_strided(np.zeros(9), (1, 2, 2, 2), (0, 16, 8, 8)),
            ValueError,
            "its own memory",
        ),
        ([[0.0]], TypeError, "list"),
        (1, TypeError, "int"),
        ("out", TypeError, "str"),
        (np.ma.zeros((1, 2, 2, 2)), TypeError, "mask"),
    ],
    ids=lambda v: None if isinstance(v, type | np.ndarray) else str(v),
)
@pytest.mark.parametrize(
    ("fun", "kwargs"),
    [("max_pool2d", {}), ("max_pool2d", {"return_indices": True}), ("avg_pool2d", {})],
)
def test_out(fun: str, kwargs: Any, out: Any, error: type[Exception], came: object) -> None:
    with refused(error, "out must", came):
        getattr(poolgrad, fun)(X, 2, out=out, **kwargs)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_out_of_any_strides_without_overlap(k: int) -> None:
    for out in (
        np.zeros((1, 4, 4, 4))[:, ::2, ::-2, 1::2],
        np.zeros((2, 2, 2, 1)).transpose(3, 2, 0, 1),
        np.zeros((k, 2, 2, 2))[:1],
    ):
        poolgrad.max_pool2d(X, 2, out=out)
        np.testing.assert_array_equal(out, poolgrad.max_pool2d(X, 2))


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_out_is_for_numpy() -> None:
    with refused(TypeError, "out is accepted only if x is a NumPy array", "tensor"):
        poolgrad.max_pool2d(as_tensor(X), 2, out=torch.empty(1, 2, 2, 2))


def test_vjp() -> None:
    for fun in (np.max, None, "max_pool2d", poolgrad.vjp):
        with refused(TypeError, r"fun must be a pooling function of poolgrad, .* got", repr(fun)):
            poolgrad.vjp(fun, X, 2)
    for kwargs in ({"return_indices": True}, {"out": np.empty((1, 2, 2, 2))}):
        with pytest.raises(TypeError, match="vjp takes no return_indices and no out"):
            poolgrad.vjp(poolgrad.max_pool2d, X, 2, **kwargs)
    if torch is not None:
        with pytest.raises(TypeError, match="vjp supports NumPy and Dask"):
            poolgrad.vjp(poolgrad.max_pool2d, as_tensor(X), 2)


def test_what_an_average_has_not() -> None:
    for ask in ("routes", "mask"):
        with pytest.raises(TypeError, match="avg pooling has no"):
            getattr(pullback_of("avg_pool2d"), ask)()
    split = poolgrad.vjp(poolgrad.max_pool2d, X, 2, ties="split")[1]
    with pytest.raises(TypeError, match='ties="split" has no routes'):
        _ = split.routes


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 2 has it")
def test_out_of_strings() -> None:
    out = np.empty((1, 2, 2), np.dtypes.StringDType())
    with pytest.raises(TypeError, match=r"^out must be of dtype float64, got StringDType"):
        poolgrad.max_pool2d(np.ones((1, 4, 4)), 2, out=out)
