"""`poolgrad profile`: how much of a network is pooling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import run_python

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
testing = pytest.importorskip("typer.testing", reason="the lab extra is not installed")
pytest.importorskip("matplotlib", reason="the lab extra is not installed")
pytest.importorskip("rich", reason="the lab extra is not installed")

from torch import nn  # noqa: E402

from poolgrad.bench import profiling  # noqa: E402
from poolgrad.bench.steps import loss_of, pooling_bytes, train  # noqa: E402
from poolgrad.cli import app  # noqa: E402

SHAPE = (2, 1, 64, 64)
FILE = """
import torch
from torch import nn
def make():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
ready = make()
number = 3
"""


def make() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2))


def profiled(file: Path, *arguments: str) -> Any:
    given = ["profile", f"{file}:make", "--turns", "2", *arguments]
    return testing.CliRunner().invoke(app, given, env={"COLUMNS": "100", "NO_COLOR": "1"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(FILE)
    return tmp_path / "net.py"


@pytest.mark.parametrize("training", [True, False])
def test_shares_of_time_and_memory(training: bool) -> None:
    network = make()
    before = [type(module) for module in network]
    made = profiling.measure(network, SHAPE, training, 1, 3)
    assert [type(module) for module in network] == before
    assert [m.names for m in made.report.replaced] == [("2",)]
    for share in made.seconds:
        assert 0 < share.pooling < share.whole
    if not training:
        assert made.kept is None
        return
    # Conv's input, tanh's output and the loss's input; indices of 8 bytes, or routes of one.
    shared, outputs = 4 * (2 * 64 * 64 + 2 * 4 * 64 * 64 + 2 * 4 * 32 * 32), 2 * 4 * 32 * 32
    assert made.kept is not None
    assert made.kept[0] == (shared + 8 * outputs, 8 * outputs)
    assert made.kept[1] == (shared + outputs, outputs)


def test_functions_are_seen_too() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 1)

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            y = nn.functional.max_pool2d(self.conv(x), 2)
            return {"a": [y, y.sum()], "b": 3}

    network, x = Net(), torch.randn(SHAPE)
    made = profiling.measure(network, SHAPE, False, 1, 2)
    assert made.seconds[0].pooling > 0
    assert [m.reason for m in made.report.calls] == ["max_pool2d"]
    # The input of the pooling is kept by nobody else.
    assert pooling_bytes(network, x) == 2 * 2 * (4 * 64 * 64 + 8 * 32 * 32)
    assert [y.shape for y in train(network, x)[:2]] == [(2, 2, 32, 32), ()]
    assert loss_of([torch.ones(2), torch.ones(2, requires_grad=True)]) == 1


@pytest.mark.parametrize("ready", ["make", "ready"])
def test_what_makes_a_network(file: Path, ready: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(profiling.load(f"{file}:{ready}"), nn.Sequential)
    monkeypatch.chdir(file.parent)
    assert isinstance(profiling.load(f"net:{ready}"), nn.Sequential)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("net.py", "MODEL must be package.module:factory or file.py:factory, got 'net.py'"),
        ("nowhere.py:make", "there is no file nowhere.py"),
        ("no_such_package.at_all:make", "cannot import no_such_package.at_all"),
        ("torch.nn:no_such_thing", "torch.nn has no no_such_thing"),
        ("FILE:number", "must make a torch.nn.Module, got int"),
    ],
)
def test_errors_of_models(file: Path, model: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        profiling.load(model.replace("FILE", str(file)))


def test_the_command_prints_and_draws(file: Path) -> None:
    picture = file.parent / "shares.png"
    done = profiled(file, "--shape", "2x1x32x32", "--threads", "1", "--out", str(picture))
    assert done.exit_code == 0, done.output
    for said in ("a step, ms", "kept for backward, MiB", "of it pooling", "2: MaxPool2d"):
        assert said in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape", "2,x"], "--shape must be positive numbers such as 8,3,224,224, got '2,x'"),
        (["--shape", "0,1"], "--shape must be positive numbers"),
        (["--shape", "1,3,8,8"], "does not take an input of 1,3,8,8"),
        (["--out", "no/such/folder/a.png"], "there is no folder no/such/folder"),
    ],
)
def test_errors_say_what_is_wrong(file: Path, arguments: list[str], said: str) -> None:
    refused = profiled(file, *arguments)
    assert refused.exit_code == 2
    assert said in " ".join(refused.output.split())


def test_pytorchs_profiler_says_nothing(file: Path) -> None:
    code = f"from poolgrad.cli import app; app(['profile', '{file}:make', '--shape', '1,1,16,16', "
    code += f"'--turns', '1', '--out', '{file.parent}/p.png'])"
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
