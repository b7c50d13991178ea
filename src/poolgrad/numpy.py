"""The front end for NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad.core import get_num_threads, inner_axis
from poolgrad.operators import Buffer, Prepared, Request, prepare

Array = NDArray[Any]

_ACCEPTED = {np.dtype(np.float32), np.dtype(np.float64)}


def asarray(x: Any, name: str = "x") -> Array:
    """An array that the kernels can read; a copy only if it has to be one.

    Raises
    ------
    TypeError
        If its dtype is not float32 or float64, or it has a mask.
    """
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} must have no mask; fill it first, as in {name}.filled(-np.inf)")
    try:
        array = np.asarray(x)
    except ValueError as error:  # lists of unequal lengths
        raise ValueError(f"{name} must be an array or lists of equal lengths: {error}") from error
    if array.dtype not in _ACCEPTED:
        native = array.dtype.newbyteorder("=")
        if native not in _ACCEPTED:
            raise TypeError(f"{name} must be of dtype float32 or float64, got {array.dtype}")
        return array.astype(native)
    if any(s % array.itemsize for s in array.strides) or not array.flags.aligned:
        return array.copy(
            "K"
        )  # a field of a record: its items do not lie at multiples of their size
    return array


def allocate(buffer: Buffer) -> Array:
    """The array that a buffer describes, not initialised."""
    shape, order, dtype = buffer
    if order == tuple(range(len(shape))):
        return np.empty(shape, dtype)
    memory = np.empty([shape[a] for a in order], dtype)
    return memory.transpose(np.argsort(order))


def prepared(request: Request, x: Array) -> Prepared:
    """The operator and plan for this input."""
    strides = tuple(s // x.itemsize for s in x.strides)
    inner = inner_axis(x.shape, strides, len(request.rule), request.channels_last)
    return prepare(
        request.operator,
        request.rule,
        request.options,
        x.shape,
        request.channels_last,
        inner,
        x.itemsize,
    )


def forward(
    ready: Prepared, request: Request, x: Array, keep: bool
) -> tuple[Array, tuple[Array, ...]]:
    """The output, and the residual if it is to be kept."""
    plan = ready.plan
    y = allocate(Buffer(plan.out_shape, plan.order, x.dtype.name))
    residual = tuple(allocate(b) for b in ready.residual) if keep else ()
    ready.operator.forward(plan, x, y, residual, get_num_threads(), *request.options)
    return y, residual


def perform(request: Request) -> Any:
    """Do what a public function describes."""
    x = asarray(request.x)
    ready = prepared(request, x)
    if request.out is not None:
        _check_out(request.out, ready.plan.out_shape, x.dtype)
    if request.return_indices:
        y, indices = with_indices(ready, request, x)
        return _into(request.out, y), indices
    target = _direct(request.out, ready, x)
    if target is not None:
        ready.operator.forward(ready.plan, x, target, (), get_num_threads(), *request.options)
        return request.out
    y, _ = forward(ready, request, x, keep=False)
    return shaped(_into(request.out, y), ready, request)


def with_indices(ready: Prepared, request: Request, x: Array) -> tuple[Array, Array]:
    """The output and, for each, the flat position of its (first) winner in its plane."""
    plan = ready.plan
    routed = ready.operator.residual(plan, "first")  # whatever the ties: an index is of one winner
    routes = allocate(routed[0])
    y = allocate(Buffer(plan.out_shape, plan.order, x.dtype.name))
    ready.operator.forward(plan, x, y, (routes,), get_num_threads(), "first")
    return y, indices_of(plan, routes)


def indices_of(plan: Any, routes: Array) -> Array:
    """Routes as flat positions in their plane."""
    indices = allocate(Buffer(plan.out_shape, plan.order, "int64"))
    plan.kernels.route_indices(routes, indices, get_num_threads())
    return indices


def shaped(y: Array, ready: Prepared, request: Request) -> Array:
    """The result without its pooled axes, unless they are to be kept."""
    return y if request.keepdims else y.squeeze(ready.plan.pooled)


def _check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise TypeError(f"out must be a NumPy array without a mask, got {type(out).__qualname__}")
    if out.shape != shape:
        raise ValueError(f"out must have shape {shape}, got {out.shape}")
    if out.dtype != dtype or not out.dtype.isnative:
        raise TypeError(f"out must be of dtype {dtype}, got {out.dtype}")
    if not out.flags.writeable:
        raise ValueError("out must be writeable, got a read-only array")


def _direct(out: Array | None, ready: Prepared, x: Array) -> Array | None:
    """`out` itself if the kernels can write it as it lies, and it is not (part of) the input."""
    if out is None or np.may_share_memory(out, x):
        return None
    return out if out.transpose(ready.plan.order).flags.c_contiguous else None


def _into(out: Array | None, y: Array) -> Array:
    if out is None:
        return y
    np.copyto(out, y)
    return out
