"""Measures poolgrad's GPU kernels: times beside PyTorch, training steps, equal bits, large inputs.

gpu.sh runs it; gpu_table.py writes its tables. Each time is the median of 20 runs, after 5 that do
not count:

- ``*_us``: the device's time of a call, which is replayed from a CUDA graph after the L2 cache has
  been overwritten. It does not contain the time of the host.
- ``*_call_us``: from a call on an idle device to its end, with the time of the host.
- ``floor_us``: the device's time to copy as many bytes as the call must read and write.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import gpu_table
import torch
from gpu_table import DIRECTIONS, Line
from torch import Tensor
from torch.nn import functional

import poolgrad
from poolgrad.tools.bench import networks, steps
from poolgrad.tools.bench.networks import INSTALL, Network
from poolgrad.torch import convert

Pool = Callable[[Tensor], Tensor]


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
FORMATS = {"NCHW": {}, "NHWC": {4: torch.channels_last, 5: torch.channels_last_3d}}
DTYPES = (torch.bfloat16, torch.float32)


class Deadline:
    """The time at which a step stops, so that it ends by itself before gpu.sh ends it."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def passed(self, name: str) -> bool:
        """Whether it is too late to begin `name`, which is printed then."""
        late = time.monotonic() > self._end
        if late:
            print("no time is left for:", name, flush=True)
        return late


class Times(NamedTuple):
    """Microseconds of a call."""

    device: float
    call: float


def timed(run: Callable[[], Any]) -> Times:
    """Return the times of a call; the current stream must not be the default one."""
    return Times(_replayed(run), _called(run))


def _replayed(run: Callable[[], Any]) -> float:
    for _ in range(3):
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def microseconds() -> float:
        _larger_than_caches().zero_()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    return _median(microseconds)


@cache
def _larger_than_caches() -> Tensor:
    return torch.empty(2**28, dtype=torch.uint8, device="cuda")


def _called(run: Callable[[], Any]) -> float:
    def microseconds() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e6

    return _median(microseconds)


def _median(measure: Callable[[], float]) -> float:
    return statistics.median([measure() for _ in range(25)][5:])


def side_stream(device: str) -> AbstractContextManager[Any]:
    """Select a stream that can be captured; gradients run on the stream of the forward pass."""
    return torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else nullcontext()


def make_input(row: Row, dtype: torch.dtype, memory: str, device: str) -> Tensor:
    """Return a random input that needs a gradient."""
    x = torch.randn(row.shape, device=device).to(dtype)
    memory_format = FORMATS[memory].get(x.dim(), torch.contiguous_format)
    return x.to(memory_format=memory_format).requires_grad_()


def _directions(pool: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Times]:
    y = pool(x)
    gy = torch.randn_like(y)
    with torch.no_grad():
        forward = timed(lambda: pool(x))
    backward = timed(lambda: torch.autograd.grad(y, x, gy, retain_graph=True))
    both = timed(lambda: torch.autograd.grad(pool(x), x, gy))
    return dict(zip(DIRECTIONS, (forward, backward, both), strict=True))


def _floors(row: Row, x: Tensor) -> dict[str, float]:
    """Return the time to copy what a call must move: arrays, and a byte for each maximum."""
    y = row.ours(x)
    routes = y.numel() if "max" in row.name else 0
    forward = x.nbytes + y.nbytes
    moved = (forward, forward + routes, 2 * (forward + routes))
    return {d: _copy(n, x.device) for d, n in zip(DIRECTIONS, moved, strict=True)}


