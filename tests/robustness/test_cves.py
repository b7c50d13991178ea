"""Known vulnerabilities and crashes of other libraries' poolings, each tried on poolgrad.

An advisory about a public function is asked of the public functions; one about a kernel behind it
also of ``torch.ops.poolgrad``, in a child process, since a hole might bring it down.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from expected_errors import refused
from frontend_calls import Front, torch

import poolgrad

X = np.ones((1, 2, 4, 4))
draws = pytest.mark.without(dask="the draws for one chunk would depend on all other chunks")
RAW = {
    "29570 small gradient": "pulled('max', gy=torch.ones(2, 3, 1, 1))",
    "29570 large gradient": "pulled('max', gy=torch.ones(2, 3, 400, 400))",
    "29570 large gradient and routes": (
        "pulled('max', gy=torch.ones(2, 3, 400, 400), "
        "residual0=torch.zeros(2, 3, 400, 400, dtype=torch.uint8))"
    ),
    "29573 batch 0": (
        "pulled('max', gy=torch.ones(0, 3, 4, 4), shape=[0, 3, 8, 8], "
        "residual0=torch.zeros(0, 3, 4, 4, dtype=torch.uint8))"
    ),
    "29573 nothing at all": (
        "pulled('max', gy=torch.ones(0, 0, 0, 0), shape=[0, 0, 0, 0], "
        "residual0=torch.zeros(0, 0, 0, 0, dtype=torch.uint8))"
    ),
    "29576 no depth": (
        "pooled('max', x=torch.ones(2, 3, 0, 8, 8), "
        "window=[0, 0, 0, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 1, 1, 1])"
    ),
    "29576 twice back": (
        "pushed('max', t=torch.ones(2, 3, 0, 0), residual0=torch.zeros(1, dtype=torch.uint8))"
    ),
    "29577 batch of the shape": "pulled('avg', shape=[2000, 3, 8, 8])",
    "29577 channels of the shape": "pulled('avg', shape=[2, 3000, 8, 8])",
    "29578 few samples": "pulled('fractional_max', operand=torch.rand(1, 1, 2))",
    "29578 no samples": "pulled('fractional_max', operand=torch.rand(0, 3, 2))",
    "29578 forward": "pooled('fractional_max', operand=torch.rand(2))",
    "29579 empty gradient": "pulled('max', gy=torch.ones(0, 0, 0, 0))",
    "29579 empty routes": "pulled('max', residual0=torch.zeros(0, 0, 0, 0, dtype=torch.uint8))",
    "37651 empty input": "pulled('fractional_max', shape=[2, 3, 0, 0])",
    "37651 large output": "pulled('fractional_max', gy=torch.ones(2, 3, 9, 9))",
    "37674 empty input": "pulled('max', shape=[0, 0, 0, 0])",
    "37674 empty input of soft pooling": "pulled('soft', x=torch.ones(0, 0, 0, 0))",
    "41196 kernel 0": "pooled('max', window=[0, 0, 0, 2, -2, 1, 1, 0, 0, 0, 0, 1, 1])",
    "41196 kernel 0 of an average": (
        "pooled('avg', "
        "window=[0, 0, 0, -1, -1, 1, 1, 0, 0, 0, 0, 1, 1])"
    ),
    "21735 no outputs": "pooled('fractional_max', window=[2, 0, 0, 2, 2, 0, 0])",
    "21735 kernel 0": "pooled('fractional_max', window=[2, 0, 0, 0, 0, 0, 0])",
    "21739 empty argument": "pooled('mixed', operand=torch.empty(0))",
    "21739 empty norm": "pooled('lp', operand=torch.empty(0))",
    "21739 empty seed": "pooled('stochastic', operand=torch.empty(0, dtype=torch.int64))",
    "41900 more outputs than inputs": "pooled('fractional_max', window=[2, 0, 0, 2, 2, 900, 900])",
    "41900 samples far outside": "pooled('fractional_max', operand=torch.full((2, 3, 2), 1e30))",
    "41900 negative samples": "pooled('fractional_max', operand=torch.full((2, 3, 2), -9e9))",
    "41900 samples that are no number": (
        "pooled('fractional_max', operand=torch.full((2, 3, 2), float('nan')))"
    ),
    "25664 other kernel": "pulled('avg', window=[0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1])",
    "25664 small gradient": "pulled('avg', gy=torch.ones(1))",
    "25664 large shape": "pulled('avg', shape=[2, 3, 8000, 8000])",
    "25801 four ratios": "poolgrad.fractional_max_pool2d(x(), 2, output_ratio=(0.5,) * 4)",
    "140923": (
        "pulled('max', gy=torch.ones(9, 7, 9, 9), shape=[5, 7, 9, 9], "
        "residual0=torch.full((5, 7, 9, 9), 5, dtype=torch.uint8), "
        "window=[0, 0, 0, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1])"
    ),
    "142459": (
        "pulled('max', gy=torch.ones(1, 2, 1, 3, 2), shape=[1, 2, 3, 6, 5], "
        "residual0=torch.zeros(0, 2, 1, 3, 2, dtype=torch.uint8), "
        "window=[0, 0, 1, 3, 3, 3, 2, 2, 2, 0, 0, 0, 0, 0, 0, 1, 1, 1])"
    ),
    "50960 one axis": "pooled('max', window=[1, 0, 0, 9132760301568586890])",
    "50960 three axes": (
        "pooled('max', x=torch.ones(2, 2, 2, 2, 2), "
        "window=[1, 0, 0, 4799942556533499770, 4799942556533499770, 4799942556533499770])"
    ),
    "50960 product": "pooled('avg', window=[1, 0, 0, 2**31, 2**31])",
    "152913 beyond": "pooled('max_unpool', operand=torch.full(SHAPE, 256))",
    "152913 far beyond": "pooled('max_unpool', operand=torch.full(SHAPE, 2**40))",
    "152913 wraps around": "pooled('max_unpool', operand=torch.full(SHAPE, 2**61 + 1))",
    "152913 low bits": "pooled('max_unpool', operand=torch.full(SHAPE, 2**32 + 3))",
    "152913 negative": "pooled('max_unpool', operand=torch.full(SHAPE, -(2**40)))",
    "152913 back": "pulled('max_unpool', operand=torch.full(SHAPE, 2**40))",
    "152913 back to before": "pulled('max_unpool', operand=torch.full(SHAPE, -1))",
    "152913 ahead": "pushed('max_unpool', operand=torch.full(SHAPE, 2**40))",
    "152913 one index": "pooled('max_unpool', operand=torch.zeros(1, dtype=torch.int64))",
    "152913 gradient of another shape": "pulled('max_unpool', gy=torch.ones(2, 3, 1, 1))",
}  # fmt: skip
ANSWERED = {"29573 batch 0"}  # nothing is wrong with no image
# Any answer, as long as it reads inside: floats far outside [0, 1) have no meaning there.
EITHER = {n for n in RAW if n.startswith("41900") and "sample" in n}


@pytest.fixture(scope="module")
def raw() -> dict[str, str]:
    if torch is None:
        return {}
    from raw_ops import outcomes

    return outcomes(RAW)


def assert_stands(raw: dict[str, str], what: str) -> None:
    """Every raw call of this name was refused by a check, or answered where it may be."""
    if torch is None:
        return  # the raw operators are PyTorch's
    names = [n for n in RAW if n.split()[0] == what]
    assert names
    for name in names:
        accepted = r"answered|refused with (Value|Type)Error" if name in EITHER else (
            "answered" if name in ANSWERED else r"refused with (Value|Type)Error"
        )  # fmt: skip
        assert re.match(accepted, raw[name]), (name, raw[name])


def refuse_gradients(fun: str, args: tuple[Any, ...], **kwargs: Any) -> None:
    """Gradients of other shapes than the output's, of the same number of elements, too."""
    y, pullback = poolgrad.vjp(getattr(poolgrad, fun), X, *args, **kwargs)
    for shape in [(), (0,), (y.size,), (9, *y.shape[1:]), (0, *y.shape[1:]), y.shape[::-1]]:
        if shape != y.shape:
            with refused(ValueError, "gy must have the shape of the output", shape):
                pullback(np.ones(shape))


