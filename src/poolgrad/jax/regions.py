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
from poolgrad.jax.primitives import applied, bound, lowering, register, transposed
from poolgrad.portable.regions import PortableMap, joined
from poolgrad.region_maps import Bins, KernelMap, RegionMap, check_input, host_table, table_of


class _Static(NamedTuple):
    """The map that the primitive applies, and whether it finds the winners instead."""

    shape: tuple[int, ...]
    bins: Bins
    transpose: bool = False
    finds_winners: bool = False


region_p = _compat.Primitive("poolgrad_regions")


def region_map(input: Any, boxes: Any, bins: Bins) -> tuple[Array, RegionMap]:
    """Return the input and the map of its regions; the values of traced boxes are not checked."""
    x = FRONT_END.asarray("input", input)
    check_input(x.dtype, x.shape)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(boxes)):
        table = table_of(boxes, x.shape[0], _converted, partial(joined, x))
    else:
        table = host_table(boxes, x.shape[0])
        KernelMap(x.shape, table, x.dtype.name, bins)  # checks the boxes
    table = jax.lax.stop_gradient(jnp.asarray(table))
    return x, _ArrayMap(x.shape, table, x.dtype.name, bins)


def _converted(name: str, value: Any) -> Any:
    return value if isinstance(value, Array) else jnp.asarray(host_boxes(name, value))


class _ArrayMap(RegionMap):
    """The map of regions as calls of the primitive."""

    def winners(self, x: Array) -> Array:
        """Return the indices of the maxima, which have no gradient."""
        return self._bound(jax.lax.stop_gradient(x), finds_winners=True)

    def apply(self, array: Array, indices: Array | None = None, transpose: bool = False) -> Array:
        """Apply the map of RoIPool or, without indices, that of RoIAlign; or its transpose."""
        return self._bound(array, *(() if indices is None else (indices,)), transpose=transpose)

    def _bound(self, x: Array, *indices: Array, **how: bool) -> Array:
        what = _Static(self.shape, self.bins, **how)
        return bound(region_p, x, self.boxes, *indices, what=what)[0]


class _CompiledMap(PortableMap):
    """The map as XLA computes it: XLA divides by a constant by multiplying, and fuses products."""

    def _rounded(self, value: Array) -> Array:
        return jax.lax.optimization_barrier(value)


def _run(x: Array, boxes: Array, *indices: Array, what: _Static) -> list[Array]:
    regions = _CompiledMap(what.shape, boxes, x.dtype.name, what.bins)
    if what.finds_winners:
        return [regions.winners(x)]
    return [regions.apply(x, indices[0] if indices else None, what.transpose)]


def _shapes(x: Any, boxes: Any, *indices: Any, what: _Static) -> list[Any]:
    shape = what.shape
    if not what.transpose:
        shape = boxes.shape[0], shape[1], *what.bins.output_size
    dtype = jnp.dtype(jnp.int32) if what.finds_winners else x.dtype
    return [x.update(shape=shape, dtype=dtype, weak_type=False)]


def _transpose(cotangents: Any, *args: Any, what: _Static) -> Any:
    flipped = what._replace(transpose=not what.transpose)
    return transposed(region_p, 1, cotangents, args, what=flipped)


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
    each = images if what.transpose else count
    return [made.reshape(size, each, *made.shape[1:])], [0]


register(region_p, _shapes, partial(applied, region_p, 1), _transpose, _batch)
_compat.register_lowering(region_p, lowering(_run))
