"""The operator interface, and `Request`: what a public function asks of a front end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from poolgrad.core import Layout, Plan
from poolgrad.dtypes import FLOATS, INTEGERS
from poolgrad.operands import NOTHING, Operand, Samples
from poolgrad.windows import Window, WindowSpec, require_valid_inputs

__all__ = ["FLOATS", "INTEGERS", "NOTHING", "Buffer", "Operator", "Request", "Samples"]


class Buffer(NamedTuple):
    """An array that a front end has to allocate; `order`: its axes, slowest in memory first."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str


def per_output(layout: Layout, dtype: str) -> Buffer:
    """An array with one element for each output."""
    return Buffer(layout.out_shape, layout.order, dtype)


# The options of operators: numbers and words besides the windows. Each class is the options of one
# or several operators, in the order of the last arguments of their methods.


Ties = Literal["first", "split", "zero"]
Routes = Literal["bytes", "packed"]


class NoOptions(NamedTuple):
    """No options."""


class Routing(NamedTuple):
    """How routes are stored: ``"bytes"`` or ``"packed"``."""

    routes: str = "bytes"


class Selection(NamedTuple):
    """Which of equal winners get the gradient, and how routes are stored."""

    ties: str = "first"
    routes: str = "bytes"


class Averaging(NamedTuple):
    """What a sum is divided by; a divisor of 0 stands for the number of inputs."""

    count_include_pad: bool = True
    divisor: int = 0


class PowerMean(NamedTuple):
    """Whether the mean of powers is taken instead of their sum."""

    mean: bool = False


class Mixing(NamedTuple):
    """Whether padding counts as zeros in the mean."""

    count_include_pad: bool = True


STORAGE_OPTIONS = ("routes",)  # change no result, only how the residual is stored


def _with(options: Any, **values: str) -> Any:
    """The options with these values, as far as the operator has them."""
    known = {name: value for name, value in values.items() if name in options._fields}
    return options._replace(**known) if known else options


def unpacked(options: Any) -> Any:
    """The options with routes, if there are any, in bytes."""
    return _with(options, routes="bytes")


def indexed(options: Any) -> Any:
    """The options with which a selecting operator keeps what indices are made from.

    An index is that of one winner, whichever inputs get the gradient.
    """
    return _with(options, ties="first", routes="bytes")


class Windows(NamedTuple):
    """Windows whose taps lie along the last axis, for array-API operations.

    Attributes
    ----------
    values : array, shape (planes, outputs..., taps)
        The input of each tap; any number where there is none.
    valid : bool array, shape (outputs..., taps)
        Which taps lie in the input, and not in padding.
    extent : int array, shape (outputs..., 1)
        How many taps of each window lie inside the padded input.
    numbers : int array, shape (outputs..., taps)
        The number of each tap in its window, row by row.
    lowest, highest : number
        The ends of the dtype of the input.
    """

    values: Any
    valid: Any
    extent: Any
    numbers: Any
    lowest: Any = None
    highest: Any = None


class Choice(NamedTuple):
    """The winners of all windows.

    Attributes
    ----------
    winners : bool array, shape (planes, outputs..., taps)
        The taps that share the gradient: one, several, or none.
    winner : int array, shape (planes, outputs...)
        The position, along the axis of taps, of the value that is the output.
    found : bool array, shape (planes, outputs...)
        Whether there is such a value; else the output is `empty`.
    empty : number
        The output of a window without one.
    """

    winners: Any
    winner: Any
    found: Any
    empty: Any


