"""Runs the kernels on sharded arrays: each device pools its own part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from poolgrad.jax.formulas import wide
from poolgrad.jax.static import Static


def sharded(
    pool: Static,
    local: Callable[..., list[Array]],
    arrays: Sequence[Array],
    pooled: tuple[int, ...],
    operand_index: int,
) -> list[Array]:
    """Apply `local` to the part of the arrays on each device.

    Parameters
    ----------
    pool : Static
        The operator. A random draw needs the whole batch, because the draws depend on it.
    local : callable
        Function of arrays, for any sizes of the axes that are not pooled.
    arrays : sequence of array
        Its arguments; the first has the rank of the input.
    pooled : tuple of int
        The pooled axes, which are not sharded.
    operand_index : int
        Index of the extra operand among the arguments, if there is one.
    """
    made = jax.eval_shape(local, *arrays)
    operand = pool.operator.operand
    axes = range(arrays[0].ndim)
    common = [None if operand.is_positional or a in pooled else a for a in axes]
    own = operand.axes([a for a in common if a is not None], common)

    def shared(array: Any, axes: list[int | None]) -> list[int | None]:
        """Return, for each axis of an array, the corresponding axis of the first array."""
        return [*axes, *[None] * array.ndim][: array.ndim]

    inputs = [shared(a, own if k == operand_index else common) for k, a in enumerate(arrays)]
    sides = inputs, [shared(a, common) for a in made]
    whole: list[str] = []

    def named(axis: int | None) -> str:
        if axis is not None:
            return f"b{axis}"
        whole.append(f"w{len(whole)}")
        return whole[-1]

    words = (", ".join(" ".join(map(named, axes)) or "..." for axes in side) for side in sides)
    split = custom_partitioning(local)

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        # For replicated arrays JAX may report fewer axes.
        known = getattr(arguments[0].sharding, "spec", ())
        spec = [*known, *(None,) * len(common)]

        def over(side: list[list[int | None]]) -> list[NamedSharding]:
            specs = ([None if a is None else spec[a] for a in axes] for axes in side)
            return [NamedSharding(mesh, PartitionSpec(*s)) for s in specs]

        return mesh, wide(local), over(sides[1]), tuple(over(sides[0]))

    split.def_partition(
        partition=partition,
        sharding_rule=" -> ".join(words),
        need_replication_factors=tuple(whole),
    )
    return split(*arrays)
