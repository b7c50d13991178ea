"""What the public functions do with tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from poolgrad import arguments
from poolgrad.contract import Buffer, Operator, Request, Samples, indexed, unpacked
from poolgrad.core import Layout, lay_out
from poolgrad.operators import OPERATORS, prepare
from poolgrad.recipes import may_repeat
from poolgrad.torch import elsewhere, recipes, triton
from poolgrad.torch.adapter import ADAPTERS, Adapter, Where
from poolgrad.torch.arrays import (
    DTYPES,
    as_argument,
    check_memory,
    compact,
    empty,
    grouped,
    inner_of,
    is_transformed_graph,
    laid_out,
    name_of,
    room,
    shape_of,
)
from poolgrad.torch.derivatives import LIBRARY
from poolgrad.torch.devices import on_device

_PLAIN = ("first", "bytes")  # how maxima are routed that have indices


def _define_indices() -> Any:
    """``route_indices``: routes as flat positions in the plane of `x`; no gradient.

    `samples`: those that placed the windows, or an empty tensor.
    """

    def fake(x: Tensor, routes: Tensor, samples: Tensor, rule: list[int], last: bool) -> Tensor:
        name = name_of(x.dtype)
        inner = inner_of(x, rule, last)
        layout = lay_out(grouped(rule), tuple(x.shape), last, inner, name, name)
        return empty(Buffer(layout.out_shape, layout.order, "int64"), routes)

    def run(x: Tensor, routes: Tensor, samples: Tensor, rule: list[int], last: bool) -> Tensor:
        check_memory("routes", routes)
        check_memory("samples", samples)
        where = (tuple(x.shape), last, inner_of(x, rule, last), name_of(x.dtype))
        made = prepare if x.is_cpu else triton.prepare
        ready = made("max", grouped(rule), _PLAIN, *where)
        (routes,) = laid_out((routes,), ready.residual)
        indices = room(Buffer(ready.plan.out_shape, ready.plan.order, "int64"), routes)
        placed, given = None, compact((samples,))
        if ready.plan.window.placed:
            placed = as_argument(made("fractional_max", grouped(rule), _PLAIN, *where), given)
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
        "route_indices(Tensor x, Tensor routes, Tensor samples, SymInt[] rule, bool channels_last)"
        " -> Tensor"
    )
    op = torch.ops.poolgrad.route_indices.default
    on_device(op, run, LIBRARY)
    torch.library.register_fake(op, fake, lib=LIBRARY)
    torch.library.register_vmap(op, batched, lib=LIBRARY)
    return op


_route_indices = _define_indices()


# The tensor beside the input


def _narrowed(value: Tensor, dtype: torch.dtype, like: Tensor) -> Tensor:
    """The value in a narrower type, by the rule of `arguments.within`."""
    least, largest = arguments.SIZES[name_of(dtype)]
    size = value.detach().abs()
    odd = (size != 0) & size.isfinite() & ((size < least) | (size > largest))
    value = torch.where(odd, size.clamp(least, largest).copysign(value), value)
    return value.to(device=like.device, dtype=dtype)


def _learned(operator: Operator, value: Any, x: Tensor, layout: Layout) -> Tensor:
    name = operator.argument.name if operator.argument else ""
    dtype = DTYPES[layout.sum_dtype]
    if isinstance(value, float) or (type(value) is int and abs(value) < 2**63):
        operator.check_argument([float(value)])
        (number,) = arguments.within([float(value)], layout.sum_dtype)
        return torch.full((), number, dtype=dtype, device=x.device)
    given = value
    if not isinstance(given, Tensor):  # float64 because PyTorch does not take all that NumPy has
        given = torch.as_tensor(arguments.real_numbers(name, given).astype(np.float64))
    if given.is_complex() or given.dtype == torch.bool:
        raise arguments.refuse_numbers(name, given.dtype)
    arguments.check_length(name, shape_of(given), layout.channels)
    if layout.channel < 0:  # one channel without an axis: a number
        given = given.reshape(())
    if given.dtype == torch.float64 and dtype == torch.float32:
        return _narrowed(given, dtype, x).contiguous()
    return given.to(device=x.device, dtype=dtype).contiguous()


def known_generator(value: Any) -> torch.Generator | int | None:
    """The generator or seed that was given.

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


def _seed(value: Any, x: Tensor) -> Tensor:
    known = known_generator(value)
    if isinstance(known, int):
        return torch.full((), known, dtype=torch.int64, device=x.device)
    device = x.device if known is None else known.device
    return torch.randint(2**63 - 1, (), generator=known, device=device)


