"""Times one row: poolgrad, its peers and a copy alternate; the copy defines the floor."""

from __future__ import annotations

import math
import timeit
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

import poolgrad
from poolgrad import core
from poolgrad.tools.bench.peers import Call, Pool, eager, others
from poolgrad.tools.bench.result import EAGER, Result
from poolgrad.tools.bench.rows import Row

TURNS, QUICK_TURNS = 9, 3
_SLOW = 0.5  # seconds; slower calls get a third of the turns
_WARM = 3  # calls before the timed ones
_SHORTEST = 2e-3  # seconds; shorter calls are repeated within one timing
_OURS, _COPY, _BESIDE = "poolgrad", "a copy", "the row beside"

Within = tuple[Call, Callable[[], AbstractContextManager[Any]]]


def measure(row: Row, threads: int, turns: int = TURNS) -> Result:
    """Time one row beside its peers.

    Parameters
    ----------
    row : Row
        The row.
    threads : int
        Number of threads of every library.
    turns : int
        Number of timings of each call; slow calls get a third of them.

    Returns
    -------
    Result
        The times without those of peers that failed, and the error messages of these.
    """
    failed: dict[str, str] = {}
    with using_threads(threads), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, ys, ours = _prepare(row)
        calls: dict[str, Call] = {_OURS: ours}
        if not row.tiny:
            calls[_COPY] = partial(torch.empty_like(x).copy_, x.detach())
        if row.beside:
            calls[_BESIDE] = _prepare(row.beside)[2]
        if row.peers:
            tensor = torch.as_tensor(x)
            calls[EAGER] = _call(row, eager(row), tensor)[1]
            for name, make in others(row, tensor):
                try:
                    calls[name] = make()
                    calls[name]()
                except Exception as error:  # reported, and the other peers go on
                    calls.pop(name, None)
                    failed[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
        times = take_turns(calls, turns)
    seconds = {name: median_and_spread(some)[0] for name, some in times.items()}
    copied = seconds.pop(_COPY, 0.0)
    mine, beside = seconds.pop(_OURS), seconds.pop(_BESIDE, None)
    return Result(
        name=row.name,
        dtype=row.dtype,
        shape="x".join(map(str, row.shape)),
        isa=core.instruction_set(),
        seconds=mine,
        spread=median_and_spread(times[_OURS])[1],
        floor=copied * bytes_moved(row, x, ys) / (2 * x.nbytes) if copied else None,
        beside=beside,
        peers=seconds,
        failed=failed,
    )


def bytes_moved(row: Row, x: Any, ys: list[Any]) -> int:
    """Return the number of bytes that a call of any library must move.

    Forward each call reads the input and writes output and routes, a byte for each output;
    backward it reads the output's gradient and the routes, and writes the input's gradient.
    """
    routed = ("max" in row.function or "median" in row.function) and row.direction != "values"
    return sum(x.nbytes + y.nbytes + routed * math.prod(y.shape) for y in ys)


def _prepare(row: Row) -> tuple[Any, list[Any], Call]:
    """An input, its outputs, and the call of poolgrad."""
    x = _input(row)
    return x, *_call(row, getattr(poolgrad, row.function), x)


def _input(row: Row) -> Any:
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, row.dtype)
    if dtype.is_floating_point:
        x = torch.randn(row.shape, generator=generator).to(dtype)
    else:
        x = torch.randint(256, row.shape, dtype=dtype, generator=generator)
    if row.arrays == "numpy":
        return x.numpy()
    if row.layout == "NHWC":
        last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        x = x.contiguous(memory_format=last)
    return x.requires_grad_(row.direction != "values")


def _call(row: Row, pool: Pool, x: Any) -> tuple[list[Any], Call]:
    calls = [partial(pool, x, **arguments) for arguments in row.calls]
    ys = [call() for call in calls]
    if row.direction == "backward":
        gradients = [torch.ones_like(y) for y in ys]
        return ys, partial(torch.autograd.grad, ys, x, gradients, retain_graph=True)
    return ys, calls[0] if len(calls) == 1 else lambda: [call() for call in calls]


def take_turns(
    calls: Mapping[str, Call | Within], turns: int, slow: float = _SLOW
) -> dict[str, list[float]]:
    """Return the seconds of each call in each turn; slow calls run in a third of the turns only.

    Every second turn has the reverse order, so that no call always follows the same other one.
    A call may come with a context that it is made in, which is not timed.
    """
    plans = {}
    for name, given in calls.items():
        call, context = given if isinstance(given, tuple) else (given, nullcontext)
        timer = timeit.Timer(call)
        with context():
            warm = timer.timeit(1)
            if warm < slow:
                warm = min(timer.repeat(_WARM, 1))
        plans[name] = timer, context, warm
    # All calls are repeated equally often, because repeated calls find their data in the caches.
    number = max(1, int(_SHORTEST / max(warm for _, _, warm in plans.values())))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns):
        for name in reversed(plans) if turn % 2 else plans:
            timer, context, warm = plans[name]
            if warm < slow or turn < max(1, turns // 3):
                with context():
                    times[name].append(timer.timeit(number) / number)
    return times


def median_and_spread(times: list[float]) -> tuple[float, float]:
    """Return the median, and the interquartile range divided by it."""
    median = float(np.median(times))
    low, high = np.quantile(times, (0.25, 0.75))
    return median, float(high - low) / median


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Set the number of threads of all libraries."""
    before = torch.get_num_threads(), poolgrad.get_num_threads()
    try:
        torch.set_num_threads(threads)
        poolgrad.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(before[0])
        poolgrad.set_num_threads(before[1])
