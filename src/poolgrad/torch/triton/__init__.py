"""GPU kernels in Triton, for CUDA and ROCm tensors. Read README.md first.

Triton is imported with the first such tensor.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch

from poolgrad.operators import Prepared

LEAST_CAPABILITY = (8, 0)  # the compute capability that Triton requires of NVIDIA GPUs


@lru_cache(maxsize=1)
def is_installed() -> bool:
    """Whether there is a Triton whose kernels index constant tuples (3.4, of PyTorch 2.8)."""
    return find_spec("triton") is not None and torch.__version__ >= "2.8"


@lru_cache(maxsize=64)
def is_available(device: torch.device) -> bool:
    """Whether Triton can compile kernels for a CUDA or ROCm device.

    On a machine without a GPU only a compiler's fake tensors have such a device; it is assumed to
    be recent.
    """
    if not is_installed():
        return False
    if torch.version.hip or not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


@lru_cache(maxsize=4096)
def on_device(ready: Prepared) -> Prepared:
    """Return the call with Triton kernels."""
    from poolgrad.torch.triton.kernels import Kernels

    kernels: Any = Kernels(ready.layout, ready.route_bits)
    made = replace(ready)
    vars(made)["kernels"] = kernels  # in place of the compiled kernels
    return made
