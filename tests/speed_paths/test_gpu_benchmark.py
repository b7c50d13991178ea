"""benchmarks/gpu.sh and the scripts that it runs, on the CPU, with a timer that times nothing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ERROR = "ValueError: no such pooling"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with small rows, and a timer that runs a call once and returns fixed times."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = importlib.util.spec_from_file_location("gpu_benchmark", BENCHMARKS / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)

    def timed(run: Any) -> Any:
        run()
        return module.Times(2.0, 8.0)

    monkeypatch.setattr(module, "timed", timed)
    small = [row._replace(shape=(1, 3, *(15 for _ in row.shape[2:]))) for row in module.ROWS]
    monkeypatch.setattr(module, "ROWS", small)
    return module


def refuse(x: Any) -> Any:
    raise ValueError("no such pooling\nin any library")


def test_each_row_is_timed_and_a_failure_stops_no_other(gpu: Any, tmp_path: Path) -> None:
    gpu.ROWS[:] = [gpu.ROWS[0], gpu.ROWS[1]._replace(ours=refuse), gpu.ROWS[-1]]
    failures = gpu.measure(tmp_path, gpu.Deadline(60), device="cpu")
    lines = gpu.gpu_table.read(tmp_path / "gpu.csv")
    assert failures == 4  # two types, two memory formats
    assert len(lines) == 2 * 2 * (3 + 1 + 3)
    assert [line["error"] for line in lines if line["error"]] == [ERROR] * 4
    timed = [line for line in lines if line["ours_us"]]
    assert {line["rival / ours"] for line in timed} == {"1.0"}
    missed = {line["missed"] for line in timed}
    assert missed == {"", "1.5 times as fast as PyTorch"}


def test_after_the_deadline_nothing_is_timed(gpu: Any, tmp_path: Path) -> None:
    assert gpu.measure(tmp_path, gpu.Deadline(-1), device="cpu") == 4 * len(gpu.ROWS)
    assert gpu.gpu_table.read(tmp_path / "gpu.csv") == []


@pytest.mark.slow
def test_every_row_is_compiled(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo compiles a code object eight times, and all rows share one."""
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    gpu.ROWS[:] = gpu.ROWS[:5]  # ten graphs
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **kw: compile_(f, backend=backend, **kw))
    assert gpu.measure(tmp_path, gpu.Deadline(60), compiled=True, device="cpu") == 0
    assert len(gpu.gpu_table.read(tmp_path / "gpu-compiled.csv")) == 3 * len(gpu.ROWS)
    assert len(graphs) >= 2 * len(gpu.ROWS)  # with and without gradients


def test_networks_that_are_not_installed_are_failures(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    failures = gpu.measure_networks(tmp_path, gpu.Deadline(60), device="cpu")
    lines = gpu.gpu_table.read(tmp_path / "gpu-networks.csv")
    assert failures == len(lines) == 7
    assert all("pip install" in line["error"] for line in lines)


def test_checks_of_bits_and_of_large_inputs_on_small_ones(gpu: Any) -> None:
    for row in gpu.ROWS:
        for memory in gpu.FORMATS:
            gpu._assert_equal_bits(row, memory, "cpu")
    gpu._assert_large_signal("cpu", 4096)
    gpu._assert_large_images("cpu", 8)
    gpu._assert_large_indices("cpu", 50)


@pytest.mark.parametrize(
    ("row", "direction", "dtype", "rival", "floor", "missed"),
    [
        ("max 3x3 stride 2", "backward", "float32", 1.0, 0.89, ["90% of copy bandwidth"]),
        ("max 3x3 stride 1", "backward", "float32", 1.0, 0.89, []),
        ("avg 2x2 stride 2", "both", "float32", 1.0, 0.5, []),
        ("avg 2x2 stride 2", "both", "bfloat16", 1.4, 0.5, ["1.5 times as fast as PyTorch"]),
        ("global max", "forward", "float32", 0.9, 1.0, ["never slower than PyTorch"]),
    ],
)
def test_goals(
    row: str, direction: str, dtype: str, rival: float, floor: float, missed: list[str], gpu: Any
) -> None:
    line = {"row": row, "direction": direction, "dtype": dtype}
    line |= {"rival / ours": rival, "floor / ours": floor}
    assert gpu.gpu_table.missed_goals(line) == missed


def test_the_picture_of_a_table_that_was_cut_off(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    gpu.ROWS[:] = [gpu.ROWS[0]._replace(theirs=refuse), *gpu.ROWS[1:3]]
    gpu.measure(tmp_path, gpu.Deadline(60), device="cpu")
    table = tmp_path / "gpu.csv"
    text = table.read_text()
    table.write_text(text[: len(text) - 40])
    monkeypatch.setattr(sys, "argv", ["gpu_table.py", str(tmp_path)])
    capsys.readouterr()
    gpu.gpu_table.main()
    assert (tmp_path / "gpu.png").read_bytes().startswith(b"\x89PNG")
    found = capsys.readouterr().out
    assert "23 lines timed" in found
    assert found.count(ERROR) == 4
    rows = [line for line in found.splitlines() if line.startswith("| max")]
    assert len(rows) == 7  # those of which every direction was timed
    assert all(line.count(" / ") == len(gpu.DIRECTIONS) + 1 for line in rows)


PYTHON = """#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in *networks*) exit 3;; esac
"""


def test_a_step_that_fails_stops_no_other(tmp_path: Path) -> None:
    """With a `python` that only writes down how it was called."""
    python, calls = tmp_path / "bin" / "python", tmp_path / "calls"
    python.parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", BENCHMARKS / "gpu.sh", tmp_path / "out"],
        env=os.environ | {"PATH": path, "CALLS": str(calls)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith("failed steps: training steps of networks")
    steps = calls.read_text().splitlines()
    assert [s.split()[1] for s in steps if "/gpu.py" in s] == [
        "times",
        "compiled",
        "bits",
        "networks",
        "without",
    ]
    assert any(s.endswith("tests/gpu") for s in steps)
    assert "gpu_table.py" in steps[-1]
