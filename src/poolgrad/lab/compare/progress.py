"""Shows which runs are being made, how far they are, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from poolgrad.lab.compare.results import Failure
from poolgrad.lab.compare.tasks import Job


class Display:
    """Shows a line for the whole comparison and one for each active run.

    Where the output is no terminal, one line is printed for each run that ends.

    Parameters
    ----------
    console
        Where to draw.
    expected
        Seconds that each run is expected to take, by name of the job; only the proportions count
        once runs have finished.
    epochs
        Epochs of each run.
    workers
        Runs at a time.
    """

    def __init__(
        self, console: Console, expected: Mapping[str, float], epochs: int, workers: int
    ) -> None:
        self._console, self._epochs, self._workers = console, epochs, max(workers, 1)
        self._left = dict(expected)
        self._expected = dict(expected)
        self._total, self._ended, self._failures = len(expected), 0, 0
        self._began, self._done = time.monotonic(), 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal,
        )
        self._whole = self._bar.add_task("", total=sum(expected.values()) or 1, note="")
        self._lines: dict[str, TaskID] = {}
        self._update()

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def started(self, job: Job) -> None:
        """Add a line for a run."""
        self._lines[job.name] = self._bar.add_task(
            f"  {job.title}", total=self._epochs, note="starting"
        )

    def progressed(self, job: Job, epochs: int) -> None:
        """Move a run on."""
        if job.name not in self._lines:
            return
        now = min(epochs + 1, self._epochs)
        note = "testing" if epochs >= self._epochs else f"epoch {now} of {self._epochs}"
        self._bar.update(self._lines[job.name], completed=epochs, note=note)
        share = min(epochs / self._epochs, 1) * 0.95
        self._left[job.name] = self._expected[job.name] * (1 - share)
        self._update()

    def finished(self, job: Job, score: float) -> None:
        """Remove the line of a run that has finished."""
        self._end(job.name)
        self._print(f"{job.title}: {score:.3f}")

    def failed(self, failure: Failure) -> None:
        """Remove the line of a run that has failed; the reason is printed at the end."""
        self._failures += 1
        self._end(failure.name)
        self._print(f"{failure.title}: failed")

    def remaining(self) -> float:
        """Expected seconds until the end."""
        left = sum(self._left.values())
        done = sum(self._expected.values()) - left
        elapsed = time.monotonic() - self._began
        # Before any measurement, the prior estimate.
        pace = elapsed / done if done > 0.1 * (left + done) else 1 / self._workers
        return left * pace

    def _end(self, name: str) -> None:
        self._ended += 1
        self._left[name] = 0.0
        if name in self._lines:
            self._bar.remove_task(self._lines.pop(name))
        self._update()

    def _print(self, text: str) -> None:
        if not self._console.is_terminal:
            note = f"({self._ended} of {self._total} runs; {duration(self.remaining())} left)"
            self._console.print(f"{text} {note}", markup=False, highlight=False, soft_wrap=True)

    def _update(self) -> None:
        failed = f", {self._failures} failed" if self._failures else ""
        self._bar.update(
            self._whole,
            completed=sum(self._expected.values()) - sum(self._left.values()),
            description=f"{self._ended} of {self._total} runs{failed}",
            note=f"{duration(self.remaining())} left",
        )


def duration(seconds: float) -> str:
    """A rough duration for people."""
    if seconds < 90:
        return f"about {max(round(seconds / 5) * 5, 5):d} s"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60):d} min"
    return f"about {seconds / 3600:.1f} h"
