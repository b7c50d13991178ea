"""Registers the implementation of an operator for every device, and its shape function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poolgrad.torch import triton
from poolgrad.torch._compat import FunctionalTensorMode, is_exported_with_triton

# The devices on which poolgrad's operators run: see `arrays.has_kernels`.
_DISPATCH_KEYS = ("CPU", "CUDA", "MPS", "XPU", "HPU", "MTIA", "XLA", "PrivateUse1")


def register(op: Any, run: Callable[..., Any], library: Any) -> None:
    """Register `run` as the implementation of an operator.

    A compiler does not trace into the operator on the CPU. On a GPU with Triton it traces through
    `run` to the launches of Triton kernels, as through a `torch.library.triton_op`, so that
    inductor can schedule them; except for symbolic sizes, because kernels are chosen by size.
    """
    name = op.name().split("::")[1]
    for key in _DISPATCH_KEYS:
        library.impl(name, run, key)
    if not triton.is_available():
        return

    def traced(mode: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if is_exported_with_triton() or args[0].device.type != "cuda" or _has_symbols(args):
            return mode.__torch_dispatch__(op, types, args, kwargs)
        from poolgrad.torch.triton import launch

        with mode, launch.traced():
            return run(*args, **(kwargs or {}))

    torch.library.register_torch_dispatch(op, FunctionalTensorMode, traced, lib=library)


def _has_symbols(args: Any) -> bool:
    """Whether a size is symbolic."""
    if isinstance(args, torch.Tensor):
        return any(not isinstance(n, int) for n in (*args.shape, *args.stride()))
    if isinstance(args, list | tuple):
        return any(map(_has_symbols, args))
    return isinstance(args, torch.SymInt)
