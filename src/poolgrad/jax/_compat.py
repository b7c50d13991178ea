"""Every private symbol of JAX that poolgrad uses.

`jax.extend` and `jax.interpreters` are meant for extensions, but may change with any version.
"""

from __future__ import annotations

from poolgrad.private import Private

PRIVATE = Private("jax", "0.10")
_symbol = PRIVATE.symbol

requires_devices = _symbol("jax._src.dispatch.prim_requires_devices_during_lowering")
Primitive = _symbol("jax.extend.core.Primitive")
convert_integers = _symbol("jax.extend.mlir.dialects.stablehlo.convert")
apply_primitive = _symbol("jax.interpreters.xla.apply_primitive")

Zero = _symbol("jax.interpreters.ad.Zero")
add_tangents = _symbol("jax.interpreters.ad.add_tangents")
instantiate_zeros = _symbol("jax.interpreters.ad.instantiate_zeros")
is_undefined_primal = _symbol("jax.interpreters.ad.is_undefined_primal")
primitive_jvps = _symbol("jax.interpreters.ad.primitive_jvps")
primitive_transposes = _symbol("jax.interpreters.ad.primitive_transposes")
primitive_batchers = _symbol("jax.interpreters.batching.primitive_batchers")

aval_to_ir_type = _symbol("jax.interpreters.mlir.aval_to_ir_type")
lower_fun = _symbol("jax.interpreters.mlir.lower_fun")
register_lowering = _symbol("jax.interpreters.mlir.register_lowering")
