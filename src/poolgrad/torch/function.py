"""Computes the calls of the public functions for tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from poolgrad import arguments, portable
from poolgrad.call_cache import is_cacheable
from poolgrad.composition import Functions
from poolgrad.interface import Request, Selection, indexed, unpacked
from poolgrad.operands import Parameter, Samples, WindowSamples
from poolgrad.operators import Prepared
from poolgrad.torch import call_cache, engines
from poolgrad.torch._compat import is_transformed, mode_of, without_transforms
from poolgrad.torch.adapter import ADAPTERS, Static
from poolgrad.torch.arrays import (
    DTYPES,
    allocate,
    as_operand,
    checked,
    dense,
    empty,
    inner_of,
    is_in_graph,
    is_transformed_graph,
    laid_out,
    name_of,
    prepare_call,
    shape_of,
    spec_of,
    stored,
)
from poolgrad.torch.devices import register
from poolgrad.torch.engines import Engine
from poolgrad.torch.library import library
from poolgrad.windows import WindowKind, flatten

LIBRARY = library(__name__)


def _define_indices() -> Any:
    """Define ``route_indices``, which converts routes to flat positions in the plane of `x`.

    `samples` are those of fractional windows, or an empty tensor.
    """

    def ready_for(x: Tensor, window: list[int], last: bool) -> Prepared:
        spec = spec_of(window)
        name = "fractional_max" if spec.kind is WindowKind.FRACTIONAL else "max"
        inner, dtype = inner_of(x, spec, last), name_of(x.dtype)
        return prepare_call(name, spec, Selection(), tuple(x.shape), last, inner, dtype)

    def engine_for(x: Tensor, window: list[int], last: bool) -> tuple[Prepared, Engine]:
        ready = ready_for(x, window, last)
        return ready, engines.engine_of(ready.operator, ready.options, x)

    def launches(x: Tensor, routes: Tensor, samples: Tensor, *where: Any) -> bool:
        return engine_for(x, *where)[1] is Engine.TRITON

    def fake(x: Tensor, routes: Tensor, samples: Tensor, window: list[int], last: bool) -> Tensor:
        return empty(ready_for(x, window, last).per_output("int64"), routes)

    def run(x: Tensor, routes: Tensor, samples: Tensor, window: list[int], last: bool) -> Tensor:
        ready, engine = engine_for(x, window, last)
        if engine is Engine.PORTABLE:
            given = samples if ready.layout.window.fractional else None
            found = portable.indices(ready.layout, routes, given)
            return stored(ready.per_output("int64"), found)
        ready = engines.with_kernels(engine, ready)
        (routes,) = laid_out((routes,), ready.residual)
        indices = allocate(ready.per_output("int64"), routes)
        placed = as_operand(ready, (samples,) * ready.operator.operand.count)
        threads = torch.get_num_threads()
        ready.plan.kernels.route_indices(routes, indices, placed, threads)
        return indices

    def batched(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, routes: Tensor, samples: Tensor, *args: Any
    ) -> Any:
        if in_dims[2] is not None:
            samples = samples.movedim(in_dims[2], 0)
        elif samples.numel():
            samples = samples.expand(info.batch_size, *samples.shape).contiguous()
        moved = (x.movedim(in_dims[0], 0), routes.movedim(in_dims[1], 0), samples.contiguous())
        return op(*moved, *args), 0

    LIBRARY.define(
        "route_indices(Tensor x, Tensor routes, Tensor samples, SymInt[] window, "
        "bool channels_last) -> Tensor"
    )
    op = torch.ops.poolgrad.route_indices.default
    register(op, run, launches, LIBRARY)
    torch.library.register_fake(op, fake, lib=LIBRARY)
    torch.library.register_vmap(op, batched, lib=LIBRARY)
    return op


_route_indices = _define_indices()


# The extra operand


def _narrowed(value: Tensor, dtype: torch.dtype, like: Tensor) -> Tensor:
    """Convert a value to a narrower dtype, clipped by `arguments.within`."""
    least, largest = arguments.SIZES[name_of(dtype)]
    size = value.detach().abs()
    odd = (size != 0) & size.isfinite() & ((size < least) | (size > largest))
    value = torch.where(odd, size.clamp(least, largest).copysign(value), value)
    return value.to(device=like.device, dtype=dtype)


def known_generator(value: Any) -> torch.Generator | int | None:
    """Return the generator or seed, checked.

    Raises
    ------
    TypeError, ValueError
        If it is neither.
    """
    if value is None or isinstance(value, torch.Generator):
        return value
    seed = arguments.seed(value)
    if seed is None:
        raise arguments.refuse_generator("torch.Generator", value)
    return seed


def seeded(generator: Any) -> AbstractContextManager[Any]:
    """Return a context for draws: those of a seed are the same in every call, also under vmap."""
    mapped = isinstance(generator, int) and not torch.compiler.is_compiling() and is_transformed()
    return without_transforms() if mapped else nullcontext()


class _Converter:
    """Converts extra operands to tensors; see `operands.Converter`."""

    def parameter(self, operand: Parameter, value: Any, x: Tensor, ready: Prepared) -> Tensor:
        layout = ready.layout
        dtype = DTYPES[layout.sum_dtype]
        if isinstance(value, float) or (type(value) is int and abs(value) < 2**63):
            ready.operator.check_operand([float(value)])
            (number,) = arguments.within([float(value)], layout.sum_dtype)
            return torch.full((), number, dtype=dtype, device=x.device)
        if isinstance(value, Tensor):
            given = checked(operand.name, value)
        else:  # float64: PyTorch lacks some of NumPy's dtypes
            numbers = arguments.real_numbers(operand.name, value).astype(np.float64)
            given = torch.as_tensor(numbers, dtype=torch.float64, device="cpu")
        if given.is_complex() or given.dtype == torch.bool:
            raise arguments.refuse_numbers(operand.name, given.dtype)
        arguments.check_length(operand.name, shape_of(given), layout.channels)
        if layout.channel < 0:  # without a channel axis there is one number
            given = given.reshape(())
        if given.dtype == torch.float64 and dtype == torch.float32:
            return _narrowed(given, dtype, x).contiguous()
        return given.to(device=x.device, dtype=dtype).contiguous()

    def seed(self, value: Any, x: Tensor) -> Tensor:
        known = known_generator(value)
        if isinstance(known, int):
            return torch.full((), known, dtype=torch.int64, device=x.device)
        device = x.device if known is None else known.device
        return torch.randint(2**63 - 1, (), generator=known, dtype=torch.int64, device=device).to(
            x.device
        )

    def samples(self, operand: WindowSamples, value: Samples, x: Tensor, ready: Prepared) -> Tensor:
        layout = ready.layout
        dtype = x.dtype if x.dtype.is_floating_point else torch.float32
        shape, most = arguments.samples_shape(layout), arguments.below_one(name_of(dtype))
        if value.values is None:
            known = known_generator(value.generator)
            context = seeded(known)
            if isinstance(known, int):  # no generator draws on the device meta
                device = torch.device("cpu") if x.is_meta else x.device
                known = torch.Generator(device=device).manual_seed(known)
            # Compilers do not support None.
            own: Any = {} if known is None else {"generator": known}
            device = x.device if known is None else known.device
            with context:
                drawn: Tensor = torch.rand(shape, dtype=dtype, device=device, **own).to(x.device)
            return drawn.clamp(max=most)  # compiled code draws in float32 and rounds
        if isinstance(value.values, Tensor):
            given = checked(operand.name, value.values)
        else:
            numbers = arguments.floating_samples(value.values).astype(np.float64)
            given = torch.as_tensor(numbers, dtype=torch.float64, device="cpu")
        arguments.check_samples_dtype(name_of(given.dtype))
        arguments.check_samples_shape(shape_of(given), layout)
        given = given.to(x.device)
        samples = given.to(dtype)
        if given.dtype != dtype:  # rounding takes no sample into [0, 1) or out: the kernels check
            samples = torch.where(given < 1, samples.clamp(max=most), samples)
            negative = samples.clamp(max=-torch.finfo(dtype).tiny)
            samples = torch.where(given < 0, negative, samples)
        return samples.reshape(shape).contiguous()

    def indices(self, value: Any, x: Tensor) -> Tensor:
        if not isinstance(value, Tensor):
            raise TypeError(f"indices must be a tensor, got {type(value).__qualname__}")
        arguments.check_indices(value.dtype, shape_of(value), shape_of(x))
        return checked("indices", value)


_CONVERTER = _Converter()


def _operands(request: Request, ready: Prepared) -> tuple[Tensor, ...]:
    """Convert the extra operand, if there is one."""
    operand, x = ready.operator.operand, request.x
    return tuple(operand.convert(_CONVERTER, value, x, ready) for value in request.operands)


def asarray(x: Tensor) -> Tensor:
    """Return the input, of which only the shape is read, if it is dense."""
    return dense("x", x)


def operand(name: str, value: Any) -> Tensor:
    """Return a tensor of a composed operator, checked."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__qualname__}")
    return checked(name, value)


