"""Times small calls with every form of the arguments: the cost of a call besides the pooling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import poolgrad

_SHAPE = (1, 4, 8, 8)
_TURNS, _CALLS = 100, 20  # the minimum over the turns; calls in each turn
_NEW_SHAPES = 200

Call = Callable[[], object]


class Timed(NamedTuple):
    """A spelling of a call.

    Attributes
    ----------
    arrays : str
        The library of the array.
    spelling : str
        The call.
    beside : str
        The spelling of the same library that it is compared with.
    seconds, ratio : float
        Time of a call, and its ratio to that of the other spelling.
    """

    arrays: str
    spelling: str
    beside: str
    seconds: float
    ratio: float


def _calls(x: Any) -> dict[str, Call]:
    """Spellings of the same call, the plain one first."""
    pool = poolgrad.max_pool2d
    return {
        "max_pool2d(x, 2)": lambda: pool(x, 2),
        "max_pool2d(x, (2, 2))": lambda: pool(x, (2, 2)),
        "max_pool2d(x, [2, 2])": lambda: pool(x, [2, 2]),
        "max_pool2d(x, kernel_size=2, stride=[2, 2])": lambda: pool(
            x, kernel_size=2, stride=[2, 2]
        ),
        "max_pool2d(x, 2, padding=[[1, 0], [1, 0]])": lambda: pool(x, 2, padding=[[1, 0], [1, 0]]),
        "max_pool2d(x, 2, return_indices=True)": lambda: pool(x, 2, return_indices=True),
    }


def _numpy_calls() -> tuple[dict[str, Call], dict[str, str]]:
    x = np.ones(_SHAPE, np.float32)
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 2)
    gy = np.ones_like(y)
    calls = _calls(x)
    calls["vjp(max_pool2d, x, 2)"] = lambda: poolgrad.vjp(poolgrad.max_pool2d, x, 2)
    calls["pullback(gy)"] = lambda: pullback(gy)
    return calls, {}


def _torch_calls() -> tuple[dict[str, Call], dict[str, str]]:
    import torch
    from torch.nn import functional

    from poolgrad.torch import MaxPool2d

    x, leaf = torch.ones(_SHAPE), torch.ones(_SHAPE, requires_grad=True)
    gy = torch.ones_like(poolgrad.max_pool2d(x, 2))
    ours, theirs = MaxPool2d(2), torch.nn.MaxPool2d(2)

    def trained(pool: Callable[..., Any]) -> Call:
        return lambda: torch.autograd.grad(pool(leaf, 2), leaf, gy)

    calls = _calls(x)
    calls["MaxPool2d(2)(x)"] = lambda: ours(x)
    calls["F.max_pool2d(x, 2)"] = lambda: functional.max_pool2d(x, 2)
    calls["torch.nn.MaxPool2d(2)(x)"] = lambda: theirs(x)
    calls["F.max_pool2d(x, 2), forward and backward"] = trained(functional.max_pool2d)
    calls["max_pool2d(x, 2), forward and backward"] = trained(poolgrad.max_pool2d)
    beside = {"max_pool2d(x, 2), forward and backward": "F.max_pool2d(x, 2), forward and backward"}
    return calls, beside


def _least(calls: dict[str, Call]) -> dict[str, float]:
    """Return the minimum time of each call; turns alternate, so disturbances affect all calls."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(_TURNS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(_CALLS):
                call()
            least[name] = min(least[name], (time.perf_counter() - start) / _CALLS)
    return least


def _new_shape(array: Callable[[tuple[int, ...]], Any], channels: int) -> float:
    """Return the median time of a call with a shape that was not pooled before."""
    times = []
    for height, width in list(product(range(9, 60), repeat=2))[:_NEW_SHAPES]:
        x = array((1, channels, height, width))
        start = time.perf_counter()
        poolgrad.max_pool2d(x, 2)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _timed(
    arrays: str,
    array: Callable[[tuple[int, ...]], Any],
    channels: int,
    calls: dict[str, Call],
    beside: dict[str, str],
) -> Iterator[Timed]:
    least = {**_least(calls), "max_pool2d(x, 2), new shape": _new_shape(array, channels)}
    plain = next(iter(calls))
    for name, seconds in least.items():
        other = beside.get(name, plain)
        yield Timed(arrays, name, other, seconds, seconds / least[other])


def measure() -> list[Timed]:
    """Time every form of a call for NumPy arrays and, if PyTorch is installed, for tensors.

    PyTorch uses one thread.
    """
    # Front ends share a cache of layouts, so each has its own number of channels for new shapes.
    timed = list(_timed("NumPy", lambda shape: np.ones(shape, np.float32), 3, *_numpy_calls()))
    if find_spec("torch"):
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # more threads would only wait for each other
        try:
            timed += _timed("PyTorch", torch.ones, 5, *_torch_calls())
        finally:
            torch.set_num_threads(threads)
    return timed


def markdown(timed: list[Timed]) -> str:
    """Return a table of the times, each with its ratio to the plain call, or to PyTorch's own."""
    lines = ["| arrays | call | time, µs | ratio | to |", "| --- | --- | ---: | ---: | --- |"]
    for row in timed:
        numbers = f"{row.seconds * 1e6:.1f} | {row.ratio:.2f}"
        lines.append(f"| {row.arrays} | `{row.spelling}` | {numbers} | `{row.beside}` |")
    return "\n".join(lines)
