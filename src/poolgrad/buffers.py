"""NumPy arrays in the form that the kernels read and write."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad.core import LARGE, CachedBlock, TensorSpec
from poolgrad.interface import Buffer, with_memory

Array = NDArray[Any]
Maker = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # function and arguments

# The attributes of NumPy arrays that form a cache key.
SPEC = TensorSpec(
    np.ndarray,
    parts=("dtype",),
    required=(),
    global_state=(),
    required_state=(),
    protocol="by buffer",
)


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the dtype of this name; ml_dtypes defines bfloat16."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


@lru_cache
def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype."""
    return str(dtype.name)  # cached, because NumPy builds the string at every access


def is_readable(array: Array) -> bool:
    """Whether the kernels can read the array itself."""
    # An itemsize of 0 (dtype V0) is refused later, like other dtypes.
    step = array.itemsize or 1
    in_steps = math.gcd(step, *array.strides) == step
    return array.dtype.isnative and in_steps and array.flags.aligned


def readable(array: Array) -> Array:
    """Return the array in the form that the kernels read, without a copy if possible.

    Every array that comes from a caller, another process or a task of Dask passes through this
    function before a kernel reads it.
    """
    if is_readable(array):
        return array
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array.copy("K")  # a field of a record, a view of bytes, or a part of a message


def placeholder(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return what describes a contiguous array: it has no memory and must not be read."""
    steps = [*accumulate(reversed(shape[1:]), mul, initial=dtype.itemsize)]
    strides = steps[::-1][: len(shape)]
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides, writeable=False)


def read_only(array: Array) -> Array:
    """Return a view that cannot be made writeable: its base is not an array of NumPy."""
    return np.asarray(array.data.toreadonly())


def laid_out(arrays: Sequence[Array], buffers: tuple[Buffer, ...]) -> tuple[Array, ...]:
    """Return the arrays of a residual in the memory formats of their buffers.

    Pickles store arrays in row-major order, and the kernels read some without their strides.
    """

    def laid(array: Array, order: tuple[int, ...]) -> Array:
        back = [order.index(a) for a in range(len(order))]
        return np.ascontiguousarray(array.transpose(order)).transpose(back)

    return tuple(laid(a, b.order) for a, b in zip(arrays, buffers, strict=False))


def restored(kind: Callable[..., Any], *state: Any) -> Any:
    """Return ``kind(*state)`` for a state from a pickle, whose arrays may be unaligned."""

    def taken(value: Any) -> Any:
        if type(value) in (list, tuple):
            return tuple(map(taken, value))
        return readable(value) if isinstance(value, np.ndarray) else value

    return kind(*map(taken, state))


def as_buffer(array: Array) -> Array:
    """Return a view that supports the buffer protocol: bfloat16 is viewed as uint16."""
    return array.view(np.uint16) if name_of(array.dtype) == "bfloat16" else array


def allocate(buffer: Buffer) -> Array:
    """Allocate the array that a buffer describes, without initialising it."""
    shape, order, dtype = buffer.shape, buffer.order, dtype_named(buffer.dtype)
    if buffer.elements * dtype.itemsize >= LARGE:
        block = with_memory(CachedBlock, buffer, dtype.itemsize)
        flat = np.frombuffer(memoryview(block), np.uint8)
        memory: Array = flat.view(dtype).reshape([shape[a] for a in order])
    else:
        memory = np.empty([shape[a] for a in order], dtype)
    return memory.transpose([order.index(a) for a in range(len(order))])


def maker(buffer: Buffer) -> Maker:
    """Return a call that allocates the array of a buffer, as the kernels take it."""
    if buffer.dtype == "bfloat16":
        buffer = buffer._replace(dtype="uint16")
    shape, order, dtype = buffer.shape, buffer.order, np.dtype(buffer.dtype)
    if order == tuple(range(len(shape))) and buffer.elements * dtype.itemsize < LARGE:
        return np.empty, (shape, dtype), {}
    return allocate, (buffer,), {}
