"""Defines operators of ``torch.ops.poolgrad`` for every device, and checks devices."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from poolgrad.torch import triton
from poolgrad.torch._compat import FunctionalTensorMode, is_exported_with_triton, skip_by_compiler
from poolgrad.torch.arrays import dense


def define(
    library: torch.library.Library,
    name: str,
    arguments: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    batched: Callable[..., Any],
    launches: Callable[..., bool] | None = None,
) -> Any:
    """Define an operator of ``torch.ops.poolgrad``, without derivatives (see `derivatives`).

    Parameters
    ----------
    library : torch.library.Library
        The library that defines it.
    name, arguments : str
        Its name, and the rest of its schema.
    run : callable
        The implementation for dense tensors on every device.
    fake : callable
        Returns results of the right shapes without data; sizes may be symbolic.
    batched : callable
        The batching rule: ``batched(op, info, in_dims, *args)``.
    launches : callable, optional
        Whether `run` launches Triton kernels for the same arguments. Then a compiler traces through
        `run` to the launches, as through a `torch.library.triton_op`, so that inductor can schedule
        them; except for symbolic sizes, because kernels are chosen by size. It does not trace into
        all other calls of the operator.

    Returns
    -------
    OpOverload
        The operator.
    """
    library.define(name + arguments)
    op = getattr(torch.ops.poolgrad, name).default
    names = names_of_tensors(arguments)
    run = _checked(names, run)
    skip_by_compiler(run)
    library.impl(name, run, "CompositeExplicitAutograd")  # all devices and kinds of tensors
    torch.library.register_fake(op, _checked(names, fake), lib=library)
    torch.library.register_vmap(op, partial(batched, op), lib=library)
    if launches is None or not triton.is_installed():
        return op

    def traced(mode: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        is_whole = is_exported_with_triton() or args[0].device.type != "cuda" or _has_symbols(args)
        if is_whole or not launches(*args):
            return mode.__torch_dispatch__(op, types, args, kwargs)
        from poolgrad.torch.triton import launch

        with mode, launch.traced():
            return run(*args, **(kwargs or {}))

    torch.library.register_torch_dispatch(op, FunctionalTensorMode, traced, lib=library)
    return op


def names_of_tensors(schema: str) -> list[str]:
    """Return the names of the tensors among the arguments of a schema."""
    return re.findall(r"Tensor (\w+)", schema)


def _checked(names: list[str], run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run` with a check of its first arguments: dense tensors on one device.

    The dispatcher chooses one of several devices. If that is ``meta``, the shape function would
    return tensors without values on another one. An extra operand may always be on the CPU.
    """

    def checked(*args: Any) -> Any:
        given = list(zip(names, args, strict=False))
        for name, tensor in given:
            dense(name, tensor)
        device = args[0].device
        if any(t.device != device and not (n == "operand" and t.is_cpu) for n, t in given):
            came = ", ".join(f"{name} on {tensor.device}" for name, tensor in given)
            raise ValueError(f"all tensors must be on one device, got {came}")
        return run(*args)

    return checked


def _has_symbols(args: Any) -> bool:
    """Whether a size is symbolic."""
    if isinstance(args, torch.Tensor):
        return any(not isinstance(n, int) for n in (*args.shape, *args.stride()))
    if isinstance(args, list | tuple):
        return any(map(_has_symbols, args))
    return isinstance(args, torch.SymInt)
