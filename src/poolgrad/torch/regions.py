"""Region-of-interest pooling of PyTorch tensors: differentiable operators, and the front end.

In ``torch.ops.poolgrad`` there are

* ``roi_align(input, boxes, output_size, spatial_scale, sampling_ratio, aligned) -> y``,
* ``roi_align_backward(gy, boxes, shape, spatial_scale, sampling_ratio, aligned) -> gx``,
* ``roi_pool(input, boxes, output_size, spatial_scale) -> (y, indices)``,
* ``roi_pool_backward(gy, indices, boxes, shape) -> gx`` and
* ``roi_pool_gather(t, indices, boxes, output_size) -> ty``.

RoIAlign is linear in its input, and so is RoIPool for fixed indices. An operator is therefore its
own derivative in forward mode (of ``roi_pool``, ``roi_pool_gather``), and its transpose is that in
reverse mode, so there are gradients of any order. Boxes, of shape (K, 5) in all of them, have no
gradient. The kernels pool tensors on the CPU, and `poolgrad.portable.regions` all others on their
device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from poolgrad.dtypes import name_of
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
    table_of,
)
from poolgrad.torch._compat import assert_later, tracing_state
from poolgrad.torch.arrays import DTYPES, allocate, checked, compact, require
from poolgrad.torch.batching import lead, one_by_one
from poolgrad.torch.derivatives import differentiable, save
from poolgrad.torch.devices import define
from poolgrad.torch.library import library
from poolgrad.windows import brief

LIBRARY = library(__name__)

_ONNX_OPSET = 16  # of the operator RoiAlign with coordinate_transformation_mode
_ASSERTING = ("cpu", "cuda")  # devices on which PyTorch implements assertions without waiting


# Maps


def _has_kernels(x: Tensor) -> bool:
    return x.is_cpu


class _KernelMap(KernelMap):
    """The map of regions as computed by the kernels, for tensors on the CPU."""

    def _contiguous(self, name: str, array: Tensor, dtype: str) -> Tensor:
        return compact(name, array).to(DTYPES[dtype])

    def _allocate(self, buffer: Buffer) -> Tensor:
        return allocate(buffer, self.boxes)

    def _converted(self, array: Tensor) -> Tensor:
        return array.to(DTYPES[self.dtype])

    def _threads(self) -> int:
        return torch.get_num_threads()


def _computing_map(
    x: Tensor, boxes: Tensor, shape: Sequence[int], size: Sequence[int], *how: Any
) -> RegionMap:
    """Return the map for the device of `x`; on others than the CPU, it checks boxes there."""
    images, where = shape[0], (tuple(size), *(how or [1.0]))
    if _has_kernels(x):
        table = compact("boxes", boxes).to(torch.float64)
        return _KernelMap(shape, table, name_of(x.dtype), Bins(*where))
    if boxes.shape[0] and not images:
        raise ValueError(f"boxes must be empty if input has no images, got {boxes.shape[0]}")
    given = bins(*where)
    if boxes.device.type in _ASSERTING:
        assert_later(accepted(boxes, images, given.spatial_scale), refusal(images))
    return PortableMap(shape, boxes, name_of(x.dtype), given)


# Operators


class _Values:
    """The arguments of an operator after its tensors; opaque to PyTorch's transformations."""

    def __init__(self, *values: Any) -> None:
        self.values = values


