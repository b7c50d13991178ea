"""Arrays whose first or last byte is the first or last that may be accessed."""

from __future__ import annotations

import ctypes
import mmap
import pickle
from collections import defaultdict
from typing import Any, Literal

import numpy as np

try:
    from numpy.lib.array_utils import byte_bounds
except ImportError:  # NumPy 1
    from numpy import byte_bounds  # type: ignore[attr-defined, no-redef]

PAGE = mmap.PAGESIZE
Side = Literal["begin", "end"]


def _protected(size: int) -> mmap.mmap:
    """Memory of `size` bytes, whole pages, between two pages that cannot be accessed."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    memory = mmap.mmap(-1, size + 2 * PAGE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (begin, begin + PAGE + size):
        if protect(page, PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return memory


class Guarded:
    """Allocates arrays next to guard pages; `reset` makes all their memory free again."""

    def __init__(self) -> None:
        self.side: Side = "end"
        self._blocks: dict[int, list[mmap.mmap]] = defaultdict(list)
        self._used: dict[int, int] = defaultdict(int)

    def reset(self, side: Side) -> None:
        """Free all arrays, and place the next ones at this end of their memory."""
        self.side = side
        self._used.clear()

    def take(self, size: int) -> tuple[Any, int]:
        """A buffer, and the offset in it of `size` bytes."""
        room = PAGE << max(2, (-(-size // PAGE) - 1).bit_length())
        blocks, used = self._blocks[room], self._used[room]
        if used == len(blocks):
            blocks.append(_protected(room))
        self._used[room] += 1
        return blocks[used], PAGE + room - size if self.side == "end" else PAGE


class Heap:
    """Allocates each array by itself, between the red zones of a sanitizer."""

    side: Side = "end"

    def reset(self, side: Side) -> None:
        """Nothing has to be freed."""
        self.side = side

    def take(self, size: int) -> tuple[Any, int]:
        """A buffer of `size` bytes, and 0."""
        return np.empty(size, np.uint8), 0


Allocator = Guarded | Heap


def placed(allocator: Allocator, x: np.ndarray) -> np.ndarray:
    """A copy with the same strides, of all bytes between its first and last one."""
    low, high = byte_bounds(x) if x.size else (0, 0)
    buffer, offset = allocator.take(high - low)
    view = np.frombuffer(buffer, np.uint8, high - low, offset)
    ctypes.memmove(view.ctypes.data, low, high - low)
    first = offset + x.__array_interface__["data"][0] - low if x.size else offset
    copy = np.ndarray(x.shape, x.dtype, buffer, first, x.strides)
    copy.flags.writeable = x.flags.writeable
    return copy


def filled(
    allocator: Allocator, shape: tuple[int, ...], order: tuple[int, ...], dtype: Any
) -> np.ndarray:
    """An array with the axes in this order in memory; its contents depend on the side."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    buffer, offset = allocator.take(size)
    array = np.ndarray([shape[a] for a in order], dtype, buffer, offset)
    np.frombuffer(buffer, np.uint8, size, offset)[...] = 0xA5 if allocator.side == "end" else 0x5A
    return array.transpose([order.index(a) for a in range(len(order))])


def carried(value: Any) -> Any:
    """The value after pickling, with buffers that lie unaligned and read-only in a message."""
    buffers: list[pickle.PickleBuffer] = []
    message = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    moved = [memoryview(b"\0" + bytes(b.raw()))[1:] for b in buffers]
    return pickle.loads(message, buffers=moved)
