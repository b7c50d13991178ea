"""Contexts that change the defaults of PyTorch's factory functions, around calls and the import."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import assert_runs

import poolgrad

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from poolgrad.tools.check.layers import LAYERS, _seeded  # noqa: E402

FOLDER = Path(poolgrad.__file__).parent / "torch"

# Their results have the default device and dtype of PyTorch, unless the call names others.
FACTORIES = {
    "arange", "as_tensor", "asarray", "empty", "empty_permuted", "empty_strided", "eye", "full",
    "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm", "scalar_tensor",
    "tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip


def unnamed(source: str) -> list[str]:
    """The calls of factory functions without a device or dtype.

    A parameter has the defaults of the caller, as in PyTorch's own modules.
    """
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name == "nn.Parameter":
                return
            given = {keyword.arg for keyword in node.keywords}
            needed = {"device"} if name == "torch.Generator" else set()
            owner, _, last = name.rpartition(".")
            if last == "partial":
                owner, _, last = ast.unparse(node.args[0]).rpartition(".")
            if owner == "torch" and last in FACTORIES:
                needed = {"device", "dtype"}
            if not needed <= given:
                found.append(ast.unparse(node))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return found


@pytest.mark.parametrize("path", [*FOLDER.rglob("*.py")], ids=lambda p: str(p.relative_to(FOLDER)))
def test_every_tensor_is_made_with_a_device_and_a_dtype(path: Path) -> None:
    assert unnamed(path.read_text()) == []


def test_a_call_without_a_device_is_found() -> None:
    source = "torch.empty(0, dtype=d)\nnn.Parameter(torch.ones(2))\npartial(torch.zeros, device=d)"
    assert len(unnamed(source)) == 2


@contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def default_dtype(dtype: Any) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


CONTEXTS: dict[str, Callable[[], Any]] = {
    "device-meta": lambda: torch.device("meta"),
    "default-device-meta": lambda: default_device("meta"),
    "default-dtype-float64": lambda: default_dtype(torch.float64),
    "default-dtype-float16": lambda: default_dtype(torch.float16),
}
each_context = pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
CASES = [(name, i) for name, cases in LAYERS.items() for i in range(len(cases))]


def check_in(context: Any, pool: Callable[[Any], Any], x: torch.Tensor) -> None:
    """Compare output and gradient in a context with those outside."""

    def computed() -> list[Any]:
        leaf = x.clone().requires_grad_()
        with _seeded():
            y = pool(leaf)
        y.backward(torch.ones_like(y))
        return [y, leaf.grad]

    expected = computed()
    with context():
        came = computed()
    assert all(torch.equal(a, b) for a, b in zip(came, expected, strict=True))


@each_context
@pytest.mark.parametrize(("name", "number"), CASES)
def test_layers_ignore_the_defaults(name: str, number: int, context: Any) -> None:
    case = LAYERS[name][number]
    with _seeded():
        layer = case.make()
    others = case.others()
    check_in(context, lambda x: layer(x, *others), torch.rand(case.shape))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "max": lambda x: poolgrad.max_pool2d(x, 2, return_indices=True)[0],
    "min": lambda x: poolgrad.min_pool2d(x, 2, ties="split"),
    "median": lambda x: poolgrad.median_pool2d(x, 3),
    "avg": lambda x: poolgrad.avg_pool2d(x, 2, padding=1),
    "lp, a list": lambda x: poolgrad.lp_pool2d(x, [2.0, 3.0], 2),
    "log_mean_exp, an array": lambda x: poolgrad.log_mean_exp_pool2d(x, 2, r=[0.5, 2]),
    "mixed": lambda x: poolgrad.mixed_pool2d(x, 2, alpha=0.25),
    "soft": lambda x: poolgrad.soft_pool2d(x, 2),
    "stochastic": lambda x: poolgrad.stochastic_pool2d(x, 2, generator=3),
    "stochastic, the default": lambda x: poolgrad.stochastic_pool2d(x, 2),
    "fractional": lambda x: poolgrad.fractional_max_pool2d(x, 2, 3, generator=3),
    "fractional, a list": lambda x: poolgrad.fractional_max_pool2d(
        x, 2, 3, _random_samples=[[[0.25, 0.5]] * 2] * 2
    ),
    "range": lambda x: poolgrad.range_pool2d(x, 2),
    "lip": lambda x: poolgrad.lip_pool2d(x, x, 2),
    "global": lambda x: poolgrad.global_lp_pool(x, norm_type=3),
    "adaptive": lambda x: poolgrad.adaptive_avg_pool2d(x, 3),
    "unpool": lambda x: poolgrad.max_unpool2d(*poolgrad.max_pool2d(x, 2, return_indices=True), 2),
    "no boxes": lambda x: poolgrad.roi_align(x, [x.new_empty(0, 4)] * 2, 2),
}


@each_context
@pytest.mark.parametrize("pool", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_ignore_the_defaults(pool: Any, context: Any) -> None:
    check_in(context, pool, torch.rand(2, 2, 6, 6))


def _accelerated(x: Any) -> Any:
    with poolgrad.torch.accelerate():
        return torch.nn.functional.max_pool2d(x, 2)


def _fused(x: Any) -> Any:
    net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    assert poolgrad.torch.convert(net, fuse=True).fused
    return net(x)


INFERENCE = FUNCTIONS | {
    "max": lambda x: poolgrad.max_pool2d(x, 2),
    "indices": lambda x: poolgrad.max_pool2d(x, 2, return_indices=True)[0],
    "large": lambda x: poolgrad.max_pool2d(x.tile(64, 64), 2),
    "lp": lambda x: poolgrad.lp_pool2d(x, 3.0, 2),
    "learned": lambda x: poolgrad.log_mean_exp_pool2d(x, 2, r=torch.ones(2, requires_grad=True)),
    "negative view": lambda x: poolgrad.soft_pool2d(torch._neg_view(x), 2),
    "regions": lambda x: poolgrad.roi_align(x, torch.tensor([[0, 1.0, 1.0, 4.0, 5.0]]), 2),
    "accelerate": _accelerated,
    "fused": _fused,
}
INFERENCE |= {f"{name}-{i}": LAYERS[name][i].make() for name, i in CASES if i == 0}


@pytest.mark.parametrize("name", INFERENCE)
def test_inference_mode_wins_over_enable_grad(name: str) -> None:
    case = LAYERS[name[:-2]][0] if name[-2:] == "-0" else None
    leaf = torch.rand(case.shape if case else (2, 2, 6, 6), requires_grad=True)
    others = case.others() if case else ()
    for x in (leaf, leaf.detach() * 1, leaf * 1):
        for _ in range(2):  # the second call is cached
            with _seeded():
                expected = INFERENCE[name](x, *others)
            with torch.inference_mode(), torch.enable_grad(), _seeded():
                came = INFERENCE[name](x, *others)
            assert torch.equal(came, expected)
            assert came.is_inference()
            assert not came.requires_grad


@pytest.mark.parametrize("pool", FUNCTIONS.values(), ids=FUNCTIONS)
def test_transformations_differentiate_in_inference_mode(pool: Any) -> None:
    x = torch.rand(2, 2, 6, 6)

    def gradient() -> Any:
        with _seeded():
            return torch.func.grad(lambda x: pool(x).sum())(x)

    expected = gradient()
    with torch.inference_mode():
        assert torch.equal(gradient(), expected)


def test_numbers_of_a_module_need_no_device() -> None:
    with torch.device("meta"):
        layer = poolgrad.torch.LPPool2d([2.0, 3.0], 2).to_empty(device="cpu")
    x = torch.rand(2, 2, 6, 6)
    assert torch.equal(layer(x), poolgrad.lp_pool2d(x, [2.0, 3.0], 2))


FAKE = {
    "max": lambda x: poolgrad.max_pool2d(x, 2),
    "lp": lambda x: poolgrad.lp_pool2d(x, 2.0, 2),
    "log_mean_exp": lambda x: poolgrad.log_mean_exp_pool2d(x, 2, r=1.5),
    "lip": lambda x: poolgrad.lip_pool2d(x, x, 2),
    "global_lp": lambda x: poolgrad.global_lp_pool(x, norm_type=2.0),
    "stochastic": lambda x: poolgrad.stochastic_pool2d(x, 2),
    "fractional": lambda x: poolgrad.fractional_max_pool2d(x, 2, output_size=3, generator=1),
    "regions": lambda x: poolgrad.roi_align(x, x.new_zeros(2, 5), 2),
    "BlurPool2d": poolgrad.torch.BlurPool2d(2),
    "AdaptivePolyphasePool2d": poolgrad.torch.AdaptivePolyphasePool2d(),
    "LPPool2d": poolgrad.torch.LPPool2d(2.0, 2),
    "GeM2d": lambda x: with_own_parameters(poolgrad.torch.GeM2d(), x),
    "LogSumExp2d": lambda x: with_own_parameters(poolgrad.torch.LogSumExp2d(3), x),
}


def with_own_parameters(layer: Any, x: Any) -> Any:
    """Call a layer with parameters of the mode of `x`."""
    mode = getattr(x, "fake_mode", None)
    own = {n: mode.from_tensor(p) if mode else p for n, p in layer.named_parameters()}
    return torch.func.functional_call(layer, own, (x,))


@pytest.mark.parametrize("pool", FAKE.values(), ids=FAKE)
def test_fake_tensors_outside_their_mode(pool: Any) -> None:
    x = torch.rand(2, 3, 8, 8)
    fake = torch._subclasses.FakeTensorMode().from_tensor(x)
    assert pool(fake).shape == pool(x).shape


@pytest.mark.parametrize("name", ["log_mean_exp", "soft", "mixed"])
def test_second_derivatives_of_fake_tensors_outside_their_mode(name: str) -> None:
    x = torch._subclasses.FakeTensorMode().from_tensor(torch.rand(2, 3, 8, 8))
    x.requires_grad_()
    y = getattr(poolgrad, f"{name}_pool2d")(x, 2)
    (gx,) = torch.autograd.grad(y, x, y, create_graph=True)
    (second,) = torch.autograd.grad(gx.sum(), x)
    assert second.shape == x.shape


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("LogMeanExpPool2d", {"kernel_size": 2, "r": [1.0, 2.0]}),
        ("MixedPool2d", {"kernel_size": 2, "alpha": [0.1, 0.2]}),
        ("GlobalLPPool2d", {"norm_type": [1.0, 2.0]}),
        ("LogMeanExpPool2d", {"kernel_size": 2, "r": None}),
    ],
)
def test_learned_arguments_in_fake_mode(name: str, arguments: dict[str, Any]) -> None:
    with torch._subclasses.FakeTensorMode():
        if arguments.get("r", 0) is None:
            arguments = {**arguments, "r": torch.nn.Parameter(torch.ones(2))}
        pool = getattr(poolgrad.torch, name)(**arguments)
        assert pool(torch.rand(1, 2, 4, 4)).shape[:2] == (1, 2)


IMPORTS = """
import contextlib, hashlib, os, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

