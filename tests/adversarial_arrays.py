"""Arrays that break pooling code, each with the reason why it is here.

Values and layouts are independent: any ``layout.make(values.make(shape, dtype))`` is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

Array = np.ndarray


class Values(NamedTuple):
    """What is in the array."""

    id: str
    reason: str
    make: Callable[[tuple[int, ...], Any], Array]


class Layout(NamedTuple):
    """How the array lies in memory; `make` keeps the values, except where the reason says so."""

    id: str
    reason: str
    make: Callable[[Array], Array]


def rng(shape: tuple[int, ...]) -> np.random.Generator:
    """The same numbers for the same shape in every run."""
    return np.random.default_rng([*shape, 7])


def _normal(shape: tuple[int, ...], dtype: Any) -> Array:
    return rng(shape).standard_normal(shape).astype(dtype)


def _distinct(shape: tuple[int, ...], dtype: Any) -> Array:
    return rng(shape).permutation(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def _small_integers(shape: tuple[int, ...], dtype: Any) -> Array:
    return rng(shape).integers(-1, 2, shape).astype(dtype)


def _sprinkled(*specials: float) -> Callable[[tuple[int, ...], Any], Array]:
    def make(shape: tuple[int, ...], dtype: Any) -> Array:
        x, r = _normal(shape, dtype), rng(shape)
        for special in specials:
            x[r.random(shape) < 0.2] = special
        return x

    return make


def _full(value: float) -> Callable[[tuple[int, ...], Any], Array]:
    return lambda shape, dtype: np.full(shape, value, dtype)


def _huge(shape: tuple[int, ...], dtype: Any) -> Array:
    largest = float(ml_dtypes.finfo(dtype).max) / 256  # so that sums over 125 places stay finite
    return (rng(shape).uniform(-1, 1, shape) * largest).astype(dtype)


def _subnormal(shape: tuple[int, ...], dtype: Any) -> Array:
    smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    return (rng(shape).integers(-9, 9, shape) * smallest).astype(dtype)


def _signed_zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    return np.copysign(np.zeros(shape), rng(shape).integers(0, 2, shape) - 0.5).astype(dtype)


VALUES = [
    Values("normal", "the ordinary case", _normal),
    Values("distinct", "no ties: exactly one winner a window", _distinct),
    Values("ties", "ties in every window", _small_integers),
    Values("constant", "every place of every window is a winner", _full(1.0)),
    Values("zeros", "what follows a ReLU that let nothing through", _full(0.0)),
    Values("signed-zeros", "-0 equals +0 and has other bits", _signed_zeros),
    Values("nan", "a NaN is neither greater nor smaller", _sprinkled(np.nan)),
    Values("all-nan", "no number to fall back on", _full(np.nan)),
    Values("inf", "inf - inf and 0 * inf are NaN", _sprinkled(np.inf, -np.inf)),
    Values("all-minus-inf", "equals the value that padding stands for", _full(-np.inf)),
    Values("nan-inf", "NaN must win over infinity", _sprinkled(np.nan, np.inf, -np.inf)),
    Values("huge", "near the largest number", _huge),
    Values("subnormal", "flushed to zero by careless vector code", _subnormal),
]
FINITE = [v for v in VALUES if v.id not in {"nan", "all-nan", "inf", "all-minus-inf", "nan-inf"}]


def _as_is(x: Array) -> Array:
    return np.ascontiguousarray(x)


def _reversed(x: Array) -> Array:
    back = tuple(slice(None, None, -1) for _ in x.shape)
    return np.ascontiguousarray(x[back])[back]


def _first_axis_innermost(x: Array) -> Array:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0)


def _second_axis_innermost(x: Array) -> Array:
    axis = min(1, x.ndim - 1)
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, axis, -1)), -1, axis)


def _swapped_last(x: Array) -> Array:
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if x.ndim > 1 else x.copy()


def _every_other(x: Array) -> Array:
    # a wrong step reads a number that wins
    highest = {"f": 6e4, "V": 6e4, "b": True}.get(x.dtype.kind) or np.iinfo(x.dtype).max
    whole = np.full([2 * n for n in x.shape], highest, x.dtype)
    part = whole[tuple(slice(1, None, 2) for _ in x.shape)]
    part[...] = x
    return part


def _read_only(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


def _byte_swapped(x: Array) -> Array:
    return x.astype(x.dtype.newbyteorder("S"))


def _expanded(x: Array) -> Array:
    return np.broadcast_to(x[..., :1], x.shape)


def _expanded_batch(x: Array) -> Array:
    return np.broadcast_to(x[:1], x.shape)


def _field(x: Array) -> Array:
    records = np.zeros(x.shape, [("flag", "u1"), ("value", x.dtype)])
    records["value"] = x
    return records["value"]


def _unaligned(x: Array) -> Array:
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:]
    view = raw.view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def _overlapping(x: Array) -> Array:
    flat = np.ascontiguousarray(x).ravel()
    strides = (x.itemsize,) * x.ndim
    return np.lib.stride_tricks.as_strided(flat, x.shape, strides, writeable=False)


LAYOUTS = [
    Layout("contiguous", "the ordinary case", _as_is),
    Layout("reversed", "negative strides on every axis", _reversed),
    Layout("fortran", "all axes in the other order", np.asfortranarray),
    Layout("channels-last-memory", "what convolutions like", _second_axis_innermost),
    Layout("batch-innermost", "the batch axis is the contiguous one", _first_axis_innermost),
    Layout("transposed", "height is contiguous, width is not", _swapped_last),
    Layout("every-other", "a slice of a larger array: no axis is contiguous", _every_other),
    Layout("read-only", "may be a memory-mapped file", _read_only),
    Layout("byte-swapped", "comes out of FITS and NetCDF files", _byte_swapped),
    Layout("expanded", "stride 0 along the width (only the first column's values)", _expanded),
    Layout("expanded-batch", "stride 0 along the first axis (its first values)", _expanded_batch),
    Layout("record-field", "strides are no multiple of the item size", _field),
    Layout("unaligned", "the address is no multiple of the item size", _unaligned),
    Layout("overlapping", "all strides alike: elements share memory (other values)", _overlapping),
]

SHAPES = [  # of 2-D pooling with a 2x2 window that fits, or fits with padding
    ("zero-batch", (0, 3, 4, 4)),
    ("zero-channels", (2, 0, 4, 4)),
    ("one-element", (1, 1, 1, 1)),
    ("no-leading-axes", (4, 5)),
    ("five-leading-axes", (1, 2, 1, 2, 1, 4, 5)),
    ("one-row", (2, 1, 1, 7)),
    ("one-column", (1, 2, 7, 1)),
]
