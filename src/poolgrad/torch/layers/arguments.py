"""Checks the arguments of layers and of their calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, ClassVar, dataclass_transform

import torch
from torch import Tensor, fx, nn

from poolgrad.torch.arrays import is_in_graph
from poolgrad.torch.base import not_scriptable
from poolgrad.windows import Ints, brief, per_axis, positive


@dataclass_transform(eq_default=False)
class Layer(nn.Module):
    """Base class of the layers: a dataclass, whose fields are the arguments of the constructor.

    A field is checked by the function of its name in `CHECKS`; None is accepted where it is the
    default. Layers with a module among their arguments define the constructor themselves.

    Attributes
    ----------
    shown : tuple of str
        The arguments that are printed, if not all fields are.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()  # the names of the fields
    shown: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        super().__init__()
        for name, value in zip(self.__match_args__, self.arguments, strict=True):
            is_given = value is not None or getattr(type(self), name, ...) is not None
            if name in CHECKS and is_given:
                setattr(self, name, CHECKS[name](name, value))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The values of the fields."""
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __prepare_scriptable__(self) -> nn.Module:
        raise not_scriptable(self)

    def extra_repr(self) -> str:
        """Return the arguments for `repr`."""
        names = self.shown or self.__match_args__
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class WindowedLayer(Layer):
    """Base class of the layers for maps with a given number of channels, divided into windows.

    The default stride is the kernel size.
    """

    channels: int
    kernel_size: Ints = 2
    stride: Ints | None = None
    padding: Ints = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stride = self.stride or self.kernel_size
        self.padding = padding_of(self.padding, self.kernel_size)

    @property
    def windows(self) -> tuple[Any, ...]:
        """Kernel size, stride and padding."""
        return self.kernel_size, self.stride, self.padding


# Arguments of calls. In graphs that torch.fx traces, these functions are nodes, if they are called
# as attributes of this module.


@fx.wrap
def check_maps(x: Any, channels: int | None = None, size: Ints | None = None) -> Tensor:
    """Return `x` if a layer can pool it.

    Parameters
    ----------
    x : object
        The argument of the call.
    channels : int, optional
        Number of channels of the layer; default: any number.
    size : (int, int), optional
        Height and width of the maps of the layer; default: any.

    Raises
    ------
    TypeError
        If `x` is not a floating-point tensor.
    ValueError
        If its shape is not ``(N, C, H, W)`` or ``(C, H, W)``, an axis but the batch is empty, or
        the channels or the size are not those of the layer.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {brief(x)} ({type(x).__qualname__})")
    if not x.is_floating_point():
        raise TypeError(f"x must be a tensor of floating-point numbers, got {x.dtype}")
    if x.dim() not in (3, 4):
        raise ValueError(f"x must have the shape (N, C, H, W) or (C, H, W), got {tuple(x.shape)}")
    shape = tuple(x.shape)
    if 0 in shape[-3:]:
        raise ValueError(f"x must have at least one channel, row and column, got shape {shape}")
    if channels is not None and x.shape[-3] != channels:
        raise ValueError(
            f"x must have {channels} channels, got {x.shape[-3]} (shape {tuple(x.shape)})"
        )
    if size is not None and tuple(x.shape[-2:]) != size:
        raise ValueError(f"x must have height and width {size}, got shape {tuple(x.shape)}")
    return x


@fx.wrap
def batched(x: Tensor) -> Tensor:
    """Return checked maps as a batch of shape (N, C, H, W)."""
    return x if x.dim() == 4 else x[None]


@fx.wrap
def unbatched(y: Tensor, x: Tensor) -> Tensor:
    """Return the result of ``batched(x)``, without the batch axis if `x` has none."""
    return y if x.dim() == 4 else y[0]


@fx.wrap
def check_fits(x: Tensor, kernel_size: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """Return maps into which, padded, at least one window fits; others are a ValueError."""
    height, width = (n + 2 * pad for n, pad in zip(x.shape[-2:], padding, strict=True))
    if height < kernel_size[0] or width < kernel_size[1]:
        raise ValueError(
            f"kernel_size {kernel_size} must fit into the padded map of {height} x {width}; "
            f"x has shape {tuple(x.shape)} and padding is {padding}"
        )
    return x


# Arguments of constructors


def one_positive(name: str, value: object) -> int:
    """Return an argument that is one positive integer."""
    return positive(name, value, 1)[0]


def number(name: str, value: object) -> float:
    """Return an argument that is a finite real number as Python's float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {brief(value)}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {brief(value)}")
    return float(value)


def pair(name: str, value: object) -> tuple[int, int]:
    """Return an argument that is a positive integer, or one for each of height and width."""
    height, width = positive(name, value, 2)
    return height, width


def padding_of(value: object, kernel_size: Any) -> tuple[int, int]:
    """Return a padding at both ends of the height and of the width, at most half the window.

    More padding would make windows that hold no input.
    """
    height, width = per_axis("padding", value, 2)
    if min(height, width) < 0 or 2 * height > kernel_size[0] or 2 * width > kernel_size[1]:
        raise ValueError(
            f"padding must be from 0 to half of kernel_size={kernel_size}, got {brief(value)}"
        )
    return height, width


def one_of(name: str, value: object, accepted: tuple[str, ...]) -> str:
    """Return an argument that is one of some words."""
    if not isinstance(value, str) or value not in accepted:
        words = ", ".join(map(repr, accepted))
        raise ValueError(f"{name} must be one of {words}, got {brief(value)}")
    return value


_COUNTS = ("channels", "depth", "filter_size", "heads", "latents", "out_channels")
_SIZES = ("grid_size", "kernel_size", "size", "stride")

CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(_COUNTS, one_positive),
    **dict.fromkeys(_SIZES, pair),
    "padding_mode": partial(one_of, accepted=("reflect", "replicate", "zeros", "circular")),
    "per": partial(one_of, accepted=("layer", "channel")),
}
"""The check of an argument, by its name: layers check arguments of the same name alike."""


# Computation


def sum_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of sums: in float16 and bfloat16, constant weights would be rounded."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which autocast does not change the dtype of sums."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def on_cpu(x: Tensor) -> bool:
    """Whether reading values does not wait, and no derivative adds by atomics.

    Of subclasses of tensors (fake, distributed) this is not known, outside graphs.
    """
    return x.is_cpu and (type(x) in (Tensor, nn.Parameter) or is_in_graph())
