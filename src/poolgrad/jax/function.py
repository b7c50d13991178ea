"""Computes the calls of the public functions for JAX arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from poolgrad import arguments
from poolgrad.composition import Functions
from poolgrad.core import Layout, first_pooled
from poolgrad.interface import Request, indexed
from poolgrad.jax.primitives import bound, forward_p
from poolgrad.jax.static import Static, has_wide_numbers
from poolgrad.numpy import readable
from poolgrad.operands import Parameter, Samples, WindowSamples
from poolgrad.operators import Prepared
from poolgrad.portable import engine
from poolgrad.windows import WindowKind, unmasked


def perform(request: Request) -> Any:
    """Compute the call of a public function."""
    if request.out is not None:
        raise TypeError("out is accepted only if x is a NumPy array, got a JAX array x")
    if request.spec.kind is WindowKind.FRACTIONAL and request.channels_last:
        return _channels_moved(request)
    x = asarray(request.x)
    pool = _pooling(request, x)
    ready = pool.prepared(x.shape, x.dtype.name)
    layout = ready.layout
    if pool.operator.result(x.dtype.name) == "float64" and not has_wide_numbers():
        x = x.astype(jnp.float32)  # without 64-bit types the mean of integers is float32
    operand = pool.operator.operand
    operands = tuple(operand.convert(_CONVERTER, v, x, ready) for v in request.operands)
    if not request.return_indices:
        return _shaped(bound(forward_p, x, *operands, pool=pool, keep=0)[0], request, layout)
    plain = pool._replace(options=indexed(pool.options))
    y, routes = bound(forward_p, x, *operands, pool=plain, keep=1)
    if plain != pool:  # the gradient depends on `ties`, the indices do not
        (y,) = bound(forward_p, x, *operands, pool=pool, keep=0)
    found = engine.indices(
        layout, routes, operands[0] if pool.operator.operand.determines_windows else None
    )
    return _shaped(y, request, layout), _shaped(found, request, layout)


def vjp(request: Request) -> Any:
    """Raise an error, because JAX differentiates its own arrays."""
    raise TypeError(
        "vjp supports NumPy and Dask arrays; JAX differentiates its own arrays: use jax.vjp or "
        "jax.grad"
    )


def asarray(x: Any) -> Array:
    """Return the array if it holds numbers."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise TypeError(f"x must be an array of numbers, got one of {x.dtype}")
    return jnp.asarray(readable(x) if isinstance(x, np.ndarray) else x)  # JAX: native order only


def operand(name: str, value: Any) -> Array:
    """Return an array of a composed operator, checked."""
    if not isinstance(value, Array | np.ndarray):
        raise TypeError(f"{name} must be an array, got {type(value).__qualname__}")
    return asarray(unmasked(name, value))


def dtype_name(x: Array) -> str:
    """Return the name of the dtype of an array."""
    return str(x.dtype.name)


def functions(x: Array) -> Functions:
    """Return the functions that a composed operator may call."""
    return Functions(
        jnp.exp, jnp.where, jnp.max, lambda x, dtype: x.astype(dtype), jax.lax.stop_gradient
    )


def _pooling(request: Request, x: Array) -> Static:
    first_pooled(x.shape, request.spec.dims, request.channels_last)
    options = request.options
    floating = jnp.issubdtype(x.dtype, jnp.floating)
    if not floating and getattr(options, "ties", None) == "split":
        options = indexed(options)  # integers have no gradient to split
    return Static(request.operator, request.spec, options, request.channels_last)


def _channels_moved(request: Request) -> Any:
    """Pool with channels first, because each channel has its own samples."""
    first = first_pooled(request.x.shape, request.spec.dims, True)
    moved = jnp.moveaxis(asarray(request.x), -1, first)
    result = perform(replace(request, x=moved, channels_last=False))
    return jax.tree.map(lambda y: jnp.moveaxis(y, first, -1), result)


