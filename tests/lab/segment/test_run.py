"""Runs of the segmentation task, alone and in a comparison."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from poolgrad.cli.commands import app
from poolgrad.lab import LabError
from poolgrad.lab.compare import processes
from poolgrad.lab.compare.options import Plan
from poolgrad.lab.compare.store import load_run, save_run
from poolgrad.lab.compare.tasks import Job
from poolgrad.lab.folder import RunFolder
from poolgrad.lab.segment import data as masked
from poolgrad.lab.segment import protocol, run
from poolgrad.lab.segment.pictures import colour_errors, colour_mask, draw_masks
from poolgrad.lab.segment.scores import VOID

from .conftest import MakeMasks


def planned(folder: Path, **options: Any) -> tuple[Plan, masked.MaskedImages]:
    """A plan for the images in a folder, and the images."""
    plan = Plan.from_options({"task": "segment", "data": str(folder), "jobs": 2, **options})
    data = protocol.load(plan)
    described = protocol.describe(plan, data)
    return plan.for_data(described.training, described.size), data


def a_job(plan: Plan, method: str = "max_unpool") -> Job:
    return plan.job(method, "avg", 0)


class TestRun:
    def test_learns_squares(self, make_masks: MakeMasks, tmp_path: Path) -> None:
        plan, data = planned(make_masks(40), epochs=6)
        result, examples = run.run_one(a_job(plan), data, tmp_path / "run")
        assert result.scores["iou"].shape == result.scores["boundary_iou"].shape == (8,)
        assert result.scores["iou"].mean() > 0.7
        assert result.curves[-1]["train_loss"] < result.curves[0]["train_loss"] / 2
        assert len(result.curves) == 6
        parts = masked.split(data)
        for example, index in zip(examples, parts.test, strict=False):
            assert np.array_equal(example.image, data.images[index, 0])
            assert example.true_mask is not None
            assert example.predicted_mask is not None
            assert np.array_equal(example.true_mask, data.masks[index])
            assert example.label == f"image {index}"
            # All that arrives at the maxima returns to them, and nothing else does.
            assert example.winners is not None
            returned = np.zeros_like(example.before)
            np.add.at(returned, tuple(np.moveaxis(example.winners, -1, 0)), example.arriving)
            np.testing.assert_array_equal(example.returned, returned)
        save_run(tmp_path / "run", result, examples, {})
        stored = load_run(tmp_path / "run")
        assert stored is not None
        assert np.array_equal(stored[0].scores["iou"], result.scores["iou"])
        assert np.array_equal(stored[1][0].predicted_mask, examples[0].predicted_mask)  # type: ignore[arg-type]

    @pytest.mark.parametrize("method", ["strided", "dilated", "s3"])
    def test_every_kind_of_downsampling(
        self, make_masks: MakeMasks, tmp_path: Path, method: str
    ) -> None:
        plan, data = planned(make_masks(12, mode="RGB"), epochs=1)
        job = a_job(plan, method)
        result, examples = run.run_one(job, data, tmp_path / "run")
        assert np.isfinite(result.scores["iou"]).all()
        assert len(examples) == min(job.examples, 3)
        for example in examples:
            assert example.image.shape == (20, 24, 3)
            assert example.before.shape == example.returned.shape == example.share.shape
            assert example.after.shape == example.arriving.shape
            assert np.isfinite(example.returned).all()
        case = run.case(job, data)
        case.step().backward()
        assert case.images.shape[1:] == (3, 20, 24)

    def test_another_method_in_the_same_folder(self, make_masks: MakeMasks, tmp_path: Path) -> None:
        plan, data = planned(make_masks(12), epochs=1)
        run.run_one(a_job(plan, "max_upsample"), data, tmp_path / "run")
        with pytest.raises(LabError, match="belongs to another run"):
            run.run_one(a_job(plan, "max_unpool"), data, tmp_path / "run")

    def test_protocol_names_classes_split_and_scores(self, make_masks: MakeMasks) -> None:
        plan, data = planned(make_masks(20), epochs=3)
        described = protocol.describe(plan, data)
        facts = described.facts | protocol.protocol(plan, described)
        assert "0 (86.7% of the pixels), 255 (13.3% of the pixels)" in facts["classes"]
        assert "14 images for training, 2 for validation, 4 for the test" in facts["split"]
        assert "3 epochs of 2 steps, batch size 8" in facts["training"]
        assert "within 1 pixel of its contour" in facts["scores"]

    def test_shifts_are_refused(self) -> None:
        with pytest.raises(LabError, match=r"--shifts .* --task segment has none"):
            Plan.from_options({"task": "segment", "shifts": 2})


def _train(folder: Path, out: Path) -> None:
    torch.set_num_threads(1)
    plan, data = planned(folder, epochs=5)
    run.run_one(a_job(plan), data, out)


@pytest.mark.slow
def test_killed_runs_end_like_one_that_was_left_alone(
    make_masks: MakeMasks, tmp_path: Path, fork_server: Any
) -> None:
    """Killed twice, after a checkpoint each, at another moment of the epoch that follows."""
    folder, out = make_masks(60), RunFolder(tmp_path / "killed")
    for delay in (0.0, 0.1):
        before = out.checkpoint.stat().st_mtime_ns if out.checkpoint.exists() else None
        process: multiprocessing.process.BaseProcess = fork_server.Process(
            target=_train, args=(folder, out.path)
        )
        process.start()
        while process.is_alive():
            time.sleep(0.002)
            if out.checkpoint.exists() and out.checkpoint.stat().st_mtime_ns != before:
                break
        time.sleep(delay)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    plan, data = planned(folder, epochs=5)
    results = [run.run_one(a_job(plan), data, path)[0] for path in (out.path, tmp_path / "whole")]
    for name, values in results[0].scores.items():
        assert np.array_equal(values, results[1].scores[name])
    timeless = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in result.curves]
        for result in results
    ]
    assert timeless[0] == timeless[1]


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(
    make_masks: MakeMasks, tmp_path: Path, fork_server: Any
) -> None:
    """In the first step: later ones can differ, where rounding decides which of two values wins."""
    plan, data = planned(make_masks(60), batch_size=42, epochs=1)
    states = []
    for devices in (1, 2):
        job = replace(a_job(plan), devices=devices)
        # Adam turns roundings of gradients that are almost zero into whole steps.
        job = replace(job, settings=replace(job.settings, optimizer="sgd"))
        start = processes.context("poolgrad.lab.segment.run")
        outcome = processes.call(start, run.run_one, (job, data, tmp_path / str(devices)))
        assert outcome.error is None
        checkpoint = RunFolder(tmp_path / str(devices)).checkpoint
        states.append(torch.load(checkpoint, weights_only=True)["state_dict"])
    torch.testing.assert_close(states[0], states[1], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_comparison(make_masks: MakeMasks, tmp_path: Path, fork_server: Any) -> None:
    """The command, with its costs, tables and report."""
    folder, out = make_masks(24), tmp_path / "out"
    options = ("--pool", "max_unpool,max_upsample", "--seeds", "2", "--epochs", "2", "--quick")
    arguments = ("compare", "--task", "segment", "--data", str(folder), "--out", str(out))
    result = CliRunner().invoke(app, [*arguments, *options])
    assert result.exit_code == 0, result.output
    with open(out / "results.csv") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"max_unpool", "max_upsample"}
    for row in rows.values():
        assert 0 <= float(row["iou_low"]) <= float(row["iou"]) <= float(row["iou_high"]) <= 1
        assert 0 <= float(row["boundary_iou"]) <= 1
        assert float(row["step_ms"]) > 0
        assert float(row["saved_bytes"]) > 0
    assert rows["max_unpool"]["iou_minus_max_upsample"]
    page = (out / "report.html").read_text()
    assert 'id="masks"' in page
    assert (out / "masks.png").stat().st_size > 1000
    protocol = (out / "protocol.md").read_text()
    assert "--task segment" in protocol
    assert "--shifts" not in protocol


class TestPictures:
    def test_colours_of_errors(self) -> None:
        true = np.array([[0, 0, 1, 1, 2, VOID]])
        predicted = np.array([[0, 1, 1, 0, 1, 1]])
        pixels = colour_errors(true, predicted)[0]
        assert len({tuple(pixel) for pixel in pixels}) == 6  # all differ
        assert pixels[2].tolist() == [1, 1, 1]

    def test_colours_of_classes(self) -> None:
        two = colour_mask(np.array([[0, 1]]))[0]
        assert two[1].tolist() == [1, 1, 1]
        many = colour_mask(np.array([[0, 1, 2, 3, VOID]]))[0]
        assert len({tuple(pixel) for pixel in many}) == 5

    def test_nothing_to_draw(self) -> None:
        assert draw_masks([], {}) is None
