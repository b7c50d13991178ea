"""Checks that every layer of `poolgrad.torch.layers` passes, whatever it computes."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn


def distinct(*shape: int, seed: int = 0, least: float = 0.1) -> Tensor:
    """Positive float64 values in random order, far from each other: no step changes a winner."""
    n = int(np.prod(shape))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return (least + 2 * order.double() / n).reshape(shape)


def check_gradients(layer: nn.Module, x: Tensor) -> None:
    """Compare the gradients of the input and of every parameter with finite differences."""
    layer = layer.double()
    names = [name for name, _ in layer.named_parameters()]

    def call(x: Tensor, *parameters: Tensor) -> Any:
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, given, (x,))

    leaves = [x.double(), *(p.detach() for p in layer.parameters())]
    assert torch.autograd.gradcheck(call, [leaf.requires_grad_() for leaf in leaves])


def check_copies(make: Callable[[], nn.Module], x: Tensor) -> None:
    """Compare a layer with its deep copy, and with another one that gets its state."""
    layer, other = make().eval(), make().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.25)
    expected = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), expected)
    assert not any(True for _ in layer.parameters()) or not torch.equal(other(x), expected)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), expected)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True).keys() == layer.state_dict().keys()


def check_unbatched(layer: nn.Module, x: Tensor) -> None:
    """Compare one map without a batch axis with the same map in a batch."""
    layer = layer.eval()
    torch.testing.assert_close(layer(x[0]), layer(x)[0])


def check_compiled(layer: nn.Module, x: Tensor) -> None:
    """Compare output and gradients under `torch.compile`, in one graph, with those in eager mode.

    The code is not generated: that takes minutes, and tests PyTorch's compiler, not the layer.
    """
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [call(leaf) for call, leaf in zip((layer, compiled), leaves, strict=True)]
    torch.testing.assert_close(outputs[1], outputs[0])
    for y in outputs:
        y.square().sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)


def check_exported(layer: nn.Module, x: Tensor, dynamo: bool = False) -> set[str]:
    """Compare a layer with its ONNX file in ONNX Runtime; return the operators of the file.

    `dynamo`: by PyTorch's newer exporter, which takes seconds for each file.
    """
    onnx = pytest.importorskip("onnx", reason="ONNX is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    layer, file = layer.eval(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one exporter is old, and what the other one uses
        if dynamo:
            pytest.importorskip("onnxscript", reason="ONNX Script is not installed")
            torch.onnx.export(layer, (x,), dynamo=True, verbose=False).save(file)
        else:
            torch.onnx.export(layer, (x,), file, dynamo=False, opset_version=17)
    nodes = onnx.load_from_string(file.getvalue()).graph.node
    assert {node.domain for node in nodes} == {""}
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (came,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(came, layer(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    return {node.op_type for node in nodes}
