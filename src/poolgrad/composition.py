"""Computes composed operators and their pullbacks; the front end of the input pools the parts.

Every part is differentiable, so PyTorch and JAX differentiate the composition themselves. The
pullbacks for NumPy, Dask and array-API libraries come from `poolgrad.portable.derivative`.
"""

# ruff: noqa: D102 - the base class documents the methods

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from poolgrad.interface import ComposedOperator, Request
from poolgrad.operators import OPERATORS
from poolgrad.pullback import Call, Pullback

if TYPE_CHECKING:
    from poolgrad.frontend import FrontEnd


class Functions(NamedTuple):
    """Functions that a composition may call besides arithmetic, `abs`, comparisons and operators.

    Attributes
    ----------
    exp, where, max : callable
        As in the array API standard; `max` takes several axes.
    astype : callable
        ``astype(x, dtype name or dtype of an array)``.
    constant : callable
        Returns the array as a constant, without derivative.
    pooled : tuple of int
        The pooled axes.
    tiny : float
        A number that is negligible next to 1, and whose products with finite numbers are not 0.
    """

    exp: Callable[..., Any]
    where: Callable[..., Any]
    max: Callable[..., Any]
    astype: Callable[..., Any]
    constant: Callable[..., Any] = lambda x: x
    pooled: tuple[int, ...] = ()
    tiny: float = 0.0


@dataclass(eq=False)
class Composition(Call):
    """A validated call of a composed operator, and the tape of its pullback."""

    tape: Any = None
    y: Any = None
    leaves: Any = ()

    def __reduce__(self) -> tuple[Any, ...]:
        # The tape holds functions, which cannot be pickled: it is recorded again from the input.
        x, *operands = (leaf.value for leaf in self.leaves)
        return _recorded_again, (replace(self.request, x=x, operands=(*operands,)), self.front)

    def gradient(self, gy: Any, x: Any, residual: Any) -> Any:
        return self._gradients(gy)[0]

    def parameter_gradient(self, gy: Any, x: Any, residual: Any) -> Any:
        return self._gradients(gy)[1]

    def _gradients(self, gy: Any) -> list[Any]:
        with np.errstate(all="ignore"):
            gradients: list[Any] = self.tape.cotangents(self.y, gy, self.leaves)
        return gradients

    def part(self, name: str, x: Any, options: dict[str, Any]) -> Request:
        """Return a call of another operator with the same windows."""
        named = OPERATORS[name].options(**options)
        return Request(name, x, self.request.spec, named, (), self.request.channels_last)

    def combined(self, xp: Functions, pool: Callable[..., Any], x: Any, operand: Any) -> Any:
        """Compute the output."""
        operator, layout = self.ready.operator, self.ready.layout
        assert isinstance(operator, ComposedOperator)
        wide = xp.astype(x, layout.sum_dtype)
        wide_operand = None if operand is None else xp.astype(operand, layout.sum_dtype)
        tiny = 2.0**-1000 if layout.sum_dtype == "float64" else 2.0**-100
        xp = xp._replace(pooled=layout.pooled, tiny=tiny)
        y = operator.combine(xp, pool, wide, wide_operand, self.request.options)
        return xp.astype(y, layout.out_dtype)


def _composition(request: Request, front: FrontEnd) -> Composition:
    call = front.call(request)
    return Composition(front, call.request, call.ready, call.x, call.operand)


def perform(request: Request, front: FrontEnd) -> Any:
    """Compute a composed operator."""
    call = _composition(request, front)

    def pool(name: str, x: Any, **options: Any) -> Any:
        return front.perform(call.part(name, x, options))

    # of NumPy's arrays only: PyTorch's compiler does not know this context
    ignores = np.errstate(all="ignore") if isinstance(call.x, np.ndarray) else nullcontext()
    with ignores:
        y = call.combined(front.functions(call.x), pool, call.x, call.operand)
    return front.finished(call, y)


def vjp(request: Request, front: FrontEnd) -> tuple[Any, Pullback]:
    """Compute a composed operator and its pullback, for libraries without differentiation."""
    from array_api_compat import array_namespace

    from poolgrad.portable.derivative import Recording, Variable, value_of

    call = _composition(request, front)
    # Copies, because the caller may change the arrays; the tape and pickling read them.
    inputs = [front.copied(a) for a in (call.x, call.operand) if a is not None]
    tape = Recording(array_namespace(call.x))
    plain = front.functions(call.x)

    def astype(x: Any, dtype: str) -> Any:
        if not isinstance(x, Variable):
            return plain.astype(x, dtype)
        before = front.dtype_name(x.value)
        return tape.linear(
            lambda v: plain.astype(v, dtype), (x,), (lambda g: plain.astype(g, before),)
        )

    def pool(name: str, x: Any, **options: Any) -> Any:
        y, pullback = front.vjp(call.part(name, x.value, options))
        return Variable(tape, y, [(x, pullback)])

    functions = plain._replace(exp=tape.exp, where=tape.where, astype=astype, constant=value_of)
    call.leaves = [Variable(tape, value) for value in inputs]
    call.request, call.x, call.operand = replace(request, x=None, operands=()), None, None
    with np.errstate(all="ignore"):
        y = call.combined(functions, pool, *call.leaves, *(None,) * (2 - len(inputs)))
    call.tape, call.y = tape, y
    return y.value, Pullback(call, None, ())


def _recorded_again(request: Request, front: FrontEnd) -> Call:
    return vjp(request, front)[1].call
