"""Hypothesis strategies for the arguments of pooling functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from nasty import LAYOUTS, VALUES, Layout

DTYPES = (np.float32, np.float64)
LARGEST = {1: 24, 2: 9, 3: 6}  # of a pooled axis: the oracle is slow


@dataclass
class Case:
    """A call: ``poolgrad.<fun>(x, *args, **kwargs)``."""

    fun: str
    x: np.ndarray = field(repr=False)
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: str = ""  # how x was made, for the report of a failure

    def gradient(self, shape: tuple[int, ...]) -> np.ndarray:
        """A gradient of small integers: their sums are exact, in any order."""
        r = np.random.default_rng(list(shape))
        return r.integers(-4, 5, shape).astype(self.x.dtype.newbyteorder("="))


def one_or_each(dims: int, numbers: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    """A number, one in a sequence, or one for each axis: all forms that are accepted."""
    each = st.lists(numbers, min_size=dims, max_size=dims)
    return st.one_of(numbers, numbers.map(lambda n: (n,)), each, each.map(tuple))


def paddings(dims: int, most: int = 4) -> st.SearchStrategy[Any]:
    """Every form of padding."""
    number = st.integers(0, most)
    pairs = st.lists(st.tuples(number, number), min_size=dims, max_size=dims)
    return st.one_of(
        one_or_each(dims, number), pairs, pairs.map(tuple), st.sampled_from(["valid", "same"])
    )


def per_axis(value: Any, dims: int) -> list[Any]:
    """What the forms mean, axis by axis; written apart from the code under test."""
    if isinstance(value, int):
        return [value] * dims
    return list(value) * dims if len(value) == 1 else list(value)


def pad_pairs(padding: Any, dims: int) -> list[tuple[int, int]]:
    """(low, high) for each axis; "same" is not for here."""
    if padding == "valid":
        return [(0, 0)] * dims
    values = per_axis(padding, dims)
    return [v if isinstance(v, tuple) else (v, v) for v in values]


@st.composite
def windows(draw: st.DrawFn, sizes: tuple[int, ...]) -> dict[str, Any]:
    """kernel_size, stride, padding, dilation and ceil_mode that leave at least one output."""
    dims = len(sizes)
    padding = draw(paddings(dims))
    dilation = draw(one_or_each(dims, st.integers(1, 3)))
    kernel = draw(one_or_each(dims, st.integers(1, 5)))
    if padding != "same":  # kernels that reach too far are made to fit
        room = [n + lo + hi for n, (lo, hi) in zip(sizes, pad_pairs(padding, dims), strict=True)]
        fits = [
            min(k, (r - 1) // d + 1)
            for k, r, d in zip(per_axis(kernel, dims), room, per_axis(dilation, dims), strict=True)
        ]
        kernel = kernel if fits == per_axis(kernel, dims) else tuple(fits)
    return {
        "kernel_size": kernel,
        "stride": draw(st.one_of(st.none(), one_or_each(dims, st.integers(1, 5)))),
        "padding": padding,
        "dilation": dilation,
        "ceil_mode": draw(st.booleans()),
    }


@st.composite
def arrays(
    draw: st.DrawFn,
    dims: int,
    *,
    channels_last: bool = False,
    values: list[Any] = VALUES,
    layouts: list[Layout] = LAYOUTS,
    leading: tuple[int, int] = (0, 3),
) -> tuple[np.ndarray, str, tuple[int, ...]]:
    """An array to pool over `dims` axes, how it was made, and the sizes of the pooled axes."""
    sizes = tuple(draw(st.lists(st.integers(1, LARGEST[dims]), min_size=dims, max_size=dims)))
    lead = tuple(draw(st.lists(st.integers(1, 3), min_size=leading[0], max_size=leading[1])))
    last = (draw(st.integers(1, 3)),) if channels_last else ()
    dtype = draw(st.sampled_from(DTYPES))
    made, layout = draw(st.sampled_from(values)), draw(st.sampled_from(layouts))
    x = layout.make(made.make(lead + sizes + last, dtype))
    return x, f"{made.id} {layout.id} {dtype.__name__} {x.shape}", sizes


@st.composite
def cases(draw: st.DrawFn, kind: str, **how: Any) -> Case:
    """A call of `kind`: "max" or "avg", alone or after "adaptive_" or "global_"."""
    dims = draw(st.integers(1, 3))
    channels_last = draw(st.booleans())
    kwargs: dict[str, Any] = {"channels_last": channels_last}
    if kind.startswith("global"):
        n = 1 if channels_last else 2
        how["leading"] = (n, n)
    x, made, sizes = draw(arrays(dims, channels_last=channels_last, **how))
    args: tuple[Any, ...] = ()
    if "max" in kind:
        kwargs["ties"] = draw(st.sampled_from(["first", "split", "zero"]))
    if kind.startswith("global"):
        kwargs["keepdims"] = draw(st.booleans())
        return Case(f"{kind}_pool", x, args, kwargs, made)
    if kind.startswith("adaptive"):
        args = (draw(st.one_of(one_or_each(dims, st.integers(1, 8)), st.none())),)
        return Case(f"{kind}_pool{dims}d", x, args, kwargs, made)
    kwargs |= draw(windows(sizes))
    if kind == "avg":
        kwargs["count_include_pad"] = draw(st.booleans())
        kwargs["divisor_override"] = draw(st.sampled_from([None, None, 1, 7, -2]))
    return Case(f"{kind}_pool{dims}d", x, args, kwargs, made)
