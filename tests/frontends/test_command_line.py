"""Wrong options of every command are reported before slow imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import assert_runs

import poolgrad

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
from poolgrad.cli import app
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
from poolgrad.cli import app
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
from poolgrad.cli import app
done = CliRunner().invoke(app, {[*command, "--help"]!r})
print(done.exit_code, [name for name in {HEAVY!r} if name in sys.modules])
"""
    assert assert_runs(code) == "0 []\n"
