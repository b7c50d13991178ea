"""Pooling of regions of interest of tensors: gradients of any order, the compiler, ONNX, layers."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from regions import CALLS, NAMES, boxes, listed, maps, without_kernels  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad.torch import RoIAlign2d, RoIPool2d  # noqa: E402

OPS = torch.ops.poolgrad
each_call = pytest.mark.parametrize(("name", "kwargs"), CALLS, ids=NAMES)
# PyTorch's forward mode still imports torch.jit.script, and says so.
quiet = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
each_way = pytest.mark.usefixtures("way")
each_name = pytest.mark.parametrize("name", ["roi_pool", "roi_align"])
DTYPES = ["float64", "float32", "float16", "bfloat16"]


@pytest.fixture(params=["kernels", "portable"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "portable":
        without_kernels(monkeypatch)


def tensors(shape: tuple[int, ...] = (2, 3, 11, 13), dtype: str = "float64") -> tuple[Any, Any]:
    x = torch.from_numpy(maps(shape)).to(getattr(torch, dtype))
    return x.requires_grad_(), torch.from_numpy(boxes())


def pool(name: str, size: Any = 3, **kwargs: Any) -> Callable[[Any, Any], Any]:
    return lambda x, table: getattr(poolgrad, name)(x, table, size, **kwargs)


@each_call
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_are_pooled_as_arrays(name: str, kwargs: dict[str, Any], dtype: str) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    x, table = tensors(dtype=dtype)
    array = maps().astype(np.dtype(dtype) if dtype != "bfloat16" else "bfloat16")
    expected, pullback = poolgrad.vjp(getattr(poolgrad, name), array, table.numpy(), 3, **kwargs)
    y = pool(name, **kwargs)(x, table)
    assert (y.dtype, y.is_contiguous()) == (x.dtype, True)
    np.testing.assert_array_equal(y.double().detach(), expected.astype(np.float64))
    gy = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(x.dtype)
    (gx,) = torch.autograd.grad(y, x, gy)
    assert gx.dtype == x.dtype
    wide = pullback(gy.double().numpy()).astype(np.float64)
    np.testing.assert_array_equal(gx.double(), wide)


@quiet
@pytest.mark.parametrize(("name", "kwargs"), [CALLS[0], CALLS[3], CALLS[-1]])
def test_gradients_of_any_order(name: str, kwargs: dict[str, Any]) -> None:
    """In reverse, forward and batched; the second derivative of RoIPool is of its winners."""
    x, table = tensors((2, 2, 4, 5))
    table[:, 1:] /= 3
    call = lambda x: pool(name, 2, **kwargs)(x, table)  # noqa: E731
    how = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(call, x, **how)
    assert torch.autograd.gradgradcheck(call, x, check_fwd_over_rev=True, check_rev_over_rev=True)


@each_way
@each_name
def test_the_gradient_of_the_gradient_is_the_pooling(name: str) -> None:
    """The map is linear, so a cotangent's gradient is the pooling of the other cotangent."""
    x, table = tensors()
    y = pool(name)(x, table)
    gy = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(0))
    (gx,) = torch.autograd.grad(y, x, gy.requires_grad_(), create_graph=True)
    (ggy,) = torch.autograd.grad(gx, gy, x.detach(), retain_graph=True)
    torch.testing.assert_close(ggy, y)
    (third,) = torch.autograd.grad(gx.sum() * gx.square().sum(), gy)
    assert third.isfinite().all()


@each_way
@each_name
def test_boxes_have_no_gradient(name: str) -> None:
    x, table = tensors()
    table.requires_grad_()
    y = pool(name)(x, table)
    y.sum().backward()
    assert table.grad is None
    assert not pool(name)(x.detach(), table).requires_grad


@each_way
@quiet
@each_call
def test_transformations(name: str, kwargs: dict[str, Any]) -> None:
    x, table = tensors()
    x, call = x.detach(), pool(name, **kwargs)
    y, pullback = torch.func.vjp(lambda x: call(x, table), x)
    (gx,) = pullback(y)
    _, t = torch.func.jvp(lambda x: call(x, table), (x,), (x.flip(-1),))
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(call(leaf, table), leaf, y)
    torch.testing.assert_close(gx, expected, rtol=0, atol=0)
    torch.testing.assert_close((t * y).sum(), (gx * x.flip(-1)).sum())


