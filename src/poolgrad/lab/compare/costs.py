"""Measures time and memory of every method on this machine, while no run is active."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from poolgrad.lab.compare import processes
from poolgrad.lab.compare.results import Cost
from poolgrad.lab.compare.tasks import TASKS, Case, Job

# Approximate seconds of a measurement, and the limits of timings of each call.
_SECONDS, _QUICK_SECONDS = 15.0, 5.0
_TURNS = (5, 31)
_STEPS = 3  # whose peak memory is measured


def measure(
    start: Any, data: Any, jobs: Sequence[Job], quick: bool, complain: Callable[[str], None]
) -> dict[str, Cost]:
    """Measure every method, in alternation.

    Parameters
    ----------
    start
        From `processes.context`.
    data
        Data of the task.
    jobs
        One for each method and head.
    quick
        Time each call less often.
    complain
        Is called with a sentence if a measuring process ends with an error.

    Returns
    -------
    dict
        By name of the job; without jobs that cannot be measured, whose runs raise the error.
    """
    timed = processes.call(start, _times, (list(jobs), data, quick))
    if timed.error is not None:
        complain(f"the time and memory of the methods were not measured: {timed.error}")
        return {}
    costs = {}
    for job in jobs:
        if job.name not in timed.value:
            continue
        peak = processes.call(start, _peak, (job, data))
        if peak.error is not None:
            complain(f"{job.name}: the time and memory were not measured: {peak.error}")
            continue
        costs[job.name] = Cost(job.method, job.head, peak_bytes=peak.value, **timed.value[job.name])
    return costs


def _times(jobs: Sequence[Job], data: Any, quick: bool) -> dict[str, dict[str, Any]]:
    """Return milliseconds, their spread, bytes kept for the backward pass, and parameters."""
    import math

    from poolgrad.tools.bench.measure import median_and_spread, take_turns, using_threads
    from poolgrad.tools.bench.steps import kept_bytes

    cases: dict[str, Case] = {}
    calls: dict[str, Callable[[], Any]] = {}
    with using_threads(jobs[0].threads):
        for job in jobs:
            try:
                case = TASKS[job.task].training_functions().case(job, data)
                step, inference = partial(_step, case, _optimizer(case)), partial(_infer, case)
                step()
                inference()
            except Exception:  # its runs report the error
                continue
            cases[job.name] = case
            calls |= {f"{job.name} step": step, f"{job.name} inference": inference}
        if not cases:
            return {}
        seconds = _SECONDS if not quick else _QUICK_SECONDS
        once = sum(min(some) for some in take_turns(calls, 1, slow=math.inf).values())
        turns = min(max(round(seconds / max(once, 1e-6)) - 5, _TURNS[0]), _TURNS[1])
        times = take_turns(calls, turns, slow=math.inf)
        measured = {}
        for name, case in cases.items():
            row: dict[str, Any] = {}
            for what in ("step", "inference"):
                middle, spread = median_and_spread(times[f"{name} {what}"])
                row |= {f"{what}_ms": middle * 1e3, f"{what}_spread": middle * spread * 1e3 / 2}
            case.network.train()
            row["saved_bytes"] = kept_bytes((partial(_loss, case), nullcontext), case.network)
            row["parameters"] = sum(p.numel() for p in case.network.parameters())
            measured[name] = row
    return measured


def _optimizer(case: Case) -> Any:
    import torch

    return torch.optim.Adam(case.network.parameters(), 1e-5)


def _step(case: Case, optimizer: Any) -> None:
    """Forward, loss, backward and update of one batch."""
    case.network.train()
    optimizer.zero_grad()
    case.step().backward()
    optimizer.step()


def _loss(case: Case) -> list[Any]:
    return [case.step()]


def _infer(case: Case) -> None:
    import torch

    case.network.eval()
    with torch.no_grad():
        case.network(case.images)


def _peak(job: Job, data: Any) -> int:
    """Return the largest increase of the memory of this (new) process in training steps."""
    if sys.platform == "win32":
        return 0  # not available
    import torch

    torch.set_num_threads(job.threads)
    case = TASKS[job.task].training_functions().case(job, data)
    case.network.train()
    case.network(case.images[:2]).sum().backward()  # one-time allocations
    before = _resident()
    optimizer = _optimizer(case)
    for _ in range(_STEPS):
        _step(case, optimizer)
    return max(_highest() - before, 0)


def _highest() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
    except OSError:  # not Linux: the peak so far
        return _highest()
    import resource

    return pages * resource.getpagesize()
