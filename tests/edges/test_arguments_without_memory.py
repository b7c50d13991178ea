"""Tensors whose storage was freed or shrunk, in place of any argument, are refused unread.

PyTorch reads beyond such a storage in `tolist`, in conversions to NumPy and in `repr`: it ends the
process, or returns foreign numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import poolgrad  # noqa: E402
import poolgrad.torch  # noqa: E402
from poolgrad.functional import FUNCTIONS  # noqa: E402
from poolgrad.indices import convert_indices  # noqa: E402
from poolgrad.windows import brief  # noqa: E402

REFUSED = (RuntimeError, TypeError, ValueError)
X = np.arange(32.0).reshape(1, 2, 4, 4)


def shrunk(*shape: int, dtype: Any = torch.int64, value: float = 2, to: int = 8) -> Any:
    """A tensor of ones and the like, of which `to` bytes are left."""
    tensor = torch.full(shape, value, dtype=dtype)
    tensor.untyped_storage().resize_(to)
    return tensor


def freed(*shape: int) -> Any:
    return shrunk(*shape, to=0)


MADE: dict[str, Callable[[], Any]] = {
    "number": freed,
    "pair": lambda: freed(2),
    "matrix": lambda: shrunk(1, 2, 4, 4, dtype=torch.float64),
    "list": lambda: [freed(1), freed()],
    "nested": lambda: ((freed(), 1), [1, freed(2)]),
    "objects": lambda: [np.array([freed(2)], object), np.array([1, None], object)],
}
GIVEN: dict[str, Any] = {
    "kernel_size": 2, "norm_type": 2.0, "logits": X, "in_channels": 4, "out_channels": 4,
    "size": 4, "channels": 64, "classes": 2, "name": "avg",
}  # fmt: skip
MODULES = [
    name
    for name, made in vars(poolgrad.torch).items()
    if isinstance(made, type)
    and issubclass(made, torch.nn.Module)
    and name[-2:] not in ("1d", "3d")
]
MODULES[MODULES.index("Head")] = "make_head"  # which makes its argument


def refused(call: Callable[[], Any]) -> None:
    """Arguments that are ignored are not read either."""
    error: Exception | None = None
    try:
        call()
    except REFUSED as raised:
        error = raised
    assert not any(word in str(error) for word in ("missing", "setStorage"))


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("x", [X, torch.from_numpy(X)], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n[-2:] not in ("1d", "3d")])
def test_functions(name: str, x: Any, kind: str) -> None:
    parameters = signature(FUNCTIONS[name]).parameters
    given = {n: v for n, v in GIVEN.items() if n in parameters}
    if name.startswith(("adaptive", "fractional")):
        given["output_size"] = 2
    if "logits" in given:
        given["logits"] = x
    if "indices" in parameters:
        given["indices"] = x.astype(np.int64) if x is X else x.long()
    for argument in parameters:
        if argument in ("x", "out"):
            continue
        refused(lambda a=argument: FUNCTIONS[name](x, **given | {a: MADE[kind]()}))


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("name", MODULES)
def test_modules_and_layers(name: str, kind: str) -> None:
    made = getattr(poolgrad.torch, name)
    parameters = signature(made).parameters
    given: dict[str, Any] = {n: v for n, v in GIVEN.items() if n in parameters}
    if "output_size" in parameters:
        given["output_size"] = 2
    for argument in parameters:
        refused(lambda a=argument: made(**given | {a: MADE[kind]()}))


@pytest.mark.parametrize("kind", MADE)
def test_modules_of_jax(kind: str) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    from poolgrad.jax import nn

    for argument in signature(nn.LPPool2d).parameters:
        given: dict[str, Any] = {"norm_type": 2.0, "kernel_size": 2, argument: MADE[kind]()}
        refused(lambda given=given: nn.LPPool2d(**given))
    with pytest.raises(RuntimeError, match=r"^x must have memory for .* elements"):
        nn.MaxPool2d(2)(shrunk(1, 2, 4, 4))


@pytest.mark.parametrize("argument", ["kernel_size", "stride", "padding", "dilation"])
def test_numbers_of_windows_must_have_memory(argument: str) -> None:
    for bad in (shrunk(2), [1, freed()]):
        for x in (X, torch.from_numpy(X)):
            with pytest.raises(RuntimeError, match=f"^{argument} must have memory for . elements"):
                poolgrad.max_pool2d(x, **{"kernel_size": 2, argument: bad})


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("gy", lambda: poolgrad.vjp(poolgrad.max_pool2d, X, 2)[1](shrunk(1, 2, 2, 2))),
        ("gy", lambda: poolgrad.vjp(poolgrad.roi_align, X, np.ones((1, 5)) * 0, 2)[1](
            shrunk(1, 2, 2, 2, dtype=torch.float64))),
        ("norm_type", lambda: poolgrad.lp_pool2d(X, shrunk(2, dtype=torch.float64), 2)),
        ("norm_type", lambda: poolgrad.lp_pool2d(X, [freed(), 2.0], 2)),
        ("_random_samples", lambda: poolgrad.fractional_max_pool2d(
            X, 2, 2, _random_samples=shrunk(1, 2, 2, dtype=torch.float64, value=0.5))),
        ("indices", lambda: poolgrad.max_unpool2d(X, shrunk(1, 2, 4, 4), 2)),
        ("logits", lambda: poolgrad.lip_pool2d(X, shrunk(1, 2, 4, 4, dtype=torch.float64), 2)),
        ("x", lambda: poolgrad.max_pool1d([shrunk(3), shrunk(3)], 2)),
        ("boxes", lambda: poolgrad.roi_align(X, shrunk(1, 5), 2)),
        (r"boxes\[0\]", lambda: poolgrad.roi_pool(X, [shrunk(1, 4)], 2)),
        ("output_size", lambda: poolgrad.roi_pool(X, np.zeros((1, 5)), shrunk(2))),
        ("shape", lambda: convert_indices(np.zeros((1, 1, 2, 2), int), [1, 1, 4, freed()],
                                          "torch", "onnx")),
    ],
)  # fmt: skip
def test_arrays_must_have_memory(argument: str, call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match=f"^{argument} must have memory for .* elements, got a"):
        call()


def test_cotangents_of_array_libraries() -> None:
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    _, pullback = poolgrad.vjp(poolgrad.max_pool2d, strict.asarray(X), 2)
    with pytest.raises(RuntimeError, match=r"^gy must have memory for 8 elements"):
        pullback(shrunk(1, 2, 2, 2, dtype=torch.float64, to=0))


@pytest.mark.parametrize(
    ("name", "argument"),
    [("roi_pool", "spatial_scale"), ("roi_align", "sampling_ratio"), ("roi_align", "aligned")],
)
def test_numbers_of_regions(name: str, argument: str) -> None:
    for x in (X, torch.from_numpy(X)):
        boxes = np.zeros((1, 5)) if x is X else torch.zeros(1, 5)
        with pytest.raises(REFUSED, match=f"^{argument} must"):
            getattr(poolgrad, name)(x, boxes, 2, **{argument: freed()})


def test_other_arguments() -> None:
    indices = np.zeros((1, 1, 2, 2), int)
    for call in (
        poolgrad.set_num_threads,
        lambda z: convert_indices(indices, (1, 1, 4, 4), z, "onnx"),
        lambda z: convert_indices(indices, (1, 1, 4, 4), "torch", "onnx", channels_last=z),
        poolgrad.torch.accelerate(),
        lambda z: poolgrad.vjp(z, X),
        lambda z: poolgrad.explain(X[0, 0], poolgrad.max_pool2d, 2, cotangent=z),
        lambda z: poolgrad.explain(X[0, 0], poolgrad.lp_pool2d, z, 2),
        lambda z: poolgrad.explain(z, poolgrad.max_pool2d, 2),
    ):
        for make in MADE.values():
            with pytest.raises(REFUSED):
                call(make())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (shrunk(2),
         "a tensor of shape (2,) and dtype torch.int64 without readable memory (Tensor)"),
        ([1, freed()], "a list that contains a tensor without readable memory"),
        ({"a": (freed(),)}, "a dict that contains a tensor without readable memory"),
        (torch.ones(2, device="meta"),
         "a tensor of shape (2,) and dtype torch.float32 without readable memory (Tensor)"),
        (torch.tensor([2, 3]), "tensor([2, 3])"),
        (torch._efficientzerotensor((3,), dtype=torch.int64)[1:], "tensor([0, 0])"),
        ([1, torch.tensor(2)], "[1, tensor(2)]"),
    ],
)  # fmt: skip
def test_errors_describe_tensors_without_memory(value: Any, text: str) -> None:
    assert brief(value) == text


def test_zero_tensors_and_lists_that_contain_themselves_are_read() -> None:
    zero = torch._efficientzerotensor((2, 3), dtype=torch.int64)[0, 1:]
    assert poolgrad.max_pool2d(X, 2, padding=zero).shape == (1, 2, 2, 2)
    gy = torch._efficientzerotensor((1, 2, 2, 3), dtype=torch.float64)[..., 1:]
    assert not poolgrad.vjp(poolgrad.max_pool2d, X, 2)[1](gy).any()
    own: list[Any] = [1]
    own.append(own)
    with pytest.raises(TypeError, match=r"kernel_size must be .*, got \[1, \[\.\.\.\]\]"):
        poolgrad.max_pool2d(X, own)
    array = np.array([None], object)
    array[0] = array
    assert brief(array).startswith("array(")


KINDS = {
    "sparse": lambda: torch.tensor([2, 2]).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.tensor([2.0, 2.0]), 1.0, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.tensor([2, 2])], layout=torch.strided),
    "meta": lambda: torch.tensor([2, 2], device="meta"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fun", ["max_pool2d", "adaptive_max_pool2d"])
def test_sizes_that_python_cannot_read(fun: str, kind: str) -> None:
    with pytest.raises(TypeError, match="_size must hold numbers that Python can read, got a"):
        getattr(poolgrad, fun)(torch.rand(1, 1, 4, 4), KINDS[kind]())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("listed", [False, True])
def test_nested_boxes(listed: bool) -> None:
    boxes = torch.nested.nested_tensor([torch.ones(2, 5)], layout=torch.strided)
    with pytest.raises(TypeError, match=r"boxes.* must be a dense tensor .*, got a nested one"):
        poolgrad.roi_align(torch.rand(1, 1, 4, 4), [boxes] if listed else boxes, 2)


@pytest.mark.parametrize("name", ["roi_align", "stochastic_pool2d"])
def test_errors_show_tensors_without_a_storage(name: str) -> None:
    given = torch.tensor([2.0]).to_mkldnn()
    x = torch.rand(1, 1, 4, 4)
    call = {
        "roi_align": lambda: poolgrad.roi_align(x, torch.ones(1, 5), 2, given),
        "stochastic_pool2d": lambda: poolgrad.stochastic_pool2d(x, 2, generator=given),
    }[name]
    with pytest.raises(TypeError, match=r"got a tensor of shape .* without readable memory"):
        call()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_indices() -> None:
    nested = torch.nested.nested_tensor([torch.ones(1, 2, 2).long()], layout=torch.strided)
    with pytest.raises(TypeError, match=r"^indices must be a dense tensor .*, got a nested one$"):
        convert_indices(nested, (1, 1, 2, 2), "torch", "onnx")
    rows = [torch.rand(4, 4), torch.rand(3, 4)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    with pytest.raises(TypeError, match=r"^x must be a dense tensor .*, got a nested one$"):
        poolgrad.max_unpool2d(jagged, torch.zeros(2, 4, 4).long(), 2)
