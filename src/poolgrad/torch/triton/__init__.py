"""GPU kernels in Triton, for CUDA and ROCm tensors. Read README.md first.

Triton is imported when the first such tensor arrives. Nothing here imports it before.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from poolgrad import operators
from poolgrad.core import with_kernels
from poolgrad.operators import Prepared


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether Triton can be imported."""
    return find_spec("triton") is not None


@lru_cache(maxsize=4096)
def prepare(
    name: str, rule: Any, options: tuple[Any, ...], shape: tuple[int, ...], channels_last: bool,
    inner: int, dtype: str,
) -> Prepared:  # fmt: skip
    """`operators.prepare` with kernels that run on the tensors' own device."""
    from poolgrad.torch.triton.kernels import Kernels

    ready = operators.prepare(name, rule, options, shape, channels_last, inner, dtype)
    bits = ready.operator.route_bits(ready.plan.window, *options)
    kernels: Any = Kernels(ready.plan, bits)
    return ready._replace(plan=with_kernels(ready.plan, kernels))
