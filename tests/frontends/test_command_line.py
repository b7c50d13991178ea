"""Wrong options are reported before slow imports; a failing output ends with one sentence."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from processes import assert_runs, run_python

import poolgrad
from poolgrad.tools.progress import Progress

pytest.importorskip("typer", reason="the lab extra is not installed")

HEAVY = ("torch", "pytorch_lightning", "sklearn", "scipy", "matplotlib", "jax", "flax", "onnx")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train --kernel 9", "--kernel 9 is too large: the feature map to be pooled is only 8 x 8"),
        ("train --data nowhere", "nowhere does not exist"),
        ("train --data EMPTY", "has no class folders"),
        ("train --epochs 0", "--epochs must be at least 1, got 0"),
        ("train --out FILE", "is a file, not a folder"),
        ("train --frobnicate", "No such option: --frobnicate"),
        ("bench --rows typo", "no row has 'typo' in its name"),
        ("bench --networks --rows typo", "no network has 'typo' in its name"),
        ("bench --jax --rows typo", "no row has 'typo' in its name"),
        ("bench --networks --jax", "choose one of them"),
        ("bench --rows tiny --out FILE/below", "--out FILE/below cannot be written"),
        ("profile net", "MODEL must be package.module:function or file.py:function, got 'net'"),
        ("profile nowhere.py:make", "there is no file nowhere.py"),
        ("profile nowhere:make", "there is no module nowhere in this folder or installed"),
        ("profile FILE.py:make --shape 3,x", "--shape must be positive numbers"),
        ("profile FILE.py:make --out no/such.png", "--out: there is no folder no"),
        ("check --rows typo", "No such option: --rows"),
        ("explain --pool typo", "--pool must be one of max, min, median"),
        ("explain --data FILE.png", "FILE.png cannot be read: No such file"),
    ],
)
def test_a_wrong_option_is_reported_before_heavy_imports(
    tmp_path: Path, arguments: str, said: str
) -> None:
    code = f"""
import os, sys
os.chdir({str(tmp_path)!r})
os.mkdir("EMPTY")
open("FILE", "w").close()
open("FILE.py", "w").close()
from typer.testing import CliRunner
from poolgrad.cli.commands import app
done = CliRunner().invoke(app, {arguments.split()!r}, env={{"COLUMNS": "200", "NO_COLOR": "1"}})
assert done.exit_code == 2, done
print(" ".join(done.stderr.split()))
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    shown, loaded = assert_runs(code).splitlines()
    assert said in shown
    assert loaded == "[]"