@each_way
@each_name
@pytest.mark.parametrize("dims", [(0, None), (3, None), (None, 1), (1, 0)])
def test_vmap(name: str, dims: tuple[int | None, int | None]) -> None:
    """Over inputs, boxes or both; also of the gradient."""
    xs = [torch.from_numpy(maps((2, 3, 6, 7), seed=n)) for n in range(4)]
    tables = [torch.from_numpy(boxes(8, seed=n)) for n in range(4)]

    def both(x: Any, table: Any) -> Any:
        y, pullback = torch.func.vjp(lambda x: pool(name)(x, table), x)
        return y, pullback(y)[0]

    x = xs[0] if dims[0] is None else torch.stack(xs, dims[0])
    table = tables[0] if dims[1] is None else torch.stack(tables, dims[1])
    made = torch.func.vmap(both, dims)(x, table)
    one_by_one = [
        both(xs[n * (dims[0] is not None)], tables[n * (dims[1] is not None)]) for n in range(4)
    ]
    for came, expected in zip(made, zip(*one_by_one, strict=True), strict=True):
        torch.testing.assert_close(came, torch.stack(expected), rtol=0, atol=0)


@each_way
@each_call
def test_strides_and_threads_change_no_bit(name: str, kwargs: dict[str, Any]) -> None:
    base = torch.from_numpy(maps((4, 40, 11, 13), np.float32))
    x, table = base[::2, 1:38], torch.from_numpy(boxes(50))
    last = x.contiguous(memory_format=torch.channels_last)
    inputs = [x, x.contiguous(), last, (-x)._neg_view()]
    made, before = set(), torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for given in inputs:
                leaf = given.detach().requires_grad_()
                y = pool(name, **kwargs)(leaf, table)
                y.backward(torch.linspace(-1, 1, 3).expand(y.shape))
                made.add((y.detach().numpy().tobytes(), leaf.grad.contiguous().numpy().tobytes()))
    finally:
        torch.set_num_threads(before)
    assert len(made) == 1


@each_way
def test_a_list_is_a_table() -> None:
    x, (own, table) = tensors((3, 2, 11, 13))[0], listed(boxes(), 3)
    for name, kwargs in CALLS:
        expected = pool(name, **kwargs)(x, torch.from_numpy(table))
        for dtype in (torch.float64, torch.float32):
            given = [torch.from_numpy(one).to(dtype) for one in own]
            y = pool(name, **kwargs)(x, given)
            close = {} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-3}
            torch.testing.assert_close(y, expected, **(close or {"rtol": 0, "atol": 0}))
        whole = [
            torch.tensor([[1, 2, 9, 8]]),
            torch.empty(0, 4, dtype=torch.int64),
            torch.ones(1, 4),
        ]
        assert pool(name, **kwargs)(x.half(), whole).shape == (2, 2, 3, 3)
    assert poolgrad.roi_align(x[:0], [], 2).shape == (0, 2, 2, 2)


@each_way
def test_boxes_of_many_images_need_not_fit_half_floats() -> None:
    """An index of 4097 is no float16: boxes may have another dtype than the input."""
    x = torch.zeros(4100, 1, 2, 2, dtype=torch.float16)
    x[4097] = 5
    table = torch.tensor([[4097.0, 0, 0, 1, 1]])
    assert poolgrad.roi_pool(x, table, 1).item() == 5


# The compiler


@each_way
def test_compiled() -> None:
    """Whole, for any number of boxes, with the same bits."""
    torch.compiler.reset()
    x, table = tensors(dtype="float32")

    def call(x: Any, table: Any) -> Any:
        return pool("roi_pool")(x, table) + pool("roi_align", aligned=True)(x, table).square()

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for given in (table, table[:5], [table[:3, 1:], table[:1, 1:]]):
        y, expected = compiled(x, given), call(x, given)
        torch.testing.assert_close(y, expected, rtol=0, atol=0)
        made = [torch.autograd.grad(out.square().sum(), x)[0] for out in (y, expected)]
        torch.testing.assert_close(*made, rtol=0, atol=0)


@each_way
def test_pytorch_checks_the_operators() -> None:
    x, table = tensors((2, 2, 5, 6))
    table[:, 1:] /= 3
    y, indices = OPS.roi_pool(x, table, [2, 3], 0.5)
    gy = y.detach().clone().requires_grad_()
    shape = list(x.shape)
    for op, args in (
        (OPS.roi_align, (x, table, [2, 3], 0.5, 2, True)),
        (OPS.roi_align_backward, (gy, table, shape, 0.5, 2, True)),
        (OPS.roi_pool, (x, table, [2, 3], 0.5)),
        (OPS.roi_pool_backward, (gy, indices, table, shape)),
        (OPS.roi_pool_gather, (x, indices, table, [2, 3])),
    ):
        torch.library.opcheck(op.default, args)


@each_name
def test_meta_tensors(name: str) -> None:
    x, table = tensors(dtype="bfloat16")
    y = pool(name, (4, 5))(x.detach().to("meta"), table.to("meta"))
    assert (y.shape, y.dtype, y.device.type) == ((12, 3, 4, 5), torch.bfloat16, "meta")


