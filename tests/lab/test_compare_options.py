"""Options of `poolgrad compare`: defaults, rules, and answers within a second."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from poolgrad.lab import LabError, pools
from poolgrad.lab import data as lab_data
from poolgrad.lab.compare import classify, costs, terminal
from poolgrad.lab.compare.command import opened, repeat_command
from poolgrad.lab.compare.options import Plan
from poolgrad.lab.compare.processes import Outcome
from poolgrad.lab.compare.results import Failure

from .comparisons import fabricated
from .conftest import MakeFolder


def test_the_names_are_those_of_the_layers() -> None:
    from poolgrad.torch.layers.heads import HEADS

    assert {*pools.DOWNSAMPLINGS} == {*pools.NAMES}
    assert {*pools.HEADS} == {*HEADS}
    assert {*pools.HEAD_TITLES} == {*pools.HEADS}


def test_defaults() -> None:
    plan = Plan.from_options({})
    assert plan.data == "translated-digits"
    assert plan.baseline == plan.methods[0] == "max"
    assert plan.default_out() == Path("runs/compare-translated-digits")
    assert Plan.from_options({"quick": True}).default_out() == Path(
        "runs/compare-translated-digits-quick"
    )
    chosen = plan.for_data(1257, (32, 32))
    assert (chosen.epochs, chosen.batch_size, chosen.shifts) == (16, 32, 4)
    small = plan.for_data(126, (32, 32))
    assert (small.epochs, small.batch_size) == (60, 8)
    assert len(chosen.grid()) == len(plan.methods) * plan.seeds


def test_the_grid_begins_with_every_method_and_follows_examples_once() -> None:
    plan = Plan.from_options({"pool": "max, avg,max", "head": "avg,gem", "seeds": 2})
    jobs = plan.for_data(100, (32, 32)).grid()
    assert [job.name for job in jobs[:4]] == [
        "max-avg-seed0", "avg-avg-seed0", "max-gem-seed0", "avg-gem-seed0",
    ]  # fmt: skip
    assert [job.name for job in jobs if job.examples] == ["max-avg-seed0", "avg-avg-seed0"]


def test_full_resolution_is_left_out_of_large_images_unless_it_is_asked_for() -> None:
    plan = Plan.from_options({"data": "folder"})
    assert "none" in plan.for_data(100, (48, 48)).methods
    assert "none" not in plan.for_data(100, (64, 64)).methods
    asked = Plan.from_options({"data": "folder", "pool": "max,none"})
    assert "none" in asked.for_data(100, (64, 64)).methods


def test_without_max_the_first_is_the_baseline() -> None:
    assert Plan.from_options({"pool": "blur,avg"}).baseline == "blur"
    assert Plan.from_options({"pool": "blur,max"}).baseline == "max"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("pool", "max,medium", "--pool must be names of max, avg, .*; got 'medium'"),
        ("pool", " ,", "--pool must be names of"),
        ("head", "dense", "--head must be names of avg, flatten, .*; got 'dense'"),
        ("task", "detect", "--task must be one of classify"),
        ("conv_padding", "same", "--conv-padding must be one of zeros, circular"),
        ("seeds", 0, "--seeds must be at least 1, got 0"),
        ("seeds", 1001, "--seeds must be at most 1000"),
        ("epochs", 0, "--epochs must be at least 1"),
        ("batch_size", 1, "--batch-size must be at least 2"),
        ("lr", float("nan"), "--lr must be a positive number"),
        ("kernel", 0, "--kernel must be at least 1"),
        ("kernel", 33, "--kernel 33 is too large"),
        ("shifts", 0, "--shifts must be at least 1"),
        ("shifts", 32, "--shifts 32 is too large: the images have 32 x 32"),
        ("jobs", -1, "--jobs must be at least 1"),
        ("devices", 0, "--devices must be at least 1"),
        ("size", 8001, "--size must be at most 8000, got 8001"),
        ("size", 16, "--size resizes the images of a --data folder; the digits have 32 x 32"),
    ],
)
def test_a_bad_value_names_its_option(option: str, value: Any, said: str) -> None:
    with pytest.raises(LabError, match=f"^{said}"):
        Plan.from_options({option: value})


def test_runs_are_named_with_their_head() -> None:
    plan = Plan.from_options({"pool": "max", "head": "avg,gem", "seeds": 1}).for_data(99, (32, 32))
    for job, title in zip(plan.grid(), ("max, seed 0", "max, gem head, seed 0"), strict=True):
        failure = Failure(job.method, job.head, job.seed, "")
        assert (failure.name, failure.title) == (job.name, job.title)
        assert job.title == title


def test_costs_that_cannot_be_measured_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the measuring process had been killed for its memory."""
    killed = Outcome(error="its process was ended by SIGKILL")
    monkeypatch.setattr(costs.processes, "call", lambda *_: killed)
    said: list[str] = []
    assert costs.measure(None, None, [], quick=True, complain=said.append) == {}
    assert said == [
        "the time and memory of the methods were not measured: its process was ended by SIGKILL"
    ]


