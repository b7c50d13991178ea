"""Bad input: each is refused with the argument named and what came, before anything is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fronts import NUMPY, Front
from refusal import attempt, refused

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
@pytest.mark.parametrize("dtype", [int, float])
def test_arrays_of_numbers_are_taken_or_refused_by_name(name: str, dtype: type) -> None:
    value = np.ones(2, dtype)
    y = attempt(lambda: NUMPY.run("max_pool2d", X, **({"kernel_size": 2} | {name: value})))
    if isinstance(y, Exception):
        assert name in str(y)
    else:
        assert dtype is int
        like = NUMPY.run("max_pool2d", X, **({"kernel_size": 2} | {name: (1, 1)}))
        np.testing.assert_array_equal(y, like)


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
    with refused(ValueError, f"{name} must be .*2 of them", repr(value)):
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
        ((7,), {"padding": 1}, r"kernel_size 7 .*4 along the height with padding \(1, 1\)"),
        ((2**60,), {"dilation": 2**60}, r"kernel_size and dilation span"),
        ((2**20,), {"padding": 2**20}, r"kernel_size .* places"),
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


@pytest.mark.parametrize("value", ["last", "First", "", "any"], ids=repr)
def test_unknown_ties(front: Front, value: str) -> None:
    with refused(ValueError, 'ties must be "first", "split" or "zero", got', repr(value)):
        front.run("max_pool2d", X, 2, ties=value)
    with refused(ValueError, 'ties must be "first", "split" or "zero", got', repr(value)):
        front.run("max_pool2d", X, 2, ties=value, return_indices=True)


def test_ties_that_are_no_word_or_all(front: Front) -> None:
    for value in (None, 1, b"first", ("first",)):
        with refused(TypeError, "ties must be a string, got", repr(value)):
            front.run("max_pool2d", X, 2, ties=value)
    for fun, args in (("max_pool2d", (2,)), ("adaptive_max_pool2d", (2,)), ("global_max_pool", ())):
        with pytest.raises(ValueError, match=r'^ties="all" .*not a subgradient'):
            front.run(fun, X, *args, ties="all")


@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (2.5, TypeError), ("2", TypeError), (True, TypeError), ((2, 2), TypeError),
     (10**400, ValueError), (-(10**400), ValueError)],
    ids=lambda v: v.__name__ if isinstance(v, type) else repr(v)[:12],
)  # fmt: skip
def test_divisor_override(front: Front, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^divisor_override\b"):
        front.run("avg_pool2d", X, 2, divisor_override=value)


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, -(2**70)], ids=repr)
def test_divisor_override_of_many_bits_is_taken_or_refused_by_name(
    front: Front, value: int
) -> None:
    y = attempt(lambda: front.run("avg_pool2d", X, 2, divisor_override=value))
    if isinstance(y, Exception):
        assert str(y).startswith("divisor_override")
    else:
        np.testing.assert_allclose(y, np.full((1, 2, 2, 2), 4 / value), rtol=1e-15)


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
    with pytest.raises(TypeError, match=rf"^{fun}\(\).*unexpected keyword argument 'kernel'"):
        getattr(poolgrad, fun)(X, 2, kernel=3)


def test_only_arguments_that_there_are_count() -> None:
    """Not those of the function that describes the pooling for any number of axes."""
    for fun, most in ((poolgrad.max_pool2d, 7), (poolgrad.soft_pool1d, 6)):
        words = rf"^{fun.__name__}\(\) takes at most {most} positional arguments, got 10$"
        for call in (fun, lambda *args, f=fun: poolgrad.vjp(f, *args)):
            with pytest.raises(TypeError, match=words):
                call(X, *(2,) * 9)
            with pytest.raises(TypeError, match=rf"^{fun.__name__}\(\) missing .*'kernel_size'$"):
                call(X)
    for kwargs, words in (
        ({"dims": 1}, "an unexpected keyword argument 'dims'"),
        ({"kernel_size": 2}, "multiple values for argument 'kernel_size'"),
    ):
        with pytest.raises(TypeError, match=rf"^soft_pool2d\(\) got {words}$"):
            poolgrad.soft_pool2d(X, 2, **kwargs)
