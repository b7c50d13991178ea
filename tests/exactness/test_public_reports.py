"""Bug reports of other libraries, with their right values: in every front end, and compiled.

A report shows what goes wrong in pooling. The expected numbers follow from the definition of a
window, a maximum and an average; no library computed them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from frontend_calls import TORCH, Front, as_array, as_tensor, find, jax, torch

from poolgrad import reference

# PyTorch's own, on importing its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

NAN = np.nan


class Case(NamedTuple):
    """A call, and what it must return; `gx` is the gradient for the cotangent `gy`."""

    report: str
    about: str
    fun: str
    x: np.ndarray
    arguments: dict[str, Any]
    y: np.ndarray
    indices: np.ndarray | None = None
    gy: np.ndarray | None = None
    gx: np.ndarray | None = None


def array(values: Any, dtype: str = "float64") -> np.ndarray:
    """The numbers as an array; bfloat16 is kept as float32 until a test runs."""
    return np.array(values, dtype)


def peak(
    shape: tuple[int, int], at: tuple[int, int], value: float, dtype: str = "float32"
) -> np.ndarray:
    """Zeros, and one other number."""
    x = np.zeros(shape, dtype)
    x[at] = value
    return x


# The position 0 of 17 alone with the padding before it, then eight pairs.
PAIRS = [0, 1.5, 3.5, 5.5, 7.5, 9.5, 11.5, 13.5, 15.5]

CASES = [
    # windows that end outside the input
    Case(
        "pytorch/pytorch#198119-1d",
        "the gradient of the last window is divided by the positions inside, not by the kernel",
        "avg_pool1d",
        array([[1, 2, 3, 4, 6]], "float32"),
        {"kernel_size": 3, "ceil_mode": True},
        array([[2, 5]], "float32"),
        gy=array([[6, 6]], "float32"),
        gx=array([[2, 2, 2, 3, 3]], "float32"),
    ),
    Case(
        "pytorch/pytorch#198119-2d",
        "the same at the right, at the bottom and in the corner",
        "avg_pool2d",
        array(
            [
                [1, 2, 3, 4, 5],
                [6, 7, 8, 9, 10],
                [11, 12, 13, 14, 15],
                [16, 17, 18, 19, 20],
                [21, 22, 23, 24, 25],
            ],
            "float32",
        ),
        {"kernel_size": 3, "ceil_mode": True},
        array([[7, 9.5], [19.5, 22]], "float32"),
        gy=array([[36, 36], [36, 36]], "float32"),
        gx=array(
            [
                [4, 4, 4, 6, 6],
                [4, 4, 4, 6, 6],
                [4, 4, 4, 6, 6],
                [6, 6, 6, 9, 9],
                [6, 6, 6, 9, 9],
            ],
            "float32",
        ),
    ),
    Case(
        "tracel-ai/burn#5604",
        "with ceil_mode and count_include_pad, the last window counts one position, not two",
        "avg_pool2d",
        array([[1, 2, 3, 4, 5]], "float32"),
        {"kernel_size": (1, 2), "stride": (1, 2), "ceil_mode": True, "count_include_pad": True},
        array([[1.5, 3.5, 5]], "float32"),
        gy=array([[2, 4, 8]], "float32"),
        gx=array([[1, 1, 2, 2, 8]], "float32"),
    ),
    Case(
        "microsoft/onnxruntime#29629",
        "padding is counted, positions after the padding are not",
        "avg_pool2d",
        array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]),
        {
            "kernel_size": 3,
            "stride": 2,
            "padding": 1,
            "ceil_mode": True,
            "count_include_pad": True,
        },
        array([[14 / 9, 30 / 9, 2], [57 / 9, 11, 6], [4.5, 7.5, 4]]),
        gy=array([[9, 9, 6], [9, 9, 6], [6, 6, 4]]),
        gx=array([[1, 2, 1, 2], [2, 4, 2, 4], [1, 2, 1, 2], [2, 4, 2, 4]]),
    ),
    Case(
        "microsoft/onnxruntime#6543",
        "a window that starts after the input gave a column of NaN; there is no such window",
        "avg_pool2d",
        np.ones((8, 8), np.float32),
        {
            "kernel_size": 3,
            "stride": (3, 4),
            "ceil_mode": True,
            "count_include_pad": False,
        },
        array([[1, 1], [1, 1], [1, 1]], "float32"),
    ),
    Case(
        "openvinotoolkit/openvino#33369",
        "17 positions have 9 windows: a tenth would start in the padding after them",
        "avg_pool2d",
        np.add.outer(np.arange(17.0), np.arange(17.0)),
        {
            "kernel_size": 2,
            "stride": 2,
            "padding": 1,
            "ceil_mode": True,
            "count_include_pad": False,
        },
        np.add.outer(PAIRS, PAIRS),
    ),
    Case(
        "PaddlePaddle/Paddle#51542",
        "kernel 1 and stride 2 with ceil_mode: every second row and column, with the last column",
        "avg_pool2d",
        np.arange(42.0).reshape(6, 7),
        {
            "kernel_size": 1,
            "stride": 2,
            "ceil_mode": True,
            "count_include_pad": False,
        },
        array([[0, 2, 4, 6], [14, 16, 18, 20], [28, 30, 32, 34]]),
    ),
    Case(
        "keras-team/keras#20235",
        'the size of padding "same" is ceil(size / stride), with a part of a window at the end',
        "max_pool2d",
        array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], "float32"),
        {"kernel_size": 2, "padding": "same"},
        array([[5, 6], [8, 9]], "float32"),
    ),
    Case(
        "scikit-image/scikit-image#4940-ceil",
        "the mean of the last block is that of its own pixels, not of zeros added to it",
        "avg_pool2d",
        array([[10, 20, 30, 40, 50]], "uint8"),
        {"kernel_size": (1, 2), "ceil_mode": True},
        array([[15, 35, 50]], "float32"),
    ),
    Case(
        "scikit-image/scikit-image#4940-floor",
        "without ceil_mode there is no last block",
        "avg_pool2d",
        array([[10, 20, 30, 40, 50]], "uint8"),
        {"kernel_size": (1, 2)},
        array([[15, 35]], "float32"),
    ),
    # padding
    Case(
        "kornia/kornia#4733",
        "an even kernel has its additional padding at the end: the window of a pixel begins there",
        "max_pool2d",
        peak((6, 7), (2, 3), 1),
        {"kernel_size": 2, "stride": 1, "padding": "same"},
        array(
            [
                [0, 0, 0, 0, 0, 0, 0],
                [0, 0, 1, 1, 0, 0, 0],
                [0, 0, 1, 1, 0, 0, 0],
                [0, 0, 0, 0, 0, 0, 0],
                [0, 0, 0, 0, 0, 0, 0],
                [0, 0, 0, 0, 0, 0, 0],
            ],
            "float32",
        ),
    ),
    Case(
        "skyhehe123/VoxelNet-pytorch#2",
        "the maximum of negative numbers and padding is negative: the padding is no zero",
        "max_pool1d",
        array([[-5, -4, -3, -2]], "float32"),
        {"kernel_size": 2, "stride": 2, "padding": 1},
        array([[-5, -3, -2]], "float32"),
        gy=array([[1, 2, 4]], "float32"),
        gx=array([[1, 0, 2, 4]], "float32"),
    ),
    Case(
        "PINTO0309/onnx2tf#444",
        "the maximum of int8 numbers and padding keeps its dtype and has no value of the padding",
        "max_pool2d",
        array(
            [[-1, -2, -3, -4], [-5, -6, -7, -8], [-9, -10, -11, -12], [-13, -14, -15, -16]], "int8"
        ),
        {"kernel_size": 3, "stride": 2, "padding": 1},
        array([[-1, -2], [-5, -6]], "int8"),
    ),
    # NaN
    Case(
        "scipy/scipy#9077",
        "every window that holds a NaN has a NaN as its maximum",
        "max_pool1d",
        array([[1, NAN, 2, 3, 4]]),
        {"kernel_size": 3, "stride": 1, "padding": "same"},
        array([[NAN, NAN, NAN, 4, 4]]),
    ),
    Case(
        "scipy/scipy#9077-reversed",
        "and so it is when the array is reversed",
        "max_pool1d",
        array([[4, 3, 2, NAN, 1]]),
        {"kernel_size": 3, "stride": 1, "padding": "same"},
        array([[4, 4, NAN, NAN, NAN]]),
    ),
    Case(
        "scipy/scipy#7818",
        "a NaN is in the averages of its own windows alone, not in all that follow",
        "avg_pool1d",
        array([[1, 2, 3, NAN, 5, 6, 7, 8]]),
        {"kernel_size": 3, "stride": 1},
        array([[2, NAN, NAN, NAN, 6, 7]]),
    ),
    Case(
        "scipy/scipy#7818-wide",
        "the same of wide windows in two dimensions",
        "avg_pool2d",
        peak((20, 20), (0, 0), NAN),
        {"kernel_size": 16, "stride": 1},
        peak((5, 5), (0, 0), NAN),
    ),
    Case(
        "tensorflow/tensorflow#118673-max",
        "where the maximum is NaN, a NaN has the gradient, the last one if there are several",
        "max_pool1d",
        array([[1, 2, NAN], [NAN, 1, 2], [NAN, NAN, NAN]], "float32"),
        {"kernel_size": 3},
        array([[NAN], [NAN], [NAN]], "float32"),
        gy=array([[1], [1], [1]], "float32"),
        gx=array([[0, 0, 1], [1, 0, 0], [0, 0, 1]], "float32"),
    ),
    Case(
        "tensorflow/tensorflow#118673-min",
        "the same of a minimum",
        "min_pool1d",
        array([[1, 2, NAN], [NAN, 1, 2], [NAN, NAN, NAN]], "float32"),
        {"kernel_size": 3},
        array([[NAN], [NAN], [NAN]], "float32"),
        gy=array([[1], [1], [1]], "float32"),
        gx=array([[0, 0, 1], [1, 0, 0], [0, 0, 1]], "float32"),
    ),
    # rounding
    Case(
        "pandas-dev/pandas#36031",
        "the mean of zeros is 0, whatever was before them: sums are not carried along",
        "avg_pool1d",
        array([[3002399751580331, 0, 0, 0, 0, 0]]),
        {"kernel_size": 3, "stride": 1},
        array([[1000799917193443.625, 0, 0, 0]]),
    ),
    Case(
        "pandas-dev/pandas#36031-wide",
        "the same of wide windows in two dimensions",
        "avg_pool2d",
        peak((20, 20), (0, 0), 3002399751580331, "float64"),
        {"kernel_size": 16, "stride": 1},
        peak((5, 5), (0, 0), 11728124029610.66796875, "float64"),
    ),
    Case(
        "cupy/cupy#8401",
        "the mean of six integers 1 is 1, and not truncated to 0",
        "avg_pool1d",
        array([[0] * 9 + [1] * 9 + [0] * 9], "int64"),
        {"kernel_size": 6, "stride": 1},
        array([[0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 6, 6, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0]]) / 6,
    ),
    Case(
        "OSGeo/gdal#10758",
        "uint32 numbers are compared and kept as they are, and never become float32",
        "max_pool2d",
        array([[306783377, 306783378], [306783376, 0]], "uint32"),
        {"kernel_size": 2},
        array([[306783378]], "uint32"),
    ),
    Case(
        "uxlfoundation/oneDNN#2386",
        "600 windows of one maximum give it 600: a sum in bfloat16 stops at 256",
        "max_pool2d",
        peak((39, 59), (19, 29), 3),
        {"kernel_size": (20, 30), "stride": 1, "dtype": "bfloat16"},
        np.full((20, 30), 3, np.float32),
        gy=np.ones((20, 30), np.float32),
        gx=peak((39, 59), (19, 29), 600),
    ),
    Case(
        "tinygrad/tinygrad#12296",
        "70000 equal float16 numbers share the gradient: their number is infinite in float16",
        "global_max_pool",
        np.ones((1, 1, 70000), np.float16),
        {"ties": "split"},
        array([[1]], "float16"),
        gy=array([[1]], "float16"),
        # 1 / 70000 is 239.67 units in the last place of the smallest numbers of float16
        gx=np.full((1, 1, 70000), 240 / 2**24, np.float16),
    ),
    # overlapping windows, indices, dtypes
    Case(
        "jmschrei/tangermeme#95",
        "a maximum of two windows has the gradients of both",
        "max_pool1d",
        array([[0, 0, 9, 0, 0, 0, 1, 0]], "float32"),
        {"kernel_size": 4, "stride": 2},
        array([[9, 9, 1]], "float32"),
        indices=array([[2, 2, 6]], "int64"),
        gy=array([[1, 1, 1]], "float32"),
        gx=array([[0, 0, 2, 0, 0, 0, 1, 0]], "float32"),
    ),
    Case(
        "pytorch/pytorch#197062",
        "adaptive bins of int64 numbers have an exact maximum, compiled or not",
        "adaptive_max_pool2d",
        array([[1, 2, 3], [4, 5, 6], [7, 2**53, 2**53 + 1]], "int64"),
        {"output_size": 2},
        array([[5, 6], [2**53, 2**53 + 1]], "int64"),
        indices=array([[4, 5], [7, 8]], "int64"),
    ),
]


def by_name(cases: list[Case], fast: tuple[str, ...] | None = None) -> list[Any]:
    """A parameter for each case, slow where it is not among the fast ones."""
    return [
        pytest.param(
            case,
            id=case.report.rpartition("/")[2],
            marks=() if fast is None or case.report in fast else pytest.mark.slow,
        )
        for case in cases
    ]


def prepared(case: Case) -> Case:
    """With its arrays in the dtype `arguments["dtype"]`, which NumPy alone does not have."""
    name = case.arguments.get("dtype")
    if name is None:
        return case
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    return case._replace(
        arguments={key: value for key, value in case.arguments.items() if key != "dtype"},
        **{
            part: getattr(case, part).astype(dtype)
            for part in ("x", "y", "gy", "gx")
            if getattr(case, part) is not None
        },
    )


def exactly(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal in shape, dtype and in every number; NaN equals NaN."""
    np.testing.assert_array_equal(got, expected, strict=True)


