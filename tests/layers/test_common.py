"""What all layers have in common: exact gradients, copies, dtypes, compilers and exports."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from layer_checks import check_exported  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import poolgrad.torch as public  # noqa: E402
from poolgrad.tools import check  # noqa: E402
from poolgrad.tools.check.layers import LAYERS, LayerCase, call, prepared  # noqa: E402

CASES = [
    pytest.param(case, id=f"{name}-{i}") for name, cases in LAYERS.items()
    for i, case in enumerate(cases)
]  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES)

# Of a map: any channels; and with three
ANY = {
    "BlurPool2d": public.BlurPool2d,
    "MaxBlurPool2d": public.MaxBlurPool2d,
    "AdaptivePolyphasePool2d": public.AdaptivePolyphasePool2d,
}
THREE = {
    "BlurConv2d": lambda: public.BlurConv2d(3, 4, 3, padding=1),
    "LIP2d": lambda: public.LIP2d(3),
    "LIP2d, any logits": lambda: public.LIP2d(3, logits=nn.Identity()),
    "GatedPool2d": lambda: public.GatedPool2d(3),
    "TreePool2d": lambda: public.TreePool2d(3),
}
of_maps = pytest.mark.parametrize("make", [*ANY.values(), *THREE.values()], ids=[*ANY, *THREE])


def moved(layer: Any) -> Any:
    """The layer, with parameters that are not those it begins with."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return layer


