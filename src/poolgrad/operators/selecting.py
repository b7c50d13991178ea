"""Selecting operators, in which one input of each window wins, and max unpooling."""

from __future__ import annotations

from typing import Any, ClassVar

from poolgrad.interface import (
    ON_CPUS,
    ON_CPUS_AND_GPUS,
    SELECTIONS,
    Buffer,
    Choice,
    KernelCall,
    Operator,
    Routing,
    Selection,
    UnfoldedWindows,
    per_output,
)
from poolgrad.operands import Indices, Seed, WindowSamples
from poolgrad.windows import Layout, Window, brief, has_empty_windows, require_valid_inputs

__all__ = ["SELECTING"]


class Routed(Operator):
    """Operators that store the route of the winner of each window.

    `routes` is "bytes", or "packed" for two or four bits where these are enough.
    """

    selecting = True
    options: ClassVar[type[Any]] = Routing

    def check(self, window: Window, options: Any) -> None:
        if options.routes not in ("bytes", "packed"):
            raise ValueError(f'routes must be "bytes" or "packed", got {brief(options.routes)}')

    def may_have_no_winner(self, options: Any) -> bool:
        """Whether a window with inputs can be without a winner."""
        return False

    def route_bits(self, window: Window, options: Any) -> int:
        if options.routes == "bytes":
            return 0
        count = window.tap_count + (self.may_have_no_winner(options) or has_empty_windows(window))
        return 2 if count <= 4 else 4 if count <= 16 else 0

    def residual(self, layout: Layout, options: Any) -> tuple[Buffer, ...]:
        bits = self.route_bits(layout.window, options)
        if not bits:
            return (per_output(layout, layout.route_dtype),)
        shape, last = [*layout.out_shape], layout.pooled[-1]
        shape[last] = -(-shape[last] * bits // 8)
        return (Buffer((*shape,), layout.order, "uint8", layout.in_shape),)

    def vjp(self, call: KernelCall) -> None:
        self._apply(call, "backward")

    def jvp(self, call: KernelCall) -> None:
        self._apply(call, "jvp")

    def _apply(self, call: KernelCall, direction: str) -> None:
        stored = "split" if getattr(call.options, "ties", None) == "split" else "route"
        samples = call.operand if self.operand.determines_windows else None
        kernel = getattr(call.kernels, f"{stored}_{direction}")
        kernel(call.source, call.residual[0], call.target, samples, call.threads)

    def share(
        self, xp: Any, amounts: Any, windows: UnfoldedWindows, routes: Any, options: Any
    ) -> Any:
        return xp.where(windows.valid & (routes[..., None] == windows.taps), amounts, 0.0)


def _is_nan(values: Any) -> Any:
    """Return which values are NaN; unlike `isnan`, this also takes integers."""
    return values != values  # noqa: PLR0124


def _first(xp: Any, condition: Any) -> Any:
    """Return the position of the first true element along the last axis."""
    return xp.argmax(xp.astype(condition, xp.int32), axis=-1)


def _found(xp: Any, windows: UnfoldedWindows) -> Any:
    """Return whether each window of each plane contains an input."""
    return xp.broadcast_to(xp.any(windows.valid, axis=-1), windows.values.shape[:-1])


def _positions(xp: Any, windows: UnfoldedWindows) -> Any:
    """Return the positions along the axis of taps."""
    return xp.cumulative_sum(xp.ones_like(windows.taps), axis=-1) - 1


def _running_sums(xp: Any, values: Any) -> Any:
    """Return the cumulative sums along the last axis, by one addition for each element."""
    # The kernels add from left to right, and the same seed must give the same draw. No library
    # promises this order for `cumulative_sum`: JAX and CUDA add in parallel and round differently,
    # PyTorch sums float32 on the CPU in float64 and refuses CUDA in its deterministic mode. Sums
    # in any order would be equal only for integer weights, in the kernels, too.
    sums = [values[..., 0]]
    for tap in range(1, values.shape[-1]):
        sums.append(sums[-1] + values[..., tap])
    return xp.stack(sums, axis=-1)


class Extreme(Routed):
    """The winner is an extreme by some order; `ties` determines the gradient of equal winners."""

    options = Selection
    integers = True
    order: ClassVar[str] = ""  # the name of the reduction in the kernels

    def check(self, window: Window, options: Any) -> None:
        super().check(window, options)
        ties = options.ties
        if ties == "all":
            raise ValueError(
                'ties="all" would give every winner the full gradient; that is not a subgradient '
                'of the maximum (the shares must add up to one). Use "first", "split" or "zero"'
            )
        if ties not in ("first", "split", "zero"):
            raise ValueError(f'ties must be "first", "split" or "zero", got {brief(ties)}')

    def has_kernels(self, device: str, options: Any) -> bool:
        return super().has_kernels(device, options) and (device, options.ties) != ("cuda", "split")

    def may_have_no_winner(self, options: Any) -> bool:
        return bool(options.ties == "zero")

    def residual(self, layout: Layout, options: Any) -> tuple[Buffer, ...]:
        if options.ties == "split":
            order = (*layout.order, len(layout.order))
            shape = (*layout.out_shape, -(-layout.window.tap_count // 8))  # a bit for each tap
            return (Buffer(shape, order, "uint8", layout.in_shape),)
        return super().residual(layout, options)

    def forward(self, call: KernelCall) -> None:
        arrays, last = (call.source, call.target), (call.operand, call.threads)
        kept, ties = call.residual[0] if call.residual else None, call.options.ties
        routes, which = None if ties == "split" else kept, SELECTIONS.index(self.order)
        call.kernels.select(which, *arrays, routes, ties == "zero", *last)
        if kept is not routes:
            call.kernels.split_winners(which, *arrays, kept, *last)

    def best(self, xp: Any, windows: UnfoldedWindows) -> tuple[Any, Any]:
        """Return the winning value of windows without NaN, and the output of an empty window.

        Here for the maximum and the minimum; operators of another order define it.
        """
        if self.order not in ("max", "relu_max", "min"):
            raise NotImplementedError(f"the operator {self.name} must define best")
        is_min = self.order == "min"
        worst = windows.highest if is_min else windows.lowest
        known = windows.valid & ~_is_nan(windows.values)
        values = xp.where(known, windows.values, worst)
        return (xp.min if is_min else xp.max)(values, axis=-1), worst

    def choose(self, xp: Any, windows: UnfoldedWindows, draw: Any, options: Any) -> Choice:
        values, valid = windows.values, windows.valid
        best, empty = self.best(xp, windows)
        positions = _positions(xp, windows)
        last = xp.max(xp.where(valid & _is_nan(values), positions, -1), axis=-1)
        equal = valid & (values == best[..., None])
        winner = xp.where(last >= 0, last, _first(xp, equal))
        winners = valid & (positions == winner[..., None])
        if options.ties != "first":
            several = (last < 0) & (xp.count_nonzero(equal, axis=-1) > 1)
            shared = equal if options.ties == "split" else xp.zeros_like(equal)
            winners = xp.where(several[..., None], shared, winners)
        return Choice(winners, winner, _found(xp, windows), empty)

    def share(
        self, xp: Any, amounts: Any, windows: UnfoldedWindows, routes: Any, options: Any
    ) -> Any:
        if options.ties != "split":
            return super().share(xp, amounts, windows, routes, options)
        taps = windows.taps
        byte = xp.where(windows.valid, taps // 8, 0)
        byte = xp.broadcast_to(byte, (*routes.shape[:-1], taps.shape[-1]))
        bits = xp.take_along_axis(routes, byte, axis=-1) // 2 ** (taps % 8) % 2
        winners = windows.valid & (bits == 1)
        count = xp.clip(xp.count_nonzero(winners, axis=-1), min=1)[..., None]
        return xp.where(winners, amounts / xp.astype(count, amounts.dtype), 0.0)


class Max(Extreme):
    """The largest input of each window; NaN if the window contains one."""

    name = order = "max"
    kernels = ON_CPUS_AND_GPUS


class ReLUMax(Max):
    """The largest input of each window, or 0 if none is positive; NaN if it contains one."""

    name = order = "relu_max"

    def may_have_no_winner(self, options: Any) -> bool:
        return True

    def choose(self, xp: Any, windows: UnfoldedWindows, draw: Any, options: Any) -> Choice:
        winners, winner, found, _ = super().choose(xp, windows, draw, options)
        largest = xp.take_along_axis(windows.values, winner[..., None], axis=-1)[..., 0]
        found = found & ~(largest <= 0)
        return Choice(winners & found[..., None], winner, found, 0)


class Min(Extreme):
    """The smallest input of each window; NaN if the window contains one."""

    name = order = "min"
    kernels = ON_CPUS_AND_GPUS


class Median(Extreme):
    """The lower median of each window; NaN if the window contains one."""

    name = order = "median"
    kernels = ON_CPUS

    def check(self, window: Window, options: Any) -> None:
        super().check(window, options)
        require_valid_inputs(window)

    def best(self, xp: Any, windows: UnfoldedWindows) -> tuple[Any, Any]:
        middle = (xp.count_nonzero(windows.valid, axis=-1) - 1) // 2
        values = xp.where(windows.valid, windows.values, windows.highest)
        ranked = xp.sort(values, axis=-1)
        index = xp.broadcast_to(middle[..., None], (*ranked.shape[:-1], 1))
        return xp.take_along_axis(ranked, index, axis=-1)[..., 0], 0


class FractionalMax(Max):
    """The largest input of each window, for windows whose positions depend on samples."""

    name = "fractional_max"
    kernels = ON_CPUS
    operand = WindowSamples("_random_samples")


class Stochastic(Routed):
    """One input of each window, drawn with a probability proportional to its positive part."""

    name = "stochastic"
    kernels = ON_CPUS
    operand = Seed("generator")

    def check(self, window: Window, options: Any) -> None:
        super().check(window, options)
        require_valid_inputs(window)

    def forward(self, call: KernelCall) -> None:
        routes = call.residual[0] if call.residual else None
        call.kernels.draw(call.source, call.target, routes, call.operand, call.threads)

    def choose(self, xp: Any, windows: UnfoldedWindows, draw: Any, options: Any) -> Choice:
        valid, positions = windows.valid, _positions(xp, windows)
        values = xp.astype(windows.values, draw.dtype)
        positive = xp.where(valid & (values > 0), values, 0.0)
        if xp.finfo(draw.dtype).bits == 64:  # sums of the largest numbers would overflow
            large = xp.max(positive, axis=-1) > 2.0**900
            positive = xp.where(large, 2.0**-100, xp.ones_like(draw))[..., None] * positive
        reached = _running_sums(xp, positive)
        total = reached[..., -1]
        passed = reached > (draw * total)[..., None]
        last = xp.max(xp.where(positive > 0, positions, 0), axis=-1)
        drawn = xp.where(xp.any(passed, axis=-1), _first(xp, passed), last)
        # Where nothing is positive, all inputs are equally probable.
        count = xp.count_nonzero(valid, axis=-1)
        which = xp.astype(draw * xp.astype(count, draw.dtype), count.dtype)
        rank = xp.cumulative_sum(xp.astype(valid, count.dtype), axis=-1)
        alike = _first(xp, valid & (rank == which[..., None] + 1))
        winner = xp.where(total > 0, drawn, alike)
        return Choice(positions == winner[..., None], winner, _found(xp, windows), 0)


class MaxUnpool(Operator):
    """Writes every value to the position of its index; all other outputs are zero."""

    name = "max_unpool"
    kernels = ON_CPUS
    operand = Indices("indices")
    integers = True
    windowed = False

    def forward(self, call: KernelCall) -> None:
        call.kernels.unpool(call.source, call.operand, call.target, call.threads)

    def vjp(self, call: KernelCall) -> None:
        call.kernels.unpool_backward(call.source, call.operand, call.target, call.threads)

    jvp = forward


SELECTING = (Max(), ReLUMax(), Min(), Median(), Stochastic(), FractionalMax(), MaxUnpool())
