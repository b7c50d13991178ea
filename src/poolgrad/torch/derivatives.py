"""How PyTorch is told of an operator's derivatives: twice, and gone round where both agree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poolgrad.torch.arrays import KIND, applied, is_nested_forward

LIBRARY = torch.library.Library("poolgrad", "DEF")


class _Static:
    """Arguments that are no tensors, as one: PyTorch's transformations take lists apart."""

    def __init__(self, *values: Any) -> None:
        self.values = values


def told(op: Any, run: Any, tensors: int, keep: Any, backward: Any, jvp: Any) -> Any:
    """The operator, with its derivatives `backward` and `jvp`, and what they `keep`.

    Its first `tensors` arguments are tensors; `run` is what it comes to on the CPU.
    """
    torch.library.register_autograd(op, backward, setup_context=keep, lib=LIBRARY)
    anyhow = (None,) * tensors

    def forward(*args: Any) -> Any:
        given = (*args[:-1], *args[-1].values)
        return run(*given) if KIND.hold(args[:-1], anyhow) else op(*given)

    def function_keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, (*inputs[:-1], *inputs[-1].values), output)

    members = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(function_keep),
        "backward": staticmethod(lambda ctx, *gs: (*backward(ctx, *gs)[:tensors], None)),
        "jvp": staticmethod(jvp),
        "generate_vmap_rule": True,
    }
    function: Any = type(op.name(), (torch.autograd.Function,), members)

    def call(*args: Any) -> Any:
        # A TorchScript graph stores the operator; it would store an `autograd.Function` as a Python
        # object, which cannot be saved.
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return op(*args)
        given, static = args[:tensors], _Static(*args[tensors:])
        if not KIND.hold(given, anyhow):
            return function.apply(*given, static)
        if torch.is_grad_enabled() and any(t.requires_grad for t in given):
            return applied(function)(*given, static)
        return run(*args)

    return call


def refuse_nested_forward() -> None:
    """Refuse what PyTorch would compute without the outer tangents.

    Raises
    ------
    NotImplementedError
        In a forward mode inside a forward mode.
    """
    if is_nested_forward():
        raise NotImplementedError(
            "this pooling has no forward mode inside a forward mode (jvp of jvp, jacfwd of jacfwd):"
            " take one of them in reverse, as torch.func.hessian does"
        )


def save(ctx: Any, kept: tuple[Tensor, ...], inputs: tuple[Any, ...]) -> None:
    """Keep tensors for either direction."""
    ctx.inputs = len(inputs)
    ctx.save_for_backward(*kept)
    ctx.save_for_forward(*kept)
