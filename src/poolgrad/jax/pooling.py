"""What the primitives are told of a pooling: an operator and its windows, without any array."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from poolgrad.contract import Buffer, Operator
from poolgrad.core import Layout, first_pooled, lay_out
from poolgrad.operators import OPERATORS
from poolgrad.windows import WindowKind, WindowSpec


class Pooling(NamedTuple):
    """An operator of the table and its windows.

    Arrays of JAX lie as their axes are ordered, so that this and a shape say all of a layout.
    """

    name: str
    spec: WindowSpec
    options: tuple[Any, ...]
    channels_last: bool

    @property
    def operator(self) -> Operator:
        """The entry of the table."""
        return OPERATORS[self.name]

    @property
    def kind(self) -> str | None:
        """What kind of array the operator takes beside the input."""
        argument = self.operator.argument
        return argument.kind if argument else None

    @property
    def given(self) -> int:
        """How many arrays the operator takes beside the input."""
        return int(self.operator.argument is not None)

    def inner(self, shape: tuple[int, ...]) -> int:
        """See `core.inner_axis`."""
        if not self.channels_last or self.spec.kind is WindowKind.FRACTIONAL:
            return -1
        return len(shape) - 1

    def layout(self, shape: tuple[int, ...], dtype: str) -> Layout:
        """The layout of an input of this shape and dtype, checked.

        Raises
        ------
        TypeError, ValueError
            For anything that is wrong with windows, shape, dtype or options.
        """
        operator = self.operator
        if not operator.accepts(dtype):
            raise operator.refuse_dtype(dtype)
        result = operator.result(dtype)
        layout = lay_out(self.spec, shape, self.channels_last, self.inner(shape), dtype, result)
        operator.check(layout.window, *self.options)
        return layout

    def residual(self, layout: Layout, learned: bool) -> tuple[Buffer, ...]:
        """What forward keeps; what only a learned argument's gradient needs if that is wanted."""
        buffers = self.operator.residual(layout, *self.options)
        return buffers[:-1] if self.operator.learned and not learned else buffers

    def before(self, shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the input of an output of this shape; `sizes`: of its pooled axes."""
        first = len(shape) - len(sizes) - self.channels_last
        return (*shape[:first], *sizes, *shape[first + len(sizes) :])

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the pooled axes of an input of this shape."""
        first = first_pooled(shape, self.spec.dims, self.channels_last)
        return shape[first : first + self.spec.dims]

    def held(self, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
        """The input (None unless the operator is curved), the argument and the residual.

        `args`: of a push or pull, without what it is linear in.
        """
        first, second = int(self.operator.curved), int(self.operator.curved) + self.given
        return (args[0] if first else None), args[first:second], args[second:]

    def samples(self, layout: Layout) -> tuple[int, ...]:
        """The shape of the samples that place an input's windows: a row for each plane."""
        leading = (s for a, s in enumerate(layout.in_shape) if a not in layout.pooled)
        return (*leading, len(layout.pooled))


def has_wide_numbers() -> bool:
    """Whether JAX was told to have numbers of 64 bits."""
    return bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64)
