"""The front end for NumPy arrays."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolgrad.contract import FLOATS, INTEGERS, Buffer, Operator, Request, Samples
from poolgrad.core import Layout, Plan, get_num_threads, inner_axis
from poolgrad.operators import OPERATORS, Prepared, prepare

Array = NDArray[Any]


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype of this name; bfloat16 is not NumPy's own."""
    if name == "bfloat16":
        import ml_dtypes

        small: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return small
    return np.dtype(name)


def asarray(x: Any, operator: Operator | None = None, name: str = "x") -> Array:
    """An array that the kernels can read; a copy only if it has to be one.

    Raises
    ------
    TypeError
        If its dtype is not one that the operator takes, or it has a mask.
    """
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} must have no mask; fill it first, as in {name}.filled(-np.inf)")
    try:
        array = np.asarray(x)
    except ValueError as error:  # lists of unequal lengths
        raise ValueError(f"{name} must be an array or lists of equal lengths: {error}") from error
    if operator is not None and not operator.accepts(array.dtype.name):
        raise operator.refuse_dtype(array.dtype)
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    if any(s % array.itemsize for s in array.strides) or not array.flags.aligned:
        return array.copy(
            "K"
        )  # a field of a record: its items do not lie at multiples of their size
    return array


def handed(array: Array) -> Array:
    """An array as the kernels take it: as numbers that Python's buffers know."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def allocate(buffer: Buffer) -> Array:
    """The array that a buffer describes, not initialised."""
    shape, order, name = buffer
    dtype = dtype_named(name)
    if order == tuple(range(len(shape))):
        return np.empty(shape, dtype)
    memory = np.empty([shape[a] for a in order], dtype)
    return memory.transpose(np.argsort(order))


def prepared(request: Request, x: Array) -> Prepared:
    """The operator and plan for this input."""
    strides = tuple(s // x.itemsize for s in x.strides)
    inner = inner_axis(x.shape, strides, request.rule, request.channels_last)
    return prepare(
        request.operator,
        request.rule,
        request.options,
        x.shape,
        request.channels_last,
        inner,
        x.dtype.name,
    )


# The array beside the input


def real_numbers(name: str, value: Any) -> Array:
    """A number or an array of them, of any real dtype."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must have no mask")
    try:
        given = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be a number or an array of them: {error}") from error
    if given.dtype.name not in (*FLOATS, *INTEGERS[:-1], "uint16", "uint32", "uint64"):
        raise TypeError(f"{name} must be made of real numbers, got {value!r}")
    return given


def floating_samples(value: Any) -> Array:
    """Samples as they were given, of any floating dtype."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("_random_samples must have no mask")
    try:
        given = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"_random_samples must be an array: {error}") from error
    if given.dtype.name not in FLOATS:
        raise TypeError(f"_random_samples must be of a floating dtype, got {value!r}")
    return given


def _learned(value: Any, ready: Prepared) -> tuple[Array, int]:
    plan, operator = ready.plan, ready.operator
    name = operator.argument.name if operator.argument else ""
    given = real_numbers(name, value)
    operator.check_argument(given.astype(np.float64).ravel().tolist())
    with np.errstate(over="ignore", under="ignore"):  # the largest and smallest of a wider type
        values = given.astype(plan.sum_dtype).reshape(-1)
    if given.shape not in ((), (plan.channels,)):
        raise ValueError(
            f"{name} must be a number or one for each of {plan.channels} channels, "
            f"got shape {given.shape}"
        )
    return values, values.size


def _generator(value: Any) -> np.random.Generator:
    if isinstance(value, np.random.Generator):
        return value
    if value is None:
        return np.random.default_rng()
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        if not 0 <= value < 2**63:
            raise ValueError(f"generator must be from 0 to 2**63 - 1, if it is a seed, got {value}")
        return np.random.default_rng(int(value))
    raise TypeError(f"generator must be a numpy.random.Generator, a seed or None, got {value!r}")


def _seed(value: Any) -> int:
    generator = _generator(value)
    if isinstance(value, int | np.integer):
        return int(value)
    return int(generator.integers(2**63))


def _samples(value: Samples, plan: Plan, dtype: np.dtype[Any]) -> Array:
    kind = dtype if dtype.kind in "fV" else np.dtype(np.float32)
    shape = samples_shape(plan)
    if value.given is None:
        drawn = _generator(value.generator).random(shape).astype(kind)
        return np.where(drawn < 1, drawn, _below_one(kind)).astype(kind)  # it may be rounded up
    given = floating_samples(value.given)
    check_samples(given.shape, plan)
    outside = given[~((given >= 0) & (given < 1))]
    if outside.size:
        raise ValueError(f"_random_samples must be in [0, 1), got {outside.flat[0]}")
    samples = given.astype(kind).reshape(shape)
    return np.where(samples < 1, samples, _below_one(kind)).astype(kind)


def _below_one(dtype: np.dtype[Any]) -> float:
    """The largest number below 1."""
    digits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
    return 1 - 2.0 ** -digits[dtype.name]


def samples_shape(plan: Layout) -> tuple[int, int, int]:
    """Of the samples that place an array's windows: one number for each plane and pooled axis."""
    planes = [s for a, s in enumerate(plan.in_shape) if a not in plan.pooled and a != plan.channel]
    return math.prod(planes), plan.channels, len(plan.pooled)


