"""Tensors of devices that our kernels do not reach.

PyTorch pools them where they are, if its operators do what is asked for; else they are pooled here,
and the result goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from poolgrad.contract import Request, Samples
from poolgrad.core import lay_out
from poolgrad.operators import OPERATORS
from poolgrad.torch import triton
from poolgrad.torch.arrays import name_of, pads_little

# The devices whose tensors our operators take; ROCm's are called "cuda", too.
HERE = ("cpu", "meta", *(("cuda",) if triton.is_available() else ()))


def perform(request: Request, here: Callable[[Request], Any]) -> Any:
    """Do what a public function describes.

    Parameters
    ----------
    request : Request
        Its input is of another device.
    here : callable
        Does it to tensors of this one.
    """
    _check(request)
    x, pool = request.x, _pytorchs(request)
    if pool is not None:
        return pool(x)
    if torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        raise NotImplementedError(
            "compiled, this pooling has no forward mode: PyTorch would take its tangent for zero"
        )
    beside = tuple(map(_brought, request.arguments))
    made = here(replace(request, x=x.cpu(), arguments=beside))
    return tuple(y.to(x.device) for y in made) if isinstance(made, tuple) else made.to(x.device)


def _brought(value: Any) -> Any:
    """What goes with the input: tensors, and the seed that another device's generator gives."""
    if isinstance(value, Samples):
        return Samples(*map(_brought, value))
    if isinstance(value, torch.Generator) and value.device.type != "cpu":
        return int(torch.randint(2**63 - 1, (), generator=value, device=value.device))
    return value.cpu() if isinstance(value, Tensor) else value


def _check(request: Request) -> None:
    """The errors that a tensor of this device would give."""
    operator, dtype = OPERATORS[request.operator], name_of(request.x.dtype)
    if not operator.accepts(dtype):
        raise operator.refuse_dtype(dtype)
    shape, last = tuple(request.x.shape), request.channels_last
    layout = lay_out(request.rule, shape, last, -1, dtype, operator.result(dtype))
    operator.check(layout.window, *request.options)


def _pytorchs(request: Request) -> Callable[[Tensor], Any] | None:
    """What does the same by PyTorch's operators, if they do."""
    dims, last = len(request.rule), request.channels_last
    usual = request.x.dim() - dims in (1, 2) and request.x.is_floating_point()
    pool = _function(request) if usual else None
    if pool is None:
        return None
    axes = tuple(range(-dims, 0))

    def shaped(y: Tensor) -> Tensor:
        y = y if request.keepdims else y.squeeze(axes)
        return y.movedim(-1 - dims, -1) if last and request.keepdims else y

    def run(x: Tensor) -> Any:
        x = x.movedim(-1, -1 - dims) if last else x
        made = pool(x.relu() if request.operator == "relu_max" else x)
        return tuple(map(shaped, made)) if isinstance(made, tuple) else shaped(made)

    return run


def _function(request: Request) -> Callable[[Tensor], Any] | None:
    """PyTorch's function of the pooled axes, which are the last."""
    kernel, stride, low, high, dilation, ceil = (list(n) for n in zip(*request.rule, strict=True))
    dims, options = len(request.rule), request.options
    kind = request.operator.removeprefix("relu_")
    given: dict[str, Any] = {}
    if kind == "max" and options[0] == "first":
        given["return_indices"] = request.return_indices
    elif kind != "avg":
        return None
    if request.operator == "relu_max" and (request.return_indices or {*dilation} != {1}):
        return None
    if not any(kernel):  # bins
        pool = getattr(functional, f"adaptive_{kind}_pool{dims}d")
        sizes = [n or None for n in stride]
        return lambda x: pool(x, sizes if dims > 1 else sizes[0] or x.shape[-1], **given)
    if low != high or not pads_little(low, kernel, dilation):
        return None
    if kind == "avg":
        given["count_include_pad"], divisor = options
        if {*dilation} != {1} or (dims == 1 and divisor):
            return None
        if divisor:
            given["divisor_override"] = divisor
    else:
        given["dilation"] = dilation
    pool = getattr(functional, f"{kind}_pool{dims}d")
    return lambda x: pool(x, kernel, stride, low, ceil_mode=bool(ceil[0]), **given)
