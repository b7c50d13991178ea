"""Defines three primitives of JAX for every operator of the table, and their transformations.

* ``forward``: ``x, [argument] -> y, *residual``,
* ``jvp``: ``t, [argument's tangent], [x], [argument], *residual -> ty``, the derivative of `y`
  along tangents,
* ``vjp``: ``gy, [x], [argument], *residual -> gx, [argument's gradient]``, its transpose.

`x` is an argument if the operator is nonlinear; the tangent and the gradient of a learned argument
are included if they are requested. ``jvp`` and ``vjp`` are linear in their first arguments and each
other's transpose; `formulas` computes how they depend on the other arguments. Derivatives of any
order and in both modes follow from one rule for all operators.

On CPUs the primitives call the kernels (`kernels`), on other devices operations of JAX
(`portable`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.sharding import PartitionSpec

from poolgrad.jax import _compat, formulas, kernels, portable
from poolgrad.jax._compat import Primitive
from poolgrad.jax.static import Static

Values = Sequence[Any]

forward_p = Primitive("poolgrad")
jvp_p = Primitive("poolgrad_jvp")
vjp_p = Primitive("poolgrad_vjp")


def bound(primitive: Primitive, *args: Any, **how: Any) -> list[Any]:
    """Compute the results of a primitive.

    If only some arguments vary over devices (in ``shard_map``), all are marked as varying, so that
    the gradients of the others are summed over the devices.
    """
    axes = [jax.typeof(a).mat.varying for a in args]
    missing = [tuple(frozenset().union(*axes) - own) for own in axes]
    pairs = zip(args, missing, strict=True)
    alike = (jax.lax.pcast(a, names, to="varying") if names else a for a, names in pairs)
    return primitive.bind(*alike, **how)


# Shapes


def _like(x: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return an abstract array with the sharding of `x`."""
    if len(shape) > len(x.shape):  # the residual of ties has one more axis
        spec = PartitionSpec(*x.sharding.spec, *(None,) * (len(shape) - len(x.shape)))
        sharding = x.sharding.update(spec=spec)
        return x.update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False, sharding=sharding)
    return x.update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False)


def _forward_shapes(x: Any, *operands: Any, pool: Static, keep: int) -> list[Any]:
    ready = pool.prepared(x)
    return [_like(x, b.shape, b.dtype) for b in (ready.output, *ready.residual[:keep])]


def _jvp_shapes(t: Any, *args: Any, pool: Static, learned: bool) -> list[Any]:
    y = pool.prepared(t).output
    return [_like(t, y.shape, y.dtype)]


def _vjp_shapes(
    gy: Any, *args: Any, pool: Static, sizes: tuple[int, ...], learned: bool
) -> list[Any]:
    gx = _like(gy, pool.before(gy.shape, sizes), gy.dtype.name)
    return [gx, *(args[1:2] if learned else ())]


# Derivatives


def _is_nonzero(tangent: Any) -> bool:
    return type(tangent) is not _compat.Zero


def _zeros(values: Values) -> list[Any]:
    """Return the tangents of arrays that have none."""
    return [_compat.Zero(jax.typeof(v).to_tangent_aval()) for v in values]


def _added(first: Values, second: Values) -> list[Any]:
    return [_compat.add_tangents(a, b) for a, b in zip(first, second, strict=True)]


def _filled(tangents: Values) -> list[Any]:
    return [_compat.instantiate_zeros(t) for t in tangents]


