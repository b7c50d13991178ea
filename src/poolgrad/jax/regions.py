"""The maps of regions of interest for JAX arrays, as a primitive.

RoIAlign is linear in its input, and so is RoIPool for fixed winners. The primitive applies the map
or its transpose, which are each other's derivatives, or finds the winners. `poolgrad.portable`
computes all three. The elements of a batch are further images.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from poolgrad.arguments import boxes as host_boxes
from poolgrad.jax import _compat
from poolgrad.jax.function import FRONT_END
from poolgrad.jax.primitives import bound, lowering
from poolgrad.portable.regions import PortableMap
from poolgrad.region_maps import Bins, KernelMap, RegionMap, check_input, host_table, table_of


class _Static(NamedTuple):
    """What the primitive computes: the name of a method of `RegionMap`, and its map."""

    method: str
    shape: tuple[int, ...]
    bins: Bins


region_p = _compat.Primitive("poolgrad_regions")


def region_map(input: Any, boxes: Any, bins: Bins) -> tuple[Array, RegionMap]:
    """Return the input and the map of its regions; the values of traced boxes are not checked."""
    x = FRONT_END.asarray("input", input)
    check_input(x.dtype, x.shape)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(boxes)):
        table = table_of(boxes, x.shape[0], _converted, _joined)
    else:
        table = host_table(boxes, x.shape[0])
        KernelMap(x.shape, table, x.dtype.name, bins)  # checks the boxes
    return x, _ArrayMap(x, jax.lax.stop_gradient(jnp.asarray(table)), bins)


def _converted(name: str, value: Any) -> Any:
    return value if isinstance(value, Array) else jnp.asarray(host_boxes(name, value))


def _joined(parts: list[Array]) -> Array:
    rows = [jnp.zeros((0, 5))]
    for image, own in enumerate(parts):
        rows.append(jnp.pad(own.astype(float), ((0, 0), (1, 0)), constant_values=image))
    return jnp.concatenate(rows)


class _ArrayMap(RegionMap):
    """The map of regions as calls of the primitive."""

    def __init__(self, x: Array, boxes: Array, bins: Bins) -> None:
        super().__init__(x.shape, boxes.shape[0], x.dtype.name, bins)
        self._boxes = boxes

    def pool(self, x: Array) -> tuple[Array, Array]:
        """Find the winners, which have no gradient, and take the input there."""
        indices = self._bound("pool", jax.lax.stop_gradient(x))
        return self._bound("apply", x, indices), indices

    def apply(self, x: Array, indices: Array | None = None) -> Array:
        """Apply the map of RoIAlign or, with indices, of RoIPool."""
        return self._bound("apply", x, *(() if indices is None else (indices,)))

    def _bound(self, method: str, *arrays: Array) -> Array:
        x, *indices = arrays
        what = _Static(method, self.shape, self.bins)
        made: Array = bound(region_p, x, self._boxes, *indices, what=what)[0]
        return made


class _CompiledMap(PortableMap):
    """The map as XLA computes it: XLA divides by a constant by multiplying, and fuses products."""

    def _rounded(self, value: Array) -> Array:
        made: Array = jax.lax.optimization_barrier(value)
        return made


def _run(x: Array, boxes: Array, *indices: Array, what: _Static) -> list[Array]:
    regions = _CompiledMap(what.shape, boxes, x.dtype.name, what.bins)
    if what.method == "pool":
        return [regions.pool(x)[1]]
    return [getattr(regions, what.method)(x, *indices)]


def _shapes(x: Any, boxes: Any, *indices: Any, what: _Static) -> list[Any]:
    shape = what.shape
    if what.method != "transposed":
        shape = boxes.shape[0], shape[1], *what.bins.output_size
    dtype = jnp.int32 if what.method == "pool" else x.dtype
    return [x.update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False)]


def _jvp(primals: Any, tangents: Any, *, what: _Static) -> Any:
    outputs = bound(region_p, *primals, what=what)
    t = tangents[0]
    if isinstance(t, _compat.Zero):
        return outputs, [_compat.Zero.from_primal_value(outputs[0])]
    return outputs, bound(region_p, t, *primals[1:], what=what)


def _transpose(cotangents: Any, x: Any, *constants: Any, what: _Static) -> Any:
    nothing = (None,) * len(constants)
    if isinstance(cotangents[0], _compat.Zero):
        return (_compat.Zero(x.aval), *nothing)
    flipped = what._replace(method="apply" if what.method == "transposed" else "transposed")
    return (*bound(region_p, cotangents[0], *constants, what=flipped), *nothing)


def _batch(args: Any, dims: Any, *, what: _Static) -> Any:
    """Append the images and the boxes of the elements of a batch."""
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    x, boxes, *indices = (
        jnp.broadcast_to(a, (size, *a.shape)) if d is None else jnp.moveaxis(a, d, 0)
        for a, d in zip(args, dims, strict=True)
    )
    images, count = what.shape[0], boxes.shape[1]
    table = boxes.astype(jnp.promote_types(boxes.dtype, jnp.float32))
    first = jnp.arange(size, dtype=table.dtype)[:, None] * images
    own = jnp.clip(jnp.floor(table[..., 0]), 0, max(images - 1, 0))
    table = table.at[..., 0].set(own + first)
    joined = (a.reshape(size * a.shape[1], *a.shape[2:]) for a in (x, table, *indices))
    all_images = what._replace(shape=(size * images, *what.shape[1:]))
    (made,) = bound(region_p, *joined, what=all_images)
    each = images if what.method == "transposed" else count
    return [made.reshape(size, each, *made.shape[1:])], [0]


region_p.multiple_results = True
region_p.def_impl(partial(_compat.apply_primitive, region_p))
region_p.def_abstract_eval(_shapes)
_compat.primitive_jvps[region_p] = _jvp
_compat.primitive_transposes[region_p] = _transpose
_compat.primitive_batchers[region_p] = _batch
_compat.register_lowering(region_p, lowering(_run))