def test_an_unreachable_cluster_is_refused_before_costs_are_measured(
    few_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("poolgrad.lab.compare.cluster._PATIENCE", 1)
    monkeypatch.setattr("poolgrad.lab.compare.costs.measure", lambda *_: pytest.fail("measured"))
    options = {"data": str(few_digits), "cluster": "tcp://127.0.0.1:9", "pool": "max"}
    with (
        opened(options, tmp_path / "out", Console(quiet=True)) as session,
        pytest.raises(LabError, match=r"^--cluster tcp://127.0.0.1:9: .* cannot be reached"),
    ):
        session.make()


def test_costs_are_in_the_units_of_the_report() -> None:
    comparison = fabricated("classify")
    console = Console(width=80, file=io.StringIO())
    with console.capture() as captured:
        console.print(terminal.costs(comparison))
    said = captured.get()
    cost = comparison.summaries[0].cost
    assert cost is not None
    assert max(map(len, said.splitlines())) <= 80
    assert f"{cost.saved_bytes / 1000:,.0f}" in said
    assert f"{cost.peak_bytes / 1000**2:.1f}" in said
    assert "iB" not in said


def test_devices_need_images_and_exclude_a_cluster() -> None:
    with pytest.raises(LabError, match=r"^--devices 4 needs as many images in a batch"):
        Plan.from_options({"devices": 4, "batch_size": 3})
    with pytest.raises(LabError, match=r"^--devices 3 needs .*; there are 2 images"):
        Plan.from_options({"devices": 3, "batch_size": 3}).for_data(4, (32, 32))
    with pytest.raises(LabError, match=r"^--devices and --cluster"):
        Plan.from_options({"devices": 2, "cluster": "tcp://nowhere:1"})


def test_the_protocol_has_a_command_that_repeats_it() -> None:
    plan = Plan.from_options({"pool": "max,aps", "seeds": 4, "data": "a folder"})
    plan = plan.for_data(500, (32, 48))
    command = repeat_command(plan)
    assert f"--data '{plan.data}'" in command
    assert "--pool max,aps" in command
    assert "--epochs 40" in command
    assert "--shifts 4" in command


def test_folders_of_several_sizes_are_resized(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder(size=(10, 12))
    plan = Plan.from_options({"data": str(folder)})
    assert lab_data.image_sizes(folder) == {(10, 12)}
    assert classify.chosen_size(plan) is None
    Image.fromarray(np.zeros((20, 20), np.uint8)).save(folder / "cat" / "odd.png")
    assert classify.chosen_size(plan) == 64
    assert classify.load(plan).size == (64, 64)
    assert classify.chosen_size(Plan.from_options({"data": str(folder), "size": 16})) == 16


def test_translated_digits_are_whole_and_everywhere() -> None:
    digits, moved = lab_data.load("digits"), lab_data.load("translated-digits")
    assert moved.images.shape == (1797, 1, 32, 32)
    assert np.array_equal(moved.labels, digits.labels)
    sums = (data.images.sum(axis=(1, 2, 3), dtype=np.int64) for data in (digits, moved))
    assert np.array_equal(*sums)
    drawn = moved.images.max(axis=(0, 1)) > 0
    assert drawn.any(axis=0).all()
    assert drawn.any(axis=1).all()
    assert moved.fingerprint() == lab_data.load("translated-digits").fingerprint()


@pytest.mark.parametrize(
    "arguments", [["--pool", "maxx"], ["--data", "nowhere"], ["--kernel", "0"]]
)
def test_a_wrong_option_or_folder_needs_no_pytorch(arguments: list[str], tmp_path: Path) -> None:
    code = f"""
import sys
sys.argv = ["poolgrad", "compare", *{arguments!r}]
from poolgrad.__main__ import main
try:
    main()
finally:
    print({{"torch", "pytorch_lightning", "sklearn", "scipy", "matplotlib"}} & {{*sys.modules}})
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"poolgrad: {arguments[0]} ")
    assert done.stdout.strip() == "set()"
    assert list(tmp_path.iterdir()) == []
