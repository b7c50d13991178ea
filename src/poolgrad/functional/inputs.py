"""Reads the shape of an input of any front end, and recognises proxies that record calls."""

from __future__ import annotations

from typing import Any

from poolgrad.frontend import front_end
from poolgrad.windows import brief, first_pooled


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


def dimensions(x: Any, dim: Any, dims: int, channels_last: object) -> tuple[Any, ...]:
    """Return the names of the dimensions of `x` in the argument `dim`, checked.

    Parameters
    ----------
    x : array of xarray
        The input.
    dim : hashable or sequence of hashable
        One or several names.
    dims : int
        The number of names; 0 stands for one to three.
    channels_last : object
        The argument `channels_last`.

    Raises
    ------
    TypeError, ValueError
        If `x` is not an array of xarray, `channels_last` is set, or the names are not `dims`
        different names of its dimensions.
    """
    front = front_end(x)
    if front.name != "xarray":
        raise TypeError(f"dim is accepted only if x is an xarray object, got {front.noun} x")
    if channels_last:
        raise ValueError("channels_last must be False if dim is set, got True")
    names = tuple(dim) if isinstance(dim, list | tuple) else (dim,)
    wanted = f"{dims}" if dims else "one to three"
    if len(names) not in ((dims,) if dims else (1, 2, 3)) or len({*names}) < len(names):
        raise ValueError(f"dim must be {wanted} different names of dimensions, got {brief(dim)}")
    if not {*names} <= {*x.dims}:
        raise ValueError(f"dim must be among the dimensions of x, {x.dims}, got {brief(dim)}")
    return names


def is_proxy(x: object) -> bool:
    """Whether `x` records calls by PyTorch's protocol without being a tensor, as in `torch.fx`."""
    kind = type(x)
    return hasattr(kind, "__torch_function__") and not hasattr(kind, "data_ptr")


def recorded(function: Any, x: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Record a call of a public function with a proxy."""
    return type(x).__torch_function__(function, (type(x),), args, kwargs)
