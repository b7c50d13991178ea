"""The operator interface, and `Request`: a call that a public function passes to a front end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from poolgrad.core import empty_cache
from poolgrad.dtypes import FLOATS, INTEGERS
from poolgrad.operands import NOTHING, Operand
from poolgrad.windows import Layout, Window, WindowSpec, require_valid_inputs

M = TypeVar("M")  # memory of a library


class Buffer(NamedTuple):
    """An array that a front end allocates; `order` lists its axes, slowest in memory first.

    `input_shape` is the shape of the input, and `cause` a sentence for errors with that shape in
    place of the braces: what the size of the array follows from.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str
    input_shape: tuple[int, ...]
    cause: str = "x of shape {} and the windows"

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def per_output(layout: Layout, dtype: str) -> Buffer:
    """Return the buffer of an array with one element for each output."""
    return Buffer(layout.out_shape, layout.order, dtype, layout.in_shape)


def per_input(layout: Layout) -> Buffer:
    """Return the buffer of the gradient of the input."""
    return Buffer(layout.in_shape, layout.order, layout.dtype, layout.in_shape)


def with_memory(allocate: Callable[[int], M], buffer: Buffer, itemsize: int) -> M:
    """Return ``allocate(bytes)``, memory for a large array; once more if caches can be emptied.

    Raises
    ------
    MemoryError
        If there is not enough memory; the message names the bytes and where they follow from.
    """
    size = buffer.elements * itemsize
    try:
        return allocate(size)
    except MemoryError:
        empty_cache()
    try:
        return allocate(size)
    except MemoryError as error:
        raise MemoryError(
            f"{error} for an array of shape {buffer.shape} and dtype {buffer.dtype}, "
            f"which follows from {buffer.cause.format(buffer.input_shape)}"
        ) from None


# The options of operators: numbers and strings besides the windows.


Ties = Literal["first", "split", "zero"]
Routes = Literal["bytes", "packed"]


class NoOptions(NamedTuple):
    """No options."""


class Routing(NamedTuple):
    """How routes are stored: ``"bytes"`` or ``"packed"``."""

    routes: str = "bytes"


class Selection(NamedTuple):
    """Which of several equal winners get the gradient, and how routes are stored."""

    ties: str = "first"
    routes: str = "bytes"


class Averaging(NamedTuple):
    """The divisor of a sum, and how the averages of quantised integers are rounded.

    Attributes
    ----------
    count_include_pad : bool
        Whether padding counts as zeros.
    divisor : int
        The divisor; 0 stands for the number of inputs.
    rounding : tuple
        Empty if integers are not quantised, else (the scale of the inputs divided by that of the
        outputs, the zero point of the inputs, the zero point of the outputs twice: what is added
        before and after rounding to even, one of them 0). The order matters for ties only.
    """

    count_include_pad: bool = True
    divisor: int = 0
    rounding: tuple[float, ...] = ()


class PowerMean(NamedTuple):
    """Whether the mean of powers is taken instead of their sum."""

    mean: bool = False


class Mixing(NamedTuple):
    """Whether padding counts as zeros in the mean."""

    count_include_pad: bool = True


STORAGE_OPTIONS = ("routes",)  # these change only how the residual is stored


def _with(options: Any, **values: tuple[str, ...]) -> Any:
    """Replace options that the operator has: ``name=(old values..., new value)``."""
    known = {
        name: new for name, (*old, new) in values.items() if getattr(options, name, None) in old
    }
    return options._replace(**known) if known else options


def unpacked(options: Any) -> Any:
    """Return the options with unpacked routes."""
    return _with(options, routes=("packed", "bytes"))


def without_split_ties(options: Any) -> Any:
    """Return the options for integers, which have no gradient to split."""
    return _with(options, ties=("split", "first"))


def indexed(options: Any) -> Any:
    """Return the options with which a selecting operator stores the routes of first winners.

    Indices are computed from these routes, whichever inputs get the gradient.
    """
    return _with(options, ties=("split", "zero", "first"), routes=("packed", "bytes"))


class UnfoldedWindows(NamedTuple):
    """Windows whose taps lie along the last axis, for array-API operations.

    Attributes
    ----------
    values : array, shape (planes, outputs..., taps)
        The input of each tap; any number where the tap is not valid.
    valid : bool array, shape (outputs..., taps)
        Whether each tap lies in the input, not in padding.
    extent : int array, shape (outputs..., 1)
        Number of taps of each window inside the padded input.
    taps : int array, shape (outputs..., taps)
        Index of each tap in its window, in row-major order.
    lowest, highest : number
        The lowest and highest value of the dtype of the input.
    """

    values: Any
    valid: Any
    extent: Any
    taps: Any
    lowest: Any = None
    highest: Any = None


