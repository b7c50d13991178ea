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
    geometry = _geometry(xp, ready, x, operand)
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
    geometry = _geometry(xp, ready, gy, operand)
    if operator.nonlinear:
        return _nonlinear_vjp(xp, ready, geometry, gy, x, operand)
    wide = converted(xp, planes(xp, layout, gy), sum_dtype(xp, gy, layout))
    kept = _kept(xp, ready, residual)
    parts = operator.share(xp, wide[..., None], geometry.windows, kept, ready.options)
    gx = restored(xp, layout, geometry.fold(parts))
    return xp.astype(gx, gy.dtype), None


def jvp(ready: Prepared, t: Any, operand: Any, residual: tuple[Any, ...]) -> Any:
    """Compute the tangent of the output for a tangent `t`; not for nonlinear operators."""
    xp, operator, layout = namespace(t), ready.operator, ready.layout
    if not operator.windowed:
        return _unpooled(xp, layout, t, operand)
    geometry = _geometry(xp, ready, t, operand)
    wide = converted(xp, planes(xp, layout, t), sum_dtype(xp, t, layout))
    kept = _kept(xp, ready, residual)
    parts = operator.share(xp, geometry.unfold(wide), geometry.windows, kept, ready.options)
    ty = restored(xp, layout, xp.sum(parts, axis=-1, dtype=parts.dtype))
    return xp.astype(ty, t.dtype)


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
    theta = None if theta is None else _each_plane(xp, layout, theta, dtype)
    return restored(xp, layout, operator.formula(xp, windows, theta, options))


def without_winner(ready: Prepared, residual: tuple[Any, ...]) -> Any:
    """Return whether each window of a selecting operator has no winner."""
    xp, layout = namespace(residual[0]), ready.layout
    return restored(xp, layout, routes.has_no_winner(xp, layout, _kept(xp, ready, residual)))


def indices(layout: Layout, kept: Any, samples: Any = None) -> Any:
    """Convert unpacked routes to flat positions in the plane of the input; -1 without a winner."""
    xp = namespace(kept)
    whole = xp.astype(planes(xp, layout, kept), xp.arange(1).dtype)
    found = Geometry(xp, layout, kept, samples).positions(whole)
    return restored(xp, layout, xp.where(routes.has_no_winner(xp, layout, whole), -1, found))


def _geometry(xp: Any, ready: Prepared, like: Any, operand: Any) -> Geometry:
    samples = operand if ready.operator.operand.determines_windows else None
    return Geometry(xp, ready.layout, like, samples)


def _kept(xp: Any, ready: Prepared, residual: tuple[Any, ...]) -> Any:
    """Return one integer for each route, or each bit of winners; None if there are no routes."""
    if not ready.operator.selecting:
        return None
    behind = residual[0].ndim - len(ready.layout.out_shape)
    return routes.unpacked(xp, ready, planes(xp, ready.layout, residual[0], behind))


# Selecting operators


def _selected(
    xp: Any, ready: Prepared, geometry: Geometry, x: Any, operand: Any, keep: bool
) -> tuple[Any, tuple[Any, ...]]:
    operator, layout = ready.operator, ready.layout
    exact = converted(xp, planes(xp, layout, x), exact_dtype(name_of(x.dtype)))
    lowest, highest = _ends(layout.dtype)
    windows = geometry.windows._replace(
        values=geometry.unfold(exact), lowest=lowest, highest=highest
    )
    draw = _uniform(xp, layout, x, operand) if operator.operand.is_positional else None
    choice = operator.choose(xp, windows, draw, ready.options)
    winner = xp.take_along_axis(windows.values, choice.winner[..., None], axis=-1)[..., 0]
    y = xp.astype(xp.where(choice.found, winner, choice.empty), x.dtype)
    residual: tuple[Any, ...] = ()
    if keep:
        made = routes.kept(xp, ready, geometry, choice)
        residual = (restored(xp, layout, made, made.ndim - y.ndim),)
    return restored(xp, layout, y), residual


