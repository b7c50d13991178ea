"""Computes the forward pass, the pullback and the pushforward of any operator of the table."""

from __future__ import annotations

import math
from typing import Any

from poolgrad.dtypes import INTEGERS, name_of
from poolgrad.interface import Operator
from poolgrad.operators import Prepared
from poolgrad.portable import routes
from poolgrad.portable.arrays import (
    converted,
    exact_dtype,
    namespace,
    placed,
    planes,
    restored,
    sum_dtype,
    widest,
)
from poolgrad.portable.derivative import Recording, Variable
from poolgrad.portable.geometry import Geometry
from poolgrad.windows import Layout


def forward(
    ready: Prepared, x: Any, operand: Any, keep: bool = True
) -> tuple[Any, tuple[Any, ...]]:
    """Compute an operator.

    Parameters
    ----------
    ready : Prepared
        The operator with its options, windows, shapes and dtypes.
    x : array
        The input, of the shape of the layout.
    operand : array or None
        The extra operand: samples, indices, a learned parameter, or a seed (an int64 scalar).
    keep : bool
        Whether `vjp` or `jvp` will be called.

    Returns
    -------
    y : array
        The output, on the device of `x`.
    residual : tuple of array
        The arrays that `vjp` and `jvp` take, with the shapes and dtypes of ``operator.residual``;
        empty unless `keep`, and for a nonlinear operator, whose `vjp` needs the input only.
    """
    xp, operator, layout = namespace(x), ready.operator, ready.layout
    if not operator.windowed:
        return _unpooled(xp, layout, x, operand), ()
    geometry = Geometry(xp, layout, x, operand)
    if operator.selecting:
        return _selected(xp, ready, geometry, x, operand, keep)
    theta = operand if operator.learned else None
    y = formula(operator, layout, x, theta, ready.options, geometry)
    return converted(xp, y, layout.out_dtype), ()


