"""Wrong options and extra operands: parameters, probabilities, samples, indices and sizes.

Wrong windows and arrays are tested in `test_bad_windows` and `test_bad_arrays`.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from expected_errors import refused
from frontend_calls import Front, torch

import poolgrad

X = np.arange(32.0).reshape(1, 2, 4, 4)
INF, NAN = np.inf, np.nan

# Functions with a learned argument: its name, and how to hand it over.
LEARNED = {
    "norm_type": [("lp_pool1d", 2), ("lp_pool2d", 2), ("lp_pool3d", 2), ("global_lp_pool", None)],
    "r": [
        ("log_mean_exp_pool1d", 2),
        ("log_mean_exp_pool2d", 2),
        ("log_mean_exp_pool3d", 2),
        ("global_log_mean_exp_pool", None),
    ],
    "alpha": [("mixed_pool1d", 2), ("mixed_pool2d", 2), ("mixed_pool3d", 2)],
}
PAIRS = [(name, fun, size) for name, funs in LEARNED.items() for fun, size in funs]
learned = pytest.mark.parametrize(("name", "fun", "size"), PAIRS, ids=[p[1] for p in PAIRS])


def image(fun: str) -> np.ndarray:
    dims = int(fun[-2]) if fun.endswith("d") else 2
    return np.arange(2.0 * 4**dims).reshape(1, 2, *(4,) * dims)


def ask(front: Front, name: str, fun: str, size: int | None, value: Any, **more: Any) -> Any:
    sizes = () if size is None else (size,)
    if fun.startswith("lp"):
        return front.call(fun, image(fun), value, *sizes, **more)
    return front.call(fun, image(fun), *sizes, **{name: value}, **more)


draws = pytest.mark.without(dask="the draws for one chunk would depend on all other chunks")

# Numbers out of range

OUTSIDE = {
    "norm_type": [0, 0.0, -0.0, -1, -2.5, NAN, -INF, [2.0, 0.0], [-1.0, 2.0], [NAN, 1.0]],
    "r": [0, 0.0, -0.0, NAN, INF, -INF, [1.0, 0.0], [INF, 1.0], [1.0, NAN]],
    "alpha": [NAN, INF, -INF, [NAN, 0.5], [0.5, INF]],
}


@learned
def test_numbers_out_of_range(front: Front, name: str, fun: str, size: int | None) -> None:
    for value in OUTSIDE[name]:
        for given in (value, np.asarray(value, np.float64)):
            with pytest.raises(ValueError, match=rf"^{name} must (be positive|be finite|not be 0)"):
                ask(front, name, fun, size, given)
        if front.name == "torch":
            with pytest.raises(ValueError, match=rf"^{name} must (be positive|be finite|not be 0)"):
                ask(front, name, fun, size, torch.tensor(value, dtype=torch.float64))


@learned
@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["10**400", "-10**400"])
def test_numbers_that_no_float_holds(
    front: Front, name: str, fun: str, size: int | None, value: int
) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{name}\b"):
        ask(front, name, fun, size, value)
    with pytest.raises((TypeError, ValueError), match=rf"^{name}\b"):
        ask(front, name, fun, size, [value, 1])


NO_NUMBERS = [
    None, "2", b"2", 2j, True, {2.0}, {}, object(), [[1.0], [1.0, 2.0]], ["2", "2"], [None, None],
    [1j, 1j], np.ma.masked_equal([1.0, 2.0], 1), np.array(["2", "2"]), np.array([True, False]),
    np.array([1j, 1]), np.array([1, 2], object), np.datetime64("2020"), np.zeros(2, "f4,f4"),
]  # fmt: skip


@learned
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda v: f"{type(v).__name__} {str(v)[:20]}")
def test_what_is_no_real_number(
    front: Front, name: str, fun: str, size: int | None, value: Any
) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{name}\b"):
        ask(front, name, fun, size, value)


SHAPES = [(0,), (1,), (3,), (2, 1), (1, 2), (2, 2), (1, 2, 1, 1)]


@learned
@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_parameters_of_another_shape(
    front: Front, name: str, fun: str, size: int | None, shape: tuple[int, ...]
) -> None:
    accepted = f"{name} must be a number or one for each of 2 channels, got shape"
    given = [np.ones(shape), *([torch.ones(shape)] if front.name == "torch" else [])]
    for value in given:
        with refused(ValueError, accepted, shape):
            ask(front, name, fun, size, value)


@learned
def test_a_length_that_suits_the_other_layout(
    front: Front, name: str, fun: str, size: int | None
) -> None:
    with refused(ValueError, f"{name} must be a number or one for each of 4 channels", (2,)):
        ask(front, name, fun, size, np.ones(2), channels_last=True)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@learned
@pytest.mark.parametrize("dtype", ["complex64", "bool"])
def test_tensors_of_parameters_that_are_not_real(
    name: str, fun: str, size: int | None, dtype: str
) -> None:
    value = torch.ones(2, dtype=getattr(torch, dtype))
    x = torch.from_numpy(image(fun))
    args = [] if size is None else [size]
    with refused(TypeError, f"{name} must be a real number or an array of real numbers", dtype):
        if fun.startswith("lp"):
            getattr(poolgrad, fun)(x, value, *args)
        else:
            getattr(poolgrad, fun)(x, *args, **{name: value})


# Windows without any input

NEED_INPUT = {
    "median": {}, "log_mean_exp": {}, "soft": {},
    "expected": {"training": False}, "lp": {"norm_type": 2.0, "mean": True},
    "mixed": {"count_include_pad": False},
}  # fmt: skip


WITHOUT_INPUT = pytest.mark.parametrize(
    ("windows", "axis"),
    [
        ({"kernel_size": 2, "stride": 1, "padding": ((0, 0), (3, 0))}, "width"),
        ({"kernel_size": 2, "stride": 1, "padding": ((0, 2), (0, 0))}, "height"),
        ({"kernel_size": 1, "padding": 1}, "height"),
        ({"kernel_size": 2, "stride": 1, "padding": (0, 3), "dilation": (1, 6)}, "width"),
    ],
)


@pytest.mark.parametrize("kind", NEED_INPUT)
@WITHOUT_INPUT
def test_windows_without_any_input(front: Front, kind: str, windows: Any, axis: str) -> None:
    fun = "stochastic_pool2d" if kind == "expected" else f"{kind}_pool2d"
    with pytest.raises(ValueError, match=f"padding leaves window .* along the {axis} without"):
        front.call(fun, X, **windows, **NEED_INPUT[kind])


@draws
@WITHOUT_INPUT
def test_windows_without_anything_to_draw(front: Front, windows: Any, axis: str) -> None:
    with pytest.raises(ValueError, match=f"padding leaves window .* along the {axis} without"):
        front.call("stochastic_pool2d", X, **windows, generator=0)


# Draws


@draws
@pytest.mark.without(jax="a computation that runs raises another error: test_jax_arguments.py")
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("place", [0, 13, 31])
def test_probabilities_that_are_no_numbers(
    front: Front, value: float, dtype: str, place: int
) -> None:
    x = X.astype(dtype)
    x.flat[place] = value
    for fun, shape in (("stochastic_pool1d", (2, 16)), ("stochastic_pool2d", X.shape)):
        with pytest.raises(ValueError, match=r"^x must be finite"):
            front.call(fun, x.reshape(shape), 2, generator=0)


BAD_GENERATORS = [
    (-1, ValueError), (2**63, ValueError), (2**64 + 1, ValueError), (10**400, ValueError),
    (1.0, TypeError), (True, TypeError), ("0", TypeError), ([0], TypeError),
    (np.ones(1), TypeError), (np.random.RandomState(0), TypeError), (object(), TypeError),
]  # fmt: skip


@draws
@pytest.mark.parametrize(
    ("value", "error"), BAD_GENERATORS, ids=[repr(v)[:14] for v, _ in BAD_GENERATORS]
)
def test_generators(front: Front, value: Any, error: type[Exception]) -> None:
    for fun, args in (("stochastic_pool2d", (2,)), ("fractional_max_pool2d", (2, 2))):
        with pytest.raises(error, match=r"^generator must be"):
            front.call(fun, X, *args, generator=value)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_generators_of_the_other_framework() -> None:
    with refused(TypeError, "generator must be a torch.Generator", "Generator"):
        poolgrad.stochastic_pool2d(torch.ones(1, 4, 4), 2, generator=np.random.default_rng(0))
    with refused(TypeError, "generator must be a numpy.random.Generator", "torch"):
        poolgrad.stochastic_pool2d(X, 2, generator=torch.Generator())


def test_indices_of_a_mean(front: Front) -> None:
    with refused(ValueError, "return_indices", "training"):
        front.call("stochastic_pool2d", X, 2, return_indices=True, training=False)
    for value in (1, None, "yes"):
        with refused(TypeError, "training must be True or False, got", repr(value)):
            front.call("stochastic_pool2d", X, 2, training=value)


# Before any work


def test_nothing_is_written_before_an_error() -> None:
    """`out` as it was, whatever argument is wrong."""
    finite = X.copy()
    finite[0, 1, 3, 3] = NAN
    for fun, args, kwargs in (
        ("lp_pool2d", (0.0, 2), {}), ("log_mean_exp_pool2d", (2,), {"r": [1.0, NAN]}),
        ("mixed_pool2d", (2,), {"alpha": np.ones(3)}), ("stochastic_pool2d", (2,), {}),
        ("median_pool2d", (1, 1, 4), {}), ("soft_pool2d", (2, 1, 9), {}),
        ("min_pool2d", (2,), {"ties": "last"}), ("stochastic_pool2d", (2,), {"generator": -1}),
    ):  # fmt: skip
        out = np.full((1, 2, 2, 2), 7.0)
        with pytest.raises((TypeError, ValueError)):
            getattr(poolgrad, fun)(finite, *args, **kwargs, out=out)
        assert (out == 7).all(), fun


@pytest.mark.parametrize(
    ("fun", "args", "kwargs"),
    [
        ("adaptive_max_pool2d", (20_000,), {"ties": "last"}),
        ("lp_pool2d", (0.0, 1), {"padding": 10_000}),
        ("mixed_pool2d", (1,), {"padding": 10_000, "alpha": NAN}),
        ("mixed_pool2d", (1,), {"padding": 10_000, "alpha": np.ones(3)}),
        ("max_unpool2d", (np.zeros((1, 2, 4, 3), np.int64), 2, 6000), {}),
        ("max_unpool2d", (np.zeros(X.shape, np.int32), 2, 6000), {}),
    ],
    ids=lambda v: None if isinstance(v, tuple | dict) else v,
)
def test_nothing_large_is_allocated_before_an_error(fun: str, args: Any, kwargs: Any) -> None:
    """Each would have an output of a gigabyte or more."""
    tracemalloc.start()
    try:
        with pytest.raises((TypeError, ValueError)):
            getattr(poolgrad, fun)(X, *args, **kwargs)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# Fractional windows


@draws
@pytest.mark.parametrize("fun", ["fractional_max_pool2d", "fractional_max_pool3d"])
def test_both_and_neither_of_size_and_ratio(front: Front, fun: str) -> None:
    x = np.ones((1, 2, *(4,) * int(fun[-2])))
    for kwargs in ({}, {"output_size": 2, "output_ratio": 0.5}):
        with pytest.raises(ValueError, match=r"^exactly one of output_size and output_ratio must"):
            front.call(fun, x, 2, **kwargs)


@draws
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError), (1, ValueError), (0.0, ValueError), (1.0, ValueError), (-0.5, ValueError),
        (NAN, ValueError), (INF, ValueError), ((0.5, 1.0), ValueError), ((0.0, 0.5), ValueError),
        ((0.5, 0.5, 0.5), ValueError), ((), ValueError), (0.2, ValueError), (10**400, ValueError),
        ("0.5", TypeError), (True, TypeError), (0.5j, TypeError), (("0.5", 0.5), TypeError),
        ({0.5}, TypeError), (b"5", TypeError), ((0.5, None), TypeError), (object(), TypeError),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else repr(v)[:16],
)  # fmt: skip
def test_output_ratio(front: Front, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^output_ratio\b"):
        front.call("fractional_max_pool2d", X, 1, output_ratio=value)


@draws
@pytest.mark.parametrize("value", [-0.1, -1e-30, 1.0, 1.5, NAN, INF, -INF, 1e30])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_samples_outside(front: Front, value: float, dtype: str) -> None:
    samples = np.full((1, 2, 2), 0.5, dtype)
    samples[0, 1, 0] = value
    given: Any = torch.from_numpy(samples) if front.name == "torch" else samples
    with pytest.raises(ValueError, match=r"^_random_samples must be in \[0, 1\)"):
        front.call("fractional_max_pool2d", X, 2, 2, _random_samples=given)


@draws
@pytest.mark.parametrize("dtype", ["i8", "i4", "?", "c16", "U1", "O"])
def test_samples_of_another_dtype(front: Front, dtype: str) -> None:
    given: Any = np.zeros((1, 2, 2), dtype)
    if front.name == "torch" and dtype not in ("U1", "O"):
        given = torch.from_numpy(given)
    with pytest.raises(TypeError, match=r"^_random_samples\b"):
        front.call("fractional_max_pool2d", X, 2, 2, _random_samples=given)


@draws
@pytest.mark.parametrize(
    "value",
    [0.5, "half", object(), [[0.5], [0.5, 0.5]], np.ma.zeros((1, 2, 2))],
    ids=["float", "str", "object", "ragged", "masked"],
)
def test_samples_that_are_no_samples(front: Front, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^_random_samples\b"):
        front.call("fractional_max_pool2d", X, 2, 2, _random_samples=value)


# Unpooling

Y = np.ones((1, 2, 2, 2))
ZEROS = np.zeros((1, 2, 2, 2), np.int64)


def as_given(front: Front, indices: Any) -> Any:
    known = isinstance(indices, np.ndarray) and indices.dtype.kind in "iufb"
    return torch.from_numpy(indices) if front.name == "torch" and known else indices


@pytest.mark.parametrize("dtype", ["i4", "i2", "u1", "f4", "f8", "?"])
def test_unpool_indices_of_another_dtype(front: Front, dtype: str) -> None:
    name = {"?": "bool"}.get(dtype, np.dtype(dtype).name)
    with refused(TypeError, "indices must be of dtype int64, got", name):
        front.call("max_unpool2d", Y, as_given(front, ZEROS.astype(dtype)), 2)


@pytest.mark.parametrize("shape", [(), (8,), (1, 2, 2), (1, 2, 2, 1), (2, 2, 2, 2), (0, 2, 2, 2)])
def test_unpool_indices_of_another_shape(front: Front, shape: tuple[int, ...]) -> None:
    with refused(ValueError, "indices must have the shape of x", f"{Y.shape}, got {shape}"):
        front.call("max_unpool2d", Y, as_given(front, np.zeros(shape, np.int64)), 2)


@pytest.mark.parametrize(
    "value",
    [None, 0, "0", [[0], [0, 1]], object(), np.ma.zeros((1, 2, 2, 2), dtype=np.int64)],
    ids=["none", "int", "str", "ragged", "object", "masked"],
)
def test_unpool_indices_that_are_no_array(front: Front, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^indices\b"):
        front.call("max_unpool2d", Y, value, 2)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ((7, 7), ValueError), ((1, 4), ValueError), ((4, 6), ValueError), (0, ValueError),
        ((4,) * 3, ValueError), ((1, 2, 4, 4, 4), ValueError), (2.0, TypeError), ("4", TypeError),
        (True, TypeError), ((4, "4"), TypeError), (-4, ValueError), (2**63, ValueError),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else repr(v),
)  # fmt: skip
def test_unpool_output_size(front: Front, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^output_size\b"):
        front.call("max_unpool2d", Y, as_given(front, ZEROS), 2, output_size=value)


def test_unpool_windows(front: Front) -> None:
    for kwargs, name in (
        ({"kernel_size": 0}, "kernel_size"), ({"kernel_size": 2, "stride": 0}, "stride"),
        ({"kernel_size": 2, "padding": -1}, "padding"), ({"kernel_size": 2.0}, "kernel_size"),
        ({"kernel_size": 2, "padding": "same"}, "padding"), ({"kernel_size": (2,) * 3}, "kernel"),
        ({"kernel_size": 2, "padding": [(0, 1), (0, 1)]}, "padding"),
        ({"kernel_size": 1, "padding": 1}, "kernel_size 1 with padding 1"),
        ({"kernel_size": 2, "stride": 2**60}, "an output"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=rf"^{name}"):
            front.call("max_unpool2d", Y, as_given(front, ZEROS), **kwargs)