def _shaped(y: Array, request: Request, layout: Layout) -> Array:
    return y if request.keepdims else y.squeeze(layout.pooled)


# The extra operand


def _is_abstract(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


def _without_axis(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return () for the shape of one number, so that a batch axis is not taken for channels."""
    return () if shape == (1,) else shape


_GENERATOR = "key of jax.random"


def is_key(value: Any) -> bool:
    """Return whether `value` is a key of jax.random."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return False
    raw = dtype == jnp.uint32 and getattr(value, "shape", None) == (2,)
    return raw or jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


class _Converter:
    """Converts extra operands to JAX arrays; see `operands.Converter`."""

    def parameter(self, operand: Parameter, value: Any, x: Array, ready: Prepared) -> Array:
        layout = ready.layout
        name, dtype = operand.name, layout.sum_dtype
        if not isinstance(value, Array) and hasattr(value, "__jax_array__"):  # of Flax NNX
            value = value.__jax_array__()
        if not _is_abstract(value):
            numbers = operand.checked(value, ready)
            return jnp.asarray(numbers.reshape(_without_axis(numbers.shape)))
        if not any(jnp.issubdtype(value.dtype, kind) for kind in (jnp.floating, jnp.integer)):
            raise arguments.refuse_numbers(name, value.dtype)
        arguments.check_length(name, value.shape, layout.channels)
        least, most = arguments.SIZES[dtype]
        if value.dtype == jnp.float64:  # only float64 holds numbers that float32 does not
            size = jnp.abs(value)
            odd = (size != 0) & jnp.isfinite(size) & ((size < least) | (size > most))
            value = jnp.where(odd, jnp.copysign(jnp.clip(size, least, most), value), value)
        held: Array = value.astype(dtype).reshape(_without_axis(value.shape))
        return held

    def seed(self, value: Any, x: Array) -> Any:
        """Return the two 32-bit halves of a 64-bit number, the lower half first."""
        if is_key(value):
            return jax.random.bits(value, (2,), jnp.uint32)
        seed = arguments.seed(value)
        if seed is None:
            if value is None:
                raise TypeError(
                    f"generator must be a {_GENERATOR} or a seed for JAX arrays, got None"
                )
            raise arguments.refuse_generator(_GENERATOR, value)
        return np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)

    def samples(self, operand: WindowSamples, value: Samples, x: Array, ready: Prepared) -> Array:
        layout = ready.layout
        dtype = jnp.dtype(layout.dtype)
        dtype = dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.dtype(jnp.float32)
        shape, most = arguments.samples_shape(layout), arguments.below_one(dtype.name)
        given = value.values
        if given is None:
            key = value.generator
            if not is_key(key):
                low, high = self.seed(key, x)
                key = jax.random.fold_in(jax.random.key(int(low)), int(high))
            given = jax.random.uniform(key, shape, dtype if dtype.itemsize > 2 else jnp.float32)
        elif _is_abstract(given):
            arguments.check_samples_dtype(given.dtype.name)
            arguments.check_samples_shape(given.shape, layout)
        else:
            given = readable(operand.checked(given, layout))
        samples = jnp.minimum(jnp.asarray(given).astype(dtype), jnp.asarray(most, dtype))
        leading = (s for a, s in enumerate(layout.in_shape) if a not in layout.pooled)
        return jax.lax.stop_gradient(samples.reshape(*leading, len(layout.pooled)))

    def indices(self, value: Any, x: Array) -> Array:
        if not isinstance(value, Array | np.ndarray):
            raise TypeError(f"indices must be an array, got {type(value).__qualname__}")
        if isinstance(value, np.ndarray):  # which may have a mask
            value = readable(arguments.plain("indices", value, "an array"))
        # JAX converts int64 to int32 unless 64-bit types are enabled.
        wide = "int64" if value.dtype == jax.dtypes.canonicalize_dtype(np.int64) else value.dtype
        arguments.check_indices(wide, value.shape, x.shape)
        return jnp.asarray(value)


_CONVERTER = _Converter()
