"""Chooses the engine of a call: the compiled CPU kernels, the Triton kernels, or `portable`."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import Tensor

from poolgrad.interface import Operator
from poolgrad.operators import Prepared
from poolgrad.torch import triton


class Engine(Enum):
    """What computes a call; the values are the names in `Operator.kernels`."""

    CPU = "cpu"
    TRITON = "cuda"
    PORTABLE = "portable"


def engine_of_device(x: Tensor) -> Engine:
    """Return the engine of the device of a tensor, for the operators with kernels for it."""
    if x.is_cpu:
        return Engine.CPU
    is_supported = x.is_cuda and triton.is_available(x.device)
    return Engine.TRITON if is_supported else Engine.PORTABLE


def engine_of(operator: Operator, options: Any, x: Tensor) -> Engine:
    """Return the engine of an operator for the device of a tensor: `PORTABLE` without kernels."""
    engine = engine_of_device(x)
    return engine if operator.has_kernels(engine.value, options) else Engine.PORTABLE


def with_kernels(engine: Engine, ready: Prepared) -> Prepared:
    """Return the call with the kernels of an engine that has kernels."""
    if engine is Engine.CPU:
        return ready
    # While compiling, each call is prepared anew, so that a cache would keep it and never find it.
    on_device = triton.on_device
    return on_device.__wrapped__(ready) if torch.compiler.is_compiling() else on_device(ready)