def _forward_jvp(primals: Values, tangents: Values, *, pool: Static, keep: int) -> Any:
    operator, (x, *operands), (tx, *ts) = pool.operator, primals, tangents
    learned = operator.learned and _is_nonzero(ts[0])
    if not _is_nonzero(tx) and not learned:
        outputs = bound(forward_p, *primals, pool=pool, keep=keep)
        return outputs, _zeros(outputs)
    # The last array is for the gradient of a learned argument.
    needed = len(pool.prepared(x).residual) - (operator.learned and not learned)
    y, *residual = bound(forward_p, *primals, pool=pool, keep=max(keep, needed))
    along = _filled((tx, *ts[: int(learned)]))
    held = (*(x,) * operator.nonlinear, *operands)
    (ty,) = bound(jvp_p, *along, *held, *residual[:needed], pool=pool, learned=learned)
    kept = residual[:keep]
    return [y, *kept], [ty, *_zeros(kept)]


def _forward_transpose(
    cotangents: Values, x: Any, *operands: Any, pool: Static, keep: int
) -> Values:
    """Compute the pullback of a linear operator, which needs no residual."""
    if pool.operator.nonlinear or pool.prepared(x.aval).residual:
        raise NotImplementedError(f"{pool.operator.name} is not linear, so it has no transpose")
    nothing = (None,) * len(operands)
    if not _is_nonzero(cotangents[0]):
        return (_compat.Zero(x.aval), *nothing)
    sizes = pool.sizes(x.aval.shape)
    gradients = bound(vjp_p, cotangents[0], *operands, pool=pool, sizes=sizes, learned=False)
    return (*gradients, *nothing)


def _derivative(
    primals: Values,
    tangents: Values,
    linear: int,
    apply: Callable[..., Any],
    nonlinear_part: Any,
    pool: Any,
) -> Any:
    """Compute values and tangents of a map that is linear in its first arguments.

    `apply` is the map. `nonlinear_part` returns, for fixed values of the first arguments, the map
    as a function of the input and, if there is one, the learned argument.
    """
    outputs = apply(*primals)
    rest, total = primals[linear:], _zeros(outputs)
    if any(map(_is_nonzero, tangents[:linear])):
        total = _added(total, apply(*_filled(tangents[:linear]), *rest))
    count = (1 + pool.operator.learned) * pool.operator.nonlinear
    moved = tangents[linear : linear + count]
    if any(map(_is_nonzero, moved)):
        function = nonlinear_part(*primals[:linear])
        total = _added(total, jax.jvp(function, tuple(rest[:count]), tuple(_filled(moved)))[1])
    return outputs, total


def _jvp_of_jvp(primals: Values, tangents: Values, *, pool: Static, learned: bool) -> Any:
    apply = partial(bound, jvp_p, pool=pool, learned=learned)
    nonlinear_part = partial(formulas.jvp, pool, learned)
    return _derivative(primals, tangents, 1 + learned, apply, nonlinear_part, pool)


def _jvp_of_vjp(
    primals: Values, tangents: Values, *, pool: Static, sizes: tuple[int, ...], learned: bool
) -> Any:
    apply = partial(bound, vjp_p, pool=pool, sizes=sizes, learned=learned)
    nonlinear_part = partial(formulas.vjp, pool, learned)
    return _derivative(primals, tangents, 1, apply, nonlinear_part, pool)


def _transpose_of_jvp(cotangents: Values, *args: Any, pool: Static, learned: bool) -> Values:
    linear, rest = args[: 1 + learned], args[1 + learned :]
    nothing = (None,) * len(rest)
    if not _is_nonzero(cotangents[0]):
        return (
            *(_compat.Zero(a.aval) if _compat.is_undefined_primal(a) else None for a in linear),
            *nothing,
        )
    t = linear[0]
    shape = t.aval.shape if _compat.is_undefined_primal(t) else t.shape
    sizes = pool.sizes(shape)
    gradients = bound(vjp_p, cotangents[0], *rest, pool=pool, sizes=sizes, learned=learned)
    pairs = zip(linear, gradients, strict=True)
    return (*(g if _compat.is_undefined_primal(a) else None for a, g in pairs), *nothing)


