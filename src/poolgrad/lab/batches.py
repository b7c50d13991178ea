"""Images and their targets as data sets of PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


def dataset(images: NDArray[Any], targets: NDArray[Any], indices: NDArray[Any]) -> TensorDataset:
    """The images at these indices, with their labels or masks."""
    return TensorDataset(torch.from_numpy(images[indices]), torch.from_numpy(targets[indices]))


def in_order(data: TensorDataset, batch: int) -> DataLoader[tuple[Tensor, ...]]:
    """A loader of batches in the order of the data; the last may be smaller."""
    batches = torch.arange(len(data)).split(batch)
    return DataLoader(data, batch_size=None, sampler=batches)
