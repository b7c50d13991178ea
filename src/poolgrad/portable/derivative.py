"""Reverse-mode differentiation of functions written in array-API operations.

It computes the gradients of composed operators for libraries without differentiation (NumPy, Dask,
CuPy), and those of nonlinear operators for all libraries. A function is run on instances
of `Variable`, with a `Recording` instead of its array library; both record the pullback of each
step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    @property
    def ndim(self) -> int:
        """The number of axes of the array."""
        return int(self.value.ndim)

    def __add__(self, other: Any) -> Variable:
        return self.tape.linear(lambda a, b: a + b, (self, other), (lambda g: g, lambda g: g))

    __radd__ = __add__

    def __neg__(self) -> Variable:
        return self.tape.linear(lambda a: -a, (self,), (lambda g: -g,))

    def __sub__(self, other: Any) -> Variable:
        return self.__add__(-other)

    def __rsub__(self, other: Any) -> Variable:
        return (-self).__add__(other)

    def __mul__(self, other: Any) -> Variable:
        a, b = value_of(self), value_of(other)
        return self.tape.linear(
            lambda a, b: a * b, (self, other), (lambda g: g * b, lambda g: g * a)
        )

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Variable:
        a, b = value_of(self), value_of(other)
        return self.tape.linear(
            lambda a, b: a / b, (self, other), (lambda g: g / b, lambda g: -g * (a / b) / b)
        )

    def __rtruediv__(self, other: Any) -> Variable:
        a, b = other, self.value
        return self.tape.linear(lambda b: a / b, (self,), (lambda g: -g * (a / b) / b,))

    def __pow__(self, power: int) -> Variable:
        a = self.value
        return self.tape.linear(
            lambda a: a**power, (self,), (lambda g: g * (power * a ** (power - 1)),)
        )

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


class Recording:
    """The functions of an array library for arrays and variables, which record pullbacks.

    Functions that are not defined here are applied to the values: they are constant almost
    everywhere (``floor``, ``count_nonzero``), or return properties of an array.

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
        return lambda *args, **kwargs: found(*map(value_of, args), **kwargs)

    def linear(
        self, function: Callable[..., Any], args: Sequence[Any], pullbacks: Sequence[Pullback]
    ) -> Variable:
        """Record a function of variables and constants that broadcasts its arguments."""
        value = function(*map(value_of, args))
        sources = [
            (a, lambda g, a=a, pullback=pullback: self._summed_to(pullback(g), a.shape))
            for a, pullback in zip(args, pullbacks, strict=True)
            if isinstance(a, Variable)
        ]
        return Variable(self, value, sources)

    def _summed_to(self, g: Any, shape: tuple[int, ...]) -> Any:
        """Sum the cotangent over the axes that were broadcast."""
        more = g.ndim - len(shape)
        stretched = (a for a, n in enumerate(shape, more) if n == 1 and g.shape[a] != 1)
        axes = (*range(more), *stretched)
        return self.xp.reshape(self.xp.sum(g, axis=axes, dtype=g.dtype), shape) if axes else g

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        """``xp.where``."""
        if not isinstance(a, Variable) and not isinstance(b, Variable):
            return self.xp.where(condition, a, b)
        return self.linear(
            lambda a, b: self.xp.where(condition, a, b),
            (a, b),
            (
                lambda g: self.xp.where(condition, g, 0.0),
                lambda g: self.xp.where(condition, 0.0, g),
            ),
        )

    def exp(self, x: Any) -> Any:
        """``xp.exp``."""
        y = self.xp.exp(value_of(x))
        return self.linear(lambda _: y, (x,), (lambda g: g * y,))

    def log(self, x: Any) -> Any:
        """``xp.log``."""
        return self.linear(self.xp.log, (x,), (lambda g: g / value_of(x),))

    def abs(self, x: Any) -> Any:
        """``xp.abs``, whose derivative at 0 is 0."""
        return self.linear(self.xp.abs, (x,), (lambda g: g * self.xp.sign(value_of(x)),))

    def astype(self, x: Any, dtype: Any) -> Any:
        """``xp.astype``; of a variable from a floating dtype to another."""
        if not isinstance(x, Variable):
            return self.xp.astype(x, dtype)
        return self.linear(
            lambda v: self.xp.astype(v, dtype), (x,), (lambda g: self.xp.astype(g, x.dtype),)
        )

    def expand_dims(self, x: Any, *, axis: int) -> Any:
        """``xp.expand_dims``."""
        if not isinstance(x, Variable):
            return self.xp.expand_dims(x, axis=axis)
        y = self.xp.expand_dims(x.value, axis=axis)
        return Variable(self, y, [(x, lambda g: self.xp.reshape(g, x.shape))])

    def sum(self, x: Any, *, axis: int) -> Any:
        """``xp.sum`` over one axis."""
        if not isinstance(x, Variable):
            return self.xp.sum(x, axis=axis)
        y = self.xp.sum(x.value, axis=axis, dtype=x.dtype)
        return Variable(self, y, [(x, lambda g: self._broadcast(g, x, axis))])

    def max(self, x: Any, *, axis: int) -> Any:
        """``xp.max`` over one axis; equal winners share the cotangent."""
        if not isinstance(x, Variable):
            return self.xp.max(x, axis=axis)
        y = self.xp.max(x.value, axis=axis)
        winners = x.value == self.xp.expand_dims(y, axis=axis)

        def pullback(g: Any) -> Any:
            count = self.xp.count_nonzero(winners, axis=axis)
            share = g / self.xp.astype(count, x.dtype)
            return self.xp.where(winners, self._broadcast(share, x, axis), 0.0)

        return Variable(self, y, [(x, pullback)])

    def _broadcast(self, g: Any, x: Variable, axis: int) -> Any:
        return self.xp.broadcast_to(self.xp.expand_dims(g, axis=axis), x.shape)

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
