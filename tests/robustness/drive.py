"""Runs generated calls in this process: each twice, in other memory and by other threads.

``PYTHONPATH=tests python -m robustness.drive --first 17 --calls 1`` repeats the call of seed 17.

The second run of a call has its arrays at the other end of their memory, its results in memory that
held other bytes, and another number of threads. Its results must have the same bits: else an
element was not written, or a result depends on the address or on the number of threads. NaN are
compared as numbers, not by their bits.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import resource
import struct
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from robustness.calls import Call, call
from robustness.memory import Allocator, Guarded, Heap, carried, filled, placed

import poolgrad
from poolgrad import numpy as front
from poolgrad.dtypes import FLOATS
from poolgrad.interface import Buffer

JOURNAL = struct.Struct("<q")


def brief(value: object) -> str:
    """An argument, arrays by their shape."""
    return f"<{value.dtype} {value.shape}>" if isinstance(value, np.ndarray) else repr(value)


def described(made: Call) -> str:
    """A call in one line."""
    case = made.case
    kwargs = ", ".join(f"{k}={brief(v)}" for k, v in case.kwargs.items())
    args = "".join(f", {brief(a)}" for a in case.args)
    return (
        f"{case.fun}(x{args}, {kwargs}), x: {case.made}, "
        f"cotangent: {made.cotangent.id} {made.cotangent_layout.id}, out: {made.out_layout.id}, "
        f"operand: {made.operand_layout.id}, carried: {made.carried}, "
        f"overwritten: {made.overwritten}, threads: {made.threads}"
    )


@contextmanager
def results_in(allocator: Allocator) -> Iterator[None]:
    """The arrays that the NumPy front end allocates lie where `allocator` places them."""

    def allocate(buffer: Buffer) -> np.ndarray:
        return filled(allocator, buffer.shape, buffer.order, front.dtype_named(buffer.dtype))

    before = front.allocate, front.maker
    front.allocate, front.maker = allocate, lambda buffer: partial(allocate, buffer)
    try:
        yield
    finally:
        front.allocate, front.maker = before


def reads_no_input(pullback: Any) -> bool:
    """Whether the input may be overwritten before the pullback is called.

    Pullbacks of nonlinear and composed operators keep a reference to the input.
    """
    return getattr(pullback, "_x", pullback) is None


def answers(made: Call, allocator: Allocator) -> list[np.ndarray]:
    """All results of a call and of its pullback."""
    case = made.case
    function = getattr(poolgrad, case.fun)
    x = placed(allocator, case.x)
    kwargs = {
        k: placed(allocator, made.operand_layout.make(v)) if isinstance(v, np.ndarray) else v
        for k, v in case.kwargs.items()
    }
    if case.x.dtype.name in FLOATS:
        y, pullback = poolgrad.vjp(function, x, *case.args, **kwargs)
        if made.carried:
            pullback = carried(pullback)
        overwritten = made.overwritten and x.flags.writeable and reads_no_input(pullback)
        if overwritten:
            x[...] = 1
        # What was kept is read where it may not be written.
        if hasattr(pullback, "_residual"):  # a composed operator keeps it in its parts
            pullback._residual = tuple(placed(allocator, r) for r in pullback._residual)
        values = made.cotangent.make(y.shape, y.dtype)
        gy = placed(allocator, made.cotangent_layout.make(values)) if y.ndim else values
        results = [y, pullback(gy), *pullback.parameters(gy).values()]
        if overwritten:
            x[...] = case.x
    else:
        y = function(x, *case.args, **kwargs)
        results = [y]
    more: dict[str, Any] = {"return_indices": True} if made.indices else {}
    parameters = signature(function).parameters
    if "out" in parameters:
        out = np.zeros_like(y)
        more["out"] = placed(allocator, made.out_layout.make(out) if y.ndim else out)
    more = {name: value for name, value in more.items() if name in parameters}
    if more:
        found = function(x, *case.args, **kwargs, **more)
        results += found if isinstance(found, tuple) else [found]
    # Small calls are repeated from a cache of calls.
    results.append(function(x, *case.args, **kwargs))
    return results


def bits(array: np.ndarray) -> bytes:
    """Shape, dtype and elements, all NaN alike."""
    array = np.ascontiguousarray(array)
    missing = np.isnan(array) if array.dtype.kind in "fV" else np.zeros(array.shape, bool)
    if missing.any():
        array = np.where(missing, np.array(np.nan, array.dtype), array)
    return f"{array.dtype.name}{array.shape}".encode() + array.tobytes()


def outcome(made: Call, allocator: Allocator, threads: int) -> list[bytes]:
    """What a call results in: the bits of its results, or the error with which it is refused."""
    poolgrad.set_num_threads(threads)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = answers(made, allocator)
    except (TypeError, ValueError) as error:
        return [f"{type(error).__name__}: {error}".encode()]
    return [bits(r) for r in results]


def flush_subnormals() -> None:
    """Set the flush-to-zero mode of this thread, as PyTorch and XLA may do."""
    libm = ctypes.CDLL("libm.so.6")
    environment = (ctypes.c_uint32 * 8)()
    libm.fegetenv(environment)
    environment[7] |= 0x8040  # of x86-64's MXCSR: flush to zero, denormals are zeros
    libm.fesetenv(environment)


@contextmanager
def _flushed(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    before = (ctypes.c_uint32 * 8)()
    libm = ctypes.CDLL("libm.so.6")
    libm.fegetenv(before)
    flush_subnormals()
    try:
        yield
    finally:
        libm.fesetenv(before)


def check(seed: int, allocator: Allocator, flush: bool) -> bytes:
    """Run the call of a seed twice; what it results in.

    Raises
    ------
    AssertionError
        If the two results differ.
    """
    made = call(seed, parallel=flush)
    outcomes = []
    for side, threads in (("end", 1), ("begin", made.threads)):
        allocator.reset(side)
        with results_in(allocator), _flushed(flush):
            outcomes.append(outcome(made, allocator, threads))
    first, second = outcomes
    assert len(first) == len(second), f"{first[-1][:200]!r} against {second[-1][:200]!r}"
    for k, (one, other) in enumerate(zip(first, second, strict=True)):
        assert one == other, f"result {k} depends on memory or threads"
    return b"".join(first)


def check_concurrent(seed: int) -> bytes:
    """Run the call of a seed once, and then in four threads at the same time.

    Raises
    ------
    AssertionError
        If the results differ.
    """
    made = call(seed, parallel=True)
    expected = outcome(made, Heap(), made.threads)
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(outcome, made, Heap(), made.threads) for _ in range(4)]
        assert all(run.result() == expected for run in runs), "results depend on other threads"
    return b"".join(expected)


def checker(options: argparse.Namespace) -> tuple[Callable[[int], bytes], Callable[[int], str]]:
    """What runs the call of a seed, and what describes it."""
    if options.raw:
        from robustness import operators

        if not options.heap:  # a sanitizer reserves more
            limit = 8 << 30
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return operators.check, operators.described
    if options.programs:
        from robustness import programs

        return programs.check, programs.described
    if options.tensors:
        from robustness import tensors

        return tensors.check, tensors.described
    if options.concurrent:
        return check_concurrent, lambda seed: described(call(seed, parallel=True))
    allocator = Heap() if options.heap else Guarded()
    return (
        lambda seed: check(seed, allocator, options.flush),
        lambda seed: described(call(seed, parallel=options.flush)),
    )


def main() -> int:
    """Run the calls; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="seed of the first call")
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--heap", action="store_true", help="no guard pages: for sanitizers")
    parser.add_argument("--flush", action="store_true", help="callers flush subnormal numbers")
    parser.add_argument("--concurrent", action="store_true", help="each call in 4 threads at once")
    parser.add_argument("--raw", action="store_true", help="calls of robustness.operators instead")
    parser.add_argument("--programs", action="store_true", help="robustness.programs instead")
    parser.add_argument("--tensors", action="store_true", help="robustness.tensors instead")
    parser.add_argument("--crash", type=int, help="read a guard page before the call of a seed")
    parser.add_argument("--journal", type=Path, help="file for the seed of the call in flight")
    parser.add_argument("--digests", type=Path, help="file for a checksum of each call's results")
    options = parser.parse_args()
    run, describe = checker(options)
    journal = None
    if options.journal:
        with options.journal.open("r+b") as file:
            journal = mmap.mmap(file.fileno(), JOURNAL.size)
    digests = np.zeros(options.calls, np.uint32)
    if options.digests:  # what is written so far stays if a call ends the process
        digests = np.memmap(options.digests, np.uint32, "r+")
    failed = 0
    for k in range(options.calls):
        seed = options.first + k
        if journal is not None:
            JOURNAL.pack_into(journal, 0, seed)
        if seed == options.crash:
            buffer, offset = Guarded().take(1)
            np.frombuffer(buffer, np.uint8)[offset + 1]
        try:
            digests[k] = zlib.crc32(run(seed))
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {error}: {describe(seed)}", flush=True)
        if options.calls == 1:
            print(describe(seed), f"checksum: {digests[0]:08x}", flush=True)
    print("done")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
