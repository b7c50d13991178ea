"""Reads the shape of an input of any front end, and recognises proxies that record calls."""

from __future__ import annotations

from typing import Any

from poolgrad.frontend import front_end
from poolgrad.windows import first_pooled


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of an input of any front end."""
    try:
        if not getattr(x, "is_nested", False):
            return tuple(x.shape)
    except AttributeError:  # lists
        pass
    return tuple(front_end(x).asarray("x", x).shape)  # of nested tensors: raises the error


def pooled_sizes(x: Any, dims: int, channels_last: bool) -> tuple[int, ...]:
    """Return the sizes of the pooled axes of `x`.

    Raises
    ------
    ValueError
        If `x` has too few axes.
    """
    shape = shape_of(x)
    first = first_pooled(shape, dims, channels_last)
    return shape[first : first + dims]


def is_proxy(x: object) -> bool:
    """Whether `x` records calls by PyTorch's protocol without being a tensor, as in `torch.fx`."""
    kind = type(x)
    return hasattr(kind, "__torch_function__") and not hasattr(kind, "data_ptr")


def recorded(function: Any, x: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Record a call of a public function with a proxy."""
    return type(x).__torch_function__(function, (type(x),), args, kwargs)
