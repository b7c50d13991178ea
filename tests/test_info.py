"""`poolgrad info`: what a bug report needs, from an installation with NumPy alone, too."""

from __future__ import annotations

from importlib import metadata

import numpy as np
import pytest
from processes import assert_runs, run_python

import poolgrad
from poolgrad import core, environment

EXTRAS = ("typer", "rich", "torch", "jax", "jaxlib", "dask", "scipy", "matplotlib", "sklearn")


def info(before: str = "", **env: str) -> dict[str, str]:
    """What the command prints, by name."""
    code = (
        f"import sys\n{before}\nsys.argv = ['poolgrad', 'info']\n"
        "from poolgrad.__main__ import main\nmain()"
    )
    pairs = (line.split(":", 1) for line in assert_runs(code, **env).splitlines())
    return {name: value.strip() for name, value in pairs}


def hidden(*names: str) -> str:
    return f"sys.modules.update(dict.fromkeys({names}))"


def test_it_needs_nothing_but_numpy() -> None:
    shown = info(hidden(*EXTRAS))
    assert shown["poolgrad"] == poolgrad.__version__
    assert shown["numpy"] == np.__version__


def test_it_lists_every_front_end() -> None:
    shown = info()
    for package in ("torch", "jax", "jaxlib", "dask"):
        try:
            expected = metadata.version(package)
        except metadata.PackageNotFoundError:
            expected = "not installed"
        assert shown[package] == expected
    found = [n for n in ("torch", "jax", "dask") if shown[n] != "not installed"]
    assert shown["front ends"] == ", ".join(["numpy", *found])


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package in ("jax", "dask"):
            raise metadata.PackageNotFoundError(package)
        return "1.2.3"

    monkeypatch.setattr(metadata, "version", version)
    shown = environment.describe()
    assert (shown["jax"], shown["dask"]) == ("not installed", "not installed")
    assert (shown["torch"], shown["front ends"]) == ("1.2.3", "numpy, torch")
    assert shown["JAX CPU kernels"].startswith(("built", "not built"))


def test_threads_and_instruction_set_are_those_in_use() -> None:
    last = core.instruction_sets()[-1]
    shown = info(POOLGRAD_NUM_THREADS="3", POOLGRAD_ISA=last)
    assert shown["threads"] == "3 (for NumPy arrays)"
    assert shown["instruction set"] == f"{last} (of {', '.join(core.instruction_sets())})"
    assert f"POOLGRAD_ISA={last} POOLGRAD_NUM_THREADS=3" in shown["settings"]


def test_a_wrong_setting_is_shown_where_it_matters() -> None:
    shown = info(POOLGRAD_NUM_THREADS="many", POOLGRAD_ISA="mmx")
    assert shown["threads"] == "POOLGRAD_NUM_THREADS must be a positive integer, got 'many'"
    assert shown["instruction set"].startswith("POOLGRAD_ISA must be one of")
    assert shown["instruction set"].endswith("got mmx")


def test_whether_the_kernels_run_under_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    if core.xla_handler() is not None:
        assert environment.describe()["JAX CPU kernels"] == "built and registered with XLA"
    monkeypatch.setattr(core, "xla_handler", lambda: None)
    assert environment.describe()["JAX CPU kernels"].startswith("not built: jaxlib was not")


def test_kernels_that_this_jaxlib_does_not_take() -> None:
    pytest.importorskip("jax")
    if core.xla_handler() is None:
        pytest.skip("built without jaxlib")
    refuse = (
        "import jax\ndef refuse(*_, **__): raise ValueError('version mismatch')\n"
        "jax.ffi.register_ffi_target = refuse"
    )
    shown = info(refuse)["JAX CPU kernels"]
    assert shown.startswith("built, but not usable: ")
    assert "version mismatch" in shown


@pytest.mark.parametrize("command", ["train", "check", "bench", "profile", "--help", "info --help"])
def test_other_commands_name_the_extra(command: str) -> None:
    done = run_python(
        f"import sys\n{hidden('typer')}\nsys.argv = ['poolgrad', *{command.split()}]\n"
        "from poolgrad.__main__ import main\nmain()"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        'poolgrad: every command but "poolgrad info" needs typer, which is not installed: '
        'pip install "poolgrad[lab]"\n'
    )


def test_the_same_from_the_command_line_with_typer() -> None:
    testing = pytest.importorskip("typer.testing", reason="the lab extra is not installed")
    from poolgrad.cli import app

    shown = testing.CliRunner().invoke(app, ["info"])
    assert shown.exit_code == 0
    assert shown.stdout == environment.report() + "\n"
