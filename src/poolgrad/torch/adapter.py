"""Defines every operator of the table as differentiable PyTorch operators.

For an operator ``name`` there are, in ``torch.ops.poolgrad``,

* ``name(x, [operand], window, channels_last, *options, [tracked]) -> (y, *residual)``,
* ``name_vjp(gy, [x], [operand], *residual, window, shape, channels_last, inner, *options) -> gx``,
  which takes the input if the operator is nonlinear, and returns the gradient of a learned
  parameter, too,
* ``name_jvp(t, [operand], *residual, window, channels_last, inner, *options) -> ty``, unless it
  is nonlinear,
* ``name_indices(x, [operand], residual, window, channels_last, *options) -> indices``, if it is
  selecting: flat positions in the planes of `x`, of which only the shape is read.

Schemas support integers only: `window` is a flattened `WindowSpec`. `_rebuild` turns the
arguments of such a call into a `Static`, `_flat` a `Static` into arguments; everything else passes
the `Static`.

For a fixed residual, the derivative of a pooling is linear, so `_vjp` and `_jvp` are each other's
derivative, and gradients of any order follow. The higher derivatives of nonlinear operators come
from `formulas`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from poolgrad import portable
from poolgrad.dtypes import FLOATS, name_of
from poolgrad.interface import Buffer, Operator
from poolgrad.operators import Prepared, for_each_operator
from poolgrad.torch import engines, formulas
from poolgrad.torch._compat import assert_later, mode_of, unwrapped
from poolgrad.torch.arrays import (
    allocate,
    as_operand,
    check_operand,
    checked,
    empty,
    inner_of,
    laid_out,
    prepare_call,
    readable,
    require,
    spec_of,
    stored,
)
from poolgrad.torch.batching import rule
from poolgrad.torch.derivatives import differentiable, refuse_nested_forward, save
from poolgrad.torch.devices import define, names_of_tensors
from poolgrad.torch.engines import Engine
from poolgrad.torch.library import library
from poolgrad.windows import Layout, fixed, flatten, lay_out

LIBRARY = library(__name__)

# A list may be missing, because programs that were exported without it have none.
_WORDS = {t: f"{t.__name__} {{}}" for t in (str, bool, int, float)} | {tuple: "float[] {}=[]"}

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
        self.operand_count = operator.operand.count
        defaults = operator.options._field_defaults
        self.kept = len(operator.residual(_example(), operator.options()))
        options = "".join(f", {_WORDS[type(v)].format(name)}" for name, v in defaults.items())
        operand = "Tensor operand, " * self.operand_count
        held = "Tensor x, " * operator.nonlinear + operand
        held += "".join(f"Tensor residual{k}, " for k in range(self.kept))
        outputs = ", ".join(["Tensor"] * (1 + self.kept))
        gradients = "(Tensor, Tensor)" if operator.learned else "Tensor"
        tracked = ", bool tracked" * operator.learned
        window, last = "SymInt[] window", f"bool channels_last, int inner{options}"
        call = f"{window}, bool channels_last{options}"
        schemas = {
            "": f"(Tensor x, {operand}{call}{tracked}) -> ({outputs})",
            "_vjp": f"(Tensor gy, {held}{window}, SymInt[] shape, {last}) -> {gradients}",
            "_jvp": f"(Tensor t, {held}{window}, {last}) -> Tensor",
            "_indices": f"(Tensor x, {held}{call}) -> Tensor",
        }
        if operator.nonlinear:
            del schemas["_jvp"]
        if not operator.selecting:
            del schemas["_indices"]
        self._tensors = {suffix: names_of_tensors(schema) for suffix, schema in schemas.items()}
        runs = {
            "": (self.forward, self.fake_forward),
            "_vjp": (self.vjp, self.fake_vjp),
            "_jvp": (self.jvp, self.fake_jvp),
            "_indices": (self.indices, self.fake_indices),
        }
        self.ops = {}
        for suffix, schema in schemas.items():
            functions = (*runs[suffix], self._launches)
            run, fake, launches = (self._of_schema(suffix, function) for function in functions)
            batched = rule(operator, suffix, len(self._tensors[suffix]))
            name = self.name + suffix
            self.ops[suffix] = define(LIBRARY, name, schema, run, fake, batched, launches)
        self._differentiate()

    # The arguments of a schema

    def _of_schema(self, suffix: str, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that takes the arguments of a schema and calls `run`."""
        tensors = len(self._tensors[suffix])
        return lambda *args: run(self._rebuild(suffix, *args), *args[:tensors])

    def _flat(self, suffix: str, static: Static) -> tuple[Any, ...]:
        """Return the arguments after the tensors."""
        ready = static.ready
        spec, last = flatten(ready.spec), ready.channels_last
        if suffix == "_vjp":
            return (spec, list(ready.layout.in_shape), last, ready.inner, *ready.options)
        if suffix == "_jvp":
            return (spec, last, ready.inner, *ready.options)
        return self.arguments(ready.spec, ready.options, last, static.tracked)

    def arguments(self, spec: Any, options: Any, last: bool, tracked: bool) -> tuple[Any, ...]:
        """Return the arguments of the forward operator after its tensors."""
        return (flatten(spec), last, *options, *(tracked,) * self.operator.learned)

    def _rebuild(self, suffix: str, *args: Any) -> Static:
        """Prepare the call that the arguments of a schema describe."""
        first, (window, *rest) = args[0], args[len(self._tensors[suffix]) :]
        spec, shape, tracked = spec_of(window), tuple(first.shape), True
        if suffix in ("", "_indices"):
            last, *options = rest
            tracked = not self.operator.learned or options.pop()
            inner = inner_of(first, spec, last)
        else:
            if name_of(first.dtype) not in FLOATS:
                raise TypeError(f"gradients must be of a floating dtype, got {first.dtype}")
            if suffix == "_vjp":
                shape, *rest = rest
            last, inner, *options = rest
        named = self.operator.options(*(tuple(o) if isinstance(o, list) else o for o in options))
        dtype = name_of(first.dtype)
        ready = prepare_call(self.name, spec, named, tuple(shape), last, inner, dtype)
        return Static(ready, tracked)

    # Implementations: the engine is that of the operator, its options, and the device

    def _engine(self, ready: Prepared, x: Tensor) -> Engine:
        return engines.engine_of(self.operator, ready.options, x)

    def _launches(self, static: Static, x: Tensor, *others: Tensor) -> bool:
        """Whether a call launches Triton kernels."""
        return self._engine(static.ready, x) is Engine.TRITON

    def forward(self, static: Static, x: Tensor, *operands: Tensor) -> Any:
        """Compute the output and the residual."""
        engine = self._engine(static.ready, x)
        if engine is Engine.PORTABLE:
            return self._portable_forward(static, x, self._operand(static.ready, operands, x))
        residual = self._residual(static, x, allocate)
        kept = residual if static.tracked else (*residual[:-1], None)
        y = allocate(static.ready.output, x)
        self._run_kernels("forward", engine, static.ready, readable("x", x), y, operands, kept)
        return (y, *residual) if residual else y

    def _run_kernels(
        self,
        method: str,
        engine: Engine,
        ready: Prepared,
        source: Tensor,
        target: Tensor,
        operands: Tensors,
        residual: tuple[Any, ...],
        x: Tensor | None = None,
    ) -> None:
        """Call a method of the operator with the kernels of an engine."""
        ready = engines.with_kernels(engine, ready)
        how = {"residual": residual, "operand": as_operand(ready, operands), "x": x}
        call = ready.call(source, target, threads=torch.get_num_threads(), **how)
        getattr(self.operator, method)(call)

    def _operand(self, ready: Prepared, operands: Tensors, like: Tensor) -> Tensor | None:
        """Return the extra operand on the device of the input; a seed may be on the CPU.

        On GPUs its values are checked by an assertion on the device, for which no call waits.
        """
        if not self.operand_count:
            return None
        check_operand(ready, operands[0])
        given, limits = operands[0].to(like.device), self.operator.operand.limits(ready.layout)
        if limits and engines.engine_of_device(like) is Engine.TRITON:
            least, end, words = limits
            valid = ((given >= least) & (given < end)).all()
            assert_later(valid, f"{self.operator.operand.name} must be {words}")
        return given

    def _portable_forward(self, static: Static, x: Tensor, operand: Tensor | None) -> Any:
        ready = static.ready
        y, kept = portable.forward(ready, x, operand, self.kept > 0)
        buffers = self._buffers(static, x)
        residual = tuple(map(stored, buffers, kept)) or tuple(empty(b, x) for b in buffers)
        y = stored(ready.output, y)
        return (y, *residual) if residual else y

    def _buffers(self, static: Static, x: Tensor) -> tuple[Buffer, ...]:
        """Return the residual, where arrays that `vjp` does not read are empty.

        It reads the slope of a parameter only for its gradient and, without kernels, nothing of a
        nonlinear operator, which it computes again from the input.
        """
        buffers = static.ready.residual
        read = len(buffers) - (not static.tracked)
        if self.operator.nonlinear and self._engine(static.ready, x) is Engine.PORTABLE:
            read = 0
        return (*buffers[:read], *(b._replace(shape=(0,), order=(0,)) for b in buffers[read:]))

    def _residual(self, static: Static, x: Tensor, make: _Make) -> Tensors:
        return tuple(make(b, x) for b in self._buffers(static, x))

    def vjp(self, static: Static, gy: Tensor, *held: Tensor) -> Any:
        """Compute the gradient of the input, and of a learned parameter."""
        ready, layout = static.ready, static.ready.layout
        x, operands, residual = self.operator.split(held)
        require("gy", gy, layout.out_shape, layout.out_dtype)
        if x is not None:
            require("x", x, layout.in_shape, layout.dtype)
        engine = self._engine(ready, gy)
        if engine is Engine.PORTABLE:
            operand = self._operand(ready, operands, gy)
            made = portable.vjp(ready, gy, x, operand, residual)
            gx = stored(ready.input, made[0])
            return (gx, made[1]) if self.operator.learned else gx
        tracked = not self.operator.learned or residual[-1].shape != (0,)
        known = self.kept if tracked else self.kept - 1  # the rest is an unused slope
        residual = (*laid_out(residual[:known], ready.residual[:known]), *residual[known:])
        gy, gx = readable("gy", gy), allocate(ready.input, gy)
        x = None if x is None else readable("x", x)
        self._run_kernels("vjp", engine, ready, gy, gx, operands, residual, x)
        if not self.operator.learned:
            return gx
        if not tracked:
            return gx, torch.zeros_like(operands[0])
        # The product has the strides of its first factor, and the order of the sum follows them.
        slopes = residual[-1] * gy.to(residual[-1].dtype)
        others = self.operator.operand.summed_axes(tuple(operands[0].shape), layout)
        total = slopes.sum(others, dtype=torch.float64) if others else slopes
        return gx, total.to(operands[0].dtype).reshape(operands[0].shape)

    def jvp(self, static: Static, t: Tensor, *held: Tensor) -> Tensor:
        """Compute the tangent of the output."""
        ready = static.ready
        _, operands, residual = self.operator.split(held)
        engine = self._engine(ready, t)
        if engine is Engine.PORTABLE:
            operand = self._operand(ready, operands, t)
            return stored(ready.output, portable.jvp(ready, t, operand, residual))
        t, y, kept = readable("t", t), allocate(ready.output, t), laid_out(residual, ready.residual)
        self._run_kernels("jvp", engine, ready, t, y, operands, kept)
        return y

    def indices(self, static: Static, x: Tensor, *held: Tensor) -> Tensor:
        """Convert routes to flat positions in the plane of the input."""
        ready, engine = static.ready, self._engine(static.ready, x)
        _, operands, (routes,) = self.operator.split(held)
        buffer = ready.per_output("int64")
        samples = operands if self.operator.operand.determines_windows else ()
        if engine is Engine.PORTABLE:
            return stored(buffer, portable.indices(ready.layout, routes, *samples))
        ready, indices = engines.with_kernels(engine, ready), allocate(buffer, routes)
        (routes,), placed = laid_out((routes,), ready.residual), as_operand(ready, samples)
        ready.kernels.route_indices(routes, indices, placed, torch.get_num_threads())
        return indices

    # Shapes without data; sizes may be symbolic

    def fake_forward(self, static: Static, x: Tensor, *operands: Tensor) -> Any:
        """Return an output and a residual of the right shapes."""
        y, residual = empty(static.ready.output, x), self._residual(static, x, empty)
        return (y, *residual) if residual else y

    def fake_vjp(self, static: Static, gy: Tensor, *held: Tensor) -> Any:
        """Return gradients of the right shapes."""
        gx = empty(static.ready.input, gy)
        return (
            (gx, torch.empty_like(self.operator.split(held)[1][0])) if self.operator.learned else gx
        )

    def fake_jvp(self, static: Static, t: Tensor, *held: Tensor) -> Tensor:
        """Return a tangent of the right shape."""
        return empty(static.ready.output, t)

    def fake_indices(self, static: Static, x: Tensor, *held: Tensor) -> Tensor:
        """Return indices of the right shape."""
        return empty(static.ready.per_output("int64"), x)

    # Derivatives

    def _defined(self, suffix: str, run: Any, keep: Any, backward: Any, jvp: Any) -> Any:
        flat, rebuild = partial(self._flat, suffix), partial(self._rebuild, suffix)
        return differentiable(self.ops[suffix], LIBRARY, run, flat, rebuild, keep, backward, jvp)

    def _differentiate(self) -> None:
        operator, operands = self.operator, self.operand_count

        def keep_forward(ctx: Any, static: Static, inputs: Tensors, output: Any) -> None:
            ctx.static = static
            ctx.set_materialize_grads(False)
            residual = output[1:] if self.kept else ()
            ctx.mark_non_differentiable(*residual)
            save(ctx, (*inputs[: 1 + operands][not operator.nonlinear :], *residual))

        def to_input(ctx: Any, gy: Tensor | None, *unused: Any) -> Any:
            if gy is None:
                return (None,) * ctx.inputs
            gradients = self.differentiable_vjp(ctx.static, gy, *ctx.saved_tensors)
            gradients = gradients if isinstance(gradients, tuple) else (gradients,)
            return (*gradients, *(None,) * (ctx.inputs - len(gradients)))

        if operator.nonlinear:
            self._differentiate_nonlinear(keep_forward, to_input)
            return

        def keep_held(ctx: Any, static: Static, inputs: Tensors, output: Any) -> None:
            ctx.static = static
            save(ctx, inputs[1:])

        def to_output(ctx: Any, t: Tensor | None, *unused: Any) -> Tensor:
            if t is None:  # only samples, which have no derivative, have a tangent
                return torch.zeros_like(empty(ctx.static.ready.output, ctx.saved_tensors[0]))
            return self.differentiable_jvp(ctx.static, t, *ctx.saved_tensors)

        def forward_jvp(ctx: Any, t: Tensor, *unused: Any) -> Any:
            y = to_output(ctx, t)
            return (y, *(None,) * self.kept) if self.kept else y

        def vjp_backward(ctx: Any, t: Tensor) -> Any:
            return (to_output(ctx, t), *(None,) * (ctx.inputs - 1))

        def vjp_jvp(ctx: Any, t: Tensor, *unused: Any) -> Any:
            return to_input(ctx, t)[0]

        self.differentiable_forward = self._defined(
            "", self.forward, keep_forward, to_input, forward_jvp
        )
        self.differentiable_vjp = self._defined("_vjp", self.vjp, keep_held, vjp_backward, vjp_jvp)
        self.differentiable_jvp = self._defined("_jvp", self.jvp, keep_held, to_input, to_output)

    def _differentiate_nonlinear(self, keep_forward: Any, to_input: Any) -> None:
        """Define the derivatives of forward that the kernels do not compute, and those of vjp."""
        operator = self.operator
        variables = 1 + operator.learned  # number of differentiable arguments

        def pool_of(ctx: Any) -> Any:
            ready: Prepared = ctx.static.ready
            return formulas.define(operator, ready.spec, ready.channels_last, ready.options)

        def checked_all(name: str, tensors: Any) -> tuple[Any, ...]:
            return tuple(None if t is None else checked(name, t) for t in tensors)

        def jvp_of(function: Any, values: Any, tangents: Any) -> Any:
            values = checked_all("residual", values)
            pairs = zip(values, checked_all("t", tangents), strict=False)
            full = tuple(torch.zeros_like(v) if t is None else t for v, t in pairs)
            with mode_of(unwrapped(values[0])):
                return formulas.jvp_by_double_vjp(function, values, full)

        def forward_jvp(ctx: Any, *tangents: Any) -> Any:
            refuse_nested_forward()
            y = jvp_of(pool_of(ctx), ctx.saved_tensors[:variables], tangents)
            return (y, *(None,) * self.kept)

        def keep_vjp(ctx: Any, static: Static, inputs: Tensors, output: Any) -> None:
            ctx.static = static
            save(ctx, inputs[: 1 + variables])

        def vjp_backward(ctx: Any, *cotangents: Any) -> Any:
            function = formulas.pullback_of(pool_of(ctx))
            saved = checked_all("residual", ctx.saved_tensors)
            with mode_of(unwrapped(saved[0])):
                gradients = torch.func.vjp(function, *saved)[1](checked_all("t", cotangents))
            return (*gradients, *(None,) * (ctx.inputs - len(gradients)))

        def vjp_jvp(ctx: Any, *tangents: Any) -> Any:
            result = jvp_of(formulas.pullback_of(pool_of(ctx)), ctx.saved_tensors, tangents)
            return result if operator.learned else result[0]

        self.differentiable_forward = self._defined(
            "", self.forward, keep_forward, to_input, forward_jvp
        )
        self.differentiable_vjp = self._defined("_vjp", self.vjp, keep_vjp, vjp_backward, vjp_jvp)


def _example() -> Layout:
    """Return an arbitrary layout, because the number of residual buffers does not depend on it."""
    return lay_out(fixed(1, 1), (1, 1), False, -1, "float32", "float32")


ADAPTERS: dict[str, Adapter] = {}


def _define(operator: Operator) -> None:
    if not operator.composed:
        ADAPTERS[operator.name] = Adapter(operator)


for_each_operator(_define)
