"""Extra operands: the arguments of an operator besides the input, one class for each kind.

A class defines the checks of an operand, its form in a kernel call, how it is batched, sharded and
cut into chunks, and the shape of its gradient. A front end converts the caller's values in its
methods `parameter`, `seed`, `samples` and `indices`, and does not distinguish the classes
otherwise.
"""

# ruff: noqa: D102 - the base class documents the methods

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolgrad import arguments
from poolgrad.dtypes import FLOATS, name_of
from poolgrad.windows import brief

if TYPE_CHECKING:
    from poolgrad.frontend import FrontEnd
    from poolgrad.operators import Prepared
    from poolgrad.windows import Layout

Array = NDArray[Any]
Shape = tuple[int, ...]


class Samples(NamedTuple):
    """The caller's description of fractional windows: samples, or a generator to draw them from."""

    values: Any
    generator: Any


class Operand:
    """An extra operand. The one without a name stands for none.

    Attributes
    ----------
    name : str
        Name of the argument in the public functions.
    count : int
        Number of arrays besides the input: 1, or 0 without a name.
    has_gradient : bool
        Whether the operand is learned. Then the last residual is the derivative of each output with
        respect to it.
    is_shared : bool
        Whether a whole batch has one operand. If the operand is batched, too, the elements of the
        batch are computed one by one.
    is_positional : bool
        Whether an output depends on its position in the whole array, so that no part of the array
        can be computed by itself.
    determines_windows : bool
        Whether it determines where fractional windows begin.
    uses_layout : bool
        Whether its conversion depends on the layout of the input.
    is_cut : bool
        Whether a chunk of the input can be pooled with a part of the operand.
    """

    has_gradient: ClassVar[bool] = False
    is_shared: ClassVar[bool] = False
    is_positional: ClassVar[bool] = False
    determines_windows: ClassVar[bool] = False
    uses_layout: ClassVar[bool] = False
    is_cut: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        self.name, self.count = name, int(bool(name))

    def convert(self, front: FrontEnd, value: Any, x: Any, ready: Any) -> Any:
        """Check the caller's value and convert it to an array of the front end.

        `ready`, the prepared call, may be None unless `uses_layout`.
        """
        raise NotImplementedError

    def accepted(self, layout: Layout) -> tuple[str, list[Shape], bool]:
        """Return dtype and shapes for a kernel, and whether the array is flattened first."""
        raise NotImplementedError

    def kernel_form(self, array: Any, size: int, number: Callable[[Any], Any]) -> Any:
        """Return the operand in the form that an operator's methods take.

        `size` is its number of elements; `number` reads a single element.
        """
        return array

    def axes(self, leading: list[int], every: list[int | None]) -> list[int | None]:
        """Return, for each axis of the operand, the corresponding axis of the input.

        `leading` lists the axes that are not pooled; `every` lists all axes, None if pooled.
        """
        return every

    def summed_axes(self, shape: Shape, layout: Layout) -> tuple[int, ...]:
        """Return the axes of the output over which a gradient of this shape is summed."""
        raise NotImplementedError

    def limits(self, layout: Layout) -> tuple[int, int, str] | None:
        """Return the least valid value, the end of valid values, and the words for that range.

        None if there is no such range, or if the front end has checked it.
        """
        return None


NOTHING = Operand("")


