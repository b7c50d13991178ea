"""Recipes of tensors: what is not transformed and not watched goes straight to the kernels.

A gradient costs one `torch.autograd.Function` on that way; PyTorch's dispatcher, and whatever else
the operators of `adapter` are made for, is asked only where it has something to say.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from poolgrad import recipes
from poolgrad.contract import Buffer, Request
from poolgrad.operators import Prepared
from poolgrad.torch.adapter import ADAPTERS, Adapter, Static
from poolgrad.torch.arrays import (
    DTYPES,
    KIND,
    applied,
    as_operand,
    empty,
    room,
    small,
)

Tensors = tuple[Tensor, ...]

# Other compilers than Dynamo call with tensors of other types, or watch them.
_is_compiling, _is_grad_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled

_call, _key = KIND.call, KIND.key


# A compiler that traces these is not to look into them.


def call(kept: recipes.Recipes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """See `recipes.Known`."""
    return None if _is_compiling() else _call(kept, args, kwargs)


def key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """See `recipes.Known`."""
    return None if _is_compiling() else _key(args, kwargs)


recipes.KNOWN[Tensor] = recipes.Known(call, key)

_CPU = torch.empty(0)


def _maker(buffer: Buffer) -> Callable[[], Tensor]:
    if not small(buffer):
        return partial(room, buffer, _CPU)
    strides = empty(buffer, _CPU).stride()  # told these, PyTorch sees sooner what it was told
    return partial(torch.empty_strided, buffer.shape, strides, dtype=DTYPES[buffer.dtype])


def recipe(request: Request, ready: Prepared, given: Tensors) -> Callable[[Tensor], Any]:
    """See `recipes`; `given` is the extra operand, if there is one."""
    if request.x.requires_grad and _is_grad_enabled():
        pool = _differentiable(request, ready, given)
    else:
        operand, indices = as_operand(ready, given), request.return_indices
        pool = recipes.forward(ready, _maker, torch.get_num_threads, operand, indices=indices)
    return recipes.squeezed(request, ready, pool)


def _differentiable(request: Request, ready: Prepared, given: Tensors) -> Callable[[Tensor], Any]:
    adapter = ADAPTERS[ready.operator.name]
    apply = _function(adapter)
    steps = _Steps(adapter, ready, given, request.x, request.return_indices)
    return lambda x: apply(x, steps)


@lru_cache
def _function(adapter: Adapter) -> Any:
    return applied(type(adapter.ops[""].name(), (_Function,), {}))


class _Function(torch.autograd.Function):
    """Forward and backward of one tensor; every further derivative is that of the pull."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: _Steps) -> Any:
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
        return None if gy is None else ctx.steps.pull(gy, ctx.saved_tensors), None


class _Steps:
    """Both passes of an operator on one kind of tensor.

    Parameters
    ----------
    adapter, ready
        The operator.
    given : tuple of Tensor
        Its extra operand, a number.
    x : Tensor
        A tensor of that kind.
    indices : bool
        Whether forward makes them too.
    """

    def __init__(
        self, adapter: Adapter, ready: Prepared, given: Tensors, x: Tensor, indices: bool
    ) -> None:
        operator, layout, threads = ready.operator, ready.layout, torch.get_num_threads
        operand, kept = as_operand(ready, given), recipes.needed(ready)
        self._run = recipes.forward(ready, _maker, threads, operand, kept, indices)
        self._pull = recipes.pull(ready, _maker, threads, operand)
        self._curved, self._keeps, self._indices = operator.curved, bool(kept), indices
        self._shape, self._dtype = layout.out_shape, DTYPES[layout.out_dtype]
        saved = (*(x,) * operator.curved, *(empty(b, _CPU) for b in kept))
        self._parts = (None, *map(KIND.parts, saved))
        self._adapter, self._static, self._given = adapter, Static(ready), given
        self._slope = (x.new_empty(0, dtype=DTYPES[layout.sum_dtype]),) * operator.learned

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensors]:
        """The output, indices if they are wanted, and what the pull needs."""
        if not self._keeps:
            return self._run(x), None, (x,) * self._curved
        y, *kept = self._run(x)
        indices = kept.pop(0) if self._indices else None
        return y, indices, (x, *kept) if self._curved else (*kept,)

    def pull(self, gy: Tensor, saved: Tensors) -> Tensor:
        """The gradient of the input."""
        if not self._expects(gy, saved):
            held = (*saved[: self._curved], *self._given, *saved[self._curved :], *self._slope)
            made = self._adapter.pull_of(self._static, gy, *held)
            gradient: Tensor = made[0] if self._slope else made
            return gradient
        gx: Tensor = self._pull(gy, *saved)
        return gx

    def _expects(self, gy: Tensor, saved: Tensors) -> bool:
        """Whether all this came as it was made, and nobody asks for the derivative of the pull."""
        return (
            not _is_compiling()
            and not _is_grad_enabled()
            and KIND.hold((gy, *saved), self._parts)
            and gy.shape == self._shape
            and gy.dtype is self._dtype
        )
