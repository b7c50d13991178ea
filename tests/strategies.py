"""Hypothesis strategies for the arguments of pooling functions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

from nasty import LAYOUTS, VALUES, Layout, Values, rng  # noqa: E402

DTYPES = (np.float32, np.float64)
FLOATS = (np.float16, ml_dtypes.bfloat16, *DTYPES)
INTEGERS = (
    np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.bool,
)  # fmt: skip
OF_TIES = ("max", "relu_max", "min", "median", "fractional_max")
OF_INTEGERS = ("max", "relu_max", "min", "median", "avg", "fractional_max", "max_unpool")
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

    @property
    def operator(self) -> str:
        """Its name in the table: "max" of "adaptive_max_pool2d", and so on."""
        if self.kwargs.get("training") is False:
            return "expected"
        return re.sub(r"^(adaptive|global)_|(_pool)?(\dd)?$", "", self.fun)


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


def dtypes_of(kind: str) -> tuple[Any, ...]:
    """Every dtype that a kind of pooling takes."""
    return FLOATS + INTEGERS if _plain(kind) in OF_INTEGERS else FLOATS


def _plain(kind: str) -> str:
    return kind.removeprefix("adaptive_").removeprefix("global_")


def _of_whole_range(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if dtype == np.bool:
        return rng(shape).random(shape) < 0.5
    bounds = np.iinfo(dtype)
    x = rng(shape).integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
    return np.where(rng(shape).random(shape) < 0.2, bounds.min, x).astype(dtype)


def _few(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return rng(shape).integers(0, 3, shape).astype(dtype)


WHOLE = [
    Values("whole-range", "beyond 2**53, and the lowest of all", _of_whole_range),
    Values("few", "ties in every window", _few),
]  # fmt: skip


@st.composite
def arrays(
    draw: st.DrawFn,
    dims: int,
    *,
    channels_last: bool = False,
    values: list[Any] = VALUES,
    layouts: list[Layout] = LAYOUTS,
    leading: tuple[int, int] = (0, 3),
    dtypes: tuple[Any, ...] = DTYPES,
) -> tuple[np.ndarray, str, tuple[int, ...]]:
    """An array to pool over `dims` axes, how it was made, and the sizes of the pooled axes."""
    sizes = tuple(draw(st.lists(st.integers(1, LARGEST[dims]), min_size=dims, max_size=dims)))
    lead = tuple(draw(st.lists(st.integers(1, 3), min_size=leading[0], max_size=leading[1])))
    last = (draw(st.integers(1, 3)),) if channels_last else ()
    dtype = draw(st.sampled_from(dtypes))
    made = draw(st.sampled_from(WHOLE if dtype in INTEGERS else values))
    layout = draw(st.sampled_from(layouts))
    x = layout.make(made.make(lead + sizes + last, dtype))
    return x, f"{made.id} {layout.id} {dtype.__name__} {x.shape}", sizes


@st.composite
def cases(draw: st.DrawFn, kind: str, **how: Any) -> Case:
    """A call of `kind`: what the name of a public function has before "_pool".

    "expected" is stochastic pooling without training, "max_unpool" what it says.
    """
    dims = draw(st.integers(2 if kind == "fractional_max" else 1, 3))
    channels_last = draw(st.booleans())
    kwargs: dict[str, Any] = {"channels_last": channels_last}
    if kind.startswith("global"):
        n = 1 if channels_last else 2
        if dims == 2 and not channels_last and draw(st.booleans()):
            n = 0  # one plane without batch and channels
        how["leading"] = (n, n)
    x, made, sizes = draw(arrays(dims, channels_last=channels_last, **how))
    channels = _channels(x, dims, channels_last)
    kwargs |= draw(beside(_plain(kind), channels))
    name = {"expected": "stochastic_pool", "max_unpool": "max_unpool"}.get(kind, f"{kind}_pool")
    if kind.startswith("global"):
        kwargs["keepdims"] = draw(st.booleans())
        return Case(name, x, (), kwargs, made)
    if kind.startswith("adaptive"):
        outputs = draw(st.one_of(one_or_each(dims, st.integers(1, 8)), st.none()))
        return Case(f"{name}{dims}d", x, (outputs,), kwargs, made)
    if kind == "fractional_max":
        kwargs |= draw(fractions(x, sizes, channels))
    elif kind == "max_unpool":
        kwargs |= draw(positions(x, sizes))
    else:
        kwargs |= draw(windows(sizes))
    if kind == "avg":
        kwargs["count_include_pad"] = draw(st.booleans())
        kwargs["divisor_override"] = draw(st.sampled_from([None, None, 1, 7, -2]))
    return Case(f"{name}{dims}d", x, (), kwargs, made)


def _channels(x: np.ndarray, dims: int, channels_last: bool) -> int:
    if channels_last:
        return x.shape[-1]
    return x.shape[-dims - 1] if x.ndim > dims else 0


# Small dyadic numbers: the same in float32, in which float16 and bfloat16 are computed, too.
LEARNED = {
    "lp": ("norm_type", [0.5, 1.0, 1.5, 2.0, 2.75, 3.0, 4.0, 7.0, 30.0, np.inf]),
    "lse": ("r", [0.25, 1.0, 3.0, -0.5, -1.0, 0.001953125]),
    "mixed": ("alpha", [0.0, 0.25, 0.5, 1.0, -1.0, 1.5]),
}


@st.composite
def beside(draw: st.DrawFn, operator: str, channels: int) -> dict[str, Any]:
    """What an operator takes beside its windows."""
    kwargs: dict[str, Any] = {}
    if operator in OF_TIES:
        kwargs["ties"] = draw(st.sampled_from(["first", "split", "zero"]))
    if operator in (*OF_TIES, "stochastic"):
        kwargs["routes"] = draw(st.sampled_from(["bytes", "packed"]))
    if operator == "mixed":
        kwargs["count_include_pad"] = draw(st.booleans())
    if operator == "lp":
        kwargs["mean"] = draw(st.booleans())
    if operator in LEARNED:
        name, numbers = LEARNED[operator]
        number = st.sampled_from(numbers)
        each = st.lists(number, min_size=channels, max_size=channels).map(np.array)
        kwargs[name] = draw(st.one_of(number, each) if channels else number)
    if operator == "stochastic":
        kwargs["generator"] = draw(st.integers(0, 2**63 - 1))
    if operator == "expected":
        kwargs["training"] = False
    return kwargs


@st.composite
def fractions(
    draw: st.DrawFn, x: np.ndarray, sizes: tuple[int, ...], channels: int
) -> dict[str, Any]:
    """Windows of a fractional pooling, and samples that place them."""
    kernel = tuple(draw(st.integers(1, min(n, 5))) for n in sizes)
    outputs = tuple(draw(st.integers(1, n - k + 1)) for n, k in zip(sizes, kernel, strict=True))
    kind = np.dtype(np.float32 if x.dtype.type in INTEGERS else x.dtype.type)
    sample = st.sampled_from([0.0, 0.0625, 0.25, 0.5, 0.71875, 0.875, 0.9375])
    channels = channels or 1
    shape = (x.size // (int(np.prod(sizes)) * channels), channels, len(sizes))
    count = int(np.prod(shape))
    samples = draw(st.lists(sample, min_size=count, max_size=count))
    return {
        "kernel_size": kernel,
        "output_size": outputs,
        "_random_samples": np.array(samples).reshape(shape).astype(kind),
    }


@st.composite
def positions(draw: st.DrawFn, x: np.ndarray, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Indices in the planes of the output, some of them twice, and the windows that are undone."""
    dims = len(sizes)
    kernel = draw(one_or_each(dims, st.integers(1, 4)))
    stride = draw(st.one_of(st.none(), one_or_each(dims, st.integers(1, 4))))
    step = per_axis(kernel if stride is None else stride, dims)
    outputs = [(n - 1) * s + k for n, s, k in zip(sizes, step, per_axis(kernel, dims), strict=True)]
    indices = rng(x.shape).integers(0, np.prod(outputs), x.shape)
    return {"kernel_size": kernel, "stride": stride, "indices": indices}