class Choice(NamedTuple):
    """The winners of all windows.

    Attributes
    ----------
    winners : bool array, shape (planes, outputs..., taps)
        The taps that share the gradient: one, several, or none.
    winner : int array, shape (planes, outputs...)
        Index, along the axis of taps, of the value that is the output.
    found : bool array, shape (planes, outputs...)
        Whether the window has a winner; if not, the output is `empty`.
    empty : number
        The output of a window without a winner.
    """

    winners: Any
    winner: Any
    found: Any
    empty: Any


class KernelCall(NamedTuple):
    """The arguments of the methods of an operator that call kernels.

    Attributes
    ----------
    kernels : object
        The kernels for the layout, of a CPU or of a GPU.
    layout : Layout
        The windows, shapes and dtypes.
    options : NamedTuple
        The options of the operator.
    source : array
        What is read: the input, the gradient of the output, or the tangent of the input.
    target : array
        What is written: the output, the gradient of the input, or the tangent of the output.
    residual : tuple of array
        What the forward pass stores; empty if nothing is stored.
    operand : object
        The extra operand in the form that `Operand.kernel_form` returns.
    x : array
        The input, for the vjp of nonlinear operators.
    threads : int
        The number of threads.
    """

    kernels: Any
    layout: Layout
    options: Any
    source: Any
    target: Any
    residual: tuple[Any, ...] = ()
    operand: Any = None
    x: Any = None
    threads: Any = 1


# Values of `Operator.kernels`
ON_CPUS = frozenset({"cpu", "xla"})
ON_CPUS_AND_GPUS = ON_CPUS | {"cuda"}

# Kernels that compute several reductions, by their numbers: Select and NonlinearOp of
# csrc/kernels.hpp.
SELECTIONS = ("max", "relu_max", "min", "median")
NONLINEAR = ("lp", "lp_mean", "log_mean_exp", "soft", "expected")


