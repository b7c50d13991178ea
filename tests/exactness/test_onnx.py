"""ONNX's definitions, as its reference implementation and ONNX Runtime compute them.

They cover what PyTorch has not: dilated averages, "same" and asymmetric padding, other indices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frontend_calls import Front

from poolgrad.indices import convert_indices

onnx = pytest.importorskip("onnx", reason="ONNX is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
reference = pytest.importorskip("onnx.reference", reason="ONNX's reference needs more packages")

OPSET = 21  # the newest that both compute everything here in
TYPES = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}


def model(operator: str, inputs: list[np.ndarray], outputs: list[str], **how: Any) -> Any:
    names = ["x", "indices", "size"][: len(inputs)]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(operator, names, outputs, **how)],
        operator,
        [info(n, TYPES[v.dtype.name], v.shape) for n, v in zip(names, inputs, strict=True)],
        [info(n, TYPES["int64" if n == "places" else "float32"], None) for n in outputs],
    )
    opset = [onnx.helper.make_opsetid("", OPSET)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)


def by_runtime(operator: str, *inputs: np.ndarray, outputs: Any = ("y",), **how: Any) -> Any:
    made = model(operator, [*inputs], [*outputs], **how).SerializeToString()
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(("x", "indices", "size"), inputs, strict=False)))


def by_reference(operator: str, *inputs: np.ndarray, outputs: Any = ("y",), **how: Any) -> Any:
    evaluator = reference.ReferenceEvaluator(model(operator, [*inputs], [*outputs], **how))
    return evaluator.run(None, dict(zip(("x", "indices", "size"), inputs, strict=False)))


PEERS = [by_runtime, by_reference]
peers = pytest.mark.parametrize("peer", PEERS, ids=["onnxruntime", "reference"])

# (sizes, what ONNX calls the windows, what poolgrad does)
WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any], dict[str, Any]]] = {
    "padding": (
        (9, 10),
        {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_size": (3, 2), "stride": 2, "padding": 1},
    ),
    "asymmetric padding": (  # ONNX: all the beginnings, then all the ends
        (9, 10),
        {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [0, 1, 2, 0]},
        {"kernel_size": (3, 2), "stride": 2, "padding": [(0, 2), (1, 0)]},
    ),
    "ceil": (
        (9, 10),
        {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1},
        {"kernel_size": (3, 2), "stride": (2, 3), "ceil_mode": True},
    ),
    "ceil, windows partly in the padding": (
        (9, 10),
        {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [0, 1, 2, 0], "ceil_mode": 1},
        {"kernel_size": 3, "stride": (2, 3), "padding": [(0, 2), (1, 0)], "ceil_mode": True},
    ),
    "ceil, windows beyond the padding": (
        (6, 8),
        {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 0], "ceil_mode": 1},
        {"kernel_size": 3, "stride": 3, "padding": [(1, 1), (1, 0)], "ceil_mode": True},
    ),
    "ceil, no window in the high padding": (
        (5, 5),
        {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
        {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
    ),
    "dilation": (
        (9, 10),
        {"kernel_shape": [3, 2], "strides": [1, 2], "dilations": [2, 3]},
        {"kernel_size": (3, 2), "stride": (1, 2), "dilation": (2, 3)},
    ),
    "dilation with asymmetric padding": (
        (9, 10),
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [2, 3]},
        {
            "kernel_size": (3, 2),
            "stride": (2, 1),
            "padding": [(1, 1), (0, 1)],
            "dilation": (2, 3),
        },
    ),
    "same": (
        (9, 10),
        {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_size": (3, 2), "stride": 2, "padding": "same"},
    ),
    "same, an odd element at the end": (
        (7, 8),
        {"kernel_shape": [4, 3], "strides": [1, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_size": (4, 3), "stride": (1, 2), "padding": "same"},
    ),
    "valid": (
        (9, 10),
        {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "VALID"},
        {"kernel_size": (3, 2), "stride": (2, 3), "padding": "valid"},
    ),
    "one axis": (
        (13,),
        {"kernel_shape": [4], "strides": [3], "pads": [1, 2]},
        {"kernel_size": 4, "stride": 3, "padding": [(1, 2)]},
    ),
    "three axes": (
        (5, 6, 7),
        {"kernel_shape": [2, 3, 2], "strides": [2, 1, 3], "pads": [1, 0, 1, 0, 2, 1]},
        {"kernel_size": (2, 3, 2), "stride": (2, 1, 3), "padding": [(1, 0), (0, 2), (1, 1)]},
    ),
}
numpy_and_torch = pytest.mark.without(jax="see test_reference.py", dask="see test_reference.py")
windows = pytest.mark.parametrize(("sizes", "theirs", "ours"), WINDOWS.values(), ids=WINDOWS)


def image(sizes: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(sizes).standard_normal((2, 3, *sizes)).astype(np.float32)


@numpy_and_torch
@peers
@windows
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_average(
    front: Front, peer: Any, sizes: Any, theirs: Any, ours: Any, count_include_pad: bool
) -> None:
    x = image(sizes)
    (expected,) = peer("AveragePool", x, count_include_pad=int(count_include_pad), **theirs)
    fun = f"avg_pool{len(sizes)}d"
    y = front.run(fun, x, **ours, count_include_pad=count_include_pad)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=3e-7)


@pytest.mark.parametrize("name", ["padding", "asymmetric padding", "one axis", "three axes"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_average_of_quantised_integers(front: Front, name: str, dtype: Any) -> None:
    """ONNX Runtime rounds twice, so that ties, and numbers next to them, may be one off."""
    sizes, theirs, ours = WINDOWS[name]
    x = (np.random.default_rng(0).standard_normal((2, 3, *sizes)) * 99).astype(np.int8).view(dtype)
    onnx_dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for scale, zero in ((0.1, 0), (0.037, 7), (0.25, 100)):
        parts = {"x_scale": 0.1, "x_zero": 23, "y_scale": scale, "y_zero": zero}
        constants = [
            onnx.helper.make_tensor(n, TYPES["float32"] if "scale" in n else onnx_dtype, [], [v])
            for n, v in parts.items()
        ]
        how = {"domain": "com.microsoft", "count_include_pad": 1} | theirs
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("QLinearAveragePool", ["x", *parts], ["y"], **how)],
            "average",
            [onnx.helper.make_tensor_value_info("x", onnx_dtype, x.shape)],
            [onnx.helper.make_tensor_value_info("y", onnx_dtype, None)],
            constants,
        )
        opset = [onnx.helper.make_opsetid("com.microsoft", 1)]
        made = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
        session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
        (expected,) = session.run(None, {"x": x})
        fun, pairs = f"avg_pool{len(sizes)}d", ((0.1, 23), (scale, zero))
        y = front.run(fun, x, **ours, quantization=pairs)
        assert y.dtype == expected.dtype
        exact = front.run(fun, x - np.float64(23), **ours) * (0.1 / scale)
        is_tie = abs(exact % 1 - 0.5) < 1e-4
        assert (abs(y - expected.astype(int)) <= is_tie).all()


# The reference takes the mean and multiplies it by the size of the kernel, which is wrong where
# ceil_mode cuts a window off: there ONNX Runtime alone is asked.
NORMS = {
    f"{name}-{peer.__name__}": (peer, *case)
    for peer in PEERS
    for name, case in WINDOWS.items()
    if peer is by_runtime or not name.startswith("ceil")
}


@numpy_and_torch
@pytest.mark.parametrize(("peer", "sizes", "theirs", "ours"), NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_norm(front: Front, peer: Any, sizes: Any, theirs: Any, ours: Any, p: int) -> None:
    """ONNX pads with zeros, which add nothing: the norm of the real inputs."""
    x = image(sizes)
    (expected,) = peer("LpPool", x, p=p, **theirs)
    y = front.run(f"lp_pool{len(sizes)}d", x, p, **ours)
    np.testing.assert_allclose(y, expected, rtol=2e-6)


@numpy_and_torch
@peers
@windows
@pytest.mark.parametrize("storage_order", [0, 1], ids=["row major", "column major"])
def test_maximum_and_indices(
    front: Front, peer: Any, sizes: Any, theirs: Any, ours: Any, storage_order: int
) -> None:
    x = image(sizes)
    how = {"storage_order": storage_order} if len(sizes) == 2 else {}
    expected, places = peer("MaxPool", x, outputs=("y", "places"), **how, **theirs)
    y, indices = front.run(f"max_pool{len(sizes)}d", x, **ours, return_indices=True)
    np.testing.assert_array_equal(y, expected)
    target = "onnx_column_major" if how.get("storage_order") else "onnx"
    np.testing.assert_array_equal(convert_indices(indices, x.shape, "torch", target), places)
    np.testing.assert_array_equal(convert_indices(places, x.shape, target, "torch"), indices)


@pytest.mark.parametrize("sizes", [(7,), (6, 5), (3, 4, 5)])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_norm(front: Front, sizes: tuple[int, ...], p: int) -> None:
    """By ONNX Runtime alone: the reference implementation has none."""
    x = image(sizes)
    (expected,) = by_runtime("GlobalLpPool", x, p=p)
    y = front.run("global_lp_pool", x, keepdims=True, norm_type=float(p))
    np.testing.assert_allclose(y, expected, rtol=2e-6)


@pytest.mark.parametrize("sizes", [(7,), (6, 5), (3, 4, 5)])
def test_global_maximum_and_average(front: Front, sizes: tuple[int, ...]) -> None:
    """By ONNX Runtime alone: the reference takes two axes to be pooled, however many there are."""
    x, peer = image(sizes), by_runtime
    (most,) = peer("GlobalMaxPool", x)
    np.testing.assert_array_equal(front.run("global_max_pool", x, keepdims=True), most)
    (mean,) = peer("GlobalAveragePool", x)
    np.testing.assert_allclose(
        front.run("global_avg_pool", x, keepdims=True), mean, rtol=1e-5, atol=1e-7
    )


@peers
@pytest.mark.parametrize("sizes", [(8,), (6, 8), (4, 6, 4)])
def test_unpooling(front: Front, peer: Any, sizes: tuple[int, ...]) -> None:
    """Indices into the whole output, here those of ONNX's own maximum."""
    dims = len(sizes)
    kernel = {"kernel_shape": [2] * dims, "strides": [2] * dims}
    x = image(sizes)
    y, places = by_runtime("MaxPool", x, outputs=("y", "places"), **kernel)
    (expected,) = peer("MaxUnpool", y, places, **kernel)
    indices = convert_indices(places, x.shape, "onnx", "torch")
    back = front.run(f"max_unpool{dims}d", y, indices=indices, kernel_size=2)
    np.testing.assert_array_equal(back, expected)


@pytest.mark.parametrize("sizes", [(9,), (7, 9), (5, 7, 5)])
def test_unpooling_to_another_size(front: Front, sizes: tuple[int, ...]) -> None:
    """By ONNX Runtime alone: the reference counts the places of the default size, not of this."""
    dims = len(sizes)
    kernel = {"kernel_shape": [2] * dims, "strides": [2] * dims}
    x = image(sizes)
    y, places = by_runtime("MaxPool", x, outputs=("y", "places"), **kernel)
    (expected,) = by_runtime("MaxUnpool", y, places, np.array(x.shape), **kernel)
    indices = convert_indices(places, x.shape, "onnx", "torch")
    how: dict[str, Any] = {"kernel_size": 2, "output_size": x.shape}
    back = front.run(f"max_unpool{dims}d", y, indices=indices, **how)
    np.testing.assert_array_equal(back, expected)
