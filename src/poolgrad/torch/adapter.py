"""Defines every operator of the table as differentiable PyTorch operators.

For an operator ``name`` there are, in ``torch.ops.poolgrad``,

* ``name(x, [operand], window, channels_last, *options, [tracked]) -> (y, *residual)``,
* ``name_pull(gy, [x], [operand], *residual, window, shape, channels_last, inner, *options) -> gx``,
  which takes the input if the operator is nonlinear, and returns the gradient of a learned
  parameter, too,
* ``name_push(t, [operand], *residual, window, channels_last, inner, *options) -> ty``, unless it
  is nonlinear.

Schemas support integers only: `window` is a flattened `WindowSpec`. `_rebuild` turns the
arguments of such a call into a `Static`, `_flat` a `Static` into arguments; everything else passes
the `Static`.

For a fixed residual, the derivative of a pooling is linear, so `_pull` and `_push` are each other's
derivative, and gradients of any order follow. The higher derivatives of nonlinear operators come
from `composed`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from poolgrad import portable
from poolgrad.contract import FLOATS, Buffer, Operator
from poolgrad.core import Layout, lay_out
from poolgrad.operators import OPERATORS, Prepared
from poolgrad.torch import composed
from poolgrad.torch.arrays import (
    DTYPES,
    allocate,
    as_operand,
    check_memory,
    compact,
    empty,
    has_kernels,
    inner_of,
    laid_out,
    name_of,
    prepared,
    readable,
    spec_of,
    stored,
    with_kernels_for,
)
from poolgrad.torch.batching import batch
from poolgrad.torch.derivatives import (
    LIBRARY,
    differentiable,
    refuse_nested_forward,
    save,
)
from poolgrad.torch.devices import names_of_tensors, on_one_device, register
from poolgrad.windows import fixed, flatten

_WORDS = {str: "str", bool: "bool", int: "int", float: "float"}

Tensors = tuple[Tensor, ...]
_Make = Callable[[Buffer, Tensor], Tensor]  # `allocate` for the kernels, `empty` for fake tensors


class Static:
    """The arguments of a call that are not tensors.

    Attributes
    ----------
    ready : Prepared
        The checked call.
    tracked : bool
        Whether a learned parameter needs a gradient.
    """

    __slots__ = ("ready", "tracked")

    def __init__(self, ready: Prepared, tracked: bool = True) -> None:
        self.ready, self.tracked = ready, tracked or not ready.operator.learned


class Adapter:
    """One operator of the table, defined, differentiable and batched in PyTorch."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.name = operator.name
        self.given = operator.operand.count
        defaults = operator.options._field_defaults
        self.kept = len(operator.residual(_example(), *defaults.values()))
        options = "".join(f", {_WORDS[type(v)]} {name}" for name, v in defaults.items())
        given = "Tensor operand, " * self.given
        held = "Tensor x, " * operator.nonlinear + given
        held += "".join(f"Tensor residual{k}, " for k in range(self.kept))
        outputs = ", ".join(["Tensor"] * (1 + self.kept))
        gradients = "(Tensor, Tensor)" if operator.learned else "Tensor"
        tracked = ", bool tracked" * operator.learned
        window, last = "SymInt[] window", f"bool channels_last, int inner{options}"
        schemas = {
            "": f"(Tensor x, {given}{window}, bool channels_last{options}{tracked}) -> ({outputs})",
            "_pull": f"(Tensor gy, {held}{window}, SymInt[] shape, {last}) -> {gradients}",
            "_push": f"(Tensor t, {held}{window}, {last}) -> Tensor",
        }
        if operator.nonlinear:
            del schemas["_push"]
        self._tensors = {suffix: names_of_tensors(schema) for suffix, schema in schemas.items()}
        runs = {"": self.forward, "_pull": self.pull, "_push": self.push}
        fakes = {"": self.fake_forward, "_pull": self.fake_pull, "_push": self.fake_push}
        self.ops = {}
        for suffix, schema in schemas.items():
            LIBRARY.define(f"{self.name}{suffix}{schema}")
            op = self.ops[suffix] = getattr(torch.ops.poolgrad, self.name + suffix).default
            register(op, self._of_schema(suffix, runs[suffix]), LIBRARY)
            fake = self._of_schema(suffix, fakes[suffix])
            torch.library.register_fake(op, fake, lib=LIBRARY)
        self._differentiate()
        batch(operator, self.ops, self.kept, LIBRARY)

    # The arguments of a schema

    def _of_schema(self, suffix: str, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that takes the arguments of a schema and calls `run`."""
        names = self._tensors[suffix]
        return on_one_device(
            names, lambda *args: run(self._rebuild(suffix, *args), *args[: len(names)])
        )

    def _flat(self, suffix: str, static: Static) -> tuple[Any, ...]:
        """Return the arguments after the tensors."""
        ready = static.ready
        spec, last = flatten(ready.spec), ready.channels_last
        if suffix == "_pull":
            return (spec, list(ready.layout.in_shape), last, ready.inner, *ready.options)
        if suffix == "_push":
            return (spec, last, ready.inner, *ready.options)
        return self.arguments(ready.spec, ready.options, last, static.tracked)

    def arguments(self, spec: Any, options: Any, last: bool, tracked: bool) -> tuple[Any, ...]:
        """Return the arguments of the forward operator after its tensors."""
        return (flatten(spec), last, *options, *(tracked,) * self.operator.learned)

    def _rebuild(self, suffix: str, *args: Any) -> Static:
        """Prepare the call that the arguments of a schema describe."""
        first, (window, *rest) = args[0], args[len(self._tensors[suffix]) :]
        spec, shape, tracked = spec_of(window), tuple(first.shape), True
        if suffix == "":
            last, *options = rest
            tracked = not self.operator.learned or options.pop()
            inner = inner_of(first, spec, last)
        else:
            if name_of(first.dtype) not in FLOATS:
                raise TypeError(f"gradients must be of a floating dtype, got {first.dtype}")
            if suffix == "_pull":
                shape, *rest = rest
            last, inner, *options = rest
        named = self.operator.options(*options)
        dtype = name_of(first.dtype)
        ready = prepared(self.name, spec, named, tuple(shape), last, inner, dtype)
        return Static(ready, tracked)

    def _held(self, held: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        """Split the tensors after the first of a pull or push: input, operand and residual."""
        first = int(self.operator.nonlinear)
        second = first + self.given
        return held[:first], held[first:second], held[second:]

    # Implementations: kernels on CPUs and, with Triton, on GPUs; otherwise `poolgrad.portable`

    def forward(self, static: Static, x: Tensor, *given: Tensor) -> Any:
        """Compute the output and the residual."""
        if not has_kernels(x):
            return self._portable_forward(static, x, self._operand(given, x))
        ready = with_kernels_for(static.ready, x)
        self._check_memory("x", x, given)
        operand = as_operand(ready, compact(given))
        x, y = readable(x), allocate(ready.output, x)
        residual = self._residual(static, x, allocate)
        kept: list[Any] = list(residual)
        if not static.tracked:
            kept[-1] = None
        ready.forward(x, operand, y, tuple(kept), torch.get_num_threads())
        return (y, *residual) if residual else y

    def _operand(self, given: Tensors, like: Tensor) -> Tensor | None:
        """Return the extra operand on the device of the input; a seed may be on the CPU."""
        return given[0].to(like.device) if self.given else None

    def _portable_forward(self, static: Static, x: Tensor, operand: Tensor | None) -> Any:
        ready = static.ready
        y, kept = portable.forward(
            self.operator, ready.layout, x, operand, ready.options, self.kept > 0
        )
        buffers = ready.residual
        if not static.tracked:  # no slope without a gradient
            kept = (*kept[:-1], kept[-1].new_empty(0))
            buffers = (*buffers[:-1], buffers[-1]._replace(shape=(0,), order=(0,)))
        y, residual = stored(ready.output, y), tuple(map(stored, buffers, kept))
        return (y, *residual) if residual else y

    def _portable_pull(
        self, ready: Prepared, gy: Tensor, x: Tensors, given: Tensors, residual: Tensors
    ) -> Any:
        operand, value = self._operand(given, gy), x[0] if x else None
        gradients = portable.pull(
            self.operator, ready.layout, gy, value, operand, residual, ready.options
        )
        gx = stored(ready.input, gradients[0])
        return (gx, gradients[1]) if self.operator.learned else gx

    def _check_memory(
        self, name: str, first: Tensor, given: Tensors, x: Tensors = (), residual: Tensors = ()
    ) -> None:
        """Check the memory of the tensors of a call; `name` is the name of `first`."""
        check_memory(name, first)
        for tensor in x:
            check_memory("x", tensor)
        for tensor in given:
            check_memory(self.operator.operand.name, tensor)
        for tensor in residual:
            check_memory("residual", tensor)

    def _residual(self, static: Static, x: Tensor, make: _Make) -> Tensors:
        buffers = static.ready.residual
        if static.tracked:
            return tuple(make(b, x) for b in buffers)
        slope = make(
            Buffer((0,), (0,), buffers[-1].dtype), x
        )  # without a gradient the derivative is empty
        return (*(make(b, x) for b in buffers[:-1]), slope)

    def pull(self, static: Static, gy: Tensor, *held: Tensor) -> Any:
        """Compute the gradient of the input, and of a learned parameter."""
        ready, layout = static.ready, static.ready.layout
        x, given, residual = self._held(held)
        if not has_kernels(gy):
            return self._portable_pull(ready, gy, x, given, residual)
        ready = with_kernels_for(ready, gy)
        self._check_memory("gy", gy, given, x, residual)
        given = compact(given)
        dtype = DTYPES[layout.dtype]
        if gy.shape != layout.out_shape or gy.dtype != dtype:
            raise ValueError(
                f"gy must have shape {layout.out_shape} and dtype {dtype}, "
                f"got {tuple(gy.shape)} and {gy.dtype}"
            )
        if x and (x[0].dtype != gy.dtype or x[0].shape != layout.in_shape):
            raise ValueError(
                f"x must be {gy.dtype} of shape {layout.in_shape}, "
                f"got {x[0].dtype} of shape {tuple(x[0].shape)}"
            )
        tracked = not self.operator.learned or residual[-1].shape != (0,)
        known = self.kept if tracked else self.kept - 1  # the rest is an unused slope
        residual = (*laid_out(residual[:known], ready.residual[:known]), *residual[known:])
        operand, x = as_operand(ready, given), tuple(map(readable, x))
        gy, gx = readable(gy), allocate(ready.input, gy)
        threads = torch.get_num_threads()
        ready.pull(gy, x[0] if x else None, operand, residual, gx, threads)
        if not self.operator.learned:
            return gx
        if not tracked:
            return gx, torch.zeros_like(given[0])
        slopes = gy.to(residual[-1].dtype) * residual[-1]
        others = self.operator.operand.summed_axes(tuple(given[0].shape), layout)
        total = slopes.sum(others, dtype=torch.float64) if others else slopes
        return gx, total.to(given[0].dtype).reshape(given[0].shape)

    def push(self, static: Static, t: Tensor, *held: Tensor) -> Tensor:
        """Compute the tangent of the output."""
        ready = static.ready
        _, given, residual = self._held(held)
        if not has_kernels(t):
            operand = self._operand(given, t)
            y = portable.push(self.operator, ready.layout, t, operand, residual, ready.options)
            return stored(ready.output, y)
        ready = with_kernels_for(ready, t)
        self._check_memory("t", t, given, (), residual)
        residual = laid_out(residual, ready.residual)
        operand = as_operand(ready, compact(given))
        t, y = readable(t), allocate(ready.output, t)
        ready.push(t, operand, residual, y, torch.get_num_threads())
        return y

    # Shapes without data; sizes may be symbolic

    def fake_forward(self, static: Static, x: Tensor, *given: Tensor) -> Any:
        """Return an output and a residual of the right shapes."""
        y, residual = empty(static.ready.output, x), self._residual(static, x, empty)
        return (y, *residual) if residual else y

    def fake_pull(self, static: Static, gy: Tensor, *held: Tensor) -> Any:
        """Return gradients of the right shapes."""
        gx = empty(static.ready.input, gy)
        return (gx, torch.empty_like(self._held(held)[1][0])) if self.operator.learned else gx

    def fake_push(self, static: Static, t: Tensor, *held: Tensor) -> Tensor:
        """Return a tangent of the right shape."""
        return empty(static.ready.output, t)

    # Derivatives

    def _defined(self, suffix: str, run: Any, keep: Any, backward: Any, jvp: Any) -> Any:
        return differentiable(
            self.ops[suffix],
            len(self._tensors[suffix]),
            run,
            partial(self._flat, suffix),
            partial(self._rebuild, suffix),
            keep,
            backward,
            jvp,
        )

    def _differentiate(self) -> None:
        operator, given = self.operator, self.given

        def keep_forward(ctx: Any, static: Static, inputs: Tensors, output: Any) -> None:
            ctx.static = static
            ctx.set_materialize_grads(False)
            residual = output[1:] if self.kept else ()
            ctx.mark_non_differentiable(*residual)
            save(ctx, (*inputs[: 1 + given][not operator.nonlinear :], *residual))

        def pulled(ctx: Any, gy: Tensor | None, *unused: Any) -> Any:
            if gy is None:
                return (None,) * ctx.inputs
            gradients = self.pull_of(ctx.static, gy, *ctx.saved_tensors)
            gradients = gradients if isinstance(gradients, tuple) else (gradients,)
            return (*gradients, *(None,) * (ctx.inputs - len(gradients)))

        if operator.nonlinear:
            self._differentiate_nonlinear(keep_forward, pulled)
            return

        def keep_held(ctx: Any, static: Static, inputs: Tensors, output: Any) -> None:
            ctx.static = static
            save(ctx, inputs[1:])

        def pushed(ctx: Any, t: Tensor) -> Tensor:
            y: Tensor = self.push_of(ctx.static, t, *ctx.saved_tensors)
            return y

        def pushed_back(ctx: Any, t: Tensor) -> Any:
            return (pushed(ctx, t), *(None,) * (ctx.inputs - 1))

        def pulled_ahead(ctx: Any, t: Tensor, *unused: Any) -> Any:
            return pulled(ctx, t)[0]

        def pushed_ahead(ctx: Any, t: Tensor, *unused: Any) -> Any:
            return (pushed(ctx, t), *(None,) * self.kept) if self.kept else pushed(ctx, t)

        def pushed_on(ctx: Any, t: Tensor, *unused: Any) -> Any:
            return pushed(ctx, t)

        self.forward_of = self._defined("", self.forward, keep_forward, pulled, pushed_ahead)
        self.pull_of = self._defined("_pull", self.pull, keep_held, pushed_back, pulled_ahead)
        self.push_of = self._defined("_push", self.push, keep_held, pulled, pushed_on)

    def _differentiate_nonlinear(self, keep_forward: Any, pulled: Any) -> None:
        """Define the derivatives of forward that the kernels do not compute, and those of pull."""
        operator = self.operator
        variables = 1 + operator.learned  # number of differentiable arguments

        def pool_of(ctx: Any) -> Any:
            ready: Prepared = ctx.static.ready
            return composed.define(operator, ready.spec, ready.channels_last, ready.options)

        def ahead(function: Any, values: Any, tangents: Any) -> Any:
            pairs = zip(values, tangents, strict=False)
            full = tuple(torch.zeros_like(v) if t is None else t for v, t in pairs)
            return composed.push_forward(function, values, full)

        def pushed_ahead(ctx: Any, *tangents: Any) -> Any:
            refuse_nested_forward()
            y = ahead(pool_of(ctx), ctx.saved_tensors[:variables], tangents)
            return (y, *(None,) * self.kept)

        def keep_pull(ctx: Any, static: Static, inputs: Tensors, output: Any) -> None:
            ctx.static = static
            save(ctx, inputs[: 1 + variables])

        def pulled_back(ctx: Any, *cotangents: Any) -> Any:
            function = composed.pull_back(pool_of(ctx))
            gradients = torch.func.vjp(function, *ctx.saved_tensors)[1](cotangents)
            return (*gradients, *(None,) * (ctx.inputs - len(gradients)))

        def pulled_ahead(ctx: Any, *tangents: Any) -> Any:
            result = ahead(composed.pull_back(pool_of(ctx)), ctx.saved_tensors, tangents)
            return result if operator.learned else result[0]

        self.forward_of = self._defined("", self.forward, keep_forward, pulled, pushed_ahead)
        self.pull_of = self._defined("_pull", self.pull, keep_pull, pulled_back, pulled_ahead)


def _example() -> Layout:
    """Return an arbitrary layout, because the number of residual buffers does not depend on it."""
    return lay_out(fixed(1, 1), (1, 1), False, -1, "float32", "float32")


ADAPTERS = {
    name: Adapter(operator) for name, operator in OPERATORS.items() if not operator.composed
}