class Operator(ABC):
    """One pooling operation.

    Given what its forward keeps (its *residual*), the derivative of an operator is a linear map of
    tangents: `push`, with `pull` its transpose. Where that map depends neither on the input nor on
    a learned parameter, nothing else is needed for derivatives of any order. An operator where it
    does is `curved`: its pull takes the input, too, and further derivatives come from `compose`.

    Attributes
    ----------
    name : str
        Its name in the table, in ``torch.ops.poolgrad`` and in `poolgrad.reference`.
    options : type
        The NamedTuple of its options, in the order of its methods' last arguments.
    operand : Operand
        Its extra operand; `NOTHING` if it has none.
    selecting : bool
        Whether one input of a window wins (then there are routes, ties and indices).
    curved : bool
        Whether its derivative depends on the input or on a learned parameter.
    integers : bool
        Whether it takes integers.
    windowed : bool
        Whether an output depends on the inputs of its window only.
    composed : bool
        Whether it is a composition of others, without kernels: a `ComposedOperator`.
    """

    name: ClassVar[str]
    options: ClassVar[type[Any]] = NoOptions
    operand: ClassVar[Operand] = NOTHING
    selecting: ClassVar[bool] = False
    curved: ClassVar[bool] = False
    integers: ClassVar[bool] = False
    windowed: ClassVar[bool] = True
    composed: ClassVar[bool] = False

    @property
    def learned(self) -> bool:
        """Whether its operand has a gradient."""
        return self.operand.has_gradient

    def accepts(self, dtype: str) -> bool:
        """Whether the input may be of this dtype."""
        return dtype in FLOATS or (self.integers and dtype in INTEGERS)

    def refuse_dtype(self, dtype: object) -> TypeError:
        """The error for an input of another dtype."""
        accepted = (*FLOATS, *(INTEGERS if self.integers else ()))
        objects = ": Python objects, not numbers" if str(dtype) == "object" else ""
        return TypeError(
            f"x must be of dtype {', '.join(accepted[:-1])} or {accepted[-1]} "
            f"for the operator {self.name}, got {dtype}{objects}"
        )

    def result(self, dtype: str) -> str:
        """The dtype of the output."""
        return dtype

    def check(self, window: Window, *options: Any) -> None:
        """Raise for windows or options that this operator cannot take."""
        require_valid_inputs(window)

    def route_bits(self, window: Window, *options: Any) -> int:
        """How many bits a packed route has; 0 where routes are whole bytes, or there are none."""
        return 0

    def check_operand(self, values: list[float]) -> None:  # noqa: B027 - most accept all numbers
        """Raise for values that a learned parameter cannot have."""

    @abstractmethod
    def residual(self, layout: Layout, *options: Any) -> tuple[Buffer, ...]:
        """What forward keeps for backward."""

    @abstractmethod
    def forward(
        self,
        plan: Plan,
        x: Any,
        operand: Any,
        y: Any,
        residual: tuple[Any, ...],
        threads: int,
        *options: Any,
    ) -> None:
        """Fill the output and, unless it is an empty tuple, the residual.

        The operand has the form of `Operand.kernel_form`.
        """

    @abstractmethod
    def pull(
        self,
        plan: Plan,
        gy: Any,
        x: Any,
        operand: Any,
        residual: tuple[Any, ...],
        gx: Any,
        threads: int,
        *options: Any,
    ) -> None:
        """Fill the gradient of the input; `x` is given to curved operators only."""

    def push(
        self,
        plan: Plan,
        t: Any,
        operand: Any,
        residual: tuple[Any, ...],
        y: Any,
        threads: int,
        *options: Any,
    ) -> None:
        """Fill the tangent of the output; not for curved operators."""
        raise NotImplementedError

    # In array-API operations, for `poolgrad.portable`. `xp` is the library of the arrays.

    def choose(self, xp: Any, windows: Windows, draw: Any, *options: Any) -> Choice:
        """Return the winners; of selecting operators.

        Parameters
        ----------
        xp : module
            An array library.
        windows : Windows
            The windows, integers and small floats in a dtype that every library computes in.
        draw : array, shape (planes, outputs...), or None
            A number in [0, 1) for each output, if the operator draws.
        *options
            As for the other methods.
        """
        raise NotImplementedError

    def share(
        self, xp: Any, numbers: Any, windows: Windows, kept: tuple[Any, ...], *options: Any
    ) -> Any:
        """Return each tap's part of a number: the derivative of a linear operator.

        Parameters
        ----------
        xp : module
            An array library.
        numbers : array, shape (planes, outputs..., taps or 1)
            Gradients of outputs, or tangents of inputs.
        windows : Windows
            Without values.
        kept : tuple of array
            The residual, routes as one integer each.
        *options
            As for the other methods.

        Returns
        -------
        array, shape (planes, outputs..., taps)
        """
        raise NotImplementedError

    def compose(self, xp: Any, windows: Windows, argument: Any, *options: Any) -> Any:
        """Return the output; of weighted operators.

        Every library differentiates this formula: see `poolgrad.portable.derivative` for the
        functions that it may use on values. In a product or a quotient with an array that does not
        depend on the values, that array stands on the right.

        Parameters
        ----------
        xp : module
            An array library, or what records its functions.
        windows : Windows
            The windows.
        argument : array or None
            The learned parameter, in a shape that goes with (planes, outputs...).
        *options
            As for the other methods.
        """
        raise NotImplementedError


class ComposedOperator(Operator):
    """An operator that is a composition of other entries of the table; see `composition`."""

    curved = True
    composed = True

    def combine(self, xp: Any, pool: Any, x: Any, operand: Any, *options: Any) -> Any:
        """Return the output.

        Parameters
        ----------
        xp : Functions
            The functions of the array library that a composition may use, and numbers of the call.
        pool : callable
            ``pool(name, x, **options)`` applies another entry to the windows of this call.
        x : array
            The input, in the dtype in which sums are kept.
        operand : array or None
            The extra operand, in the same dtype.
        *options
            Values of the options of this operator.
        """
        raise NotImplementedError

    def residual(self, layout: Layout, *options: Any) -> tuple[Buffer, ...]:
        """Nothing: the parts keep their own."""
        return ()

    def forward(self, *args: Any) -> None:
        """Not called: there is no kernel."""
        raise NotImplementedError

    def pull(self, *args: Any) -> None:
        """Not called: there is no kernel."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Request:
    """What a public function asks of a front end.

    Attributes
    ----------
    operator : str
        A name in the table.
    x : array
        The input.
    spec : WindowSpec
        The windows.
    options : NamedTuple
        The operator's options.
    operands : tuple
        The caller's value of the extra operand, if the operator has one.
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
    spec: WindowSpec
    options: Any
    operands: tuple[Any, ...] = ()
    channels_last: bool = False
    keepdims: bool = True
    return_indices: bool = False
    out: Any = None