@cache
def _copy(moved: int, device: torch.device) -> float:
    source = torch.empty(moved // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return timed(lambda: target.copy_(source)).device


def _lines(row: Row, rival: Callable[[Tensor], Tensor], x: Tensor) -> Iterator[Line]:
    ours, others, floors = _directions(row.ours, x), _directions(rival, x), _floors(row, x)
    for direction, mine in ours.items():
        other, floor = others[direction], floors[direction]
        yield {
            "direction": direction,
            "ours_us": mine.device,
            "rival_us": other.device,
            "floor_us": floor,
            "rival / ours": other.device / mine.device,
            "floor / ours": floor / mine.device,
            "ours_call_us": mine.call,
            "rival_call_us": other.call,
        }


def measure(out: Path, deadline: Deadline, compiled: bool = False, device: str = "cuda") -> int:
    """Time every row beside eager PyTorch, or bfloat16 beside torch.compile; return the failures.

    A failure is a line with an error, or a configuration that no time was left for.
    """
    failures = 0
    path = out / (gpu_table.COMPILED if compiled else gpu_table.TIMES)
    dtypes, formats = (DTYPES[:1], ["NCHW"]) if compiled else (DTYPES, [*FORMATS])
    with gpu_table.table(path, gpu_table.COLUMNS) as write, side_stream(device):
        for dtype, row, memory in product(dtypes, ROWS, formats):
            key = {"row": row.name, "dtype": str(dtype).removeprefix("torch."), "format": memory}
            if deadline.passed(" ".join(key.values())):
                failures += 1
                continue
            try:
                rival = row.theirs
                if compiled:  # all rows share a code object, whose compilations are limited
                    torch._dynamo.reset()
                    rival = torch.compile(rival, dynamic=False)
                for line in _lines(row, rival, make_input(row, dtype, memory, device)):
                    missed = [] if compiled else gpu_table.missed_goals(key | line)
                    write(key | line | {"missed": "; ".join(missed)})
            except Exception as error:
                failures += 1
                write(key | {"error": _first_line(error)})
    return failures


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


UNCHANGED = "PyTorch"  # the change of a network that is not converted
# The batch of each network; that of `poolgrad bench` is too small for a GPU.
BATCHES = {"VGG-16": 64, "ResNet-50": 64, "3-D U-Net": 4}


def measure_networks(out: Path, deadline: Deadline, device: str = "cuda") -> int:
    """Time training steps, unchanged and converted, with their memory; return the failures.

    They run in bfloat16 (autocast), channels last, with cuDNN's fastest convolutions. `peak_bytes`
    is the most that is allocated at once, `kept_bytes` what is kept for the backward pass.
    """
    failures = 0
    fastest = torch.backends.cudnn.flags(enabled=True, benchmark=True)
    with fastest, gpu_table.table(out / gpu_table.NETWORKS, gpu_table.NETWORK_COLUMNS) as write:
        for network, change in chosen_networks():
            key = {"network": network.title, "batch": BATCHES[network.title], "change": change}
            if deadline.passed(f"{network.title}, {change}"):
                failures += 1
                continue
            try:
                if not find_spec(network.package):
                    raise ModuleNotFoundError(INSTALL)
                write(key | _step(network, change, device))
            except Exception as error:
                failures += 1
                write(key | {"error": _first_line(error)})
            gc.collect()
            torch.cuda.empty_cache()
    return failures


def _step(network: Network, change: str, device: str) -> Line:
    x = torch.randn(BATCHES[network.title], *network.shape[1:], device=device)
    memory_format = FORMATS["NHWC"][x.dim()]
    x = x.to(memory_format=memory_format)
    model = network.make().to(device, memory_format=memory_format)
    if change != UNCHANGED:
        convert(model, fuse="fuse" in change)
    call = partial(steps.train, model, x), partial(torch.autocast, device, torch.bfloat16)
    kept = steps.kept_bytes(call, model)
    torch.cuda.reset_peak_memory_stats()
    steps.outcome(call)
    peak = torch.cuda.max_memory_allocated()
    return {
        "step_us": _called(partial(steps.outcome, call)), "peak_bytes": peak, "kept_bytes": kept,
    }  # fmt: skip


def _without_kernels() -> list[tuple[str, Tensor, Pool, Pool | None]]:
    """Return poolings that have no kernels: name, input, ours and PyTorch's or torchvision's."""
    x = torch.randn(_IMAGE, device="cuda")
    pooled, indices = functional.max_pool2d(x, 2, return_indices=True)
    features = torch.randn(8, 256, 64, 64, device="cuda")
    corners = torch.rand(512, 4, device="cuda").mul(32) + torch.tensor(
        [0, 0, 32, 32], device="cuda"
    )
    images = torch.randint(8, (512, 1), device="cuda")
    boxes = torch.cat([images.to(corners.dtype), corners], 1)
    align = roi_pool = None
    if find_spec("torchvision"):
        from torchvision import ops

        align, roi_pool = ops.roi_align, ops.roi_pool
    return [
        ("median 3x3 stride 2", x, lambda x: poolgrad.median_pool2d(x, 3, 2, 1), None),
        ("stochastic 2x2", x.abs(), lambda x: poolgrad.stochastic_pool2d(x, 2), None),
        ("max 2x2 split ties", x, lambda x: poolgrad.max_pool2d(x, 2, ties="split"), None),
        (
            "fractional max 2x2", x, lambda x: poolgrad.fractional_max_pool2d(x, 2, 56),
            lambda x: functional.fractional_max_pool2d(x, 2, 56),
        ),
        (
            "max-unpooling 2x2", pooled, lambda x: poolgrad.max_unpool2d(x, indices, 2),
            lambda x: functional.max_unpool2d(x, indices, 2),
        ),
        (
            "roi_align 7x7", features, lambda x: poolgrad.roi_align(x, boxes, 7),
            align and (lambda x: align(x, boxes, 7)),
        ),
        (
            "roi_pool 7x7", features, lambda x: poolgrad.roi_pool(x, boxes, 7),
            roi_pool and (lambda x: roi_pool(x, boxes, 7)),
        ),
    ]  # fmt: skip


def measure_without_kernels(out: Path, deadline: Deadline) -> int:
    """Time operators without kernels, with the host's work, and their memory; return the failures.

    `peak_bytes` is what a forward and backward pass allocate at once beside the input.
    """
    failures = 0
    with gpu_table.table(out / gpu_table.WITHOUT, gpu_table.WITHOUT_COLUMNS) as write:
        for name, x, *pools in _without_kernels():
            for library, pool in zip(("poolgrad", "PyTorch"), pools, strict=True):
                if pool is None:
                    continue
                key = {"row": name, "library": library}
                if deadline.passed(" ".join(key.values())):
                    failures += 1
                    continue
                try:
                    write(key | _passes(pool, x.requires_grad_()))
                except Exception as error:
                    failures += 1
                    write(key | {"error": _first_line(error)})
    return failures


def _passes(pool: Pool, x: Tensor) -> Line:
    begin = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y = pool(x)
    gy = torch.randn_like(y)
    torch.autograd.grad(y, x, gy, retain_graph=True)
    peak = torch.cuda.max_memory_allocated() - begin
    with torch.no_grad():
        forward = _called(lambda: pool(x))
    backward = _called(lambda: torch.autograd.grad(y, x, gy, retain_graph=True))
    return {"forward_us": forward, "backward_us": backward, "peak_bytes": peak}


def chosen_networks() -> list[tuple[Network, str]]:
    """Return those of `poolgrad bench --networks` that are trained, unchanged and as converted."""
    trained = [n for n in networks.NETWORKS if n.training and n.title in BATCHES]
    changes = [(n, change) for n in trained for change in (UNCHANGED, n.change)]
    return [*{(n.title, change): (n, change) for n, change in changes}.values()]


def check_bits(deadline: Deadline, device: str = "cuda") -> int:
    """Check ten backward passes of every row, and large inputs; return the number of failures.

    tests/gpu/test_device.py does the same for every public function, on small inputs.
    """
    checks: dict[str, Callable[[], None]] = {
        f"ten backward passes: {row.name} {memory}": partial(
            _assert_equal_bits, row, memory, device
        )
        for row, memory in product(ROWS, FORMATS)
    }
    checks |= {
        "2^31 elements: 1-D": partial(_assert_large_signal, device),
        "2^31 elements: channels last, backward": partial(_assert_large_images, device),
        "2^31 elements: indices": partial(_assert_large_indices, device),
    }
    failures = 0
    for name, check in checks.items():
        if deadline.passed(name):
            failures += 1
            continue
        try:
            check()
            print("right:", name, flush=True)
        except Exception as error:
            failures += 1
            print("FAILED:", name, _first_line(error), flush=True)
    return failures


def _assert_equal_bits(row: Row, memory: str, device: str) -> None:
    x = make_input(row, torch.bfloat16, memory, device)
    y = row.ours(x)
    gy = torch.randn_like(y)

    def bits() -> Tensor:
        return torch.autograd.grad(y, x, gy, retain_graph=True)[0].view(torch.int16)

    first = bits()
    assert all(torch.equal(first, bits()) for _ in range(9)), "the bits differ"


def _assert_large_signal(device: str, size: int = 2**31 + 2**20) -> None:
    x = torch.zeros(size, dtype=torch.uint8, device=device).view(1, -1, 1024)
    x[0, -1, -1] = 7
    y = poolgrad.max_pool1d(x, 2)
    assert y[0, -1, -1] == 7, "the last output"
    assert int(y.sum(dtype=torch.int64)) == 7, "the other outputs"


def _assert_large_images(device: str, side: int = 2**14) -> None:
    x = torch.zeros(3, side, side, 4, dtype=torch.bfloat16, device=device).movedim(-1, 1)
    x[-1, -1, -1, -1] = 7
    x.requires_grad_()
    y = poolgrad.max_pool2d(x, 2)
    (gx,) = torch.autograd.grad(y, x, y.detach())
    assert gx[-1, -1, -1, -1] == 7, "the last gradient"
    assert int(gx.count_nonzero()) == 1, "the other gradients"


def _assert_large_indices(device: str, side: int = 50000) -> None:
    x = torch.zeros(1, 1, side, side, dtype=torch.uint8, device=device)
    x[..., -1, -1] = 7
    y, indices = poolgrad.adaptive_max_pool2d(x, 7, return_indices=True)
    assert y[..., -1, -1] == 7, "the last output"
    assert indices[..., -1, -1] == side * side - 1, "the last index"


def print_plan() -> None:
    """Print what would be measured, and check that both functions of a row take its arguments."""
    for row in ROWS:
        x = torch.empty(row.shape, device="meta")
        assert row.ours(x).shape == row.theirs(x).shape, row.name
    print(f"{len(ROWS)} rows x {len(DTYPES)} dtypes x {len(FORMATS)} formats would be timed")
    print("networks:", *(f"{network.title} ({change});" for network, change in chosen_networks()))
    if find_spec("triton"):
        from poolgrad.tools.bench.gpu_model import print_model

        print_model()
    else:
        print("the model of bytes is not printed: triton is not installed")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("times", "compiled", "bits", "networks", "without"))
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    if arguments.dry_run:
        print_plan()
        return
    if not torch.cuda.is_available():
        sys.exit("there is no GPU that PyTorch can use; --dry-run needs none")
    print("device:", torch.cuda.get_device_name())
    deadline = Deadline(arguments.seconds)
    runs: dict[str, Callable[[], int]] = {
        "times": partial(measure, arguments.out, deadline),
        "compiled": partial(measure, arguments.out, deadline, compiled=True),
        "bits": partial(check_bits, deadline),
        "networks": partial(measure_networks, arguments.out, deadline),
        "without": partial(measure_without_kernels, arguments.out, deadline),
    }
    failures = runs[arguments.what]()
    if failures:
        sys.exit(f"{failures} failed or were not measured")


if __name__ == "__main__":
    main()
