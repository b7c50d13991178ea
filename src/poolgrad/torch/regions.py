"""The front end of region-of-interest pooling for PyTorch: `poolgrad.roi_pool` and `roi_align`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poolgrad.regions import Bins, check_images, check_input, check_table, output_shape
from poolgrad.torch import region_operators
from poolgrad.torch._compat import mode_of, tracing_state
from poolgrad.torch.arrays import checked, name_of
from poolgrad.windows import brief

_ONNX_OPSET = 16  # of the operator RoiAlign with coordinate_transformation_mode


def _table(boxes: object, x: Tensor) -> Tensor:
    """Convert boxes of either form to one tensor of shape (K, 5), without a gradient."""
    if isinstance(boxes, Tensor):
        boxes = checked("boxes", boxes)
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
        given = checked(f"boxes[{index}]", own)
        check_table(name_of(given.dtype), tuple(given.shape), 4, f"boxes[{index}]")
        # float64 holds the numbers of every dtype, and the indices of all images; MPS lacks it
        dtype = torch.float64 if x.device.type != "mps" else torch.float32
        corners = given.detach().to(x.device, dtype)
        image = corners.new_full((corners.shape[0], 1), index)
        parts.append(torch.cat([image, corners], 1))
    with mode_of(x):
        none = torch.empty(0, 5, dtype=torch.float32, device=x.device)
    return torch.cat(parts) if parts else none


def _checked(x: Tensor, boxes: object, wanted: Bins) -> Tensor:
    checked("input", x)
    check_input(name_of(x.dtype), tuple(x.shape))
    table = _table(boxes, x)
    output_shape(table.shape[0], tuple(x.shape), wanted.output_size)
    return table


def _onnx(name: str, x: Tensor, inputs: list[Tensor], shape: Any, **attributes: Any) -> Tensor:
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
    y: Tensor = region_operators.pool(input, table, size, scale)[0]
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
    y: Tensor = region_operators.align(
        input, table, size, scale, wanted.sampling_ratio, wanted.aligned
    )
    return y
