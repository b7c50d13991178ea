"""Random calls of every public pooling function: the one generator of the tests.

A call is a sequence of draws from a `Draw`. Hypothesis is one source of draws (`strategies.cases`),
a seeded random generator the other (`call`), which is fast enough for a million calls and repeats
a call from its seed.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

from adversarial_arrays import FINITE, LAYOUTS, VALUES, Layout, Values, rng  # noqa: E402

T = TypeVar("T")

DTYPES = (np.float32, np.float64)
FLOATS = (np.float16, ml_dtypes.bfloat16, *DTYPES)
INTEGERS = (
    np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.bool,
)  # fmt: skip
OF_TIES = ("max", "relu_max", "min", "median", "fractional_max")
OF_INTEGERS = ("max", "relu_max", "min", "median", "avg", "fractional_max", "max_unpool")
# The names of public functions up to "_pool", and two that are none: "expected" is stochastic
# pooling without training, "max_unpool" is `max_unpool2d` and the like.
KINDS = (
    "max", "relu_max", "min", "median", "stochastic", "expected", "avg", "lp", "log_mean_exp",
    "soft", "mixed", "range", "lip", "fractional_max", "max_unpool", "adaptive_max", "adaptive_avg",
    "global_max",
    "global_avg", "global_lp", "global_log_mean_exp",
)  # fmt: skip


class Draw(Protocol):
    """A source of choices."""

    def integer(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""


class Seeded:
    """A source that makes the same choices again from the same seed."""

    def __init__(self, seed: int) -> None:
        source = random.Random(seed)
        self.integer, self.choice = source.randint, source.choice


class Limits(NamedTuple):
    """The largest numbers of a call.

    `axis`: sizes of pooled axes where 1, 2 or 3 axes are pooled. `edges`: favour sizes and windows
    at the borders between algorithms, and draw some calls that must be refused. `parallel`: draw
    only inputs that are worth several threads.
    """

    axis: tuple[int, int, int]
    kernel: int
    stride: int
    padding: int
    dilation: int
    outputs: int
    edges: bool
    parallel: bool = False


FOR_ORACLE = Limits((24, 9, 6), 5, 5, 4, 3, 8, edges=False)  # which is slow
EDGES = Limits((40, 40, 40), 12, 6, 45, 42, 44, edges=True)
# Sizes beside powers of two, which are the numbers of elements in vectors.
_NEAR_VECTORS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 39, 40)
_MOST_INPUTS = 1 << 14  # of a call that is not for several threads
_MOST_OUTPUTS = 1 << 22
_MOST_WORK = 1 << 21  # products of inputs and taps; outputs of adaptive pooling


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


def one_or_each(draw: Draw, dims: int, number: Callable[[], int]) -> Any:
    """A number, one in a sequence, or one for each axis: all forms that are accepted."""
    form = draw.choice(["number", "one", "list", "tuple"])
    if form == "number":
        return number()
    if form == "one":
        return (number(),)
    each = [number() for _ in range(dims)]
    return each if form == "list" else tuple(each)


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


def _usually_small(draw: Draw, low: int, most: int, limits: Limits) -> int:
    """A number that is small three times of four if there are edges to favour."""
    if limits.edges and draw.integer(0, 3):
        most = min(most, 3)
    return draw.integer(low, most)


def _padding(draw: Draw, dims: int, number: Callable[[], int], *, named: bool) -> Any:
    """Every form of padding; `named`: also words."""
    words = ["valid", "same"] if named else []
    form = draw.choice(["numbers", "pairs", "tuple of pairs", *words])
    if form == "numbers":
        return one_or_each(draw, dims, number)
    if "pairs" in form:
        pairs = [(number(), number()) for _ in range(dims)]
        return pairs if form == "pairs" else tuple(pairs)
    return form


def _windows(
    draw: Draw, sizes: tuple[int, ...], limits: Limits, *, without_input: bool, most_taps: int
) -> dict[str, Any]:
    """kernel_size, stride, padding, dilation and ceil_mode that leave at least one output.

    `without_input`: whether windows may lie in the padding alone; `most_taps`: of a window.
    """
    dims = len(sizes)
    refused = limits.edges and draw.integer(0, 31) == 0
    wide = limits.edges and draw.integer(0, 1) == 0
    # Windows that have code of their own: small, the same along every axis.
    square = limits.edges and draw.integer(0, 1) == 0

    def each(number: Callable[[], int]) -> Any:
        return number() if square else one_or_each(draw, dims, number)

    def kernel_number() -> int:
        if square:
            return draw.integer(2, 3)
        most = draw.choice([4, limits.kernel, 40]) if limits.edges else limits.kernel
        return draw.integer(1, max(1, min(5 if wide else most, int(most_taps ** (1 / dims)))))

    def dilation_number() -> int:
        if wide:
            return draw.integer(1, draw.choice([4, 4, max(sizes) + 2]))
        return 1 + _usually_small(draw, 0, limits.dilation - 1, limits)

    def padding_number() -> int:
        if wide:  # about as wide as the reach of a window, or as the plane
            width = draw.choice([*reach, draw.choice(sizes)])
            return max(0, min(draw.integer(width - 1, width + 1), most))
        return _usually_small(draw, 0, most, limits)

    dilation = each(dilation_number)
    kernel = each(kernel_number)
    reach = [
        (k - 1) * d for k, d in zip(per_axis(kernel, dims), per_axis(dilation, dims), strict=True)
    ]
    most = limits.padding if without_input or not limits.edges else min(*reach, limits.padding)
    padding = _padding(draw, dims, padding_number, named=not wide)
    if padding != "same" and not refused:  # kernels that reach too far are made to fit
        room = [n + lo + hi for n, (lo, hi) in zip(sizes, pad_pairs(padding, dims), strict=True)]
        fits = [
            max(1, min(k, (r - 1) // d + 1))
            for k, r, d in zip(per_axis(kernel, dims), room, per_axis(dilation, dims), strict=True)
        ]
        kernel = kernel if fits == per_axis(kernel, dims) else tuple(fits)
    stride = None
    if draw.integer(0, 2):
        stride = each(lambda: draw.choice([1, 1, 2]) if square else draw.integer(1, limits.stride))
    return {
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "ceil_mode": draw.choice([False, True]),
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


def _sizes(draw: Draw, dims: int, limits: Limits) -> tuple[int, ...]:
    """Sizes of the pooled axes."""
    most = limits.axis[dims - 1]
    if not limits.edges:
        return tuple(draw.integer(1, most) for _ in range(dims))
    sizes = [draw.choice([draw.choice(_NEAR_VECTORS), draw.integer(1, most)]) for _ in range(dims)]
    if draw.integer(0, 1):  # planes that are narrower than what windows reach
        sizes[-1] = draw.integer(1, 8)
    # Small volumes reach the same code; an axis without inputs is refused, which needs few calls.
    longest = sizes.index(max(sizes))
    return tuple(
        max(0 if draw.integer(0, 15) == 0 else 1, n if dims < 3 or a == longest else n % 9)
        for a, n in enumerate(sizes)
    )


def _array(
    draw: Draw,
    dims: int,
    limits: Limits,
    *,
    channels_last: bool,
    values: Sequence[Values],
    leading: tuple[int, int],
    dtypes: Sequence[Any],
) -> tuple[np.ndarray, str, tuple[int, ...]]:
    """An array to pool over `dims` axes, how it was made, and the sizes of the pooled axes."""
    sizes = _sizes(draw, dims, limits)
    lead = [draw.integer(1, 3) for _ in range(draw.integer(*leading))]
    last = [draw.integer(1, 3)] * channels_last
    if limits.edges:
        if channels_last and draw.integer(0, 3) == 0:
            last = [draw.choice([8, 16, 17, 33, 70])]
        room = max(1, _MOST_INPUTS // max(1, math.prod((*sizes, *last))))
        if limits.parallel or (lead and draw.integer(0, 15) == 0):  # work for several threads
            lead = [*(1 for _ in lead[1:]), 5 * room] if leading[1] else lead
        elif lead and draw.integer(0, 31) == 0:
            lead[0] = 0
    dtype = draw.choice(dtypes)
    if limits.edges and draw.integer(0, 1):  # has the most algorithms
        dtype = np.float32
    made = draw.choice(WHOLE if dtype in INTEGERS else values)
    layout = draw.choice(LAYOUTS)
    x = layout.make(made.make((*lead, *sizes, *last), dtype))
    return x, f"{made.id} {layout.id} {np.dtype(dtype).name} {x.shape}", sizes


def case(
    draw: Draw,
    kind: str,
    limits: Limits,
    *,
    values: Sequence[Values] = VALUES,
    dtypes: Sequence[Any] = DTYPES,
) -> Case:
    """A call of `kind`, one of `KINDS`."""
    dims = draw.integer(2 if kind == "fractional_max" else 1, 3)
    channels_last = draw.choice([False, True])
    kwargs: dict[str, Any] = {"channels_last": channels_last}
    leading = (0, 3)
    if kind.startswith("global"):
        n = 1 if channels_last else 2
        if dims == 2 and not channels_last and draw.choice([False, True]):
            n = 0  # one plane without batch and channels
        leading = (n, n)
    x, made, sizes = _array(
        draw,
        dims,
        limits,
        channels_last=channels_last,
        values=values,
        leading=leading,
        dtypes=dtypes,
    )
    channels = _channels(x, dims, channels_last)
    kwargs |= _operands(draw, _plain(kind), channels)
    name = {"expected": "stochastic_pool", "max_unpool": "max_unpool"}.get(kind, f"{kind}_pool")
    if kind.startswith("global"):
        kwargs["keepdims"] = draw.choice([False, True])
        return Case(name, x, (), kwargs, made)
    if kind.startswith("adaptive"):
        outputs = None
        if draw.integer(0, 3):
            planes = max(1, x.size // max(1, math.prod(sizes)))
            most = min(limits.outputs, max(1, int((_MOST_WORK / planes) ** (1 / dims))))
            outputs = one_or_each(draw, dims, lambda: 1 + _usually_small(draw, 0, most - 1, limits))
        return Case(f"{name}{dims}d", x, (outputs,), kwargs, made)
    if kind == "avg":
        kwargs["count_include_pad"] = draw.choice([False, True])
        kwargs["divisor_override"] = draw.choice([None, None, 1, 7, -2])
    if kind == "fractional_max":
        kwargs |= _fractions(draw, x, sizes, channels)
    elif kind == "max_unpool":
        kwargs |= _positions(draw, x, sizes)
    else:
        everywhere = (
            kind in ("max", "relu_max", "min")
            or (kind == "lp" and not kwargs["mean"])
            or (kind == "avg" and bool(kwargs["count_include_pad"] or kwargs["divisor_override"]))
        )
        most_taps = _MOST_WORK // max(1, x.size)
        kwargs |= _windows(draw, sizes, limits, without_input=everywhere, most_taps=most_taps)
        whole = x.shape
        x, kwargs = _bounded(x, sizes, kwargs)
        made += f" cut to {x.shape}" if x.shape != whole else ""
    if kind == "lip":
        kwargs["logits"] = _logits(x)
    return Case(f"{name}{dims}d", x, (), kwargs, made)


def _bounded(
    x: np.ndarray, sizes: tuple[int, ...], kwargs: dict[str, Any]
) -> tuple[np.ndarray, dict[str, Any]]:
    """The call with fewer planes, or a larger stride, if it had too many outputs.

    Padding makes thousands of outputs of a plane of few inputs, of which there may be thousands.
    """
    dims = len(sizes)
    if kwargs["padding"] == "same":
        return x, kwargs

    def outputs(stride: Any) -> int:
        return math.prod(
            max(1, (n + low + high - (k - 1) * d - 1) // s + 2)
            for n, (low, high), k, s, d in zip(
                sizes,
                pad_pairs(kwargs["padding"], dims),
                per_axis(kwargs["kernel_size"], dims),
                per_axis(stride, dims),
                per_axis(kwargs["dilation"], dims),
                strict=True,
            )
        )

    planes = x.size // max(1, math.prod(sizes))
    each = outputs(kwargs["kernel_size"] if kwargs["stride"] is None else kwargs["stride"])
    kept = max(1, _MOST_OUTPUTS // each)
    leading = x.ndim - dims - kwargs["channels_last"]
    if planes > kept and leading:
        is_channels = leading == 1 and not kwargs["channels_last"]
        fewer = max(1, x.shape[0] * kept // planes)
        x = x[:fewer]
        for name, _ in LEARNED.values():
            if is_channels and isinstance(kwargs.get(name), np.ndarray):
                kwargs[name] = kwargs[name][:fewer]
        planes = x.size // max(1, math.prod(sizes))
    if planes * each > _MOST_OUTPUTS:
        kwargs["stride"] = EDGES.stride
    return x, kwargs


def _channels(x: np.ndarray, dims: int, channels_last: bool) -> int:
    if channels_last:
        return x.shape[-1]
    return x.shape[-dims - 1] if x.ndim > dims else 0


# Small dyadic numbers: the same in float32, in which float16 and bfloat16 are computed, too.
LEARNED = {
    "lp": ("norm_type", [0.5, 1.0, 1.5, 2.0, 2.75, 3.0, 4.0, 7.0, 30.0, np.inf]),
    "log_mean_exp": ("r", [0.25, 1.0, 3.0, -0.5, -1.0, 0.001953125]),
    "mixed": ("alpha", [0.0, 0.25, 0.5, 1.0, -1.0, 1.5]),
}


def _operands(draw: Draw, operator: str, channels: int) -> dict[str, Any]:
    """The arguments of an operator beside those of its windows."""
    kwargs: dict[str, Any] = {}
    if operator in OF_TIES:
        kwargs["ties"] = draw.choice(["first", "split", "zero"])
    if operator in (*OF_TIES, "stochastic"):
        kwargs["routes"] = draw.choice(["bytes", "packed"])
    if operator == "mixed":
        kwargs["count_include_pad"] = draw.choice([False, True])
    if operator == "lp":
        kwargs["mean"] = draw.choice([False, True])
    if operator in LEARNED:
        name, numbers = LEARNED[operator]
        each = channels and draw.choice([False, True])
        kwargs[name] = (
            np.array([draw.choice(numbers) for _ in range(channels)])
            if each
            else draw.choice(numbers)
        )
    if operator == "stochastic":
        kwargs["generator"] = draw.integer(0, 2**63 - 1)
    if operator == "expected":
        kwargs["training"] = False
    return kwargs


def _fractions(draw: Draw, x: np.ndarray, sizes: tuple[int, ...], channels: int) -> dict[str, Any]:
    """Windows of a fractional pooling, and samples that place them."""
    kernel = tuple(draw.integer(1, max(1, min(n, 5))) for n in sizes)
    outputs = tuple(draw.integer(1, max(1, n - k + 1)) for n, k in zip(sizes, kernel, strict=True))
    kind = np.dtype(np.float32 if x.dtype.type in INTEGERS else x.dtype.type)
    some = [draw.choice([0.0, 0.0625, 0.25, 0.5, 0.71875, 0.875, 0.9375]) for _ in range(5)]
    channels = channels or 1
    planes = x.size // max(1, math.prod(sizes) * channels)
    return {
        "kernel_size": kernel,
        "output_size": outputs,
        "_random_samples": np.resize(some, (planes, channels, len(sizes))).astype(kind),
    }


def _logits(x: np.ndarray) -> np.ndarray:
    """Logits for an input, in the dtype in which its sums are kept."""
    wide = x.dtype.newbyteorder("=") == np.float64
    return rng(x.shape).normal(0, 2, x.shape).astype(np.float64 if wide else np.float32)


def _positions(draw: Draw, x: np.ndarray, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Indices in the planes of the output, some of them twice, and the windows that are undone."""
    dims = len(sizes)
    most = max(k for k in range(1, 5) if k == 1 or x.size * k**dims <= _MOST_OUTPUTS)
    kernel = one_or_each(draw, dims, lambda: draw.integer(1, most))
    stride = None
    if draw.choice([False, True]):
        stride = one_or_each(draw, dims, lambda: draw.integer(1, most))
    step = per_axis(kernel if stride is None else stride, dims)
    outputs = [(n - 1) * s + k for n, s, k in zip(sizes, step, per_axis(kernel, dims), strict=True)]
    indices = rng(x.shape).integers(0, max(1, math.prod(outputs)), x.shape)
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
    if operator == "lip":
        kwargs["logits"] = _logits(np.empty(shape))
    if operator in LEARNED:
        values = {
            "lp": [2.0, 3.5, 1.75],
            "log_mean_exp": [2.0, -0.5, 0.75],
            "mixed": [0.25, 0.5, 0.75],
        }
        kwargs[LEARNED[operator][0]] = np.array(values[operator])
    return shape, kwargs