def test_cve_2021_29570_gradient_and_argmax_of_other_sizes(raw: dict[str, str]) -> None:
    """MaxPoolGradWithArgmax read two arrays with one index; their sizes were not compared."""
    refuse_gradients("max_pool2d", (2,))
    assert_stands(raw, "29570")


def test_cve_2021_29573_division_by_an_empty_batch(front: Front, raw: dict[str, str]) -> None:
    """MaxPoolGradWithArgmax divided by the number of images, which was 0."""
    calls: list[tuple[str, dict[str, Any]]] = [
        (f"{kind}_pool2d", {}) for kind in ("max", "avg", "soft", "mixed")
    ]
    if front.name != "dask":  # which does not draw
        calls.append(("stochastic_pool2d", {"generator": 0}))
    for fun, kwargs in calls:
        y, pullback = front.vjp(fun, np.ones((0, 2, 4, 4)), 2, **kwargs)
        assert y.shape == (0, 2, 2, 2)
        assert pullback(np.ones((0, 2, 2, 2))).shape == (0, 2, 4, 4)
    with refused(ValueError, "the height of the input must be positive", 0):
        front.run("max_pool2d", np.ones((0, 0, 0, 0)), 1)
    assert_stands(raw, "29573")


def test_cve_2021_29576_parameters_checked_in_part(front: Front, raw: dict[str, str]) -> None:
    """MaxPool3DGradGrad went on with parameters whose check had failed halfway: no depth."""
    for fun in ("max_pool3d", "min_pool3d", "log_mean_exp_pool3d"):
        with refused(ValueError, "the depth of the input must be positive", 0):
            front.run(fun, np.ones((1, 2, 0, 4, 4)), 1)
    assert_stands(raw, "29576")


