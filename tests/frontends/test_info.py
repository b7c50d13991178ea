"""`poolgrad info` prints what a bug report needs, also from an installation with NumPy alone."""

from __future__ import annotations

import re
from importlib import metadata

import numpy as np
import pytest
from processes import assert_runs, run_python

import poolgrad
from poolgrad import core
from poolgrad.tools import algorithms, info, plan

EXTRAS = ("typer", "rich", "torch", "jax", "jaxlib", "dask", "scipy", "matplotlib", "sklearn")


def printed(before: str = "", **env: str) -> dict[str, str]:
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
    shown = printed(hidden(*EXTRAS))
    assert shown["poolgrad"] == poolgrad.__version__
    assert shown["numpy"] == np.__version__


def test_it_lists_every_front_end() -> None:
    shown = printed()
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
    shown = info.describe()
    assert (shown["jax"], shown["dask"]) == ("not installed", "not installed")
    assert (shown["torch"], shown["front ends"]) == ("1.2.3", "numpy, torch")
    assert shown["JAX CPU kernels"].startswith(("built", "not built"))


def test_threads_and_instruction_set_are_those_in_use() -> None:
    last = core.instruction_sets()[-1]
    shown = printed(POOLGRAD_NUM_THREADS="3", POOLGRAD_ISA=last)
    assert shown["threads"] == "3 (for NumPy arrays)"
    assert shown["instruction set"] == f"{last} (of {', '.join(core.instruction_sets())})"
    assert f"POOLGRAD_ISA={last} POOLGRAD_NUM_THREADS=3" in shown["settings"]


def test_a_wrong_setting_is_shown_where_it_matters() -> None:
    shown = printed(POOLGRAD_NUM_THREADS="many", POOLGRAD_ISA="mmx")
    assert shown["threads"] == "POOLGRAD_NUM_THREADS must be a positive integer, got 'many'"
    assert shown["instruction set"].startswith("POOLGRAD_ISA must be one of")
    assert shown["instruction set"].endswith("got mmx")


def test_whether_the_kernels_run_under_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    if core.xla_handler() is not None:
        assert info.describe()["JAX CPU kernels"] == "built and registered with XLA"
    monkeypatch.setattr(core, "xla_handler", lambda: None)
    assert info.describe()["JAX CPU kernels"].startswith("not built: jaxlib was not")


def test_kernels_that_this_jaxlib_does_not_take() -> None:
    pytest.importorskip("jax")
    if core.xla_handler() is None:
        pytest.skip("built without jaxlib")
    refuse = (
        "import jax\ndef refuse(*_, **__): raise ValueError('version mismatch')\n"
        "jax.ffi.register_ffi_target = refuse"
    )
    shown = printed(refuse)["JAX CPU kernels"]
    assert shown.startswith("built, but not usable: ")
    assert "version mismatch" in shown


@pytest.mark.parametrize(
    "command", ["train", "check --help", "bench", "profile", "--help", "info --help"]
)
def test_other_commands_name_the_extra(command: str) -> None:
    done = run_python(
        f"import sys\n{hidden('typer')}\nsys.argv = ['poolgrad', *{command.split()}]\n"
        "from poolgrad.__main__ import main\nmain()"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        'poolgrad: every command but "info" and "check" needs typer, which is not installed: '
        'pip install "poolgrad[lab]"\n'
    )


def test_the_same_from_the_command_line_with_typer() -> None:
    testing = pytest.importorskip("typer.testing", reason="the lab extra is not installed")
    from poolgrad.cli.commands import app

    shown = testing.CliRunner().invoke(app, ["info"])
    assert shown.exit_code == 0
    assert shown.stdout == info.report() + "\n"


def planned(text: str) -> dict[str, str]:
    """What ``poolgrad info --plan`` prints, by name."""
    pairs = (line.split(":", 1) for line in plan.report(text).splitlines())
    return {name: value.strip() for name, value in pairs}


def test_the_plan_of_a_call_needs_nothing_but_numpy() -> None:
    code = (
        f"import sys\n{hidden(*EXTRAS)}\n"
        "sys.argv = ['poolgrad', 'info', '--plan', 'max_pool2d 2x3x8x8 k2']\n"
        "from poolgrad.__main__ import main\nmain()"
    )
    shown = assert_runs(code, POOLGRAD_ISA=core.instruction_sets()[0])
    assert shown.startswith(
        "plan:              max_pool2d 2x3x8x8 k2\noutput:            2x3x4x4\n"
    )
    assert "forward:           " in shown
    assert "backward:          " in shown


def test_a_plan_says_what_the_kernels_do() -> None:
    text = "max_pool2d 8x16x64x64 k3 s1 p1 d2 float32 threads=2"
    shown = planned(text)
    x = np.random.default_rng(0).standard_normal((8, 16, 64, 64)).astype(np.float32)
    windows = {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2}
    made = algorithms.bind(poolgrad.max_pool2d, x, windows, 2)
    for name, run in (("forward", made.forward), ("backward", made.backward)):
        (step,) = algorithms.steps(run)
        assert shown[name].startswith(f"{step.algorithm}, {step.tasks} tasks on 2 threads, ")
    assert shown["output"] == "8x16x62x62"
    assert shown["instruction set"] == core.instruction_set()


