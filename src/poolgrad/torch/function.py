"""The front end for PyTorch."""

# ruff: noqa: D102 - the base class documents the methods

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from array_api_compat import torch as xp
from torch import Tensor

from poolgrad import arguments
from poolgrad.call_cache import is_cacheable
from poolgrad.composition import Functions
from poolgrad.dtypes import name_of
from poolgrad.frontend import FrontEnd
from poolgrad.interface import Request, indexed, unpacked
from poolgrad.operands import Parameter
from poolgrad.operators import OPERATORS, Prepared
from poolgrad.portable.arrays import narrowed
from poolgrad.pullback import Call
from poolgrad.torch import call_cache
from poolgrad.torch._compat import as_quantized, is_transformed, mode_of, without_transforms
from poolgrad.torch.adapter import ADAPTERS, Static
from poolgrad.torch.arrays import (
    DTYPES,
    checked,
    inner_of,
    is_in_graph,
    is_transformed_graph,
    prepare_call,
    shape_of,
)
from poolgrad.windows import Layout, flatten

# The extra operand


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


def _where(condition: Tensor, x: Any, y: Any) -> Tensor:
    with mode_of(condition):  # PyTorch makes tensors of numbers
        return torch.where(condition, x, y)


_QUANTIZED = {torch.qint8: torch.int8, torch.quint8: torch.uint8}
_OF_QUANTIZED = ("avg", "max", "min", "median")  # operators that commute with the quantisation


