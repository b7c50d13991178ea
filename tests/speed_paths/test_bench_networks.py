"""`poolgrad bench --networks`: what it measures and prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
testing = pytest.importorskip("typer.testing", reason="the lab extra is not installed")
pytest.importorskip("matplotlib", reason="the lab extra is not installed")
pytest.importorskip("rich", reason="the lab extra is not installed")

from torch import nn  # noqa: E402

from poolgrad import core  # noqa: E402
from poolgrad.cli.commands import app  # noqa: E402
from poolgrad.tools.bench import measure_network, networks, report  # noqa: E402
from poolgrad.tools.bench.networks import Network  # noqa: E402
from poolgrad.torch import convert  # noqa: E402


def make(channels: int = 2) -> nn.Module:
    """A network that a test can wait for."""
    return nn.Sequential(nn.Conv2d(1, channels, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5))


SMALL = Network("Small", __name__, "make", (2, 1, 10, 10), arguments={"channels": 4})
TRAINED = replace(SMALL, training=True)
FUSED = replace(TRAINED, change="convert(fuse=True)")


def bench(out: Path, *arguments: str) -> Any:
    given = ["bench", "--networks", "--quick", "--threads", "1", "--out", str(out), *arguments]
    return testing.CliRunner().invoke(app, given, env={"COLUMNS": "150", "NO_COLOR": "1"})


@pytest.mark.parametrize("network", [SMALL, TRAINED, FUSED, replace(TRAINED, change="accelerate")])
def test_a_network_and_itself_with_our_line(network: Network) -> None:
    result = measure_network.measure(network, 1, 2)
    assert result.isa == core.instruction_set()
    assert result.apart == 0
    assert [*result.peers] == ["PyTorch"]
    assert result.floor is None
    if not network.training:
        assert result.kept is None
        return
    # By both, in floats: the input (2x10x10), ReLU's output (2x4x8x8), dropout's mask and output
    # (2x4x4x4). Beside these PyTorch keeps indices of 8 bytes for each output, we routes of one.
    # Fused, ReLU's output is not kept.
    both, outputs = 4 * (200 + 512 + 128 + 128), 128
    ours = both + outputs - 4 * 512 * (network is FUSED)
    assert result.kept == ours / (both + 8 * outputs)


def test_other_results_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(network: nn.Module, **how: bool) -> None:
        with torch.no_grad():
            network[0].weight[0] += 1

    monkeypatch.setattr(measure_network, "convert", spoil)
    result = measure_network.measure(TRAINED, 1, 1)
    assert result.apart is not None
    assert result.apart > 0.01


def test_names_and_packages() -> None:
    names = [network.name for network in networks.NETWORKS]
    assert len({*names}) == len(names)
    packages = {network.package for network in networks.NETWORKS}
    assert all(package in networks.INSTALL for package in packages - {"poolgrad"})


def test_vgg16_has_its_parameters() -> None:
    with torch.device("meta"):
        network = networks.vgg16()
    assert sum(p.numel() for p in network.parameters()) == 138_357_544  # of Simonyan & Zisserman
    assert len(convert(network, fuse=True).fused) == 5


def test_a_run_writes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "NETWORKS", (SMALL, TRAINED))
    targets = tmp_path / "targets.csv"
    targets.write_text(f'name,floor,faster,share,seconds,kept,apart\n"{TRAINED.name}",,,,,0.1,\n')
    done = bench(tmp_path, "--targets", str(targets))
    assert done.exit_code == 0, done.output
    written = report.read_csv(tmp_path / "networks.csv")
    assert [result.name for result in written.results] == [SMALL.name, TRAINED.name]
    assert written.results[0].kept is None
    assert written.results[1].limits.kept == 0.1
    assert not written.results[1].met
    shown = " ".join(done.output.split())
    for said in (
        "memory / PyTorch's compares the bytes kept for the backward pass, without the parameters.",
        "relative difference is the norm of the difference from PyTorch's outputs, and in a",
        "speedup is the time of the other library divided by poolgrad's.",
    ):
        assert said in shown
    assert "floor" not in shown
    text = report.markdown(written)
    assert "floor" not in text
    assert "without the parameters" in text


@pytest.mark.parametrize(
    ("arguments", "module", "said"),
    [
        (
            ["--rows", "typo"],
            __name__,
            "no network has 'typo' in its name; one is named 'Small",
        ),
        ([], "nobody_has_this.models", "comes from nobody_has_this, which is not installed: pip"),
    ],
)
def test_errors_say_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], module: str, said: str
) -> None:
    monkeypatch.setattr(networks, "NETWORKS", (replace(SMALL, module=module),))
    refused = bench(tmp_path / "out", *arguments)
    assert refused.exit_code == 2
    assert said in refused.output
    assert not (tmp_path / "out").exists()
