"""What docs/comparison.md states about PyTorch, Flax and ONNX Runtime is true of these versions."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import poolgrad

NAN = float("nan")
WITH_NAN = [[NAN, 1, 2, 3], [1, NAN, 2, NAN], [1, 2, 3, NAN]]


class TestPyTorch:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional

    def gradient(self, function: Any, values: list[float]) -> list[float]:
        x = self.torch.tensor(values).reshape(1, 2, 2).requires_grad_()
        function(x).sum().backward()
        return x.grad.ravel().tolist()

    def test_ties(self) -> None:
        pool = self.functional.max_pool2d
        assert self.gradient(lambda x: pool(x, 2), [1.0] * 4) == [1, 0, 0, 0]
        assert self.gradient(lambda x: x.amax((1, 2)), [1.0] * 4) == [0.25] * 4

    @pytest.mark.parametrize("values", WITH_NAN)
    def test_the_last_nan_wins_as_here(self, values: list[float]) -> None:
        last = [float(i == np.flatnonzero(np.isnan(values))[-1]) for i in range(4)]
        assert self.gradient(lambda x: self.functional.max_pool2d(x, 2), values) == last
        y, pullback = poolgrad.vjp(poolgrad.max_pool2d, np.reshape(values, (2, 2)), 2)
        assert np.isnan(y).all()
        assert pullback(1.0).ravel().tolist() == last

    def test_windows(self) -> None:
        x, functional = self.torch.ones(1, 4, 4), self.functional
        assert functional.max_pool2d(x, 2).shape == (1, 2, 2)
        assert functional.avg_pool2d(x, 2, padding=1)[0, 0, 0] == 0.25
        with pytest.raises(RuntimeError, match="at most half"):
            functional.max_pool2d(x, 2, padding=2)
        for padding in ("same", ((0, 1), (0, 1))):
            with pytest.raises(TypeError):
                functional.max_pool2d(x, 2, padding=padding)
        with pytest.raises(TypeError):
            functional.avg_pool2d(x, 2, dilation=2)
        with pytest.raises(TypeError):
            functional.lp_pool2d(x, 2, 2, dilation=2)
        assert functional.lp_pool2d(-x, 3, 2).isnan().all()
        assert (poolgrad.lp_pool2d(-np.ones((4, 4)), 3, 2) > 0).all()

    @pytest.mark.parametrize(("name", "kept"), [("max_pool2d", [256, 128]), ("avg_pool2d", [256])])
    def test_bytes_that_are_kept(self, name: str, kept: list[int]) -> None:
        saved: list[int] = []

        def pack(tensor: Any) -> Any:
            saved.append(tensor.nbytes)
            return tensor

        x = self.torch.rand(1, 8, 8, requires_grad=True)
        with self.torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            getattr(self.functional, name)(x, 2)
        assert saved == kept


class TestFlax:
    linen = pytest.importorskip("flax.linen")
    jax = pytest.importorskip("jax")

    def maxima(self, x: Any) -> Any:
        return self.linen.max_pool(x, (2, 2))

    def test_ties(self) -> None:
        x = self.jax.numpy.ones((1, 2, 2, 1))
        gradient = self.jax.grad(lambda x: self.maxima(x).sum())(x)
        assert gradient.ravel().tolist() == [1, 0, 0, 0]
        assert self.jax.grad(lambda x: x.max())(x).ravel().tolist() == [0.25] * 4

    @pytest.mark.parametrize("values", WITH_NAN)
    def test_nan(self, values: list[float]) -> None:
        assert np.isnan(self.maxima(self.jax.numpy.array(values).reshape(1, 2, 2, 1))).all()

    def test_windows(self) -> None:
        x = self.jax.numpy.ones((1, 4, 4, 1))
        assert self.maxima(x).shape == (1, 3, 3, 1)
        padded = self.linen.avg_pool(x, (2, 2), padding=((1, 1), (1, 1)))
        assert padded[0, 0, 0, 0] == 0.25
        assert self.linen.max_pool(x, (2, 2), padding=((3, 3), (3, 3))).shape == (1, 9, 9, 1)
        assert not {"dilation", "ceil_mode"} & set(
            inspect.signature(self.linen.max_pool).parameters
        )

    def test_a_dilated_maximum_has_no_gradient(self) -> None:
        lax = self.jax.lax

        def maximum(x: Any) -> Any:
            y = lax.reduce_window(x, -np.inf, lax.max, (2,), (1,), "VALID", window_dilation=(2,))
            return y.sum()

        x = self.jax.numpy.arange(4.0)
        assert maximum(x) == 5
        with pytest.raises(NotImplementedError, match="with window dilation"):
            self.jax.grad(maximum)(x)

    def test_arrays_that_are_kept(self) -> None:
        x = self.jax.numpy.ones((1, 8, 8, 1))
        leaves = self.jax.tree_util.tree_leaves
        assert [a.shape for a in leaves(self.jax.vjp(self.maxima, x)[1])] == [x.shape]
        average = self.jax.vjp(lambda x: self.linen.avg_pool(x, (2, 2)), x)[1]
        assert all(a.size <= 1 for a in leaves(average))


class TestONNX:
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")

    def run(self, name: str, x: Any, outputs: int = 1, **attributes: Any) -> Any:
        helper, kinds = self.onnx.helper, self.onnx.TensorProto
        names = ["y", "indices"][:outputs]
        node = helper.make_node(name, ["x"], names, **attributes)
        types = {"y": kinds.FLOAT, "indices": kinds.INT64}
        made = [helper.make_tensor_value_info(n, types[n], None) for n in names]
        taken = [helper.make_tensor_value_info("x", kinds.FLOAT, np.shape(x))]
        graph = helper.make_graph([node], "pooling", taken, made)
        opset = [helper.make_opsetid("", 22)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=10)
        options = self.runtime.SessionOptions()
        options.log_severity_level = 4
        data, where = model.SerializeToString(), ["CPUExecutionProvider"]
        session = self.runtime.InferenceSession(data, options, providers=where)
        return session.run(None, {"x": np.asarray(x, np.float32)})

    def test_indices_and_ties(self) -> None:
        x = np.arange(32).reshape(1, 2, 4, 4)
        window = {"kernel_shape": [2, 2], "strides": [2, 2]}
        rows = self.run("MaxPool", x, 2, **window)[1]
        assert rows.ravel().tolist() == [5, 7, 13, 15, 21, 23, 29, 31]
        columns = self.run("MaxPool", x, 2, storage_order=1, **window)[1]
        assert columns.ravel().tolist() == [5, 13, 7, 15, 21, 29, 23, 31]
        assert self.run("MaxPool", np.ones((1, 1, 2, 2)), 2, kernel_shape=[2, 2])[1] == 0

    def test_whether_nan_wins_depends_on_its_position(self) -> None:
        found = [
            bool(np.isnan(self.run("MaxPool", np.reshape(v, (1, 1, 2, 2)), kernel_shape=[2, 2])))
            for v in WITH_NAN
        ]
        assert True in found
        assert False in found

    def test_windows(self) -> None:
        x = np.ones((1, 1, 5, 5))
        size = {"kernel_shape": [2, 2], "strides": [2, 2]}
        assert self.run("MaxPool", x, kernel_shape=[2, 2])[0].shape == (1, 1, 4, 4)
        assert self.run("MaxPool", x, ceil_mode=1, **size)[0].shape == (1, 1, 3, 3)
        assert (self.run("AveragePool", x, pads=[1, 1, 1, 1], **size)[0] == 1).all()
        assert (self.run("LpPool", -x, p=3, **size)[0] > 0).all()
        for name in ("MaxPool", "AveragePool", "LpPool"):
            attributes = self.onnx.defs.get_schema(name).attributes
            assert {"dilations", "ceil_mode", "pads", "auto_pad"} <= set(attributes)
        with pytest.raises(Exception, match="pad"):
            self.run("MaxPool", x, pads=[3, 3, 3, 3], **size)
