"""The front end for JAX."""

# ruff: noqa: D102 - the base class documents the methods

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from poolgrad import arguments
from poolgrad.buffers import readable
from poolgrad.composition import Functions
from poolgrad.frontend import FrontEnd
from poolgrad.interface import Request
from poolgrad.jax.primitives import bound, forward_p
from poolgrad.jax.static import Static, has_wide_numbers
from poolgrad.operands import Parameter
from poolgrad.operators import Prepared
from poolgrad.pullback import Call
from poolgrad.windows import Layout, WindowKind, first_pooled, unmasked


class JaxFrontEnd(FrontEnd):
    """Pools JAX arrays with the primitives of `primitives`, which JAX transforms."""

    name = "jax"
    noun = "a JAX array"
    differentiation = "JAX differentiates its own arrays: use jax.vjp or jax.grad"

    def asarray(self, name: str, value: Any) -> Array:
        if not isinstance(value, Array | np.ndarray):
            raise TypeError(f"{name} must be an array, got {type(value).__qualname__}")
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
            raise TypeError(f"{name} must be an array of numbers, got one of {value.dtype}")
        if isinstance(value, np.ndarray):
            value = readable(unmasked(name, value))  # JAX: native order only
        return jnp.asarray(value)

    def functions(self, x: Array) -> Functions:
        return Functions(
            jnp.exp, jnp.where, jnp.max, lambda x, dtype: x.astype(dtype), jax.lax.stop_gradient
        )

    def inner(self, request: Request, x: Array) -> int:
        return x.ndim - 1 if request.channels_last else -1

    def perform(self, request: Request) -> Any:
        is_fractional = request.spec.kind is WindowKind.FRACTIONAL
        if not (is_fractional and request.channels_last):
            return super().perform(request)
        # Each channel has its own samples, so that channels must be first.
        x = self.asarray("x", request.x)
        first = first_pooled(x.shape, request.spec.dims, True)
        moved = replace(request, x=jnp.moveaxis(x, -1, first), channels_last=False)
        return jax.tree.map(lambda y: jnp.moveaxis(y, first, -1), super().perform(moved))

    def forward(self, call: Call, keep: bool = False) -> tuple[Array, tuple[Array, ...]]:
        ready, x = call.ready, call.x
        sizes = tuple(x.shape[a] for a in ready.layout.pooled)
        pool = Static(ready.operator.name, ready.spec, ready.options, ready.channels_last, sizes)
        if ready.layout.out_dtype == "float64" and not has_wide_numbers():
            x = x.astype(jnp.float32)  # without 64-bit types the mean of integers is float32
        operands = () if call.operand is None else (call.operand,)
        y, *residual = bound(forward_p, x, *operands, pool=pool, keep=int(keep))
        return y, (*residual,)

    # Extra operands

    def is_own(self, value: Any) -> bool:
        return isinstance(value, jax.core.Tracer)

    def from_numpy(self, array: Any, x: Array) -> Array:
        return jnp.asarray(readable(np.asarray(array)))

    def parameter(self, operand: Parameter, value: Any, x: Array, ready: Prepared) -> Array:
        if not isinstance(value, Array) and hasattr(value, "__jax_array__"):  # of Flax NNX
            value = value.__jax_array__()
        theta = super().parameter(operand, value, x, ready)
        # So that a batch axis is not taken for channels.
        return theta.reshape(()) if theta.shape == (1,) else theta

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

    def drawn(self, generator: Any, shape: tuple[int, ...], x: Array) -> Array:
        key = generator
        if not is_key(key):
            low, high = self.seed(key, x)
            key = jax.random.fold_in(jax.random.key(int(low)), int(high))
        wide = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize > 2
        return jax.random.uniform(key, shape, x.dtype if wide else jnp.float32)

    def samples_below_one(self, samples: Any, dtype: str, x: Array, layout: Layout) -> Array:
        most = jnp.asarray(arguments.below_one(dtype), dtype)
        below = jnp.minimum(jnp.asarray(samples).astype(dtype), most)
        leading = (s for a, s in enumerate(layout.in_shape) if a not in layout.pooled)
        return jax.lax.stop_gradient(below.reshape(*leading, len(layout.pooled)))

    def indices(self, value: Any, x: Array) -> Array:
        value = self.asarray("indices", value)
        # JAX converts int64 to int32 unless 64-bit types are enabled.
        wide = "int64" if value.dtype == jax.dtypes.canonicalize_dtype(np.int64) else value.dtype
        arguments.check_indices(wide, value.shape, x.shape)
        return value


_GENERATOR = "key of jax.random"


def is_key(value: Any) -> bool:
    """Return whether `value` is a key of jax.random."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return False
    raw = dtype == jnp.uint32 and getattr(value, "shape", None) == (2,)
    return raw or jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


FRONT_END = JaxFrontEnd()
