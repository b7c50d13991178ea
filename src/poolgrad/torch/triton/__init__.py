"""GPU kernels in Triton, for CUDA and ROCm tensors. Read README.md first.

Triton is imported when the first such tensor arrives. Nothing here imports it before.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from poolgrad.core import Plan
from poolgrad.operators import Prepared


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether Triton can be imported."""
    return find_spec("triton") is not None


@lru_cache(maxsize=4096)
def on_device(ready: Prepared) -> Prepared:
    """The same call with kernels that run on the tensors' own device."""
    from poolgrad.torch.triton.kernels import Kernels

    kernels: Any = Kernels(ready.layout, ready.route_bits)
    made = replace(ready)
    vars(made)["plan"] = Plan(ready.layout, kernels)  # in place of the compiled kernels
    return made
