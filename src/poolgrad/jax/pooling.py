"""`Pooling`: the static parameters of the primitives, without shapes or arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from poolgrad.contract import Buffer, Operator
from poolgrad.core import Layout, first_pooled
from poolgrad.operators import OPERATORS, Prepared, prepare
from poolgrad.windows import WindowKind, WindowSpec


class Pooling(NamedTuple):
    """An operator of the table and its windows.

    Arrays of JAX lie as their axes are ordered, so that this and a shape say all of a layout.
    """

    name: str
    spec: WindowSpec
    options: Any
    channels_last: bool

    @property
    def operator(self) -> Operator:
        """The entry of the table."""
        return OPERATORS[self.name]

    @property
    def given(self) -> int:
        """How many arrays the operator takes besides the input."""
        return self.operator.operand.count

    def inner(self, shape: tuple[int, ...]) -> int:
        """See `core.inner_axis`."""
        if not self.channels_last or self.spec.kind is WindowKind.FRACTIONAL:
            return -1
        return len(shape) - 1

    def prepared(self, shape: tuple[int, ...], dtype: str) -> Prepared:
        """The checked call for an input of this shape and dtype; see `operators.prepare`."""
        inner = self.inner(shape)
        return prepare(self.name, self.spec, self.options, shape, self.channels_last, inner, dtype)

    def layout(self, shape: tuple[int, ...], dtype: str) -> Layout:
        """The layout of an input of this shape and dtype; errors are those of `prepared`."""
        return self.prepared(shape, dtype).layout

    def residual(self, layout: Layout, learned: bool) -> tuple[Buffer, ...]:
        """The residual; with `learned` also what the gradient of a learned parameter needs."""
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
        """The input (None unless the operator is nonlinear), the operand and the residual.

        `args`: of a push or pull, without what it is linear in.
        """
        first, second = int(self.operator.curved), int(self.operator.curved) + self.given
        return (args[0] if first else None), args[first:second], args[second:]


def has_wide_numbers() -> bool:
    """Whether JAX was told to have numbers of 64 bits."""
    return bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64)
