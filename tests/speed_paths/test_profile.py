"""`poolgrad profile`: the share of pooling in the time and memory of a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run_python

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
testing = pytest.importorskip("typer.testing", reason="the lab extra is not installed")
pytest.importorskip("matplotlib", reason="the lab extra is not installed")
pytest.importorskip("rich", reason="the lab extra is not installed")

from torch import nn  # noqa: E402

import poolgrad.torch  # noqa: E402
from poolgrad.cli.commands import app  # noqa: E402
from poolgrad.tools.bench import factory, profiling  # noqa: E402
from poolgrad.tools.bench.profiling import Ratio  # noqa: E402
from poolgrad.tools.bench.steps import loss_of, pooling_bytes, train  # noqa: E402

SHAPE = (2, 1, 64, 64)
FILE = """
import torch
from torch import nn
def make():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
def makes_no_pooling():
    return nn.Conv2d(1, 4, 3)
def makes_nothing():
    make()
def needs(depth, *, width):
    return make()
def takes(depth=3, *layers, **more):
    return make()
def fails():
    raise KeyError("weights")
def trains_nothing():
    return nn.MaxPool2d(2)
class Deep(nn.Module):
    def __init__(self, depth):
        super().__init__()
class Uncopied(nn.Sequential):
    def __deepcopy__(self, memo):
        raise RuntimeError("one of a kind")
def makes_uncopied():
    return Uncopied(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2))
ready = make()
number = 3
"""


def make() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2))


def profiled(file: Path, *arguments: str) -> Any:
    given = ["profile", f"{file}:make", "--turns", "6", *arguments]
    return testing.CliRunner().invoke(app, given, env={"COLUMNS": "80", "NO_COLOR": "1"})


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


def noisy(seconds: float, spread: float, turns: int, seed: int) -> list[float]:
    return list(seconds * np.random.default_rng(seed).lognormal(0, spread, turns))


def test_the_interval_is_that_of_the_order_statistics() -> None:
    """Of six ratios all: they lie on one side of the median with probability 2 / 64."""
    ratio = Ratio.of([1.2, 1.1, 1.4, 1.5, 1.3, 1.6], [1.0] * 6)
    assert ratio == pytest.approx((1.35, 1.1, 1.6))
    assert str(ratio) == "1.35 (1.10 to 1.60)"


def test_noise_alone_is_rarely_a_difference() -> None:
    told = [Ratio.of(noisy(1, 0.3, 15, k), noisy(1, 0.3, 15, k + 500)) for k in range(200)]
    assert 0 < sum(ratio.significant for ratio in told) <= 16  # 3.5 % of 200 are expected
    assert all(ratio.low < ratio.median < ratio.high for ratio in told)


def test_a_load_that_slows_whole_turns_down_is_no_noise() -> None:
    load = np.random.default_rng(0).uniform(1, 10, 15)
    before, after = load * noisy(1.1, 0.01, 15, 1), load * noisy(1, 0.01, 15, 2)
    assert Ratio.of(before, after).significant
    assert Ratio.of(before, after).median == pytest.approx(1.1, rel=0.01)
    assert not Ratio.of(before, np.random.default_rng(1).permutation(after)).significant


@pytest.mark.parametrize(
    ("before", "after", "told", "said"),
    [
        (noisy(1.01, 0.2, 15, 0), noisy(1, 0.2, 15, 1), "0.91 (0.82 to 1.07)",
         "no measurable difference in time: the 95 % interval of the ratio contains 1"),
        ([3.0] * 15, [2.0] * 15, "1.50 (1.50 to 1.50)",
         "the converted network is faster: the 95 % interval of the ratio is above 1"),
        ([2.0] * 15, [4.0] * 15, "0.50 (0.50 to 0.50)",
         "the converted network is slower: the 95 % interval of the ratio is below 1"),
    ],
)  # fmt: skip
def test_the_ratio_is_printed_with_its_interval(
    file: Path,
    before: list[float],
    after: list[float],
    told: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Measured times are replaced, so that the output does not depend on the machine."""
    times = {"0": before, "1": after}
    monkeypatch.setattr(profiling, "take_turns", lambda *_, **__: times)
    done = profiled(file, "--shape", "1,1,16,16", "--out", str(file.parent / "p.png"))
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    (row,) = (line for line in lines if "time of a step" in line)
    assert row.rstrip().endswith(told)
    assert said in lines
    assert max(map(len, lines[: lines.index(said) + 1])) <= 80


def load(model: str) -> nn.Module:
    return factory.load(factory.parse(model))


