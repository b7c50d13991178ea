"""`Static`: the static parameters of the primitives, without shapes or arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from poolgrad.interface import Operator
from poolgrad.operators import OPERATORS, Prepared, prepare
from poolgrad.windows import WindowSpec


class Static(NamedTuple):
    """An operator of the table, its windows, and the sizes of the pooled axes of the input.

    JAX arrays are in row-major order, so that these fields and a shape determine the layout.
    """

    name: str
    spec: WindowSpec
    options: Any
    channels_last: bool
    sizes: tuple[int, ...]

    @property
    def operator(self) -> Operator:
        """The operator, from the table."""
        return OPERATORS[self.name]

    def prepared(self, x: Any, shape: tuple[int, ...] | None = None) -> Prepared:
        """Prepare the call for an input of this shape, or that of `x`, and the dtype of `x`."""
        shape = x.shape if shape is None else shape
        inner = len(shape) - 1 if self.channels_last else -1
        where = (shape, self.channels_last, inner, x.dtype.name)
        return prepare(self.name, self.spec, self.options, *where)

    def before(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the input for the shape of an output."""
        first = len(shape) - len(self.sizes) - self.channels_last
        return (*shape[:first], *self.sizes, *shape[first + len(self.sizes) :])


def has_wide_numbers() -> bool:
    """Whether 64-bit types are enabled in JAX."""
    return bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64)
