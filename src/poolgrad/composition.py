"""Computes composed operators and their pullbacks; the front end of the input pools the parts.

Every part is differentiable, so PyTorch and JAX differentiate the composition themselves. The
pullbacks for NumPy, Dask and array-API libraries come from `poolgrad.portable.derivative`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np

from poolgrad.core import Layout
from poolgrad.dtypes import FLOATS
from poolgrad.interface import ComposedOperator, Request
from poolgrad.operators import OPERATORS, prepare
from poolgrad.windows import brief


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
    constant: Callable[..., Any]
    pooled: tuple[int, ...] = ()
    tiny: float = 0.0


def _shown(dtype: object) -> str:
    """Return a dtype as errors show it: ``<U3``, not ``str96``; ``int64``, not ``torch.int64``."""
    return str(dtype).rpartition(".")[2]


class _Composition:
    """A validated call of a composed operator.

    Parameters
    ----------
    request : Request
        The call.
    front : module
        The front end of the input.
    """

    def __init__(self, request: Request, front: ModuleType) -> None:
        operator = OPERATORS[request.operator]
        assert isinstance(operator, ComposedOperator)
        self.operator, self.front, self.request = operator, front, request
        self.x = front.operand("x", request.x)
        dtype = front.dtype_name(self.x)
        if not operator.accepts(dtype):
            raise operator.refuse_dtype(_shown(self.x.dtype))
        where = tuple(self.x.shape), request.channels_last, -1, dtype
        # PyTorch's front end prepares without a cache while a compiler traces.
        prepare_call = getattr(front, "prepare_call", prepare)
        ready = prepare_call(request.operator, request.spec, request.options, *where)
        self.layout: Layout = ready.layout
        self.operand = self._operand()
        self.functions: Functions = front.functions(self.x)._replace(
            pooled=self.layout.pooled,
            tiny=2.0**-1000 if self.layout.sum_dtype == "float64" else 2.0**-100,
        )

    def _operand(self) -> Any:
        if not self.request.operands:
            return None
        name, expected = self.operator.operand.name, tuple(self.x.shape)
        given = self.request.operands[0]
        value = self.front.operand(name, given)
        if self.front.dtype_name(value) not in FLOATS:
            came = _shown(value.dtype) if hasattr(given, "dtype") else brief(given)
            raise TypeError(f"{name} must be of a floating dtype, got {came}")
        if tuple(value.shape) != expected:
            raise ValueError(
                f"{name} must have the shape of x, {expected}, got {tuple(value.shape)}"
            )
        return value

    def part(self, name: str, x: Any, options: dict[str, Any]) -> Request:
        """Return a call of another operator with the same windows."""
        named = OPERATORS[name].options(**options)
        return Request(name, x, self.request.spec, named, (), self.request.channels_last)

    def combined(self, xp: Functions, pool: Callable[..., Any], x: Any, operand: Any) -> Any:
        """Compute the output."""
        dtype = self.layout.sum_dtype
        wide = xp.astype(x, dtype)
        wide_operand = None if operand is None else xp.astype(operand, dtype)
        y = self.operator.combine(xp, pool, wide, wide_operand, *self.request.options)
        return xp.astype(y, self.layout.out_dtype)


def perform(request: Request, front: ModuleType) -> Any:
    """Compute a composed operator."""
    if not hasattr(front, "operand"):  # xarray, which passes on the array inside
        return front.perform(request)
    call = _Composition(request, front)

    def pool(name: str, x: Any, **options: Any) -> Any:
        return front.perform(call.part(name, x, options))

    # of NumPy's arrays only: PyTorch's compiler does not know this context
    ignores = np.errstate(all="ignore") if isinstance(call.x, np.ndarray) else nullcontext()
    with ignores:
        return call.combined(call.functions, pool, call.x, call.operand)


def vjp(request: Request, front: ModuleType) -> tuple[Any, Pullback]:
    """Compute a composed operator and its pullback, for libraries without differentiation."""
    if not hasattr(front, "pullback_of"):
        # PyTorch and JAX raise the error; xarray passes on the array inside.
        return cast(tuple[Any, Pullback], front.vjp(request))
    from poolgrad.portable.derivative import Recording, Variable, value_of

    call = _Composition(request, front)
    xp = front.namespace(call.x)
    # Copies, because the caller may change the arrays; the tape and pickling read them.
    call.x = xp.asarray(call.x, copy=True)
    call.operand = None if call.operand is None else xp.asarray(call.operand, copy=True)
    call.request = replace(request, x=None, operands=())
    tape = Recording(xp)
    plain = call.functions

    def astype(x: Any, dtype: str) -> Any:
        if not isinstance(x, Variable):
            return plain.astype(x, dtype)
        before = front.dtype_name(x.value)
        return tape.linear(
            lambda v: plain.astype(v, dtype), (x,), (lambda g: plain.astype(g, before),)
        )

    def pool(name: str, x: Any, **options: Any) -> Any:
        y, pullback = front.pullback_of(call.part(name, x.value, options))
        return Variable(tape, y, [(x, pullback)])

    functions = plain._replace(exp=tape.exp, where=tape.where, astype=astype, constant=value_of)
    inputs = (call.x,) if call.operand is None else (call.x, call.operand)
    leaves = [Variable(tape, value) for value in inputs]
    with np.errstate(all="ignore"):
        y = call.combined(functions, pool, leaves[0], leaves[1] if leaves[1:] else None)
    return y.value, Pullback(call, tape, y, leaves)


def _again(request: Request, front: str) -> Pullback:
    return vjp(request, import_module(front))[1]


class Pullback:
    """The pullback of a composed operator; returned by `poolgrad.vjp`."""

    def __init__(self, call: _Composition, tape: Any, y: Any, leaves: list[Any]) -> None:
        self._call, self._tape, self._y, self._leaves = call, tape, y, leaves

    def __reduce__(self) -> tuple[Any, ...]:
        # The tape holds functions, which cannot be pickled: it is recorded again from the input.
        call = self._call
        operands = () if call.operand is None else (call.operand,)
        return _again, (replace(call.request, x=call.x, operands=operands), call.front.__name__)

    def __repr__(self) -> str:
        layout = self._call.layout
        return (
            f"<Pullback of {self._call.operator.name} pooling: "
            f"gradients of {layout.out_shape} to {layout.in_shape}, {layout.out_dtype}>"
        )

    def __call__(self, gy: Any) -> Any:
        """Compute the gradient of the input from that of the output; see `poolgrad.Pullback`."""
        return self._gradients(gy)[0]

    def parameters(self, gy: Any) -> dict[str, Any]:
        """Compute the gradient of the extra operand, by its name; empty if there is none."""
        operator = self._call.operator
        return {operator.operand.name: self._gradients(gy)[1]} if operator.learned else {}

    def _gradients(self, gy: Any) -> list[Any]:
        layout = self._call.layout
        cotangent = self._call.front.cotangent_of(gy, layout.out_dtype, layout.out_shape)
        with np.errstate(all="ignore"):
            gradients: list[Any] = self._tape.cotangents(self._y, cotangent, self._leaves)
        return gradients