class Function(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

@contextlib.contextmanager
def during(change, undo):
    change()
    try:
        yield
    finally:
        undo()

def setting(function, value, before):
    return during(lambda: function(value), lambda: function(before))

def deterministic(warn_only):
    return during(
        lambda: torch.use_deterministic_algorithms(True, warn_only=warn_only),
        lambda: torch.use_deterministic_algorithms(False),
    )

@contextlib.contextmanager
def dual_level():
    with torch.autograd.forward_ad.dual_level():
        yield

contexts = {
    "device meta": lambda: torch.device("meta"),
    "default device meta": lambda: setting(torch.set_default_device, "meta", None),
    "default device cpu": lambda: setting(torch.set_default_device, "cpu", None),
    "float64": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "float16": lambda: setting(torch.set_default_dtype, torch.float16, torch.float32),
    "bfloat16": lambda: setting(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "inference mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "fake tensors": FakeTensorMode,
    "dual level": dual_level,
    "flush denormal": lambda: setting(torch.set_flush_denormal, True, False),
    "deterministic": lambda: deterministic(False),
    "deterministic, warn": lambda: deterministic(True),
    "anomaly": torch.autograd.detect_anomaly,
    "one thread": lambda: setting(torch.set_num_threads, 1, 2),
    "dispatch mode": Dispatch,
    "function mode": Function,
    "saved tensors hooks": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t
    ),
    "vmap": None,
    "grad": None,
}

def used():
    import poolgrad.torch
    x = torch.arange(72.0, dtype=torch.float32, device="cpu").reshape(1, 2, 6, 6).sin()
    x.requires_grad_()
    result = []
    for pool in (
        lambda: poolgrad.max_pool2d(x, 2),
        lambda: poolgrad.avg_pool2d(x, 2),
        lambda: poolgrad.max_pool2d(x.tile(4, 4, 64, 64), 2),  # in cached memory
        lambda: poolgrad.lp_pool2d(x, 3.0, 2),
        lambda: poolgrad.median_pool2d(x, 3),
        lambda: poolgrad.torch.BlurPool2d()(x),
        lambda: poolgrad.torch.AdaptivePolyphasePool2d()(x),
        lambda: poolgrad.torch.GeM2d()(x),
    ):
        for _ in range(2):  # the second call is cached
            y = pool()
            result += [y.detach(), *torch.autograd.grad(y.sum(), x)]
    return result

def imported(name):
    if name == "vmap":
        def inside(x):
            import poolgrad.torch
            return x
        torch.func.vmap(inside)(torch.ones(2))
    elif name == "grad":
        def inside(x):
            import poolgrad.torch
            return x
        torch.func.grad(inside)(torch.ones(()))
    else:
        with contexts[name]():
            import poolgrad.torch

assert "poolgrad" not in sys.modules
torch.set_num_threads(1)
files = {}
for name in ["", *contexts]:
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            if name:
                imported(name)
            torch.set_num_threads(1)
            numbers = [t.numpy().tobytes() for t in used()]
            os.write(write, hashlib.sha256(b"".join(numbers)).digest())
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        files[name] = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, name
assert files[""]
wrong = [name for name in contexts if files[name] != files[""]]
assert not wrong, wrong
print(len(contexts))
"""


@pytest.mark.nightly
def test_the_import_in_any_context_changes_no_result() -> None:
    assert int(assert_runs(IMPORTS, timeout=300)) >= 18
