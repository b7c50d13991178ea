"""What an operator is, and what functions, front ends and operators say to each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from poolgrad.core import Layout, Plan
from poolgrad.rule import Rule
from poolgrad.window import Window, require_real_inputs

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "bool")


class Buffer(NamedTuple):
    """An array that a front end has to allocate; `order`: its axes, slowest in memory first."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str


def per_output(layout: Layout, dtype: str) -> Buffer:
    """An array with one element for each output."""
    return Buffer(layout.out_shape, layout.order, dtype)


class Option(NamedTuple):
    """A number or word beside the windows that an operator's kernels take.

    `stored`: it changes no result, only how what is kept lies in memory.
    """

    name: str
    type: type
    default: Any
    stored: bool = False


def unpacked(options: tuple[Any, ...]) -> tuple[Any, ...]:
    """The options with routes in bytes."""
    return tuple("bytes" if value == "packed" else value for value in options)


def indexed(options: tuple[Any, ...]) -> tuple[Any, ...]:
    """The options with which a selecting operator keeps what indices are made of.

    An index is of one winner, whatever becomes of gradients.
    """
    ties = ("split", "zero")
    return tuple("first" if value in ties else value for value in unpacked(options))


class Argument(NamedTuple):
    """An array beside the input.

    Attributes
    ----------
    name : str
        What the public functions call it.
    kind : str
        ``"learned"``: a real number, or one for each channel; it has a gradient. ``"seed"``: what a
        draw is made from. ``"samples"``: where fractional windows begin. ``"indices"``: positions
        in the planes of the output. ``"tensor"``: an array of the shape of the input; it has a
        gradient.
    """

    name: str
    kind: Literal["learned", "seed", "samples", "indices", "tensor"]


class Samples(NamedTuple):
    """Where fractional windows begin: samples as they were given, or what they are drawn from."""

    given: Any
    generator: Any


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
    a learned argument, nothing else is needed for derivatives of any order. An operator where it
    does is `curved`: its pull takes the input, too, and further derivatives come from `compose`.

    Attributes
    ----------
    name : str
        Its name in the table, in ``torch.ops.poolgrad`` and in `poolgrad.reference`.
    options : tuple of Option
        What it takes beside the windows, in the order of its methods' last arguments.
    argument : Argument or None
        The array that it takes beside the input.
    selecting : bool
        Whether one input of a window wins (then there are routes, ties and indices).
    curved : bool
        Whether its derivative depends on the input or on a learned argument.
    integers : bool
        Whether it takes integers.
    windowed : bool
        Whether an output depends on the inputs of its window only.
    composed : bool
        Whether it is a composition of others, without kernels: a `ComposedOperator`.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    argument: ClassVar[Argument | None] = None
    selecting: ClassVar[bool] = False
    curved: ClassVar[bool] = False
    integers: ClassVar[bool] = False
    windowed: ClassVar[bool] = True
    composed: ClassVar[bool] = False

    @property
    def learned(self) -> bool:
        """Whether its argument has a gradient: then the last residual is the output's slope."""
        return self.argument is not None and self.argument.kind == "learned"

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
        require_real_inputs(window)

    def route_bits(self, window: Window, *options: Any) -> int:
        """How many bits a packed route has; 0 where routes are whole bytes, or there are none."""
        return 0

    def check_argument(self, values: list[float]) -> None:  # noqa: B027 - most have nothing to say
        """Raise for values that a learned argument cannot have."""

    @abstractmethod
    def residual(self, layout: Layout, *options: Any) -> tuple[Buffer, ...]:
        """What forward keeps for backward."""

    @abstractmethod
    def forward(
        self,
        plan: Plan,
        x: Any,
        argument: Any,
        y: Any,
        residual: tuple[Any, ...],
        threads: int,
        *options: Any,
    ) -> None:
        """Fill the output and, unless it is an empty tuple, the residual.

        A learned argument comes as (array, length), a seed as an integer.
        """

    @abstractmethod
    def pull(
        self,
        plan: Plan,
        gy: Any,
        x: Any,
        argument: Any,
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
        argument: Any,
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
    rule : Rule
        What makes the windows.
    options : tuple
        Values of the operator's options.
    arguments : tuple
        The array beside the input, if the operator takes one, as it was given.
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
    options: tuple[Any, ...] = ()
    arguments: tuple[Any, ...] = ()
    channels_last: bool = False
    keepdims: bool = True
    return_indices: bool = False
    out: Any = None
