"""The generic adapter: every operator of the table as differentiable PyTorch operators.

For an operator ``name`` there are three, in ``torch.ops.poolgrad``:

* ``name(x, rule, channels_last, *options) -> (y, *residual)``,
* ``name_pull(gy, residual, rule, shape, channels_last, inner, *options) -> gx``,
* ``name_push(t, residual, rule, channels_last, inner, *options) -> ty``.

A pooling whose residual is given is linear, so the last two are each other's derivative, and
gradients of any order follow. Their derivatives are written once and told to PyTorch twice: to the
dispatcher, so that ``torch.compile`` takes the operators whole, and as ``autograd.Function``, which
is what the transformations of ``torch.func`` ask for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poolgrad.core import Layout, inner_axis, lay_out
from poolgrad.operators import OPERATORS, Buffer, Operator, Prepared, Request, prepare
from poolgrad.window import Rule

_LIBRARY = torch.library.Library("poolgrad", "DEF")
_WORDS = {str: "str", bool: "bool", int: "int", float: "float"}
_DTYPES = {
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "int64": torch.int64,
}


def _grouped(rule: list[int]) -> Rule:
    numbers = iter(rule)
    return tuple(zip(*[numbers] * 6, strict=True))


def _inner(x: Tensor, dims: int, channels_last: bool) -> int:
    try:
        return inner_axis(tuple(x.shape), x.stride(), dims, channels_last)
    except TypeError:  # symbolic sizes cannot be remembered
        return inner_axis.__wrapped__(tuple(x.shape), x.stride(), dims, channels_last)


def _check(x: Tensor) -> None:
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"x must be of dtype float32 or float64, got {x.dtype}")


def _empty(buffer: Buffer, like: Tensor) -> Tensor:
    dtype = _DTYPES.get(buffer.dtype, like.dtype)
    if buffer.order == tuple(range(len(buffer.shape))):
        return torch.empty(buffer.shape, dtype=dtype, device=like.device)
    return torch.empty_permuted(buffer.shape, buffer.order, dtype=dtype, device=like.device)


def _output(layout: Layout, like: Tensor) -> Tensor:
    return _empty(Buffer(layout.out_shape, layout.order, ""), like)


def _input(layout: Layout, like: Tensor) -> Tensor:
    return _empty(Buffer(layout.in_shape, layout.order, ""), like)


def _laid_out(given: tuple[Tensor, ...], expected: tuple[Buffer, ...]) -> tuple[Tensor, ...]:
    """A residual as forward made it: it may have been saved and come back lying otherwise."""
    laid_out = []
    for tensor, buffer in zip(given, expected, strict=True):
        if tensor.shape != buffer.shape or tensor.dtype != _DTYPES[buffer.dtype]:
            raise ValueError(
                f"residual must be {buffer.dtype} of shape {buffer.shape}, "
                f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
        back = [buffer.order.index(a) for a in range(len(buffer.order))]
        laid_out.append(tensor.permute(buffer.order).contiguous().permute(back))
    return tuple(laid_out)


def _handed(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    """A tensor as the kernels take it."""
    return tensor.data_ptr(), tensor.stride()


def _real(tensor: Tensor) -> Tensor:
    """Conjugate and negative views are promises: keep them before reading memory."""
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def _save(ctx: Any, kept: tuple[Tensor, ...], inputs: tuple[Any, ...]) -> None:
    ctx.inputs = len(inputs)
    ctx.save_for_backward(*kept)
    ctx.save_for_forward(*kept)


class _Static:
    """Arguments that are no tensors, as one: PyTorch's transformations take lists apart."""

    def __init__(self, *values: Any) -> None:
        self.values = values


