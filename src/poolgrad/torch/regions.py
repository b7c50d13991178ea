"""Pools regions of interest of tensors.

In ``torch.ops.poolgrad`` there are

* ``roi_align(input, boxes, output_size, spatial_scale, sampling_ratio, aligned) -> y``,
* ``roi_align_backward(gy, boxes, shape, spatial_scale, sampling_ratio, aligned) -> gx``,
* ``roi_pool(input, boxes, output_size, spatial_scale) -> (y, indices)``,
* ``roi_pool_backward(gy, indices, boxes, shape) -> gx`` and
* ``roi_pool_gather(t, indices, boxes) -> ty``.

RoIAlign is linear in its input, and so is RoIPool for fixed indices. The operators are therefore
each other's derivatives, in reverse and in forward mode, and there are gradients of any order.
Boxes, of shape (K, 5) in all of them, have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from poolgrad.core import Regions
from poolgrad.interface import Buffer
from poolgrad.regions import Bins, check_images, check_input, check_table, output_shape
from poolgrad.torch.arrays import allocate, check_memory, compact, name_of
from poolgrad.torch.derivatives import LIBRARY, differentiable, save
from poolgrad.windows import brief

_ONNX_OPSET = 16  # of the operator RoiAlign with coordinate_transformation_mode


# Implementation on the CPU


def _check(maps: Tensor, boxes: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
    """Check the dtypes and shapes of input and boxes, and return the shape of the output."""
    check_input(name_of(maps.dtype), tuple(maps.shape))
    check_table(name_of(boxes.dtype), tuple(boxes.shape))
    return output_shape(boxes.shape[0], tuple(maps.shape), output_size)


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
        self,
        dtype: torch.dtype,
        shape: Sequence[int],
        boxes: Tensor,
        output_size: Sequence[int],
        spatial_scale: float = 1.0,
    ) -> None:
        check_memory("boxes", boxes)
        self._result = dtype
        self._dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.shape = tuple(shape)
        (table,) = compact((boxes.to(torch.float64),))
        self._table = table
        self.regions = Regions(
            self.shape, tuple(output_size), name_of(self._dtype), table, spatial_scale
        )
        self.out_shape = output_shape(boxes.shape[0], self.shape, output_size)
        self.threads = torch.get_num_threads()

    def read(self, name: str, tensor: Tensor) -> Tensor:
        """Return the tensor `name` in the form that the kernels read."""
        check_memory(name, tensor)
        (made,) = compact((tensor.to(self._dtype),))
        return made

    def allocate(self, shape: tuple[int, ...], dtype: str = "") -> Tensor:
        """Allocate a contiguous tensor for the kernels to write."""
        order = tuple(range(len(shape)))
        return allocate(Buffer(shape, order, dtype or name_of(self._dtype)), self._table)

    def finished(self, made: Tensor) -> Tensor:
        return made.to(self._result)


def _align(
    x: Tensor, boxes: Tensor, output_size: Sequence[int], scale: float, ratio: int, aligned: bool
) -> Tensor:
    _check(x, boxes, output_size)
    kernels = _Kernels(x.dtype, x.shape, boxes, output_size, scale)
    y = kernels.allocate(kernels.out_shape)
    kernels.regions.align(kernels.read("input", x), y, ratio, aligned, kernels.threads)
    return kernels.finished(y)


def _align_backward(
    gy: Tensor, boxes: Tensor, shape: Sequence[int], scale: float, ratio: int, aligned: bool
) -> Tensor:
    _check_gradient(gy, boxes, shape)
    kernels = _Kernels(gy.dtype, shape, boxes, gy.shape[2:], scale)
    _like("gy", gy, kernels.out_shape, gy.dtype)
    gx = kernels.allocate(kernels.shape)
    kernels.regions.align_backward(kernels.read("gy", gy), gx, ratio, aligned, kernels.threads)
    return kernels.finished(gx)


def _pool(
    x: Tensor, boxes: Tensor, output_size: Sequence[int], scale: float
) -> tuple[Tensor, Tensor]:
    _check(x, boxes, output_size)
    kernels = _Kernels(x.dtype, x.shape, boxes, output_size, scale)
    y = kernels.allocate(kernels.out_shape)
    indices = kernels.allocate(kernels.out_shape, "int32")
    kernels.regions.pool(kernels.read("input", x), y, indices, kernels.threads)
    return kernels.finished(y), indices


def _pool_backward(gy: Tensor, indices: Tensor, boxes: Tensor, shape: Sequence[int]) -> Tensor:
    _check_gradient(gy, boxes, shape)
    kernels = _Kernels(gy.dtype, shape, boxes, gy.shape[2:])
    _like("gy", gy, kernels.out_shape, gy.dtype)
    gx = kernels.allocate(kernels.shape)
    flat = _compact_indices(indices, kernels)
    kernels.regions.pool_backward(kernels.read("gy", gy), flat, gx, kernels.threads)
    return kernels.finished(gx)


def _pool_gather(t: Tensor, indices: Tensor, boxes: Tensor) -> Tensor:
    size = _bins_of(indices)
    _check(t, boxes, size)
    kernels = _Kernels(t.dtype, t.shape, boxes, size)
    y = kernels.allocate(kernels.out_shape)
    flat = _compact_indices(indices, kernels)
    kernels.regions.pool_gather(kernels.read("t", t), flat, y, kernels.threads)
    return kernels.finished(y)


def _check_gradient(gy: Tensor, boxes: Tensor, shape: Sequence[int]) -> None:
    check_input(name_of(gy.dtype), tuple(shape))
    check_table(name_of(boxes.dtype), tuple(boxes.shape))
    if gy.dim() != 4:
        raise ValueError(f"gy must have four axes, got shape {tuple(gy.shape)}")


def _bins_of(indices: Tensor) -> tuple[int, int]:
    if indices.dim() != 4:
        raise ValueError(f"indices must have four axes, got shape {tuple(indices.shape)}")
    return indices.shape[2], indices.shape[3]


def _compact_indices(indices: Tensor, kernels: _Kernels) -> Tensor:
    _like("indices", indices, kernels.out_shape, torch.int32)
    check_memory("indices", indices)
    (flat,) = compact((indices,))
    return flat


# Shapes without data; sizes may be symbolic


def _fake_align(x: Tensor, boxes: Tensor, output_size: Sequence[int], *rest: Any) -> Tensor:
    return x.new_empty(_check(x, boxes, output_size))


def _fake_backward(gy: Tensor, boxes: Tensor, shape: Sequence[int], *rest: Any) -> Tensor:
    _check_gradient(gy, boxes, shape)
    return gy.new_empty(shape)


def _fake_pool(
    x: Tensor, boxes: Tensor, output_size: Sequence[int], scale: float
) -> tuple[Tensor, Tensor]:
    shape = _check(x, boxes, output_size)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32)


def _fake_pool_backward(gy: Tensor, indices: Tensor, boxes: Tensor, shape: Sequence[int]) -> Tensor:
    return _fake_backward(gy, boxes, shape)


def _fake_pool_gather(t: Tensor, indices: Tensor, boxes: Tensor) -> Tensor:
    return t.new_empty(_check(t, boxes, _bins_of(indices)))


# The operators and their derivatives


def _define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    LIBRARY.define(f"{name}{schema}")
    op = getattr(torch.ops.poolgrad, name).default
    LIBRARY.impl(name, run, "CPU")
    torch.library.register_fake(op, fake, lib=LIBRARY)
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
    made: Tensor = _align_of(t, *ctx.saved_tensors, ctx.size, *ctx.scale)
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
        tensors,
        run=lambda static, *given: run(*given, *static.values),
        flat=lambda static: static.values,
        rebuild=lambda *args: _Values(*args[tensors:]),
        keep=lambda ctx, static, given, output: keep(ctx, (*given, *static.values), output),
        backward=backward,
        jvp=jvp,
    )
    return lambda *args: call(_Values(*args[tensors:]), *args[:tensors])


_align_of = _differentiable(
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
_pool_of = _differentiable(
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

    def one_by_one(size: int, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
        made = [
            op(
                *(
                    t if d is None else t.select(d, n)
                    for t, d in zip(args[:tensors], in_dims[:tensors], strict=True)
                ),
                *args[tensors:],
            )
            for n in range(size)
        ]
        if isinstance(made[0], tuple):
            return tuple(map(torch.stack, zip(*made, strict=True))), (0,) * len(made[0])
        return torch.stack(made), 0

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        size = info.batch_size
        if in_dims[tensors - 1] is not None or size == 0:
            return one_by_one(size, in_dims, args)
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


# The public functions


def _table(boxes: object, x: Tensor) -> Tensor:
    """Convert boxes of either form to one tensor of shape (K, 5), without a gradient."""
    if isinstance(boxes, Tensor):
        check_table(name_of(boxes.dtype), tuple(boxes.shape))
        return boxes.detach().to(x.device)
    if not isinstance(boxes, list | tuple):
        raise TypeError(
            "boxes must be a tensor of shape (K, 5) or a list with a tensor of shape (L, 4) for "
            f"each image, got {brief(boxes)}"
        )
    check_images(len(boxes), x.shape[0])
    parts = []
    for index, own in enumerate(boxes):
        if not isinstance(own, Tensor):
            raise TypeError(f"boxes[{index}] must be a tensor, got {brief(own)}")
        check_table(name_of(own.dtype), tuple(own.shape), 4, f"boxes[{index}]")
        # float64 holds the numbers of every dtype, and the indices of all images
        corners = own.detach().to(device="cpu" if x.is_cpu else x.device)
        corners = corners.to(torch.float64 if corners.device.type != "mps" else torch.float32)
        image = corners.new_full((corners.shape[0], 1), index)
        parts.append(torch.cat([image, corners], 1))
    return torch.cat(parts) if parts else torch.empty(0, 5, dtype=torch.float32, device=x.device)


def _checked(x: Tensor, boxes: object, wanted: Bins) -> Tensor:
    if x.layout is not torch.strided or x.is_quantized or x.is_nested:
        came = "nested" if x.is_nested else "quantized" if x.is_quantized else str(x.layout)
        raise TypeError(f"input must be a dense tensor (of layout torch.strided), got a {came} one")
    check_input(name_of(x.dtype), tuple(x.shape))
    table = _table(boxes, x)
    output_shape(table.shape[0], tuple(x.shape), wanted.output_size)
    return table


def _onnx(name: str, x: Tensor, inputs: list[Tensor], shape: Any, **attributes: Any) -> Tensor:
    """Emit a standard operator of ONNX into a program that is being exported."""
    symbolic = getattr(getattr(torch.onnx, "ops", None), "symbolic", None)
    if symbolic is None:
        raise NotImplementedError(
            f"the ONNX operator {name} is exported by PyTorch 2.8 and newer only"
        )
    made: Tensor = symbolic(
        name, inputs, attributes, dtype=x.dtype, shape=shape, version=_ONNX_OPSET
    )
    return made


def roi_pool(input: Tensor, boxes: object, wanted: Bins) -> Tensor:
    """`poolgrad.roi_pool` of a tensor."""
    table = _checked(input, boxes, wanted)
    size, scale = list(wanted.output_size), wanted.spatial_scale
    if torch.onnx.is_in_onnx_export():
        shape = output_shape(table.shape[0], tuple(input.shape), size)
        rows = table.to(input.dtype)
        return _onnx(
            "MaxRoiPool", input, [input, rows], shape, pooled_shape=size, spatial_scale=scale
        )
    if input.device.type not in ("cpu", "meta"):
        made: Tensor = _pool_of(input.cpu(), table.cpu(), size, scale)[0]
        return made.to(input.device)
    y: Tensor = _pool_of(input, table, size, scale)[0]
    return y


def roi_align(input: Tensor, boxes: object, wanted: Bins) -> Tensor:
    """`poolgrad.roi_align` of a tensor."""
    table = _checked(input, boxes, wanted)
    size, scale = list(wanted.output_size), wanted.spatial_scale
    if torch.onnx.is_in_onnx_export():
        shape = output_shape(table.shape[0], tuple(input.shape), size)
        parts = [input, table[:, 1:].to(input.dtype), table[:, 0].to(torch.int64)]
        return _onnx(
            "RoiAlign",
            input,
            parts,
            shape,
            coordinate_transformation_mode="half_pixel" if wanted.aligned else "output_half_pixel",
            mode="avg",
            output_height=size[0],
            output_width=size[1],
            sampling_ratio=wanted.sampling_ratio,
            spatial_scale=scale,
        )
    where = (size, scale, wanted.sampling_ratio, wanted.aligned)
    if input.device.type not in ("cpu", "meta"):
        made: Tensor = _align_of(input.cpu(), table.cpu(), *where)
        return made.to(input.device)
    y: Tensor = _align_of(input, table, *where)
    return y