def dtype_name(x: Tensor) -> str:
    """Return the name of the dtype of a tensor."""
    return name_of(x.dtype)


def _largest(x: Tensor, axis: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.amax(x, axis, keepdims)


def _where(condition: Tensor, x: Any, y: Any) -> Tensor:
    with mode_of(condition):  # PyTorch makes tensors of numbers
        return torch.where(condition, x, y)


def _converted(x: Tensor, dtype: str) -> Tensor:
    return x.to(DTYPES[dtype])


def functions(x: Tensor) -> Functions:
    """Return the functions that a composed operator may call."""
    return Functions(torch.exp, _where, _largest, _converted, Tensor.detach)


def bound_call(request: Request) -> Callable[[Tensor], Tensor] | None:
    """Bind a call, or return None if it cannot be cached; see `call_cache`."""
    if not is_cacheable(request):
        return None
    options = _options(request)
    if request.return_indices and options != indexed(options):
        return None  # the gradient needs other routes than the indices
    ready = _prepared(request)
    return call_cache.bound_call(request, ready, _operands(request, ready))


def perform(request: Request) -> Any:
    """Compute the call of a public function."""
    asarray(request.x)
    if request.out is not None:
        raise TypeError("out is accepted only if x is a NumPy array, got a tensor x")
    if is_transformed_graph():
        return _differentiable(request)
    with mode_of(request.x):
        return _perform(request)


def refuses(function: Any, x: Tensor, arguments: dict[str, Any]) -> bool:
    """Whether a public function does not accept the arguments of a call, rather than fails in it.

    A caller that lets PyTorch compute what poolgrad refuses would otherwise hide faults.
    """
    try:
        request: Request = function.describe(x, **arguments)
        ready = _prepared(request)
        operands = _operands(request, ready)
        if ready.operator.operand.determines_windows and operands[0].is_cpu:
            return not bool(((operands[0] >= 0) & (operands[0] < 1)).all())
    except (TypeError, ValueError):
        return True
    return False


def vjp(request: Request) -> Any:
    """Raise an error, because autograd differentiates tensors."""
    raise TypeError(
        "vjp supports NumPy and Dask arrays; PyTorch differentiates its own tensors: use "
        "y.backward() or torch.func.vjp"
    )


def _options(request: Request) -> Any:
    """Return the options; integers have no gradient to split."""
    options = request.options
    if options._fields == Selection._fields and not request.x.is_floating_point():
        options = options._replace(ties="first") if options.ties == "split" else options
    return unpacked(options) if request.return_indices else options


def _prepared(request: Request) -> Prepared:
    """Prepare the call."""
    x, spec, last = request.x, request.spec, request.channels_last
    # A graph may run on another memory format than the traced tensor.
    inner = -1 if is_in_graph() else inner_of(x, spec, last)
    where = (shape_of(x), last, inner, name_of(x.dtype))
    return prepare_call(request.operator, spec, _options(request), *where)


def _forward(request: Request) -> tuple[Any, tuple[Tensor, ...]]:
    """Return the result of the forward operator, and its extra operand."""
    adapter, x = ADAPTERS[request.operator], request.x
    # Python's numbers need no gradient.
    tracked = not all(isinstance(value, int | float) for value in request.operands)
    if not is_in_graph():
        ready = _prepared(request)
        operands = _operands(request, ready)
        return adapter.differentiable_forward(Static(ready, tracked), x, *operands), operands
    # The operator of the graph checks the call, both while tracing and while running.
    operand = adapter.operator.operand
    ready_if = _prepared(request) if operand.uses_layout else None
    operands = tuple(operand.convert(_CONVERTER, v, x, ready_if) for v in request.operands)
    rest = adapter.arguments(request.spec, _options(request), request.channels_last, tracked)
    return adapter.ops[""](x, *operands, *rest), operands


def _perform(request: Request) -> Any:
    x, adapter = request.x, ADAPTERS[request.operator]
    made, operands = _forward(request)
    y = made[0] if adapter.kept else made
    if not request.return_indices:
        return y if request.keepdims else _squeezed(y, request)
    routes, options, last = made[1], _options(request), request.channels_last
    if options != indexed(options):
        rest = adapter.arguments(request.spec, indexed(options), last, True)
        routes = adapter.ops[""](x.detach(), *operands, *rest)[1]
    samples = operands[0] if adapter.operator.operand.determines_windows else x.new_empty(0)
    found = _route_indices(x.detach(), routes, samples, flatten(request.spec), last)
    if request.keepdims:
        return y, found
    return _squeezed(y, request), _squeezed(found, request)


def _differentiable(request: Request) -> Any:
    """Pool with operations of PyTorch, for which a compiler supports all transformations."""
    from poolgrad.torch.graph import pool_in_graph  # imports the compiler, which takes a second

    ready = _prepared(request)
    operands = _operands(request, ready)
    options = unpacked(ready.options) if "routes" in ready.options._fields else ready.options
    both = request.return_indices
    made = pool_in_graph(
        request.x,
        operands[0] if operands else None,
        request.operator,
        flatten(request.spec),
        request.channels_last,
        both,
        *options,
    )
    if request.keepdims:
        return made
    return tuple(_squeezed(m, request) for m in made) if both else _squeezed(made, request)


def _squeezed(y: Tensor, request: Request) -> Tensor:
    first = y.dim() - request.spec.dims - request.channels_last
    return y.squeeze(tuple(range(first, first + request.spec.dims)))