def maps(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    row = check.check_layer(name)
    assert row.ok, row
    assert row.errors.keys() == {"differences", "repeat"}


def test_every_layer_is_checked_and_public() -> None:
    from poolgrad.torch import layers

    classes = {n for n in layers.__all__ if isinstance(getattr(layers, n), type)}
    assert classes <= set(LAYERS)
    for name in LAYERS:
        assert name in public.__all__
        assert getattr(public, name).__module__.startswith("poolgrad.torch")


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


class Scale(nn.Module):
    """Its input times a parameter; with what may be wrong about a layer."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong = wrong
        self.factor = nn.Parameter(torch.ones(2))
        self.calls = 0

    def forward(self, x: Any) -> Any:
        if self.wrong == "fails":
            raise RuntimeError("out of order")
        self.calls += 1
        factor = Wrong.apply(self.factor) if self.wrong == "parameter" else self.factor.sin()
        y = (Wrong.apply(x) if self.wrong == "input" else x.sin()) * factor[:, None, None]
        return y + (self.calls if self.wrong == "repeat" else 0)


@pytest.mark.parametrize("wrong", ["input", "parameter", "repeat", "fails", ""])
def test_a_wrong_layer_is_noticed(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setitem(LAYERS, "Scale", (LayerCase(lambda: Scale(wrong)),))
    row = check.check_layer("Scale")
    assert row.ok == (not wrong)
    if wrong == "fails":
        assert row.failure.startswith("RuntimeError: out of order, in Scale()")
    elif wrong:
        failed = {name for name, error in row.errors.items() if not error.ok}
        assert ("repeat" if wrong == "repeat" else "differences") in failed


@each_case
def test_copies_do_the_same(case: LayerCase) -> None:
    layer, x = prepared(case)
    x = torch.tensor(x)
    before = x.clone()
    expected = call(case, layer, x)
    assert torch.equal(x, before)
    assert torch.equal(call(case, copy.deepcopy(layer), x), expected)
    fresh = case.make().double()
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(call(case, fresh, x), expected)


@of_maps
def test_layers_can_be_pickled(make: Any) -> None:
    layer = moved(make())
    x = maps(2, 3, 8, 8)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_are_near(case: LayerCase, dtype: Any) -> None:
    layer, x = prepared(case)
    x = torch.tensor(x).to(dtype)
    narrow = copy.deepcopy(layer).to(dtype)
    wide = copy.deepcopy(narrow).double()
    y = call(case, narrow, x.requires_grad_())
    assert y.dtype == dtype
    expected = call(case, wide, x.double())
    step = torch.finfo(dtype).eps
    far = 30 * step * expected.abs().max().item()
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=far)
    y.sum().backward()
    assert x.grad.dtype == dtype


@of_maps
def test_a_map_without_batch_is_one_of_a_batch(make: Any) -> None:
    layer, x = moved(make()), maps(1, 3, 8, 6)
    torch.testing.assert_close(layer(x[0]), layer(x)[0])


@of_maps
def test_memory_formats_agree(make: Any) -> None:
    layer, x = moved(make()), maps(2, 3, 8, 6)
    expected = layer(x)
    for other in (x.to(memory_format=torch.channels_last), x.mT.contiguous().mT):
        torch.testing.assert_close(layer(other), expected)


@of_maps
def test_empty_batches_give_empty_batches(make: Any) -> None:
    layer = make()
    y = layer(torch.zeros(0, 3, 8, 8))
    assert y.shape == (0, *layer(torch.zeros(1, 3, 8, 8)).shape[1:])


@of_maps
@pytest.mark.parametrize(
    ("x", "text"),
    [
        ([[1.0]], r"x must be a tensor, got \[\[1.0\]\] \(list\)"),
        (np.zeros((1, 3, 4, 4)), r"x must be a tensor, got .* \(ndarray\)"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.int64), "x must be a tensor of floating-point"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.complex64), "got torch.complex64"),
        (torch.zeros(4, 4), r"must have the shape \(N, C, H, W\) or \(C, H, W\), got \(4, 4\)"),
        (torch.zeros(1, 3, 1, 4, 4), r"got \(1, 3, 1, 4, 4\)"),
        (torch.zeros(1, 3, 0, 4), "x must have at least one channel, row and column, got shape"),
        (torch.zeros(1, 0, 4, 4), "x must have at least one channel, row and column, got shape"),
    ],
    ids=["list", "array", "integers", "complex", "plane", "volume", "no rows", "no channels"],
)
def test_bad_maps(make: Any, x: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        make()(x)


@of_maps
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore::UserWarning"
)
def test_onnx_files_have_standard_operators_and_the_same_values(make: Any) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    layer, x, file = moved(make()).eval(), maps(2, 3, 9, 8), io.BytesIO()
    torch.onnx.export(layer, (x,), file, dynamo=False, opset_version=17)
    model = onnx.load_from_string(file.getvalue())
    assert {node.domain for node in model.graph.node} == {""}
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    for seed in range(3):
        x = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        np.testing.assert_allclose(y, layer(x).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@of_maps
def test_the_newer_exporter_writes_the_same(make: Any) -> None:
    check_exported(moved(make()), maps(2, 3, 9, 8), dynamo=True)


@pytest.mark.slow
@of_maps
def test_compiled_whole_they_do_the_same(make: Any) -> None:
    layer = moved(make())
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for shape in ((2, 3, 8, 8), (3, 3, 9, 6)):
        x = maps(*shape).requires_grad_()
        y = layer(x)
        gy = maps(*y.shape)
        leaves = [x, *layer.parameters()]
        expected = torch.autograd.grad(y, leaves, gy)
        z = compiled(x)
        torch.testing.assert_close(z, y)
        for a, b in zip(torch.autograd.grad(z, leaves, gy), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@of_maps
def test_exported_programs_do_the_same(make: Any) -> None:
    layer, x = moved(make()).eval(), maps(2, 3, 8, 8)
    program = torch.export.export(layer, (x,)).module()
    other = x.flip(0)
    torch.testing.assert_close(program(other), layer(other))


# Modes of PyTorch


@each_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_trains(case: LayerCase, dtype: Any) -> None:
    layer, x = case.make(), torch.rand(case.shape, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        y = call(case, layer, x)
    assert y.isfinite().all()
    y.float().square().sum().backward()
    leaves = [x, *layer.parameters()]
    assert all(leaf.grad is not None and leaf.grad.dtype == leaf.dtype for leaf in leaves)


@each_case
def test_vmap_is_a_loop(case: LayerCase) -> None:
    if case.others():
        pytest.skip("boxes are not mapped")
    layer, x = prepared(case)
    xs = torch.stack([torch.tensor(x), torch.tensor(x).flip(0) * 1.5])
    ys = torch.func.vmap(lambda x: call(case, layer, x), randomness="same")(xs)
    torch.testing.assert_close(ys, torch.stack([call(case, layer, x) for x in xs]))


@each_case
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_second_derivatives_and_forward_mode(case: LayerCase) -> None:
    layer, x = prepared(case)
    x = torch.tensor(x, requires_grad=True)
    direction = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))

    def pool(x: Any) -> Any:
        return call(case, layer, x)

    y, ty = torch.func.jvp(pool, (x.detach(),), (direction,))
    (gx,) = torch.autograd.grad(y.new_ones(()) * pool(x).square().sum(), x, create_graph=True)
    torch.testing.assert_close((gx * direction).sum(), (2 * y * ty).sum())
    (along,) = torch.autograd.grad((gx * direction).sum(), x)
    step = 1e-5

    def gradient(x: Any) -> Any:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(pool(leaf).square().sum(), leaf)[0]

    differences = gradient(x + step * direction) - gradient(x - step * direction)
    torch.testing.assert_close(along, differences / (2 * step), rtol=1e-4, atol=1e-5)


@each_case
def test_fake_tensors_have_the_shape_of_the_output(case: LayerCase) -> None:
    shape = call(case, case.make(), torch.rand(case.shape)).shape
    with FakeTensorMode():
        x = torch.empty(case.shape, requires_grad=True)
        y = call(case, case.make(), x)
        y.sum().backward()
    assert y.shape == shape
    assert x.grad.shape == case.shape


@each_case
@pytest.mark.parametrize("is_root", [True, False])
def test_fx_traces(case: LayerCase, is_root: bool) -> None:
    layer, x = moved(case.make()), torch.rand(case.shape)
    if not is_root:
        layer = (CallerWithBoxes if case.others() else Caller)(layer)
    traced = torch.fx.symbolic_trace(layer)
    expected = call(case, layer, x)
    assert traced.state_dict().keys() <= layer.state_dict().keys()
    # PyTorch's averages, which are traced in place of ours, round differently.
    torch.testing.assert_close(call(case, traced, x), expected)
    torch.testing.assert_close(call(case, copy.deepcopy(traced), x), expected)
    if not case.others():
        sequence = torch.fx.symbolic_trace(nn.Sequential(layer))
        torch.testing.assert_close(call(case, pickle.loads(pickle.dumps(sequence)), x), expected)


class Caller(nn.Module):
    """A network that calls a layer; boxes, which not all layers take, may follow the maps."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x) + 1


class CallerWithBoxes(Caller):
    def forward(self, x: Any, boxes: Any) -> Any:
        return self.layer(x, boxes) + 1


@each_case
def test_scripting_is_an_error_that_names_the_layer(case: LayerCase) -> None:
    layer = case.make()
    with pytest.raises(NotImplementedError, match=f"got {type(layer).__name__}; use torch.jit.tra"):
        torch.jit.script(layer)
