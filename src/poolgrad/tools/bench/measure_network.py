"""Times a network unchanged and with poolgrad, in alternation, and compares the results."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext
from copy import deepcopy

import torch
from torch import Tensor

from poolgrad import core
from poolgrad.tools.bench.measure import median_and_spread, take_turns, using_threads
from poolgrad.tools.bench.networks import Network
from poolgrad.tools.bench.result import EAGER, Result
from poolgrad.tools.bench.steps import infer, kept_bytes, outcome, train
from poolgrad.torch import accelerate, convert


def measure(network: Network, threads: int, turns: int) -> Result:
    """Time a network unchanged and with poolgrad, in alternation.

    Parameters
    ----------
    network : Network
        The network.
    threads : int
        Number of threads of PyTorch and poolgrad.
    turns : int
        Number of timings of each call.

    Returns
    -------
    Result
        `kept`: the bytes kept for backward over PyTorch's; `apart`: the norm of the difference
        between outputs, or between the gradients of all parameters, over that of PyTorch's.
    """
    theirs = network.make()
    ours, context = theirs, accelerate if network.change == "accelerate" else nullcontext
    if network.change != "accelerate":
        ours = deepcopy(theirs)
        convert(ours, fuse=network.change == "convert(fuse=True)")
    x = torch.randn(network.shape, generator=torch.Generator().manual_seed(0))
    run = train if network.training else infer
    with using_threads(threads):
        calls = {
            "poolgrad": (lambda: run(ours, x), context),
            EAGER: (lambda: run(theirs, x), nullcontext),
        }
        times = take_turns(calls, turns, slow=math.inf)
        apart = _apart(outcome(calls["poolgrad"]), outcome(calls[EAGER]))
        kept = None
        if network.training:
            kept = kept_bytes(calls["poolgrad"], ours) / kept_bytes(calls[EAGER], theirs)
    seconds, spread = median_and_spread(times["poolgrad"])
    return Result(
        name=network.name,
        dtype="float32",
        shape="x".join(map(str, network.shape)),
        isa=core.instruction_set(),
        seconds=seconds,
        spread=spread,
        floor=None,
        beside=None,
        peers={EAGER: median_and_spread(times[EAGER])[0]},
        kept=kept,
        apart=apart,
    )


def _apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the relative difference of the outputs, or of all gradients.

    A gradient of its own may be nothing but what rounding left of a zero.
    """
    pairs = list(zip(ours, theirs, strict=True))
    parts = (pairs[:1], pairs[1:])
    return max(_norm(a - b for a, b in part) / (_norm(b for _, b in part) or 1.0) for part in parts)


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(t.double())) for t in tensors))
