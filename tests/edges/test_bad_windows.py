"""Wrong window arguments: the error names the argument and the value before a kernel runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expected_errors import refused
from frontend_calls import NUMPY, Front

import poolgrad

X = np.ones((1, 2, 4, 4))


NO_INTEGERS = [2.5, "2", None, True, {2}, {2: 2}, 1j, float("nan"), [[2, 2]], (2, None), (2.0, 2)]
NO_INTEGERS += [("2", "2"), np.float64(2), np.bool_(True)]


@pytest.mark.parametrize("value", NO_INTEGERS, ids=repr)
@pytest.mark.parametrize("name", ["kernel_size", "stride", "dilation", "padding"])
def test_no_integers(front: Front, name: str, value: object) -> None:
    if name == "stride" and value is None:
        return  # means: the kernel size
    # Words and nested sequences are forms of padding, if unknown ones.
    error = (TypeError, ValueError) if name == "padding" else TypeError
    for fun in ("max_pool2d", "avg_pool2d"):
        with refused(error, name, repr(value)):
            front.run(fun, X, **({"kernel_size": 2} | {name: value}))


@pytest.mark.parametrize("value", [b"22", bytearray(b"22")], ids=repr)
@pytest.mark.parametrize("name", ["kernel_size", "stride", "dilation", "padding"])
def test_bytes_are_no_integers(name: str, value: object) -> None:
    with refused(TypeError, name, repr(value)):
        NUMPY.run("max_pool2d", X, **({"kernel_size": 2} | {name: value}))


@pytest.mark.parametrize("name", ["kernel_size", "stride", "padding", "dilation"])
def test_arrays_of_integers_are_sequences_and_other_arrays_are_refused(
    front: Front, name: str
) -> None:
    y = front.run("max_pool2d", X, **({"kernel_size": 2} | {name: np.ones(2, int)}))
    like = front.run("max_pool2d", X, **({"kernel_size": 2} | {name: (1, 1)}))
    np.testing.assert_array_equal(y, like)
    with refused(TypeError, name, "array([1., 1.])"):
        front.run("max_pool2d", X, **({"kernel_size": 2} | {name: np.ones(2)}))


@pytest.mark.parametrize("name", ["kernel_size", "stride", "dilation"])
@pytest.mark.parametrize("value", [0, -1, (2, 0), [-3, 1], (0, 0), np.int64(0), -(2**70)], ids=repr)
def test_no_positive_numbers(front: Front, name: str, value: object) -> None:
    for fun in ("max_pool2d", "avg_pool2d"):
        with refused(ValueError, f"{name} must be positive, got", repr(value)):
            front.run(fun, X, **({"kernel_size": 2} | {name: value}))


@pytest.mark.parametrize(
    "value", [-1, (0, -1), [(0, 0), (0, -1)], ((-1, 1), (1, 1)), np.int64(-2)], ids=repr
)
def test_negative_padding(front: Front, value: object) -> None:
    for fun in ("max_pool2d", "avg_pool2d"):
        with refused(ValueError, "padding must not be negative, got", repr(value)):
            front.run(fun, X, 2, padding=value)


@pytest.mark.parametrize(
    "value", ["full", "", "SAM", ((1, 1),), ((1, 1), (1,)), [(0, 1), 2]], ids=repr
)
def test_unknown_forms_of_padding(front: Front, value: object) -> None:
    with refused(ValueError, 'padding must be .*"valid" or "same", got', repr(value)):
        front.run("max_pool2d", X, 2, padding=value)


@pytest.mark.parametrize("name", ["kernel_size", "stride", "dilation", "padding"])
@pytest.mark.parametrize("value", [(2, 2, 2), [1] * 4, range(1, 4), ()], ids=repr)
def test_wrong_number_of_values(front: Front, name: str, value: Any) -> None:
    if name == "stride" and not len(value):
        return  # PyTorch takes an empty stride for none
    with refused(ValueError, f"{name} must be an integer.* 2 integers", repr(value)):
        front.run("max_pool2d", X, **({"kernel_size": 2} | {name: value}))


@pytest.mark.parametrize("value", ["", b"", set(), {}], ids=repr)
def test_stride_that_is_empty_but_no_sequence_of_integers(front: Front, value: object) -> None:
    with refused(TypeError, "stride", repr(value)):
        front.run("max_pool2d", X, 2, value)


@pytest.mark.parametrize("name", ["kernel_size", "stride", "dilation", "padding"])
@pytest.mark.parametrize("value", [2**61, 2**63 - 1, 2**63, 2**200, (2**64, 1)], ids=repr)
def test_numbers_that_overflow(front: Front, name: str, value: object) -> None:
    with refused(ValueError, f"{name} must be less than", repr(value)):
        front.run("max_pool2d", X, **({"kernel_size": 2} | {name: value}))


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((5,), {}, r"kernel_size 5 .*4 along the height"),
        (((1, 5),), {}, r"kernel_size 5 .*4 along the width"),
        ((2,), {"dilation": 4}, r"kernel_size 2 with dilation 4 spans 5 inputs.*4 along the"),
        ((7,), {"padding": 1}, r"kernel_size 7 .*4 along the height and padding \(1, 1\)$"),
        ((2**60,), {"dilation": 2**60}, r"kernel_size and dilation span"),
        ((2**20,), {"padding": 2**20}, r"kernel_size .* taps"),
        ((1, 1), {"padding": 2**58}, "overflow memory"),
        ((1, 1), {"padding": ((0, 2**60), (0, 2**60))}, "overflow memory"),
    ],
)
def test_windows_that_cannot_be(front: Front, args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        front.run("max_pool2d", X, *args, **kwargs)


def test_leading_axes_that_overflow() -> None:
    x = np.broadcast_to(np.float32(1), (2**30, 1, 1))
    with pytest.raises(ValueError, match="overflow"):
        poolgrad.max_pool2d(x, 1, 1, 2**16)


@pytest.mark.parametrize("fun", ["adaptive_max_pool2d", "adaptive_avg_pool2d"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError), (-1, ValueError), ((2, 0), ValueError), ((1, 2, 3), ValueError),
        ((), ValueError), (2.5, TypeError), ("2", TypeError), (True, TypeError),
        ({1, 2}, TypeError), ((2, "2"), TypeError), (np.array([2.0, 2.0]), TypeError),
        (b"22", TypeError),
        (2**62, ValueError), (2**200, ValueError),
    ],
    ids=repr,
)  # fmt: skip
def test_output_size(front: Front, fun: str, value: Any, error: type[Exception]) -> None:
    with refused(error, "output_size", repr(value)):
        front.run(fun, X, value)


@pytest.mark.parametrize("fun", ["adaptive_max_pool", "adaptive_avg_pool"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_adaptive_sizes(front: Front, fun: str, dims: int) -> None:
    x = np.ones((1, 1, *(2,) * dims))
    for value in (0, -1, -(2**40), (1,) * (dims - 1) + (0,)):
        with refused(ValueError, "output_size must be positive, got", repr(value)):
            front.run(f"{fun}{dims}d", x, value)
    for value in (2**61, 2**200, (2**61,) * dims):
        with refused(ValueError, "output_size must be less than", repr(value)):
            front.run(f"{fun}{dims}d", x, value)
    for value in (2**60, (2**60,) * dims, *([2**31] if dims > 1 else [])):
        with pytest.raises(ValueError, match="memory"):
            front.run(f"{fun}{dims}d", x, value)


def test_masked_sizes(front: Front) -> None:
    masked = np.ma.array([2, 3], mask=[False, True])
    for fun in ("adaptive_avg_pool2d", "max_pool2d"):
        with pytest.raises(TypeError, match="_size must have no mask"):
            front.run(fun, X, masked)


def test_huge_output_size_overflows_nothing(front: Front) -> None:
    """pytorch#50960: a product of two sizes that fit."""
    with pytest.raises(ValueError, match="overflow memory"):
        front.run("adaptive_max_pool2d", X, (2**31, 2**31))