Run = Callable[..., Any]


def check(case: Case, run: Run, vjp: Callable[..., tuple[np.ndarray, Run]]) -> None:
    """Values, indices and gradient of a case."""
    exactly(run(case.fun, case.x, **case.arguments), case.y)
    if case.indices is not None:
        y, indices = run(case.fun, case.x, return_indices=True, **case.arguments)
        exactly(y, case.y)
        exactly(indices, case.indices)
    if case.gy is not None and case.gx is not None:
        y, pullback = vjp(case.fun, case.x, **case.arguments)
        exactly(y, case.y)
        exactly(pullback(case.gy), case.gx)


@pytest.mark.parametrize("case", by_name(CASES))
def test_right_values(case: Case, front: Front) -> None:
    case = prepared(case)
    check(case, front.run, front.vjp)


# The reference visits each of 600 times 600 taps in Python.
FAST_IN_REFERENCE = tuple(case.report for case in CASES if "oneDNN" not in case.report)


@pytest.mark.parametrize("case", by_name(CASES, FAST_IN_REFERENCE))
def test_right_values_of_the_reference(case: Case) -> None:
    case = prepared(case)

    def run(fun: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(reference, fun)(*args, **kwargs)

    def vjp(fun: str, *args: Any, **kwargs: Any) -> Any:
        return reference.vjp(getattr(reference, fun), *args, **kwargs)

    check(case, run, vjp)


@pytest.mark.parametrize("case", by_name(CASES))
def test_right_values_without_kernels(case: Case, no_kernels: None) -> None:
    """As on devices that have no kernels of their own."""
    check(prepared(case), TORCH.run, TORCH.vjp)


# 512 equal boxes of an 8 x 8 map of ones. A bin of 2 x 2 pixels has one sample: a pixel, or the
# middle of four pixels.
REGIONS = [
    pytest.param({"aligned": False}, [0, 1, 0, 1, 0, 0, 0, 0], 512, id="pixels"),
    pytest.param({"aligned": True}, [1, 1, 1, 1, 0, 0, 0, 0], 128, id="between-pixels"),
]


@pytest.mark.parametrize(("arguments", "row", "each"), REGIONS)
def test_regions_of_vision_9510(
    arguments: dict[str, bool], row: list[int], each: int, front: Front
) -> None:
    """pytorch/vision#9510: the more regions, the more times too large was their gradient."""
    table = np.tile(np.array([0, 0, 0, 4, 4], np.float32), (512, 1))
    boxes = as_tensor(table) if front is TORCH else table
    x = np.ones((1, 1, 8, 8), np.float32)
    y, pullback = front.vjp("roi_align", x, boxes, 2, sampling_ratio=1, **arguments)
    exactly(y, np.ones((512, 1, 2, 2), np.float32))
    exactly(pullback(y), np.outer(row, row).astype(np.float32)[None, None] * np.float32(each))


def run_jitted(fun: str, x: np.ndarray, **arguments: Any) -> Any:
    with jax.enable_x64(True):
        made = jax.jit(lambda x: find(fun)(x, **arguments))(jax.numpy.asarray(x))
    return tuple(map(np.asarray, made)) if isinstance(made, tuple) else np.asarray(made)


def vjp_jitted(fun: str, x: np.ndarray, **arguments: Any) -> tuple[np.ndarray, Run]:
    @jax.jit
    def gradient(x: Any, gy: Any) -> Any:
        return jax.vjp(lambda x: find(fun)(x, **arguments), x)[1](gy)[0]

    def pullback(gy: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(gradient(jax.numpy.asarray(x), jax.numpy.asarray(gy)))

    return run_jitted(fun, x, **arguments), pullback


@pytest.mark.skipif(jax is None, reason="JAX is not installed")
@pytest.mark.parametrize("case", by_name(CASES))
def test_right_values_in_jit(case: Case) -> None:
    check(prepared(case), run_jitted, vjp_jitted)


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Each compilation takes half a second.
COMPILED_ALWAYS = (
    "pytorch/pytorch#198119-1d",
    "microsoft/onnxruntime#29629",
    "tensorflow/tensorflow#118673-max",
    "pytorch/pytorch#197062",
)


def check_compiled(case: Case, backend: str) -> None:
    """One compilation for values, indices and gradient."""
    pool, arguments = find(case.fun), dict(case.arguments)
    if case.indices is not None:
        arguments["return_indices"] = True
    x = as_tensor(case.x)
    pool(x, **arguments)  # the front end exists from the first tensor on
    compiled = torch.compile(
        lambda x: pool(x, **arguments), fullgraph=True, dynamic=False, backend=backend
    )
    made = compiled(x.requires_grad_(case.gy is not None))
    y, *indices = made if isinstance(made, tuple) else (made,)
    exactly(as_array(y), case.y)
    if case.indices is not None:
        exactly(as_array(indices[0]), case.indices)
    if case.gy is not None and case.gx is not None:
        y.backward(as_tensor(case.gy))
        exactly(as_array(x.grad), case.gx)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("case", by_name(CASES, COMPILED_ALWAYS))
def test_right_values_in_torch_compile(case: Case) -> None:
    check_compiled(prepared(case), "aot_eager")


@pytest.mark.slow
@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler for inductor"
)
@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("case", by_name([case for case in CASES if "#198119" in case.report]))
def test_right_values_with_code_generation(case: Case) -> None:
    """The gradient was wrong in the code that PyTorch's compiler generates."""
    check_compiled(prepared(case), "inductor")
