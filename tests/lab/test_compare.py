"""The command `poolgrad compare`, as its user meets it."""

from __future__ import annotations

import csv
import operator
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from poolgrad.cli.commands import app
from poolgrad.lab.compare import processes
from poolgrad.lab.compare.store import load_run
from poolgrad.lab.folder import write_atomic

OPTIONS = ("--pool", "max,aps", "--epochs", 2, "--seeds", 2, "--batch-size", 32)
RUNS = ("max-avg-seed0", "aps-avg-seed0", "max-avg-seed1", "aps-avg-seed1")


def compare(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["compare", *map(str, arguments)])


def refused(*arguments: object) -> str:
    result = compare(*arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    return line


@pytest.fixture(scope="module", autouse=True)
def _warm(fork_server: Any) -> None:
    """Workers come from a server that has imported PyTorch already."""


@pytest.fixture(scope="module")
def finished(few_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("comparisons") / "new" / "finished"
    result = compare("--data", few_digits, "--out", out, *OPTIONS)
    assert result.exit_code == 0, result.output
    return out, result


@pytest.fixture
def copied(finished: tuple[Path, Result], tmp_path: Path) -> Path:
    shutil.copytree(finished[0], tmp_path / "copy")
    return tmp_path / "copy"


def times(out: Path) -> dict[str, int]:
    return {p.parent.name: p.stat().st_mtime_ns for p in out.glob("runs/*/result.json")}


def rows(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file))


def test_the_folder(finished: tuple[Path, Result]) -> None:
    out, _ = finished
    assert {p.name for p in (out / "runs").iterdir()} == {*RUNS}
    maximum, polyphase = rows(out / "results.csv")
    assert (maximum["method"], polyphase["method"]) == ("max", "aps")
    for row in (maximum, polyphase):
        assert float(row["accuracy_low"]) <= float(row["accuracy"]) <= float(row["accuracy_high"])
        assert 0 < float(row["circular_consistency"]) <= 1
        assert float(row["step_ms"]) > float(row["inference_ms"]) > 0
        assert int(row["saved_bytes"]) > 8 * 8 * 16 * 4 * 32
        assert int(row["parameters"]) > 10_000
    assert maximum["accuracy_minus_max"] == ""
    difference = float(polyphase["accuracy"]) - float(maximum["accuracy"])
    assert float(polyphase["accuracy_minus_max"]) == pytest.approx(difference, abs=1e-5)
    every = rows(out / "runs.csv")
    assert len(every) == 4
    mean = np.mean([float(row["correct"]) for row in every if row["method"] == "max"])
    assert float(maximum["accuracy"]) == pytest.approx(mean, abs=1e-5)
    protocol = (out / "protocol.md").read_text()
    for topic in ("data", "split", "network", "training", "shifts", "machine", "versions"):
        assert f"- **{topic}**: " in protocol
    assert "--pool max,aps" in protocol
    assert (out / "report.html").stat().st_size > 1000
    assert not list(out.rglob("*.partial"))


def test_a_run_is_what_its_checkpoint_predicts(finished: tuple[Path, Result]) -> None:
    found = load_run(finished[0] / "runs" / RUNS[0])
    assert found is not None
    run, examples = found
    assert run.labels.shape == run.predicted.shape == (30,)
    assert run.scores["correct"].tolist() == (run.labels == run.predicted).tolist()
    assert [row["epoch"] for row in run.curves] == [1, 2]
    assert run.shifts is not None
    assert run.shifts.circular_accuracy[0] == run.scores["correct"].mean()
    assert len({example.label for example in examples}) == 3
    for example in examples:
        assert example.image.shape == example.before.shape == example.returned.shape == (8, 8)
        assert example.after.shape == example.arriving.shape == (4, 4)
        assert example.winners is not None
        kept = example.before[example.winners[..., 0], example.winners[..., 1]]
        assert np.array_equal(kept, example.after)
    other = load_run(finished[0] / "runs" / RUNS[2])
    assert other is not None
    assert other[1] == []


def test_the_terminal(finished: tuple[Path, Result]) -> None:
    shown = finished[1].stdout
    assert all(len(line) <= 80 or "/" in line for line in shown.splitlines())
    assert "4 runs of 2 epochs" in shown
    for name in ("max, seed 0: ", "aps, seed 1: ", "(4 of 4 runs"):
        assert name in shown
    assert "shift consistency" in shown
    assert "training step" in shown
    for name in ("report.html", "results.csv", "runs.csv", "protocol.md"):
        assert str(finished[0] / name) in shown


def test_nothing_is_repeated_and_more_can_be_added(copied: Path, few_digits: Path) -> None:
    before, report = times(copied), (copied / "results.csv").read_bytes()
    again = compare("--data", few_digits, "--out", copied, *OPTIONS)
    assert again.exit_code == 0, again.output
    assert "4 runs of 4 in" in again.stdout
    assert times(copied) == before
    assert (copied / "results.csv").read_bytes() == report
    more = compare("--data", few_digits, "--out", copied, *OPTIONS, "--seeds", 3, "--pool", "max")
    assert more.exit_code == 0, more.output
    after = times(copied)
    assert {*after} - {*before} == {"max-avg-seed2"}
    assert before.items() <= after.items()


@pytest.mark.parametrize(
    ("option", "value"), [("--epochs", 3), ("--kernel", 3), ("--conv-padding", "circular")]
)
def test_another_comparison_is_not_mixed_in(
    finished: tuple[Path, Result], few_digits: Path, option: str, value: object
) -> None:
    line = refused("--data", few_digits, "--out", finished[0], *OPTIONS, option, value)
    assert f"poolgrad: {option}: the comparison in {finished[0]} was started with" in line


def test_changed_data_are_not_mixed_in(
    finished: tuple[Path, Result], few_digits: Path, tmp_path: Path
) -> None:
    arrays = dict(np.load(few_digits))
    arrays["images"][0, 0, 0] ^= 1
    np.savez(tmp_path / "few.npz", **arrays)
    line = refused("--data", tmp_path / "few.npz", "--out", finished[0], *OPTIONS)
    assert "--data: " in line


def test_failing_runs_are_reported_and_the_others_go_on(copied: Path, few_digits: Path) -> None:
    cut, foreign, precious, broken = (copied / "runs" / name for name in RUNS)
    for folder in (cut, foreign, precious):
        (folder / "result.json").unlink()
    checkpoint = cut / "checkpoints" / "last.ckpt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    torch.save([1, 2], foreign / "checkpoints" / "last.ckpt")
    shutil.rmtree(precious)
    precious.mkdir()
    (precious / "photo.png").write_text("precious")
    (broken / "predictions.npz").write_bytes(b"PK")
    line = refused("--data", few_digits, "--out", copied, *OPTIONS)
    assert "no run of the comparison in" in line
    options = ("--pool", "max,aps,avg")
    result = compare("--data", few_digits, "--out", copied, *OPTIONS, *options, "--seeds", 1)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert f"{checkpoint} cannot be read (" in said
    assert f"{foreign / 'checkpoints' / 'last.ckpt'} must be an object, got [1, 2]" in said
    assert "2 runs failed and are left out: max (seed 0) and aps (seed 0)" in said
    every = rows(copied / "runs.csv")
    assert [row["method"] for row in every if not row["failed"]] == ["avg"]
    assert "cannot be read" in next(row["failed"] for row in every if row["method"] == "max")
    assert (precious / "photo.png").read_text() == "precious"


def test_a_folder_that_cannot_be_written_stops_all(copied: Path, few_digits: Path) -> None:
    shutil.rmtree(copied / "runs")
    (copied / "runs").write_text("a file")
    line = refused("--data", few_digits, "--out", copied, *OPTIONS)
    assert f"{copied / 'runs'}" in line
    assert "cannot be written" in line


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_folder_that_is_none_of_ours(few_digits: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "photo.png").write_text("precious")
    assert f"--out {tmp_path / place} is " in refused(
        "--data", few_digits, "--out", tmp_path / place, *OPTIONS
    )


def test_ends_of_processes_are_explained() -> None:
    start = processes.context("poolgrad.lab.compare.run")
    assert processes.call(start, operator.add, (1, 2)).value == 3
    ends = {
        "ZeroDivisionError: division by zero": (operator.truediv, (1, 0)),
        "its process ended with exit code 3": (os._exit, (3,)),
        "its process was ended by SIGKILL; perhaps": (signal.raise_signal, (9,)),
    }
    for said, (function, args) in ends.items():
        assert said in str(processes.call(start, function, args).error)
    full = processes.call(start, write_atomic, (Path("/dev/full/file"), b"content"))
    assert full.unwritable
    assert "cannot be written: Not a directory" in str(full.error)


@pytest.mark.nightly
def test_killed_at_any_moment_it_goes_on(few_digits: Path, tmp_path: Path) -> None:
    """Runs that had finished are not repeated; the result is that of an unbroken comparison."""
    options = ("--pool", "max,aps,stochastic", "--epochs", 6, "--seeds", 2, "--batch-size", 16)
    whole, out = tmp_path / "whole", tmp_path / "killed"
    assert compare("--data", few_digits, "--out", whole, *options).exit_code == 0
    command = [sys.executable, "-m", "poolgrad", "compare", "--data", few_digits, "--out", out]
    kept: dict[str, int] = {}
    for wanted in (0, 1, 3):
        process = subprocess.Popen([*map(str, [*command, *options])], stdout=subprocess.DEVNULL)
        while process.poll() is None and len(times(out)) < wanted:
            time.sleep(0.01)
        while process.poll() is None and not list(out.glob("runs/*/checkpoints/last.ckpt")):
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        time.sleep(1)  # its workers end with it
        now = times(out)
        time.sleep(1)
        assert times(out) == now
        assert kept.items() <= now.items()
        kept = now
    last = compare("--data", few_digits, "--out", out, *options)
    assert last.exit_code == 0, last.output
    assert kept.items() <= times(out).items()
    assert len(kept) >= 3
    for path in whole.glob("runs/*"):
        one, other = load_run(path), load_run(out / "runs" / path.name)
        assert one is not None
        assert other is not None
        assert np.array_equal(one[0].predicted, other[0].predicted)
        assert [r["train_loss"] for r in one[0].curves] == [
            r["train_loss"] for r in other[0].curves
        ]


@pytest.mark.slow
def test_stopped_by_the_user(few_digits: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "poolgrad", "compare", "--data", few_digits, "--out"]
    process = subprocess.Popen(
        [*map(str, [*command, tmp_path / "out", *OPTIONS])],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    while process.poll() is None and not (tmp_path / "out" / "runs").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip().endswith("stopped; run the same command again to resume")
