"""Defines two primitives of JAX for every operator of the table, and their transformations.

* ``forward``: ``x, [argument] -> y, *residual``,
* ``derivative``: ``t, [argument's tangent], [x], [argument], *residual -> ty``, the derivative of
  `y` along tangents, or its transpose: ``gy, [x], [argument], *residual -> gx, [argument's
  gradient]``.

`x` is an argument if the operator is nonlinear; the tangent and the gradient of a learned argument
are included if they are requested. The derivative is linear in its first arguments; `formulas`
computes how it depends on the others. Derivatives of any order and in both modes follow from one
rule for all operators.

On CPUs the primitives call the kernels (`kernels`), on other devices operations of JAX
(`portable`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
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
derivative_p = Primitive("poolgrad_derivative")


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
    more = (None,) * (len(shape) - len(x.shape))  # the residual of ties has one more axis
    sharding = x.sharding.update(spec=PartitionSpec(*x.sharding.spec, *more))
    return x.update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False, sharding=sharding)


def _forward_shapes(x: Any, *operands: Any, pool: Static, keep: int) -> list[Any]:
    ready = pool.prepared(x)
    return [_like(x, b.shape, b.dtype) for b in (ready.output, *ready.residual[:keep])]


def _derivative_shapes(
    first: Any, *args: Any, pool: Static, learned: bool, transpose: bool
) -> list[Any]:
    if not transpose:
        y = pool.prepared(first).output
        return [_like(first, y.shape, y.dtype)]
    gx = _like(first, pool.before(first.shape), first.dtype.name)
    return [gx, *(args[1:2] if learned else ())]


# Derivatives


def _is_nonzero(tangent: Any) -> bool:
    return type(tangent) is not _compat.Zero


def _zeros(values: Values) -> list[Any]:
    """Return the tangents of arrays that have none."""
    return [_compat.Zero(jax.typeof(v).to_tangent_aval()) for v in values]


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
    how = {"pool": pool, "learned": learned, "transpose": False}
    (ty,) = bound(derivative_p, *along, *held, *residual[:needed], **how)
    kept = residual[:keep]
    return [y, *kept], [ty, *_zeros(kept)]


def _forward_transpose(
    cotangents: Values, x: Any, *operands: Any, pool: Static, keep: int
) -> Values:
    """Compute the pullback of a linear operator, which needs no residual."""
    if pool.operator.nonlinear or pool.prepared(x.aval).residual:
        raise NotImplementedError(f"{pool.operator.name} is not linear, so it has no transpose")
    how = {"pool": pool, "learned": False, "transpose": True}
    return transposed(derivative_p, 1, cotangents, (x, *operands), **how)


def applied(
    primitive: Primitive, linear: int, primals: Values, tangents: Values, **how: Any
) -> Any:
    """Return values and tangents of a map that is linear in its first arguments.

    The others are constants.
    """
    outputs = bound(primitive, *primals, **how)
    if not any(map(_is_nonzero, tangents[:linear])):
        return outputs, _zeros(outputs)
    return outputs, bound(primitive, *_filled(tangents[:linear]), *primals[linear:], **how)


def transposed(
    primitive: Primitive, linear: int, cotangents: Values, args: Values, **how: Any
) -> Values:
    """Return the cotangents of the arguments of a map that is linear in the first of them.

    The primitive with the parameters `how` is the transpose of the map.
    """
    missing = [_compat.is_undefined_primal(a) for a in args]
    if any(map(_is_nonzero, cotangents)):
        found = bound(primitive, *_filled(cotangents), *args[linear:], **how)
    else:
        found = [_compat.Zero(a.aval) if m else None for a, m in zip(args, missing, strict=True)]
    return [g if m else None for g, m in zip_longest(found, missing)]


def _linear(learned: bool, transpose: bool) -> int:
    """Return the number of arguments in which a derivative is linear."""
    return 1 + (learned and not transpose)


def _derivative_jvp(primals: Values, tangents: Values, **how: Any) -> Any:
    pool, learned, transpose = how["pool"], how["learned"], how["transpose"]
    linear = _linear(learned, transpose)
    outputs, total = applied(derivative_p, linear, primals, tangents, **how)
    # How it depends on the input and, if there is one, the learned argument.
    varying = slice(linear, linear + (1 + pool.operator.learned) * pool.operator.nonlinear)
    if any(map(_is_nonzero, tangents[varying])):
        function = formulas.derivative(pool, learned, transpose, *primals[:linear])
        moved = jax.jvp(function, (*primals[varying],), (*_filled(tangents[varying]),))[1]
        total = [_compat.add_tangents(a, b) for a, b in zip(total, moved, strict=True)]
    return outputs, total


def _derivative_transpose(cotangents: Values, *args: Any, transpose: bool, **how: Any) -> Values:
    linear, how["transpose"] = _linear(how["learned"], transpose), not transpose
    return transposed(derivative_p, linear, cotangents, args, **how)


# Batches: one more leading axis


def _batch(primitive: Primitive, args: Values, dims: Values, **how: Any) -> Any:
    given, positions = dict(enumerate(args)), enumerate(dims)
    batched = {k: jnp.moveaxis(given[k], d, 0) for k, d in positions if d is not None}
    operand, first, alone = how["pool"].operator.operand, 1, False
    if primitive is derivative_p:
        # The gradient of a learned argument must not be summed over the batch.
        alone = how["learned"]
        first = _linear(alone, how["transpose"]) + how["pool"].operator.nonlinear
    operands = range(first, first + operand.count)
    shared = operands if operand.is_shared and batched.keys().isdisjoint(operands) else ()
    if alone or operand.is_positional or (operand.is_shared and not shared):
        outputs = jax.lax.map(lambda own: primitive.bind(*(given | own).values(), **how), batched)
    else:
        (size, *_) = next(iter(batched.values())).shape
        others = given.keys() - batched.keys() - {*shared}
        repeated = {k: jnp.broadcast_to(given[k], (size, *given[k].shape)) for k in others}
        outputs = primitive.bind(*(given | repeated | batched).values(), **how)
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
_define(derivative_p, "derivative", _derivative_shapes, _derivative_jvp, _derivative_transpose)