@pytest.mark.parametrize(
    ("fun", "name"),
    [
        ("max_pool2d", "ceil_mode"), ("max_pool2d", "return_indices"),
        ("max_pool2d", "channels_last"), ("avg_pool2d", "count_include_pad"),
        ("avg_pool2d", "ceil_mode"), ("adaptive_max_pool2d", "return_indices"),
        ("global_max_pool", "keepdims"), ("global_avg_pool", "channels_last"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [1, 0, None, "yes", 1.0], ids=repr)
def test_flags(front: Front, fun: str, name: str, value: object) -> None:
    args = () if fun.startswith("global") else (2,)
    with refused(TypeError, f"{name} must be True or False, got", repr(value)):
        front.run(fun, X, *args, **{name: value})


WITH_TIES = {
    "max_pool2d": (2,), "min_pool2d": (2,), "relu_max_pool2d": (2,), "median_pool2d": (2,),
    "adaptive_max_pool2d": (2,), "global_max_pool": (),
}  # fmt: skip


def check_ties(front: Front, fun: str, args: Any) -> None:
    for value in ("last", "First", ""):
        for more in ({}, {"return_indices": True}):
            with refused(ValueError, 'ties must be "first", "split" or "zero", got', repr(value)):
                front.run(fun, X, *args, ties=value, **more)
    for value in (None, 1, b"first", ("first",)):
        with refused(TypeError, "ties must be a string, got", repr(value)):
            front.run(fun, X, *args, ties=value)
    with pytest.raises(ValueError, match=r'^ties="all" .*not a subgradient'):
        front.run(fun, X, *args, ties="all")


@pytest.mark.parametrize("fun", WITH_TIES)
def test_unknown_ties(front: Front, fun: str) -> None:
    check_ties(front, fun, WITH_TIES[fun])


@pytest.mark.without(dask="the draws for one chunk would depend on all other chunks")
def test_unknown_ties_of_fractional_windows(front: Front) -> None:
    check_ties(front, "fractional_max_pool2d", (2, 2))


@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (2.5, TypeError), ("2", TypeError), (True, TypeError), ((2, 2), TypeError),
     (10**400, ValueError), (-(10**400), ValueError)],
    ids=lambda v: v.__name__ if isinstance(v, type) else repr(v)[:12],
)  # fmt: skip
def test_divisor_override(front: Front, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^divisor_override\b"):
        front.run("avg_pool2d", X, 2, divisor_override=value)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63) + 1], ids=repr)
