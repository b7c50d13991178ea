"""The operators of ONNX files: those of ONNX's own poolings where ONNX has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from layer_checks import check_exported, distinct  # noqa: E402
from torch import nn  # noqa: E402

import poolgrad.torch as layers  # noqa: E402

GEM = (
    "Abs And Cast Clip Concat Constant Div Equal Exp Floor Greater Less Log Mul Neg Not Pow "
    "Reciprocal ReduceMax ReduceSum Reshape Shape Slice Unsqueeze Where"
)
SOFTMAX_OF_TAPS = (
    "Add Cast Concat Constant ConstantOfShape Div Expand Gather Mod Mul Pad Range ReduceSum "
    "Reshape Shape Slice Softmax Sub Transpose Unsqueeze"
)
WINDOWS: dict[str, Any] = {"kernel_size": 3, "stride": 2, "padding": 1}

# Of the older exporter, which PyTorch no longer changes
OPERATORS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "max": (lambda: layers.MaxPool2d(**WINDOWS), "MaxPool"),
    "avg": (lambda: layers.AvgPool2d(**WINDOWS), "AveragePool"),
    "relu max": (lambda: layers.ReLUMaxPool2d(**WINDOWS), "MaxPool Relu"),
    "mixed": (
        lambda: layers.MixedPool2d(**WINDOWS, alpha=nn.Parameter(torch.tensor([0.25, -0.5, 1.5]))),
        "Add AveragePool MaxPool Mul",
    ),
    "stochastic": (
        lambda: layers.StochasticPool2d(**WINDOWS),
        "AveragePool Constant Div Greater Mul ReduceMax Relu Where",
    ),
    "pyramid, max": (
        lambda: layers.SpatialPyramidPool2d((1, 3)),
        "Concat Constant ReduceMax Reshape Shape Slice Unsqueeze",
    ),
    "pyramid, mean": (
        lambda: layers.SpatialPyramidPool2d((1, 3), "avg"),
        "Concat Constant ReduceMean Reshape Shape Slice Unsqueeze",
    ),
    "gem": (lambda: layers.GeM2d(3), GEM),
    "log mean exp": (
        lambda: layers.LogSumExp2d(3),
        "Abs Add Cast Concat Constant Div Equal Exp Greater Less Log Mul Pow ReduceMax ReduceSum "
        "Reshape Shape Slice Sub Unsqueeze Where",
    ),
    "lip": (
        lambda: layers.LIP2d(3),
        "Add AveragePool Cast Constant Conv Div Exp InstanceNormalization Mul Reshape Shape "
        "Sigmoid",
    ),
    "lip, any logits": (lambda: layers.LIP2d(3, logits=nn.Identity()), SOFTMAX_OF_TAPS),
    "head, avg": (lambda: layers.make_head("avg", 3, (7, 6), 2), "Gemm ReduceMean"),
    "head, max": (
        lambda: layers.make_head("max", 3, (7, 6), 2),
        "Concat Constant Gemm ReduceMax Reshape Shape Slice",
    ),
    "head, gem": (lambda: layers.make_head("gem", 3, (7, 6), 2), f"{GEM} Gemm"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    make, expected = OPERATORS[name]
    kinds = check_exported(make(), distinct(2, 3, 7, 6).float())
    assert sorted(kinds - {"Identity"}) == sorted(expected.split())