def example(name: str, channels_last: bool = False) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The shape of an input for a public function, and a call whose windows overlap and stick out.

    Three channels; learned arguments for each of them.
    """
    dims = int(name[-2]) if name.endswith("d") else 2
    sizes = (4, 5, 3)[:dims]
    shape = (2, *sizes, 3) if channels_last else (2, 3, *sizes)
    kwargs: dict[str, Any] = {"channels_last": channels_last}
    if name.startswith("adaptive"):
        kwargs["output_size"] = 3
    elif name.startswith("fractional"):
        samples = rng((dims,)).choice([0.0, 0.25, 0.625, 0.9375], (2, 3, dims))
        kwargs |= {"kernel_size": 2, "output_size": 2, "_random_samples": samples}
    elif name.startswith("max_unpool"):
        planes = [rng((n,)).permutation(np.prod(sizes) * 2**dims) for n in range(6)]
        indices = np.array([p[: np.prod(sizes)] for p in planes]).reshape(2, 3, *sizes)
        kwargs["kernel_size"] = 2
        kwargs["indices"] = np.moveaxis(indices, 1, -1).copy() if channels_last else indices
    elif not name.startswith("global"):
        kwargs |= {"kernel_size": 3, "stride": 2, "padding": 1}
    operator = re.sub(r"^global_|_pool(\dd)?$", "", name)
    if operator == "stochastic":
        kwargs["generator"] = 3
    if operator in LEARNED:
        values = {"lp": [2.0, 3.5, 1.75], "lse": [2.0, -0.5, 0.75], "mixed": [0.25, 0.5, 0.75]}
        kwargs[LEARNED[operator][0]] = np.array(values[operator])
    return shape, kwargs
