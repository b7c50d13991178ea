"""Measures the share of pooling in a network's time and memory, before and after `convert`."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.table import Table
from scipy.stats import quantile_test
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from poolgrad.lab.plotting import BLUE, GREY, to_png
from poolgrad.tools.bench.measure import median_and_spread, take_turns, using_threads
from poolgrad.tools.bench.steps import forward, infer, is_pooling, kept_bytes, pooling_bytes, train
from poolgrad.torch import Report, convert
from poolgrad.torch.base import Pool

_CONFIDENCE = 0.95
_PROFILED = 5  # steps

os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # silences PyTorch's profiler


class Share(NamedTuple):
    """An amount of time or memory, and the share of pooling."""

    whole: float
    pooling: float


class Ratio(NamedTuple):
    """The ratio of the times of two networks: the median over turns, and its interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float]) -> Ratio:
        """Compare the seconds of two networks, turn by turn.

        What slows a turn down slows both of its steps, and so leaves their ratio. The interval is
        that of the sign test (order statistics of the ratios), which assumes no distribution.
        """
        ratios = np.divide(before, after)
        interval: Any = quantile_test(ratios, q=1.0, p=0.5).confidence_interval(_CONFIDENCE)
        return cls(float(np.median(ratios)), float(interval.low), float(interval.high))

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


class Profile(NamedTuple):
    """A network unchanged and converted: seconds of a step, bytes kept for the backward pass."""

    name: str
    seconds: tuple[Share, Share]
    ratio: Ratio
    kept: tuple[Share, Share] | None  # in training
    report: Report


def measure(
    network: nn.Module,
    shape: tuple[int, ...],
    training: bool,
    threads: int,
    turns: int,
    show: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Profile a network and a converted copy of it, in alternation.

    Parameters
    ----------
    network : nn.Module
        Its modules are not replaced; its training mode is set.
    shape : tuple of int
        Shape of the input, which is random.
    training : bool
        Whether a step is forward and backward, or inference.
    threads : int
        Threads of PyTorch, and so of poolgrad.
    turns : int
        Number of timings of each network; with fewer than 6, the ratio has no interval.
    show : callable
        Is called with a line of text before each part of the measurement.

    Returns
    -------
    Profile

    Raises
    ------
    ValueError
        If the network cannot be copied, does not take the input, cannot be trained, does not pool,
        or needs too much memory; the message is one sentence.
    """
    try:
        ours = deepcopy(network).train(training)
    except Exception as error:  # of any module's own __deepcopy__
        raise ValueError(f"the network cannot be copied: {_one_line(error)}") from error
    name = type(network).__name__
    show(f"trying a step of {name} with an input of shape {','.join(map(str, shape))}")
    with using_threads(threads), _memory_of(shape):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        _check_step(network.train(training), x, training)
    report = convert(ours)
    networks = (network, ours)
    steps = [partial(train if training else infer, each, x) for each in networks]
    turn = itertools.count(1)

    @contextmanager
    def shown() -> Iterator[None]:
        show(f"timing {name}, unchanged and converted: {next(turn)} of {2 * (turns + 1)}")
        yield

    with using_threads(threads), _memory_of(shape):
        calls = {str(k): (step, shown) for k, step in enumerate(steps)}
        times = take_turns(calls, turns, slow=math.inf)
        show(f"measuring the share of pooling in {name}")
        wholes = [median_and_spread(times[str(k)])[0] for k in range(2)]
        seconds = [
            Share(whole, whole * _pooling_share(each, step))
            for whole, each, step in zip(wholes, networks, steps, strict=True)
        ]
        kept = [
            Share(kept_bytes((step, nullcontext), each), pooling_bytes(each, x))
            for each, step in zip(networks, steps, strict=True)
            if training
        ]
    return Profile(
        name,
        (seconds[0], seconds[1]),
        Ratio.of(times["0"], times["1"]),
        (kept[0], kept[1]) if kept else None,
        report,
    )


@contextmanager
def _memory_of(shape: tuple[int, ...]) -> Iterator[None]:
    """Raise ValueError where memory, or the largest number of its bytes, is too small.

    PyTorch's allocator for the CPU raises no type of its own.
    """
    try:
        yield
    except (MemoryError, RuntimeError, TypeError) as error:
        text = _one_line(error)
        if not any(word in text.lower() for word in ("memory", "overflow")):
            raise
        size = ",".join(map(str, shape))
        raise ValueError(
            f"an input of shape {size} (--shape) needs too much memory: {text}"
        ) from error


def _check_step(network: nn.Module, x: torch.Tensor, training: bool) -> None:
    """Run the network once before timing, and raise ValueError if it cannot be profiled."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        try:
            outputs = forward(network, x) if training else infer(network, x)
        except Exception as error:  # of the network's own code
            size = ",".join(map(str, x.shape))
            mode = "training" if training else "inference"
            raise ValueError(
                f"the network raised an error in {mode} on an input of shape {size} (--shape):"
                f" {_one_line(error)}"
            ) from error
    if training and not any(y.requires_grad for y in outputs):
        raise ValueError(
            "no output of the network requires a gradient; profile it with --inference"
        )
    ours = any(isinstance(module, Pool) for module in network.modules())
    if not ours and not any(is_pooling(event.name) for event in recorded.events()):
        raise ValueError("the network does not pool, so `convert` cannot make it faster")


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]


