"""Executes the runs of a comparison on a Dask cluster.

The data travel with the tasks, so that workers need no common disk and a worker that is lost takes
nothing with it that cannot be made again: Dask gives its runs to others. Results come back here and
are written to the same folders as those of local runs.
"""

from __future__ import annotations

import pickle
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poolgrad.lab.compare.grid import Watch, mean_score, run_folder
from poolgrad.lab.compare.processes import one_line
from poolgrad.lab.compare.results import Example, Failure, RunResult
from poolgrad.lab.compare.store import save_run
from poolgrad.lab.compare.tasks import TASKS, Job
from poolgrad.lab.folder import UnwritableError
from poolgrad.lab.settings import LabError
from poolgrad.lab.versions import versions

_PATIENCE = 10  # seconds to reach the scheduler
# A worker executes one run at a time, because PyTorch's settings belong to the process.
_ONE_AT_A_TIME = threading.Lock()


def connect(address: str) -> Any:
    """A client of the scheduler at an address.

    Raises
    ------
    LabError
        If it cannot be reached, or has no workers.
    """
    import distributed

    make_client: Any = distributed.Client
    try:
        client = make_client(address, timeout=_PATIENCE, set_as_default=False)
    except Exception as error:  # of sockets, addresses, protocols
        raise LabError(
            f"--cluster {address}: the Dask scheduler cannot be reached: {one_line(error)}"
        ) from error
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except Exception as error:
        client.close()
        raise LabError(f"--cluster {address}: the Dask cluster has no workers") from error
    return client


def workers_of(client: Any) -> int:
    """Return the number of runs at a time: one for each worker."""
    return max(len(client.scheduler_info(n_workers=-1)["workers"]), 1)


def run_on(client: Any, data: Any, out: Path, jobs: Sequence[Job], watch: Watch) -> list[Failure]:
    """Execute runs on a cluster.

    Parameters
    ----------
    client
        From `connect`.
    data
        Data of the task.
    out
        Folder of the comparison, on this machine.
    jobs
        The runs.
    watch
        Receives the events.

    Returns
    -------
    list of Failure
        Of the runs that ended with an error.

    Raises
    ------
    UnwritableError
        If the system refuses to write a result here.
    """
    import distributed

    as_completed: Any = distributed.as_completed
    # Stored by the scheduler, which sends it again if a worker is lost.
    held = client.submit(pickle.loads, pickle.dumps(data), pure=False)
    futures = {
        client.submit(_run, job, held, key=f"poolgrad-{job.name}-{id(held)}", pure=False): job
        for job in jobs
    }
    failures = []
    for job in jobs:
        watch.started(job)
    try:
        for future in as_completed(futures, loop=client.loop):
            job = futures[future]
            try:
                result, examples = future.result()
                folder = run_folder(out, job)
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise UnwritableError(
                        f"{folder} cannot be written: {error.strerror or error}"
                    ) from error
                save_run(folder, result, examples, versions())
            except UnwritableError:
                raise
            except Exception as error:  # of the run, or of the cluster
                failures.append(Failure(job.method, job.head, job.seed, one_line(error)))
                watch.failed(failures[-1])
            else:
                watch.finished(job, mean_score(job, result.scores))
            future.release()
    finally:
        client.cancel([*futures, held])
    return failures


def _run(job: Job, data: Any) -> tuple[RunResult, list[Example]]:
    """Execute one run in a temporary folder of the worker."""
    with _ONE_AT_A_TIME, tempfile.TemporaryDirectory() as folder:
        return TASKS[job.task].training_functions().run_one(job, data, Path(folder) / "run")
