"""Times each row of the benchmark with every algorithm that can compute it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import poolgrad
from poolgrad import core
from poolgrad.buffers import dtype_named
from poolgrad.lab.folder import write_atomic
from poolgrad.tools import algorithms
from poolgrad.tools.bench.measure import take_turns
from poolgrad.tools.bench.report import processor
from poolgrad.tools.bench.rows import Row

WORTH = 1.15  # an algorithm whose gains are all smaller should be deleted


class Timed(NamedTuple):
    """The times of one row with every algorithm that handles it.

    Attributes
    ----------
    row : str
        The name of the row.
    isa : str
        The instruction set of the kernels, as `core.instruction_set` returns it.
    chosen : str
        The algorithm that the table chooses.
    seconds : dict of str to float
        The shortest time of each algorithm, the fastest first.
    """

    row: str
    isa: str
    chosen: str
    seconds: Mapping[str, float]

    @property
    def gain(self) -> float | None:
        """Time of the fastest other algorithm over that of the chosen one; None without others."""
        others = [seconds for name, seconds in self.seconds.items() if name != self.chosen]
        return min(others) / self.seconds[self.chosen] if others else None


def _input(row: Row) -> np.ndarray:
    """Return the input of the row, in its memory format."""
    shape = row.shape
    if row.layout == "NHWC":
        shape = (shape[0], *shape[2:], shape[1])
    random = np.random.default_rng(0)
    if row.dtype == "uint8":
        return random.integers(0, 256, shape, dtype=np.uint8)
    return random.standard_normal(shape, dtype=np.float32).astype(dtype_named(row.dtype))


def _call(row: Row, threads: int) -> Callable[[], Any]:
    """Return the kernel calls of the row."""
    x, runs = _input(row), []
    more = {"channels_last": True} if row.layout == "NHWC" else {}
    for arguments in row.calls:
        function = getattr(poolgrad, row.function)
        stored = row.direction != "values"
        made = algorithms.bind(function, x, {**arguments, **more}, threads, stored)
        made.forward()
        runs.append(made.backward if row.direction == "backward" else made.forward)
    return runs[0] if len(runs) == 1 else lambda: [run() for run in runs]


def measure(row: Row, threads: int, turns: int) -> Timed:
    """Time the row with every algorithm that handles it, in alternation."""
    call = _call(row, threads)
    chosen = algorithms.steps(call, dry=True)[0].algorithm
    calls: dict[str, tuple[Callable[[], Any], Callable[[], AbstractContextManager[Any]]]] = {}
    for name in algorithms.names():
        with algorithms.forced(name):
            used = {step.algorithm for step in algorithms.steps(call, dry=True)}
        if used == {name}:
            calls[name] = call, nullcontext if name == chosen else partial(algorithms.forced, name)
    times = take_turns(calls, turns)
    seconds = {name: min(some) for name, some in times.items()}  # other work only adds time
    ordered = dict(sorted(seconds.items(), key=lambda item: item[1]))
    return Timed(row.name, core.instruction_set(), chosen, ordered)


_HEADS = ("row", "isa", "chosen", "algorithm", "seconds")


def write_csv(path: Path, machine: Mapping[str, str], timed: Sequence[Timed]) -> None:
    """Write all times, after a description of the machine in lines with a #."""
    text = io.StringIO()
    text.writelines(f"# {name}: {value}\n" for name, value in machine.items())
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_HEADS)
    for one in timed:
        for name, seconds in one.seconds.items():
            lines.writerow([one.row, one.isa, one.chosen, name, f"{seconds:.4g}"])
    write_atomic(path, text.getvalue().encode())


def read_csv(path: Path) -> tuple[dict[str, str], list[Timed]]:
    """Read what `write_csv` wrote."""
    lines = path.read_text().splitlines()
    above = [line[2:].partition(": ") for line in lines if line.startswith("# ")]
    rows: dict[tuple[str, str, str], dict[str, float]] = {}
    for line in csv.DictReader(line for line in lines if not line.startswith("# ")):
        own = rows.setdefault((line["row"], line["isa"], line["chosen"]), {})
        own[line["algorithm"]] = float(line["seconds"])
    machine = {name: value for name, _, value in above}
    return machine, [Timed(*key, seconds) for key, seconds in rows.items()]


class Summary(NamedTuple):
    """The gain of an algorithm.

    Attributes
    ----------
    algorithm : str
        Its name.
    handled : int
        Rows that it handles.
    gains : dict of str to float
        The rows for which it is chosen and others handle: how many times as long the next best one
        takes, the largest gain first.
    alone : int
        Rows that no other algorithm handles.
    """

    algorithm: str
    handled: int
    gains: dict[str, float]
    alone: int


def summaries(timed: Iterable[Timed]) -> list[Summary]:
    """Return the gain of each algorithm, in the order of `algorithms.names`."""
    timed = list(timed)
    made = []
    for name in algorithms.names():
        own = [one for one in timed if one.chosen == name]
        gains = {one.row: one.gain for one in own if one.gain is not None}
        ordered = dict(sorted(gains.items(), key=lambda item: -item[1]))
        handled = sum(name in one.seconds for one in timed)
        made.append(Summary(name, handled, ordered, len(own) - len(gains)))
    return made


def _gains(summary: Summary) -> str:
    shown = [f"{row} {gain:.2f}" for row, gain in summary.gains.items()]
    if summary.alone:
        rows = "1 row" if summary.alone == 1 else f"{summary.alone} rows"
        shown.append(f"{rows} that no other algorithm can compute")
    return "; ".join(shown) or "none"


def misses(timed: Iterable[Timed]) -> list[str]:
    """Return a sentence for each row where another algorithm is at least 15 % faster."""
    return [
        f"{one.row}: {next(iter(one.seconds))} takes {one.gain:.2f} times as long as {one.chosen}"
        for one in timed
        if one.gain is not None and one.gain < 1 / WORTH
    ]


def markdown(machine: Mapping[str, str], timed: Sequence[Timed]) -> str:
    """Return the table for a page, and a description of the machine."""
    heads = [
        "algorithm",
        "rows that it can compute",
        "largest gain",
        "rows for which it is chosen, with the gain",
    ]
    lines = [heads, ["---", "---:", "---:", "---"]]
    for one in summaries(timed):
        best = f"{max(one.gains.values()):.2f}" if one.gains else ""
        lines.append([f"`{one.algorithm}`", str(one.handled), best, _gains(one)])
    count = machine["bench threads"]
    threads = "1 thread" if count == "1" else f"{count} threads"
    text = (
        "*Gain* is the time of the next best algorithm divided by that of the chosen one. Measured"
        f" on {processor(machine)}, with {threads} and {timed[0].isa} kernels. Times are those of"
        f" the kernels alone, the shortest of {machine['bench turns']} runs."
    )
    wrong = misses(timed)
    if wrong:
        text += f" The choice is wrong for: {'; '.join(wrong)}."
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", text])
