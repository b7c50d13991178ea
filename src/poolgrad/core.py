"""Interface to the compiled kernels: instruction sets, threads, memory, and plans of layouts.

csrc/bindings/python/bindings.cpp defines the compiled module, its classes and functions.
"""

# ruff: noqa: PLC0414 - the aliases mark what other modules import from here

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from poolgrad.dtypes import DTYPE_NAMES
from poolgrad.windows import Layout, brief

try:
    import poolgrad._kernels as _kernels  # noqa: PLR0402 - the package itself declares no module
    from poolgrad._kernels import BoundCalls as BoundCalls
    from poolgrad._kernels import CachedBlock as CachedBlock
    from poolgrad._kernels import Regions as Regions
    from poolgrad._kernels import TensorSpec as TensorSpec
except ImportError as error:  # pragma: no cover - only in a broken installation
    raise ImportError(
        "poolgrad's compiled kernels are missing or do not load on this machine "
        f"({error}). Install a wheel, or build them with: pip install . "
        "(in a checkout, not with src/ on the path alone)"
    ) from error

# Results of at least this many bytes use cached memory.
LARGE = 1 << 20

_MAX_THREADS = 4096


def instruction_set() -> str:
    """Return the instruction set whose kernels are in use, such as ``"avx512"``.

    It is the best that the machine supports, or the one that the environment variable
    ``POOLGRAD_ISA`` names.
    """
    return str(_kernels.instruction_set())


def instruction_sets() -> list[str]:
    """Return the instruction sets that this machine supports, best first."""
    return list(_kernels.instruction_sets())


def _default_threads() -> int:
    for name in ("POOLGRAD_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "").strip()
        if value.isdigit() and 1 <= int(value) <= _MAX_THREADS:
            return int(value)
        if value and name != "OMP_NUM_THREADS":  # a list for nested regions is ignored
            raise ValueError(f"{name} must be a positive integer, got {value!r}")
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_threads: int | None = None


def get_num_threads() -> int:
    """Return the number of threads that pool NumPy arrays.

    It is the value of ``POOLGRAD_NUM_THREADS``, else of ``OMP_NUM_THREADS``, else the number of
    processors that this process may use. Tensors are pooled with PyTorch's number of threads.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If ``POOLGRAD_NUM_THREADS`` is not an integer from 1 to 4096.
    """
    global _threads
    if _threads is None:
        _threads = _default_threads()
    return _threads


def set_num_threads(threads: int) -> None:
    """Set the number of threads that pool NumPy arrays. The results do not depend on it.

    Parameters
    ----------
    threads : int
        A number from 1 to 4096.

    Raises
    ------
    ValueError
        If `threads` is not such an integer.
    """
    global _threads
    whole = isinstance(threads, int) and not isinstance(threads, bool)
    if not whole or not 1 <= threads <= _MAX_THREADS:
        raise ValueError(
            f"threads must be an integer from 1 to {_MAX_THREADS}, got {brief(threads)}"
        )
    _threads = threads


def share_threads(library: str) -> bool:
    """Run the kernels on a framework's OpenMP threads, which would compete with other threads.

    Parameters
    ----------
    library : str
        Path of a loaded library of the framework, which uses OpenMP.

    Returns
    -------
    bool
        False if the library has no such threads.
    """
    return bool(_kernels.share_threads(library))


def xla_handler() -> Any:
    """Return the handlers of XLA's stages, in capsules; None in a build without XLA."""
    return _kernels.xla_handler()


def _bytes_set(name: str) -> int | None:
    value = os.environ.get(name, "").strip()
    if not value:
        return None
    if not (value.isascii() and value.isdecimal()) or int(value) >= 2**63:
        raise ValueError(f"{name} must be a number of bytes, got {value!r}")
    return int(value)


def _cache_limit() -> int:
    given = _bytes_set("POOLGRAD_CACHE_BYTES")
    if given is not None:
        return given
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # a system without this information
        return 1 << 30
    return min(1 << 30, memory // 8)


CACHE_LIMIT = _cache_limit()
_kernels.limit_cache(CACHE_LIMIT)
if (_streamed := _bytes_set("POOLGRAD_STREAM_BYTES")) is not None:
    _kernels.limit_nontemporal_stores(_streamed)


# Memory of large results that is reused for later results: `empty` frees what no result uses, `use`
# returns the bytes that results use and those that are kept. The first cache is that of NumPy
# arrays and scratch memory; a front end with a cache of its own adds it.
CACHES: list[Any] = [SimpleNamespace(empty=_kernels.empty_cache, use=_kernels.cache_use)]


def empty_cache() -> None:
    """Return the cached memory of released results to the system.

    The memory of results of 1 MiB or more is reused for later results, because the page faults of
    new memory take longer than most poolings. The environment variable ``POOLGRAD_CACHE_BYTES``
    limits the cached bytes of NumPy arrays, and those of PyTorch tensors; the default is 1 GiB, or
    an eighth of the machine's memory if that is less.
    """
    for cache in CACHES:
        cache.empty()


def advise_huge_pages(address: int, size: int) -> None:
    """Ask the system for huge pages, which need fewer page faults, for memory not yet written."""
    _kernels.advise_huge_pages(address, size)


def kernels_for(layout: Layout, inner: int, route_bits: int) -> _kernels.Plan:
    """Return the kernels for a layout.

    Parameters
    ----------
    layout : Layout
        The layout.
    inner : int
        The argument `inner` of `lay_out`.
    route_bits : int
        Bits of a packed route; 0 for whole bytes.
    """
    axes, dtypes = axis_integers(layout), map(DTYPE_NAMES.index, (layout.dtype, layout.out_dtype))
    return _kernels.Plan(axes, list(layout.in_shape), inner, *dtypes, route_bits)


def axis_integers(layout: Layout) -> list[int]:
    """Flatten the pooled axes to the integers of `AxisNumbers`, of csrc/bindings/layout.hpp."""
    integers: list[int] = []
    for at, axis in zip(layout.pooled, layout.window.axes, strict=True):
        origin = axis.origin
        integers += (
            at, int(axis.kind), axis.size, axis.out, axis.kernel, axis.stride_or_bins, axis.lo,
            axis.hi, axis.dilation, origin.first, origin.before, origin.inputs, origin.outputs,
        )  # fmt: skip
    return integers
