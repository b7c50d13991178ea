"""Times JAX with its own pooling and with poolgrad's: forward, backward, training steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from poolgrad import core
from poolgrad.tools.bench.result import OWN, Result
from poolgrad.tools.bench.rows import chosen_by

INSTALL = 'pip install "poolgrad[jax]" flax optax'
_SHAPE = (32, 112, 112, 64)


@dataclass(frozen=True)
class Row:
    """A call or a step of training.

    Attributes
    ----------
    title : str
        Description of the row.
    what : str
        ``"forward"``, ``"both"`` (forward and backward) or ``"step"`` (of training).
    window : tuple of int
        Size, stride and padding; of a network, how many channels each stage has.
    shape : tuple of int
        Shape of the input, channels last.
    reused : bool
        Whether memory is reused, for both libraries; it cannot be switched off again.
    """

    title: str
    what: Literal["forward", "both", "step"]
    window: tuple[int, ...]
    shape: tuple[int, ...] = _SHAPE
    reused: bool = False

    @property
    def name(self) -> str:
        """Name of the row."""
        words = {"forward": "forward", "both": "forward and backward", "step": "training step"}
        return f"{self.title} {words[self.what]}{', memory reused' * self.reused}"


def _rows(reused: bool) -> list[Row]:
    windows = (
        ("max 2x2 s2", (2, 2, 0)),
        ("max 3x3 s2 p1", (3, 2, 1)),
        ("max 3x3 s1 p1", (3, 1, 1)),
    )
    rows = []
    for title, window in windows:
        rows.append(Row(title, "forward", window, reused=reused))
        rows.append(Row(title, "both", window, reused=reused))
    rows.append(Row("LeNet", "step", (32, 64), (256, 28, 28, 1), reused=reused))
    rows.append(Row("VGG-11", "step", (64, 128, 256, 512, 512), (8, 96, 96, 3), reused=reused))
    return rows


ROWS = (*_rows(reused=False), *_rows(reused=True))


def select(parts: Sequence[str] = ()) -> list[Row]:
    """Return the rows whose names contain any of these parts, or all rows.

    Raises
    ------
    ValueError
        If there is no row for one of the parts.
    ModuleNotFoundError
        If JAX, Flax or Optax is not installed.
    """
    for package in ("jax", "flax", "optax"):
        if not find_spec(package):
            raise ModuleNotFoundError(f"{package} is not installed: {INSTALL}")
    return chosen_by(parts, ROWS, "row")


def measure(row: Row, threads: int, turns: int) -> Result:
    """Time a row with poolgrad's pooling and with JAX's, in alternation.

    Parameters
    ----------
    row : Row
        The row.
    threads : int
        Ignored: XLA uses all processors, and poolgrad's kernels as many as XLA.
    turns : int
        Number of timings of each library.

    Returns
    -------
    Result
    """
    from flax import nnx

    import poolgrad.jax
    from poolgrad.tools.bench.measure import median_and_spread, take_turns

    if row.reused:
        poolgrad.jax.reuse_memory()
    make = _step if row.what == "step" else _call
    ours, theirs = make(row, poolgrad.jax.max_pool), make(row, nnx.max_pool)
    times = take_turns({"poolgrad": (ours, nullcontext), OWN: (theirs, nullcontext)}, turns, 2.0)
    seconds, spread = median_and_spread(times["poolgrad"])
    return Result(
        name=row.name,
        dtype="float32",
        shape="x".join(map(str, row.shape)),
        isa=core.instruction_set(),
        seconds=seconds,
        spread=spread,
        floor=None,
        beside=None,
        peers={OWN: median_and_spread(times[OWN])[0]},
    )


_Pool = Callable[..., Any]


def _call(row: Row, pool: _Pool) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    size, stride, padding = row.window

    def pooled(x: Any) -> Any:
        return pool(x, (size, size), (stride, stride), ((padding, padding),) * 2)

    def both(x: Any, gy: Any) -> Any:
        y, pullback = jax.vjp(pooled, x)
        return y, pullback(gy)

    x = jnp.asarray(np.random.default_rng(0).standard_normal(row.shape, np.float32))
    if row.what == "forward":
        forward = jax.jit(pooled)
        return lambda: jax.block_until_ready(forward(x))
    gy, run = jnp.ones_like(pooled(x)), jax.jit(both)
    return lambda: jax.block_until_ready(run(x, gy))


def _step(row: Row, pool: _Pool) -> Callable[[], Any]:
    """A training step: convolutions and a pooling in each stage, then a classifier."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            sizes = (row.shape[-1], *row.window)
            pairs = pairwise(sizes)
            convolutions = [nnx.Conv(a, b, (3, 3), rngs=rngs) for a, b in pairs]
            self.convolutions = nnx.List(convolutions)
            side = row.shape[1] // 2 ** len(row.window)
            self.classifier = nnx.Linear(side * side * sizes[-1], 10, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            for convolution in self.convolutions:
                x = pool(nnx.relu(convolution(x)), (2, 2), (2, 2))
            return self.classifier(x.reshape(len(x), -1))

    network = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(network, optax.sgd(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(network: Any, optimizer: Any, x: Any, labels: Any) -> Any:
        def loss(network: Any) -> Any:
            logits = network(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradients = nnx.value_and_grad(loss)(network)
        optimizer.update(network, gradients)
        return value

    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal(row.shape, np.float32))
    labels = jnp.asarray(rng.integers(10, size=row.shape[0]))
    return lambda: jax.block_until_ready(step(network, optimizer, x, labels))
