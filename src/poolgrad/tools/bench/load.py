"""Times a short call from several Python threads at once, or beside busy processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

import poolgrad
from poolgrad.tools.bench.measure import using_threads

SHAPE = (1, 64, 56, 56)
CALL = f"max_pool2d(x, 3, 2, 1) of {'x'.join(map(str, SHAPE))}"
_TURNS, _SECONDS = 5, 0.5  # turns of each library and number of threads; length of a turn
# Ends with its parent, however that ends.
_BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(10000))"


class Timed(NamedTuple):
    """The calls of one library.

    Attributes
    ----------
    library : str
        ``"poolgrad"`` or ``"PyTorch"``.
    threads : int
        Threads of each call.
    seconds : ndarray
        Time of each call.
    per_second : float
        Calls of all callers in a second.
    """

    library: str
    threads: int
    seconds: np.ndarray
    per_second: float


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _turn(call: Callable[[], object], callers: int) -> list[float]:
    """Return the times of all calls in a turn."""
    times: list[float] = []
    end = time.perf_counter() + _SECONDS

    def run() -> None:
        own = []
        while (start := time.perf_counter()) < end:
            call()
            own.append(time.perf_counter() - start)
        times.extend(own)

    others = [threading.Thread(target=run) for _ in range(callers - 1)]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()
    return times


def measure(callers: int, busy: int, threads: int) -> list[Timed]:
    """Time the call with several threads and with one, by poolgrad and by PyTorch in turns.

    Parameters
    ----------
    callers : int
        Python threads that call at once.
    busy : int
        Processes that compute meanwhile.
    threads : int
        Threads of each call.
    """
    x = torch.ones(SHAPE)
    calls = {
        "poolgrad": lambda: poolgrad.max_pool2d(x, 3, 2, 1),
        "PyTorch": lambda: functional.max_pool2d(x, 3, 2, 1),
    }
    cases = [(library, count) for count in dict.fromkeys((threads, 1)) for library in calls]
    times: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    with _busy_processes(busy):
        for _ in range(_TURNS):
            for library, count in cases:
                with using_threads(count):
                    times[library, count] += _turn(calls[library], callers)
    return [
        Timed(library, count, np.array(times[library, count]), len(times[library, count]) / length)
        for length in [_TURNS * _SECONDS]
        for library, count in cases
    ]


def markdown(timed: list[Timed], callers: int, busy: int) -> str:
    """Return a table of the times."""
    lines = [
        f"{CALL}, callers: {callers}, busy processes: {busy}",
        "",
        "| library | threads | mean, ms | median, ms | calls per second |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in timed:
        mean, median = np.mean(row.seconds) * 1e3, np.median(row.seconds) * 1e3
        lines.append(
            f"| {row.library} | {row.threads} | {mean:.3f} | {median:.3f} | {row.per_second:.0f} |"
        )
    return "\n".join(lines)
