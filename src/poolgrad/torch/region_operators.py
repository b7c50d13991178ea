"""Defines region-of-interest pooling as differentiable PyTorch operators.

In ``torch.ops.poolgrad`` there are

* ``roi_align(input, boxes, output_size, spatial_scale, sampling_ratio, aligned) -> y``,
* ``roi_align_backward(gy, boxes, shape, spatial_scale, sampling_ratio, aligned) -> gx``,
* ``roi_pool(input, boxes, output_size, spatial_scale) -> (y, indices)``,
* ``roi_pool_backward(gy, indices, boxes, shape) -> gx`` and
* ``roi_pool_gather(t, indices, boxes) -> ty``.

RoIAlign is linear in its input, and so is RoIPool for fixed indices. The operators are therefore
each other's derivatives, in reverse and in forward mode, and there are gradients of any order.
Boxes, of shape (K, 5) in all of them, have no gradient. The kernels pool tensors on the CPU, and
`poolgrad.portable.regions` pools all others on their device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from poolgrad.core import Regions
from poolgrad.interface import Buffer
from poolgrad.portable import regions as portable
from poolgrad.regions import bins, check_input, check_table, output_shape
from poolgrad.torch._compat import assert_later
from poolgrad.torch.arrays import allocate, compact, name_of
from poolgrad.torch.batching import one_by_one
from poolgrad.torch.derivatives import differentiable, save
from poolgrad.torch.devices import implement, names_of_tensors, on_one_device
from poolgrad.torch.library import library

LIBRARY = library(__name__)

_ASSERTING = ("cpu", "cuda")  # devices on which PyTorch implements assertions without waiting


# Implementations: kernels on the CPU, otherwise `poolgrad.portable`


def _has_kernels(x: Tensor) -> bool:
    return x.is_cpu


def _check(shape: Sequence[int], dtype: torch.dtype, boxes: Tensor, size: Sequence[int]) -> Any:
    """Check feature maps of this shape and dtype, and boxes; return the shape of the output."""
    check_input(name_of(dtype), tuple(shape))
    check_table(name_of(boxes.dtype), tuple(boxes.shape))
    return output_shape(boxes.shape[0], tuple(shape), size)


def _bins_of(name: str, tensor: Tensor) -> torch.Size:
    """Return the numbers of bins of the tensor `name`, which has the shape of the output."""
    if tensor.dim() != 4:
        raise ValueError(f"{name} must have four axes, got shape {tuple(tensor.shape)}")
    return tensor.shape[2:]


def _like(name: str, given: Tensor, expected: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise an error unless the tensor `name` has this shape and dtype."""
    if tuple(given.shape) != expected or given.dtype != dtype:
        raise ValueError(
            f"{name} must be {dtype} of shape {expected}, "
            f"got {given.dtype} of shape {tuple(given.shape)}"
        )


