"""The same poolings by other libraries: PyTorch eager and compiled, oneDNN, ONNX Runtime, XLA."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from shutil import which
from typing import Any

import torch
from torch.nn import functional

from poolgrad.tools.bench.rows import Row

Pool = Callable[..., Any]
Call = Callable[[], object]


def eager(row: Row) -> Pool:
    """Return PyTorch's function, or the composition that its users write instead."""
    if row.calls[0].get("padding") == "same":
        return _same
    return _FORMULAS.get(row.function) or getattr(functional, row.function)


def others(row: Row, x: Any) -> Iterator[tuple[str, Callable[[], Call]]]:
    """Return the makers of calls of libraries that compute maxima with channels first."""
    maxima = row.function in ("max_pool2d", "max_pool3d") and len(row.calls) == 1
    ways = (row.direction, row.layout, row.dtype)
    if not maxima or row.tiny or ways != ("values", "NCHW", "float32"):
        return
    if which(os.environ.get("CXX", "c++")):
        yield "torch.compile", partial(_compiled, row, x)
    if torch.backends.mkldnn.is_available():
        yield "oneDNN", partial(_onednn, row, x)
    if find_spec("onnx") and find_spec("onnxruntime"):
        yield "ONNX Runtime", partial(_onnx_runtime, row, x)
    # XLA always uses all processors.
    if find_spec("jax") and torch.get_num_threads() == os.cpu_count():
        yield "XLA", partial(_xla, row, x)


def _stride(row: Row) -> dict[str, Any]:
    return {"stride": row.calls[0]["kernel_size"], **row.calls[0]}


def _onednn(row: Row, x: Any) -> Call:
    return partial(getattr(torch, "mkldnn_" + row.function), x.to_mkldnn(), **_stride(row))


def _compiled(row: Row, x: Any) -> Call:
    pool, arguments = eager(row), _stride(row)

    def apply(x: Any) -> Any:
        return pool(x, **arguments)

    call = partial(torch.compile(apply), x)
    call()  # compilation is not timed
    return call


def _xla(row: Row, x: Any) -> Call:
    jax: Any = import_module("jax")  # types are not needed
    arguments = {"padding": 0, "dilation": 1, **_stride(row)}

    def along(name: str, around: Any) -> list[Any]:
        return [around] * 2 + [arguments[name]] * (x.dim() - 2)

    pads = [(n, n) for n in along("padding", 0)]
    pool = jax.jit(
        lambda x: jax.lax.reduce_window(
            x, -math.inf, jax.lax.max, along("kernel_size", 1), along("stride", 1), pads,
            window_dilation=along("dilation", 1),
        )
    )  # fmt: skip
    array = jax.numpy.asarray(x.numpy())
    return lambda: pool(array).block_until_ready()


def _onnx_runtime(row: Row, x: Any) -> Call:
    import onnx

    onnxruntime: Any = import_module("onnxruntime")  # it has no types

    arguments = {"padding": 0, "dilation": 1, **_stride(row)}
    axes = x.dim() - 2
    node = onnx.helper.make_node(
        "MaxPool", ["x"], ["y"],
        kernel_shape=[arguments["kernel_size"]] * axes, strides=[arguments["stride"]] * axes,
        pads=[arguments["padding"]] * (2 * axes), dilations=[arguments["dilation"]] * axes,
    )  # fmt: skip
    info = partial(onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    graph = onnx.helper.make_graph(
        [node], "pool", [info("x", shape=x.shape)], [info("y", shape=None)]
    )
    opset = [onnx.helper.make_opsetid("", 21)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Threads that spin between calls would slow down the other libraries.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    binding.bind_cpu_input("x", x.numpy())
    binding.bind_output("y", "cpu")  # the copy to NumPy is not timed
    return partial(session.run_with_iobinding, binding)


def _same(x: Any, kernel_size: int, stride: int, padding: str) -> Any:
    pads: list[int] = []
    for n in (x.shape[3], x.shape[2]):
        lacking = max(0, (math.ceil(n / stride) - 1) * stride + kernel_size - n)
        pads += [lacking // 2, lacking - lacking // 2]
    return functional.max_pool2d(functional.pad(x, pads, value=-math.inf), kernel_size, stride)


def _windows(x: Any, size: int) -> Any:
    return x.unfold(2, size, size).unfold(3, size, size).flatten(4)


def _log_mean_exp(x: Any, kernel_size: int) -> Any:
    return _windows(x, kernel_size).logsumexp(-1) - math.log(kernel_size**2)


def _soft(x: Any, kernel_size: int) -> Any:
    w = _windows(x, kernel_size)
    return (w.softmax(-1) * w).sum(-1)


_FORMULAS: dict[str, Pool] = {
    # torch.amax is faster, but shares a gradient among all winners, and has no routes.
    "global_max_pool": lambda x: functional.adaptive_max_pool2d(x, 1).flatten(1),
    "relu_max_pool2d": lambda x, kernel_size: functional.max_pool2d(x.relu(), kernel_size),
    "global_avg_pool": lambda x: torch.mean(x, (2, 3)),
    "log_mean_exp_pool2d": _log_mean_exp,
    "soft_pool2d": _soft,
    "median_pool2d": lambda x, kernel_size: _windows(x, kernel_size).median(-1).values,
}