class TorchFrontEnd(FrontEnd):
    """Pools tensors with the operators of `adapter`, which PyTorch differentiates."""

    name = "torch"
    noun = "a tensor"
    differentiation = "PyTorch differentiates its own tensors: use y.backward() or torch.func.vjp"

    def asarray(self, name: str, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__qualname__}")
        return checked(name, value)

    def functions(self, x: Tensor) -> Functions:
        def converted(x: Tensor, dtype: str) -> Tensor:
            return x.to(DTYPES[dtype])

        return Functions(torch.exp, _where, torch.amax, converted, Tensor.detach)

    def shape_of(self, x: Tensor) -> tuple[int, ...]:
        return shape_of(x)

    def prepared(self, request: Request, x: Tensor) -> Prepared | None:
        operator = OPERATORS[request.operator]
        in_graph, is_needed = is_in_graph(), operator.composed or operator.operand.uses_layout
        if in_graph and not (is_needed or is_transformed_graph()):
            return None  # the operator of the graph prepares the call, in each run
        # A graph may run on another memory format than the traced tensor.
        inner = -1 if in_graph else inner_of(x, request.spec, request.channels_last)
        shape = shape_of(x) if in_graph else tuple(x.shape)
        where = (shape, request.channels_last, inner, name_of(x.dtype))
        return prepare_call(request.operator, request.spec, request.options, *where)

    def perform(self, request: Request) -> Any:
        if isinstance(request.x, Tensor) and request.x.is_quantized:
            return self._pooled_quantized(request)
        x = self.asarray("x", request.x)
        if OPERATORS[request.operator].composed:
            return super().perform(request)
        if is_transformed_graph():
            return self._in_transformed_graph(request)
        with mode_of(x):
            return super().perform(request)

    def _pooled_quantized(self, request: Request) -> Tensor:
        """Pool the integers of a quantised tensor, which PyTorch deprecates.

        Ties of averages are rounded as PyTorch rounds them: with channels first, the zero point is
        added before rounding, except in volumes. Tensors of one channel count as channels first.
        """
        x, options = request.x, request.options
        is_known = x.dtype in _QUANTIZED and x.qscheme() is torch.per_tensor_affine
        is_known &= request.operator in _OF_QUANTIZED and not request.return_indices
        if not is_known or getattr(options, "rounding", False):
            raise TypeError(
                "x may be a quantized tensor only of dtype qint8 or quint8, with one scale, for "
                f"{', '.join(_OF_QUANTIZED)}, without the arguments quantization and "
                f"return_indices, got {x.dtype} with {x.qscheme()} for {request.operator}"
            )
        if request.operator == "avg":
            zero = x.q_zero_point()
            is_last = x.is_contiguous(memory_format=torch.channels_last) and x.shape[1] > 1
            is_last |= request.channels_last or request.spec.dims == 3
            options = options._replace(rounding=(1.0, zero, *((0, zero) if is_last else (zero, 0))))
        integers = torch.empty(0, dtype=_QUANTIZED[x.dtype], device=x.device)
        integers.set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
        y = self.perform(replace(request, x=integers, options=options))
        return as_quantized(y, x.q_scale(), x.q_zero_point())

    def forward(self, call: Call, keep: bool = False) -> tuple[Tensor, tuple[Any, ...]]:
        request, adapter = call.request, ADAPTERS[call.request.operator]
        operands = () if call.operand is None else (call.operand,)
        # Python's numbers need no gradient.
        tracked = not all(isinstance(value, int | float) for value in request.operands)
        if is_in_graph():
            last = request.channels_last
            rest = adapter.arguments(request.spec, request.options, last, tracked)
            made = adapter.ops[""](call.x, *operands, *rest)
        else:
            made = adapter.differentiable_forward(Static(call.ready, tracked), call.x, *operands)
        return (made[0], made[1:]) if adapter.kept else (made, ())

    def indices_of(self, call: Call, routes: Tensor) -> Tensor:
        request, adapter = call.request, ADAPTERS[call.request.operator]
        operands = () if call.operand is None else (call.operand,)
        rest = adapter.arguments(request.spec, request.options, request.channels_last, False)
        return adapter.ops["_indices"](call.x.detach(), *operands, routes, *rest)

    def bound_call(self, request: Request) -> Callable[[Tensor], Any] | None:
        if not is_cacheable(request):
            return None
        call = self.call(request)
        if request.return_indices and call.ready.options != indexed(call.ready.options):
            return None  # the gradient needs other routes than the indices
        operands = () if call.operand is None else (call.operand,)
        return call_cache.bound_call(request, call.ready, operands)

    def refuses(self, function: Any, x: Tensor, arguments: dict[str, Any]) -> bool:
        """Whether a public function does not accept the arguments of a call, rather than fails.

        A caller that lets PyTorch compute what poolgrad refuses would otherwise hide faults.
        """
        try:
            call = self.call(function.describe(x, **arguments))
            samples = call.operand
            if call.ready.operator.operand.determines_windows and samples.is_cpu:
                return not bool(((samples >= 0) & (samples < 1)).all())
        except (TypeError, ValueError):
            return True
        return False

    def _in_transformed_graph(self, request: Request) -> Any:
        """Pool with operations of PyTorch, for which a compiler supports all transformations."""
        from poolgrad.torch.graph import pool_in_graph  # imports the compiler, which takes a second

        call = self.call(request)
        ready, both = call.ready, request.return_indices
        window, options = flatten(ready.spec), unpacked(ready.options)
        how = (request.operator, window, ready.channels_last, both, *options)
        made = pool_in_graph(call.x, call.operand, *how)
        return tuple(map(call.shaped, made)) if both else call.shaped(made)

    # Extra operands

    def is_own(self, value: Any) -> bool:
        return isinstance(value, Tensor)

    def from_numpy(self, array: Any, x: Tensor) -> Tensor:
        # PyTorch lacks some of NumPy's dtypes, and some devices lack float64.
        return torch.as_tensor(array.astype(np.float64), dtype=torch.float64, device="cpu")

    def parameter(self, operand: Parameter, value: Any, x: Tensor, ready: Prepared) -> Tensor:
        layout = ready.layout
        if isinstance(value, float) or (type(value) is int and abs(value) < 2**63):
            ready.operator.check_operand([float(value)])
            (number,) = arguments.within([float(value)], layout.sum_dtype)
            return torch.full((), number, dtype=DTYPES[layout.sum_dtype], device=x.device)
        given = super().parameter(operand, value, x, ready)
        theta = given.to(DTYPES[layout.sum_dtype]).to(x.device)
        # Without a channel axis there is one number.
        return (theta if layout.channel >= 0 else theta.reshape(())).contiguous()

    def narrowed(self, value: Tensor, dtype: str) -> Tensor:
        # A compiler warns that it ignores the cache of `namespace`.
        return narrowed(xp, value, dtype)

    def seed(self, value: Any, x: Tensor) -> Tensor:
        known = known_generator(value)
        if isinstance(known, int):
            return torch.full((), known, dtype=torch.int64, device=x.device)
        device = x.device if known is None else known.device
        return torch.randint(2**63 - 1, (), generator=known, dtype=torch.int64, device=device).to(
            x.device
        )

    def drawn(self, generator: Any, shape: tuple[int, ...], x: Tensor) -> Tensor:
        known = known_generator(generator)
        context = seeded(known)
        if isinstance(known, int):  # no generator draws on the device meta
            device = torch.device("cpu") if x.is_meta else x.device
            known = torch.Generator(device=device).manual_seed(known)
        # Compilers do not support None.
        own: Any = {} if known is None else {"generator": known}
        device = x.device if known is None else known.device
        dtype = x.dtype if x.is_floating_point() else torch.float32
        with context:
            return torch.rand(shape, dtype=dtype, device=device, **own).to(x.device)

    def samples_below_one(self, samples: Tensor, dtype: str, x: Tensor, layout: Layout) -> Tensor:
        kind, most = DTYPES[dtype], arguments.below_one(dtype)
        narrow = samples.to(kind)
        # Rounding takes no sample into [0, 1) or out of it: the kernels check.
        narrow = torch.where(samples < 1, narrow.clamp(max=most), narrow)
        negative = narrow.clamp(max=-torch.finfo(kind).tiny)
        narrow = torch.where(samples < 0, negative, narrow)
        return narrow.reshape(arguments.samples_shape(layout)).to(x.device).contiguous()


FRONT_END = TorchFrontEnd()