class Call(NamedTuple):
    """A call with its cotangent and its ``out=``.

    Attributes
    ----------
    case : Case
        The call.
    cotangent, cotangent_layout : Values, Layout
        What the pullback is called with.
    out_layout : Layout
        How the array lies in memory that is passed as ``out=``.
    indices : bool
        Whether ``return_indices=True`` is asked for as well, where the function has it.
    threads : int
        Number of threads.
    operand_layout : Layout
        How the arrays among the arguments lie in memory.
    carried : bool
        Whether the pullback is pickled and restored from unaligned, read-only buffers.
    overwritten : bool
        Whether the input is overwritten before the pullback, if the pullback does not read it.
    """

    case: Case
    cotangent: Values
    cotangent_layout: Layout
    out_layout: Layout
    indices: bool
    threads: int
    operand_layout: Layout
    carried: bool
    overwritten: bool


_SIGNED_ZEROS, _SUBNORMAL = (
    next(v for v in VALUES if v.id == name) for name in ("signed-zeros", "subnormal")
)
# Layouts of arrays that may be written.
_WRITABLE = [
    layout
    for layout in LAYOUTS
    if layout.id not in ("read-only", "expanded", "expanded-batch", "overlapping", "byte-swapped")
]

# Layouts that keep all values.
KEEPING = [
    layout for layout in LAYOUTS if layout.id not in ("expanded", "expanded-batch", "overlapping")
]


