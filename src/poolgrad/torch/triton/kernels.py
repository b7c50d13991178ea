"""`Kernels`: the methods of the compiled kernels for a layout, implemented in Triton."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from poolgrad.torch._compat import assert_later
from poolgrad.torch.triton import unpool
from poolgrad.torch.triton.launch import TILE, View, launch
from poolgrad.torch.triton.layout import storage
from poolgrad.torch.triton.weighted import WeightedKernels


class Kernels(WeightedKernels):
    """All methods of the compiled ``_kernels.Plan``; see `LayoutKernels`."""

    def unpool(self, x: Tensor, indices: Tensor, y: Tensor, threads: int) -> None:
        """Write every input to the position of its index, and zeros elsewhere."""
        targets, places = self._targets(indices)
        y.zero_()
        self._scatter(unpool.unpool, self._in_memory_order(x), targets, places, self._output(y))

    def unpool_backward(self, gy: Tensor, indices: Tensor, gx: Tensor, threads: int) -> None:
        """Fill the gradient of the input."""
        targets, places = self._targets(indices)
        self._scatter(
            unpool.unpool_backward, self._in_memory_order(gy), targets, places, self._input(gx)
        )

    def _scatter(
        self, kernel: Any, values: Tensor, targets: Tensor, places: Tensor, made: View
    ) -> None:
        count = targets.numel()
        grid = -(-count // TILE)
        launch(kernel, grid, values, targets, places, count, made.tensor, BLOCK=TILE)

    def _targets(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sorted positions of inputs in the output's memory, and the input of each."""
        size = math.prod(self.out)
        assert_later(
            ((indices >= 0) & (indices < size)).all(), f"indices must be from 0 to {size - 1}"
        )
        flat = self._in_memory_order(indices).reshape(self.planes, -1, self.channels)
        device = indices.device
        plane = torch.arange(self.planes, dtype=torch.int64, device=device).reshape(-1, 1, 1)
        channel = torch.arange(self.channels, dtype=torch.int64, device=device)
        target = (plane * size + flat) * self.channels + channel
        ordered, place = torch.sort(target.reshape(-1), stable=True)
        return ordered, place

    def _in_memory_order(self, tensor: Tensor) -> Tensor:
        return storage(tensor).permute(self.layout.order).contiguous()