@pytest.mark.parametrize("name", ["make", "ready", "takes"])
def test_a_factory_in_a_file_or_a_module(
    file: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(load(f"{file}:{name}"), nn.Sequential)
    monkeypatch.chdir(file.parent)
    path = [*sys.path]
    assert isinstance(load(f"net:{name}"), nn.Sequential)
    assert sys.path == path


def test_a_file_imports_its_neighbours_and_may_define_dataclasses(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_net.py").write_text(FILE)
    (tmp_path / "uses_neighbour.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import KW_ONLY, dataclass\n"
        "from neighbour_of_net import make\n"
        "@dataclass\nclass Options:\n    _: KW_ONLY\n    depth: int = 3\n"
    )
    assert isinstance(load(f"{tmp_path}/uses_neighbour.py:make"), nn.Sequential)


FORM = "MODEL must be package.module:function or file.py:function, got "


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("net.py", FORM + "'net.py'"),
        (":make", FORM + "':make'"),
        ("net.py:", FORM + "'net.py:'"),
        ("nets/net:make", FORM + "'nets/net:make'; the name of a file must end in .py"),
        (".net:make", FORM + "'.net:make'; the name of a file must end in .py"),
        ("nowhere.py:make", "there is no file nowhere.py"),
        ("no_such_package.at_all:make", "there is no module no_such_package.at_all in this folder"),
        ("torch.nn.no_such:make", "torch.nn.no_such cannot be imported: ModuleNotFoundError: "
         "No module named 'torch.nn.no_such'"),
        ("torch.nn:no_such_thing", "torch.nn has no no_such_thing"),
        ("FILE:mak", "FILE has no mak; did you mean make?"),
        ("FILE:number", "FILE:number must be a function or a torch.nn.Module, got an object of "
         "type int"),
        ("FILE:makes_nothing", "FILE:makes_nothing must return a torch.nn.Module, got None"),
        ("FILE:needs", "FILE:needs cannot be called without the arguments 'depth', 'width'; give a "
         "default value, or name a function that needs no arguments and returns the network"),
        ("FILE:Deep", "FILE:Deep cannot be called without the argument 'depth'; give a"),
        ("FILE:makes_no_pooling", "the network does not pool, so `convert` cannot make it faster"),
        ("FILE:trains_nothing", "no output of the network requires a gradient; profile it with "
         "--inference"),
        ("FILE:makes_uncopied", "the network cannot be copied: RuntimeError: one of a kind"),
    ],
)  # fmt: skip
def test_a_wrong_model_is_explained_in_one_sentence(file: Path, model: str, said: str) -> None:
    model, said = (text.replace("FILE", str(file)) for text in (model, said))
    given = ["profile", model, "--shape", "1,1,8,8", "--out", str(file.parent / "p.png")]
    refused = testing.CliRunner().invoke(app, given)
    assert refused.exit_code == 2
    *progress, line = refused.stderr.splitlines()
    assert not any(each.startswith("poolgrad:") for each in progress)
    assert line.startswith(f"poolgrad: {said}")
    assert refused.stdout == ""
    assert not (file.parent / "p.png").exists()


@pytest.mark.parametrize(
    ("content", "said", "place"),
    [
        ("import json\nimport no_such_module", " cannot be imported: ModuleNotFoundError: No "
         "module named 'no_such_module'", "line 2, in <module>"),
        ("def make()\n    pass", " cannot be imported: SyntaxError: ", "line 1"),
        ("import sys\nsys.exit('usage')", " cannot be imported: SystemExit: usage", "line 2"),
        ("def make():\n    return 1 / 0", ":make raised an error: ZeroDivisionError: division by "
         "zero", "line 2, in make"),
    ],
)  # fmt: skip
def test_an_error_in_the_users_file_shows_its_line_and_none_of_ours(
    tmp_path: Path, content: str, said: str, place: str
) -> None:
    (tmp_path / "broken.py").write_text(content)
    refused = testing.CliRunner().invoke(app, ["profile", f"{tmp_path}/broken.py:make"])
    assert refused.exit_code == 2
    progress, first, *others = refused.stderr.splitlines()
    assert progress.startswith("importing")
    assert first.startswith(f"poolgrad: {tmp_path}/broken.py{said}")
    assert place in others[0]
    assert "factory.py" not in refused.stderr
    assert "importlib" not in refused.stderr


def test_a_network_that_pools_with_our_modules_is_profiled() -> None:
    ours = nn.Sequential(nn.Conv2d(1, 4, 3), poolgrad.torch.MaxPool2d(2))
    assert profiling.measure(ours, SHAPE, True, 1, 1).report.replaced == ()


def test_the_command_prints_and_draws(file: Path) -> None:
    picture = file.parent / "shares.png"
    done = profiled(file, "--shape", "2x1x32x32", "--threads", "1", "--out", str(picture))
    assert done.exit_code == 0, done.output
    for said in ("time of a step, ms", "kept for backward, MiB", "ratio", "2: MaxPool2d"):
        assert said in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape", "2,x"], "--shape must be positive numbers such as 8,3,224,224, got '2,x'"),
        (["--shape", "0,1"], "--shape must be positive numbers"),
        (["--shape", "1,3,8,8"], "raised an error in training on an input of shape 1,3,8,8 "
         "(--shape): RuntimeError: Given groups=1"),
        (["--shape", "1,1,1048576,268435456"], "an input of shape 1,1,1048576,268435456 (--shape) "
         "needs too much memory: RuntimeError: "),  # more than addresses of 47 bits
        (["--shape", f"1,1,{2**40},{2**40}"], "(--shape) needs too much memory"),
        (["--shape", f"1,1,{2**64},1"], "(--shape) needs too much memory"),
        (["--shape", "1,3,8,8", "--inference"], "raised an error in inference on an input"),
        pytest.param(["--shape", "1,1,16,16", "--out", "/dev/full"],
                     "--out /dev/full cannot be written: No space left on device",
                     marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="not Linux")),
        (["--turns", "5"], "greater than or equal to 6"),
        (["--out", "no/such/folder/a.png"], "there is no folder no/such/folder"),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong(file: Path, arguments: list[str], said: str) -> None:
    refused = profiled(file, *arguments)
    assert refused.exit_code == 2
    assert said in " ".join(refused.output.split())


@pytest.mark.slow
def test_pytorchs_profiler_says_nothing(file: Path) -> None:
    code = "from poolgrad.cli.commands import app; "
    code += f"app(['profile', '{file}:make', '--shape', '1,1,16,16', "
    code += f"'--turns', '6', '--out', '{file.parent}/p.png'])"
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    progress = ("importing", "trying", "timing", "measuring")
    assert all(line.startswith(progress) for line in done.stderr.splitlines())
