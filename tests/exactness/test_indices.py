"""Indices of winners in five conventions: by hand, converted both ways, and against ONNX."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from expected_errors import refused
from frontend_calls import torch
from hypothesis import given
from hypothesis import strategies as st

import poolgrad
from poolgrad.indices import CONVENTIONS, convert_indices

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
SHAPE = (2, 3, 4, 5)  # N, C, H, W

# The winner at y = 2, x = 3 of batch 1, channel 2:
BY_HAND = {
    "torch": 13,  # 2 * 5 + 3
    "onnx": 113,  # (1 * 3 + 2) * 20 + 13
    "onnx_column_major": 114,  # 100 + 3 * 4 + 2
    "tensorflow": 41,  # 13 * 3 + 2
    "tensorflow_batch": 101,  # (20 + 13) * 3 + 2
}


def one(index: int, batch: int = 1, channel: int = 2) -> np.ndarray:
    """No winners but one."""
    indices = np.full((2, 3, 1, 1), -1)
    indices[batch, channel] = index
    return indices


@pytest.mark.parametrize(("source", "target"), [*itertools.product(BY_HAND, BY_HAND)])
def test_by_hand(source: str, target: str) -> None:
    got = convert_indices(one(BY_HAND[source]), SHAPE, source, target)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, one(BY_HAND[target]))


@pytest.mark.parametrize(
    ("convention", "expected"),
    [
        ("torch", 23),  # (1 * 3 + 2) * 4 + 3, of sizes 2, 3, 4
        ("onnx", 5 * 24 + 23),
        ("onnx_column_major", 5 * 24 + 1 + 2 * 2 + 3 * 6),  # the first axis is the fastest
        ("tensorflow", 23 * 3 + 2),
        ("tensorflow_batch", (24 + 23) * 3 + 2),
    ],
)
def test_by_hand_in_3d(convention: str, expected: int) -> None:
    got = convert_indices(one(23)[..., None], (2, 3, 2, 3, 4), "torch", convention)
    assert got[1, 2].item() == expected
    assert (np.delete(got.ravel(), 5) == -1).all()


def test_in_1d_both_orders_are_one() -> None:
    got = [
        convert_indices(one(6)[..., 0], (2, 3, 8), "torch", c)[1, 2].item()
        for c in ("onnx", "onnx_column_major")
    ]
    assert got == [46, 46]


def winners(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Any positions in their planes, some of them -1."""
    size = int(np.prod(shape[2:]))
    return np.random.default_rng(seed).integers(-1, size, (*shape[:2], *(2,) * len(shape[2:])))


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(1, 4), min_size=3, max_size=5).map(tuple)


@given(shapes(), st.sampled_from([*CONVENTIONS]), st.sampled_from([*CONVENTIONS]), st.booleans())
def test_there_and_back(shape: tuple[int, ...], source: str, target: str, last: bool) -> None:
    indices = winners(shape)
    if last:
        indices, shape = np.moveaxis(indices, 1, -1), (shape[0], *shape[2:], shape[1])

    def convert(i: np.ndarray, source: str, target: str) -> np.ndarray:
        return convert_indices(i, shape, source, target, channels_last=last)

    there = convert(convert(indices, "torch", source), source, target)
    np.testing.assert_array_equal(there, convert(indices, "torch", target))
    np.testing.assert_array_equal(convert(there, target, "torch"), indices)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_channels_last_gives_the_same_numbers(convention: str) -> None:
    indices = winners(SHAPE)
    first = convert_indices(indices, SHAPE, "torch", convention)
    moved = np.moveaxis(indices, 1, -1)
    last = convert_indices(moved, (2, 4, 5, 3), "torch", convention, channels_last=True)
    np.testing.assert_array_equal(np.moveaxis(last, -1, 1), first)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", ">i8", "int64"])
def test_any_integers_become_int64(dtype: str) -> None:
    indices = np.array([[[3]], [[1]]], dtype)
    got = convert_indices(indices, (2, 1, 200), "torch", "onnx")
    assert got.dtype == np.int64
    assert got.ravel().tolist() == [3, 201]


