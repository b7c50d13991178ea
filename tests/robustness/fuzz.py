"""Runs generated calls in child processes, with every instruction set, and compares the results.

A child writes the seed of the call in flight to a file, so that a crash names the call. Results of
the same seed must have the same bits with every instruction set.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from robustness.drive import JOURNAL

from poolgrad import core

_CHUNK = 2000  # calls of a process
_MOST_FAILURES = 10


class Run:
    """Calls of seeds from `first` on, with each of the instruction sets."""

    def __init__(
        self, first: int, calls: int, sets: Sequence[str], options: Sequence[str], folder: Path
    ) -> None:
        self.first, self.calls, self.options, self.folder = first, calls, list(options), folder
        # Seconds of a call; those with a sanitizer, which needs no guard pages, are slow.
        self.longest = 5.0 if {"--heap", "--concurrent"} & {*options} else 0.5
        self.failures: list[str] = []
        self.digests = {}
        for isa in sets:
            path = folder / isa
            path.write_bytes(bytes(4 * calls))
            self.digests[isa] = np.memmap(path, np.uint32, "r+")

    def repeated(self, isa: str, seed: int) -> str:
        """The command that runs one call again."""
        options = " ".join([f"--first {seed}", *self.options])
        return f"POOLGRAD_ISA={isa} PYTHONPATH=tests python -m robustness.drive {options}"

    def chunk(self, isa: str, begin: int, end: int) -> None:
        """Run the calls from `begin` to `end`, relative to the first, one process after another."""
        while begin < end and len(self.failures) < _MOST_FAILURES:
            journal, digests = (self.folder / f"{name}-{isa}-{begin}" for name in "jd")
            journal.write_bytes(JOURNAL.pack(self.first + begin))
            digests.write_bytes(bytes(4 * (end - begin)))
            command = [sys.executable, "-m", "robustness.drive", *self.options]
            command += ["--first", str(self.first + begin), "--calls", str(end - begin)]
            command += ["--journal", str(journal), "--digests", str(digests)]
            tests = str(Path(__file__).parents[1])
            paths = [tests, os.environ.get("PYTHONPATH", "")]
            environment = {"POOLGRAD_ISA": isa, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
            try:
                done = subprocess.run(
                    command,
                    env=os.environ | environment,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=120 + self.longest * (end - begin),
                )
                code, output, errors = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired:
                code, output, errors = None, "", "did not end"
            self.digests[isa][begin:end] = np.fromfile(digests, np.uint32)
            # A child names the calls whose results differ; one that ended it, the journal.
            self.failures += [f"{isa}: {line}" for line in output.splitlines() if "seed " in line]
            if code in (0, 1) and output.endswith("done\n"):
                return
            (seed,) = JOURNAL.unpack(journal.read_bytes())
            how = signal.Signals(-code).name if code and code < 0 else f"exit status {code}"
            self.failures.append(f"{isa}: {how}: {self.repeated(isa, seed)}\n{errors[-3000:]}")
            begin = seed - self.first + 1

    def compare(self) -> None:
        """Add the calls whose results differ between instruction sets to the failures."""
        sets = list(self.digests)
        for isa in sets[1:]:
            one, other = self.digests[sets[0]], self.digests[isa]
            known = (one != 0) & (other != 0)  # a call that crashed has no digest
            for k in np.flatnonzero(known & (one != other))[:_MOST_FAILURES]:
                again = [self.repeated(s, self.first + int(k)) for s in (sets[0], isa)]
                self.failures.append("other bits: " + " against ".join(again))


def fuzz(
    first: int, calls: int, options: Sequence[str] = (), sets: Sequence[str] = (), jobs: int = 1
) -> list[str]:
    """Run the calls and return the failures, each with the command that repeats it.

    Parameters
    ----------
    first, calls : int
        Seed of the first call, and number of calls for each instruction set.
    options : sequence of str
        Further options of `robustness.drive`.
    sets : sequence of str
        Instruction sets; by default all that are compiled.
    jobs : int
        Processes at the same time.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Run(first, calls, sets or core.instruction_sets(), options, Path(folder))
        with ThreadPoolExecutor(jobs) as pool:
            parts = [
                pool.submit(run.chunk, isa, begin, min(calls, begin + _CHUNK))
                for begin in range(0, calls, _CHUNK)
                for isa in run.digests
            ]
            for part in parts:
                part.result()
        if "--flush" not in options:  # instruction sets compare subnormal numbers differently then
            run.compare()
        return run.failures


def main() -> int:
    """Run the calls; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="seed of the first call")
    parser.add_argument("--calls", type=int, default=20_000, help="for each instruction set")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    modes = ("heap", "flush", "concurrent", "raw", "programs", "tensors")
    for name in modes:
        parser.add_argument(f"--{name}", action="store_true", help="see robustness.drive")
    options = parser.parse_args()
    passed_on = [f"--{name}" for name in modes if getattr(options, name)]
    # The calls of tensors test PyTorch's front end, which is the same for all sets.
    sets = [core.instruction_set()] if options.tensors else core.instruction_sets()
    begin = time.monotonic()
    failures = fuzz(options.first, options.calls, passed_on, sets, options.jobs)
    for failure in failures:
        print(failure)
    print(
        f"{options.calls} calls from seed {options.first} on, each with "
        f"{', '.join(sets)}: {len(failures)} failures, "
        f"{time.monotonic() - begin:.0f} s"
    )
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
