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
    apart = not operand.is_positional
    common = [a if apart and a not in pooled else None for a in range(arrays[0].ndim)]
    leading = [a for a in common if a is not None]
    own = operand.axes(leading, common)

    def shared(arrays: Sequence[Any], at: int) -> list[list[int | None]]:
        """Return, for each axis of each array, the corresponding axis of the first array."""
        axes = [own if k == at else common for k in range(len(arrays))]
        pairs = zip(axes, arrays, strict=True)
        return [[*(known + [None] * array.ndim)][: array.ndim] for known, array in pairs]

    sides = shared(arrays, operand_index if operand.count else -1), shared(made, -1)
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
