"""The operator interface, and `Request`: what a public function asks of a front end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

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


def unpacked(options: Any) -> Any:
    """The options with routes in bytes."""
    return options._replace(routes="bytes")


def indexed(options: Any) -> Any:
    """The options with which a selecting operator keeps what indices are made from.

    An index is that of one winner, whichever inputs get the gradient.
    """
    first = {"ties": "first"} if "ties" in options._fields else {}
    return options._replace(routes="bytes", **first)


class Windows(NamedTuple):
    """Windows laid out one after the other, for an array library's own operations.

    Attributes
    ----------
    values : array, shape (..., outputs, taps)
        The inputs of each window; any number where there are no more.
    real : bool array, shape (outputs, taps)
        Which of them are inputs.
    extent : array, shape (outputs, 1)
        How many places of each window lie inside the padded input.
    places : array, shape (outputs, taps), or None
        The place of each input in its window.
    """

    values: Any
    real: Any
    extent: Any
    places: Any = None


class Choice(NamedTuple):
    """Who wins in each window.

    Attributes
    ----------
    winners : bool array, shape (..., outputs, taps)
        One input, or those that share the gradient; none where it goes nowhere.
    tap : int array, shape (..., outputs)
        Whose value the output is.
    found : bool array, shape (..., outputs)
        Whether it is anybody's; else it is `empty`.
    empty : number
        The output of a window where nobody is found.
    """

    winners: Any
    tap: Any
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
    """

    name: ClassVar[str]
    options: ClassVar[type[Any]] = NoOptions
    operand: ClassVar[Operand] = NOTHING
    selecting: ClassVar[bool] = False
    curved: ClassVar[bool] = False
    integers: ClassVar[bool] = False
    windowed: ClassVar[bool] = True

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

    # By an array library's own operations: what no kernel computes, or where there are none.

    def choose(self, xp: Any, windows: Windows, draw: Any, *options: Any) -> Choice:
        """Who wins; of selecting operators.

        Parameters
        ----------
        xp : module
            With what NumPy calls ``where``, ``amax``, ``argmax``, ``sort`` and ``cumsum``.
        windows : Windows
            The inputs.
        draw : array, shape (..., outputs), or None
            A number in [0, 1) for each, if the operator draws.
        *options
            As for the other methods.
        """
        raise NotImplementedError

    def share(
        self, xp: Any, numbers: Any, windows: Windows, kept: tuple[Any, ...], *options: Any
    ) -> Any:
        """Each input's part of a number; not for curved operators.

        Parameters
        ----------
        xp : module
            An array library.
        numbers : array, shape (..., outputs, taps or 1)
            Gradients of outputs, or tangents of inputs.
        windows : Windows
            Without values.
        kept : tuple of array
            The residual, routes in bytes.
        *options
            As for the other methods.

        Returns
        -------
        array, shape (..., outputs, taps)
        """
        raise NotImplementedError

    def compose(self, xp: Any, windows: Windows, argument: Any, *options: Any) -> Any:
        """The output, of blending operators.

        Parameters
        ----------
        xp : module
            With ``where``, ``exp``, ``log``, ``abs``, ``amax`` and ``cumsum``.
        windows : Windows
            The inputs.
        argument : array or None
            Of a shape that goes with ``windows.values``.
        *options
            As for the other methods.
        """
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