def _told(op: Any, tensors: int, keep: Any, backward: Any, jvp: Any) -> Any:
    """The operator, with its derivatives `backward` and `jvp`, and what they `keep`.

    Its first `tensors` arguments are tensors.
    """
    torch.library.register_autograd(op, backward, setup_context=keep, lib=_LIBRARY)

    def function_keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, (*inputs[:-1], *inputs[-1].values), output)

    members = {
        "forward": staticmethod(lambda *args: op(*args[:-1], *args[-1].values)),
        "setup_context": staticmethod(function_keep),
        "backward": staticmethod(lambda ctx, *gs: (*backward(ctx, *gs)[:tensors], None)),
        "jvp": staticmethod(jvp),
        "generate_vmap_rule": True,
    }
    function: Any = type(op.name(), (torch.autograd.Function,), members)

    def call(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return op(*args)
        return function.apply(*args[:tensors], _Static(*args[tensors:]))

    return call


class Adapter:
    """One operator of the table, defined, differentiable and batched in PyTorch."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.name = operator.name
        self.has_residual = operator.selecting
        options = "".join(f", {_WORDS[o.type]} {o.name}" for o in operator.options)
        rule = "SymInt[] rule"
        kept = "Tensor residual, " if self.has_residual else ""
        outputs = "(Tensor, Tensor)" if self.has_residual else "Tensor"
        _LIBRARY.define(f"{self.name}(Tensor x, {rule}, bool channels_last{options}) -> {outputs}")
        _LIBRARY.define(
            f"{self.name}_pull(Tensor gy, {kept}{rule}, SymInt[] shape, bool channels_last, "
            f"int inner{options}) -> Tensor"
        )
        _LIBRARY.define(
            f"{self.name}_push(Tensor t, {kept}{rule}, bool channels_last, int inner{options}) "
            "-> Tensor"
        )
        ops = torch.ops.poolgrad
        self.forward_op = getattr(ops, self.name).default
        self.pull_op = getattr(ops, f"{self.name}_pull").default
        self.push_op = getattr(ops, f"{self.name}_push").default
        for suffix, run in (("", self.forward), ("_pull", self.pull), ("_push", self.push)):
            _LIBRARY.impl(f"{self.name}{suffix}", run, "CPU")
        for op, fake in (
            (self.forward_op, self.fake_forward),
            (self.pull_op, self.fake_pull),
            (self.push_op, self.fake_push),
        ):
            torch.library.register_fake(op, fake, lib=_LIBRARY)
        self._differentiate()
        self._batch()

    # What runs on the CPU

    def _ready(
        self,
        x: Tensor,
        rule: list[int],
        options: tuple[Any, ...],
        shape: tuple[int, ...],
        channels_last: bool,
        inner: int,
    ) -> Prepared:
        _check(x)
        return prepare(
            self.name, _grouped(rule), options, shape, channels_last, inner, x.element_size()
        )

    def forward(self, x: Tensor, rule: list[int], channels_last: bool, *options: Any) -> Any:
        """The output and the residual."""
        inner = _inner(x, len(rule) // 6, channels_last)
        ready = self._ready(x, rule, options, tuple(x.shape), channels_last, inner)
        x, y = _real(x), _output(ready.plan, x)
        residual = tuple(_empty(b, x) for b in ready.residual)
        handed, threads = tuple(map(_handed, residual)), torch.get_num_threads()
        ready.operator.forward(ready.plan, _handed(x), _handed(y), handed, threads, *options)
        return (y, *residual) if residual else y

    def pull(self, gy: Tensor, *args: Any) -> Tensor:
        """The gradient of the input."""
        residual, (rule, shape, channels_last, inner, *options) = self._split(args)
        ready = self._ready(gy, rule, (*options,), tuple(shape), channels_last, inner)
        if gy.shape != ready.plan.out_shape:
            raise ValueError(f"gy must have shape {ready.plan.out_shape}, got {tuple(gy.shape)}")
        residual = _laid_out(residual, ready.residual)
        gy, gx = _real(gy), _input(ready.plan, gy)
        handed, threads = tuple(map(_handed, residual)), torch.get_num_threads()
        ready.operator.pull(ready.plan, _handed(gy), handed, _handed(gx), threads, *options)
        return gx

    def push(self, t: Tensor, *args: Any) -> Tensor:
        """The tangent of the output."""
        residual, (rule, channels_last, inner, *options) = self._split(args)
        ready = self._ready(t, rule, (*options,), tuple(t.shape), channels_last, inner)
        residual = _laid_out(residual, ready.residual)
        t, y = _real(t), _output(ready.plan, t)
        if inner >= 0 and t.stride(inner) != 1:  # forward kernels read the inner axis in one piece
            t = t.movedim(inner, -1).contiguous().movedim(-1, inner)
        handed, threads = tuple(map(_handed, residual)), torch.get_num_threads()
        ready.operator.push(ready.plan, _handed(t), handed, _handed(y), threads, *options)
        return y

    # What comes out, without running; sizes may be symbols

    def fake_forward(self, x: Tensor, rule: list[int], channels_last: bool, *options: Any) -> Any:
        """An output and a residual of the right shapes."""
        inner = _inner(x, len(rule) // 6, channels_last)
        layout = self._layout(x, rule, tuple(x.shape), channels_last, inner, options)
        y = _output(layout, x)
        residual = tuple(_empty(b, x) for b in self.operator.residual(layout, *options))
        return (y, *residual) if residual else y

    def fake_pull(self, gy: Tensor, *args: Any) -> Tensor:
        """A gradient of the right shape."""
        _, (rule, shape, channels_last, inner, *options) = self._split(args)
        return _input(self._layout(gy, rule, tuple(shape), channels_last, inner, (*options,)), gy)

    def fake_push(self, t: Tensor, *args: Any) -> Tensor:
        """A tangent of the right shape."""
        _, (rule, channels_last, inner, *options) = self._split(args)
        shape = tuple(t.shape)
        return _output(self._layout(t, rule, shape, channels_last, inner, (*options,)), t)

    def _layout(
        self,
        x: Tensor,
        rule: list[int],
        shape: tuple[int, ...],
        channels_last: bool,
        inner: int,
        options: tuple[Any, ...],
    ) -> Layout:
        _check(x)
        layout = lay_out(_grouped(rule), shape, channels_last, inner)
        self.operator.check(layout.window, *options)
        return layout

    def _split(self, args: tuple[Any, ...]) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        return (args[:1], args[1:]) if self.has_residual else ((), args)

    # Derivatives

    def _differentiate(self) -> None:
        def keep_forward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            x, ctx.rule, ctx.channels_last, *ctx.options = inputs
            ctx.shape, ctx.inner = x.shape, _inner(x, len(ctx.rule) // 6, ctx.channels_last)
            ctx.set_materialize_grads(False)
            kept = output[1:] if self.has_residual else ()
            ctx.mark_non_differentiable(*kept)
            _save(ctx, kept, inputs)

        def keep_pull(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            kept, rest = self._split(inputs[1:])
            ctx.rule, ctx.shape, ctx.channels_last, ctx.inner, *ctx.options = rest
            _save(ctx, kept, inputs)

        def keep_push(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            kept, (ctx.rule, ctx.channels_last, ctx.inner, *ctx.options) = self._split(inputs[1:])
            ctx.shape = inputs[0].shape
            _save(ctx, kept, inputs)

        def pulled(ctx: Any, gy: Tensor | None, *unused: Any) -> Any:
            if gy is None:
                return (None,) * ctx.inputs
            where = (ctx.rule, ctx.shape, ctx.channels_last, ctx.inner)
            gx = self.pull_of(gy, *ctx.saved_tensors, *where, *ctx.options)
            return (gx, *(None,) * (ctx.inputs - 1))

        def pushed(ctx: Any, t: Tensor) -> Tensor:
            where = (ctx.rule, ctx.channels_last, ctx.inner)
            pooled: Tensor = self.push_of(t, *ctx.saved_tensors, *where, *ctx.options)
            return pooled

        def pushed_back(ctx: Any, t: Tensor) -> Any:
            return (pushed(ctx, t), *(None,) * (ctx.inputs - 1))

        def pulled_ahead(ctx: Any, t: Tensor, *unused: Any) -> Any:
            return pulled(ctx, t)[0]

        def pushed_ahead(ctx: Any, t: Tensor, *unused: Any) -> Any:
            return (pushed(ctx, t), None) if self.has_residual else pushed(ctx, t)

        def pushed_on(ctx: Any, t: Tensor, *unused: Any) -> Any:
            return pushed(ctx, t)

        kept = 2 if self.has_residual else 1
        self.forward_of = _told(self.forward_op, 1, keep_forward, pulled, pushed_ahead)
        self.pull_of = _told(self.pull_op, kept, keep_pull, pushed_back, pulled_ahead)
        self.push_of = _told(self.push_op, kept, keep_push, pulled, pushed_on)

    # torch.func.vmap: a batch is one more leading axis

    def _batch(self) -> None:
        def lead(tensor: Tensor, dim: int | None, size: int) -> Tensor:
            if dim is None:
                return tensor.unsqueeze(0).expand(size, *tensor.shape)
            return tensor.movedim(dim, 0)

        def batched(op: Any, tensors: int, shape_at: int | None, inner_at: int | None) -> Any:
            def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
                moved = [
                    lead(t, d, info.batch_size)
                    for t, d in zip(args[:tensors], in_dims, strict=False)
                ]
                rest = list(args[tensors:])
                if shape_at is not None:
                    rest[shape_at] = [info.batch_size, *rest[shape_at]]
                if inner_at is not None and rest[inner_at] >= 0:
                    rest[inner_at] += 1
                out = op(*moved, *rest)
                return (out, (0,) * len(out)) if isinstance(out, tuple) else (out, 0)

            return rule

        kept = 2 if self.has_residual else 1
        for op, tensors, shape_at, inner_at in (
            (self.forward_op, 1, None, None),
            (self.pull_op, kept, 1, 3),
            (self.push_op, kept, None, 2),
        ):
            rule = batched(op, tensors, shape_at, inner_at)
            torch.library.register_vmap(op, rule, lib=_LIBRARY)


ADAPTERS = {name: Adapter(operator) for name, operator in OPERATORS.items()}


def _define_indices() -> Any:
    """``route_indices``: routes as flat positions in the plane of `x`; no gradient."""

    def fake(x: Tensor, routes: Tensor, rule: list[int], channels_last: bool) -> Tensor:
        inner = _inner(x, len(rule) // 6, channels_last)
        layout = lay_out(_grouped(rule), tuple(x.shape), channels_last, inner)
        return _empty(Buffer(layout.out_shape, layout.order, "int64"), routes)

    def run(x: Tensor, routes: Tensor, rule: list[int], channels_last: bool) -> Tensor:
        where = (tuple(x.shape), channels_last, _inner(x, len(rule) // 6, channels_last))
        ready = prepare("max", _grouped(rule), ("first",), *where, x.element_size())
        (routes,) = _laid_out((routes,), ready.residual)
        indices = _empty(Buffer(ready.plan.out_shape, ready.plan.order, "int64"), routes)
        threads = torch.get_num_threads()
        ready.plan.kernels.route_indices(_handed(routes), _handed(indices), threads)
        return indices

    def batched(info: Any, in_dims: tuple[Any, ...], x: Tensor, routes: Tensor, *args: Any) -> Any:
        return op(x.movedim(in_dims[0], 0), routes.movedim(in_dims[1], 0), *args), 0

    _LIBRARY.define(
        "route_indices(Tensor x, Tensor routes, SymInt[] rule, bool channels_last) -> Tensor"
    )
    op = torch.ops.poolgrad.route_indices.default
    _LIBRARY.impl("route_indices", run, "CPU")
    torch.library.register_fake(op, fake, lib=_LIBRARY)
    torch.library.register_vmap(op, batched, lib=_LIBRARY)
    return op


_route_indices = _define_indices()


def perform(request: Request) -> Any:
    """Do what a public function describes."""
    x: Tensor = request.x
    if request.out is not None:
        raise TypeError("out is for NumPy arrays; tensors take none")
    rule = [n for axis in request.rule for n in axis]
    adapter = ADAPTERS[request.operator]
    if request.return_indices:
        return _with_indices(request, adapter, x, rule)
    y = adapter.forward_of(x, rule, request.channels_last, *request.options)
    if adapter.has_residual:
        y = y[0]
    return y if request.keepdims else _squeezed(y, request)


def _squeezed(y: Tensor, request: Request) -> Tensor:
    first = y.dim() - len(request.rule) - request.channels_last
    return y.squeeze(tuple(range(first, first + len(request.rule))))


def _with_indices(
    request: Request, adapter: Adapter, x: Tensor, rule: list[int]
) -> tuple[Tensor, Tensor]:
    last = request.channels_last
    y, routes = adapter.forward_of(x, rule, last, *request.options)
    if request.options != ("first",):  # an index is of one winner, whatever becomes of the gradient
        routes = adapter.forward_op(x.detach(), rule, last, "first")[1]
    return y, _route_indices(x.detach(), routes, rule, last)