def test_cve_2021_29577_batch_and_channels_of_another_input(raw: dict[str, str]) -> None:
    """AvgPool3DGrad took the input's shape from the caller, its first and last axes unchecked."""
    refuse_gradients("avg_pool2d", (2,))
    refuse_gradients("avg_pool3d", (2,), channels_last=True, padding=1)
    assert_stands(raw, "29577")


@draws
def test_cve_2021_29578_too_few_places_of_fractional_windows(
    front: Front, raw: dict[str, str]
) -> None:
    """FractionalAvgPoolGrad read its window bounds beyond the end of the arrays that held them."""
    for shape in [(1, 2), (1, 2, 1), (1, 1, 2), (2, 2, 2), (0, 2, 2), (2,), ()]:
        samples: Any = torch.zeros(shape) if front.name == "torch" else np.zeros(shape)
        with refused(ValueError, r"_random_samples must have shape", f"(1, 2, 2), got {shape}"):
            front.run("fractional_max_pool2d", X, 2, 2, _random_samples=samples)
    assert_stands(raw, "29578")


def test_cve_2021_29579_empty_gradient(raw: dict[str, str]) -> None:
    """MaxPoolGrad took a gradient without elements for one of the output's size."""
    for fun in ("max_pool2d", "median_pool2d", "lp_pool2d"):
        args = (2, 2) if fun == "lp_pool2d" else (2,)
        _, pullback = poolgrad.vjp(getattr(poolgrad, fun), X, *args)
        with refused(ValueError, "gy must have the shape", (0, 0, 0, 0)):
            pullback(np.ones((0, 0, 0, 0)))
    assert_stands(raw, "29579")


@draws
def test_cve_2021_37651_fractional_pooling_of_nothing(front: Front, raw: dict[str, str]) -> None:
    """FractionalAvgPoolGrad read an input without elements."""
    for kwargs in ({"output_size": 1}, {"output_ratio": 0.5}):
        with pytest.raises(ValueError, match=r"height|width|output_ratio"):
            front.run("fractional_max_pool2d", np.ones((1, 2, 0, 0)), 1, **kwargs)
    refuse_gradients("fractional_max_pool2d", (2, 2))
    assert_stands(raw, "37651")