class Operator:
    """One pooling operation.

    For a given *residual* (the arrays that the forward pass stores), the derivative of an operator
    is a linear map: `jvp` applies this map, `vjp` its transpose. If this map does not depend on the
    input or on a learned parameter, derivatives of any order follow from these two methods.
    Otherwise the operator is nonlinear: its `vjp` also takes the input, and derivatives
    of higher order come from `formula`.

    Attributes
    ----------
    name : str
        Name in the table, in ``torch.ops.poolgrad`` and in `poolgrad.reference`.
    options : type
        The NamedTuple of the options.
    operand : Operand
        The extra operand; `NOTHING` for operators without one.
    selecting : bool
        Whether one input of a window wins, so that there are routes, ties and indices.
    nonlinear : bool
        Whether the operator is nonlinear: its derivative depends on the input or on a learned
        parameter.
    integers : bool
        Whether integer inputs are accepted.
    windowed : bool
        Whether an output depends only on the inputs of its window.
    composed : bool
        Whether it is a `ComposedOperator`, which is computed from other operators.
    kernels : frozenset of str
        The devices with kernels for the operator: ``"cpu"``, ``"xla"`` (those of the CPU, called by
        XLA), ``"cuda"`` (Triton). On all others `poolgrad.portable` computes it.
    """

    name: ClassVar[str]
    options: ClassVar[type[Any]] = NoOptions
    operand: ClassVar[Operand] = NOTHING
    selecting: ClassVar[bool] = False
    nonlinear: ClassVar[bool] = False
    integers: ClassVar[bool] = False
    windowed: ClassVar[bool] = True
    composed: ClassVar[bool] = False
    kernels: ClassVar[frozenset[str]] = frozenset()

    @property
    def learned(self) -> bool:
        """Whether the extra operand has a gradient."""
        return self.operand.has_gradient

    def has_kernels(self, device: str, options: Any) -> bool:
        """Whether a device has kernels for the operator with these options."""
        return device in self.kernels

    def accepts(self, dtype: str) -> bool:
        """Whether the input may be of this dtype."""
        return dtype in FLOATS or (self.integers and dtype in INTEGERS)

    def refuse_dtype(self, dtype: object) -> TypeError:
        """Return the error for an input of an unsupported dtype."""
        accepted = (*FLOATS, *(INTEGERS if self.integers else ()))
        objects = ": Python objects, not numbers" if str(dtype) == "object" else ""
        return TypeError(
            f"x must be of dtype {', '.join(accepted[:-1])} or {accepted[-1]} "
            f"for the operator {self.name}, got {dtype}{objects}"
        )

    def result(self, dtype: str, options: Any) -> str:
        """Return the dtype of the output; raise an error for a dtype that the options refuse."""
        return dtype

    def check(self, window: Window, options: Any) -> None:
        """Raise an error for windows or options that the operator does not support."""
        require_valid_inputs(window)

    def route_bits(self, window: Window, options: Any) -> int:
        """Return the bits of a packed route; 0 if routes are whole bytes or there are none."""
        return 0

    def split(self, arrays: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
        """Split what a vjp or jvp takes besides the arrays in which it is linear.

        Into the input (None unless the operator is nonlinear), extra operands, and the residual.
        """
        first = int(self.nonlinear)
        second = first + self.operand.count
        return (arrays[0] if first else None), arrays[first:second], arrays[second:]

    def check_operand(self, values: list[float]) -> None:
        """Raise an error for invalid values of a learned parameter."""

    def residual(self, layout: Layout, options: Any) -> tuple[Buffer, ...]:
        """Return the buffers that the forward pass stores for the backward pass."""
        return ()

    def forward(self, call: KernelCall) -> None:
        """Compute the output (`target`) of the input (`source`), and the residual if there is one.

        For operators with kernels.
        """
        raise NotImplementedError

    def vjp(self, call: KernelCall) -> None:
        """Compute the gradient of the input (`target`) from that of the output (`source`).

        For operators with kernels.
        """
        raise NotImplementedError

    def jvp(self, call: KernelCall) -> None:
        """Compute the tangent of the output (`target`) from that of the input (`source`).

        For operators with kernels that are not nonlinear.
        """
        raise NotImplementedError

    # In array-API operations, for `poolgrad.portable`. `xp` is the library of the arrays.

    def choose(self, xp: Any, windows: UnfoldedWindows, draw: Any, options: Any) -> Choice:
        """Return the winners, for selecting operators.

        Parameters
        ----------
        xp : module
            An array library.
        windows : UnfoldedWindows
            The windows; integers and small floats are converted to a dtype that every library
            supports.
        draw : array, shape (planes, outputs...), or None
            A number in [0, 1) for each output, if the operator draws.
        options : NamedTuple
            The options.
        """
        raise NotImplementedError

    def share(
        self, xp: Any, amounts: Any, windows: UnfoldedWindows, routes: Any, options: Any
    ) -> Any:
        """Return each tap's share of an amount: the derivative of a linear operator.

        Parameters
        ----------
        xp : module
            An array library.
        amounts : array, shape (planes, outputs..., taps or 1)
            Gradients of outputs, or tangents of inputs.
        windows : UnfoldedWindows
            The windows, without values.
        routes : integer array or None
            For selecting operators: the route of each output, shape (planes, outputs...), or the
            bytes of the bits of all winners, with one more axis.
        options : NamedTuple
            The options.

        Returns
        -------
        array, shape (planes, outputs..., taps)
        """
        raise NotImplementedError

    def formula(self, xp: Any, windows: UnfoldedWindows, argument: Any, options: Any) -> Any:
        """Return the output, for weighted operators.

        Array libraries differentiate this formula. `poolgrad.portable.derivative` lists the
        functions that it may apply to values. In a product or quotient with an array that does not
        depend on the values, that array is the right operand.

        Parameters
        ----------
        xp : module
            An array library, or a `Recording` of its functions.
        windows : UnfoldedWindows
            The windows.
        argument : array or None
            The learned parameter, in a shape that broadcasts with (planes, outputs...).
        options : NamedTuple
            The options.
        """
        raise NotImplementedError


class ComposedOperator(Operator):
    """An operator that is composed of other operators of the table; see `composition`."""

    nonlinear = True
    composed = True

    def combine(self, xp: Any, pool: Any, x: Any, operand: Any, options: Any) -> Any:
        """Return the output.

        Parameters
        ----------
        xp : Functions
            The functions of the array library that a composition may use, and constants of the
            call.
        pool : callable
            ``pool(name, x, **options)`` applies another operator to the windows of this call.
        x : array
            The input, in the dtype in which sums are kept.
        operand : array or None
            The extra operand, in the same dtype.
        options : NamedTuple
            The options of this operator.
        """
        raise NotImplementedError


@dataclass(slots=True, eq=False)  # frozen, it would take a microsecond longer to make
class Request:
    """A call that a public function passes to a front end.

    Attributes
    ----------
    operator : str
        Name of the operator in the table.
    x : array
        The input.
    spec : WindowSpec
        The windows.
    options : NamedTuple
        The options of the operator.
    operands : tuple
        The caller's value of the extra operand, if the operator has one.
    channels_last : bool
        Whether the pooled axes are those before the last.
    keepdims : bool
        Whether the pooled axes stay in the result.
    return_indices : bool
        Whether to return the indices of the winners, too.
    out : array or None
        Array for the result (NumPy only).
    dimensions : tuple
        The order of the named dimensions of the result, if pooled dimensions were named.
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
    dimensions: tuple[Any, ...] = ()
