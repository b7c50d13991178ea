"""Checks the arguments and inputs of layers, so that each error message is written once."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from poolgrad.rule import brief, positive


def count(name: str, value: object) -> int:
    """Return a positive integer as Python's int.

    Raises
    ------
    TypeError, ValueError
        If `value` is not an integer, or not positive; `name` is the argument in the message.
    """
    return positive(name, value, 1)[0]


def optional_count(name: str, value: object) -> int | None:
    """Return a positive integer, or None where there is none."""
    return None if value is None else count(name, value)


def number(name: str, value: object) -> float:
    """Return a finite real number as Python's float.

    Raises
    ------
    TypeError, ValueError
        If `value` is not a number, or infinite or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {brief(value)}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {brief(value)}")
    return float(value)


def check_map(
    layer: str, x: object, channels: int | None = None, size: tuple[int, int] | None = None
) -> None:
    """Check the input of a layer of two spatial axes.

    Parameters
    ----------
    layer : str
        The name of the layer, for the error.
    x : object
        The input; it must be a floating tensor of shape (N, C, H, W) or (C, H, W).
    channels : int, optional
        The only accepted number of channels.
    size : (int, int), optional
        The only accepted height and width.

    Raises
    ------
    TypeError, ValueError
        If the input is anything else.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor for {layer}, got {type(x).__qualname__}")
    if not x.is_floating_point():
        raise TypeError(f"x must be of a floating dtype for {layer}, got {x.dtype}")
    shape = tuple(x.shape)
    if len(shape) not in (3, 4):
        raise ValueError(
            f"x must have the shape (N, C, H, W) or (C, H, W) for {layer}, got {shape}"
        )
    if min(shape[-2:]) < 1:
        raise ValueError(f"x must have at least one row and one column for {layer}, got {shape}")
    if channels is not None and shape[-3] != channels:
        raise ValueError(f"x must have {channels} channels for this {layer}, got shape {shape}")
    if size is not None and shape[-2:] != size:
        raise ValueError(
            f"x must have height and width {size} for this {layer}, got shape {shape}"
        )


def learned(channels: int | None, value: float) -> torch.nn.Parameter:
    """Return a parameter filled with a number: of shape (), or one for each channel."""
    shape = () if channels is None else (channels,)
    return torch.nn.Parameter(torch.full(shape, value))
