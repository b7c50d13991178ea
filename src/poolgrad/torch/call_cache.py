"""Cached calls of tensors, which skip the dispatcher while PyTorch neither transforms nor traces.

A cached call with a gradient costs one `torch.autograd.Function`. All other calls go through the
operators of `adapter` and PyTorch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from poolgrad import call_cache
from poolgrad.buffers import Maker
from poolgrad.interface import Buffer, Request
from poolgrad.operators import Prepared
from poolgrad.torch import arrays
from poolgrad.torch.adapter import ADAPTERS, Adapter, Static
from poolgrad.torch.arrays import DTYPES, KIND

Tensors = tuple[Tensor, ...]

# Other compilers than Dynamo call with tensors of other types, or watch them.
_is_compiling, _is_grad_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
_is_inference_mode_enabled = torch.is_inference_mode_enabled

_call, _key, _call_with = KIND.call, KIND.key, KIND.call_with


# While a compiler traces, no call is cached.


def call(kept: call_cache.CallCache, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a cached call; see `Lookup`."""
    return None if _is_compiling() else _call(kept, args, kwargs)


def key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Return the key of a call; see `Lookup`."""
    return None if _is_compiling() else _key(args, kwargs)


call_cache.LOOKUPS[Tensor] = call_cache.Lookup(call, key)

_CPU = torch.empty(0, dtype=torch.float32, device="cpu")  # only its device is read


def _maker(buffer: Buffer) -> Maker:
    if not arrays.small(buffer):
        return arrays.allocate, (buffer, _CPU), {}
    shape, strides = buffer.shape, arrays.strides_of(buffer)  # known strides save time in PyTorch
    options = {"dtype": DTYPES[buffer.dtype], "device": _CPU.device}
    return torch.empty_strided, (shape, strides), options


def bound_call(request: Request, ready: Prepared, operands: Tensors) -> Callable[[Tensor], Any]:
    """Bind a call; see `call_cache`. `operands` holds the extra operand, if there is one."""
    if request.x.requires_grad and _is_grad_enabled():
        pool = _differentiable(request, ready, operands)
    else:
        operand, indices = arrays.as_operand(ready, operands), request.return_indices
        pool = call_cache.forward(ready, _maker, torch.get_num_threads, operand, indices=indices)
    return call_cache.squeezed(request, ready, pool)


def _differentiable(
    request: Request, ready: Prepared, operands: Tensors
) -> Callable[[Tensor], Any]:
    adapter = ADAPTERS[ready.operator.name]
    apply = _function(adapter)
    steps = _BoundPasses(adapter, ready, operands, request.x, request.return_indices)
    # Inference mode also holds in `enable_grad`, where an `autograd.Function` would fail.
    return lambda x: steps.output(x) if _is_inference_mode_enabled() else apply(x, steps)


@lru_cache
def _function(adapter: Adapter) -> Any:
    return arrays.applied(type(adapter.ops[""].name(), (_Function,), {}))


class _Function(torch.autograd.Function):
    """Forward and backward pass; higher derivatives are those of the pullback operator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: _BoundPasses) -> Any:
        y, indices, saved = steps.forward(x)
        ctx.steps = steps
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved)
        if indices is None:
            return y
        ctx.mark_non_differentiable(indices)
        return y, indices

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None, of_indices: None = None) -> Any:
        return None if gy is None else ctx.steps.vjp(gy, ctx.saved_tensors), None


class _BoundPasses:
    """Forward and backward pass of an operator, bound to one layout of the input.

    Parameters
    ----------
    adapter, ready
        The operator.
    operands : tuple of Tensor
        Its extra operand, a number.
    x : Tensor
        A tensor with that layout.
    indices : bool
        Whether the forward pass also computes the indices.
    """

    def __init__(
        self, adapter: Adapter, ready: Prepared, operands: Tensors, x: Tensor, indices: bool
    ) -> None:
        operator, layout, threads = ready.operator, ready.layout, torch.get_num_threads
        operand, kept = arrays.as_operand(ready, operands), ready.needed
        self._run = call_cache.forward(ready, _maker, threads, operand, kept, indices)
        self._vjp = call_cache.vjp(ready, _maker, threads, operand)
        self._nonlinear, self._keeps, self._indices = operator.nonlinear, bool(kept), indices
        self._shape, self._dtype = layout.out_shape, DTYPES[layout.out_dtype]
        saved = (*(x,) * operator.nonlinear, *(arrays.allocate(b, _CPU) for b in kept))
        self._parts = (None, *map(KIND.parts, saved))
        self._adapter, self._static, self._operands = adapter, Static(ready), operands
        self._slope = (x.new_empty(0, dtype=DTYPES[layout.sum_dtype]),) * operator.learned

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensors]:
        """Return the output, the indices or None, and the residual."""
        if not self._keeps:
            return self._run(x), None, (x,) * self._nonlinear
        y, *kept = self._run(x)
        indices = kept.pop(0) if self._indices else None
        return y, indices, (x, *kept) if self._nonlinear else (*kept,)

    def output(self, x: Tensor) -> Any:
        """Return the output or, if there are indices, both."""
        y, indices, _ = self.forward(x)
        return y if indices is None else (y, indices)

    def vjp(self, gy: Tensor, saved: Tensors) -> Tensor:
        """Return the gradient of the input."""
        # The layouts are as bound, and the pullback itself needs no derivative.
        if (
            not _is_compiling()
            and not _is_grad_enabled()
            and gy.shape == self._shape
            and gy.dtype is self._dtype
        ):
            gx: Tensor | None = _call_with(self._vjp, (gy, *saved), self._parts)
            if gx is not None:
                return gx
        held = (*saved[: self._nonlinear], *self._operands, *saved[self._nonlinear :], *self._slope)
        made = self._adapter.differentiable_vjp(self._static, gy, *held)
        return made[0] if self._slope else made