@pytest.mark.parametrize(
    ("text", "forward", "backward"),
    [  # 2 * 6 * 8 inputs, 2 * 3 * 4 outputs, a byte for each route
        ("max_pool2d 2x6x8 k2", 4 * 96 + 4 * 24, 4 * 96 + 4 * 24 + 24),
        ("max_pool2d 2x6x8 k2 routes", 4 * 96 + 4 * 24 + 24, 4 * 96 + 4 * 24 + 24),
        ("max_pool2d 2x6x8 k2 packed", 4 * 96 + 4 * 24 + 6, 4 * 96 + 4 * 24 + 6),
        ("max_pool2d 2x6x8 k2 uint8", 96 + 24, None),
        ("avg_pool2d 2x6x8 k2 float64", 8 * 96 + 8 * 24, 8 * 96 + 8 * 24),
        ("soft_pool2d 2x6x8 k2", 4 * 96 + 4 * 24, 8 * 96 + 4 * 24 + 3 * 4 * 24),  # reads x, too
    ],
)
def test_bytes_of_a_plan(text: str, forward: int, backward: int | None) -> None:
    shown = planned(text)
    assert plan._amount(forward) in shown["forward"]
    assert ("backward" in shown) == (backward is not None)
    if backward is not None:
        assert plan._amount(backward) in shown["backward"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_pool2d 2x3x9x9 k3x2 s2x1 ceil", {"kernel_size": (3, 2), "stride": (2, 1)}),
        ("max_pool2d 2x9x9x3 k3 channels_last", {"kernel_size": 3, "channels_last": True}),
        ("avg_pool2d 9x9 k3 same count_include_pad=False", {"count_include_pad": False}),
        ("max_pool1d 9 k3 ties=zero", {"ties": "zero"}),
        ("lp_pool2d 9x9 k3", {"norm_type": 2.0}),
        ("lp_pool2d 9x9 k3 norm_type=3", {"norm_type": 3}),
        ("adaptive_avg_pool2d 9x9 o2x3", {"output_size": (2, 3)}),
        ("global_max_pool 2x3x9x9 bfloat16", {}),
    ],
)
def test_options_are_arguments_of_the_function(text: str, expected: dict[str, object]) -> None:
    arguments = plan.parse(text).arguments
    assert {name: arguments[name] for name in expected} == expected
    assert {type(arguments[name]) for name in expected} == {type(v) for v in expected.values()}
    if "bfloat16" not in text:
        planned(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a pooling function"),
        ("pool 3x3", "'pool' is not a pooling function"),
        ("max_unpool2d 3x3", "'max_unpool2d' is not a pooling function"),
        ("max_pool2d", "'max_pool2d' has no shape"),
        ("max_pool2d k3", "'k3' is not a size"),
        ("max_pool2d 3x0", "'3x0' has an axis without elements"),
        ("max_pool2d 9x9 kx", "'kx' is not an option"),
        ("max_pool2d 9x9 k3x", "'k3x' is not a size"),
        ("max_pool2d 9x9 float31", "'float31' is not an option"),
        ("max_pool2d 9x9 threads=0", "'threads=0' is not a number of threads"),
        ("max_pool2d 9x9 kernel=3", "'kernel=3' is not an argument of max_pool2d"),
        ("max_pool2d 9x9 out=3", "'out=3' is not an argument of max_pool2d"),
        ("lp_pool2d 9x9 packed", "'packed' is not an argument of lp_pool2d"),
    ],
)
def test_a_malformed_plan_is_refused_with_what_is_accepted(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        plan.report(text)
    assert "for example" in str(caught.value)


def test_arguments_that_the_function_refuses() -> None:
    with pytest.raises(ValueError, match="kernel_size"):
        plan.report("max_pool2d 9x9 k10")
    with pytest.raises(TypeError, match="kernel_size"):
        plan.report("max_pool2d 9x9")


@pytest.mark.parametrize("way", ["main", "typer"])
def test_a_wrong_plan_on_the_command_line(way: str) -> None:
    if way == "typer":
        testing = pytest.importorskip("typer.testing", reason="the lab extra is not installed")
        from poolgrad.cli.commands import app

        shown = testing.CliRunner().invoke(app, ["info", "--plan", "max_pool2d 9x9 kx"])
        code, out, error = shown.exit_code, shown.stdout, shown.stderr
    else:
        done = run_python(
            "import sys\nsys.argv = ['poolgrad', 'info', '--plan', 'max_pool2d 9x9 kx']\n"
            "from poolgrad.__main__ import main\nmain()"
        )
        code, out, error = done.returncode, done.stdout, done.stderr
    assert (code, out) == (2, "")
    assert error.startswith("poolgrad: 'kx' is not an option; a plan is a pooling function")