def test_a_factory_that_needs_an_argument_is_reported_before_what_draws_is_imported(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    code = f"""
import os, sys
os.chdir({str(tmp_path)!r})
with open("net.py", "w") as file:
    file.write("def make(width): ...")
from typer.testing import CliRunner
from poolgrad.cli.commands import app
done = CliRunner().invoke(app, ["profile", "net.py:make"], env={{"COLUMNS": "200"}})
print(done.exit_code, "cannot be called without the argument 'width'" in done.stderr)
print([name for name in ("matplotlib", "poolgrad.torch", "scipy") if name in sys.modules])
"""
    assert assert_runs(code) == "2 True\n[]\n"


def test_the_version_is_printed() -> None:
    code = "from poolgrad.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"poolgrad {poolgrad.__version__}\n"


def test_errors_break_between_words_in_a_terminal() -> None:
    """Options, paths and the lines of a traceback stay whole, so that they can be copied."""
    pty = pytest.importorskip("pty", reason="no pseudo-terminals on this system")
    code = "from poolgrad.__main__ import main; main()"
    long = "no-such-folder/" * 8 + "net.py:make"
    main, child = pty.openpty()
    with os.fdopen(main, "rb") as shown, os.fdopen(child, "wb") as terminal:
        done = subprocess.run(
            [sys.executable, "-c", code, "profile", "net", "--shape", long],
            stderr=terminal, stdout=subprocess.PIPE, timeout=60, check=False,
            env=os.environ | {"COLUMNS": "40"},
        )  # fmt: skip
        lines = shown.read1(10_000).decode().split("\r\n")
    assert done.returncode == 2
    assert lines[0] == "poolgrad: --shape must be positive"
    assert lines[1] == "numbers such as 8,3,224,224, got"
    assert lines[2] == f"'{long}'"


@pytest.mark.parametrize(
    "command", [[], *([name] for name in ("train", "bench", "profile", "explain"))]
)
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    code = f"""
import sys
from typer.testing import CliRunner
from poolgrad.cli.commands import app
done = CliRunner().invoke(app, {[*command, "--help"]!r})
print(done.exit_code, [name for name in {HEAVY!r} if name in sys.modules])
"""
    assert assert_runs(code) == "0 []\n"


# `poolgrad check` takes a minute; here it checks nothing.
CHECK = "from poolgrad.tools import check; check.count = lambda: 0; check.run = lambda: iter(())\n"
NETWORK = """
from torch import nn
def make():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
"""
PROFILE = "profile net.py:make --shape 2,3,16,16 --turns 6"
BENCH = "bench --quick --rows tiny~max~2x2~s2~NCHW~values"
TRAIN = "train --epochs 1 --out run"
LONG = [pytest.param(each, marks=pytest.mark.nightly) for each in (PROFILE, BENCH, TRAIN)]


def run_shell(arguments: str, redirection: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder with a file net.py, and with redirected streams."""
    words = shlex.join(each.replace("~", " ") for each in arguments.split())
    (folder / "net.py").write_text(NETWORK)
    (folder / "run.py").write_text(f"{CHECK}from poolgrad.__main__ import main\nmain()\n")
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} run.py {words} {redirection}"],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        ("> /dev/full", "cannot be written: No space left on device"),
        (">&-", "is closed"),
        ("| exec 0<&-", "was closed by the program that reads it"),
    ],
)
@pytest.mark.parametrize(
    "arguments", ["info", "check", "--help", "explain --no-open --out x.html", *LONG]
)
def test_a_failing_output_ends_with_one_sentence(
    tmp_path: Path, arguments: str, redirection: str, said: str
) -> None:
    done = run_shell(arguments, redirection, tmp_path)
    lines = (done.stderr + done.stdout).splitlines()
    progress = ("checking", "importing", "timing", "trying", "measuring")
    assert [each for each in lines if not each.startswith(progress)] == [
        f"poolgrad: standard output {said}"
    ]
    assert done.returncode == 1


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_terminal_that_goes_away(stream: str) -> None:
    """A command goes on without standard error, and ends without a traceback otherwise."""
    pty = pytest.importorskip("pty", reason="no pseudo-terminals on this system")
    code = (
        "import sys\nfrom poolgrad import cli\n"
        "def run():\n"
        f"    out = sys.{stream}\n"
        "    assert out.isatty()\n"
        "    print('here', file=out)\n"
        "    sys.stdin.readline()\n"
        "    print('gone', file=out)\n"
        "    print('after', file=sys.stdout)\n"
        "cli._run = run\ncli.main()"
    )
    main, child = pty.openpty()
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        **{stream: child, other: subprocess.PIPE},  # type: ignore[call-overload]
        stdin=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(child)
    seen = b""
    while not seen.endswith(b"\n"):
        seen += os.read(main, 100)
    os.close(main)
    shown = "".join(each or "" for each in process.communicate("\n", 60))
    problem = "poolgrad: standard output cannot be written: Input/output error\n"
    assert (shown, process.returncode) == ((problem, 1) if stream == "stdout" else ("after\n", 0))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize(
    ("arguments", "file"),
    [(PROFILE, "profile.png"), (BENCH, "bench/bench.csv")],
)
def test_a_failing_output_loses_no_results(tmp_path: Path, arguments: str, file: str) -> None:
    assert run_shell(arguments, "> /dev/full", tmp_path).returncode == 1
    assert (tmp_path / file).stat().st_size


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize("redirection", ["2>&-", "2> /dev/full", "<&-", "<&- 2>&-"])
@pytest.mark.parametrize("arguments", ["check", "explain --no-open --out x.html"])
def test_other_streams_may_be_closed(tmp_path: Path, arguments: str, redirection: str) -> None:
    done = run_shell(arguments, redirection, tmp_path)
    assert done.returncode == 0
    assert done.stdout.endswith(("per layer\n", "x.html\n"))
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes that do not block")
def test_a_full_pipe_that_does_not_block_is_waited_for() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filled = os.write(writing, bytes(1 << 20))
    with subprocess.Popen([sys.executable, "-m", "poolgrad", "--help"], stdout=writing) as process:
        os.close(writing)
        with open(reading, "rb") as pipe:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=3)  # it is full
            assert b"Usage:" in pipe.read()[filled:]
    assert process.returncode == 0


def test_an_output_whose_encoding_lacks_a_character() -> None:
    code = "import poolgrad.tools.info as e; e.report = lambda: 'µ'\n"
    code += (
        "import sys; sys.argv = ['poolgrad', 'info']\nfrom poolgrad.__main__ import main; main()"
    )
    assert assert_runs(code, PYTHONIOENCODING="ascii") == "\\xb5\n"


@pytest.mark.parametrize(
    ("arguments", "function"),
    [
        (["info"], "poolgrad.tools.info.report"),
        (["check"], "poolgrad.tools.check.count"),
        (["explain"], "poolgrad.explainer.command.page"),
        (["profile", "os:getcwd"], "poolgrad.tools.bench.factory.load"),
        (["bench", "--overhead"], "poolgrad.tools.bench.overhead.measure"),
        (["bench", "--busy", "1"], "poolgrad.tools.bench.load.measure"),
    ],
)
def test_ctrl_c_ends_with_one_sentence(arguments: list[str], function: str) -> None:
    code = f"""
import os, signal, sys, unittest.mock
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["poolgrad", *{arguments!r}]
from poolgrad.__main__ import main
def stop(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
with unittest.mock.patch({function!r}, stop):
    main()
"""
    done = run_python(code)
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "poolgrad: stopped"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "function", "said"),
    [
        (["check"], "poolgrad.tools.check.count", "checking gradients"),
        (["profile", "os:getcwd"], "poolgrad.tools.bench.factory.load", "importing os:getcwd"),
        (["bench", "--rows", "tiny"], "poolgrad.tools.bench.overhead.measure", "importing PyTorch"),
    ],
)
def test_progress_is_shown_before_slow_imports(
    arguments: list[str], function: str, said: str
) -> None:
    """Also where standard error is a pipe, and at once: the process ends without a last flush."""
    code = f"""
import os, sys, unittest.mock
sys.argv = ["poolgrad", *{arguments!r}]
from poolgrad.__main__ import main
class Finder:
    def find_spec(name, path, target=None):
        if name in {HEAVY!r}:
            os._exit(0)
sys.meta_path.insert(0, Finder)
with unittest.mock.patch({function!r}, lambda *_: os._exit(0)):
    main()
"""
    done = run_python(code)
    assert done.returncode == 0
    assert done.stderr.startswith(said)


def test_progress_in_a_terminal_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress() as progress:
        progress.show("one of ten: a long name")
        progress.show("two")
    cells = [" "] * 12
    place = 0
    for character in capsys.readouterr().err:
        if character in "\r\b":
            place = 0 if character == "\r" else place - 1
        else:
            cells[place] = character
            place += 1
    assert set(cells) == {" "}
    assert place == 0
