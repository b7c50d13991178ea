"""Time max and average pooling beside PyTorch in one run, and against the memory limit.

The floor is the bytes that must move over the copy bandwidth measured here: forward reads the input
and writes output and routes; backward reads gradient and routes and writes the input's gradient.
Ours and PyTorch's calls alternate; medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import poolgrad
from poolgrad.environment import describe

ROWS = [
    ("max_pool2d", (2, 2, 0)),
    ("max_pool2d", (3, 2, 1)),
    ("max_pool2d", (3, 1, 1)),
    ("avg_pool2d", (2, 2, 0)),
    ("avg_pool2d", (3, 1, 1)),
]


def medians(runs: int, *calls: Callable[[], object]) -> list[float]:
    """Median seconds of each call; they take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(runs + 1):  # the first turn warms up
        for call, seconds in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds[1:]) for seconds in times]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", type=int, nargs=4, default=[32, 64, 112, 112])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    x = torch.randn(options.shape)
    copy = torch.empty_like(x)
    (seconds,) = medians(options.runs, lambda: copy.copy_(x))
    bandwidth = 2 * x.nbytes / seconds
    about = describe()
    print(f"{about['processor']}, {options.threads} threads, PyTorch {about['torch']}, "
          f"{about['instruction set']}, copy {bandwidth / 1e9:.1f} GB/s")  # fmt: skip
    print(f"{'':34}{'ms':>8}{'x floor':>9}{'PyTorch ms':>12}{'times faster':>14}")
    for name, arguments in ROWS:
        ours, theirs = getattr(poolgrad, name), getattr(F, name)
        for layout in (torch.contiguous_format, torch.channels_last):
            inputs = x.contiguous(memory_format=layout)
            leaf = inputs.clone().requires_grad_()
            y, y_peer = ours(leaf, *arguments), theirs(leaf, *arguments)
            g = torch.ones_like(y)

            def forward(pool: Callable[..., torch.Tensor] = ours, leaf: torch.Tensor = leaf,
                        arguments: tuple[int, ...] = arguments) -> object:  # fmt: skip
                return pool(leaf, *arguments)

            def backward(y: torch.Tensor = y, leaf: torch.Tensor = leaf,
                         g: torch.Tensor = g) -> object:  # fmt: skip
                return torch.autograd.grad(y, leaf, g, retain_graph=True)

            routes = y.numel() if name.startswith("max") else 0
            floor = (x.nbytes + y.nbytes + routes) / bandwidth
            label = "channels last" if layout is torch.channels_last else "channels first"
            for what, mine, peer in (
                ("forward", forward, lambda f=forward, p=theirs: f(p)),
                ("backward", backward, lambda b=backward, p=y_peer: b(p)),
            ):
                a, b = medians(options.runs, mine, peer)
                row = f"{name[:3]} {arguments} {label} {what}"
                print(f"{row:34}{a * 1e3:8.1f}{a / floor:9.2f}{b * 1e3:12.1f}{b / a:14.1f}")


if __name__ == "__main__":
    main()