def call(seed: int, parallel: bool = False) -> Call:
    """The call of this seed; `parallel`: for several threads, half of them of subnormal numbers."""
    draw = Seeded(seed)
    kind = draw.choice(KINDS)
    finite = kind == "stochastic" and draw.integer(0, 7)  # other inputs are refused
    values = FINITE if finite else VALUES
    if parallel and draw.integer(0, 1):
        values = [_SUBNORMAL]
    limits = EDGES._replace(parallel=parallel)
    with np.errstate(over="ignore"):  # distinct numbers beyond float16's largest
        made = case(draw, kind, limits, values=values, dtypes=dtypes_of(kind))
    drawn = Call(
        made,
        draw.choice([_SIGNED_ZEROS, draw.choice(VALUES)]),
        draw.choice(LAYOUTS),
        draw.choice(_WRITABLE),
        draw.choice([False, True]) and made.operator in ("max", "relu_max", "min", "median"),
        draw.choice([2, 3, 5] if parallel else [1, 2, 3, 5]),
        draw.choice(KEEPING),
        draw.integer(0, 3) == 0,
        draw.choice([False, True]),
    )
    if made.fun.startswith("avg_pool") and made.x.dtype in (np.int8, np.uint8):
        made.kwargs["quantization"] = draw.choice([None, (0.1, 7), ((0.5, 3), (0.03, 120))])
    return drawn
