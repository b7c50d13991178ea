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
    """A call of a composed operator, and the output and inputs that its tape recorded."""

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
            gradients: list[Any] = self.y.tape.cotangents(self.y, gy, self.leaves)
        return gradients


def _part(call: Call, name: str, x: Any, options: dict[str, Any]) -> Request:
    """Return a call of another operator with the windows of a composition."""
    named = OPERATORS[name].options(**options)
    return Request(name, x, call.request.spec, named, (), call.request.channels_last)


def _combined(call: Call, xp: Functions, pool: Callable[..., Any], x: Any, operand: Any) -> Any:
    """Return the output of a composed operator."""
    operator, layout = call.ready.operator, call.ready.layout
    assert isinstance(operator, ComposedOperator)
    wide = xp.astype(x, layout.sum_dtype)
    wide_operand = None if operand is None else xp.astype(operand, layout.sum_dtype)
    tiny = 2.0**-1000 if layout.sum_dtype == "float64" else 2.0**-100
    xp = xp._replace(pooled=layout.pooled, tiny=tiny)
    y = operator.combine(xp, pool, wide, wide_operand, call.request.options)
    return xp.astype(y, layout.out_dtype)


def perform(call: Call) -> Any:
    """Compute a composed operator."""
    front = call.front

    def pool(name: str, x: Any, **options: Any) -> Any:
        return front.perform(_part(call, name, x, options))

    # of NumPy's arrays only: PyTorch's compiler does not know this context
    ignores = np.errstate(all="ignore") if isinstance(call.x, np.ndarray) else nullcontext()
    with ignores:
        y = _combined(call, front.functions(call.x), pool, call.x, call.operand)
    return front.finished(call, y)


def vjp(call: Call) -> tuple[Any, Pullback]:
    """Compute a composed operator and its pullback, for libraries without differentiation."""
    from array_api_compat import array_namespace

    from poolgrad.portable.derivative import Recording, Variable, value_of

    front = call.front
    # Copies, because the caller may change the arrays; the tape and pickling read them.
    tape = Recording(array_namespace(call.x))
    leaves = [Variable(tape, front.copied(a)) for a in (call.x, call.operand) if a is not None]
    plain = front.functions(call.x)

    def astype(x: Any, dtype: str) -> Any:
        if not isinstance(x, Variable):
            return plain.astype(x, dtype)
        before = front.dtype_name(x.value)
        return Variable(
            tape, plain.astype(x.value, dtype), [(x, lambda g: plain.astype(g, before))]
        )

    def pool(name: str, x: Any, **options: Any) -> Any:
        y, pullback = front.vjp(_part(call, name, x.value, options))
        return Variable(tape, y, [(x, pullback)])

    functions = plain._replace(exp=tape.exp, where=tape.where, astype=astype, constant=value_of)
    with np.errstate(all="ignore"):
        y = _combined(call, functions, pool, *leaves, *(None,) * (2 - len(leaves)))
    request = replace(call.request, x=None, operands=())
    return y.value, Pullback(
        Composition(front, request, call.ready, None, None, y, leaves), None, ()
    )


def _recorded_again(request: Request, front: FrontEnd) -> Call:
    return front.vjp(request)[1].call
