"""Measure poolgrad's GPU kernels: equal bits, large inputs, and times beside PyTorch.

Run by gpu.sh. Each time is the median of 20 runs between two events of the device, after 5 that do
not count. The floor of a row is the time of a copy of as many bytes as it must move.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import poolgrad
from poolgrad.bench import networks, steps
from poolgrad.bench.networks import INSTALL, Network
from poolgrad.torch import convert


class Row(NamedTuple):
    """One pooling: ours and PyTorch's of the same arguments."""

    name: str
    shape: tuple[int, ...]
    ours: Callable[[Tensor], Tensor]
    theirs: Callable[[Tensor], Tensor]


def _pair(name: str, dims: int, shape: tuple[int, ...], *args: Any, label: str) -> Row:
    function = f"{name}_pool{dims}d"
    ours, theirs = getattr(poolgrad, function), getattr(functional, function)
    return Row(label, shape, lambda x: ours(x, *args), lambda x: theirs(x, *args))


_IMAGE = (64, 64, 112, 112)
ROWS = [
    _pair("max", 2, _IMAGE, 2, label="max 2x2 stride 2"),
    _pair("max", 2, _IMAGE, 3, 2, 1, label="max 3x3 stride 2"),
    _pair("max", 2, _IMAGE, 3, 1, 1, label="max 3x3 stride 1"),
    _pair("max", 2, (64, 128, 28, 28), 13, 1, 6, label="max 13x13 stride 1"),
    _pair("avg", 2, _IMAGE, 2, label="avg 2x2 stride 2"),
    _pair("avg", 2, _IMAGE, 3, 2, 1, label="avg 3x3 stride 2"),
    _pair("avg", 2, _IMAGE, 3, 1, 1, label="avg 3x3 stride 1"),
    _pair("avg", 2, (64, 128, 28, 28), 13, 1, 6, label="avg 13x13 stride 1"),
    _pair("max", 3, (4, 32, 32, 96, 96), 2, label="max 2x2x2 stride 2"),
    _pair("avg", 3, (4, 32, 32, 96, 96), 2, label="avg 2x2x2 stride 2"),
    _pair("adaptive_max", 2, (64, 128, 50, 50), 7, label="adaptive max 7x7"),
    _pair("adaptive_avg", 2, (64, 128, 50, 50), 7, label="adaptive avg 7x7"),
    _pair("adaptive_max", 2, (64, 512, 28, 28), 1, label="global max"),
    _pair("adaptive_avg", 2, (64, 512, 28, 28), 1, label="global avg"),
]
FORMATS = ("NCHW", "NHWC")
DTYPES = (torch.bfloat16, torch.float32)
COLUMNS = [
    "row", "dtype", "format", "direction", "ours_us", "eager_us", "compiled_us", "floor_us",
    "eager / ours", "floor / ours",
]  # fmt: skip


def _input(row: Row, dtype: torch.dtype, layout: str, device: str) -> Tensor:
    x = torch.randn(row.shape, device=device).to(dtype)
    if layout == "NHWC":
        kinds = {4: torch.channels_last, 5: torch.channels_last_3d}
        x = x.to(memory_format=kinds[x.dim()])
    return x.requires_grad_()


def _microseconds(run: Callable[[], Any]) -> float:
    times = []
    for turn in range(25):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if turn >= 5:
            times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def _directions(pool: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, float]:
    y = pool(x)
    gy = torch.randn_like(y)
    with torch.no_grad():
        forward = _microseconds(lambda: pool(x))
    backward = _microseconds(lambda: torch.autograd.grad(y, x, gy, retain_graph=True))
    both = _microseconds(lambda: torch.autograd.grad(pool(x), x, gy))
    return {"forward": forward, "backward": backward, "both": both}


def _floor(x: Tensor, y: Tensor, turns: int) -> float:
    count = (x.nbytes + y.nbytes) * turns // 2
    source = torch.empty(count, dtype=torch.uint8, device=x.device)
    target = torch.empty_like(source)
    return _microseconds(lambda: target.copy_(source))


