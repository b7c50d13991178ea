"""The table of operators: each is defined here, once, for every front end.

An operator says what its forward keeps for the backward (its *residual*) and which kernels compute

* ``forward``: the output and the residual,
* ``pull``: the gradient of the input from the gradient of the output (the transposed Jacobian),
* ``push``: the tangent of the output from a tangent of the input (the Jacobian).

A front end allocates what `Buffer` describes and hands all arrays over as the kernels take them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from poolgrad.core import Layout, Plan, plan
from poolgrad.window import Rule, Window, require_real_inputs

__all__ = ["OPERATORS", "Buffer", "Operator", "Option", "Prepared", "Request", "prepare"]


class Buffer(NamedTuple):
    """An array that a front end has to allocate; `order`: its axes, slowest in memory first."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str


class Option(NamedTuple):
    """A number or word beside the windows that an operator's kernels take."""

    name: str
    type: type
    default: Any


class Operator(ABC):
    """One pooling operation.

    Attributes
    ----------
    name : str
        Its name in the table, in ``torch.ops.poolgrad`` and in `poolgrad.reference`.
    options : tuple of Option
        What it takes beside the windows, in the order of its methods' last arguments.
    selecting : bool
        Whether one input of a window wins (then there are routes, ties and indices).
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    selecting: ClassVar[bool]

    def check(self, window: Window, *options: Any) -> None:  # noqa: B027 - most have nothing to add
        """Raise for windows or options that this operator cannot take."""

    @abstractmethod
    def residual(self, layout: Layout, *options: Any) -> tuple[Buffer, ...]:
        """What forward keeps for backward."""

    @abstractmethod
    def forward(
        self, plan: Plan, x: Any, y: Any, residual: tuple[Any, ...], threads: int, *options: Any
    ) -> None:
        """Fill the output and, unless it is an empty tuple, the residual."""

    @abstractmethod
    def pull(
        self, plan: Plan, gy: Any, residual: tuple[Any, ...], gx: Any, threads: int, *options: Any
    ) -> None:
        """Fill the gradient of the input."""

    @abstractmethod
    def push(
        self, plan: Plan, t: Any, residual: tuple[Any, ...], y: Any, threads: int, *options: Any
    ) -> None:
        """Fill the tangent of the output."""


class Max(Operator):
    """The largest input of each window; a NaN if there is one."""

    name = "max"
    options = (Option("ties", str, "first"),)
    selecting = True

    def check(self, window: Window, *options: Any) -> None:
        (ties,) = options
        if ties == "all":
            raise ValueError(
                'ties="all" would give every winner the full gradient; that is not a subgradient '
                'of the maximum (the shares must add up to one). Use "first", "split" or "zero"'
            )
        if ties not in ("first", "split", "zero"):
            raise ValueError(f'ties must be "first", "split" or "zero", got {ties!r}')

    def residual(self, layout: Layout, *options: Any) -> tuple[Buffer, ...]:
        if options == ("split",):
            shape = layout.winner_shape
            return (Buffer(shape, (*layout.order, len(layout.order)), "uint8"),)
        return (Buffer(layout.out_shape, layout.order, layout.route_dtype),)

    def forward(
        self, plan: Plan, x: Any, y: Any, residual: tuple[Any, ...], threads: int, *options: Any
    ) -> None:
        if options == ("split",):
            plan.kernels.max_forward(x, y, None, False, threads)
            if residual:
                plan.kernels.split_winners(x, y, residual[0], threads)
            return
        routes = residual[0] if residual else None
        plan.kernels.max_forward(x, y, routes, options == ("zero",), threads)

    def pull(
        self, plan: Plan, gy: Any, residual: tuple[Any, ...], gx: Any, threads: int, *options: Any
    ) -> None:
        split = options == ("split",)
        kernel = plan.kernels.split_backward if split else plan.kernels.route_backward
        kernel(gy, residual[0], gx, threads)

    def push(
        self, plan: Plan, t: Any, residual: tuple[Any, ...], y: Any, threads: int, *options: Any
    ) -> None:
        split = options == ("split",)
        kernel = plan.kernels.split_follow if split else plan.kernels.route_follow
        kernel(t, residual[0], y, threads)


class Avg(Operator):
    """The mean of each window."""

    name = "avg"
    options = (Option("count_include_pad", bool, True), Option("divisor", int, 0))
    selecting = False

    def check(self, window: Window, *options: Any) -> None:
        count_include_pad, divisor = options
        if not count_include_pad and not divisor:
            require_real_inputs(window)

    def residual(self, layout: Layout, *options: Any) -> tuple[Buffer, ...]:
        return ()

    def forward(
        self, plan: Plan, x: Any, y: Any, residual: tuple[Any, ...], threads: int, *options: Any
    ) -> None:
        count_include_pad, divisor = options
        plan.kernels.average_forward(x, y, count_include_pad, divisor, threads)

    def pull(
        self, plan: Plan, gy: Any, residual: tuple[Any, ...], gx: Any, threads: int, *options: Any
    ) -> None:
        count_include_pad, divisor = options
        plan.kernels.average_backward(gy, gx, count_include_pad, divisor, threads)

    def push(
        self, plan: Plan, t: Any, residual: tuple[Any, ...], y: Any, threads: int, *options: Any
    ) -> None:
        count_include_pad, divisor = options
        plan.kernels.average_forward(t, y, count_include_pad, divisor, threads)


OPERATORS: dict[str, Operator] = {op.name: op for op in (Max(), Avg())}


class Prepared(NamedTuple):
    """An operator ready to run on one kind of array."""

    operator: Operator
    plan: Plan
    residual: tuple[Buffer, ...]


@lru_cache(maxsize=4096)
def prepare(
    name: str,
    rule: Rule,
    options: tuple[Any, ...],
    shape: tuple[int, ...],
    channels_last: bool,
    inner: int,
    itemsize: int,
) -> Prepared:
    """The plan of an operator, checked; remembered for each set of arguments.

    Raises
    ------
    TypeError, ValueError
        For anything that is wrong with windows, shape or options.
    """
    operator = OPERATORS[name]
    made = plan(rule, shape, channels_last, inner, itemsize)
    operator.check(made.window, *options)
    return Prepared(operator, made, operator.residual(made, *options))


@dataclass(frozen=True, slots=True)
class Request:
    """What a public function asks of a front end.

    Attributes
    ----------
    operator : str
        A name in the table.
    x : array
        The input.
    rule : Rule
        What makes the windows.
    options : tuple
        Values of the operator's options.
    channels_last : bool
        Whether the pooled axes are those before the last.
    keepdims : bool
        Whether the pooled axes stay in the result.
    return_indices : bool
        Whether the indices of the winners are wanted too.
    out : array or None
        Where the result goes (NumPy).
    """

    operator: str
    x: Any
    rule: Rule
    options: tuple[Any, ...]
    channels_last: bool = False
    keepdims: bool = True
    return_indices: bool = False
    out: Any = None
