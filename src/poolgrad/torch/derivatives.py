"""Registers an operator's derivatives: with PyTorch's dispatcher, and as an `autograd.Function`.

``torch.compile`` uses the operators of the dispatcher; the transformations of ``torch.func`` need
the `autograd.Function`. A tensor that is neither transformed nor traced needs neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from poolgrad.torch import _compat, arrays
from poolgrad.torch.devices import names_of_tensors


def differentiable(
    op: Any,
    library: torch.library.Library,
    run: Callable[..., Any],
    flat: Callable[[Any], tuple[Any, ...]],
    rebuild: Callable[..., Any],
    keep: Callable[..., None],
    backward: Callable[..., Any],
    jvp: Callable[..., Any],
) -> Callable[..., Any]:
    """Register the derivatives of an operator, and return a function that calls it.

    Parameters
    ----------
    op : OpOverload
        The operator of the dispatcher. Its tensors come first.
    library : torch.library.Library
        The library that defines it.
    run : callable
        ``run(static, *tensors)``: the computation on the CPU.
    flat, rebuild : callable
        `flat` returns the other arguments of `op` from the static part of a call; `rebuild` returns
        the static part from all arguments of `op`. The static part must not be a list, tuple or
        dict, which PyTorch flattens.
    keep : callable
        ``keep(ctx, static, tensors, output)``: stores what the derivatives need.
    backward, jvp : callable
        The derivatives, as those of an `autograd.Function`; `backward` returns ``ctx.inputs``
        values.

    Returns
    -------
    callable
        ``call(static, *tensors)``.
    """
    names = names_of_tensors(str(op._schema))

    def keep_flat(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.inputs = len(inputs)
        keep(ctx, rebuild(*inputs), inputs[: len(names)], output)

    _compat.skip_by_compiler(keep_flat)
    torch.library.register_autograd(op, backward, setup_context=keep_flat, lib=library)
    any_layout = (None,) * len(names)

    def is_direct(given: tuple[Tensor, ...]) -> bool:
        return arrays.KIND.have_parts(given, any_layout) or arrays.are_direct_for_triton(given)

    def forward(*args: Any) -> Any:
        *given, static = args
        if is_direct((*given,)):
            return run(static, *given)
        return op(*given, *flat(static))

    def function_keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.inputs = len(inputs)
        keep(ctx, inputs[-1], inputs[:-1], output)

    members = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(function_keep),
        "backward": staticmethod(backward),
        "jvp": staticmethod(jvp),
        "generate_vmap_rule": True,
    }
    function: Any = type(op.name(), (torch.autograd.Function,), members)

    def call(static: Any, *given: Tensor) -> Any:
        if arrays.is_in_graph():
            return op(*given, *flat(static))
        if not is_direct(given):
            # PyTorch copies negative views before an implementation is called.
            for name, tensor in zip(names, given, strict=True):
                arrays.checked(name, tensor)
            as_operator = is_inference() or _is_in_batching_rule(given)
            return op(*given, *flat(static)) if as_operator else function.apply(*given, static)
        if torch.is_grad_enabled() and any(t.requires_grad for t in given) and not is_inference():
            return arrays.applied(function)(*given, static)
        return run(static, *given)

    return call


def _is_in_batching_rule(given: tuple[Tensor, ...]) -> bool:
    """Whether a batching rule of a caller may be running, where PyTorch applies no functions."""
    inside = _compat.is_transformed() and _compat.forward_level() < 0
    return inside and not any(map(_compat.is_wrapped, given))


def is_inference() -> bool:
    """Whether inference mode keeps autograd from recording, as it does even in `enable_grad`.

    An `autograd.Function` would record there, and fail. `torch.func.grad` and `jvp` differentiate
    in inference mode, too.
    """
    return torch.is_inference_mode_enabled() and not arrays.is_differentiated()


def refuse_nested_forward() -> None:
    """Raise an error where PyTorch would ignore the outer tangents.

    Raises
    ------
    NotImplementedError
        If forward mode is nested.
    """
    if arrays.is_nested_forward():
        raise NotImplementedError(
            "this pooling does not support nested forward mode (jvp of jvp, jacfwd of jacfwd): use "
            "reverse mode for one of them, as torch.func.hessian does"
        )


def save(ctx: Any, kept: tuple[Tensor, ...]) -> None:
    """Save tensors for the vjp and the jvp."""
    ctx.save_for_backward(*kept)
    ctx.save_for_forward(*kept)
