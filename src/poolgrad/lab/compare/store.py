"""Writes finished runs to their folders and reads them again."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from poolgrad.lab.compare.results import Array, Example, RunResult, ShiftCurve
from poolgrad.lab.folder import RunFolder, read_json, write_atomic
from poolgrad.lab.settings import LabError, check_entries, first_line

_RESULT: dict[str, tuple[type, ...]] = {
    "method": (str,),
    "head": (str,),
    "seed": (int,),
    "seconds": (float, int),
    "parameters": (int,),
    "curves": (list,),
    "scores": (list,),
    "shifts": (list, type(None)),
    "examples": (list,),
    "versions": (dict,),
}
_PREDICTIONS, _EXAMPLES = "predictions.npz", "examples.npz"
_PLANES = ("image", "before", "after", "arriving", "returned", "share", "winners",
           "true_mask", "predicted_mask")  # fmt: skip
_SHIFT_ARRAYS = tuple(f.name for f in fields(ShiftCurve) if f.type == "FloatArray")


def save_run(
    path: Path, result: RunResult, examples: Sequence[Example], versions: Mapping[str, str]
) -> None:
    """Write a finished run; `result.json`, written last, marks it as finished.

    Raises
    ------
    LabError
        If the system refuses to write; the message names the file.
    """
    folder = RunFolder(path)
    arrays: dict[str, Array] = {"labels": result.labels, "predicted": result.predicted}
    arrays |= {f"score_{name}": values for name, values in result.scores.items()}
    if result.shifts is not None:
        arrays |= {name: getattr(result.shifts, name) for name in _SHIFT_ARRAYS}
    write_atomic(path / _PREDICTIONS, _packed(arrays))
    planes = {
        f"{name}_{k}": getattr(example, name)
        for k, example in enumerate(examples)
        for name in _PLANES
        if getattr(example, name) is not None
    }
    write_atomic(path / _EXAMPLES, _packed(planes))
    if result.curves and not folder.metrics.exists():
        folder.write_metrics(result.curves)
    folder.write_result(
        {
            "method": result.method,
            "head": result.head,
            "seed": result.seed,
            "seconds": round(result.seconds, 3),
            "parameters": result.parameters,
            "curves": result.curves,
            "scores": list(result.scores),
            "shifts": list(result.shifts.distances) if result.shifts else None,
            "examples": [[example.label, example.predicted] for example in examples],
            "versions": dict(versions),
        }
    )


def load_run(path: Path) -> tuple[RunResult, list[Example]] | None:
    """Read a finished run; None if there is none.

    Raises
    ------
    LabError
        If its files are damaged or not ours; the message names the file.
    """
    folder = RunFolder(path)
    if not folder.result.exists():
        return None
    stored = check_entries(read_json(folder.result), _RESULT, folder.result)
    try:
        arrays = _unpacked(path / _PREDICTIONS)
        planes = _unpacked(path / _EXAMPLES)
        shifts = None
        if stored["shifts"] is not None:
            curves = {name: arrays[name].astype(np.float64) for name in _SHIFT_ARRAYS}
            shifts = ShiftCurve(
                distances=tuple(int(distance) for distance in stored["shifts"]),
                circular_consistency=float(curves["circular_agreement"].mean()),
                cropped_consistency=float(curves["cropped_agreement"].mean()),
                **curves,
            )
        result = RunResult(
            method=stored["method"],
            head=stored["head"],
            seed=stored["seed"],
            labels=arrays["labels"].astype(np.int64),
            predicted=arrays["predicted"].astype(np.int64),
            scores={name: arrays[f"score_{name}"].astype(np.float64) for name in stored["scores"]},
            curves=[{str(k): float(v) for k, v in row.items()} for row in stored["curves"]],
            shifts=shifts,
            seconds=float(stored["seconds"]),
            parameters=stored["parameters"],
        )
        examples = [
            Example(
                method=stored["method"],
                label=str(label),
                predicted=str(predicted),
                **{name: planes.get(f"{name}_{k}") for name in _PLANES},  # type: ignore[arg-type]
            )
            for k, (label, predicted) in enumerate(stored["examples"])
        ]
    except LabError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LabError(
            f"{path} is damaged ({type(error).__name__}: {error}); remove it to repeat the run"
        ) from error
    return result, examples


def _packed(arrays: Mapping[str, Array]) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def _unpacked(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # zip, zlib and npy headers have different exceptions
        raise LabError(
            f"{path} cannot be read: {first_line(error)}; remove its folder to repeat the run"
        ) from error
