"""Calls of public functions on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from robustness.calls import example
from torch import Tensor

from poolgrad.functional import FUNCTIONS

Pool = Callable[[Tensor], Tensor]

# Every public function in two dimensions, and every option that chooses other kernels.
CALLS: list[tuple[str, dict[str, Any]]] = [
    *((n, {}) for n in FUNCTIONS if n.endswith("2d") or n.startswith("global")),
    ("max_pool2d", {"ties": "split"}),
    ("max_pool2d", {"ties": "zero"}),
    ("max_pool2d", {"routes": "packed"}),
    ("max_pool2d", {"kernel_size": 9, "padding": 4}),  # separable
    ("avg_pool2d", {"kernel_size": 9, "padding": 4}),
]
# The others are computed by `poolgrad.portable`, without Triton kernels.
PORTABLE = ("stochastic", "median", "fractional", "max_unpool")
WITH_KERNELS = [c for c in CALLS if not c[0].startswith(PORTABLE) and c[1] != {"ties": "split"}]
DETERMINED = [c for c in CALLS if not c[0].startswith("stochastic")]


def name_of(call: tuple[str, dict[str, Any]]) -> str:
    return " ".join(map(str, (call[0], *call[1].values())))


def made(
    call: tuple[str, dict[str, Any]], device: str, batch: int = 1, channels_last: bool = False
) -> tuple[Pool, Tensor]:
    """A pooling of `example`, with its tensors on the device, and an input of 2 * batch images."""
    name, options = call
    shape, kwargs = example(name, channels_last)
    for key, value in kwargs.items():
        if isinstance(value, np.ndarray):
            tensor = torch.tensor(value, device=device)
            if tensor.is_floating_point():
                tensor = tensor.float()
            if len(tensor) == shape[0]:  # not a learned argument, which has a number per channel
                tensor = tensor.repeat(batch, *(1,) * (tensor.dim() - 1))
            kwargs[key] = tensor
    arguments = kwargs | options
    x = torch.randn(shape[0] * batch, *shape[1:], generator=torch.manual_seed(5))
    return lambda t: FUNCTIONS[name](t, **arguments), x.to(device).requires_grad_()


def outcome(pool: Pool, x: Tensor) -> tuple[Tensor, Tensor]:
    y = pool(x)
    return y, torch.autograd.grad(y, x, torch.ones_like(y))[0]