class Parameter(Operand):
    """A learned parameter: a real number, or one for each channel."""

    has_gradient = True
    is_shared = True
    uses_layout = True

    def convert(self, front: FrontEnd, value: Any, x: Any, ready: Any) -> Any:
        return front.parameter(self, value, x, ready)

    def checked(self, value: Any, ready: Prepared) -> Array:
        """Check the caller's numbers and convert them to the dtype of sums.

        Raises
        ------
        TypeError, ValueError
            If they are not real numbers, out of range, or not one number or one for each channel.
        """
        layout = ready.layout
        given = arguments.real_numbers(self.name, value)
        numbers = given.astype(np.float64).ravel().tolist()
        ready.operator.check_operand(numbers)
        arguments.check_length(self.name, given.shape, layout.channels)
        within = arguments.within(numbers, layout.sum_dtype)
        return np.array(within, layout.sum_dtype).reshape(given.shape)

    def accepted(self, layout: Layout) -> tuple[str, list[Shape], bool]:
        return layout.sum_dtype, [(1,), (layout.channels,)], True

    def kernel_form(self, array: Any, size: int, number: Callable[[Any], Any]) -> Any:
        return array, size

    def axes(self, leading: list[int], every: list[int | None]) -> list[int | None]:
        return [*leading[-1:]]

    def summed_axes(self, shape: Shape, layout: Layout) -> tuple[int, ...]:
        channel = layout.channel if shape == (layout.channels,) else -1
        return tuple(a for a in range(len(layout.out_shape)) if a != channel)


class Seed(Operand):
    """The seed of a random draw, one for each output."""

    is_shared = True
    is_positional = True
    is_cut = False

    def convert(self, front: FrontEnd, value: Any, x: Any, ready: Any) -> Any:
        return front.seed(value, x)

    def accepted(self, layout: Layout) -> tuple[str, list[Shape], bool]:
        return "int64", [(1,)], True

    def kernel_form(self, array: Any, size: int, number: Callable[[Any], Any]) -> Any:
        return number(array)


class WindowSamples(Operand):
    """Random samples that determine where fractional windows begin."""

    determines_windows = True
    uses_layout = True
    is_cut = False

    def convert(self, front: FrontEnd, value: Any, x: Any, ready: Any) -> Any:
        return front.samples(self, value, x, ready)

    def checked(self, value: Any, layout: Layout) -> Array:
        """Check the caller's samples and convert them to an array.

        Raises
        ------
        TypeError, ValueError
            If their dtype or shape is wrong, or one lies outside [0, 1).
        """
        given = arguments.plain(self.name, value, "an array")
        arguments.check_samples_dtype(given.dtype.name)
        arguments.check_samples_shape(given.shape, layout)
        outside = given[~((given >= 0) & (given < 1))]
        if outside.size:
            raise ValueError(f"_random_samples must be in [0, 1), got {outside.flat[0]}")
        return given

    def accepted(self, layout: Layout) -> tuple[str, list[Shape], bool]:
        dtype = layout.dtype if layout.dtype in FLOATS else "float32"
        return dtype, [(math.prod(arguments.samples_shape(layout)),)], True

    def axes(self, leading: list[int], every: list[int | None]) -> list[int | None]:
        return [*leading]

    def limits(self, layout: Layout) -> tuple[int, int, str] | None:
        return 0, 1, "in [0, 1)"


class Indices(Operand):
    """The flat position of each input in the plane of the output."""

    def convert(self, front: FrontEnd, value: Any, x: Any, ready: Any) -> Any:
        return front.indices(value, x)

    def accepted(self, layout: Layout) -> tuple[str, list[Shape], bool]:
        return "int64", [layout.in_shape], False

    def limits(self, layout: Layout) -> tuple[int, int, str] | None:
        size = math.prod(layout.window.out)
        return 0, size, f"from 0 to {size - 1}"


class SecondInput(Operand):
    """A second array of the shape of the input, with a gradient, for composed operators."""

    has_gradient = True

    def convert(self, front: FrontEnd, value: Any, x: Any, ready: Any) -> Any:
        given, expected = front.asarray(self.name, value), tuple(x.shape)
        if front.dtype_name(given) not in FLOATS:
            came = name_of(given.dtype) if hasattr(value, "dtype") else brief(value)
            raise TypeError(f"{self.name} must be of a floating dtype, got {came}")
        if (shape := tuple(given.shape)) != expected:
            raise ValueError(f"{self.name} must have the shape of x, {expected}, got {shape}")
        return given

    def accepted(self, layout: Layout) -> tuple[str, list[Shape], bool]:
        return layout.dtype, [layout.in_shape], False
