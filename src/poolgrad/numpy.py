"""The front end for NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolgrad import arguments, call_cache
from poolgrad.composition import Functions
from poolgrad.core import LARGE, CachedBlock, TensorSpec, get_num_threads, inner_axis
from poolgrad.interface import Buffer, Operator, Request, indexed, with_memory
from poolgrad.operands import Parameter, Samples, WindowSamples
from poolgrad.operators import OPERATORS, Prepared, prepare
from poolgrad.windows import Window

Array = NDArray[Any]


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the dtype of this name; ml_dtypes defines bfloat16."""
    if name == "bfloat16":
        import ml_dtypes

        small: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return small
    return np.dtype(name)


@lru_cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype.name)  # cached, because NumPy builds the string at every access


def asarray(x: Any, operator: Operator | None = None, name: str = "x") -> Array:
    """Convert an input to an array that the kernels can read, without a copy if possible.

    Raises
    ------
    TypeError
        If the operator does not support the dtype, or the array has a mask.
    """
    array: Array = x
    if type(x) is not np.ndarray:
        array = arguments.plain(name, x, "an array or lists of equal lengths")
    if operator is not None and not operator.accepts(_name_of(array.dtype)):
        raise operator.refuse_dtype(array.dtype)
    return readable(array)


def is_readable(array: Array) -> bool:
    """Whether the kernels can read the array itself."""
    # An itemsize of 0 (dtype V0) is refused later, like other dtypes.
    step = array.itemsize or 1
    in_steps = not any(s % step for s in array.strides)
    return array.dtype.isnative and in_steps and array.flags.aligned


def readable(array: Array) -> Array:
    """Return the array in the form that the kernels read, without a copy if possible.

    Every array that comes from a caller, another process or a task of Dask passes through this
    function before a kernel reads it.
    """
    if is_readable(array):
        return array
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array.copy("K")  # a field of a record, a view of bytes, or a part of a message


