"""The front end for CuPy and all other array-API libraries without a front end of their own.

The values of extra operands are checked only where they are Python numbers or NumPy arrays: arrays
on a device stay there.
"""

# ruff: noqa: D102 - the base class documents the methods

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj

from poolgrad import arguments
from poolgrad.composition import Functions
from poolgrad.frontend import FrontEnd
from poolgrad.portable.arrays import converted, placed
from poolgrad.windows import Layout, in_memory


class PortableFrontEnd(FrontEnd):
    """Pools arrays of any array-API library with `poolgrad.portable`, on their device."""

    name = "portable"
    noun = "an array-API array"

    def asarray(self, name: str, value: Any) -> Any:
        if not is_array_api_obj(value):
            raise TypeError(f"{name} must be an array, got {type(value).__qualname__}")
        return value

    def functions(self, x: Any) -> Functions:
        xp = array_namespace(x)
        return Functions(xp.exp, xp.where, xp.max, lambda x, dtype: converted(xp, x, dtype))

    def squeezed(self, y: Any, axes: tuple[int, ...]) -> Any:
        return array_namespace(y).squeeze(y, axis=axes)

    def copied(self, x: Any) -> Any:
        return array_namespace(x).asarray(x, copy=True)

    def cotangent(self, gy: Any, dtype: str, shape: tuple[int, ...], full: tuple[int, ...]) -> Any:
        if not is_array_api_obj(gy):
            came = type(gy).__qualname__
            raise TypeError(f"gy must be an array of a floating dtype, got {came}")
        arguments.check_cotangent(gy, gy.dtype, tuple(gy.shape), shape)
        gy = in_memory("gy", gy)
        xp = array_namespace(gy)
        return xp.reshape(converted(xp, gy, dtype), full)

    # Extra operands

    def is_own(self, value: Any) -> bool:
        return not isinstance(value, np.ndarray | np.generic) and is_array_api_obj(value)

    def from_numpy(self, array: Any, x: Any) -> Any:
        xp, array = array_namespace(x), np.asarray(array)
        return xp.asarray(array.tolist(), dtype=getattr(xp, array.dtype.name), **placed(x))

    def seed(self, value: Any, x: Any) -> Any:
        return self.from_numpy(np.asarray(super().seed(value, x), np.int64), x)

    def samples_below_one(self, samples: Any, dtype: str, x: Any, layout: Layout) -> Any:
        xp = array_namespace(samples)
        return xp.minimum(converted(xp, samples, dtype), arguments.below_one(dtype))

    def indices(self, value: Any, x: Any) -> Any:
        given = super().indices(value, x)
        return given if self.is_own(given) else self.from_numpy(given, x)


FRONT_END = PortableFrontEnd()