def test_cve_2021_37674_input_of_another_shape(front: Front, raw: dict[str, str]) -> None:
    """MaxPoolGrad took an original input and output that do not belong together."""
    for fun in ("max_pool2d", "soft_pool2d"):
        with refused(ValueError, "the width of the input must be positive", 0):
            front.run(fun, np.ones((1, 2, 4, 0)), 2)
    assert_stands(raw, "37674")


WINDOWED = ["max", "relu_max", "min", "median", "avg", "lp", "log_mean_exp", "soft", "mixed"]


def refuse_empty_windows(front: Front, kind: str) -> None:
    first = (2.0,) if kind == "lp" else ()
    x = np.ones((1, 2, 4, 4, 4))
    for kernel in ((2, 2, 0), 0, -1, (2, -2, 2)):
        with refused(ValueError, "kernel_size must be positive", kernel):
            front.run(f"{kind}_pool3d", x, *first, kernel, 1)
        with refused(ValueError, "stride must be positive", kernel):
            front.run(f"{kind}_pool3d", x, *first, 2, kernel)


@pytest.mark.parametrize("kind", WINDOWED)
def test_cve_2021_41196_kernel_of_size_zero_or_negative(
    front: Front, raw: dict[str, str], kind: str
) -> None:
    """MaxPooling3D with a window of (2, 2, 0) crashed; a stride of 0 divided by it."""
    refuse_empty_windows(front, kind)
    assert_stands(raw, "41196")


@draws
def test_cve_2021_41196_kernel_of_draws_of_size_zero_or_negative(front: Front) -> None:
    refuse_empty_windows(front, "stochastic")


@draws
def test_cve_2022_21735_ratio_that_leaves_no_output(front: Front, raw: dict[str, str]) -> None:
    """FractionalMaxPool divided by the number of outputs, which its ratio had made 0."""
    for ratio in (0.1, (0.5, 0.2), 1e-300):
        with refused(ValueError, "output_ratio", ratio):
            front.run("fractional_max_pool2d", X, 1, output_ratio=ratio)
    for size in (0, (2, 0), -1):
        with refused(ValueError, "output_size must be positive", size):
            front.run("fractional_max_pool2d", X, 1, size)
    assert_stands(raw, "21735")


def test_cve_2022_21739_arguments_without_elements(front: Front, raw: dict[str, str]) -> None:
    """QuantizedMaxPool read the only number of an argument that had none."""
    for fun, args, name in (
        ("lp_pool2d", (np.ones(0), 2), "norm_type"),
        ("log_mean_exp_pool2d", (2,), "r"),
        ("mixed_pool2d", (2,), "alpha"),
    ):
        kwargs = {} if fun == "lp_pool2d" else {name: np.ones(0)}
        with refused(ValueError, f"{name} must be a number or one for each of 2 channels", (0,)):
            front.run(fun, X, *args, **kwargs)
    assert front.run("max_pool2d", np.ones((0, 2, 4, 4), np.int8), 2).shape == (0, 2, 2, 2)
    assert_stands(raw, "21739")


@draws
def test_cve_2022_41900_ratio_beyond_its_range(front: Front, raw: dict[str, str]) -> None:
    """FractionalMaxPool with a ratio that asks for more outputs than inputs wrote beyond them."""
    for ratio in (1, 1.0, 1.0000001, 3.7, -0.5, (0.5, 1.5), float("nan"), float("inf"), 10**400):
        with refused(ValueError, "output_ratio must lie between 0 and 1", repr(ratio)[:15]):
            front.run("fractional_max_pool2d", X, 1, output_ratio=ratio)
    for kernel, size in ((2, 4), (4, 2), (1, 5), (2, 2**40)):
        with refused(ValueError, f"kernel_size {kernel} and output_size {size} need", "got 4"):
            front.run("fractional_max_pool2d", X, kernel, size)
    assert_stands(raw, "41900")


