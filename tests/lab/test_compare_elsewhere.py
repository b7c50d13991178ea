"""Runs that are divided among processes, and runs on a Dask cluster."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poolgrad.lab import LabError
from poolgrad.lab.compare import classify, cluster, processes
from poolgrad.lab.compare.grid import run_folder, run_local
from poolgrad.lab.compare.options import Plan
from poolgrad.lab.compare.run import run_one
from poolgrad.lab.compare.store import load_run
from poolgrad.lab.learner import augment, generator, own_part


class Silent:
    """A watch that notes which runs have finished."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, job: Any) -> None: ...
    def progressed(self, job: Any, epochs: int) -> None: ...
    def failed(self, failure: Any) -> None: ...

    def finished(self, job: Any, score: float) -> None:
        self.names.append(job.name)


def planned(few_digits: Path, **options: Any) -> tuple[Plan, Any]:
    plan = Plan.from_options({"data": str(few_digits), "batch_size": 16, **options})
    data = classify.load(plan)
    described = classify.describe(plan, data)
    return plan.for_data(described.training, described.size), data


def test_a_part_of_the_batch_is_augmented_as_in_the_whole() -> None:
    images = torch.rand(5, 1, 8, 8)
    whole = augment(images, generator(0, "augmentation"))
    part = augment(images, generator(0, "augmentation"), slice(2, 4))
    torch.testing.assert_close(part, whole[2:4])


def test_parts_cover_the_batch_and_their_losses_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_part(7) == (slice(None), 1.0)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
    covered, losses = [], torch.rand(7)
    total = 0.0
    for rank in range(3):
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        part, scale = own_part(7)
        covered += list(range(7))[part]
        total += scale * losses[part].mean() / 3  # as data-parallel training averages
    assert covered == list(range(7))
    assert total == pytest.approx(losses.mean())


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(
    fork_server: Any, few_digits: Path, tmp_path: Path
) -> None:
    plan, data = planned(few_digits, epochs=2, pool="max")
    start = processes.context("poolgrad.lab.compare.run")
    states, predicted = [], []
    for devices in (1, 2):
        job = replace(plan.job("max", "avg", 0), devices=devices)
        # Adam turns roundings of gradients that are almost zero into whole steps.
        job = replace(job, settings=replace(job.settings, optimizer="sgd", lr=0.05))
        folder = tmp_path / str(devices)
        outcome = processes.call(start, run_one, (job, data, folder))
        assert outcome.error is None
        result, _ = outcome.value
        predicted.append(result.predicted)
        assert [row["epoch"] for row in result.curves] == [1, 2]
        checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
        states.append(checkpoint["state_dict"])
    torch.testing.assert_close(states[0], states[1], rtol=1e-4, atol=1e-5)
    assert np.array_equal(*predicted)


def test_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "_PATIENCE", 0.2)
    with pytest.raises(LabError, match=r"^--cluster tcp://127.0.0.1:9: the Dask scheduler cannot"):
        cluster.connect("tcp://127.0.0.1:9")


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_worker_of_the_cluster_is_killed(
    fork_server: Any, few_digits: Path, tmp_path: Path
) -> None:
    distributed = pytest.importorskip("distributed")
    plan, data = planned(few_digits, epochs=12, pool="max,aps", seeds=3)
    jobs = plan.grid()
    local = tmp_path / "local"
    start = processes.context("poolgrad.lab.compare.run")
    assert run_local(start, data, local, jobs, 2, Silent()) == []

    class Killer(Silent):
        """Kills a worker once a run has finished."""

        def finished(self, job: Any, score: float) -> None:
            super().finished(job, score)
            if len(self.names) == 1:
                workers = client.scheduler_info(n_workers=-1)["workers"]
                victim = client.run(os.getpid, workers=[next(iter(workers))])
                killed.extend(victim.values())
                os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    watch = Killer()
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as machines:
        client = cluster.connect(machines.scheduler_address)
        try:
            assert cluster.workers_of(client) == 2
            failures = cluster.run_on(client, data, tmp_path / "cluster", jobs, watch)
        finally:
            client.close()
    assert failures == []
    assert len(killed) == 1
    assert sorted(watch.names) == sorted(job.name for job in jobs)
    for job in jobs:
        ours, theirs = (load_run(run_folder(tmp_path / out, job)) for out in ("local", "cluster"))
        assert ours is not None
        assert theirs is not None
        assert np.array_equal(ours[0].predicted, theirs[0].predicted)
        losses = ([row["train_loss"] for row in run[0].curves] for run in (ours, theirs))
        assert next(losses) == next(losses)
        assert ours[0].shifts is not None
        assert theirs[0].shifts is not None
        assert ours[0].shifts.circular_consistency == theirs[0].shifts.circular_consistency
        assert len(ours[1]) == len(theirs[1])
