"""Checks extra operands, cotangents and indices, with the same errors in all front ends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad.dtypes import FLOATS, INTEGERS, name_of
from poolgrad.windows import Layout, brief, in_memory, unmasked

Array = NDArray[Any]

_SEED_LIMIT = 2**63
REALS = (*FLOATS, *(name for name in INTEGERS if name != "bool"), "uint64")
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
# The smallest and the largest magnitude of a normal number.
SIZES = {
    "float32": (2.0**-126, (2 - 2.0**-23) * 2.0**127),
    "float64": (2.0**-1022, (2 - 2.0**-52) * 2.0**1023),
}


def plain(name: str, value: Any, form: str) -> Array:
    """Convert a value to a NumPy array; `form` describes the accepted forms in errors.

    Raises
    ------
    TypeError, ValueError
        If the value has a mask, or NumPy cannot convert it.
    RuntimeError
        If a tensor does not have memory for all elements; see `windows.has_memory`.
    """
    value = in_memory(name, unmasked(name, value))
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:
        # A ValueError: lists of unequal lengths. Others: a tensor that requires a gradient, or is
        # on another device.
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{name} must be {form}: {error}") from error


# Learned arguments


def real_numbers(name: str, value: Any) -> Array:
    """Convert a number or an array of numbers of any real dtype to a NumPy array."""
    given = plain(name, value, "a number or an array of them")
    if given.dtype.name not in REALS:
        raise refuse_numbers(name, given.dtype if given.ndim else brief(value))
    return given


def refuse_numbers(name: str, came: object) -> TypeError:
    """Return the error for a value that does not consist of real numbers."""
    return TypeError(f"{name} must be a real number or an array of real numbers, got {came}")


def check_length(name: str, shape: tuple[int, ...], channels: int) -> None:
    """Raise an error unless there is one number, or one for each channel."""
    # Compilers do not compare tuples of symbolic sizes.
    if len(shape) > 1 or (len(shape) == 1 and shape[0] != channels):
        raise ValueError(
            f"{name} must be a number or one for each of {channels} channels, got shape {shape}"
        )


def within(values: list[float], dtype: str) -> list[float]:
    """Clip the magnitudes of numbers to the normal range of a dtype.

    Numbers that are neither zero nor infinite stay so, because operators check for these values.
    """
    least, largest = SIZES[dtype]
    return [
        v
        if least <= abs(v) <= largest or v == 0 or not math.isfinite(v)
        else math.copysign(min(max(abs(v), least), largest), v)
        for v in values
    ]


# Boxes


def boxes(name: str, value: Any) -> Array:
    """Convert boxes to a NumPy array in native byte order."""
    given = plain(name, value, "an array of shape (K, 5) or a list of arrays")
    given = given.astype(given.dtype.newbyteorder("="), copy=False)
    # an empty list of boxes of one image
    return given.reshape(0, 4) if given.shape == (0,) and name != "boxes" else given


# Seeds


def seed(value: Any) -> int | None:
    """Return a seed, checked; None if the value is not an integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return None
    if not 0 <= value < _SEED_LIMIT:
        raise ValueError(f"generator must be from 0 to 2**63 - 1, if it is a seed, got {value}")
    return int(value)


def refuse_generator(kind: str, value: Any) -> TypeError:
    """Return the error for a generator of another library."""
    return TypeError(f"generator must be a {kind}, a seed or None, got {brief(value)}")


# Samples of fractional windows


def check_samples_dtype(dtype: str) -> None:
    """Raise an error unless the dtype of samples is a floating dtype."""
    if dtype not in FLOATS:
        raise TypeError(f"_random_samples must be of a floating dtype, got {dtype}")


def samples_shape(layout: Layout) -> tuple[int, int, int]:
    """Return the shape of the samples of an array: one for each plane and pooled axis."""
    axes = enumerate(layout.in_shape)
    planes = [s for a, s in axes if a not in layout.pooled and a != layout.channel]
    return math.prod(planes), layout.channels, len(layout.pooled)


def check_samples_shape(shape: tuple[int, ...], layout: Layout) -> None:
    """Raise an error unless samples of this shape fit the array."""
    expected = samples_shape(layout)
    if shape != expected and not (expected[0] == 1 and shape == expected[1:]):
        raise ValueError(f"_random_samples must have shape {expected}, got {shape}")


def below_one(dtype: str) -> float:
    """Return the largest number below 1 of a dtype, to which samples near 1 are rounded."""
    return 1 - 2.0 ** -_DIGITS[dtype]


# Cotangents


def cotangent(gy: Any, dtype: np.dtype[Any], expected: tuple[int, ...]) -> Array:
    """Return the cotangent `gy` as an array of the output's dtype; `expected`: the output's shape.

    Raises
    ------
    TypeError, ValueError
        See `check_cotangent`.
    """
    given = plain("gy", gy, "an array, a number or lists of equal lengths")
    if isinstance(gy, list | tuple | int | float) and given.dtype.kind in "iu":
        given = given.astype(dtype)  # Python's numbers have no dtype
    check_cotangent(gy, given.dtype, given.shape, expected)
    return given.astype(dtype, copy=False)


def check_cotangent(gy: Any, dtype: Any, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise an error unless `gy` is a cotangent of an output of the shape `expected`.

    Every floating dtype is accepted, because `gy` is converted to the dtype of the output. If the
    output has one element, a number without axes is accepted.
    """
    name = name_of(getattr(dtype, "name", dtype))  # of byte-swapped bfloat16, too
    if name not in FLOATS and getattr(dtype, "kind", "") != "f":
        came = brief(gy) if name == "object" and not shape else name_of(dtype)
        raise TypeError(f"gy must be an array of a floating dtype, got {came}")
    if shape != expected and not (shape == () and math.prod(expected) == 1):
        raise ValueError(f"gy must have the shape of the output, {expected}, got {shape}")


# Indices


def check_indices(dtype: object, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise an error unless indices have the dtype int64 and the shape `expected`."""
    if str(dtype) != "int64":
        raise TypeError(f"indices must be of dtype int64, got {dtype}")
    if shape != expected:
        raise ValueError(f"indices must have the shape of x, {expected}, got {shape}")


def numpy_generator(value: Any) -> np.random.Generator:
    """Return a NumPy generator: the value itself, or one from a seed or, for None, from entropy.

    Raises
    ------
    TypeError, ValueError
        If the value is neither a generator nor a seed, or the seed is out of range.
    """
    if isinstance(value, np.random.Generator):
        return value
    given = seed(value)
    if given is None and value is not None:
        raise refuse_generator("numpy.random.Generator", value)
    return np.random.default_rng(given)
