"""The generic adapter: every operator of the table as differentiable PyTorch operators.

For an operator ``name`` there are, in ``torch.ops.poolgrad``,

* ``name(x, [argument], rule, channels_last, *options) -> (y, *residual)``,
* ``name_pull(gy, [x], [argument], *residual, rule, shape, channels_last, inner, *options) -> gx``,
  which takes the input if the operator is curved, and gives a learned argument's gradient, too,
* ``name_push(t, [argument], *residual, rule, channels_last, inner, *options) -> ty``, unless it is
  curved.

A pooling whose residual is given is linear unless it is curved, so the last two are each other's
derivative, and gradients of any order follow. Those of curved operators come from `composed`. The
derivatives are written once and told to PyTorch twice: to the dispatcher, so that ``torch.compile``
takes the operators whole, and as ``autograd.Function``, which is what the transformations of
``torch.func`` ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from poolgrad.contract import FLOATS, Buffer, Operator
from poolgrad.core import Layout, lay_out
from poolgrad.operators import OPERATORS, Prepared, prepare
from poolgrad.rule import FRACTIONAL, Rule
from poolgrad.torch import composed, triton
from poolgrad.torch.arrays import (
    as_argument,
    check_memory,
    compact,
    empty,
    grouped,
    inner_of,
    laid_out,
    name_of,
    readable,
    room,
)
from poolgrad.torch.batching import batch
from poolgrad.torch.derivatives import LIBRARY, refuse_nested_forward, save, told
from poolgrad.torch.devices import on_device

_WORDS = {str: "str", bool: "bool", int: "int", float: "float"}

Tensors = tuple[Tensor, ...]
_Make = Callable[[Buffer, Tensor], Tensor]  # `room` for the kernels, `empty` for who only asks


def _output(layout: Layout, like: Tensor, make: _Make) -> Tensor:
    return make(Buffer(layout.out_shape, layout.order, layout.out_dtype), like)


def _input(layout: Layout, like: Tensor, make: _Make) -> Tensor:
    return make(Buffer(layout.in_shape, layout.order, layout.dtype), like)


class Where(NamedTuple):
    """Which windows of what, the arguments that follow the tensors of a pull or a push."""

    rule: list[int]
    shape: list[int]  # of the input; only a pull is told
    channels_last: bool
    inner: int
    options: tuple[Any, ...]


class Adapter:
    """One operator of the table, defined, differentiable and batched in PyTorch."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.name = operator.name
        self.given = int(operator.argument is not None)  # tensors beside the input
        self.kept = len(operator.residual(_example(), *(o.default for o in operator.options)))
        options = "".join(f", {_WORDS[o.type]} {o.name}" for o in operator.options)
        given = "Tensor argument, " * self.given
        held = "Tensor x, " * operator.curved + given
        held += "".join(f"Tensor residual{k}, " for k in range(self.kept))
        outputs = ", ".join(["Tensor"] * (1 + self.kept))
        gradients = "(Tensor, Tensor)" if operator.learned else "Tensor"
        tracked = ", bool tracked" * operator.learned
        rule, last = "SymInt[] rule", f"bool channels_last, int inner{options}"
        schemas = {
            "": f"(Tensor x, {given}{rule}, bool channels_last{options}{tracked}) -> ({outputs})",
            "_pull": f"(Tensor gy, {held}{rule}, SymInt[] shape, {last}) -> {gradients}",
            "_push": f"(Tensor t, {held}{rule}, {last}) -> Tensor",
        }
        if operator.curved:
            del schemas["_push"]
        self.ops = {}
        for suffix, schema in schemas.items():
            LIBRARY.define(f"{self.name}{suffix}{schema}")
            op = self.ops[suffix] = getattr(torch.ops.poolgrad, self.name + suffix).default
            what = suffix.strip("_") or "forward"
            on_device(op, getattr(self, what), LIBRARY)
            torch.library.register_fake(op, getattr(self, f"fake_{what}"), lib=LIBRARY)
        self._differentiate()
        batch(operator, self.ops, self.kept, LIBRARY)

    # What runs on the CPU

    def _ready(self, x: Tensor, where: Where, gradient: bool = False) -> Prepared:
        if gradient and name_of(x.dtype) not in FLOATS:
            raise TypeError(f"gradients must be of a floating dtype, got {x.dtype}")
        ready = prepare if x.is_cpu else triton.prepare
        return ready(
            self.name,
            self._rule(where),
            where.options,
            tuple(where.shape),
            where.channels_last,
            where.inner,
            name_of(x.dtype),
        )

    def _rule(self, where: Where) -> Rule:
        """The windows, as this operator's kernels take them.

        Raises
        ------
        ValueError
            If there are samples for other windows than fractional ones, or none for those.
        """
        rule, argument = grouped(where.rule), self.operator.argument
        sampled = argument is not None and argument.kind == "samples"
        if (rule[0][5] == FRACTIONAL) != sampled:
            words = "must" if sampled else "must not"
            raise ValueError(
                f"rule {words} have fractional windows (a last number of {FRACTIONAL} an axis) "
                f"for the operator {self.name}, got {where.rule}"
            )
        return rule

    def forward(self, x: Tensor, *args: Any) -> Any:
        """The output and the residual."""
        where, tracked = self._asked(x, args)
        self._check_memory("x", x, args[: self.given])
        ready, given = self._ready(x, where), compact(args[: self.given])
        argument = as_argument(ready, given)
        x, y = readable(x), _output(ready.plan, x, room)
        residual = self._residual(ready.residual, x, tracked, room)
        kept: list[Any] = list(residual)
        if not tracked:
            kept[-1] = None
        ready.operator.forward(
            ready.plan,
            x,
            argument,
            y,
            tuple(kept),
            torch.get_num_threads(),
            *where.options,
        )
        return (y, *residual) if residual else y

    def _check_memory(
        self, name: str, first: Tensor, given: Tensors, x: Tensors = (), residual: Tensors = ()
    ) -> None:
        """Check the memory of the tensors of a call, the `first` of which is called `name`."""
        check_memory(name, first)
        for tensor in x:
            check_memory("x", tensor)
        for tensor in given:
            check_memory(self.operator.argument.name, tensor)  # type: ignore[union-attr]
        for tensor in residual:
            check_memory("residual", tensor)

    def _asked(self, x: Tensor, args: tuple[Any, ...]) -> tuple[Where, bool]:
        """Where to pool, and whether a learned argument is to have a gradient."""
        rule, last, *options = args[self.given :]
        tracked = not self.operator.learned or options.pop()
        inner = inner_of(x, rule, last)
        return Where(rule, list(x.shape), last, inner, (*options,)), tracked

    def _residual(
        self, buffers: tuple[Buffer, ...], x: Tensor, tracked: bool, make: _Make
    ) -> tuple[Tensor, ...]:
        if tracked:
            return tuple(make(b, x) for b in buffers)
        slope = make(Buffer((0,), (0,), buffers[-1].dtype), x)  # what needs no gradient has none
        return (*(make(b, x) for b in buffers[:-1]), slope)

    def pull(self, gy: Tensor, *args: Any) -> Any:
        """The gradient of the input, and of a learned argument."""
        x, given, residual, where = self._split(args)
        self._check_memory("gy", gy, given, x, residual)
        given = compact(given)
        ready = self._ready(gy, where, gradient=True)
        if gy.shape != ready.plan.out_shape:
            raise ValueError(f"gy must have shape {ready.plan.out_shape}, got {tuple(gy.shape)}")
        if x and (x[0].dtype != gy.dtype or x[0].shape != ready.plan.in_shape):
            raise ValueError(
                f"x must be {gy.dtype} of shape {ready.plan.in_shape}, "
                f"got {x[0].dtype} of shape {tuple(x[0].shape)}"
            )
        tracked = not self.operator.learned or residual[-1].shape != (0,)
        known = self.kept if tracked else self.kept - 1  # the rest is a slope that was not wanted
        residual = (*laid_out(residual[:known], ready.residual[:known]), *residual[known:])
        argument, x = as_argument(ready, given), tuple(map(readable, x))
        gy, gx = readable(gy), _input(ready.plan, gy, room)
        ready.operator.pull(
            ready.plan,
            gy,
            x[0] if x else None,
            argument,
            residual,
            gx,
            torch.get_num_threads(),
            *where.options,
        )
        if not self.operator.learned:
            return gx
        if not tracked:
            return gx, torch.zeros_like(given[0])
        slopes = gy.to(residual[-1].dtype) * residual[-1]
        each = given[0].shape == (ready.plan.channels,)  # may be one or none, too
        channel = ready.plan.channel if each else -1
        others = [a for a in range(slopes.dim()) if a != channel]
        total = slopes.sum(others, dtype=torch.float64) if others else slopes
        return gx, total.to(given[0].dtype).reshape(given[0].shape)

    def push(self, t: Tensor, *args: Any) -> Tensor:
        """The tangent of the output."""
        _, given, residual, where = self._split(args, t.shape)
        self._check_memory("t", t, given, (), residual)
        given = compact(given)
        ready = self._ready(t, where, gradient=True)
        residual = laid_out(residual, ready.residual)
        argument = as_argument(ready, given)
        t, y = readable(t), _output(ready.plan, t, room)
        ready.operator.push(
            ready.plan,
            t,
            argument,
            residual,
            y,
            torch.get_num_threads(),
            *where.options,
        )
        return y

    # What comes out, without running; sizes may be symbols

    def _layout(self, x: Tensor, where: Where) -> Layout:
        dtype = name_of(x.dtype)
        if not self.operator.accepts(dtype):
            raise self.operator.refuse_dtype(dtype)
        layout = lay_out(
            self._rule(where),
            tuple(where.shape),
            where.channels_last,
            where.inner,
            dtype,
            self.operator.result(dtype),
        )
        self.operator.check(layout.window, *where.options)
        return layout

    def fake_forward(self, x: Tensor, *args: Any) -> Any:
        """An output and a residual of the right shapes."""
        where, tracked = self._asked(x, args)
        layout = self._layout(x, where)
        y = _output(layout, x, empty)
        buffers = self.operator.residual(layout, *where.options)
        residual = self._residual(buffers, x, tracked, empty)
        return (y, *residual) if residual else y

    def fake_pull(self, gy: Tensor, *args: Any) -> Any:
        """Gradients of the right shapes."""
        _, given, _, where = self._split(args)
        gx = _input(self._layout(gy, where), gy, empty)
        return (gx, torch.empty_like(given[0])) if self.operator.learned else gx

    def fake_push(self, t: Tensor, *args: Any) -> Tensor:
        """A tangent of the right shape."""
        where = self._split(args, t.shape)[-1]
        return _output(self._layout(t, where), t, empty)

    def _split(self, args: tuple[Any, ...], shape: Any = None) -> tuple[Any, Any, Any, Where]:
        """Input, argument, residual and the rest of what follows the first tensor.

        `shape`: of the input, if the arguments do not say it.
        """
        first, second = int(self.operator.curved), int(self.operator.curved) + self.given
        third = second + self.kept
        rule, *rest = args[third:]
        size = shape if shape is not None else rest.pop(0)
        where = Where(rule, size, rest[0], rest[1], tuple(rest[2:]))
        return args[:first], args[first:second], args[second:third], where

    # Derivatives

    def _differentiate(self) -> None:
        operator, given = self.operator, self.given

        def keep_forward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.where, _ = self._asked(inputs[0], inputs[1:])
            ctx.set_materialize_grads(False)
            residual = output[1:] if self.kept else ()
            ctx.mark_non_differentiable(*residual)
            save(ctx, (*inputs[: 1 + given][not operator.curved :], *residual), inputs)

        def pulled(ctx: Any, gy: Tensor | None, *unused: Any) -> Any:
            if gy is None:
                return (None,) * ctx.inputs
            where = ctx.where
            gradients = self.pull_of(gy, *ctx.saved_tensors, *where[:4], *where.options)
            gradients = gradients if isinstance(gradients, tuple) else (gradients,)
            return (*gradients, *(None,) * (ctx.inputs - len(gradients)))

        if operator.curved:
            self._differentiate_curved(keep_forward, pulled)
            return

        def keep_pull(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            _, arguments, residual, ctx.where = self._split(inputs[1:])
            save(ctx, (*arguments, *residual), inputs)

        def keep_push(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            _, arguments, residual, ctx.where = self._split(inputs[1:], inputs[0].shape)
            save(ctx, (*arguments, *residual), inputs)

        def pushed(ctx: Any, t: Tensor) -> Tensor:
            rule, _, last, inner, options = ctx.where
            pooled: Tensor = self.push_of(t, *ctx.saved_tensors, rule, last, inner, *options)
            return pooled

        def pushed_back(ctx: Any, t: Tensor) -> Any:
            return (pushed(ctx, t), *(None,) * (ctx.inputs - 1))

        def pulled_ahead(ctx: Any, t: Tensor, *unused: Any) -> Any:
            return pulled(ctx, t)[0]

        def pushed_ahead(ctx: Any, t: Tensor, *unused: Any) -> Any:
            return (pushed(ctx, t), *(None,) * self.kept) if self.kept else pushed(ctx, t)

        def pushed_on(ctx: Any, t: Tensor, *unused: Any) -> Any:
            return pushed(ctx, t)

        held = 1 + given + self.kept
        self.forward_of = told(
            self.ops[""], self.forward, 1 + given, keep_forward, pulled, pushed_ahead
        )
        self.pull_of = told(
            self.ops["_pull"], self.pull, held, keep_pull, pushed_back, pulled_ahead
        )
        self.push_of = told(self.ops["_push"], self.push, held, keep_push, pulled, pushed_on)

    def _differentiate_curved(self, keep_forward: Any, pulled: Any) -> None:
        """The derivatives of forward that the kernels do not compute, and those of pull."""
        operator, given = self.operator, self.given
        variables = 1 + operator.learned  # what forward is differentiated by

        def pool_of(ctx: Any) -> Any:
            rule, _, last, _, options = ctx.where
            return composed.define(operator, rule, last, options)

        def ahead(function: Any, values: Any, tangents: Any) -> Any:
            pairs = zip(values, tangents, strict=False)
            full = tuple(torch.zeros_like(v) if t is None else t for v, t in pairs)
            return composed.push_forward(function, values, full)

        def pushed_ahead(ctx: Any, *tangents: Any) -> Any:
            refuse_nested_forward()
            y = ahead(pool_of(ctx), ctx.saved_tensors[:variables], tangents)
            return (y, *(None,) * self.kept)

        def keep_pull(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.where = self._split(inputs[1:])[-1]
            save(ctx, inputs[: 1 + variables], inputs)

        def pulled_back(ctx: Any, *cotangents: Any) -> Any:
            function = composed.pull_back(pool_of(ctx))
            gradients = torch.func.vjp(function, *ctx.saved_tensors)[1](cotangents)
            return (*gradients, *(None,) * (ctx.inputs - len(gradients)))

        def pulled_ahead(ctx: Any, *tangents: Any) -> Any:
            result = ahead(composed.pull_back(pool_of(ctx)), ctx.saved_tensors, tangents)
            return result if operator.learned else result[0]

        held = 2 + given + self.kept
        self.forward_of = told(
            self.ops[""], self.forward, 1 + given, keep_forward, pulled, pushed_ahead
        )
        self.pull_of = told(
            self.ops["_pull"], self.pull, held, keep_pull, pulled_back, pulled_ahead
        )


def _example() -> Layout:
    """Some layout: how many buffers a residual has does not depend on it."""
    return lay_out(((1, 1, 0, 0, 1, 0),), (1, 1), False, -1, "float32", "float32")


ADAPTERS = {name: Adapter(operator) for name, operator in OPERATORS.items()}
