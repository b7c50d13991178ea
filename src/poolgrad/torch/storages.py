"""Reuses the storages of large CPU tensors: page faults of new memory outlast most poolings.

The storages are PyTorch's own, so that programs can resize, share and free them.
"""

from __future__ import annotations

import sys
from collections import deque

import torch
from torch import Tensor, UntypedStorage

from poolgrad.core import CACHE_LIMIT, CACHES, advise_huge_pages
from poolgrad.interface import Buffer, with_memory
from poolgrad.torch._compat import storage_use_count


def _new_storage(size: int) -> UntypedStorage:
    try:
        storage = torch.empty(size, dtype=torch.uint8, device="cpu").untyped_storage()
    except RuntimeError:  # PyTorch's error if there is not enough memory
        raise MemoryError(f"cannot allocate {size} bytes") from None
    advise_huge_pages(storage.data_ptr(), size)
    return storage


class Storages:
    """A cache of storages. One is reused if nothing outside of the cache refers to it.

    There is no lock: a signal handler that pools would wait for it for ever. Every storage is taken
    out of the cache before it is examined, so no two threads examine the same one, and the
    operations on `dict` and `deque` are atomic. (A list of `items` is not: its tuples start the
    garbage collector, and a finalizer may pool, too.)

    Parameters
    ----------
    limit : int
        Maximum number of bytes of the storages in the cache, whether idle or in use.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._storages: dict[int, deque[UntypedStorage]] = {}  # by number of bytes

    def tensor(self, buffer: Buffer, strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor for `buffer`, not initialised.

        Raises
        ------
        MemoryError
            If there is not enough memory; the message names the bytes and where they follow from.
        """
        size = buffer.elements * dtype.itemsize
        storage = self._take(size)
        is_cached = storage is not None or self._drop(self._limit - size)
        if storage is None:
            storage = with_memory(_new_storage, buffer, dtype.itemsize)
        tensor = torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, buffer.shape, strides)
        if is_cached:  # from here on the tensor refers to the storage
            self._storages.setdefault(size, deque()).append(storage)
        return tensor

    def _take(self, size: int) -> UntypedStorage | None:
        """Remove an idle storage of this size from the cache and return it; None if none is idle.

        A storage that was resized, is shared with other processes or can no longer be resized
        (because `Tensor.numpy` was called) leaves the cache.
        """
        storages = self._storages.get(size, deque())
        alone = object()  # only one local variable refers to it, as to an idle storage
        for _ in range(len(storages)):
            try:
                storage = storages.pop()  # the last one used may still be in the caches
            except IndexError:  # other threads examine the rest
                break
            if storage.nbytes() == size and storage.resizable() and not storage.is_shared():
                is_idle = sys.getrefcount(storage) == sys.getrefcount(alone)
                if is_idle and storage_use_count(storage._cdata) == 1:
                    return storage
                storages.appendleft(storage)
        return None

    def _drop(self, most: int) -> bool:
        """Free idle storages, the oldest sizes first, until the cache holds at most `most` bytes.

        Returns
        -------
        bool
            False if the storages in use are larger than that.
        """
        excess = self._bytes() - most
        for size, storages in self._storages.copy().items():
            while excess > 0 and self._take(size) is not None:
                excess -= size
            if not storages:
                self._storages.pop(size, None)
        return excess <= 0

    def _bytes(self) -> int:
        return sum(size * len(storages) for size, storages in self._storages.copy().items())

    def empty(self) -> None:
        """Free all idle storages."""
        self._drop(0)

    def use(self) -> tuple[int, int]:
        """Return the bytes of the storages in use, and of the idle ones."""
        idle = []
        for size in list(self._storages):
            while (storage := self._take(size)) is not None:
                idle.append(storage)
        used = self._bytes()
        for storage in idle:
            self._storages.setdefault(storage.nbytes(), deque()).append(storage)
        return used, sum(storage.nbytes() for storage in idle)


STORAGES = Storages(CACHE_LIMIT)
CACHES.append(STORAGES)
