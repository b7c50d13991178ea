"""What the public functions do with tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poolgrad.contract import Buffer, Request, Samples
from poolgrad.core import Layout, lay_out
from poolgrad.numpy import check_samples, floating_samples, real_numbers, samples_shape
from poolgrad.operators import OPERATORS, prepare
from poolgrad.torch.adapter import ADAPTERS, LIBRARY, Adapter
from poolgrad.torch.arrays import (
    DTYPES,
    as_argument,
    empty,
    grouped,
    handed,
    inner_of,
    laid_out,
    name_of,
)


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
        where = (tuple(x.shape), last, inner_of(x, rule, last), name_of(x.dtype))
        ready = prepare("max", grouped(rule), ("first",), *where)
        (routes,) = laid_out((routes,), ready.residual)
        indices = empty(Buffer(ready.plan.out_shape, ready.plan.order, "int64"), routes)
        placed, samples = None, samples.contiguous()
        if ready.plan.window.placed:
            placed = as_argument(
                prepare("fractional_max", grouped(rule), ("first",), *where), (samples,)
            )
        threads = torch.get_num_threads()
        ready.plan.kernels.route_indices(handed(routes), handed(indices), placed, threads)
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
    LIBRARY.impl("route_indices", run, "CPU")
    torch.library.register_fake(op, fake, lib=LIBRARY)
    torch.library.register_vmap(op, batched, lib=LIBRARY)
    return op


_route_indices = _define_indices()


# The tensor beside the input


def _learned(name: str, value: Any, x: Tensor, layout: Layout) -> Tensor:
    dtype = DTYPES[layout.sum_dtype]
    if isinstance(value, Tensor):
        if value.is_complex() or value.dtype == torch.bool:
            raise TypeError(f"{name} must be made of real numbers, got {value.dtype}")
        given = value.to(device=x.device, dtype=dtype).contiguous()
    elif isinstance(value, float) or (type(value) is int and abs(value) < 2**63):
        return torch.full((), value, dtype=dtype, device=x.device)
    else:
        given = torch.as_tensor(real_numbers(name, value)).to(device=x.device, dtype=dtype)
    if given.dim() and given.shape != (layout.channels,):
        raise ValueError(
            f"{name} must be a number or one for each of {layout.channels} channels, "
            f"got shape {tuple(given.shape)}"
        )
    return given


def _whole_seed(value: int) -> int:
    if not 0 <= value < 2**63:
        raise ValueError(f"generator must be from 0 to 2**63 - 1, if it is a seed, got {value}")
    return value


def _generator(value: Any, x: Tensor) -> torch.Generator | None:
    if value is None or isinstance(value, torch.Generator):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return torch.Generator(x.device).manual_seed(_whole_seed(value))
    raise TypeError(f"generator must be a torch.Generator, a seed or None, got {value!r}")


def _seed(value: Any, x: Tensor) -> Tensor:
    if isinstance(value, int) and not isinstance(value, bool):
        return torch.full((), _whole_seed(value), dtype=torch.int64)
    return torch.randint(2**63 - 1, (), generator=_generator(value, x))


def _samples(value: Samples, x: Tensor, layout: Layout) -> Tensor:
    dtype = x.dtype if x.dtype.is_floating_point else torch.float32
    shape = samples_shape(layout)
    if value.given is None:
        generator = _generator(value.generator, x)
        return torch.rand(shape, dtype=dtype, device=x.device, generator=generator)
    given = value.given
    if not isinstance(given, Tensor):
        given = torch.as_tensor(floating_samples(given))
    if not given.is_floating_point():
        raise TypeError(f"_random_samples must be of a floating dtype, got {given.dtype}")
    check_samples(tuple(given.shape), layout)
    return given.to(device=x.device, dtype=dtype).reshape(shape).contiguous()


def _indices(value: Any, x: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"indices must be a tensor, got {type(value).__qualname__}")
    if value.dtype != torch.int64:
        raise TypeError(f"indices must be of dtype int64, got {value.dtype}")
    if value.shape != x.shape:
        raise ValueError(
            f"indices must have the shape of x, {tuple(x.shape)}, got {tuple(value.shape)}"
        )
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
    layout = lay_out(request.rule, tuple(x.shape), request.channels_last, -1, dtype, dtype)
    if argument.kind == "samples":
        return (_samples(value, x, layout),)
    return (_learned(argument.name, value, x, layout),)


def perform(request: Request) -> Any:
    """Do what a public function describes."""
    x: Tensor = request.x
    if request.out is not None:
        raise TypeError("out is for NumPy arrays; tensors take none")
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
    if x.is_floating_point() or request.options != ("split",):
        return request.options
    return ("first",)


def _squeezed(y: Tensor, request: Request) -> Tensor:
    first = y.dim() - len(request.rule) - request.channels_last
    return y.squeeze(tuple(range(first, first + len(request.rule))))


def _with_indices(
    request: Request, adapter: Adapter, x: Tensor, given: tuple[Tensor, ...], rule: list[int]
) -> tuple[Tensor, Tensor]:
    last, options = request.channels_last, _options(request, x)
    y, routes = adapter.forward_of(x, *given, rule, last, *options)
    if options not in ((), ("first",)):  # an index is of one winner, whatever becomes of gradients
        routes = adapter.ops[""](x.detach(), *given, rule, last, "first")[1]
    placed = request.rule and isinstance(request.arguments[0] if given else None, Samples)
    samples = given[0] if placed else x.new_empty(0)
    return y, _route_indices(x.detach(), routes, samples, rule, last)
