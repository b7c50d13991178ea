"""Checks of further arguments of layers: learned numbers and sizes."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from poolgrad.torch.layers.inputs import one_positive
from poolgrad.windows import brief


def optional_count(name: str, value: object) -> int | None:
    """Return an argument that is a positive integer, or None."""
    return None if value is None else one_positive(name, value)


def number(name: str, value: object) -> float:
    """Return an argument that is a finite real number as Python's float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {brief(value)}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {brief(value)}")
    return float(value)


def check_size(x: Tensor, size: tuple[int, int]) -> None:
    """Raise a ValueError unless maps have the height and width of a layer."""
    if tuple(x.shape[-2:]) != size:
        raise ValueError(f"x must have height and width {size}, got shape {tuple(x.shape)}")


def learned(channels: int | None, value: float) -> torch.nn.Parameter:
    """Return a parameter filled with a number: of shape (), or one for each channel."""
    shape = () if channels is None else (channels,)
    return torch.nn.Parameter(torch.full(shape, value))
