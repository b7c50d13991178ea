"""The front end for NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolgrad import arguments, recipes
from poolgrad.composition import Functions
from poolgrad.contract import Buffer, Operator, Request, Samples, indexed
from poolgrad.core import LARGE, Kind, Memory, Plan, get_num_threads, inner_axis
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
    array: Array = x
    if type(x) is not np.ndarray:
        array = arguments.plain(name, x, "an array or lists of equal lengths")
    if operator is not None and not operator.accepts(array.dtype.name):
        raise operator.refuse_dtype(array.dtype)
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    if any(s % array.itemsize for s in array.strides) or not array.flags.aligned:
        return array.copy("K")  # a field of a record, or a view of bytes
    return array


def operand(name: str, value: Any) -> Array:
    """An array of a composed operator."""
    return asarray(value, name=name)


def dtype_name(x: Array) -> str:
    """The name of the dtype of an array."""
    return str(x.dtype.name)


def functions(x: Array) -> Functions:
    """What a composed operator may call."""
    return Functions(
        np.exp, np.where, np.max, lambda x, dtype: x.astype(dtype_named(dtype)), lambda x: x
    )


def namespace(x: Array) -> Any:
    """The array-API functions of NumPy."""
    from array_api_compat import array_namespace

    return array_namespace(x)


def pullback_of(request: Request) -> tuple[Array, Callable[[Array], Array]]:
    """The output and the pullback of a part of a composed operator."""
    from poolgrad.pullback import of_numpy

    return of_numpy(request)


def cotangent_of(gy: Any, dtype: str, shape: tuple[int, ...]) -> Array:
    """The gradient of an output, checked and converted to the dtype of the output."""
    given = arguments.cotangent(gy, dtype_named(dtype), shape)
    return asarray(given, name="gy").reshape(shape)


def handed(array: Array) -> Array:
    """An array as the kernels take it: as numbers that Python's buffers know."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def allocate(buffer: Buffer) -> Array:
    """The array that a buffer describes, not initialised."""
    shape, order, name = buffer
    dtype = dtype_named(name)
    size = math.prod(shape)
    if size * dtype.itemsize >= LARGE:
        block = np.frombuffer(memoryview(Memory(size * dtype.itemsize)), np.uint8)
        memory: Array = block.view(dtype).reshape([shape[a] for a in order])
    else:
        memory = np.empty([shape[a] for a in order], dtype)
    return memory.transpose([order.index(a) for a in range(len(order))])


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


def _learned(value: Any, ready: Prepared) -> tuple[Array, int]:
    plan, operator = ready.plan, ready.operator
    name = operator.argument.name if operator.argument else ""
    given = arguments.real_numbers(name, value)
    numbers = given.astype(np.float64).ravel().tolist()
    operator.check_argument(numbers)
    arguments.check_length(name, given.shape, plan.channels)
    return np.array(arguments.within(numbers, plan.sum_dtype), plan.sum_dtype), len(numbers)


def _generator(value: Any) -> np.random.Generator:
    if isinstance(value, np.random.Generator):
        return value
    seed = arguments.seed(value)
    if seed is None and value is not None:
        raise arguments.refuse_generator("numpy.random.Generator", value)
    return np.random.default_rng(seed)


def _seed(value: Any) -> int:
    seed = arguments.seed(value)
    return int(_generator(value).integers(2**63)) if seed is None else seed


def _samples(value: Samples, plan: Plan, dtype: np.dtype[Any]) -> Array:
    kind = dtype if dtype.kind in "fV" else np.dtype(np.float32)
    shape = arguments.samples_shape(plan)
    if value.given is None:
        samples = _generator(value.generator).random(shape)
    else:
        samples = arguments.floating_samples(value.given)
        arguments.check_samples_shape(samples.shape, plan)
        outside = samples[~((samples >= 0) & (samples < 1))]
        if outside.size:
            raise ValueError(f"_random_samples must be in [0, 1), got {outside.flat[0]}")
    rounded = samples.astype(kind).reshape(shape)
    return rounded.clip(max=arguments.below_one(kind.name)).astype(kind)


def _indices(value: Any, x: Array) -> Array:
    given = asarray(value, name="indices")
    arguments.check_indices(given.dtype, given.shape, x.shape)
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


_KIND = Kind(
    np.ndarray,
    parts=("dtype",),
    plain=(),
    modes=(),
    quiet=(),
    told="by buffer",
)
recipes.KNOWN[np.ndarray] = recipes.Known(_KIND.call, _KIND.key)


def _maker(buffer: Buffer) -> Callable[[], Array]:
    shape, order, dtype = buffer.shape, buffer.order, np.dtype(buffer.dtype)
    if order == tuple(range(len(shape))) and math.prod(shape) * dtype.itemsize < LARGE:
        return partial(np.empty, shape, dtype)
    return partial(allocate, buffer)


def recipe(request: Request) -> Callable[[Array], Array] | None:
    """See `recipes`."""
    if not recipes.may_repeat(request):
        return None
    x = asarray(request.x, OPERATORS[request.operator])
    if x is not request.x or handed(x) is not x:
        return None
    ready = prepared(request, x)
    argument = argument_of(request, ready, x)
    pool = recipes.forward(ready, request.options, _maker, get_num_threads, argument)
    return recipes.squeezed(request, ready, pool)


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
    prepared(request, asarray(request.x, OPERATORS[request.operator]))
    request = replace(request, options=indexed(request.options))
    made = call(request)
    y = made.output() if request.out is None else _target(request.out, made)
    (routes,) = map(allocate, made.ready.residual)
    made.run(y, (routes,))
    indices = indices_of(made.ready, made.argument, routes)
    return _into(request.out, made.shaped(y)), made.shaped(indices)


def routes_of(request: Request, ready: Prepared, kept: Array) -> Array:
    """Routes as one number for each output; read-only."""
    plan = ready.plan
    if not ready.operator.route_bits(plan.window, *request.options):
        return kept
    routes = allocate(Buffer(plan.out_shape, plan.order, plan.route_dtype))
    plan.kernels.unpack_routes(kept, handed(routes), get_num_threads())
    routes.flags.writeable = False
    return routes


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
    fits = out.flags.aligned and out.transpose(plan.order).flags.c_contiguous
    return out if fits else made.output()


def _into(out: Array | None, y: Array) -> Array:
    if out is None or out is y:
        return y
    np.copyto(out, y)
    return out