class _Operator:
    """An operator, with its implementations and derivatives.

    Its tensors are the array that the map is applied to, the indices of RoIPool, and boxes. If the
    first is `gy`, the operator is a transpose. The first value is the plane of the result: the
    output size, or the shape of the input.

    Parameters
    ----------
    name, transpose : str
        Its name, and that of the transpose of its map.
    tensors : list of str
        The names of its tensors.
    how : str
        The declaration of its last arguments.
    """

    def __init__(self, name: str, transpose: str, tensors: list[str], how: str) -> None:
        self._tensors, self._transpose = len(tensors), transpose
        self._is_transpose, self._finds_winners = tensors[0] == "gy", name == "roi_pool"
        arguments = ", ".join(f"Tensor {tensor}" for tensor in tensors)
        plane = "shape" if self._is_transpose else "output_size"
        results = "(Tensor, Tensor)" if self._finds_winners else "Tensor"
        schema = f"({arguments}, SymInt[] {plane}{how}) -> {results}"
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

    def _shapes(self, x: Tensor, *rest: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of the input and the output, checked; sizes may be symbolic."""
        boxes, sizes, *_ = rest[self._tensors - 2 :]
        if self._is_transpose and x.dim() != 4:
            raise ValueError(f"gy must have four axes, got shape {tuple(x.shape)}")
        shape, size = (sizes, x.shape[2:]) if self._is_transpose else (x.shape, sizes)
        check_input(name_of(x.dtype), tuple(shape))
        check_table(name_of(boxes.dtype), tuple(boxes.shape))
        return tuple(shape), output_shape(boxes.shape[0], tuple(shape), size)

    def _run(self, *args: Any) -> Any:
        x, *indices, boxes = args[: self._tensors]
        shape, out_shape = self._shapes(*args)
        if self._is_transpose:
            require("gy", x, out_shape, x.dtype)
        for routes in indices:
            require("indices", routes, out_shape, torch.int32)
        regions = _computing_map(x, boxes, shape, out_shape[2:], *args[self._tensors + 1 :])
        if self._finds_winners:
            y, winners = regions.pool(x)
            return y.contiguous(), winners.contiguous()
        made = regions.apply(x, indices[0] if indices else None, self._is_transpose)
        return made.contiguous()  # as shapes without data promise

    def _without_data(self, x: Tensor, *rest: Any) -> Any:
        shape, out_shape = self._shapes(x, *rest)
        made = x.new_empty(shape if self._is_transpose else out_shape)
        return (made, made.new_empty(out_shape, dtype=torch.int32)) if self._finds_winners else made

    def _keep(self, ctx: Any, static: _Values, given: tuple[Tensor, ...], output: Any) -> None:
        (x, *constants), values = given, static.values
        if self._finds_winners:  # its derivative is that of `roi_pool_gather`
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(output[1])
            constants, values = [output[1], *constants], values[:1]
        plane = x.shape[2:] if self._is_transpose else x.shape
        ctx.values, ctx.of_transpose = values, [tuple(plane), *values[1:]]
        save(ctx, (*constants,))

    def _backward(self, ctx: Any, gy: Tensor | None, *unused: Any) -> tuple[Any, ...]:
        if gy is not None:
            gy = OPERATORS[self._transpose](gy, *ctx.saved_tensors, *ctx.of_transpose)
        return (gy, *(None,) * (ctx.inputs - 1))

    def _jvp(self, ctx: Any, t: Tensor, *unused: Any) -> Any:
        if self._finds_winners:
            return OPERATORS["roi_pool_gather"](t, *ctx.saved_tensors, *ctx.values), None
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
            given[k] = lead(args[k], d, size).movedim(0, 1).flatten(1, 2)
        if self._is_transpose:
            images, channels, *plane = args[self._tensors]
            given[self._tensors] = [images, channels * size, *plane]
        made = op(*given)
        if isinstance(made, tuple):
            return tuple(y.unflatten(1, (size, -1)) for y in made), (1,) * len(made)
        return made.unflatten(1, (size, -1)), 1


_SAMPLING = ", float spatial_scale, int sampling_ratio, bool aligned"
_OPERATORS: tuple[tuple[str, str, list[str], str], ...] = (
    ("roi_align", "roi_align_backward", ["input", "boxes"], _SAMPLING),
    ("roi_align_backward", "roi_align", ["gy", "boxes"], _SAMPLING),
    ("roi_pool", "roi_pool_backward", ["input", "boxes"], ", float spatial_scale"),
    ("roi_pool_backward", "roi_pool_gather", ["gy", "indices", "boxes"], ""),
    ("roi_pool_gather", "roi_pool_backward", ["t", "indices", "boxes"], ""),
)
OPERATORS = {declaration[0]: _Operator(*declaration) for declaration in _OPERATORS}


# Front end


def region_map(input: Tensor, boxes: object, bins: Bins) -> tuple[Tensor, RegionMap]:
    """Return the input, checked, and the map of its regions."""
    checked("input", input)
    check_input(name_of(input.dtype), tuple(input.shape))

    def convert(name: str, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            form = " of shape (K, 5) or a list with a tensor of shape (L, 4) for each image"
            raise TypeError(
                f"{name} must be a tensor{form if name == 'boxes' else ''}, got {brief(value)}"
            )
        return checked(name, value).detach()

    def join(parts: list[Tensor]) -> Tensor:
        # float64 holds the numbers of every dtype, and the indices of all images; MPS lacks it
        dtype = torch.float64 if input.device.type != "mps" else torch.float32
        rows = [input.new_empty(0, 5, dtype=dtype)]
        for index, own in enumerate(parts):
            corners = own.to(input.device, dtype)
            image = corners.new_full((corners.shape[0], 1), index)
            rows.append(torch.cat([image, corners], 1))
        return torch.cat(rows)

    table = table_of(boxes, input.shape[0], convert, join).to(input.device)
    return input, _OperatorMap(input.shape, table, name_of(input.dtype), bins)


class _OperatorMap(RegionMap):
    """The map of regions as calls of the operators, which PyTorch differentiates."""

    def pool(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        size, scale, *_ = self.bins
        if torch.onnx.is_in_onnx_export():
            how = {"pooled_shape": list(size), "spatial_scale": scale}
            inputs = [x, self.boxes.to(x.dtype)]
            return _onnx("MaxRoiPool", inputs, self.out_shape, how), None
        y, indices = OPERATORS["roi_pool"](x, self.boxes, list(size), scale)
        return y, indices

    def apply(self, array: Tensor, indices: Any = None, transpose: bool = False) -> Tensor:
        """Apply the map of RoIAlign."""
        (size, scale, ratio, aligned), boxes = self.bins, self.boxes
        if torch.onnx.is_in_onnx_export():
            how = {
                "coordinate_transformation_mode": "half_pixel" if aligned else "output_half_pixel",
                "mode": "avg",
                "output_height": size[0],
                "output_width": size[1],
                "sampling_ratio": ratio,
                "spatial_scale": scale,
            }
            inputs = [array, boxes[:, 1:].to(array.dtype), boxes[:, 0].to(torch.int64)]
            return _onnx("RoiAlign", inputs, self.out_shape, how)
        return OPERATORS["roi_align"](array, boxes, list(size), scale, ratio, aligned)


def _onnx(name: str, inputs: list[Tensor], shape: Any, attributes: dict[str, Any]) -> Tensor:
    """Emit a standard operator of ONNX into a program that is being exported."""
    if tracing_state() is not None:
        raise NotImplementedError(
            f"the ONNX operator {name} is exported by torch.onnx.export(dynamo=True) only, "
            "got a TorchScript trace (dynamo=False)"
        )
    symbolic = getattr(getattr(torch.onnx, "ops", None), "symbolic", None)
    if symbolic is None:
        raise NotImplementedError(
            f"the ONNX operator {name} is exported by PyTorch 2.8 and newer only"
        )
    made: Tensor = symbolic(
        name, inputs, attributes, dtype=inputs[0].dtype, shape=shape, version=_ONNX_OPSET
    )
    return made
