"""The front end for NumPy arrays."""

# ruff: noqa: D102 - the base class documents the methods

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad import arguments, call_cache
from poolgrad.buffers import (
    SPEC,
    allocate,
    as_buffer,
    dtype_named,
    is_readable,
    laid_out,
    maker,
    name_of,
    placeholder,
    read_only,
    readable,
    restored,
)
from poolgrad.composition import Functions
from poolgrad.core import get_num_threads
from poolgrad.frontend import FrontEnd
from poolgrad.interface import Buffer, Request, indexed
from poolgrad.pullback import Call, Pullback
from poolgrad.windows import Layout, inner_axis

Array = NDArray[Any]


@lru_cache
def _contiguous_key(shape: tuple[int, ...], dtype: str) -> tuple[Any, ...]:
    gy = placeholder(shape, dtype_named(dtype))
    return (SPEC.parts(gy) if as_buffer(gy) is gy else None) or ()


@dataclass(eq=False)
class NumpyCall(Call):
    """A call of NumPy arrays; the kernels of its gradient are bound (see `call_cache`)."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Without bound kernels; and arrays of a pickle may not be readable for kernels.
        return restored, (NumpyCall, self.front, self.request, self.ready, None, self.operand)

    @property
    def has_kernels(self) -> bool:
        """Whether the CPU has kernels for the operator."""
        return self.ready.operator.has_kernels("cpu", self.ready.options)

    @property
    def kernel_operand(self) -> Any:
        """The extra operand in the form that an operator's methods take."""
        operand, array = self.ready.operator.operand, np.asarray(self.operand)
        return operand.kernel_form(as_buffer(array), array.size, int) if operand.count else None

    @cached_property
    def contiguous_key(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The part of a cache key for a contiguous cotangent, which needs no conversion; or ()."""
        layout = self.ready.layout
        return _contiguous_key(layout.out_shape, layout.out_dtype) if self.has_kernels else ()

    @cached_property
    def bound_gradient(self) -> Callable[..., Array]:
        """The function that computes the gradient of the input from that of the output."""
        return call_cache.vjp(self.ready, maker, get_num_threads, self.kernel_operand)


class NumpyFrontEnd(FrontEnd):
    """Pools NumPy arrays with the kernels of the CPU, or else with `poolgrad.portable`."""

    name = "numpy"
    noun = "a NumPy array"
    call_type = NumpyCall

    def asarray(self, name: str, value: Any) -> Array:
        """Return an array that the kernels can read, without a copy if possible."""
        if type(value) is np.ndarray:
            return readable(value)
        return readable(arguments.plain(name, value, "an array or lists of equal lengths"))

    def dtype_name(self, x: Array) -> str:
        return name_of(x.dtype)

    def functions(self, x: Array) -> Functions:
        return Functions(np.exp, np.where, np.max, lambda x, dtype: x.astype(dtype_named(dtype)))

    def inner(self, request: Request, x: Array) -> int:
        strides = tuple(s // x.itemsize for s in x.strides)
        return inner_axis(x.shape, strides, request.spec, request.channels_last)

    # Engines

    def forward(self, call: Any, keep: bool = False) -> tuple[Array, tuple[Array, ...]]:
        ready, x = call.ready, call.x
        if not call.has_kernels:
            return super().forward(call, keep)
        y, residual = self._target(call), tuple(map(allocate, ready.residual)) if keep else ()
        how = {"residual": (*map(as_buffer, residual),), "operand": call.kernel_operand}
        made = ready.call(as_buffer(x), as_buffer(y), threads=get_num_threads(), **how)
        ready.operator.forward(made)
        return y, residual

    def indices_of(self, call: Any, routes: Array) -> Array:
        indices = allocate(call.ready.per_output("int64"))
        samples = call.kernel_operand if call.ready.operator.operand.determines_windows else None
        call.ready.kernels.route_indices(routes, indices, samples, get_num_threads())
        return indices

    def routes(self, call: Any, routes: Array) -> Array:
        ready, packed = call.ready, routes
        if ready.route_bits:
            routes = allocate(ready.per_output(ready.layout.route_dtype))
            ready.kernels.unpack_routes(packed, as_buffer(routes), get_num_threads())
        return read_only(routes)

    def gradient(self, call: Any, gy: Array, x: Array | None, residual: Any) -> Array:
        if not call.has_kernels:
            return super().gradient(call, gy, x, residual)
        read = (gy, *(() if x is None else (x,)), *residual[: len(call.ready.needed)])
        gx: Array = call.bound_gradient(*map(as_buffer, read))
        return gx.view(gy.dtype)

    def parameter_gradient(self, call: Any, gy: Array, x: Array | None, residual: Any) -> Array:
        ready, layout = call.ready, call.ready.layout
        if not call.has_kernels:
            return super().parameter_gradient(call, gy, x, residual)
        shape = np.shape(call.operand)
        others = ready.operator.operand.summed_axes(shape, layout)
        with np.errstate(over="ignore", invalid="ignore"):
            # Contiguous, because the order of the sum depends on strides.
            slopes = allocate(ready.per_output(layout.sum_dtype)._replace(order=(*range(gy.ndim),)))
            np.multiply(gy, residual[-1], slopes, dtype=slopes.dtype)
            total = slopes.sum(others, dtype=np.float64).astype(layout.sum_dtype)
        return np.asarray(total).reshape(shape)

    # Pullbacks

    def copied(self, x: Any) -> Array:
        return np.array(x, order="K")

    def laid_out(self, residual: Any, buffers: tuple[Buffer, ...]) -> Any:
        return laid_out(residual, buffers)

    def cotangent(
        self, gy: Any, dtype: str, shape: tuple[int, ...], full: tuple[int, ...]
    ) -> Array:
        return readable(arguments.cotangent(gy, dtype_named(dtype), shape)).reshape(full)

    # Extra operands

    def from_numpy(self, array: Any, x: Array) -> Array:
        return np.asarray(array)

    def samples_below_one(self, samples: Any, dtype: str, x: Array, layout: Layout) -> Array:
        kind, shape = dtype_named(dtype), arguments.samples_shape(layout)
        rounded = samples.astype(kind, order="C").reshape(shape)  # the kernels read no strides
        return rounded.clip(max=arguments.below_one(dtype)).astype(kind, order="C")

    # Cached calls

    def _bindable(self, request: Request) -> NumpyCall | None:
        """Return the call if it can be cached and the kernels take the caller's array itself."""
        if not (call_cache.is_cacheable(request) and is_readable(request.x)):
            return None
        call: Any = self.call(request)
        return call if call.x is request.x and as_buffer(call.x) is call.x else None

    def bound_call(self, request: Request) -> Callable[[Array], Any] | None:
        call, indices = self._bindable(request), request.return_indices
        if call is None:
            return None
        if indices:
            routed = replace(call.request, options=indexed(call.request.options))
            call.ready = self.prepared(routed, call.x)
        how = {"operand": call.kernel_operand, "indices": indices}
        pool = call_cache.forward(call.ready, maker, get_num_threads, **how)
        return call_cache.squeezed(request, call.ready, pool)

    def bound_vjp(self, request: Request) -> Callable[[Array], Any] | None:
        call = self._bindable(request)
        if call is None:
            return None
        shared, ready = self.kept(call), call.ready
        how = {"operand": call.kernel_operand, "keep": ready.residual}
        run = call_cache.forward(ready, maker, get_num_threads, **how)
        has_residual, axes = bool(ready.residual), () if request.keepdims else ready.layout.pooled

        def pool(x: Array) -> tuple[Array, Pullback]:
            y, *residual = run(x) if has_residual else (run(x),)
            return y.squeeze(axes) if axes else y, Pullback(shared, x, residual)

        return pool

    # `out`

    def check_out(self, out: Any) -> None:
        if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
            raise TypeError(
                f"out must be a NumPy array without a mask, got {type(out).__qualname__}"
            )

    def _target(self, call: Any) -> Array:
        """Return the array to write: `out` itself if the kernels can write it, else a new array."""
        out, layout = call.request.out, call.ready.layout
        if out is None:
            return allocate(call.ready.output)
        self._check_result(out, call)
        if not call.request.keepdims:
            out = np.expand_dims(out, layout.pooled)
        read = (a for a in (call.x, call.operand) if isinstance(a, np.ndarray))
        fits = readable(out) is out and out.transpose(layout.order).flags.c_contiguous
        if fits and not any(np.may_share_memory(out, a) for a in read):
            return out
        return allocate(call.ready.output)

    def _check_result(self, out: Any, call: Any) -> None:
        """Raise an error unless the result of a call fits into an array."""
        layout = call.ready.layout
        if out.shape != call.shape:
            raise ValueError(f"out must have shape {call.shape}, got {out.shape}")
        if name_of(out.dtype) != layout.out_dtype:  # in any byte order
            raise TypeError(f"out must be of dtype {layout.out_dtype}, got {out.dtype}")
        if not out.flags.writeable:
            raise ValueError("out must be writeable, got a read-only array")
        if _overlaps_itself(out):
            raise ValueError(
                "out must have its own memory for each element, got an array of shape "
                f"{out.shape} with strides {out.strides}"
            )

    def finished(self, call: Any, y: Array) -> Array:
        out, shaped = call.request.out, call.shaped(y)
        if out is None or out is shaped:
            return shaped
        self._check_result(out, call)  # not yet of composed operators
        np.copyto(out, shaped)
        return out


def _overlaps_itself(array: Array) -> bool:
    """Whether elements share memory: an axis steps less than the extent of the axes inside it."""
    extent = array.itemsize
    axes = zip(array.strides, array.shape, strict=True)
    for step, size in sorted((abs(step), size) for step, size in axes if size > 1):
        if step < extent:
            return array.size > 0
        extent += step * (size - 1)
    return False


FRONT_END = NumpyFrontEnd()
