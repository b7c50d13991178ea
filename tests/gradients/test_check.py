"""`poolgrad check` passes, and fails for wrong gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from poolgrad.functional import FUNCTIONS
from poolgrad.tools import check
from poolgrad.tools.check.cases import Case, cases
from poolgrad.tools.check.gradients import FRONT_ENDS, FrontEnd, Gradients, installed


# `.ci/run` runs all of `poolgrad check`: arrays of NumPy along one axis are enough here.
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name.endswith("1d")])
def test_every_gradient_holds(name: str) -> None:
    rows = [
        check.check_function(name, "numpy", dtype, last)
        for dtype in check.TOLERANCE
        for last in (False, True)
    ]
    for row in rows:
        assert row.ok, row
        expected = {"textbook", "differences"} if row.dtype == "float64" else {"textbook"}
        assert expected <= row.errors.keys()
        assert ("PyTorch" in row.errors) == ("torch" in installed())


def test_every_argument_is_given() -> None:
    """A new argument needs a line in the table of what functions are asked."""
    without_gradient = {"x", "out", "dim", "return_indices", "quantization"}
    for name, function in FUNCTIONS.items():
        asked = list(cases(name, "float64", channels_last=True))
        given = set().union(*(case.kwargs for case in asked))
        lacking = inspect.signature(function).parameters.keys() - given - without_gradient
        elsewhere = {"generator"} if name.startswith("fractional") else set()  # samples are given
        elsewhere |= {"output_size"} if name.startswith("max_unpool") else set()
        assert lacking == elsewhere, name


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs_are_far_from_kinks(name: str, dtype: str) -> None:
    for case in cases(name, dtype, channels_last=False):
        sizes = np.sort(np.abs(case.x).ravel())
        assert case.x.dtype == dtype
        assert sizes[0] > 1e-3
        assert np.diff(sizes).min() > 1e-3


def wrong_gradient(answer: Gradients) -> Gradients:
    return answer._replace(gx=answer.gx * (1 + 1e-4))


def wrong_output(answer: Gradients) -> Gradients:
    return answer._replace(y=answer.y + 1e-3)


def wrong_parameter(answer: Gradients) -> Gradients:
    return answer._replace(parameters={k: v * 1.001 for k, v in answer.parameters.items()})


def no_parameter(answer: Gradients) -> Gradients:
    return answer._replace(parameters={})


def not_a_number(answer: Gradients) -> Gradients:
    return answer._replace(gx=answer.gx * np.nan)


def wrong_shape(answer: Gradients) -> Gradients:
    return answer._replace(gx=answer.gx[:1])


WRONG = [wrong_gradient, wrong_output, wrong_parameter, no_parameter, not_a_number, wrong_shape]


def broken(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Gradients], Gradients]) -> None:
    pool, answer, _ = FRONT_ENDS["numpy"]

    def spoiled(case: Case, gy: Any) -> Gradients:
        return spoil(answer(case, gy))

    monkeypatch.setitem(FRONT_ENDS, "numpy", FrontEnd(pool, spoiled))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("spoil", WRONG)
def test_what_is_wrong_is_noticed(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Gradients], Gradients], dtype: str
) -> None:
    broken(monkeypatch, spoil)
    row = check.check_function("lp_pool1d", "numpy", dtype, True)
    assert not row.ok
    assert not row.errors["textbook"].ok
    assert "lp_pool1d(x of shape" in row.errors["textbook"].call
    if dtype == "float64" and spoil is not wrong_output:
        assert not row.errors["differences"].ok


def test_an_exception_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(answer: Gradients) -> Gradients:
        raise RuntimeError("out of order")

    broken(monkeypatch, fails)
    row = check.check_function("max_pool1d", "numpy", "float32", False)
    assert not row.ok
    assert row.failure.startswith("RuntimeError: out of order, in max_pool1d(x of shape")


def command(monkeypatch: pytest.MonkeyPatch, *names: str, layers: tuple[str, ...] = ()) -> Any:
    """`poolgrad check` of some functions and layers, in a narrow terminal."""
    testing = pytest.importorskip("typer.testing")
    from poolgrad.cli.commands import app

    monkeypatch.setattr(check, "FUNCTIONS", {name: FUNCTIONS[name] for name in names})
    monkeypatch.setattr(check, "layer_names", lambda: list(layers))
    return testing.CliRunner().invoke(app, ["check"], env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_the_command_prints_a_line_for_each_function(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "fractional_max_pool2d", "max_pool1d"
    result = command(monkeypatch, *names)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in result.output
    total = sum(4 for name in names for front_end in installed() if check.has(name, front_end))
    assert lines[-1].startswith(f"{total} of {total} checks passed: one per function")
    table = [line.split() for line in lines if line.rstrip().endswith("ok")]
    assert len(table) == total // 4
    assert table[0][:2] == ["fractional_max_pool2d", "numpy"]


@pytest.mark.skipif("torch" not in installed(), reason="PyTorch is not installed")
def test_the_command_prints_a_line_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(check.layer_names())
    monkeypatch.setattr(check, "check_layer", lambda name: check.Row(name, "torch", "", ""))
    result = command(monkeypatch, layers=names)
    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert max(map(len, lines)) <= 80
    assert "…" not in result.output
    assert [line.split()[0] for line in lines if line.rstrip().endswith("ok")] == list(names)
    assert lines[-1] == (
        f"{len(names)} of {len(names)} checks passed: "
        "one per function, library, dtype, layout; per layer"
    )


def test_the_command_fails_if_something_does(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, wrong_gradient)
    result = command(monkeypatch, "max_pool1d", "min_pool1d")
    assert result.exit_code == 1
    assert result.output.count("FAILED") == 2
    said = " ".join(result.output.split())
    assert (
        "max_pool1d, numpy, float32, channels last: relative error 1e-04 against the textbook"
        " definition, at most 2e-06 is accepted: max_pool1d(x of shape"
    ) in said
    assert "channels first: relative error 1e-04 against finite differences, at most" in said
    total = 8 * len(installed())
    assert f"{total - 8} of {total} checks passed" in said