def _samples(value: Samples, x: Tensor, layout: Layout) -> Tensor:
    dtype = x.dtype if x.dtype.is_floating_point else torch.float32
    shape, most = arguments.samples_shape(layout), arguments.below_one(name_of(dtype))
    if value.given is None:
        known = known_generator(value.generator)
        if isinstance(known, int):
            known = torch.Generator(x.device).manual_seed(known)
        own: Any = {"generator": known} if known is not None else {}  # compilers take no None
        drawn: Tensor = torch.rand(shape, dtype=dtype, device=x.device, **own)
        return drawn.clamp(max=most)  # compiled code draws float32 and rounds
    given = value.given
    if not isinstance(given, Tensor):
        given = torch.as_tensor(arguments.floating_samples(given).astype(np.float64))
    arguments.check_samples_dtype(name_of(given.dtype))
    arguments.check_samples_shape(shape_of(given), layout)
    given = given.to(x.device)
    samples = given.to(dtype)
    if given.dtype != dtype:  # rounding takes no sample into [0, 1) or out: the kernels check them
        samples = torch.where(given < 1, samples.clamp(max=most), samples)
        negative = samples.clamp(max=-torch.finfo(dtype).tiny)
        samples = torch.where(given < 0, negative, samples)
    return samples.reshape(shape).contiguous()


def _indices(value: Any, x: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"indices must be a tensor, got {type(value).__qualname__}")
    arguments.check_indices(value.dtype, shape_of(value), shape_of(x))
    return value


def _argument_of(request: Request, x: Tensor, rule: list[int]) -> tuple[Tensor, ...]:
    """The tensor beside the input, if there is one."""
    operator = OPERATORS[request.operator]
    argument = operator.argument
    if argument is None:
        return ()
    (value,) = request.arguments
    if argument.kind == "seed":
        return (_seed(value, x),)
    if argument.kind == "indices":
        return (_indices(value, x),)
    dtype = name_of(x.dtype)
    if not operator.accepts(dtype):
        raise operator.refuse_dtype(dtype)
    layout = lay_out(request.rule, shape_of(x), request.channels_last, -1, dtype, dtype)
    if argument.kind == "samples":
        return (_samples(value, x, layout),)
    return (_learned(operator, value, x, layout),)


def asarray(x: Tensor) -> Tensor:
    """The tensor, if the kernels can read it.

    Raises
    ------
    TypeError
        If its numbers do not lie in memory one by one.
    """
    if x.layout is not torch.strided or x.is_quantized or x.is_nested:
        came = "nested" if x.is_nested else "quantized" if x.is_quantized else str(x.layout)
        raise TypeError(f"x must be a dense tensor (of layout torch.strided), got a {came} one")
    return x


def recipe(request: Request) -> Callable[[Tensor], Tensor] | None:
    """See `recipes`."""
    if not may_repeat(request):
        return None
    x, rule = request.x, [n for axis in request.rule for n in axis]
    last, options = request.channels_last, _options(request, x)
    where = Where(rule, list(x.shape), last, inner_of(x, rule, last), options)
    ready = prepare(
        request.operator, request.rule, options, tuple(x.shape), last, where.inner, name_of(x.dtype)
    )
    return recipes.recipe(request, ready, where, _argument_of(request, x, rule))


def perform(request: Request) -> Any:
    """Do what a public function describes."""
    x = asarray(request.x)
    if request.out is not None:
        raise TypeError("out is for NumPy arrays; tensors take none")
    if x.device.type not in elsewhere.HERE or is_transformed_graph():
        return elsewhere.perform(request, _perform)
    return _perform(request)


def vjp(request: Request) -> Any:
    """Refuse: tensors are differentiable as they are."""
    raise TypeError(
        "vjp is for NumPy and Dask; tensors are differentiable as they are: use y.backward() or "
        "torch.func.vjp"
    )


def _perform(request: Request) -> Any:
    x = request.x
    rule = [n for axis in request.rule for n in axis]
    adapter = ADAPTERS[request.operator]
    given = _argument_of(request, x, rule)
    if request.return_indices:
        return _with_indices(request, adapter, x, given, rule)
    options = _options(request, x)
    if adapter.operator.learned:  # numbers need no gradient
        options = (*options, not isinstance(request.arguments[0], int | float))
    y = adapter.forward_of(x, *given, rule, request.channels_last, *options)
    if adapter.kept:
        y = y[0]
    return y if request.keepdims else _squeezed(y, request)


def _options(request: Request, x: Tensor) -> tuple[Any, ...]:
    """Integers have no gradient that could be split."""
    if x.is_floating_point() or "split" not in request.options:
        return request.options
    return indexed(request.options)


def _squeezed(y: Tensor, request: Request) -> Tensor:
    first = y.dim() - len(request.rule) - request.channels_last
    return y.squeeze(tuple(range(first, first + len(request.rule))))


def _with_indices(
    request: Request, adapter: Adapter, x: Tensor, given: tuple[Tensor, ...], rule: list[int]
) -> tuple[Tensor, Tensor]:
    last, options = request.channels_last, unpacked(_options(request, x))
    y, routes = adapter.forward_of(x, *given, rule, last, *options)
    if options != indexed(options):
        routes = adapter.ops[""](x.detach(), *given, rule, last, *indexed(options))[1]
    placed = request.rule and isinstance(request.arguments[0] if given else None, Samples)
    samples = given[0] if placed else x.new_empty(0)
    indices = _route_indices(x.detach(), routes, samples, rule, last)
    if request.keepdims:
        return y, indices
    return _squeezed(y, request), _squeezed(indices, request)