def test_cve_2023_25664_gradient_for_other_windows(raw: dict[str, str]) -> None:
    """AvgPoolGrad spread a gradient over more windows than the input has."""
    for fun in ("avg_pool2d", "adaptive_avg_pool2d", "soft_pool2d", "mixed_pool2d"):
        refuse_gradients(fun, (2,))
    refuse_gradients("global_avg_pool", ())
    assert_stands(raw, "25664")


@draws
def test_cve_2023_25801_ratio_for_batch_and_channels(front: Front, raw: dict[str, str]) -> None:
    """FractionalMaxPool freed memory twice when the ratios of batch and channels were not 1."""
    for ratio in ((1.0, 0.5, 0.5, 1.0), (0.5, 0.5, 0.5, 0.5), (0.5,) * 3, ()):
        with refused(ValueError, "output_ratio must be a number or 2 of them", ratio):
            front.run("fractional_max_pool2d", X, 1, output_ratio=ratio)
    assert_stands(raw, "25801")


def test_pytorch_140923_gradient_of_more_images(raw: dict[str, str]) -> None:
    """max_pool2d_with_indices_backward looped over the gradient's batch, not the input's."""
    x = np.ones((5, 7, 9, 9), np.float32)
    _, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 3, 1, 1)
    with refused(ValueError, "gy must have the shape of the output", (9, 7, 9, 9)):
        pullback(np.ones((9, 7, 9, 9), np.float32))
    assert_stands(raw, "140923")


def test_pytorch_142459_indices_of_no_image(raw: dict[str, str]) -> None:
    """max_pool3d_with_indices_backward read indices that a batch of 0 does not have."""
    x = np.ones((1, 2, 3, 6, 5), np.float32)
    _, pullback = poolgrad.vjp(poolgrad.max_pool3d, x, 3, 2, ceil_mode=True)
    with refused(ValueError, "gy must have the shape of the output", (0, 2, 1, 3, 2)):
        pullback(np.ones((0, 2, 1, 3, 2), np.float32))
    assert_stands(raw, "142459")


def test_pytorch_50960_huge_output_size(front: Front, raw: dict[str, str]) -> None:
    """AdaptiveMaxPool with an output of 10**18 places allocated what that wrapped round to."""
    for dims, size in ((1, 9132760301568586890), (2, 4799942556533499770), (3, 2**61)):
        for kind in ("max", "avg"):
            with refused(ValueError, "output_size must be less than", size):
                front.run(f"adaptive_{kind}_pool{dims}d", np.ones((2,) * (dims + 2)), size)
    for size in ((2**31, 2**31), (2**60, 2**60), (2, 2**60)):
        with pytest.raises(ValueError, match=r"output.*(overflow|more than fit) memory"):
            front.run("adaptive_max_pool2d", X, size)
    assert_stands(raw, "50960")


@pytest.mark.without(jax="a computation that runs raises another error: test_jax_arguments.py")
@pytest.mark.parametrize("index", [-1, -(2**40), 16, 17, 2**32 + 3, 2**40, 2**61 + 1, 2**63 - 1])
def test_pytorch_152913_unpool_index_out_of_range(
    front: Front, raw: dict[str, str], index: int
) -> None:
    """max_unpool2d wrote wherever its indices pointed; a narrowing cast made some look right."""
    indices = np.zeros((1, 2, 2, 2), np.int64)
    indices[0, 1, 1, 0] = index
    given: Any = torch.from_numpy(indices) if front.name == "torch" else indices
    with refused(ValueError, "indices", index):
        front.run("max_unpool2d", np.ones((1, 2, 2, 2)), given, 2)
    assert_stands(raw, "152913")


def test_every_raw_call_belongs_to_a_test(raw: dict[str, str]) -> None:
    assert torch is None or set(raw) == set(RAW)
    names = " ".join(n for n in globals() if n.startswith("test_"))
    assert all(name.split()[0] in names for name in RAW)