def test_exported_programs_keep_the_operators() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool, self.align = RoIPool2d(2, 0.5), RoIAlign2d(2, 0.5, 2, True)

        def forward(self, x: Any, table: Any) -> Any:
            return self.pool(x, table), self.align(x, table)

    x, table = tensors(dtype="float32")
    boxes_axis = torch.export.Dim("boxes", min=2, max=100)
    program = torch.export.export(
        Net(), (x.detach(), table), dynamic_shapes={"x": None, "table": {0: boxes_axis}}
    )
    for rows in (12, 5):
        for made, expected in zip(
            program.module()(x, table[:rows]), Net()(x, table[:rows]), strict=True
        ):
            torch.testing.assert_close(made, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("layer", "operator"),
    [
        pytest.param(RoIPool2d((2, 3), 0.5), "MaxRoiPool", marks=pytest.mark.slow),
        (RoIAlign2d((2, 3), 0.37, 3, True), "RoiAlign"),
        pytest.param(RoIAlign2d(2, 0.5), "RoiAlign", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_onnx_export_is_the_standard_operator(layer: Any, operator: str) -> None:
    onnx = pytest.importorskip("onnx", reason="ONNX is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    pytest.importorskip("onnxscript", reason="ONNX Script is not installed")
    if not hasattr(torch.onnx, "ops"):
        pytest.skip("this PyTorch cannot export operators of ONNX")
    x, table = tensors(dtype="float32")
    x, table, file = x.detach(), table.float(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the exporter uses
        sizes = {"input": None, "boxes": {0: torch.export.Dim("boxes", min=2, max=100)}}
        program = torch.onnx.export(
            layer, (x, table), dynamo=True, verbose=False, dynamic_shapes=sizes
        )
        program.save(file)
    nodes = onnx.load_from_string(file.getvalue()).graph.node
    assert {node.domain for node in nodes} == {""}
    assert [node.op_type for node in nodes].count(operator) == 1
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    for rows in (12, 7):
        given = dict(zip(names, (x.numpy(), table[:rows].numpy()), strict=True))
        (y,) = session.run(None, given)
        np.testing.assert_allclose(y, layer(x, table[:rows]), rtol=1e-5, atol=1e-5)


# Layers


@each_way
@pytest.mark.parametrize(
    ("layer", "call", "shown"),
    [
        (
            RoIPool2d((2, 3), spatial_scale=0.5),
            lambda x, table: poolgrad.roi_pool(x, table, (2, 3), 0.5),
            "RoIPool2d(output_size=(2, 3), spatial_scale=0.5)",
        ),
        (
            RoIAlign2d(3),
            lambda x, table: poolgrad.roi_align(x, table, 3),
            "RoIAlign2d(output_size=(3, 3), spatial_scale=1.0, sampling_ratio=-1, aligned=False)",
        ),
        (
            RoIAlign2d(3, 0.25, 2, True),
            lambda x, table: poolgrad.roi_align(x, table, 3, 0.25, 2, True),
            "RoIAlign2d(output_size=(3, 3), spatial_scale=0.25, sampling_ratio=2, aligned=True)",
        ),
    ],
)
def test_layers(layer: Any, call: Any, shown: str) -> None:
    x, table = tensors()
    assert repr(layer) == shown
    assert not [*layer.parameters(), *layer.state_dict()]
    for own in (layer, pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(own(x, table), call(x, table), rtol=0, atol=0)


def test_layers_check_their_arguments_when_they_are_made() -> None:
    for layer in (RoIPool2d, RoIAlign2d):
        with pytest.raises(ValueError, match="output_size must be"):
            layer(0)
        with pytest.raises(ValueError, match="spatial_scale must be"):
            layer(2, -1.0)
    with pytest.raises(TypeError, match="aligned must be"):
        RoIAlign2d(2, 1.0, 2, "yes")  # type: ignore[arg-type]


# Errors

X, BOX = torch.ones(2, 3, 6, 7), torch.tensor([[0, 1.0, 1, 4, 4]])


@each_name
@pytest.mark.parametrize(
    ("input", "boxes", "error", "message"),
    [
        (X[0], BOX, ValueError, r"input must have shape \(N, C, H, W\)"),
        (X.int(), BOX, TypeError, "input must be of dtype .*, got int32"),
        (X.to_sparse(), BOX, TypeError, "input must be a dense tensor"),
        (X, BOX[0], ValueError, r"boxes must be an array of shape \(K, 5\).* of shape \(5,\)"),
        (X, BOX[:, 1:], ValueError, r"got boxes of shape \(1, 4\)"),
        (X, BOX > 0, TypeError, "boxes must contain real numbers, got bool"),
        (X, BOX.numpy(), TypeError, "boxes must be a tensor of shape"),
        (X, [BOX[:, 1:]], ValueError, "one array for each of 2 images, got a list of 1"),
        (X, [BOX[:, 1:], None], TypeError, r"boxes\[1\] must be a tensor, got None"),
        (X, [BOX, BOX], ValueError, r"got boxes\[0\] of shape \(1, 5\)"),
        (X, BOX * float("nan"), ValueError, r"boxes\[0\] must begin with the index of an image"),
        (X, BOX + torch.tensor([2, 0, 0, 0, 0]), ValueError, "from 0 to 1, got 2"),
        (X, BOX[:, [0, 3, 2, 1, 4]], ValueError, "must have x1 <= x2 and y1 <= y2"),
    ],
)
def test_bad_calls(name: str, input: Any, boxes: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        pool(name, 2)(input, boxes)


def test_tensors_have_no_vjp() -> None:
    for name in ("roi_pool", "roi_align"):
        with pytest.raises(TypeError, match="PyTorch differentiates its own tensors"):
            poolgrad.vjp(getattr(poolgrad, name), X, BOX, 2)


INDICES = torch.zeros(1, 3, 2, 2, dtype=torch.int32)
GY, SHAPE = torch.ones(1, 3, 2, 2), [2, 3, 6, 7]


@pytest.mark.parametrize(
    ("op", "args", "message"),
    [
        ("roi_align", (X, BOX, [2], 1.0, 1, True), "axis|index out of range"),
        ("roi_align", (X, BOX, [2, 0], 1.0, 1, True), "less than one"),
        ("roi_align", (X, BOX, [2, 2], -1.0, 1, True), "spatial_scale"),
        ("roi_align", (X, BOX, [2, 2], 1.0, 2**20, True), "sampling_ratio must be at most"),
        ("roi_align", (X[0], BOX, [2, 2], 1.0, 1, True), "input must have shape"),
        ("roi_align", (X, BOX[0], [2, 2], 1.0, 1, True), "boxes must be"),
        ("roi_align_backward", (GY[0], BOX, SHAPE, 1.0, 1, True), "gy must have four axes"),
        ("roi_align_backward", (GY[:, :2], BOX, SHAPE, 1.0, 1, True), "gy must be .* shape"),
        ("roi_align_backward", (GY, BOX, SHAPE[1:], 1.0, 1, True), "input must have shape"),
        ("roi_align_backward", (GY, BOX + 5, SHAPE, 1.0, 1, True), "index of an image"),
        ("roi_pool", (X, BOX, [2, 2], float("inf")), "spatial_scale"),
        ("roi_pool_backward", (GY, INDICES.long(), BOX, SHAPE), "indices must be torch.int32"),
        ("roi_pool_backward", (GY, INDICES[:, :1], BOX, SHAPE), "indices must be .* of shape"),
        ("roi_pool_backward", (GY, INDICES + 42, BOX, SHAPE), "indices must be -1 or from 0 to 41"),
        ("roi_pool_gather", (X, INDICES - 2, BOX, [2, 2]), "indices must be -1 or from 0 to 41"),
        ("roi_pool_gather", (X, INDICES[0], BOX, [2, 2]), "indices must be .* of shape"),
        ("roi_pool_gather", (X[:, :2], INDICES, BOX, [2, 2]), "indices must be .* of shape"),
    ],
)
def test_operators_guard_memory(op: str, args: Any, message: str) -> None:
    with pytest.raises((ValueError, IndexError, TypeError), match=message):
        getattr(OPS, op)(*args)


@each_name
def test_freed_memory(name: str) -> None:
    for freed in (0, 1):
        given = [X.clone(), BOX.clone()]
        given[freed].untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match=("input", "boxes")[freed] + " must have memory"):
            pool(name, 2)(*given)


@pytest.mark.parametrize("layer", [RoIPool2d(2), RoIAlign2d(2)], ids=["pool", "align"])
def test_torchscript_is_an_error_with_another_way(layer: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript and its exporter are old
        with pytest.raises(NotImplementedError, match=r"use torch\.jit\.trace"):
            torch.jit.script(layer)
        given = tuple(t.detach().float() for t in tensors())
        with pytest.raises(NotImplementedError, match=r"exported by .*\(dynamo=True\) only"):
            torch.onnx.export(layer, given, io.BytesIO(), dynamo=False)


@each_name
def test_fx_records_the_functions(name: str) -> None:
    x, table = (t.detach() for t in tensors())
    traced = torch.fx.symbolic_trace(lambda x, boxes: pool(name)(x, boxes) + 1)
    assert torch.equal(traced(x, table), pool(name)(x, table) + 1)
