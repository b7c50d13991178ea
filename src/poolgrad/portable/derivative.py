"""Reverse-mode differentiation of functions written in array-API operations.

It computes the gradients of composed operators for libraries without differentiation (NumPy, Dask,
CuPy), and those of nonlinear operators for all libraries. A function is run on instances
of `Variable`, with a `Recording` instead of its array library; both record the pullback of each
step.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

Pullback = Callable[[Any], Any]


class Variable:
    """An array and the pullbacks to the variables that it was computed from.

    Parameters
    ----------
    tape : Recording
        The recording that stores the variable.
    value : array
        The array.
    sources : sequence of (Variable, callable)
        The variables it was computed from, each with the pullback to it.
    """

    __array_priority__ = 1000  # NumPy's arrays leave mixed operations to this class
    __array_ufunc__ = None

    def __init__(
        self, tape: Recording, value: Any, sources: Sequence[tuple[Variable, Pullback]] = ()
    ) -> None:
        self.tape, self.value, self.sources = tape, value, sources
        tape.variables.append(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.value.dtype

    def __add__(self, other: Any) -> Any:
        return self.tape.apply(operator.add, self, other)

    def __neg__(self) -> Any:
        return self.tape.apply(operator.neg, self)

    def __sub__(self, other: Any) -> Any:
        return self.tape.apply(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.tape.apply(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return self.tape.apply(operator.mul, self, other)

    def __truediv__(self, other: Any) -> Any:
        return self.tape.apply(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.tape.apply(operator.truediv, other, self)

    def __pow__(self, power: int) -> Any:
        return self.tape.apply(operator.pow, self, power)

    __radd__, __rmul__ = __add__, __mul__

    # Comparisons have no derivative.

    def __eq__(self, other: Any) -> Any:
        return self.value == value_of(other)

    def __ne__(self, other: Any) -> Any:
        return self.value != value_of(other)

    def __lt__(self, other: Any) -> Any:
        return self.value < value_of(other)

    def __gt__(self, other: Any) -> Any:
        return self.value > value_of(other)

    __hash__ = object.__hash__


def value_of(x: Any) -> Any:
    """Return the array of a variable, or the argument itself."""
    return x.value if isinstance(x, Variable) else x


def _of_maximum(xp: Any, y: Any, x: Any, *, axis: int) -> Sequence[Pullback]:
    """Return the pullback of a maximum along an axis, whose equal winners share the cotangent."""
    winners = x == xp.expand_dims(y, axis=axis)

    def pullback(g: Any) -> Any:
        share = g / xp.astype(xp.count_nonzero(winners, axis=axis), x.dtype)
        return xp.where(winners, xp.expand_dims(share, axis=axis), 0.0)

    return (pullback,)


# For each function the pullbacks to its arguments, from the library, the result and the arguments.
# They may return a cotangent for more elements than the argument has, which was broadcast.
_PULLBACKS: dict[str, Callable[..., Sequence[Pullback | None]]] = {
    "add": lambda xp, y, a, b: (lambda g: g, lambda g: g),
    "neg": lambda xp, y, a: (lambda g: -g,),
    "sub": lambda xp, y, a, b: (lambda g: g, lambda g: -g),
    "mul": lambda xp, y, a, b: (lambda g: g * b, lambda g: g * a),
    # Not from `y`: a quotient may be the result itself, which the caller may change.
    "truediv": lambda xp, y, a, b: (lambda g: g / b, lambda g: -g * (a / b) / b),
    "pow": lambda xp, y, a, power: (lambda g: g * (power * a ** (power - 1)), None),
    "where": lambda xp, y, condition, a, b: (
        None,
        lambda g: xp.where(condition, g, 0.0),
        lambda g: xp.where(condition, 0.0, g),
    ),
    "exp": lambda xp, y, a: (lambda g: g * y,),
    "log": lambda xp, y, a: (lambda g: g / a,),
    "log2": lambda xp, y, a: (lambda g: g / (a * math.log(2)),),
    "abs": lambda xp, y, a: (lambda g: g * xp.sign(a),),  # 0 at 0
    "astype": lambda xp, y, a, dtype: (lambda g: xp.astype(g, a.dtype), None),
    "expand_dims": lambda xp, y, a, *, axis: (lambda g: xp.reshape(g, a.shape),),
    "reshape": lambda xp, y, a, shape: (lambda g: xp.reshape(g, a.shape), None),
    "broadcast_to": lambda xp, y, a, shape: (lambda g: g, None),
    "sum": lambda xp, y, a, *, axis: (
        lambda g: xp.broadcast_to(xp.expand_dims(g, axis=axis), a.shape),
    ),
    "max": _of_maximum,
}

# Functions of variables whose derivative is 0 almost everywhere, or whose results are no numbers
_CONSTANT = {"all", "any", "argmax", "argmin", "ceil", "count_nonzero", "floor", "round", "sign"}
_CONSTANT |= {"isfinite", "isinf", "isnan", "ones_like", "zeros_like"}


class Recording:
    """The functions of an array library for arrays and variables, which record pullbacks.

    Functions that are constant almost everywhere (``floor``, ``count_nonzero``) are applied to the
    values.

    Parameters
    ----------
    xp : module
        The array library.
    """

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.variables: list[Variable] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.xp, name)
        if isinstance(found, type) or not callable(found):
            return found
        return partial(self.apply, found, name=name)

    def apply(
        self, function: Callable[..., Any], *args: Any, name: str = "", **options: Any
    ) -> Any:
        """Apply a function to variables and constants; `name` is its name among `_PULLBACKS`.

        Raises
        ------
        NotImplementedError
            If it has no pullback to a variable.
        """
        name, values = name or function.__name__, [*map(value_of, args)]
        y = function(*values, **options)
        if name in _CONSTANT or not any(isinstance(a, Variable) for a in args):
            return y
        if name not in _PULLBACKS:
            names = ", ".join(sorted(_PULLBACKS.keys() | _CONSTANT))
            raise NotImplementedError(f"formulas of operators may apply {names}, got {name}")
        pullbacks = zip(args, _PULLBACKS[name](self.xp, y, *values, **options), strict=True)
        known = [(a, p) for a, p in pullbacks if isinstance(a, Variable)]
        return Variable(self, y, [(a, self._summed_to(a.shape, p)) for a, p in known])

    def _summed_to(self, shape: tuple[int, ...], pullback: Any) -> Pullback:
        """Return the pullback with a sum over the axes that were broadcast."""

        def summed(g: Any) -> Any:
            g = pullback(g)
            more = g.ndim - len(shape)
            stretched = (a for a, n in enumerate(shape, more) if n == 1 and g.shape[a] != 1)
            axes = (*range(more), *stretched)
            return self.xp.reshape(self.xp.sum(g, axis=axes, dtype=g.dtype), shape) if axes else g

        return summed

    def cotangents(self, y: Variable, gy: Any, leaves: Sequence[Variable]) -> list[Any]:
        """Compute the cotangents of `leaves` from the cotangent `gy` of a result `y`.

        The cotangent of a leaf that `y` does not depend on is zero.
        """
        found: dict[int, Any] = {id(y): gy}
        wanted = {id(leaf) for leaf in leaves}
        for variable in reversed(self.variables):
            key = id(variable)
            g = found.get(key) if key in wanted else found.pop(key, None)
            if g is None:
                continue
            for source, pullback in variable.sources:
                own = pullback(g)
                before = found.get(id(source))
                found[id(source)] = own if before is None else before + own
        return [
            found[id(leaf)] if id(leaf) in found else self.xp.zeros_like(leaf.value)
            for leaf in leaves
        ]
