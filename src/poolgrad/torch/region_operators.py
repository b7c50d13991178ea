"""Defines region-of-interest pooling as differentiable PyTorch operators.

In ``torch.ops.poolgrad`` there are

* ``roi_align(input, boxes, output_size, spatial_scale, sampling_ratio, aligned) -> y``,
* ``roi_align_backward(gy, boxes, shape, spatial_scale, sampling_ratio, aligned) -> gx``,
* ``roi_pool(input, boxes, output_size, spatial_scale) -> (y, indices)``,
* ``roi_pool_backward(gy, indices, boxes, shape) -> gx`` and
* ``roi_pool_gather(t, indices, boxes) -> ty``.

RoIAlign is linear in its input, and so is RoIPool for fixed indices. An operator is therefore its
own derivative in forward mode (of ``roi_pool``, ``roi_pool_gather``), and its transpose is that in
reverse mode, so there are gradients of any order. Boxes, of shape (K, 5) in all of them, have no
gradient. The kernels pool tensors on the CPU, and `poolgrad.portable.regions` all others on their
device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from poolgrad.interface import Buffer
from poolgrad.portable.regions import PortableMap, accepted, refusal
from poolgrad.region_maps import (
    Bins,
    KernelMap,
    RegionMap,
    bins,
    check_input,
    check_table,
    output_shape,
)
from poolgrad.torch._compat import assert_later
from poolgrad.torch.arrays import DTYPES, allocate, compact, name_of
from poolgrad.torch.batching import one_by_one
from poolgrad.torch.derivatives import differentiable, save
from poolgrad.torch.devices import define, names_of_tensors
from poolgrad.torch.library import library

LIBRARY = library(__name__)

_ASSERTING = ("cpu", "cuda")  # devices on which PyTorch implements assertions without waiting


# Maps


def _has_kernels(x: Tensor) -> bool:
    return x.is_cpu


class _TensorMap(KernelMap):
    """The map of regions as computed by the kernels, for tensors on the CPU."""

    def _contiguous(self, name: str, array: Tensor, dtype: str) -> Tensor:
        return compact(name, array).to(DTYPES[dtype])

    def _allocate(self, buffer: Buffer) -> Tensor:
        return allocate(buffer, self._boxes)

    def _converted(self, array: Tensor) -> Tensor:
        return array.to(DTYPES[self.dtype])

    def _threads(self) -> int:
        return torch.get_num_threads()


class _Call(NamedTuple):
    """The arguments of any of the operators: a map, and what it or its transpose is applied to."""

    x: Tensor
    indices: list[Tensor]
    boxes: Tensor
    shape: Sequence[int]
    size: Sequence[int]
    how: list[Any]

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of the bins, after a check of shapes and dtypes; sizes may be symbolic."""
        check_input(name_of(self.x.dtype), tuple(self.shape))
        check_table(name_of(self.boxes.dtype), tuple(self.boxes.shape))
        return output_shape(self.boxes.shape[0], tuple(self.shape), self.size)

    def regions(self) -> RegionMap:
        """Return the map for the device of `x`; on others than the CPU, it checks boxes there."""
        x, boxes, images = self.x, self.boxes, self.shape[0]
        where = (tuple(self.size), *(self.how or [1.0]))
        if _has_kernels(x):
            table = compact("boxes", boxes).to(torch.float64)
            return _TensorMap(self.shape, table, name_of(x.dtype), Bins(*where))
        if boxes.shape[0] and not images:
            raise ValueError(f"boxes must be empty if input has no images, got {boxes.shape[0]}")
        given = bins(*where)
        if boxes.device.type in _ASSERTING:
            assert_later(accepted(boxes, images, given.spatial_scale), refusal(images))
        return PortableMap(self.shape, boxes, name_of(x.dtype), given)