def vjp(
    ready: Prepared, gy: Any, x: Any, operand: Any, residual: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Compute the gradients of the input and, if it is learned, of the operand (else None).

    Parameters
    ----------
    ready, operand
        As `forward` took them.
    gy : array
        The gradient of the output.
    x : array or None
        The input; only nonlinear operators need it.
    residual : tuple of array
        What `forward` returned.
    """
    xp, operator, layout = namespace(gy), ready.operator, ready.layout
    if not operator.windowed:
        return _unpooled_back(xp, layout, gy, operand), None
    if operator.nonlinear:
        return _nonlinear_vjp(xp, ready, gy, x, operand)
    return _linear(xp, ready, gy, operand, residual, transpose=True), None


def jvp(ready: Prepared, t: Any, operand: Any, residual: tuple[Any, ...]) -> Any:
    """Compute the tangent of the output for a tangent `t`; not for nonlinear operators."""
    xp = namespace(t)
    if not ready.operator.windowed:
        return _unpooled(xp, ready.layout, t, operand)
    return _linear(xp, ready, t, operand, residual, transpose=False)


def _linear(
    xp: Any, ready: Prepared, array: Any, operand: Any, residual: tuple[Any, ...], transpose: bool
) -> Any:
    """Apply the derivative of a linear operator to a tangent, or its transpose to a cotangent."""
    layout, geometry = ready.layout, Geometry(xp, ready.layout, array, operand)
    wide = converted(xp, planes(xp, layout, array), sum_dtype(xp, array, layout))
    amounts = wide[..., None] if transpose else geometry.unfold(wide)
    kept = _kept(xp, ready, residual)
    parts = ready.operator.share(xp, amounts, geometry.windows, kept, ready.options)
    made = geometry.fold(parts) if transpose else xp.sum(parts, axis=-1, dtype=parts.dtype)
    return xp.astype(restored(xp, layout, made), array.dtype)


def formula(
    operator: Operator,
    layout: Layout,
    x: Any,
    theta: Any,
    options: Any,
    geometry: Geometry | None = None,
) -> Any:
    """Compute a weighted operator by its formula, which libraries can differentiate repeatedly.

    Parameters
    ----------
    operator, layout, options
        The operator, its windows with shapes and dtypes, and its options.
    x : array
        The input.
    theta : array or None
        The learned parameter.
    geometry : Geometry, optional
        The geometry of the layout, if it is known.

    Returns
    -------
    array
        The output in the dtype in which it was computed.
    """
    xp = namespace(x)
    geometry = geometry or Geometry(xp, layout, x)
    dtype = _formula_dtype(xp, operator, x, layout)
    values = geometry.unfold(converted(xp, planes(xp, layout, x), dtype))
    windows = geometry.windows._replace(values=values)
    argument = _each_plane(xp, layout, theta, dtype)
    return restored(xp, layout, operator.formula(xp, windows, argument, options))


def without_winner(ready: Prepared, residual: tuple[Any, ...]) -> Any:
    """Return whether each window of a selecting operator has no winner."""
    xp, layout = namespace(residual[0]), ready.layout
    return restored(xp, layout, routes.has_no_winner(xp, layout, _kept(xp, ready, residual)))


def indices(layout: Layout, kept: Any, operand: Any = None) -> Any:
    """Convert unpacked routes to flat positions in the plane of the input; -1 without a winner."""
    xp = namespace(kept)
    whole = xp.astype(planes(xp, layout, kept), xp.arange(1).dtype)
    found = Geometry(xp, layout, kept, operand).positions(whole)
    return restored(xp, layout, xp.where(routes.has_no_winner(xp, layout, whole), -1, found))


def _kept(xp: Any, ready: Prepared, residual: tuple[Any, ...]) -> Any:
    """Return one integer for each route, or each bit of winners; None if there are no routes."""
    if not ready.operator.selecting:
        return None
    return routes.unpacked(xp, ready, planes(xp, ready.layout, residual[0]))


# Selecting operators


def _selected(
    xp: Any, ready: Prepared, geometry: Geometry, x: Any, operand: Any, keep: bool
) -> tuple[Any, tuple[Any, ...]]:
    operator, layout = ready.operator, ready.layout
    exact = converted(xp, planes(xp, layout, x), exact_dtype(name_of(x.dtype)))
    windows = geometry.windows._replace(values=geometry.unfold(exact))
    draw = _uniform(xp, layout, x, operand) if operator.operand.is_positional else None
    choice = operator.choose(xp, windows, draw, ready.options)
    winner = xp.take_along_axis(windows.values, choice.winner[..., None], axis=-1)[..., 0]
    y = xp.astype(xp.where(choice.found, winner, choice.empty), x.dtype)
    residual = (routes.kept(xp, ready, geometry, choice),) if keep else ()
    return restored(xp, layout, y), tuple(restored(xp, layout, kept) for kept in residual)


def _logical_shift(z: Any, bits: int) -> Any:
    """Shift the bits of int64 numbers right, as unsigned numbers."""
    return (z >> bits) & (2 ** (64 - bits) - 1)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _uniform(xp: Any, layout: Layout, x: Any, seed: Any) -> Any:
    """Draw a number in [0, 1) for each output by splitmix64 (Steele, Lea & Flood 2014).

    In int64, whose products and sums wrap as those of unsigned words do.
    """
    count = math.prod(layout.out_shape)
    index = xp.astype(xp.arange(count, **placed(x)), xp.int64)
    z = xp.astype(seed, xp.int64) + (index + 1) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _logical_shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _logical_shift(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _logical_shift(z, 31)
    uniform = converted(xp, _logical_shift(z, 11), widest(xp, x)) * 2.0**-53
    return planes(xp, layout, xp.reshape(uniform, layout.out_shape))


# Nonlinear operators


def _formula_dtype(xp: Any, operator: Operator, x: Any, layout: Layout) -> str:
    # The widest dtype minimises rounding errors of squares and differences.
    return widest(xp, x) if operator.nonlinear else sum_dtype(xp, x, layout)


def _each_plane(xp: Any, layout: Layout, theta: Any, dtype: str) -> Any:
    """Reshape a learned parameter to (planes, 1, ...), or to (1, ...) for one number."""
    if theta is None:
        return None
    dims, value = len(layout.pooled), converted(xp, theta, dtype)
    if math.prod(value.shape) == 1:
        return xp.reshape(value, (1,) * (1 + dims))
    leading = tuple(s for a, s in enumerate(layout.in_shape) if a not in layout.pooled)
    return xp.reshape(xp.broadcast_to(value, leading), (math.prod(leading), *(1,) * dims))


def _nonlinear_vjp(xp: Any, ready: Prepared, gy: Any, x: Any, operand: Any) -> tuple[Any, Any]:
    operator, layout = ready.operator, ready.layout
    dtype, geometry = _formula_dtype(xp, operator, x, layout), Geometry(xp, layout, gy, operand)
    tape = Recording(xp)
    values = Variable(tape, geometry.unfold(converted(xp, planes(xp, layout, x), dtype)))
    theta = Variable(tape, operand) if operator.learned else None
    windows = geometry.windows._replace(values=values)
    argument = _each_plane(tape, layout, theta, dtype)
    y = operator.formula(tape, windows, argument, ready.options)
    wide = converted(xp, planes(xp, layout, gy), dtype)
    leaves = [values] if theta is None else [values, theta]
    parts, *slopes = tape.cotangents(y, wide, leaves)
    gx = restored(xp, layout, geometry.fold(xp.where(windows.valid, parts, 0.0)))
    return xp.astype(gx, gy.dtype), slopes[0] if slopes else None


# Unpooling: the last of several values with one index is kept


def _owners(xp: Any, layout: Layout, indices: Any) -> tuple[Any, Any, Any]:
    """Return the input that each output position keeps, and whether there is one.

    Computed by sorting; positions and inputs are numbered through all planes. The third result is
    the position of each input; an index outside its plane has a position after all others.
    """
    where = xp.astype(planes(xp, layout, indices), xp.arange(1).dtype)
    count, plane = where.shape[0], math.prod(layout.window.out)
    flat = xp.reshape(where, (count, math.prod(where.shape[1:])))
    begin = xp.arange(count, **placed(indices))[:, None] * plane
    inside = (flat >= 0) & (flat < plane)
    positions = xp.where(inside, flat + begin, count * plane)
    positions = xp.reshape(positions, (math.prod(flat.shape),))
    order = xp.argsort(positions, stable=True)
    ranked = xp.take(positions, order, axis=0)
    every = xp.arange(count * plane, **placed(indices))
    last = xp.searchsorted(ranked, every, side="right") - 1
    last = xp.clip(last, min=0)
    return xp.take(order, last, axis=0), xp.take(ranked, last, axis=0) == every, positions


def _unpooled(xp: Any, layout: Layout, x: Any, indices: Any) -> Any:
    owners, found, _ = _owners(xp, layout, indices)
    given = planes(xp, layout, x)
    if layout.dtype in INTEGERS:  # PyTorch on CUDA lacks functions of unsigned integers
        given = converted(xp, given, exact_dtype(layout.dtype))
    y = xp.astype(_taken_where(xp, found, given, owners), x.dtype)
    return restored(xp, layout, xp.reshape(y, (given.shape[0], *layout.window.out)))


def _unpooled_back(xp: Any, layout: Layout, gy: Any, indices: Any) -> Any:
    owners, _, positions = _owners(xp, layout, indices)
    inside = positions < owners.shape[0]
    positions = xp.where(inside, positions, 0)
    each = xp.arange(positions.shape[0], **placed(gy))
    given, own = planes(xp, layout, gy), inside & (xp.take(owners, positions, axis=0) == each)
    gx = _taken_where(xp, own, given, positions)
    sizes = (layout.in_shape[a] for a in layout.pooled)
    return restored(xp, layout, xp.reshape(gx, (given.shape[0], *sizes)))


def _taken_where(xp: Any, condition: Any, given: Any, positions: Any) -> Any:
    """Take elements at flat positions; 0 where the condition is false."""
    values = xp.take(xp.reshape(given, (math.prod(given.shape),)), positions, axis=0)
    return xp.where(condition, values, xp.zeros_like(values))