def _pooling_share(network: nn.Module, step: Any) -> float:
    """Return the share of poolings of any kind in the time of the median step."""
    hooks = []
    marks: list[Any] = []

    def enter(*_: Any) -> None:
        marks.append(record_function("pooling").__enter__())

    def leave(*_: Any) -> None:
        marks.pop().__exit__(None, None, None)

    for module in network.modules():
        if isinstance(module, Pool):  # their forward passes have no operator event
            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave))
    shares = []
    for _ in range(_PROFILED):
        # Each step is profiled alone, so that other work on the machine affects one step only.
        with profile(activities=[ProfilerActivity.CPU]) as recorded, record_function("step"):
            step()
        events = recorded.events()
        whole = next(e.cpu_time_total for e in events if e.name == "step")
        outermost = (e for e in events if is_pooling(e.name) and not _inside_pooling(e))
        shares.append(sum(e.cpu_time_total for e in outermost) / whole)
    for hook in hooks:
        hook.remove()
    return float(median(shares))


def _inside_pooling(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if is_pooling(parent.name):
            return True
        parent = parent.cpu_parent
    return False


def table(made: Profile) -> Table:
    """Table of the network unchanged and converted, for a terminal of 80 columns."""
    shown = Table(box=SIMPLE_HEAD, show_edge=False)
    shown.add_column(made.name, overflow="fold")
    for head in ("unchanged", "converted", "ratio"):
        shown.add_column(head, justify="right", no_wrap=True)
    for name, unit, scale, shares in _parts(made):
        (before, own), (after, left) = shares
        ratio = f"{before / after:.2f}" if after else ""
        shown.add_row(
            f"{name}, {unit}", f"{before * scale:.4g}", f"{after * scale:.4g}",
            str(made.ratio) if shares is made.seconds else ratio,
        )  # fmt: skip
        shown.add_row("  pooling", _of(own, before, scale), _of(left, after, scale), "")
    return shown


def verdict(made: Profile) -> str:
    """Say whether the converted network is faster, in a line of at most 80 characters."""
    if not made.ratio.significant:
        return "no measurable difference in time: the 95 % interval of the ratio contains 1"
    change, where = ("faster", "above") if made.ratio.median > 1 else ("slower", "below")
    return f"the converted network is {change}: the 95 % interval of the ratio is {where} 1"


def _parts(made: Profile) -> list[tuple[str, str, float, tuple[Share, Share]]]:
    parts = [("time of a step", "ms", 1e3, made.seconds)]
    if made.kept:
        parts.append(("kept for backward", "MiB", 2.0**-20, made.kept))
    return parts


def _of(part: float, whole: float, scale: float) -> str:
    return f"{part * scale:.3g} ({part / whole:.0%})" if whole else f"{part * scale:.3g}"


def draw(made: Profile) -> bytes:
    """Draw bars of time and memory, before and after, with the share of pooling, as a PNG."""
    parts = _parts(made)
    figure = Figure(figsize=(4 * len(parts), 3.6), layout="constrained")
    figure.suptitle(made.name)
    every = figure.subplots(1, len(parts), squeeze=False)[0]
    for axes, (name, unit, scale, shares) in zip(every, parts, strict=True):
        rest = [(share.whole - share.pooling) * scale for share in shares]
        own = [share.pooling * scale for share in shares]
        axes.bar(["unchanged", "converted"], rest, 0.6, color=GREY, label="everything else")
        axes.bar(["unchanged", "converted"], own, 0.6, bottom=rest, color=BLUE, label="pooling")
        axes.set_ylabel(f"{name}, {unit}")
        axes.spines[["top", "right"]].set_visible(False)
    bars, names = every[0].get_legend_handles_labels()
    figure.legend(bars, names, frameon=False, loc="outside lower center", ncols=2)
    return to_png(figure)