def _like(name: str, given: Tensor, expected: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise an error unless the tensor `name` has this shape and dtype."""
    if tuple(given.shape) != expected or given.dtype != dtype:
        raise ValueError(
            f"{name} must be {dtype} of shape {expected}, "
            f"got {given.dtype} of shape {tuple(given.shape)}"
        )


# Operators


class _Values:
    """The arguments of an operator after its tensors; opaque to PyTorch's transformations."""

    def __init__(self, *values: Any) -> None:
        self.values = values


class _Operator:
    """An operator, with its implementations and derivatives.

    Its tensors are what the map is applied to, the indices of RoIPool, and boxes. The operator is a
    transpose if the first is `gy`.

    Parameters
    ----------
    name, schema : str
        Its name and its arguments.
    """

    def __init__(self, name: str, schema: str) -> None:
        self._names, self._transpose = names_of_tensors(schema), _TRANSPOSES[name]
        self._tensors, self._is_transpose = len(self._names), self._names[0] == "gy"
        self._finds_winners = name == "roi_pool"
        op = define(LIBRARY, name, schema, self._run, self._without_data, self._batched)
        self._call = differentiable(
            op,
            LIBRARY,
            run=lambda static, *given: self._run(*given, *static.values),
            flat=lambda static: static.values,
            rebuild=lambda *args: _Values(*args[self._tensors :]),
            keep=self._keep,
            backward=self._backward,
            jvp=self._jvp,
        )

    def __call__(self, *args: Any) -> Any:
        return self._call(_Values(*args[self._tensors :]), *args[: self._tensors])

    def _parsed(self, *args: Any) -> _Call:
        x, *indices, boxes = args[: self._tensors]
        values = list(args[self._tensors :])
        if self._names[0] == "input":
            return _Call(x, indices, boxes, x.shape, values[0], values[1:])
        name, like = (self._names[0], x) if self._is_transpose else (self._names[1], indices[0])
        if like.dim() != 4:
            raise ValueError(f"{name} must have four axes, got shape {tuple(like.shape)}")
        shape, *how = values or [x.shape]
        return _Call(x, indices, boxes, shape, like.shape[2:], how)

    def _run(self, *args: Any) -> Any:
        call = self._parsed(*args)
        out_shape = call.out_shape
        if self._is_transpose:
            _like("gy", call.x, out_shape, call.x.dtype)
        for indices in call.indices:
            _like("indices", indices, out_shape, torch.int32)
        regions = call.regions()
        if self._finds_winners:
            y, winners = regions.pool(call.x)
            return y.contiguous(), winners.contiguous()
        apply = regions.transposed if self._is_transpose else regions.apply
        return apply(call.x, *call.indices).contiguous()  # as shapes without data promise

    def _without_data(self, *args: Any) -> Any:
        call = self._parsed(*args)
        out_shape = call.out_shape
        made = call.x.new_empty(call.shape if self._is_transpose else out_shape)
        return (made, made.new_empty(out_shape, dtype=torch.int32)) if self._finds_winners else made

    def _keep(self, ctx: Any, static: _Values, given: tuple[Tensor, ...], output: Any) -> None:
        call, constants = self._parsed(*given, *static.values), given[1:]
        how = [] if self._finds_winners else call.how
        ctx.values = static.values
        ctx.of_transpose = [tuple(call.shape), *how]
        if self._is_transpose:
            ctx.of_transpose = [tuple(call.size), *how] if how else []
        if self._finds_winners:
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(output[1])
            constants = (output[1], *constants)
        save(ctx, constants)

    def _backward(self, ctx: Any, gy: Tensor | None, *unused: Any) -> tuple[Any, ...]:
        if gy is not None:
            gy = OPERATORS[self._transpose](gy, *ctx.saved_tensors, *ctx.of_transpose)
        return (gy, *(None,) * (ctx.inputs - 1))

    def _jvp(self, ctx: Any, t: Tensor, *unused: Any) -> Any:
        if self._finds_winners:
            return OPERATORS["roi_pool_gather"](t, *ctx.saved_tensors), None
        return self(t, *ctx.saved_tensors, *ctx.values)

    def _batched(self, op: Any, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        """Run the operator for each element of a batch of ``torch.func.vmap``.

        Where boxes are shared by the batch, its elements are further channels: one call for all.
        """
        size, boxes = info.batch_size, self._tensors - 1
        if in_dims[boxes] is not None or size == 0:
            made = one_by_one(op, size, in_dims[: self._tensors], args)
            return made, (0,) * len(made) if isinstance(made, tuple) else 0
        given = list(args)
        for k, d in enumerate(in_dims[:boxes]):
            t = args[k].unsqueeze(0) if d is None else args[k].movedim(d, 0)
            given[k] = t.expand(size, *t.shape[1:]).movedim(0, 1).flatten(1, 2)
        if self._is_transpose:
            images, channels, *plane = args[self._tensors]
            given[self._tensors] = [images, channels * size, *plane]
        made = op(*given)
        if isinstance(made, tuple):
            return tuple(y.unflatten(1, (size, -1)) for y in made), (1,) * len(made)
        return made.unflatten(1, (size, -1)), 1


_WHERE = "float spatial_scale, int sampling_ratio, bool aligned"
_SCHEMAS = {
    "roi_align": f"(Tensor input, Tensor boxes, SymInt[] output_size, {_WHERE}) -> Tensor",
    "roi_align_backward": f"(Tensor gy, Tensor boxes, SymInt[] shape, {_WHERE}) -> Tensor",
    "roi_pool": "(Tensor input, Tensor boxes, SymInt[] output_size, float spatial_scale)"
    " -> (Tensor, Tensor)",
    "roi_pool_backward": "(Tensor gy, Tensor indices, Tensor boxes, SymInt[] shape) -> Tensor",
    "roi_pool_gather": "(Tensor t, Tensor indices, Tensor boxes) -> Tensor",
}
_TRANSPOSES = {
    "roi_align": "roi_align_backward",
    "roi_align_backward": "roi_align",
    "roi_pool": "roi_pool_backward",
    "roi_pool_backward": "roi_pool_gather",
    "roi_pool_gather": "roi_pool_backward",
}
OPERATORS = {name: _Operator(name, schema) for name, schema in _SCHEMAS.items()}
