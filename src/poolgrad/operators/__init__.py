"""The table of operators: each is defined here, once, for every front end.

An operator defines its *residual* (the arrays that its forward pass stores for the backward pass),
the kernels of its forward pass, vjp and jvp and, if it is nonlinear, its formula in array-API
operations. `prepare` checks a call and lays out its arrays; a front end allocates the
buffers that it describes, and passes arrays to the operator.

| file | content |
|---|---|
| `selecting.py` | operators in which one input of each window wins, and max unpooling |
| `weighted.py` | operators in which every input of a window has a weight |
| `composed.py` | operators that are composed of other operators |

`poolgrad.interface` defines the methods of an operator, docs/operators.md the formulas. Tests:
``tests/exactness/test_operator_table.py``, and every test that iterates over the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from poolgrad.core import kernels_for
from poolgrad.interface import Buffer, KernelCall, Operator, per_input, per_output
from poolgrad.operators.composed import COMPOSED
from poolgrad.operators.selecting import SELECTING
from poolgrad.operators.weighted import WEIGHTED
from poolgrad.windows import Layout, WindowKind, WindowSpec, lay_out

__all__ = ["OPERATORS", "Prepared", "for_each_operator", "prepare", "prepare_uncached", "register"]

OPERATORS: dict[str, Operator] = {}
_listeners: list[Callable[[Operator], None]] = []


def register(operator: Operator) -> Operator:
    """Add an operator to the table, for every front end.

    Without kernels it is computed by `poolgrad.portable`. CONTRIBUTING.md describes what an
    operator defines.

    Raises
    ------
    ValueError
        If the table has an operator of this name.
    """
    if operator.name in OPERATORS:
        raise ValueError(f"operator must have a new name, got {operator.name!r}")
    OPERATORS[operator.name] = operator
    for listener in _listeners:
        listener(operator)
    return operator


def for_each_operator(listener: Callable[[Operator], None]) -> None:
    """Call `listener` with every operator of the table, and with those that are added later."""
    for operator in OPERATORS.values():
        listener(operator)
    _listeners.append(listener)


for _operator in (*SELECTING, *WEIGHTED, *COMPOSED):
    register(_operator)


@dataclass(eq=False)
class Prepared:
    """A validated call of an operator for one layout of arrays, without the arrays.

    It is shared by all such calls, and never changed.

    Attributes
    ----------
    operator : Operator
        The entry of the table.
    spec : WindowSpec
        The windows.
    options : NamedTuple
        The operator's options by name.
    channels_last : bool
        Whether the pooled axes are those before the last.
    inner : int
        The axis that lies innermost in memory, if it is not pooled; else -1.
    layout : Layout
        The windows of this input, shapes, dtypes and memory formats.
    residual : tuple of Buffer
        The arrays that the forward pass stores for the backward pass.
    """

    operator: Operator
    spec: WindowSpec
    options: Any
    channels_last: bool
    inner: int
    layout: Layout
    residual: tuple[Buffer, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        where = (self.layout.in_shape, self.channels_last, self.inner, self.layout.dtype)
        return prepare, (self.operator.name, self.spec, self.options, *where)

    @cached_property
    def needed(self) -> tuple[Buffer, ...]:
        """The residual without that of a parameter, which its gradient alone needs."""
        return self.residual[:-1] if self.operator.learned else self.residual

    @property
    def output(self) -> Buffer:
        """The output."""
        return per_output(self.layout, self.layout.out_dtype)

    @property
    def input(self) -> Buffer:
        """The gradient of the input."""
        return per_input(self.layout)

    def per_output(self, dtype: str) -> Buffer:
        """Return a buffer with one number for each output."""
        return per_output(self.layout, dtype)

    @property
    def route_bits(self) -> int:
        """Bits of a packed route; 0 if routes are whole bytes or there are none."""
        return self.operator.route_bits(self.layout.window, self.options)

    @cached_property
    def kernels(self) -> Any:
        """The compiled kernels for this layout."""
        return kernels_for(self.layout, self.inner, self.route_bits)

    def call(self, source: Any, target: Any, kernels: Any = None, **others: Any) -> KernelCall:
        """Return the arguments of the operator's methods; `others` are fields of `KernelCall`."""
        own = self.kernels if kernels is None else kernels
        return KernelCall(own, self.layout, self.options, source, target, **others)


def prepare_uncached(
    name: str,
    spec: WindowSpec,
    options: Any,
    shape: tuple[int, ...],
    channels_last: bool,
    inner: int,
    dtype: str,
) -> Prepared:
    """Validate a call and compute the layout of its arrays.

    Sizes may be symbolic integers of a framework.

    Parameters
    ----------
    name : str
        The operator's name in the table.
    spec : WindowSpec
        The windows.
    options : NamedTuple
        The operator's options.
    shape : tuple of int
        Shape of the input.
    channels_last : bool
        Whether the pooled axes are those before the last.
    inner : int
        The result of `windows.inner_axis` for the input.
    dtype : str
        Dtype of the input.

    Raises
    ------
    TypeError, ValueError
        If windows, shape, dtype or options are not accepted.
    """
    operator = OPERATORS[name]
    if (spec.kind is WindowKind.FRACTIONAL) != operator.operand.determines_windows:
        words = "must" if operator.operand.determines_windows else "must not"
        raise ValueError(f"window {words} be fractional for the operator {name}, got {spec}")
    if not operator.accepts(dtype):
        raise operator.refuse_dtype(dtype)
    layout = lay_out(spec, shape, channels_last, inner, dtype, operator.result(dtype, options))
    operator.check(layout.window, options)
    residual = operator.residual(layout, options)
    return Prepared(operator, spec, options, channels_last, inner, layout, residual)


_prepare_cached = lru_cache(maxsize=4096)(prepare_uncached)


def prepare(
    name: str, spec: WindowSpec, options: Any, shape: tuple[int, ...], *where: Any
) -> Prepared:
    """Call `prepare_uncached`, cached unless a size is symbolic and may not be hashable."""
    function = _prepare_cached if {*map(type, shape)} <= {int} else prepare_uncached
    return function(name, spec, options, shape, *where)
