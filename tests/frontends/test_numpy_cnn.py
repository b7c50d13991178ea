"""examples/numpy_cnn.py learns, its gradients are right, and its notebook runs."""

from __future__ import annotations

import ast
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT, NOTEBOOK = EXAMPLES / "numpy_cnn.py", EXAMPLES / "numpy_cnn.ipynb"
POOLS = ["max", "avg", "log_mean_exp", "soft", "median"]


@pytest.fixture(scope="module")
def cnn() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.parametrize("optimiser", ["sgd", "adagrad", "rmsprop"])
def test_each_optimiser_trains_the_network(cnn: dict[str, Any], optimiser: str) -> None:
    x, x_test, labels, labels_test = cnn["load"]()
    network = cnn["Network"]()
    history = cnn["train"](network, x, labels, cnn[optimiser])
    assert history[-1] < history[0] / 5
    assert (network.forward(x_test).argmax(axis=1) == labels_test).mean() >= 0.95


@pytest.mark.parametrize("pool", POOLS)
def test_gradients_equal_finite_differences(cnn: dict[str, Any], pool: str) -> None:
    x = np.random.default_rng(1).standard_normal((4, 1, 8, 8))
    assert cnn["check"](cnn["Network"](pool), x, np.arange(4)) < 1e-6


@pytest.mark.parametrize("layer", [0, 2])  # the convolution; the pooling
def test_the_check_finds_a_wrong_gradient(cnn: dict[str, Any], layer: int) -> None:
    """Also of one example only: a wrong gradient must not be hidden by the average."""
    network = cnn["Network"]()
    backward = network.layers[layer].backward

    def wrong(gy: Any) -> Any:
        gx = backward(gy)
        gx[0] *= 1.001
        return gx

    network.layers[layer].backward = wrong
    x = np.random.default_rng(1).standard_normal((2, 1, 8, 8))
    assert cnn["check"](network, x, np.arange(2)) > 1e-5


def test_only_gradients_of_parameters_are_averaged_over_the_batch(cnn: dict[str, Any]) -> None:
    x, _, labels, _ = cnn["load"]()
    network = cnn["Network"]()
    network.losses(x[:3], labels[:3])
    gx, gradients = network.backward()
    alone = []
    for n in range(3):
        network.losses(x[n : n + 1], labels[n : n + 1])
        alone.append(network.backward())
    np.testing.assert_allclose(gx, np.concatenate([g for g, _ in alone]), rtol=1e-10)
    for together, *each in zip(gradients, *(g for _, g in alone), strict=True):
        np.testing.assert_allclose(together, np.mean(each, axis=0), rtol=1e-10, atol=1e-14)


def test_the_command_line(cnn: dict[str, Any], monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["numpy_cnn.py", "--check", "--pool", "log_mean_exp"])
    with pytest.raises(SystemExit) as end:
        cnn["main"]()
    assert end.value.code == 0
    assert "largest relative error" in capsys.readouterr().out
    options = ["--epochs", "2", "--optimiser", "rmsprop", "--pool", "avg"]
    monkeypatch.setattr(sys, "argv", ["numpy_cnn.py", *options])
    cnn["main"]()
    *epochs, accuracy = capsys.readouterr().out.splitlines()
    assert len(epochs) == 2
    assert float(accuracy.removeprefix("test accuracy: ")) > 0.5


def definitions(source: str) -> dict[str, str]:
    """The source of every function and class."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = (d for d in ast.parse(source).body if isinstance(d, kinds))
    return {d.name: ast.get_source_segment(source, d) or "" for d in found}


def test_the_notebook_has_the_definitions_of_the_script_and_small_outputs() -> None:
    cells = [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    notebook = definitions("\n".join("".join(c["source"]) for c in cells))
    script = definitions(SCRIPT.read_text())
    del script["main"], notebook["show"]
    assert notebook == script
    assert NOTEBOOK.stat().st_size < 200_000
    outputs = [o for c in cells for o in c["outputs"]]
    assert sum("image/png" in o.get("data", {}) for o in outputs) >= 6
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]


@pytest.mark.slow
def test_the_notebook_runs() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    pictures = [c for c in notebook.cells if c.cell_type == "code" and "plt." in c.source]
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    for cell in pictures[1:]:  # the first imports matplotlib
        assert any("image/png" in o.get("data", {}) for o in cell.outputs), cell.source
    printed = "".join(o.text for c in notebook.cells for o in c.get("outputs", []) if "text" in o)
    assert "avg: largest relative error below 1e-6: True" in printed
