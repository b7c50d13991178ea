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
from torch.nn import functional

from poolgrad.contract import Request, Samples
from poolgrad.torch.arrays import pads_little

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
    x = request.x
    pool = _pytorchs(request)
    if pool is not None:
        return pool(x)
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


def _pytorchs(request: Request) -> Callable[[Tensor], Any] | None:
    """What does the same by PyTorch's operators, if they do."""
    x, rule, dims = request.x, request.rule, len(request.rule)
    usual = request.keepdims and not request.channels_last and request.out is None
    if not usual or x.dim() - dims not in (1, 2) or not x.is_floating_point():
        return None
    kernel, stride, low, high, dilation, ceil = (list(n) for n in zip(*rule, strict=True))
    kind, given = request.operator, dict[str, Any]()
    if kind == "max" and request.options[0] == "first":
        given["return_indices"] = request.return_indices
    elif kind != "avg":
        return None
    if all(n == 0 for n in kernel):  # bins
        pool = getattr(functional, f"adaptive_{kind}_pool{dims}d")
        sizes = [n or None for n in stride]
        return lambda x: pool(x, sizes if dims > 1 else sizes[0] or x.shape[-1], **given)
    if low != high or not pads_little(low, kernel, dilation):
        return None
    if kind == "avg":
        padding, divisor = request.options
        if {*dilation} != {1} or (dims == 1 and divisor):
            return None
        given["count_include_pad"] = padding
        if divisor:
            given["divisor_override"] = divisor
    else:
        given["dilation"] = dilation
    pool = getattr(functional, f"{kind}_pool{dims}d")
    return lambda x: pool(x, kernel, stride, low, ceil_mode=bool(ceil[0]), **given)
