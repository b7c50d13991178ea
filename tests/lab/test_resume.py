"""A run that is killed, again and again, ends like one that was left alone."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from profiles import examples

from poolgrad.lab.folder import RunFolder

from .conftest import CliProcess

EPOCHS = 4
OPTIONS = ("--epochs", str(EPOCHS), "--batch-size", "16")


@dataclass
class Outcome:
    """All that two runs with the same settings have in common."""

    rows: list[dict[str, str]]
    checkpoint: dict[str, Any]
    result: dict[str, Any]

    @classmethod
    def of(cls, path: Path) -> Outcome:
        folder = RunFolder(path)
        with open(folder.metrics) as file:
            rows = list(csv.DictReader(file))
        checkpoint = torch.load(folder.checkpoint, weights_only=True)
        result = json.loads(folder.result.read_text())
        for timed in (*rows, result):
            del timed["seconds"]
        return cls(rows, checkpoint, result)

    def assert_equal(self, other: Outcome) -> None:
        assert self.rows == other.rows
        assert self.result == other.result
        for part in ("state_dict", "optimizer_states", "lr_schedulers"):
            torch.testing.assert_close(
                self.checkpoint[part], other.checkpoint[part], rtol=0, atol=0
            )


def finish(process: Any) -> int:
    process.join(120)
    code = process.exitcode
    assert code is not None
    process.close()
    return int(code)


def resume(out: Path) -> tuple[str, ...]:
    """The option that goes on with a run; one that was killed before it began is begun again."""
    return ("--resume",) if RunFolder(out).settings.exists() else ()


@pytest.fixture(scope="module")
def unbroken(
    cli_process: CliProcess, few_digits: Path, tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    out = tmp_path_factory.mktemp("runs") / "unbroken"
    assert finish(cli_process("--data", few_digits, "--out", out, *OPTIONS)) == 0
    outcome = Outcome.of(out)
    assert [row["epoch"] for row in outcome.rows] == [str(i + 1) for i in range(EPOCHS)]
    return outcome


KILLS = [
    ("settings.json", 1, "half"),
    ("settings.json", 1, "after"),
    ("last.ckpt", 1, "half"),  # the metrics are one epoch ahead of the checkpoint
    ("last.ckpt", 2, "half"),  # there is an older checkpoint, which must survive
    ("metrics.csv", 2, "before"),
    ("last.ckpt", 2, "after"),  # the last epoch
    ("curves.png", 1, "after"),
    ("result.json", 1, "half"),
]


@pytest.mark.slow
def test_killed_in_the_middle_of_writes(
    cli_process: CliProcess, few_digits: Path, tmp_path: Path, unbroken: Outcome
) -> None:
    out = tmp_path / "killed"
    for die in KILLS:
        process = cli_process("--data", few_digits, "--out", out, *OPTIONS, *resume(out), die=die)
        assert finish(process) == -signal.SIGKILL, die
        assert not RunFolder(out).result.exists()
    assert finish(cli_process("--data", few_digits, "--out", out, "--resume")) == 0
    Outcome.of(out).assert_equal(unbroken)
    assert not list(out.rglob("*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["stochastic", "s3"])
def test_random_poolings_draw_the_same_after_a_kill(
    cli_process: CliProcess, few_digits: Path, tmp_path: Path, pool: str
) -> None:
    arguments = ("--data", few_digits, *OPTIONS, "--pool", pool)
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    assert finish(cli_process(*arguments, "--out", unbroken)) == 0
    process = cli_process(*arguments, "--out", killed, die=("last.ckpt", 2, "after"))
    assert finish(process) == -signal.SIGKILL
    assert finish(cli_process("--data", few_digits, "--out", killed, "--resume")) == 0
    Outcome.of(killed).assert_equal(Outcome.of(unbroken))


@pytest.mark.slow
def test_killed_from_outside_in_the_middle_of_epochs(
    cli_process: CliProcess, few_digits: Path, tmp_path: Path, unbroken: Outcome
) -> None:
    folder = RunFolder(tmp_path / "killed")
    arguments = ("--data", few_digits, "--out", folder.path, *OPTIONS)
    for delay in (0.0, 0.08):
        before = folder.checkpoint.stat().st_mtime_ns if folder.checkpoint.exists() else None
        process = cli_process(*arguments, *resume(folder.path))
        while process.is_alive():
            time.sleep(0.002)
            if folder.checkpoint.exists() and folder.checkpoint.stat().st_mtime_ns != before:
                break
        time.sleep(delay)
        process.kill()
        assert finish(process) == -signal.SIGKILL
    assert finish(cli_process(*arguments, "--resume")) == 0
    Outcome.of(folder.path).assert_equal(unbroken)


@pytest.mark.nightly
def test_killed_at_random_moments(
    cli_process: CliProcess, few_digits: Path, tmp_path: Path, unbroken: Outcome
) -> None:
    """Each kill leaves a folder that can be read; whenever a run has ended, another one begins."""
    moments, kills, ended = random.Random(0), 0, 0
    # Delays up to the time of a whole run, so that kills hit its beginning and its end, too.
    began = time.perf_counter()
    assert finish(cli_process("--data", few_digits, "--out", tmp_path / "timed", *OPTIONS)) == 0
    longest = time.perf_counter() - began
    while kills < examples(25):
        out = tmp_path / str(ended)
        process = cli_process("--data", few_digits, "--out", out, *OPTIONS, *resume(out))
        process.join(moments.uniform(0, longest))
        process.kill()
        code = finish(process)
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            Outcome.of(out).assert_equal(unbroken)
            ended += 1
            continue
        kills += 1
        folder = RunFolder(out)
        assert folder.stored() is None or folder.stored_result() is None
        if folder.checkpoint.exists():
            assert torch.load(folder.checkpoint, weights_only=True)["callbacks"]["History"]["rows"]
    out = tmp_path / str(ended)
    assert finish(cli_process("--data", few_digits, "--out", out, *OPTIONS, *resume(out))) == 0
    Outcome.of(out).assert_equal(unbroken)


def test_stopped_by_the_user(
    cli_process: CliProcess, few_digits: Path, tmp_path: Path, unbroken: Outcome
) -> None:
    folder, log = RunFolder(tmp_path / "stopped"), tmp_path / "log"
    process = cli_process("--data", few_digits, "--out", folder.path, *OPTIONS, log=log)
    while process.is_alive() and not folder.checkpoint.exists():
        time.sleep(0.002)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    assert finish(process) == 130
    assert f"stopped; to resume: poolgrad train --out {folder.path} --resume" in log.read_text()
    assert finish(cli_process("--out", folder.path, "--resume")) == 0
    Outcome.of(folder.path).assert_equal(unbroken)


def test_a_moved_run_goes_on(
    cli_process: CliProcess, few_digits: Path, tmp_path: Path, unbroken: Outcome
) -> None:
    out, elsewhere = tmp_path / "killed", tmp_path / "elsewhere"
    process = cli_process(
        "--data", few_digits, "--out", out, *OPTIONS, die=("last.ckpt", 2, "after")
    )
    assert finish(process) == -signal.SIGKILL
    finished_epochs = RunFolder(out).metrics.read_text()
    out.rename(elsewhere)
    log = tmp_path / "log"
    assert finish(cli_process("--out", elsewhere, "--resume", log=log)) == 0
    Outcome.of(elsewhere).assert_equal(unbroken)
    # With the same seconds: these epochs were not done again.
    assert RunFolder(elsewhere).metrics.read_text().startswith(finished_epochs)
    assert "resumed after epoch 2 of 4" in log.read_text()
    assert not out.exists()
