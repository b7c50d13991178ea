"""Functions for arrays of any library: namespace, dtypes, device, and pooled axes moved last."""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace, device, is_jax_array

from poolgrad.arguments import SIZES
from poolgrad.dtypes import INTEGERS
from poolgrad.windows import Layout

_WIDE_INTEGERS = ("uint32", "int64")


def namespace(x: Any) -> Any:
    """Return the array-API namespace of the library of an array."""
    return array_namespace(x)


def placed(x: Any) -> dict[str, Any]:
    """Return the keyword argument that creates an array on the device of `x`."""
    return {} if is_jax_array(x) else {"device": device(x)}  # traced arrays have no device yet


def converted(xp: Any, x: Any, dtype: str) -> Any:
    """Convert an array to another dtype."""
    return xp.astype(x, getattr(xp, dtype))


def narrowed(xp: Any, x: Any, dtype: str) -> Any:
    """Convert real numbers to the dtype of sums; see `arguments.within`."""
    if x.dtype == xp.float64 and dtype == "float32":  # it alone holds numbers that float32 does not
        least, largest = SIZES[dtype]
        size = xp.abs(x)
        within = xp.where(size < least, least, xp.where(size > largest, largest, size))
        x = xp.where((size != 0) & xp.isfinite(size), xp.copysign(within, x), x)
    return converted(xp, x, dtype)


def exact_dtype(dtype: str) -> str:
    """Return a dtype that every library supports and that holds every value of this one."""
    if dtype in INTEGERS:
        return "int64" if dtype in _WIDE_INTEGERS else "int32"
    return "float64" if dtype == "float64" else "float32"


def widest(xp: Any, x: Any) -> str:
    """Return the widest floating dtype for `x`: float32 on MPS and in JAX without x64."""
    if is_jax_array(x):
        known = "float64" in xp.__array_namespace_info__().dtypes(kind="real floating")
    else:
        known = getattr(device(x), "type", "") != "mps"
    return "float64" if known else "float32"


def sum_dtype(xp: Any, x: Any, layout: Layout) -> str:
    """Return the dtype in which a linear operator sums."""
    return layout.sum_dtype if layout.sum_dtype == "float32" else widest(xp, x)


def planes(xp: Any, layout: Layout, x: Any) -> Any:
    """Move the pooled axes behind those that are not pooled, and join these: (planes, pooled, ...).

    Axes after those of the input stay there.
    """
    outer = _outer(layout)
    behind = range(len(layout.in_shape), x.ndim)
    moved = xp.permute_dims(x, (*outer, *layout.pooled, *behind))
    count = math.prod(layout.in_shape[a] for a in outer)
    return xp.reshape(moved, (count, *moved.shape[len(outer) :]))


def restored(xp: Any, layout: Layout, x: Any) -> Any:
    """Invert `planes`."""
    outer = _outer(layout)
    full = xp.reshape(x, (*(layout.in_shape[a] for a in outer), *x.shape[1:]))
    order = (*outer, *layout.pooled, *range(len(layout.in_shape), full.ndim))
    return xp.permute_dims(full, tuple(order.index(a) for a in range(full.ndim)))


def _outer(layout: Layout) -> list[int]:
    return [a for a in range(len(layout.in_shape)) if a not in layout.pooled]