def test_divisor_override_of_64_bits(front: Front, value: int) -> None:
    y = front.run("avg_pool2d", X, 2, divisor_override=value)
    np.testing.assert_allclose(y, np.full((1, 2, 2, 2), 4 / value), rtol=1e-15)


@pytest.mark.parametrize("value", [2**63, -(2**63), -(2**70)], ids=repr)
def test_divisor_override_of_more_bits(front: Front, value: int) -> None:
    with refused(ValueError, "divisor_override", value):
        front.run("avg_pool2d", X, 2, divisor_override=value)


@pytest.mark.parametrize(
    "threads", [0, -1, 2.0, "2", None, True, 2**31, 2**40, 10**400], ids=lambda v: repr(v)[:12]
)
def test_threads(threads: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^threads\b"):
        poolgrad.set_num_threads(threads)
    assert poolgrad.max_pool2d(X, 2).shape == (1, 2, 2, 2)  # and pooling goes on


@pytest.mark.parametrize("fun", ["max_pool2d", "adaptive_avg_pool1d", "global_max_pool"])
def test_a_missing_or_unknown_argument_names_the_function(fun: str) -> None:
    with pytest.raises(TypeError, match=rf"^{fun}\(\).*missing"):
        getattr(poolgrad, fun)()
    with pytest.raises(TypeError, match=rf"^{fun}\(\) has no argument 'kernel_shape'; "):
        getattr(poolgrad, fun)(X, 2, kernel_shape=3)


def test_only_arguments_that_there_are_count() -> None:
    """Not those of the function that describes the pooling for any number of axes."""
    for fun, most in ((poolgrad.max_pool2d, 7), (poolgrad.soft_pool1d, 4)):
        words = rf"^{fun.__name__}\(\) takes at most {most} positional arguments, got 10$"
        for call in (fun, lambda *args, f=fun: poolgrad.vjp(f, *args)):
            with pytest.raises(TypeError, match=words):
                call(X, *(2,) * 9)
            with pytest.raises(TypeError, match=rf"^{fun.__name__}\(\) missing .*'kernel_size'$"):
                call(X)
    for kwargs, words in (
        ({"rank": 1}, "has no argument 'rank'; it takes x, kernel_size, .*, out, dim"),
        ({"kernel_size": 2}, "got multiple values for argument 'kernel_size'"),
    ):
        with pytest.raises(TypeError, match=rf"^soft_pool2d\(\) {words}$"):
            poolgrad.soft_pool2d(X, 2, **kwargs)


# Names of arguments


MEANT = [
    ("max_pool2d", "kernel", "kernel_size"),
    ("max_pool2d", "ksize", "kernel_size"),
    ("avg_pool1d", "pool_size", "kernel_size"),
    ("min_pool3d", "window_shape", "kernel_size"),
    ("max_pool2d", "strides", "stride"),
    ("max_pool2d", "pad", "padding"),
    ("max_pool2d", "Padding", "padding"),
    ("max_pool2d", "ceil", "ceil_mode"),
    ("max_pool2d", "data_format", "channels_last"),
    ("lp_pool2d", "p", "norm_type"),
    ("stochastic_pool2d", "seed", "generator"),
    ("adaptive_avg_pool2d", "out_size", "output_size"),
    ("fractional_max_pool2d", "ratio", "output_ratio"),
    ("max_unpool2d", "index", "indices"),
    ("global_avg_pool", "keepdim", "keepdims"),
    ("global_max_pool", "input", "x"),
]


@pytest.mark.parametrize(("fun", "unknown", "meant"), MEANT)
def test_an_unknown_argument_names_the_one_that_was_meant(
    fun: str, unknown: str, meant: str
) -> None:
    words = rf"^{fun}\(\) has no argument '{unknown}'; did you mean '{meant}'\?$"
    pool, reference = getattr(poolgrad, fun), getattr(poolgrad.reference, fun)
    for call in (pool, reference, lambda *args, **kwargs: poolgrad.vjp(pool, *args, **kwargs)):
        with pytest.raises(TypeError, match=words):
            call(X, **{unknown: 2})


def test_an_unknown_argument_like_no_other() -> None:
    words = "has no argument 'colour'; it takes x, keepdims, return_indices, ties, routes, channel"
    with pytest.raises(TypeError, match=rf"^global_max_pool\(\) {words}"):
        poolgrad.global_max_pool(X, colour=1)
    poolgrad.global_max_pool(X)  # also where calls like it are known
    with pytest.raises(TypeError, match=rf"^global_max_pool\(\) {words}"):
        poolgrad.global_max_pool(X, colour=1)


def test_a_wrong_type_behind_the_names_is_reported_as_it_is() -> None:
    with pytest.raises(TypeError, match=r"^ceil_mode must be True or False, got 1$"):
        poolgrad.max_pool2d(X, 2, ceil_mode=1)


# What a beginner tries


IN_FULL = [
    (
        "max_pool2d", (None,), {},
        "kernel_size must be an integer or a sequence of 2 integers, got None",
    ),
    ("max_pool1d", (None,), {}, "kernel_size must be an integer, got None"),
    ("max_pool1d", ((2, 2),), {}, "kernel_size must be an integer, got (2, 2)"),
    (
        "max_pool2d", (5,), {},
        "kernel_size 5 is larger than x, which has size 4 along the height",
    ),
    (
        "max_pool2d", (3,), {"dilation": 2},
        "kernel_size 3 with dilation 2 spans 5 inputs and is larger than x, which has size 4 along "
        "the height",
    ),
    (
        "max_pool2d", (2,), {"padding": 0.5},
        "padding must be an integer, a sequence of 2 integers, 2 pairs (low, high), "
        '"valid" or "same", got 0.5',
    ),
    (
        "max_pool1d", (2,), {"padding": "full"},
        'padding must be an integer, a pair (low, high), "valid" or "same", got \'full\'',
    ),
    ("max_pool2d", (2,), {"ceil_mode": 1}, "ceil_mode must be True or False, got 1"),
    (
        "avg_pool2d", (2,), {"divisor_override": 0},
        "divisor_override must not be zero, as every sum is divided by it, got 0",
    ),
    (
        "adaptive_avg_pool2d", ("1",), {},
        "output_size must be an integer or a sequence of 2 integers (None keeps the size of the "
        "input), got '1'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fun", "args", "kwargs", "words"), IN_FULL, ids=str)
def test_errors_in_full(front: Front, fun: str, args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        front.run(fun, X, *args, **kwargs)
    assert str(error.value) == words


def test_truth_values_of_numpy_are_flags(front: Front) -> None:
    x = np.arange(5.0)
    assert front.run("max_pool1d", x, 2, ceil_mode=np.True_).tolist() == [1, 3, 4]
    assert front.run("max_pool1d", x, 2, ceil_mode=np.False_).tolist() == [1, 3]
    assert front.run("global_max_pool", X, keepdims=np.True_).shape == (1, 2, 1, 1)
