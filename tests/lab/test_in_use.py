"""Two commands do not write to one folder at once."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from poolgrad.cli.commands import app
from poolgrad.lab.folder import RunFolder, locked
from poolgrad.lab.settings import LabError

from .conftest import CliProcess

QUICK = ("--epochs", "1", "--batch-size", "16")


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.mark.parametrize(
    "command", [["train"], ["train", "--resume"], ["compare"], ["compare", "--task", "segment"]]
)
def test_a_locked_folder_is_refused(few_digits: Path, tmp_path: Path, command: list[str]) -> None:
    out = tmp_path / "run"
    if "--resume" in command:
        first = invoke("train", "--data", few_digits, "--out", out, *QUICK)
        assert first.exit_code == 0, first.output
        RunFolder(out).result.unlink()
    with locked(out):
        before = sorted(out.iterdir())
        done = invoke(*command, "--out", out)
        assert sorted(out.iterdir()) == before
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"poolgrad: --out {out} is in use by another poolgrad train or compare")


def test_a_locked_folder_is_in_use_before_its_run_has_begun(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with locked(out):
        done = invoke("train", "--out", out, "--resume")
    assert f"--out {out} is in use by another poolgrad train or compare" in done.stderr


def test_the_second_of_two_runs_ends(
    few_digits: Path, tmp_path: Path, cli_process: CliProcess
) -> None:
    """Whatever the first is doing; when it is killed, the folder is free again."""
    folder, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    arguments = ("--data", few_digits, "--out", folder.path, "--batch-size", "16")
    first = cli_process(*arguments, "--epochs", "1000")
    while first.is_alive() and not folder.checkpoint.exists():
        time.sleep(0.01)
    for options in ((), ("--resume",)):
        second = cli_process(*arguments, "--epochs", "1000", *options, log=log)
        second.join(60)
        assert second.exitcode == 2
    lines = log.read_text().splitlines()
    assert len(lines) == 2
    assert all(f"--out {folder.path} is in use" in line for line in lines)
    first.kill()
    first.join()
    with locked(folder.path):
        assert folder.checkpoint.exists()


def _hold(path: Path, ready: Any) -> None:
    with locked(path):
        ready.set()
        time.sleep(60)


def test_a_kill_unlocks(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold, args=(tmp_path / "run", ready))
    process.start()
    assert ready.wait(60)
    with pytest.raises(LabError, match="is in use"), locked(tmp_path / "run"):
        pass
    process.kill()
    process.join()
    with locked(tmp_path / "run"):
        pass


def test_an_empty_folder_is_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for name in ("kept", "made", "made/below/deep"):
        with locked(tmp_path / name):
            assert (tmp_path / name).is_dir()
    assert [*tmp_path.rglob("*")] == [tmp_path / "kept"]