def test_indices_are_not_modified() -> None:
    indices = winners(SHAPE)
    indices.flags.writeable = False
    for convention in CONVENTIONS:
        assert convert_indices(indices, SHAPE, "torch", convention) is not indices


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4)])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_no_planes_no_indices(shape: tuple[int, ...], convention: str) -> None:
    indices = np.zeros((*shape[:2], 2), np.int64)
    assert convert_indices(indices, shape, "torch", convention).shape == indices.shape
    assert convert_indices(indices, shape, convention, "torch").shape == indices.shape


def test_a_window_without_input_stays_without_winner() -> None:
    _, indices = poolgrad.max_pool1d(np.ones((1, 2, 3)), 1, padding=1, return_indices=True)
    got = convert_indices(indices, (1, 2, 3), "torch", "onnx")
    np.testing.assert_array_equal(got, [[[-1, 0, 1, 2, -1], [-1, 3, 4, 5, -1]]])


@needs_torch
@pytest.mark.parametrize(("source", "target"), [*itertools.permutations(CONVENTIONS, 2)])
def test_tensors(source: str, target: str) -> None:
    indices = convert_indices(winners(SHAPE), SHAPE, "torch", source)
    tensor = torch.from_numpy(indices)
    got = convert_indices(tensor, torch.Size(SHAPE), source, target)
    assert got.dtype == torch.int64
    np.testing.assert_array_equal(got.numpy(), convert_indices(indices, SHAPE, source, target))


@needs_torch
def test_tensors_without_numbers() -> None:
    indices = torch.from_numpy(winners(SHAPE))

    def convert(i: Any) -> Any:
        return convert_indices(i, SHAPE, "torch", "onnx_column_major")

    compiled = torch.compile(convert, fullgraph=True, backend="eager")
    assert torch.equal(compiled(indices), convert(indices))
    assert convert(indices.to("meta")).shape == indices.shape
    assert torch.equal(torch.vmap(convert)(indices[None]), convert(indices)[None])


@needs_torch
def test_tensors_are_checked() -> None:
    with refused(ValueError, "indices", "1 of them"):
        convert_indices(torch.full((1, 1, 1), 9), (1, 1, 9), "torch", "onnx")


# What is refused


@pytest.mark.parametrize("name", ["source", "target"])
@pytest.mark.parametrize("word", ["pytorch", "", None, ["torch"]])
def test_unknown_conventions(name: str, word: Any) -> None:
    arguments = {"source": "torch", "target": "onnx"} | {name: word}
    with refused(ValueError, name, repr(word)):
        convert_indices(one(0), SHAPE, **arguments)


@pytest.mark.parametrize(
    ("indices", "came"),
    [
        (np.zeros((2, 3, 1, 1)), "float64"),
        (np.zeros((2, 3, 1, 1), bool), "bool"),
        ([[[[0]]]], "list"),
        (3, "int"),
    ],
)
def test_indices_of_other_types(indices: Any, came: str) -> None:
    with refused(TypeError, "indices", came):
        convert_indices(indices, SHAPE, "torch", "onnx")


def test_indices_with_a_mask() -> None:
    with refused(TypeError, "indices", "must have no mask"):
        convert_indices(np.ma.array(one(0), mask=False), SHAPE, "torch", "onnx")


def test_unsigned_indices_that_are_no_int64() -> None:
    with refused(ValueError, "indices", SHAPE):
        convert_indices(np.full((2, 3, 1, 1), 2**64 - 1, np.uint64), SHAPE, "torch", "onnx")


@pytest.mark.parametrize("library", ["array_api_strict", "xarray"])
def test_indices_of_other_libraries(library: str) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    indices = module.DataArray(one(0)) if library == "xarray" else module.asarray(one(0))
    with refused(TypeError, "indices", "array of integers of NumPy, PyTorch"):
        convert_indices(indices, SHAPE, "torch", "onnx")


def test_shapes_whose_indices_overflow() -> None:
    with refused(ValueError, "shape", "int64"):
        convert_indices(one(0), (2, 3, 2**31, 2**31), "torch", "onnx")
    large = convert_indices(one(0), (2, 3, 2**31, 2**31), "torch", "torch")  # of one plane
    assert large.tolist() == one(0).tolist()


def test_shapes_whose_indices_overflow_in_jax() -> None:
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    indices = jnp.zeros((2, 2, 1, 1), "int32")
    with pytest.raises(ValueError, match=r"^shape must .* int32, got .* \(jax_enable_x64\)$"):
        convert_indices(indices, (2, 2, 2**15, 2**15), "torch", "onnx")
    fits = convert_indices(indices, (2, 2, 2**14, 2**15), "torch", "onnx")
    assert fits.ravel().tolist() == [0, 2**29, 2**30, 2**30 + 2**29]


