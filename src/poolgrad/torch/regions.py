"""The front end of region-of-interest pooling for PyTorch: `poolgrad.roi_pool` and `roi_align`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poolgrad.region_maps import Bins, RegionMap, check_input, table_of
from poolgrad.torch._compat import mode_of, tracing_state
from poolgrad.torch.arrays import checked, name_of
from poolgrad.torch.region_operators import OPERATORS
from poolgrad.windows import brief

_ONNX_OPSET = 16  # of the operator RoiAlign with coordinate_transformation_mode


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
        with mode_of(input):
            rows = [torch.empty(0, 5, dtype=dtype, device=input.device)]
        for index, own in enumerate(parts):
            corners = own.to(input.device, dtype)
            image = corners.new_full((corners.shape[0], 1), index)
            rows.append(torch.cat([image, corners], 1))
        return torch.cat(rows)

    table = table_of(boxes, input.shape[0], convert, join)
    return input, _TensorMap(input, table.to(input.device), bins)


class _TensorMap(RegionMap):
    """The map of regions in PyTorch's operators, which are differentiable."""

    def __init__(self, x: Tensor, boxes: Tensor, bins: Bins) -> None:
        super().__init__(tuple(x.shape), boxes.shape[0], name_of(x.dtype), bins)
        self._boxes = boxes

    def pool(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        size, scale = list(self.bins.output_size), self.bins.spatial_scale
        if torch.onnx.is_in_onnx_export():
            inputs = [x, self._boxes.to(x.dtype)]
            how = {"pooled_shape": size, "spatial_scale": scale}
            return _onnx("MaxRoiPool", inputs, self.out_shape, **how), None
        y, indices = OPERATORS["roi_pool"](x, self._boxes, size, scale)
        return y, indices

    def apply(self, x: Tensor, indices: Tensor | None = None) -> Tensor:
        bins, boxes = self.bins, self._boxes
        size, how = bins.output_size, bins[1:]
        if torch.onnx.is_in_onnx_export():
            return _onnx(
                "RoiAlign",
                [x, boxes[:, 1:].to(x.dtype), boxes[:, 0].to(torch.int64)],
                self.out_shape,
                coordinate_transformation_mode=(
                    "half_pixel" if bins.aligned else "output_half_pixel"
                ),
                mode="avg",
                output_height=size[0],
                output_width=size[1],
                sampling_ratio=bins.sampling_ratio,
                spatial_scale=bins.spatial_scale,
            )
        y: Tensor = OPERATORS["roi_align"](x, boxes, list(size), *how)
        return y


def _onnx(name: str, inputs: list[Tensor], shape: Any, **attributes: Any) -> Tensor:
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