def measure(out: Path) -> None:
    """Time every row and write gpu.csv and gpu.png."""
    lines: list[dict[str, Any]] = []
    for row in ROWS:
        for dtype in DTYPES:
            for layout in FORMATS:
                x = _input(row, dtype, layout, "cuda")
                ours, eager = _directions(row.ours, x), _directions(row.theirs, x)
                compiled = _directions(torch.compile(row.theirs), x)
                floors = _floor(x, row.ours(x), 1), _floor(x, row.ours(x), 2)
                for direction, time in ours.items():
                    floor = floors[direction == "both"]
                    numbers = (time, eager[direction], compiled[direction], floor)
                    ratios = (eager[direction] / time, floor / time)
                    key = (row.name, str(dtype).removeprefix("torch."), layout, direction)
                    lines.append(dict(zip(COLUMNS, (*key, *numbers, *ratios), strict=True)))
                    print(*lines[-1].values(), sep="\t", flush=True)
    with (out / "gpu.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(lines)
    _picture(lines, out / "gpu.png")
    print("device:", torch.cuda.get_device_name(), "; written:", out / "gpu.csv", out / "gpu.png")


NETWORKS = ("VGG-16", "ResNet-50", "3-D U-Net")
NETWORK_COLUMNS = ["network", "change", "step_us", "peak_bytes", "kept_bytes"]


def measure_networks(out: Path) -> None:
    """Time training steps, unchanged and converted, with their memory; write gpu-networks.csv.

    `peak_bytes` is allocated at once on the device, `kept_bytes` between forward and backward.
    """
    lines = []
    for network in chosen_networks():
        if not find_spec(network.package):
            print(f"skipped: {network.title}: {INSTALL}")
            continue
        x = torch.randn(network.shape, device="cuda")
        for change in ("PyTorch", network.change):
            model = network.make().cuda()
            if change != "PyTorch":
                convert(model, fuse="fuse" in change)
            call = (partial(steps.train, model, x), nullcontext)
            kept = steps.kept_bytes(call, model)
            torch.cuda.reset_peak_memory_stats()
            steps.outcome(call)
            peak = torch.cuda.max_memory_allocated()
            time = _microseconds(partial(steps.outcome, call))
            lines.append((network.title, change, time, peak, kept))
            print(*lines[-1], sep="\t", flush=True)
    with (out / "gpu-networks.csv").open("w", newline="") as file:
        csv.writer(file).writerows([NETWORK_COLUMNS, *lines])


def chosen_networks() -> list[Network]:
    """Those of `poolgrad bench --networks` that are trained and named above."""
    return [n for n in networks.NETWORKS if n.training and n.title in NETWORKS]


def _picture(lines: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [line for line in lines if line["direction"] == "both"]
    names = [f"{line['row']} {line['dtype']} {line['format']}" for line in shown]
    figure, axes = pyplot.subplots(figsize=(8, 0.2 * len(shown) + 1), layout="constrained")
    axes.barh(names, [line["eager / ours"] for line in shown])
    axes.axvline(1, color="black")
    axes.set_xlabel("PyTorch's time / ours, forward and backward")
    axes.invert_yaxis()
    figure.savefig(path, dpi=120)


def check_bits() -> None:
    """Ten backward passes give the same bits; an input of more than 2**31 elements is right."""
    for row in ROWS:
        x = _input(row, torch.bfloat16, "NCHW", "cuda")
        y = row.ours(x)
        gy = torch.randn_like(y)
        first = torch.autograd.grad(y, x, gy, retain_graph=True)[0].view(torch.int16)
        for _ in range(9):
            again = torch.autograd.grad(y, x, gy, retain_graph=True)[0].view(torch.int16)
            assert torch.equal(first, again), row.name
        print("equal bits in ten runs:", row.name)
    large = torch.zeros(2**31 + 2**20, dtype=torch.uint8, device="cuda").view(1, -1, 1024)
    large[0, -1, -1] = 7
    y = poolgrad.max_pool1d(large, 2)
    assert y[0, -1, -1] == 7
    assert int(y.sum(dtype=torch.int64)) == 7
    print("more than 2^31 elements: right")


def run_few() -> None:
    """Each row once, on a small input, for compute-sanitizer."""
    for row in ROWS:
        x = _input(row._replace(shape=(1, 4, *row.shape[2:])), torch.float32, "NCHW", "cuda")
        row.ours(x).sum().backward()


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("bits", "few", "times", "networks"))
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    if given.dry_run:
        from poolgrad.torch.triton.variants import print_model

        for row in ROWS:  # what both make of the arguments, without numbers
            x = torch.empty(row.shape, device="meta")
            assert row.ours(x).shape == row.theirs(x).shape, row.name
        print(f"{len(ROWS)} rows x {len(DTYPES)} dtypes x {len(FORMATS)} formats would be timed")
        print("networks that would be timed:", *(f"{n.name};" for n in chosen_networks()))
        print_model()
    elif not torch.cuda.is_available():
        sys.exit("there is no GPU that PyTorch can use; --dry-run needs none")
    else:
        runs: dict[str, Callable[[], None]] = {
            "bits": check_bits,
            "few": run_few,
            "times": partial(measure, given.out),
            "networks": partial(measure_networks, given.out),
        }
        runs[given.what]()


if __name__ == "__main__":
    main()