def check_samples(shape: tuple[int, ...], plan: Layout) -> None:
    """Raise unless samples of this shape are for this array."""
    expected = samples_shape(plan)
    if shape != expected and not (expected[0] == 1 and shape == expected[1:]):
        raise ValueError(f"_random_samples must have shape {expected}, got {shape}")


def _indices(value: Any, x: Array) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("indices must have no mask")
    given = asarray(value, name="indices")
    if given.dtype != np.int64:
        raise TypeError(f"indices must be of dtype int64, got {given.dtype}")
    if given.shape != x.shape:
        raise ValueError(f"indices must have the shape of x, {x.shape}, got {given.shape}")
    return given


def argument_of(request: Request, ready: Prepared, x: Array) -> Any:
    """The array beside the input, checked, as the kernels take it."""
    argument = ready.operator.argument
    if argument is None:
        return None
    (value,) = request.arguments
    if argument.kind == "learned":
        return _learned(value, ready)
    if argument.kind == "seed":
        return _seed(value)
    if argument.kind == "samples":
        return handed(_samples(value, ready.plan, x.dtype))
    return _indices(value, x)


# Pooling


class Call(NamedTuple):
    """One call of an operator, ready to run."""

    request: Request
    x: Array
    ready: Prepared
    argument: Any

    def run(self, y: Array, residual: tuple[Array, ...]) -> None:
        """Fill the output and the residual."""
        operator, plan = self.ready.operator, self.ready.plan
        kept = tuple(map(handed, residual))
        options = self.request.options
        operator.forward(
            plan, handed(self.x), self.argument, handed(y), kept, get_num_threads(), *options
        )

    def output(self) -> Array:
        """Room for the output."""
        plan = self.ready.plan
        return allocate(Buffer(plan.out_shape, plan.order, plan.out_dtype))

    def shaped(self, y: Array) -> Array:
        """The result without its pooled axes, unless they are to be kept."""
        return y if self.request.keepdims else y.squeeze(self.ready.plan.pooled)


def call(request: Request) -> Call:
    """What a public function describes, with everything checked."""
    x = asarray(request.x, OPERATORS[request.operator])
    ready = prepared(request, x)
    return Call(request, x, ready, argument_of(request, ready, x))


def perform(request: Request) -> Any:
    """Do what a public function describes."""
    if request.return_indices:
        return _with_indices(request)
    made = call(request)
    target = made.output() if request.out is None else _target(request.out, made)
    made.run(target, ())
    return _into(request.out, made.shaped(target))


def _with_indices(request: Request) -> tuple[Array, Array]:
    """The output and, for each, the flat position of its (first) winner in its plane."""
    if request.options:  # whatever the ties: an index is of one winner
        request = replace(request, options=("first",))
    made = call(request)
    y = made.output() if request.out is None else _target(request.out, made)
    (routes,) = map(allocate, made.ready.residual)
    made.run(y, (routes,))
    return _into(request.out, y), indices_of(made.ready, made.argument, routes)


def indices_of(ready: Prepared, argument: Any, routes: Array) -> Array:
    """Routes as flat positions in their plane."""
    plan = ready.plan
    indices = allocate(Buffer(plan.out_shape, plan.order, "int64"))
    samples = argument if plan.window.placed else None
    plan.kernels.route_indices(routes, indices, samples, get_num_threads())
    return indices


def _target(out: Any, made: Call) -> Array:
    """Where to pool to: `out` itself, if the kernels can write it as it lies."""
    plan, dtype = made.ready.plan, dtype_named(made.ready.plan.out_dtype)
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise TypeError(f"out must be a NumPy array without a mask, got {type(out).__qualname__}")
    if out.shape != plan.out_shape:
        raise ValueError(f"out must have shape {plan.out_shape}, got {out.shape}")
    if out.dtype != dtype or not out.dtype.isnative:
        raise TypeError(f"out must be of dtype {dtype}, got {out.dtype}")
    if not out.flags.writeable:
        raise ValueError("out must be writeable, got a read-only array")
    beside = made.x, *(a for a in (made.argument,) if isinstance(a, np.ndarray))
    if any(np.may_share_memory(out, a) for a in beside):
        return made.output()
    return out if out.transpose(plan.order).flags.c_contiguous else made.output()


def _into(out: Array | None, y: Array) -> Array:
    if out is None or out is y:
        return y
    np.copyto(out, y)
    return out
