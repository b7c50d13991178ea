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
from poolgrad.torch.arrays import name_of, pads_little, prepared
from poolgrad.windows import WindowKind

HERE = ("cpu", "meta")  # the devices whose tensors our operators take


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
    beside = tuple(map(_brought, request.operands))
    made = here(replace(request, x=x.cpu(), operands=beside))
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
    x, last = request.x, request.channels_last
    name, spec, options = request.operator, request.spec, request.options
    prepared(name, spec, options, tuple(x.shape), last, -1, name_of(x.dtype))


def _pytorchs(request: Request) -> Callable[[Tensor], Any] | None:
    """What does the same by PyTorch's operators, if they do."""
    dims, last = request.spec.dims, request.channels_last
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
    spec, options = request.spec, request.options
    dims = spec.dims
    kind = request.operator.removeprefix("relu_")
    given: dict[str, Any] = {}
    if kind == "max" and options.ties == "first":
        given["return_indices"] = request.return_indices
    elif kind != "avg":
        return None
    if request.operator == "relu_max" and (request.return_indices or {*spec.dilation} - {1}):
        return None
    if spec.kind in (WindowKind.ADAPTIVE, WindowKind.GLOBAL):
        pool = getattr(functional, f"adaptive_{kind}_pool{dims}d")
        sizes = spec.output_size
        return lambda x: pool(x, sizes if dims > 1 else sizes[0] or x.shape[-1], **given)
    padding = [pair[0] for pair in spec.padding]
    symmetric = spec.padding == tuple((p, p) for p in padding)  # "same" is none of these
    if not symmetric or not pads_little(padding, spec.kernel_size, spec.dilation):
        return None
    if kind == "avg":
        given["count_include_pad"], divisor = options.count_include_pad, options.divisor
        if {*spec.dilation} != {1} or (dims == 1 and divisor):
            return None
        if divisor:
            given["divisor_override"] = divisor
    else:
        given["dilation"] = spec.dilation
    pool = getattr(functional, f"{kind}_pool{dims}d")
    windows = spec.kernel_size, spec.stride, padding
    return lambda x: pool(x, *windows, ceil_mode=spec.ceil_mode, **given)