@pytest.mark.parametrize(
    "of", [(2, 3, 1), (2, 3, 1, 1, 1), (3, 2, 1, 1), (2, 1, 1, 3), (1, 3, 1, 1)]
)
def test_indices_of_other_shapes(of: tuple[int, ...]) -> None:
    with refused(ValueError, "indices", of):
        convert_indices(np.zeros(of, int), SHAPE, "torch", "onnx")


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ((2, 3), ValueError),
        ((2, 3, 1, 1, 1, 1), ValueError),
        ((2, 3, 0, 5), ValueError),
        ((2, -3, 4, 5), ValueError),
        ((2, 3, 4.0, 5), TypeError),
        (60, TypeError),
    ],
)
def test_other_shapes(shape: Any, error: type[Exception]) -> None:
    with refused(error, "shape", shape):
        convert_indices(one(0), shape, "torch", "onnx")


def test_channels_last_is_true_or_false() -> None:
    with refused(TypeError, "channels_last", 1):
        convert_indices(one(0), SHAPE, "torch", "onnx", channels_last=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("convention", "index"),
    [
        ("torch", 20),  # a plane has 20 inputs
        ("torch", -2),
        ("onnx", 99),  # of the plane before
        ("onnx", 120),
        ("onnx_column_major", 120),
        ("tensorflow", 40),  # of the channel before: 40 = 13 * 3 + 1
        ("tensorflow", 62),
        ("tensorflow_batch", 41),  # of the batch before
        ("tensorflow_batch", 122),
    ],
)
def test_indices_out_of_their_planes(convention: str, index: int) -> None:
    with refused(ValueError, "indices", f'"{convention}"; 1 of them'):
        convert_indices(one(index), SHAPE, convention, "torch")
    with refused(ValueError, "indices", f'"{convention}"; 1 of them'):
        convert_indices(one(index), SHAPE, convention, convention)


# Against ONNX


def onnx_max_pool(shape: tuple[int, ...], **attributes: Any) -> Any:
    helper = pytest.importorskip("onnx.helper", reason="ONNX is not installed")
    node = helper.make_node("MaxPool", ["x"], ["y", "indices"], **attributes)
    graph = helper.make_graph(
        [node],
        "pool",
        [helper.make_tensor_value_info("x", 1, shape)],
        [
            helper.make_tensor_value_info("y", 1, None),
            helper.make_tensor_value_info("indices", 7, None),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)


def run_reference(model: Any, x: np.ndarray) -> np.ndarray:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model).run(None, {"x": x})[1]


def run_runtime(model: Any, x: np.ndarray) -> np.ndarray:
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[1]


@pytest.mark.parametrize("run", [run_reference, run_runtime], ids=["onnx.reference", "onnxruntime"])
@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 3, 5, 8), (2, 2, 5, 4, 6)], ids=str)
@pytest.mark.parametrize(("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 1)])
def test_against_onnx(
    shape: tuple[int, ...], kernel: int, stride: int, pad: int, storage_order: int, run: Any
) -> None:
    dims = len(shape) - 2
    x = np.random.default_rng(shape).permutation(int(np.prod(shape))).reshape(shape)
    x = x.astype(np.float32)
    model = onnx_max_pool(
        shape,
        kernel_shape=[kernel] * dims,
        strides=[stride] * dims,
        pads=[pad] * 2 * dims,
        storage_order=storage_order,
    )
    expected = run(model, x)
    pool = getattr(poolgrad, f"max_pool{dims}d")
    _, indices = pool(x, kernel, stride, pad, return_indices=True)
    convention = ["onnx", "onnx_column_major"][storage_order]
    np.testing.assert_array_equal(convert_indices(indices, shape, "torch", convention), expected)
    np.testing.assert_array_equal(convert_indices(expected, shape, convention, "torch"), indices)


def test_importing_it_imports_no_framework() -> None:
    from processes import assert_runs

    code = (
        "import sys, numpy as np\nfrom poolgrad.indices import convert_indices\n"
        "convert_indices(np.zeros((1, 1, 1), int), (1, 1, 1), 'torch', 'onnx')\n"
        "assert not {'torch', 'onnx'} & set(sys.modules)"
    )
    assert_runs(code)