def placeholder(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return what describes a contiguous array: it has no memory and must not be read."""
    steps = [*accumulate(reversed(shape[1:]), mul, initial=dtype.itemsize)]
    strides = steps[::-1][: len(shape)]
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides, writeable=False)


def read_only(array: Array) -> Array:
    """Return a view that cannot be made writeable: its base is not an array of NumPy."""
    return np.asarray(array.data.toreadonly())


def laid_out(arrays: Sequence[Array], buffers: tuple[Buffer, ...]) -> tuple[Array, ...]:
    """Return the arrays of a residual in the memory formats of their buffers.

    Pickles store arrays in row-major order, and the kernels read some without their strides.
    """

    def laid(array: Array, order: tuple[int, ...]) -> Array:
        back = [order.index(a) for a in range(len(order))]
        return np.ascontiguousarray(array.transpose(order)).transpose(back)

    return tuple(laid(a, b.order) for a, b in zip(arrays, buffers, strict=False))


def restored(kind: Callable[..., Any], *state: Any) -> Any:
    """Return ``kind(*state)`` for a state from a pickle, whose arrays may be unaligned."""

    def taken(value: Any) -> Any:
        if type(value) in (list, tuple):
            return tuple(map(taken, value))
        return readable(value) if isinstance(value, np.ndarray) else value

    return kind(*map(taken, state))


def operand(name: str, value: Any) -> Array:
    """Convert an argument of a composed operator to an array."""
    return asarray(value, name=name)


def dtype_name(x: Array) -> str:
    """Return the name of the dtype of an array."""
    return _name_of(x.dtype)


def functions(x: Array) -> Functions:
    """Return the functions that a composed operator may call."""
    return Functions(
        np.exp, np.where, np.max, lambda x, dtype: x.astype(dtype_named(dtype)), lambda x: x
    )


def namespace(x: Array) -> Any:
    """Return the array-API namespace of NumPy."""
    from array_api_compat import array_namespace

    return array_namespace(x)


def pullback_of(request: Request) -> tuple[Array, Callable[[Array], Array]]:
    """Compute the output and the pullback of a part of a composed operator."""
    from poolgrad.pullback import of_numpy

    return of_numpy(request)


def cotangent_of(gy: Any, dtype: str, shape: tuple[int, ...]) -> Array:
    """Check a cotangent and convert it to the dtype of the output."""
    given = arguments.cotangent(gy, dtype_named(dtype), shape)
    return asarray(given, name="gy").reshape(shape)


def as_buffer(array: Array) -> Array:
    """Return a view that supports the buffer protocol: bfloat16 is viewed as uint16."""
    return array.view(np.uint16) if _name_of(array.dtype) == "bfloat16" else array


def allocate(buffer: Buffer) -> Array:
    """Allocate the array that a buffer describes, without initialising it."""
    shape, order, dtype = buffer.shape, buffer.order, dtype_named(buffer.dtype)
    if buffer.elements * dtype.itemsize >= LARGE:
        block = with_memory(CachedBlock, buffer, dtype.itemsize)
        flat = np.frombuffer(memoryview(block), np.uint8)
        memory: Array = flat.view(dtype).reshape([shape[a] for a in order])
    else:
        memory = np.empty([shape[a] for a in order], dtype)
    return memory.transpose([order.index(a) for a in range(len(order))])


def prepared(request: Request, x: Array) -> Prepared:
    """Prepare the call for this input."""
    strides = tuple(s // x.itemsize for s in x.strides)
    last = request.channels_last
    inner = inner_axis(x.shape, strides, request.spec, last)
    name = _name_of(x.dtype)
    return prepare(request.operator, request.spec, request.options, x.shape, last, inner, name)


# The extra operand


class _Converter:
    """Converts extra operands to NumPy arrays; see `operands.Converter`."""

    def parameter(self, operand: Parameter, value: Any, x: Array, ready: Prepared) -> Array:
        return operand.checked(value, ready).ravel()

    def seed(self, value: Any, x: Array) -> int:
        seed = arguments.seed(value)
        return int(arguments.numpy_generator(value).integers(2**63)) if seed is None else seed

    def samples(self, operand: WindowSamples, value: Samples, x: Array, ready: Prepared) -> Array:
        kind = x.dtype if x.dtype.kind in "fV" else np.dtype(np.float32)
        shape = arguments.samples_shape(ready.layout)
        if value.values is None:
            samples = arguments.numpy_generator(value.generator).random(shape)
        else:
            samples = operand.checked(value.values, ready.layout)
        rounded = samples.astype(kind, order="C").reshape(shape)  # the kernels read no strides
        return as_buffer(rounded.clip(max=arguments.below_one(kind.name)).astype(kind, order="C"))

    def indices(self, value: Any, x: Array) -> Array:
        given = asarray(value, name="indices")
        arguments.check_indices(given.dtype, given.shape, x.shape)
        return given


_CONVERTER = _Converter()


def operand_of(request: Request, ready: Prepared, x: Array) -> Any:
    """Check the extra operand and convert it to the form of the kernels."""
    operand = ready.operator.operand
    if not operand.count:
        return None
    array = operand.convert(_CONVERTER, request.operands[0], x, ready)
    return operand.kernel_form(array, np.size(array), int)


# Pooling


class Call(NamedTuple):
    """A prepared call of an operator, with its arrays."""

    request: Request
    x: Array
    ready: Prepared
    operand: Any

    def run(self, y: Array, residual: tuple[Array, ...]) -> None:
        """Compute the output and the residual."""
        kept = tuple(map(as_buffer, residual))
        self.ready.forward(as_buffer(self.x), self.operand, as_buffer(y), kept, get_num_threads())

    def output(self) -> Array:
        """Allocate the output."""
        return allocate(self.ready.output)

    def shaped(self, y: Array) -> Array:
        """Remove the pooled axes from the result, unless the request keeps them."""
        return y if self.request.keepdims else y.squeeze(self.ready.layout.pooled)


def call(request: Request) -> Call:
    """Prepare the call of a public function."""
    x = asarray(request.x, OPERATORS[request.operator])
    ready = prepared(request, x)
    return Call(request, x, ready, operand_of(request, ready, x))


KIND = TensorSpec(
    np.ndarray,
    parts=("dtype",),
    required=(),
    global_state=(),
    required_state=(),
    protocol="by buffer",
)
call_cache.LOOKUPS[np.ndarray] = call_cache.Lookup(KIND.call, KIND.key)


def maker(buffer: Buffer) -> Callable[[], Array]:
    """Return a function that allocates the array of a buffer, as the kernels take it."""
    if buffer.dtype == "bfloat16":
        buffer = buffer._replace(dtype="uint16")
    shape, order, dtype = buffer.shape, buffer.order, np.dtype(buffer.dtype)
    if order == tuple(range(len(shape))) and buffer.elements * dtype.itemsize < LARGE:
        return partial(np.empty, shape, dtype)
    return partial(allocate, buffer)


def bound_call(request: Request) -> Callable[[Array], Array] | None:
    """Bind a call, or return None if it cannot be cached; see `call_cache`."""
    if not (call_cache.is_cacheable(request) and is_readable(request.x)):
        return None
    made = _call_for_indices(request) if request.return_indices else call(request)
    if not is_direct(made):
        return None
    pool = call_cache.forward(
        made.ready, maker, get_num_threads, made.operand, indices=request.return_indices
    )
    return call_cache.squeezed(request, made.ready, pool)


def is_direct(call: Call) -> bool:
    """Whether the kernels take the caller's array itself."""
    return call.x is call.request.x and as_buffer(call.x) is call.x


def perform(request: Request) -> Any:
    """Compute the call of a public function."""
    if request.return_indices:
        return _with_indices(request)
    made = call(request)
    target = made.output() if request.out is None else _target(request.out, made)
    made.run(target, ())
    return _into(request.out, made.shaped(target))


def _call_for_indices(request: Request) -> Call:
    OPERATORS[request.operator].check(Window(()), *request.options)  # before they are replaced
    return call(replace(request, options=indexed(request.options)))


def _with_indices(request: Request) -> tuple[Array, Array]:
    """Compute the output and the flat position of the first winner of each output."""
    made = _call_for_indices(request)
    y = made.output() if request.out is None else _target(request.out, made)
    (routes,) = map(allocate, made.ready.residual)
    made.run(y, (routes,))
    indices = indices_of(made.ready, made.operand, routes)
    return _into(request.out, made.shaped(y)), made.shaped(indices)


def routes_of(ready: Prepared, kept: Array) -> Array:
    """Unpack routes to one number for each output; read-only."""
    routes = kept
    if ready.route_bits:
        routes = allocate(ready.per_output(ready.layout.route_dtype))
        ready.plan.kernels.unpack_routes(kept, as_buffer(routes), get_num_threads())
    return read_only(routes)


def indices_of(ready: Prepared, operand: Any, routes: Array) -> Array:
    """Convert routes to flat positions in their plane."""
    indices = allocate(ready.per_output("int64"))
    samples = operand if ready.operator.operand.determines_windows else None
    ready.plan.kernels.route_indices(routes, indices, samples, get_num_threads())
    return indices


def _target(out: Any, made: Call) -> Array:
    """Return the array to write: `out` itself if the kernels can write it, else a new array."""
    plan, dtype = made.ready.layout, dtype_named(made.ready.layout.out_dtype)
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise TypeError(f"out must be a NumPy array without a mask, got {type(out).__qualname__}")
    if out.shape != plan.out_shape:
        raise ValueError(f"out must have shape {plan.out_shape}, got {out.shape}")
    if _name_of(out.dtype) != dtype.name:  # in any byte order
        raise TypeError(f"out must be of dtype {dtype}, got {out.dtype}")
    if not out.flags.writeable:
        raise ValueError("out must be writeable, got a read-only array")
    if _overlaps_itself(out):
        raise ValueError(
            "out must have its own memory for each element, got an array of shape "
            f"{out.shape} with strides {out.strides}"
        )
    inputs = made.x, *(a for a in (made.operand,) if isinstance(a, np.ndarray))
    if any(np.may_share_memory(out, a) for a in inputs):
        return made.output()
    fits = readable(out) is out and out.transpose(plan.order).flags.c_contiguous
    return out if fits else made.output()


def _overlaps_itself(array: Array) -> bool:
    """Whether elements share memory: an axis steps less than the extent of the axes inside it."""
    extent = array.itemsize
    axes = zip(array.strides, array.shape, strict=True)
    for step, size in sorted((abs(step), size) for step, size in axes if size > 1):
        if step < extent:
            return array.size > 0
        extent += step * (size - 1)
    return False


def _into(out: Array | None, y: Array) -> Array:
    if out is None or out is y:
        return y
    np.copyto(out, y)
    return out
