"""Operators where one input of each window wins, and the way back of a maximum."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from poolgrad.contract import Buffer, Choice, Operator, Routing, Selection, Windows, per_output
from poolgrad.core import Layout, Plan
from poolgrad.operands import Indices, Seed, WindowSamples
from poolgrad.windows import Window, has_empty_windows, require_valid_inputs

__all__ = ["SELECTING"]


class _Routed(Operator):
    """One input of each window wins, and its route is kept.

    `routes` says how: in bytes, or packed where they fit two or four bits.
    """

    selecting = True
    options: ClassVar[type[Any]] = Routing

    def check(self, window: Window, *options: Any) -> None:
        *_, routes = options
        if routes not in ("bytes", "packed"):
            raise ValueError(f'routes must be "bytes" or "packed", got {routes!r}')

    def nowhere(self, *options: Any) -> bool:
        """Whether an output may be routed nowhere although its window holds inputs."""
        return False

    def route_bits(self, window: Window, *options: Any) -> int:
        *_, routes = options
        if routes == "bytes":
            return 0
        count = window.tap_count + (self.nowhere(*options) or has_empty_windows(window))
        return 2 if count <= 4 else 4 if count <= 16 else 0

    def residual(self, layout: Layout, *options: Any) -> tuple[Buffer, ...]:
        bits = self.route_bits(layout.window, *options)
        if not bits:
            return (per_output(layout, layout.route_dtype),)
        shape, last = [*layout.out_shape], layout.pooled[-1]
        shape[last] = -(-shape[last] * bits // 8)
        return (Buffer((*shape,), layout.order, "uint8"),)

    def pull(
        self, plan: Plan, gy: Any, x: Any, operand: Any, residual: Any, gx: Any, threads: int,
        *options: Any,
    ) -> None:  # fmt: skip
        plan.kernels.route_backward(gy, residual[0], gx, None, threads)

    def push(
        self, plan: Plan, t: Any, operand: Any, residual: Any, y: Any, threads: int,
        *options: Any,
    ) -> None:  # fmt: skip
        plan.kernels.route_follow(t, residual[0], y, None, threads)

    def share(
        self, xp: Any, numbers: Any, windows: Windows, kept: tuple[Any, ...], *options: Any
    ) -> Any:
        return xp.where(windows.real & (kept[0][..., None] == windows.places), numbers, 0)


def _ends(dtype: Any) -> tuple[Any, Any]:
    """The least and the largest number of a dtype."""
    if dtype.kind == "b":
        return False, True
    if np.issubdtype(dtype, np.integer):
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return -np.inf, np.inf


def _is_nan(values: Any) -> Any:
    """Which are NaN; of integers none."""
    return values != values  # noqa: PLR0124 - not every library has a word for that


class Extreme(_Routed):
    """The winner by an order of the inputs; of equal winners, `ties` says who gets the gradient."""

    options = Selection
    integers = True
    order: ClassVar[str]

    def check(self, window: Window, *options: Any) -> None:
        super().check(window, *options)
        ties, _ = options
        if ties == "all":
            raise ValueError(
                'ties="all" would give every winner the full gradient; that is not a subgradient '
                'of the maximum (the shares must add up to one). Use "first", "split" or "zero"'
            )
        if ties not in ("first", "split", "zero"):
            raise ValueError(f'ties must be "first", "split" or "zero", got {ties!r}')

    def nowhere(self, *options: Any) -> bool:
        ties, _ = options
        return bool(ties == "zero")

    def residual(self, layout: Layout, *options: Any) -> tuple[Buffer, ...]:
        if options[0] == "split":
            order = (*layout.order, len(layout.order))
            return (Buffer(layout.winner_shape, order, "uint8"),)
        return super().residual(layout, *options)

    def forward(
        self, plan: Plan, x: Any, operand: Any, y: Any, residual: Any, threads: int,
        *options: Any,
    ) -> None:  # fmt: skip
        kernels, (ties, _) = plan.kernels, options
        if ties == "split":
            kernels.select(self.order, x, y, None, False, operand, threads)
            if residual:
                kernels.split_winners(self.order, x, y, residual[0], operand, threads)
            return
        routes = residual[0] if residual else None
        kernels.select(self.order, x, y, routes, ties == "zero", operand, threads)

    def pull(
        self, plan: Plan, gy: Any, x: Any, operand: Any, residual: Any, gx: Any, threads: int,
        *options: Any,
    ) -> None:  # fmt: skip
        split = options[0] == "split"
        kernel = plan.kernels.split_backward if split else plan.kernels.route_backward
        kernel(gy, residual[0], gx, operand, threads)

    def push(
        self, plan: Plan, t: Any, operand: Any, residual: Any, y: Any, threads: int,
        *options: Any,
    ) -> None:  # fmt: skip
        split = options[0] == "split"
        kernel = plan.kernels.split_follow if split else plan.kernels.route_follow
        kernel(t, residual[0], y, operand, threads)

    def best(self, xp: Any, windows: Windows) -> tuple[Any, Any]:
        """The value that wins where there is no NaN, and that of a window without inputs."""
        raise NotImplementedError

    def choose(self, xp: Any, windows: Windows, draw: Any, *options: Any) -> Choice:
        values, real = windows.values, windows.real
        best, empty = self.best(xp, windows)
        taps = xp.arange(values.shape[-1])
        last = xp.amax(xp.where(real & _is_nan(values), taps, -1), -1)
        equal = real & (values == best[..., None])
        tap = xp.where(last >= 0, last, xp.argmax(equal, -1))
        lone = taps == tap[..., None]
        if options[0] == "first":
            winners = real & lone
        else:
            several = (last < 0) & (equal.sum(-1) > 1)
            shared = equal & (options[0] == "split")
            winners = xp.where(several[..., None], shared, real & lone)
        return Choice(winners, tap, xp.broadcast_to(real.any(-1), tap.shape), empty)

    def share(
        self, xp: Any, numbers: Any, windows: Windows, kept: tuple[Any, ...], *options: Any
    ) -> Any:
        if options[0] != "split":
            return super().share(xp, numbers, windows, kept, *options)
        places = xp.broadcast_to(windows.places, (*kept[0].shape[:-1], windows.places.shape[-1]))
        bits = xp.take_along_axis(kept[0], places // 8, -1) >> (places % 8).astype("uint8") & 1
        winners = windows.real & (bits == 1)
        return xp.where(winners, numbers / xp.maximum(winners.sum(-1), 1)[..., None], 0)


class Max(Extreme):
    """The largest input of each window; a NaN if there is one."""

    name = order = "max"

    def best(self, xp: Any, windows: Windows) -> tuple[Any, Any]:
        low, _ = _ends(windows.values.dtype)
        known = windows.real & ~_is_nan(windows.values)
        return xp.amax(xp.where(known, windows.values, low), -1), low


class ReLUMax(Max):
    """The largest input of each window, or 0 if none is positive; a NaN if there is one."""

    name = order = "relu_max"

    def nowhere(self, *options: Any) -> bool:
        return True

    def choose(self, xp: Any, windows: Windows, draw: Any, *options: Any) -> Choice:
        winners, tap, found, _ = super().choose(xp, windows, draw, *options)
        largest = xp.take_along_axis(windows.values, tap[..., None], -1)[..., 0]
        found = found & ~(largest <= 0)
        return Choice(winners & found[..., None], tap, found, 0)


class Min(Extreme):
    """The smallest input of each window; a NaN if there is one."""

    name = order = "min"

    def best(self, xp: Any, windows: Windows) -> tuple[Any, Any]:
        _, high = _ends(windows.values.dtype)
        known = windows.real & ~_is_nan(windows.values)
        return xp.amin(xp.where(known, windows.values, high), -1), high


class Median(Extreme):
    """The lower of the two middle inputs of each window; a NaN if there is one."""

    name = order = "median"

    def check(self, window: Window, *options: Any) -> None:
        super().check(window, *options)
        require_valid_inputs(window)

    def best(self, xp: Any, windows: Windows) -> tuple[Any, Any]:
        _, high = _ends(windows.values.dtype)
        middle = (windows.real.sum(-1) - 1) // 2
        ranked = xp.sort(xp.where(windows.real, windows.values, high), -1)
        index = xp.broadcast_to(middle[..., None], (*ranked.shape[:-1], 1))
        return xp.take_along_axis(ranked, index, -1)[..., 0], 0


class FractionalMax(Max):
    """The largest input of each window, of windows that samples place."""

    name = "fractional_max"
    operand = WindowSamples("_random_samples")


class Stochastic(_Routed):
    """One input of each window, drawn with a probability proportional to its positive part."""

    name = "stochastic"
    operand = Seed("generator")

    def check(self, window: Window, *options: Any) -> None:
        super().check(window, *options)
        require_valid_inputs(window)

    def forward(
        self, plan: Plan, x: Any, operand: Any, y: Any, residual: Any, threads: int,
        *options: Any,
    ) -> None:  # fmt: skip
        plan.kernels.draw(x, y, residual[0] if residual else None, operand, threads)

    def choose(self, xp: Any, windows: Windows, draw: Any, *options: Any) -> Choice:
        real, taps = windows.real, xp.arange(windows.values.shape[-1])
        values = windows.values.astype("float64")
        positive = xp.where(real & (values > 0), values, 0)
        positive = xp.where(xp.amax(positive, -1) > 2.0**900, 2.0**-100, 1)[..., None] * positive
        reached = xp.cumsum(positive, -1)
        total = reached[..., -1]
        passed = reached > (draw * total)[..., None]
        last = xp.amax(xp.where(positive > 0, taps, 0), -1)
        drawn = xp.where(passed.any(-1), xp.argmax(passed, -1), last)
        which = (draw * real.sum(-1)).astype("int64")  # where nothing is positive
        alike = xp.argmax(real & (xp.cumsum(real, -1) == which[..., None] + 1), -1)
        tap = xp.where(total > 0, drawn, alike)
        return Choice(taps == tap[..., None], tap, xp.broadcast_to(True, tap.shape), 0)


class MaxUnpool(Operator):
    """Every value where its index says, among zeros: not a reduction, the way back of one."""

    name = "max_unpool"
    operand = Indices("indices")
    integers = True
    windowed = False

    def residual(self, layout: Layout, *options: Any) -> tuple[Buffer, ...]:
        return ()

    def forward(
        self, plan: Plan, x: Any, operand: Any, y: Any, residual: Any, threads: int,
        *options: Any,
    ) -> None:  # fmt: skip
        plan.kernels.unpool(x, operand, y, threads)

    def pull(
        self, plan: Plan, gy: Any, x: Any, operand: Any, residual: Any, gx: Any, threads: int,
        *options: Any,
    ) -> None:  # fmt: skip
        plan.kernels.unpool_backward(gy, operand, gx, threads)

    def push(
        self, plan: Plan, t: Any, operand: Any, residual: Any, y: Any, threads: int,
        *options: Any,
    ) -> None:  # fmt: skip
        plan.kernels.unpool(t, operand, y, threads)


SELECTING = (Max(), ReLUMax(), Min(), Median(), Stochastic(), FractionalMax(), MaxUnpool())