def _transpose_of_vjp(
    cotangents: Values, gy: Any, *rest: Any, pool: Static, sizes: tuple[int, ...], learned: bool
) -> Values:
    nothing = (None,) * len(rest)
    if not any(map(_is_nonzero, cotangents)):
        return (_compat.Zero(gy.aval), *nothing)
    along = _filled(cotangents)
    return (*bound(jvp_p, *along, *rest, pool=pool, learned=learned), *nothing)


# Batches: one more leading axis


def _batch(primitive: Primitive, args: Values, dims: Values, **how: Any) -> Any:
    pool: Static = how["pool"]
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    front = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
    # The gradient of a learned argument must not be summed over the batch.
    alone = primitive is not forward_p and how["learned"]
    operand = pool.operator.operand
    first = 1 + (primitive is jvp_p and how["learned"])
    first += pool.operator.nonlinear and primitive is not forward_p
    operand_positions = range(first, first + operand.count)
    shared = operand.is_shared and all(dims[k] is None for k in operand_positions)
    if alone or operand.is_positional or (operand.is_shared and not shared):
        batched = [a for a, d in zip(front, dims, strict=True) if d is not None]

        def one(own: Values) -> Any:
            each = iter(own)
            full = (a if d is None else next(each) for a, d in zip(front, dims, strict=True))
            return primitive.bind(*full, **how)

        outputs = jax.lax.map(one, batched)
    else:
        full = [
            a
            if d is not None or (shared and k in operand_positions)
            else jnp.broadcast_to(a, (size, *a.shape))
            for k, (a, d) in enumerate(zip(front, dims, strict=True))
        ]
        outputs = primitive.bind(*full, **how)
    return outputs, [0] * len(outputs)


def _define(primitive: Primitive, name: str, shapes: Any, jvp: Any, transpose: Any) -> None:
    """Register a primitive; the functions `name` of `kernels` and `portable` compute it."""

    def on_cpu(*args: Any, pool: Static, **how: Any) -> list[Any]:
        engine = kernels if pool.operator.has_kernels("xla", pool.options) else portable
        return getattr(engine, name)(*args, pool=pool, **how)

    register(primitive, shapes, jvp, transpose, partial(_batch, primitive))
    _compat.requires_devices.add(primitive)  # as for `custom_partitioning`, which it uses
    _compat.register_lowering(primitive, lowering(getattr(portable, name)))
    _compat.register_lowering(primitive, lowering(on_cpu), platform="cpu")


def register(primitive: Primitive, shapes: Any, jvp: Any, transpose: Any, batch: Any) -> None:
    """Register the rules of a primitive, except its lowering."""
    primitive.multiple_results = True
    primitive.def_impl(partial(_compat.apply_primitive, primitive))
    primitive.def_abstract_eval(shapes)
    _compat.primitive_jvps[primitive] = jvp
    _compat.primitive_transposes[primitive] = transpose
    _compat.primitive_batchers[primitive] = batch


def lowering(function: Callable[..., Any]) -> Any:
    """Return the lowering rule of a primitive."""
    lowered = _compat.lower_fun(formulas.wide(function), multiple_results=True)

    def lower(context: Any, *args: Any, **how: Any) -> Any:
        # The platform (if there are several) and symbolic sizes have the width of integers outside;
        # functions that are called inside take them as int64.
        integer = _compat.aval_to_ir_type(
            context.module_context, ShapedArray((), jnp.dtype("int64"))
        )
        values = (
            v if v.type == integer else _compat.convert_integers(integer, v)
            for v in context.dim_var_values
        )
        return lowered(context.replace(dim_var_values=(*values,)), *args, **how)

    return formulas.wide(lower)  # some operations are traced only when they are lowered


_define(forward_p, "forward", _forward_shapes, _forward_jvp, _forward_transpose)
_define(jvp_p, "jvp", _jvp_shapes, _jvp_of_jvp, _transpose_of_jvp)
_define(vjp_p, "vjp", _vjp_shapes, _jvp_of_vjp, _transpose_of_vjp)
