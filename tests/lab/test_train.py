"""The command `poolgrad train`, as its user meets it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner, Result

from poolgrad.cli.commands import app
from poolgrad.lab.callbacks import ProgressBar
from poolgrad.lab.folder import RunFolder, write_atomic
from poolgrad.lab.settings import LabError

from .conftest import CliProcess, MakeFolder

BEGUN = {"settings": {}, "data": {}, "versions": {}, "threads": 1}


def train(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def refused(*arguments: object) -> str:
    """The one line that the command prints where it refuses to run."""
    result = train(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def finished(few_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("runs") / "new" / "run"
    result = train("--data", few_digits, "--out", out, "--epochs", 3, "--batch-size", 32)
    assert result.exit_code == 0, result.output
    return out, result


def test_run_folder(finished: tuple[Path, Result], few_digits: Path) -> None:
    out, shown = finished
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {
        "settings.json",
        "result.json",
        "metrics.csv",
        "curves.png",
        "routes.png",
        "checkpoints/last.ckpt",
    }
    result = json.loads((out / "result.json").read_text())
    assert result["test_images"] == 30
    assert result["test_accuracy"] == 1 - result["test_errors"] / 30
    assert result["epochs"] == 3
    assert result["seconds"] > 0
    assert result["settings"]["data"] == str(few_digits)
    assert result["settings"]["lr"] == 0.01
    assert result["threads"] == 1
    assert result["data"]["classes"] == list("01234")
    assert result["versions"]["poolgrad"]
    assert result["parameters"] > 10_000
    with open(out / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    columns = ["epoch", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "lr", "seconds"]
    assert list(rows[0]) == columns
    assert float(rows[2]["train_loss"]) < float(rows[0]["train_loss"])
    assert float(rows[2]["lr"]) < float(rows[0]["lr"])
    for name in ("curves.png", "routes.png"):
        with Image.open(out / name) as picture:
            picture.load()
    assert f"test accuracy {result['test_accuracy']:.4f}" in shown.stdout
    for name in names - {"settings.json"}:
        assert str(out / name) in shown.stdout


def test_nothing_but_progress_and_the_summary_is_printed(finished: tuple[Path, Result]) -> None:
    lines = finished[1].stdout.splitlines()
    assert finished[1].stderr == "epoch 1 of 3\n"
    assert lines[:6] == [
        "data      few: 150 images of 8 x 8, 5 classes",
        "          105 for training, 15 for validation, 30 for the test",
        "network   max pooling, 2 x 2 windows, stride 2",
        "          feature maps 8 x 8 -> 4 x 4 -> 2 x 2, 93,541 parameters",
        "training  3 epochs of 4 steps, batch size 32, 1 thread",
        "          adam, learning rate up to 0.01",
    ]
    assert lines[6].startswith("test accuracy ")
    assert lines[7] == "files of the run:"
    assert len(lines) == 13


def test_a_finished_run_is_not_overwritten(finished: tuple[Path, Result], few_digits: Path) -> None:
    out = finished[0]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    line = refused("--data", few_digits, "--out", out)
    assert f"{out} holds a finished run" in line
    assert "--out" in line
    shown = train("--out", out, "--resume")
    assert shown.exit_code == 0
    assert "nothing to resume" in shown.stdout
    assert finished[1].stdout.splitlines()[6:] == shown.stdout.splitlines()[1:]
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def stub_trainer() -> Any:
    accuracy = {"val_accuracy": torch.tensor(0.9123)}
    return SimpleNamespace(
        estimated_stepping_batches=12, global_step=0, current_epoch=0, callback_metrics=accuracy
    )


def test_the_progress_is_shown_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    bar, trainer = ProgressBar(3, Console(file=io.StringIO())), stub_trainer()
    bar.on_train_start(trainer, None)
    assert capsys.readouterr().err == "epoch 1 of 3\n"
    bar.on_train_epoch_end(trainer, None)
    bar.on_train_end(trainer, None)
    assert capsys.readouterr().err == ""  # a later line after five seconds


def test_the_progress_is_one_line_that_disappears() -> None:
    shown = io.StringIO()
    bar = ProgressBar(3, Console(file=shown, width=80, force_terminal=True, no_color=True))
    trainer = stub_trainer()
    bar.on_train_start(trainer, None)
    trainer.global_step = 4
    bar.on_train_batch_end(trainer)
    bar.on_train_epoch_end(trainer, None)
    trainer.current_epoch = 1
    bar.on_train_batch_end(trainer)
    assert bar._bar.tasks[0].completed == 4
    assert bar._bar.tasks[0].total == 12
    bar._bar.refresh()
    *_, line = shown.getvalue().split("\r")
    assert "epoch 2 of 3, validation accuracy 0.912" in line
    assert "\n" not in line
    bar.on_train_end(trainer, None)
    assert bar._bar.finished is False
    assert shown.getvalue().endswith("\x1b[2K")  # the line is erased


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--epochs", 4),
        ("--batch-size", 64),
        ("--lr", 0.02),
        ("--optimizer", "sgd"),
        ("--seed", 1),
        ("--pool", "avg"),
        ("--kernel", 3),
        ("--stride", 1),
        ("--threads", 1),
        ("--data", "digits"),
    ],
)
def test_other_settings_are_not_resumed(
    finished: tuple[Path, Result], option: str, value: object
) -> None:
    assert f"poolgrad: {option}: " in refused("--out", finished[0], "--resume", option, value)


def test_an_unfinished_run_is_not_overwritten(few_digits: Path, tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").begin(BEGUN)
    line = refused("--data", few_digits, "--out", tmp_path / "run")
    assert "holds an unfinished run; resume it with --resume" in line


def test_changed_data_are_not_resumed(
    cli_process: CliProcess, few_digits: Path, tmp_path: Path
) -> None:
    data, out = tmp_path / "data.npz", tmp_path / "run"
    arrays = dict(np.load(few_digits))
    np.savez(data, **arrays)
    process = cli_process("--data", data, "--out", out, die=("last.ckpt", 1, "after"))
    process.join(60)
    arrays["images"][0, 0, 0] ^= 1
    np.savez(data, **arrays)
    line = refused("--out", out, "--resume")
    assert "--data: " in line
    assert str(data) in line


@pytest.mark.parametrize("place", ["file", "folder/with", "file/below"])
def test_a_folder_that_is_none_of_ours(few_digits: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder" / "with").mkdir(parents=True)
    (tmp_path / "folder" / "with" / "photo.png").write_text("precious")
    line = refused("--data", few_digits, "--out", tmp_path / place)
    assert f"--out {tmp_path / place}" in line
    assert (tmp_path / "file").read_text() == "precious"
    assert (tmp_path / "folder" / "with" / "photo.png").read_text() == "precious"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--kernel", 0),
        ("--kernel", 9),
        ("--stride", 0),
        ("--stride", 9),
        ("--epochs", 0),
        ("--batch-size", 1),
        ("--lr", -1),
        ("--seed", -1),
        ("--size", 12),
        ("--data", "nowhere"),
    ],
)
def test_bad_options_are_named_and_leave_nothing(
    tmp_path: Path, option: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"poolgrad: {option} " in refused(option, value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--pool", "--head", "--optimizer"])
def test_bad_choices_are_named(option: str) -> None:
    result = train(option, "maximum")
    assert result.exit_code == 2
    assert option in result.stderr


def test_a_broken_image_is_named_and_nothing_is_lost(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    folder = make_folder()
    broken = folder / "cat" / "07.png"
    broken.write_bytes(broken.read_bytes()[:40])
    earlier = tmp_path / "earlier"
    RunFolder(earlier).begin(BEGUN)
    before = (earlier / "settings.json").read_bytes()
    assert str(broken) in refused("--data", folder, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert (earlier / "settings.json").read_bytes() == before


def test_a_learning_rate_that_is_too_large(few_digits: Path, tmp_path: Path) -> None:
    result = train(
        "--data", few_digits, "--out", tmp_path / "run", "--lr", 1e30, "--optimizer", "sgd"
    )
    assert result.exit_code == 2
    assert "--lr 1e+30 is too large: the loss became nan" in result.stderr
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_folder_of_colour_pictures(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder(("cat", "dog", "eel"), size=(12, 10), mode="RGB", suffix="jpg")
    out, before = tmp_path / "run", torch.get_num_threads()
    result = train(
        *("--data", folder, "--out", out, "--epochs", 1, "--batch-size", 7),
        *("--kernel", 3, "--stride", 2, "--size", 11, "--threads", 2),
    )
    assert result.exit_code == 0, result.output
    written = json.loads((out / "result.json").read_text())
    assert written["data"]["shape"] == [36, 3, 11, 11]
    assert written["feature_maps"] == [[11, 11], [6, 6], [3, 3]]
    assert written["threads"] == 2
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("pool", "optimizer"),
    [
        ("max", "sgd"),
        pytest.param("avg", "rmsprop", marks=pytest.mark.slow),
        pytest.param("strided", "adagrad", marks=pytest.mark.slow),
    ],
)
def test_every_pooling_and_optimizer_learns(
    few_digits: Path, tmp_path: Path, pool: str, optimizer: str
) -> None:
    out = tmp_path / "run"
    result = train(
        *("--data", few_digits, "--out", out, "--pool", pool, "--optimizer", optimizer),
        *("--epochs", 8, "--batch-size", 16),
    )
    assert result.exit_code == 0, result.output
    assert json.loads((out / "result.json").read_text())["test_accuracy"] > 0.7


def test_the_batch_size_is_chosen_printed_recorded_and_may_be_repeated(
    few_digits: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    result = train("--data", few_digits, "--out", out, "--epochs", 1)
    assert result.exit_code == 0, result.output
    assert "1 epoch of 14 steps, batch size 8" in result.stdout  # of 105 images
    for name in ("settings.json", "result.json"):
        assert json.loads((out / name).read_text())["settings"]["batch_size"] == 8
    again = train("--out", out, "--resume", "--batch-size", 8)
    assert again.exit_code == 0, again.output
    assert "started with 8, not 64" in refused("--out", out, "--resume", "--batch-size", 64)


def test_the_defaults_learn_from_a_small_folder(cli_process: CliProcess, tmp_path: Path) -> None:
    """With batches of 64 an epoch has two steps, and 10 epochs end at a validation loss of 0.32."""
    randomness = np.random.default_rng(0)
    y, x = np.mgrid[:12, :12]
    shapes = {
        "disc": lambda dy, dx: dy**2 + dx**2 < 14,
        "ring": lambda dy, dx: abs(dy**2 + dx**2 - 14) < 7,
        "cross": lambda dy, dx: (abs(dy) < 1) | (abs(dx) < 1),
    }
    for name, inside in shapes.items():
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(60):
            cy, cx = randomness.uniform(4.5, 6.5, 2)
            low, high = randomness.uniform(60, 100), randomness.uniform(120, 180)
            pixels = np.where(inside(y - cy, x - cx), high, low) + randomness.normal(0, 60, x.shape)
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(tmp_path / "images" / name / f"{i}.png")
    out = tmp_path / "run"
    data = tmp_path / "images"
    process = cli_process("--data", data, "--out", out, "--pool", "avg", "--epochs", 10)
    process.join(120)
    assert process.exitcode == 0
    result = json.loads((out / "result.json").read_text())
    assert result["test_images"] == 36
    assert result["test_accuracy"] >= 0.9
    with open(out / "metrics.csv") as file:
        *_, last = csv.DictReader(file)
    assert float(last["val_loss"]) < 0.2


@pytest.mark.slow
def test_the_defaults_reach_the_promised_accuracy(cli_process: CliProcess, tmp_path: Path) -> None:
    process = cli_process("--out", tmp_path / "run")
    process.join(300)
    assert process.exitcode == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["settings"]["data"] == "digits"
    assert result["test_images"] == 360
    assert result["test_accuracy"] >= 0.985


def test_a_write_that_fails_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(LabError, match="no space left"):
        write_atomic(path, b"new, and longer")
    assert path.read_bytes() == b"old"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_is_quick_to_print() -> None:
    code = """
import sys
from typer.testing import CliRunner
from poolgrad.cli.commands import app
shown = CliRunner().invoke(app, ["train", "--help"])
assert shown.exit_code == 0 and "--kernel" in shown.stdout
heavy = {"torch", "pytorch_lightning", "sklearn", "matplotlib", "PIL", "jax", "scipy"}
print(heavy & set(sys.modules))
"""
    done = run_python(code)
    assert done.stdout.strip() == "set()", done.stderr


@pytest.mark.parametrize("missing", ["typer", "torch"])
def test_a_missing_package_is_explained(missing: str, tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
sys.argv = ["poolgrad", "train", "--out", {str(tmp_path / "run")!r}]
from poolgrad.__main__ import main
main()
"""
    done = run_python(code)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert missing in line
    assert 'pip install "poolgrad[lab]"' in line


def test_a_package_that_is_imported_late_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    result = train("--out", tmp_path / "run")
    assert result.exit_code == 1
    assert 'sklearn is not installed: pip install "poolgrad[lab]"' in result.stderr
    assert not (tmp_path / "run").exists()
