"""`poolgrad train --resume` of a folder that is damaged: one sentence that names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from poolgrad.cli.commands import app
from poolgrad.lab.folder import RunFolder

EPOCHS = 2
Change = Callable[[Any], Any]


def train(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def refused(*arguments: object) -> str:
    """The one line that the command prints, besides its progress, where it refuses to run."""
    result = train(*arguments)
    assert result.exit_code == 2, result.output
    (line,) = (line for line in result.stderr.splitlines() if not line.startswith("epoch "))
    return line


@pytest.fixture(scope="module")
def finished(few_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    out = tmp_path_factory.mktemp("runs") / "finished"
    result = train("--data", few_digits, "--out", out, "--epochs", EPOCHS, "--batch-size", 32)
    assert result.exit_code == 0, result.output
    return RunFolder(out)


@pytest.fixture
def folder(finished: RunFolder, tmp_path: Path) -> RunFolder:
    """A run that was killed before it wrote its result."""
    copy = RunFolder(tmp_path / "run")
    shutil.copytree(finished.path, copy.path)
    copy.result.unlink()
    return copy


def test_the_folder_can_be_resumed_before_it_is_damaged(folder: RunFolder) -> None:
    result = train("--out", folder.path, "--resume")
    assert result.exit_code == 0, result.output
    assert f"resumed after epoch {EPOCHS} of {EPOCHS}" in result.stdout


def change_json(path: Path, change: Change) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def entry(**changed: Any) -> Change:
    return lambda content: content | changed


def setting(**changed: Any) -> Change:
    return lambda content: content | {"settings": content["settings"] | changed}


def without(name: str) -> Change:
    return lambda content: {key: value for key, value in content.items() if key != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: [1, 2], "{} must be an object, got [1, 2]"),
        (lambda _: None, "{} must be an object, got None"),
        (without("data"), "{} has no `data`"),
        (without("threads"), "{} has no `threads`"),
        (entry(colour="red"), "{} has an unknown entry 'colour'"),
        (entry(settings=3), "`settings` in {} must be an object, got 3"),
        (entry(data="digits"), "`data` in {} must be an object, got 'digits'"),
        (entry(threads="two"), "`threads` in {} must be an integer, got 'two'"),
        (entry(threads=0), "`threads` in {} must be from 1 to 1024, got 0"),
        (lambda c: entry(settings=without("lr")(c["settings"]))(c), "`settings` in {} has no `lr`"),
        (setting(colour="red"), "`settings` in {} has an unknown entry 'colour'"),
        (setting(kernel="three"), "`kernel` in {} must be an integer, got 'three'"),
        (setting(kernel=2.5), "`kernel` in {} must be an integer, got 2.5"),
        (setting(kernel=True), "`kernel` in {} must be an integer, got True"),
        (setting(size=[8]), "`size` in {} must be an integer or null, got [8]"),
        (setting(epochs=None), "`epochs` in {} must be an integer, got None"),
        (setting(lr={}), "`lr` in {} must be a number or an integer, got {{}}"),
        (setting(lr=float("nan")), "{}: --lr must be a positive number, got nan"),
        (setting(data="a\0b"), "{}: --data 'a\\x00b' is not a path: "),
        (setting(data="~no-such-user/x"), "{}: --data '~no-such-user/x' is not a path: "),
        (setting(pool="maximum"), "{}: --pool must be one of max, avg, strided, "),
        (setting(head="dense"), "{}: --head must be one of avg, flatten, max, gem, attention; got"),
        (entry(threads=10**5), "`threads` in {} must be from 1 to 1024, got 100000"),
        (setting(threads=1025), "{}: --threads must be at most 1024, got 1025"),
        (setting(lr=10**400), "`lr` in {} must be below 2**63, got 1000"),
        (setting(stride=0), "{}: --stride must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_settings_that_are_wrong(folder: RunFolder, change: Change, said: str) -> None:
    change_json(folder.settings, change)
    line = refused("--out", folder.path, "--resume")
    assert f"poolgrad: {said.format(folder.settings)}" in line


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON: Expecting value"),
        (b'{"settings": {', "is not JSON: Expecting property name"),
        (b"\xff\xfe", "is not JSON: "),
        (b"[" * 100_000, "is not JSON: "),
    ],
)
@pytest.mark.parametrize("name", ["settings.json", "result.json"])
def test_files_that_are_not_json(folder: RunFolder, name: str, content: bytes, said: str) -> None:
    (folder.path / name).write_bytes(content)
    assert f"poolgrad: {folder.path / name} {said}" in refused("--out", folder.path, "--resume")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: "done", "{} must be an object, got 'done'"),
        (without("seconds"), "{} has no `seconds`"),
        (entry(test_accuracy="all"), "`test_accuracy` in {} must be a number or an integer, got"),
    ],
)
def test_a_result_that_is_wrong(
    finished: RunFolder, folder: RunFolder, change: Change, said: str
) -> None:
    shutil.copy(finished.result, folder.result)
    change_json(folder.result, change)
    said = f"poolgrad: {said.format(folder.result)}"
    assert said in refused("--out", folder.path, "--resume")
    assert said in refused("--data", json.loads(folder.settings.read_text())["settings"]["data"],
                           "--out", folder.path)  # fmt: skip


def rows(change: Change) -> Change:
    return lambda c: c["callbacks"]["History"].update(
        rows=change(c["callbacks"]["History"]["rows"])
    )


def weights(**changed: Any) -> Change:
    return lambda c: c["state_dict"].update(
        {f"network.{name.replace('_', '.')}": value for name, value in changed.items()}
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.pop("state_dict"), "{} has no `state_dict`"),
        (lambda c: c.pop("optimizer_states"), "{} has no `optimizer_states`"),
        (lambda c: c.pop("loops"), "{} has no `loops`"),
        (lambda c: c.update(state_dict=[]), "`state_dict` in {} must be an object, got []"),
        (lambda c: c.update(epoch="two"), "`epoch` in {} must be an integer, got 'two'"),
        (weights(after_8_bias=torch.zeros(7)), "{} does not fit the network: the weight "
         "network.after.8.bias is float32, shape (7), expected float32, shape (5)"),
        (weights(after_8_bias=torch.zeros(5, dtype=torch.int32)), "network.after.8.bias is int32"),
        (weights(after_8_bias=[0.0]), "the weight network.after.8.bias is [0.0], expected float32"),
        (weights(after_9_bias=torch.zeros(5)), "the weight network.after.9.bias is float32, shape "
         "(5), expected absent"),
        (lambda c: c["state_dict"].pop("network.after.8.bias"),
         "the weight network.after.8.bias is absent, expected float32, shape (5)"),
        (rows(lambda _: []), "{} is damaged: the history must have a row for each of 2 finished "
         "epochs (of 2), got 0 rows"),
        (rows(lambda _: None), "(of 2), got None"),
        (rows(lambda kept: kept[:1]), "(of 2), got 1 rows"),
        (rows(lambda kept: [kept[0], 3]), "{} is damaged: row 2 of the history must have the "
         "numbers epoch, train_loss, train_accuracy, val_loss, val_accuracy, lr, seconds, got 3"),
        (rows(lambda kept: [kept[0], without("lr")(kept[1])]), "row 2 of the history must have"),
        (rows(lambda kept: [kept[0], kept[1] | {"lr": "low"}]), "row 2 of the history must have"),
        (rows(lambda kept: [kept[0], kept[0]]), "row 2 of the history must have"),
        (lambda c: c.update(callbacks={}), "(of 2), got None"),
        (lambda c: c.update(callbacks={"History": 3}), "(of 2), got None"),
        (lambda c: c["optimizer_states"][0]["state"][10].update(exp_avg=torch.zeros(7)), "{} does "
         "not fit the network: exp_avg of the optimizer's parameter 10 has shape (7,), expected"),
        (lambda c: c["optimizer_states"][0]["state"].update({99: {"step": torch.zeros(7)}}),
         "{} is damaged: "),
        (lambda c: c.update(optimizer_states=[3]), "{} is damaged: "),
        (lambda c: c["optimizer_states"][0]["state"].pop(3), "the optimizer's states must be"),
        (lambda c: c.update(optimizer_states=[]), "`optimizer_states` must have one item"),
        (lambda c: c.update(lr_schedulers=[]), "{} is damaged: `lr_schedulers` must have one item"),
        (lambda c: c["optimizer_states"][0].pop("param_groups"), "{} cannot be resumed from: "),
        (lambda c: c.update(lr_schedulers=[3]), "{} cannot be resumed from: "),
        (lambda c: c["loops"].update(fit_loop=3), "{} cannot be resumed from: "),
        (lambda c: c.update({"pytorch-lightning_version": "new"}), "{} cannot be resumed from: "),
    ],
)  # fmt: skip
def test_a_checkpoint_that_is_wrong(folder: RunFolder, change: Change, said: str) -> None:
    content = torch.load(folder.checkpoint, weights_only=True)
    change(content)
    torch.save(content, folder.checkpoint)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    line = refused("--out", folder.path, "--resume")
    assert said.format(folder.checkpoint) in line
    assert str(folder.checkpoint) in line
    assert before == {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def test_a_checkpoint_of_something_else(folder: RunFolder) -> None:
    torch.save([1, 2], folder.checkpoint)
    line = refused("--out", folder.path, "--resume")
    assert f"poolgrad: {folder.checkpoint} must be an object, got [1, 2]" in line


@pytest.mark.parametrize("size", [0, 1, 1000, -1])
def test_a_truncated_checkpoint(folder: RunFolder, size: int) -> None:
    content = folder.checkpoint.read_bytes()
    folder.checkpoint.write_bytes(content[:size])
    line = refused("--out", folder.path, "--resume")
    assert f"poolgrad: {folder.checkpoint} cannot be read (" in line


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("seed", 0, 5), ("pool", "max", "avg"), ("optimizer", "adam", "sgd"), ("lr", 0.01, 0.02)],
)
def test_settings_that_were_edited(folder: RunFolder, name: str, old: Any, new: Any) -> None:
    change_json(folder.settings, setting(**{name: new}))
    line = refused("--out", folder.path, "--resume")
    assert line == (
        f"poolgrad: {folder.checkpoint} was written with the setting {name} {old!r}, but the run"
        f" has {new}"
    )


def test_a_missing_checkpoint(folder: RunFolder) -> None:
    folder.checkpoint.unlink()
    line = refused("--out", folder.path, "--resume")
    assert f"poolgrad: {folder.checkpoint} is missing, but {folder.metrics} has more than" in line


@pytest.mark.parametrize("name", ["settings.json", "result.json", "checkpoints/last.ckpt"])
def test_a_folder_in_the_place_of_a_file(folder: RunFolder, name: str) -> None:
    path = folder.path / name
    path.unlink(missing_ok=True)
    path.mkdir()
    assert f"poolgrad: {path} cannot be read" in refused("--out", folder.path, "--resume")


@pytest.mark.parametrize("name", ["curves.png", "routes.png.partial", "metrics.csv"])
def test_a_file_that_cannot_be_written(folder: RunFolder, name: str) -> None:
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).mkdir()
    if name == "metrics.csv":  # written after an epoch
        shutil.rmtree(folder.checkpoint.parent)
    line = refused("--out", folder.path, "--resume")
    assert f"{folder.path / name.removesuffix('.partial')} cannot be written: Is a dir" in line


def test_a_file_in_the_place_of_the_checkpoints(folder: RunFolder) -> None:
    shutil.rmtree(folder.checkpoint.parent)
    folder.metrics.unlink()
    folder.checkpoint.parent.write_text("")
    line = refused("--out", folder.path, "--resume")
    assert f"{folder.checkpoint} cannot be written: File exists" in line


@pytest.mark.parametrize("made", [False, True])
def test_there_is_nothing_to_resume(few_digits: Path, tmp_path: Path, made: bool) -> None:
    out = tmp_path / "run"
    if made:  # a run that was killed before it had written its settings
        out.mkdir()
        (out / "settings.json.partial").write_text("{")
    line = refused("--data", few_digits, "--out", out, "--resume")
    assert f"--resume: {out} holds no run, since there is no settings.json" in line
    assert out.exists() == made


@pytest.mark.parametrize(
    ("name", "said"),
    [("file", "is a file, not a folder"), ("x" * 300, "cannot be read: File name too long")],
)
def test_a_place_that_is_no_folder(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").write_text("precious")
    for options in ([], ["--resume"]):
        line = refused("--out", tmp_path / name, *options)
        assert line == f"poolgrad: --out {tmp_path / name} {said}"


def test_a_folder_that_may_not_be_read(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system would say it, were the tests not run by root."""

    def forbid(self: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", forbid)
    line = refused("--out", folder.path, "--resume")
    assert line == f"poolgrad: --out {folder.path} cannot be read: Permission denied"
