"""Executes the runs of a comparison in parallel, each in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from poolgrad.lab.compare.processes import Child
from poolgrad.lab.compare.results import Failure
from poolgrad.lab.compare.store import load_run, save_run
from poolgrad.lab.compare.tasks import TASKS, Job
from poolgrad.lab.folder import RunFolder, UnwritableError
from poolgrad.lab.settings import LabError
from poolgrad.lab.versions import versions

_POLL_SECONDS = 0.5  # between two reads of the metrics


class Watch(Protocol):
    """Receiver of the events of a comparison, such as a progress display."""

    def started(self, job: Job) -> None:
        """Record that a run has begun or was resumed."""

    def progressed(self, job: Job, epochs: int) -> None:
        """Report the number of finished epochs of a run."""

    def finished(self, job: Job, score: float) -> None:
        """Record that a run has finished with this mean score."""

    def failed(self, failure: Failure) -> None:
        """Record that a run has failed."""


def run_folder(out: Path, job: Job) -> Path:
    """Return the folder of a run."""
    return out / "runs" / job.name


def sort_jobs(out: Path, jobs: Sequence[Job]) -> tuple[list[Job], list[Job], list[Failure]]:
    """Divide runs into finished, unfinished and damaged ones.

    Parameters
    ----------
    out
        Folder of the comparison.
    jobs
        All runs.
    """
    finished: list[Job] = []
    waiting: list[Job] = []
    damaged: list[Failure] = []
    for job in jobs:
        try:
            (waiting if load_run(run_folder(out, job)) is None else finished).append(job)
        except LabError as error:
            damaged.append(Failure(job.method, job.head, job.seed, str(error)))
    return finished, waiting, damaged


def run_local(
    start: Any, data: Any, out: Path, jobs: Sequence[Job], workers: int, watch: Watch
) -> list[Failure]:
    """Execute runs on this machine.

    Parameters
    ----------
    start
        From `processes.context`.
    data
        Data of the task.
    out
        Folder of the comparison.
    jobs
        In the order in which they are begun.
    workers
        Number of runs at a time.
    watch
        Receives the events.

    Returns
    -------
    list of Failure
        Of the runs that ended with an error.

    Raises
    ------
    UnwritableError
        If the system refuses to write: the rest would fail alike.
    """
    waiting, running = list(jobs), dict[Any, tuple[Job, Child]]()
    failures: list[Failure] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                folder = run_folder(out, job)
                child = Child(start, _run_and_save, (job, data, folder), folder / "error.txt")
                running[child.link] = job, child
                watch.started(job)
            for link in wait([*running], _POLL_SECONDS):
                job, child = running.pop(link)
                outcome = child.outcome()
                if outcome.unwritable:
                    raise UnwritableError(outcome.error)
                if outcome.error is None:
                    watch.finished(job, outcome.value)
                else:
                    failures.append(Failure(job.method, job.head, job.seed, outcome.error))
                    watch.failed(failures[-1])
            for job, _ in running.values():
                watch.progressed(job, _epochs_in(run_folder(out, job)))
    finally:
        for _, child in running.values():
            child.kill()
    return failures


def _run_and_save(job: Job, data: Any, folder: Path) -> float:
    result, examples = TASKS[job.task].training_functions().run_one(job, data, folder)
    save_run(folder, result, examples, versions())
    return mean_score(job, result.scores)


def mean_score(job: Job, scores: dict[str, Any]) -> float:
    """Return the mean of the main score over the test images."""
    return float(scores[TASKS[job.task].score].mean())


def _epochs_in(folder: Path) -> int:
    try:
        return max(len(RunFolder(folder).metrics.read_bytes().splitlines()) - 1, 0)
    except OSError:  # not there yet
        return 0