def _ends(dtype: str) -> tuple[Any, Any]:
    """Return the lowest and the highest number of a dtype."""
    if dtype == "bool":
        return 0, 1
    if "int" in dtype:
        bits, signed = int(dtype.lstrip("uint")), not dtype.startswith("u")
        return -(2 ** (bits - 1)) * signed, 2 ** (bits - signed) - 1
    return -math.inf, math.inf


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
    dims, value = len(layout.pooled), converted(xp, theta, dtype)
    if math.prod(value.shape) == 1:
        return xp.reshape(value, (1,) * (1 + dims))
    leading = tuple(s for a, s in enumerate(layout.in_shape) if a not in layout.pooled)
    return xp.reshape(xp.broadcast_to(value, leading), (math.prod(leading), *(1,) * dims))


def _nonlinear_vjp(
    xp: Any, ready: Prepared, geometry: Geometry, gy: Any, x: Any, operand: Any
) -> tuple[Any, Any]:
    operator, layout = ready.operator, ready.layout
    dtype = _formula_dtype(xp, operator, x, layout)
    tape = Recording(xp)
    values = Variable(tape, geometry.unfold(converted(xp, planes(xp, layout, x), dtype)))
    leaves = [values]
    if operator.learned:
        leaves.append(Variable(tape, _each_plane(xp, layout, operand, dtype)))
    windows = geometry.windows._replace(values=values)
    theta = leaves[1] if operator.learned else None
    y = operator.formula(tape, windows, theta, ready.options)
    wide = converted(xp, planes(xp, layout, gy), dtype)
    parts, *slopes = tape.cotangents(y, wide, leaves)
    gx = restored(xp, layout, geometry.fold(xp.where(windows.valid, parts, 0.0)))
    gx = xp.astype(gx, gy.dtype)
    return gx, _theta_gradient(xp, slopes[0], operand) if slopes else None


def _theta_gradient(xp: Any, slopes: Any, theta: Any) -> Any:
    """Sum the gradients of planes to the gradient of a learned parameter."""
    if math.prod(theta.shape) != 1:  # one for each channel, the last of the leading axes
        count = theta.shape[0]
        rows = xp.reshape(slopes, (math.prod(slopes.shape) // max(count, 1), count))
        slopes = xp.sum(rows, axis=0, dtype=slopes.dtype)
    return xp.reshape(xp.astype(slopes, theta.dtype), theta.shape)


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
    moved = planes(xp, layout, x)
    shape = (moved.shape[0], *layout.window.out)
    if math.prod(moved.shape) == 0:
        return restored(xp, layout, xp.zeros(shape, dtype=x.dtype, **placed(x)))
    owners, found, _ = _owners(xp, layout, indices)
    if layout.dtype in INTEGERS:  # PyTorch on CUDA lacks functions of unsigned integers
        moved = converted(xp, moved, exact_dtype(layout.dtype))
    values = xp.take(xp.reshape(moved, (math.prod(moved.shape),)), owners, axis=0)
    y = xp.astype(xp.where(found, values, xp.zeros_like(values)), x.dtype)
    return restored(xp, layout, xp.reshape(y, shape))


def _unpooled_back(xp: Any, layout: Layout, gy: Any, indices: Any) -> Any:
    moved = planes(xp, layout, gy)
    sizes = tuple(layout.in_shape[a] for a in layout.pooled)
    shape = (moved.shape[0], *sizes)
    if math.prod(shape) == 0:
        return restored(xp, layout, xp.zeros(shape, dtype=gy.dtype, **placed(gy)))
    owners, _, positions = _owners(xp, layout, indices)
    inside = positions < owners.shape[0]
    positions = xp.where(inside, positions, 0)
    each = xp.arange(positions.shape[0], **placed(gy))
    own = inside & (xp.take(owners, positions, axis=0) == each)
    flat = xp.take(xp.reshape(moved, (math.prod(moved.shape),)), positions, axis=0)
    gx = xp.where(own, flat, xp.zeros_like(flat))
    return restored(xp, layout, xp.reshape(gx, shape))