class _Kernels:
    """The kernels for feature maps of a dtype and shape, and boxes in them."""

    def __init__(
        self, dtype: torch.dtype, shape: Sequence[int], boxes: Tensor, size: Any, *where: Any
    ) -> None:
        self._result, self._how = dtype, where[1:]
        self._dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self._shape, self._out_shape = tuple(shape), (boxes.shape[0], shape[1], *size)
        self._table = compact("boxes", boxes).to(torch.float64)
        dtype_name = name_of(self._dtype)
        self._regions = Regions(self._shape, tuple(size), dtype_name, self._table, where[0])
        self._threads = torch.get_num_threads()

    def align(self, x: Tensor) -> Tensor:
        return self._run(self._regions.align, "input", x, self._out_shape, after=self._how)

    def align_backward(self, gy: Tensor) -> Tensor:
        return self._run(self._regions.align_backward, "gy", gy, self._shape, after=self._how)

    def pool(self, x: Tensor) -> tuple[Tensor, Tensor]:
        indices = self._allocate(self._out_shape, "int32")
        y = self._run(self._regions.pool, "input", x, self._out_shape, after=(indices,))
        return y, indices

    def pool_backward(self, gy: Tensor, indices: Tensor) -> Tensor:
        given = (compact("indices", indices),)
        return self._run(self._regions.pool_backward, "gy", gy, self._shape, given)

    def pool_gather(self, t: Tensor, indices: Tensor) -> Tensor:
        given = (compact("indices", indices),)
        return self._run(self._regions.pool_gather, "t", t, self._out_shape, given)

    def _run(
        self,
        kernel: Callable[..., None],
        name: str,
        source: Tensor,
        shape: tuple[int, ...],
        before: tuple[Any, ...] = (),
        after: tuple[Any, ...] = (),
    ) -> Tensor:
        """Call a kernel with the tensor `name`; `before` and `after` are around the result."""
        result = self._allocate(shape, name_of(self._dtype))
        values = compact(name, source).to(self._dtype)
        kernel(values, *before, result, *after, self._threads)
        return result.to(self._result)

    def _allocate(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        cause = "input of shape {}, boxes and output_size"
        order = tuple(range(len(shape)))
        return allocate(Buffer(shape, order, dtype, self._shape, cause), self._table)


class _Portable:
    """The same on a device without kernels; the values of boxes are checked on the device."""

    def __init__(
        self, dtype: torch.dtype, shape: Sequence[int], boxes: Tensor, size: Any, *where: Any
    ) -> None:
        self._shape, self._boxes, self._where = tuple(shape), boxes, bins(tuple(size), *where)
        images = shape[0]
        if boxes.shape[0] and not images:
            raise ValueError(f"boxes must be empty if input has no images, got {boxes.shape[0]}")
        if boxes.device.type in _ASSERTING:
            accepted = portable.accepted(boxes, images, self._where.spatial_scale)
            assert_later(
                accepted,
                f"boxes must begin with the index of one of {images} images, have "
                "x1 <= x2 and y1 <= y2, and lie within 2**30 pixels of the origin",
            )

    def align(self, x: Tensor) -> Tensor:
        return _contiguous(portable.align(x, self._boxes, self._where))

    def align_backward(self, gy: Tensor) -> Tensor:
        return _contiguous(portable.align_backward(gy, self._boxes, self._shape, self._where))

    def pool(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, indices = portable.pool(x, self._boxes, self._where)
        return _contiguous(y), _contiguous(indices)

    def pool_backward(self, gy: Tensor, indices: Tensor) -> Tensor:
        return _contiguous(portable.pool_backward(gy, indices, self._boxes, self._shape))

    def pool_gather(self, t: Tensor, indices: Tensor) -> Tensor:
        return _contiguous(portable.pool_gather(t, indices, self._boxes))


def _contiguous(result: Tensor) -> Tensor:
    """Return a tensor of the strides that the shape functions promise."""
    return result.contiguous()


def _regions(
    tensors: dict[str, Tensor], shape: Sequence[int], boxes: Tensor, size: Any, *where: Any
) -> _Kernels | _Portable:
    """Check the arguments of an operator, and choose its implementation.

    The names of `tensors` are those of the schema: feature maps or gradients first, then indices.
    """
    (name, first), *rest = tensors.items()
    out_shape = _check(shape, first.dtype, boxes, size)
    if name == "gy":
        _like(name, first, out_shape, first.dtype)
    for other, indices in rest:
        _like(other, indices, out_shape, torch.int32)
    chosen = _Kernels if _has_kernels(first) else _Portable
    return chosen(first.dtype, shape, boxes, size, *where)


def _align(x: Tensor, boxes: Tensor, *where: Any) -> Tensor:
    return _regions({"input": x}, x.shape, boxes, *where).align(x)


def _align_backward(gy: Tensor, boxes: Tensor, shape: Sequence[int], *where: Any) -> Tensor:
    size = _bins_of("gy", gy)
    return _regions({"gy": gy}, shape, boxes, size, *where).align_backward(gy)


def _pool(x: Tensor, boxes: Tensor, *where: Any) -> tuple[Tensor, Tensor]:
    return _regions({"input": x}, x.shape, boxes, *where).pool(x)


def _pool_backward(gy: Tensor, indices: Tensor, boxes: Tensor, shape: Sequence[int]) -> Tensor:
    given, size = {"gy": gy, "indices": indices}, _bins_of("gy", gy)
    return _regions(given, shape, boxes, size, 1.0).pool_backward(gy, indices)


def _pool_gather(t: Tensor, indices: Tensor, boxes: Tensor) -> Tensor:
    given, size = {"t": t, "indices": indices}, _bins_of("indices", indices)
    return _regions(given, t.shape, boxes, size, 1.0).pool_gather(t, indices)


# Shapes without data; sizes may be symbolic


def _fake_align(x: Tensor, boxes: Tensor, size: Sequence[int], *rest: Any) -> Tensor:
    return x.new_empty(_check(x.shape, x.dtype, boxes, size))


def _fake_backward(gy: Tensor, boxes: Tensor, shape: Sequence[int], *rest: Any) -> Tensor:
    _check(shape, gy.dtype, boxes, _bins_of("gy", gy))
    return gy.new_empty(shape)


def _fake_pool(
    x: Tensor, boxes: Tensor, size: Sequence[int], scale: float
) -> tuple[Tensor, Tensor]:
    shape = _check(x.shape, x.dtype, boxes, size)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32)


def _fake_pool_backward(gy: Tensor, indices: Tensor, boxes: Tensor, shape: Sequence[int]) -> Tensor:
    return _fake_backward(gy, boxes, shape)


def _fake_pool_gather(t: Tensor, indices: Tensor, boxes: Tensor) -> Tensor:
    return t.new_empty(_check(t.shape, t.dtype, boxes, _bins_of("indices", indices)))


# The operators and their derivatives


def _define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    LIBRARY.define(f"{name}{schema}")
    op = getattr(torch.ops.poolgrad, name).default
    names = names_of_tensors(schema)
    implement(op, on_one_device(names, run), LIBRARY)
    torch.library.register_fake(op, on_one_device(names, fake), lib=LIBRARY)
    return op


_WHERE = "float spatial_scale, int sampling_ratio, bool aligned"
_OPS = {
    "roi_align": _define(
        "roi_align",
        f"(Tensor input, Tensor boxes, SymInt[] output_size, {_WHERE}) -> Tensor",
        _align,
        _fake_align,
    ),
    "roi_align_backward": _define(
        "roi_align_backward",
        f"(Tensor gy, Tensor boxes, SymInt[] shape, {_WHERE}) -> Tensor",
        _align_backward,
        _fake_backward,
    ),
    "roi_pool": _define(
        "roi_pool",
        "(Tensor input, Tensor boxes, SymInt[] output_size, float spatial_scale)"
        " -> (Tensor, Tensor)",
        _pool,
        _fake_pool,
    ),
    "roi_pool_backward": _define(
        "roi_pool_backward",
        "(Tensor gy, Tensor indices, Tensor boxes, SymInt[] shape) -> Tensor",
        _pool_backward,
        _fake_pool_backward,
    ),
    "roi_pool_gather": _define(
        "roi_pool_gather",
        "(Tensor t, Tensor indices, Tensor boxes) -> Tensor",
        _pool_gather,
        _fake_pool_gather,
    ),
}


def _only_first(ctx: Any, gradient: Tensor | None) -> Any:
    """Return the gradients of all arguments; only the first has one."""
    return (gradient, *(None,) * (ctx.inputs - 1))


def _keep_align(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, boxes, size, *ctx.scale = inputs
    ctx.shape, ctx.size = tuple(x.shape), tuple(size)
    save(ctx, (boxes,))


def _keep_align_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    gy, boxes, shape, *ctx.scale = inputs
    ctx.shape, ctx.size = tuple(shape), tuple(gy.shape[2:])
    save(ctx, (boxes,))


def _aligned(ctx: Any, t: Tensor, *unused: Any) -> Tensor:
    made: Tensor = align(t, *ctx.saved_tensors, ctx.size, *ctx.scale)
    return made


def _aligned_back(ctx: Any, gy: Tensor, *unused: Any) -> Tensor:
    made: Tensor = _align_backward_of(gy, *ctx.saved_tensors, ctx.shape, *ctx.scale)
    return made


def _keep_pool(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, boxes, *_ = inputs
    ctx.shape = tuple(x.shape)
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    save(ctx, (output[1], boxes))


def _keep_pool_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, indices, boxes, shape = inputs
    ctx.shape = tuple(shape)
    save(ctx, (indices, boxes))


def _keep_gather(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    t, indices, boxes = inputs
    ctx.shape = tuple(t.shape)
    save(ctx, (indices, boxes))


def _gathered(ctx: Any, t: Tensor, *unused: Any) -> Tensor:
    made: Tensor = _pool_gather_of(t, *ctx.saved_tensors)
    return made


def _scattered(ctx: Any, gy: Tensor, *unused: Any) -> Tensor:
    made: Tensor = _pool_backward_of(gy, *ctx.saved_tensors, ctx.shape)
    return made


def _pool_gradient(ctx: Any, gy: Tensor | None, *unused: Any) -> Any:
    return _only_first(ctx, None if gy is None else _scattered(ctx, gy))


class _Values:
    """The arguments of an operator after its tensors; opaque to PyTorch's transformations."""

    def __init__(self, *values: Any) -> None:
        self.values = values


def _differentiable(
    op: Any, run: Any, tensors: int, keep: Any, backward: Any, jvp: Any
) -> Callable[..., Any]:
    """An operator with its derivatives: see `derivatives.differentiable`."""
    call = differentiable(
        op,
        LIBRARY,
        tensors,
        run=lambda static, *given: run(*given, *static.values),
        flat=lambda static: static.values,
        rebuild=lambda *args: _Values(*args[tensors:]),
        keep=lambda ctx, static, given, output: keep(ctx, (*given, *static.values), output),
        backward=backward,
        jvp=jvp,
    )
    return lambda *args: call(_Values(*args[tensors:]), *args[:tensors])


align = _differentiable(
    _OPS["roi_align"],
    _align,
    2,
    _keep_align,
    lambda ctx, gy: _only_first(ctx, _aligned_back(ctx, gy)),
    _aligned,
)
_align_backward_of = _differentiable(
    _OPS["roi_align_backward"],
    _align_backward,
    2,
    _keep_align_backward,
    lambda ctx, t: _only_first(ctx, _aligned(ctx, t)),
    _aligned_back,
)
pool = _differentiable(
    _OPS["roi_pool"],
    _pool,
    2,
    _keep_pool,
    _pool_gradient,
    lambda ctx, t, *unused: (_gathered(ctx, t), None),
)
_pool_backward_of = _differentiable(
    _OPS["roi_pool_backward"],
    _pool_backward,
    3,
    _keep_pool_backward,
    lambda ctx, t: _only_first(ctx, _gathered(ctx, t)),
    _scattered,
)
_pool_gather_of = _differentiable(
    _OPS["roi_pool_gather"],
    _pool_gather,
    3,
    _keep_gather,
    lambda ctx, gy: _only_first(ctx, _scattered(ctx, gy)),
    _gathered,
)


# Batches of torch.func.vmap


def _batch(name: str, tensors: int) -> None:
    """Run an operator for each element of a batch.

    Where boxes are shared by the batch, its elements are further channels: one call for all.
    """
    op = _OPS[name]
    channelled = (0, 1) if name.startswith("roi_pool_") else (0,)  # tensors that have channels

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        size = info.batch_size
        if in_dims[tensors - 1] is not None or size == 0:
            made = one_by_one(op, size, in_dims[:tensors], args)
            return made, (0,) * len(made) if isinstance(made, tuple) else 0
        given = list(args)
        for k in channelled:
            t, d = args[k], in_dims[k]
            t = t.unsqueeze(0).expand(size, *t.shape) if d is None else t.movedim(d, 0)
            given[k] = t.movedim(0, 1).flatten(1, 2)
        if name.endswith("backward"):
            shape = list(args[tensors])
            shape[1] *= size
            given[tensors] = shape
        made = op(*given)
        if isinstance(made, tuple):
            return tuple(y.unflatten(1, (size, -1)) for y in made), (1,) * len(made)
        return made.unflatten(1, (size, -1)), 1

    torch.library.register_vmap(op, rule, lib=LIBRARY)


for _name, _tensors in {
    "roi_align": 2,
    "roi_align_backward": 2,
    "roi_pool": 2,
    "roi_pool_backward": 3,
    "roi_pool_gather": 3,
}.items():
    _batch(_name, _tensors)
