"""Extra operands (indices, samples, learned parameters): the same rules in every front end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expected_errors import refused
from frontend_calls import Front, as_tensor, torch

import poolgrad
from poolgrad import arguments

X = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
draws = pytest.mark.without(dask="the draws for one chunk would depend on all other chunks")
needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


def narrow(name: str) -> np.ndarray:
    if name == "bfloat16":
        return X.astype(pytest.importorskip("ml_dtypes").bfloat16)
    return X.astype(name)


# Samples


@draws
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_samples_that_a_narrower_type_would_round_to_one(front: Front, dtype: str) -> None:
    x = narrow(dtype)
    samples = np.full((2, 3, 2), 1 - 2.0**-53)
    y = front.call("fractional_max_pool2d", x, 2, 3, _random_samples=samples)
    largest = np.full((2, 3, 2), arguments.below_one(dtype))
    expected = front.call("fractional_max_pool2d", x, 2, 3, _random_samples=largest)
    np.testing.assert_array_equal(y, expected)
    if front.name == "torch":
        given = torch.from_numpy(samples)
        y = front.call("fractional_max_pool2d", x, 2, 3, _random_samples=given)
        np.testing.assert_array_equal(y, expected)


@draws
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("value", [1.0, 1 + 2.0**-30, -1e-300, -0.5, np.nan])
def test_samples_outside_do_not_come_in_by_rounding(front: Front, dtype: str, value: float) -> None:
    samples = np.full((2, 3, 2), 0.5)
    samples[1, 2, 1] = value
    with pytest.raises(ValueError, match=r"^_random_samples must be in \[0, 1\)"):
        front.call("fractional_max_pool2d", narrow(dtype), 2, 3, _random_samples=samples)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_largest_sample(dtype: str) -> None:
    largest = arguments.below_one(dtype)
    kind = np.dtype(dtype) if dtype != "bfloat16" else pytest.importorskip("ml_dtypes").bfloat16
    assert float(np.asarray(largest, kind)) == largest < 1
    assert float(np.asarray((largest + 1) / 2, kind)) == 1


@needs_torch
def test_samples_of_halves_compile() -> None:
    x = as_tensor(X).half()
    samples = torch.full((2, 3, 2), 0.9999)

    def pool(x: Any, samples: Any) -> Any:
        return poolgrad.fractional_max_pool2d(x, 2, 3, _random_samples=samples)

    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, samples), pool(x, samples))


@draws
def test_a_wrong_dtype_of_samples_is_named_without_the_samples(front: Front) -> None:
    samples = np.zeros((2, 3, 2), np.int64)
    given = torch.from_numpy(samples) if front.name == "torch" else samples
    for value in (samples, given):
        with pytest.raises(TypeError, match=r"floating dtype, got int64$"):
            front.call("fractional_max_pool2d", X, 2, 3, _random_samples=value)


def test_a_wrong_dtype_of_numbers_is_named_without_the_numbers(front: Front) -> None:
    with pytest.raises(TypeError, match=r"^r must be a real number or .*, got complex128$"):
        front.call("log_mean_exp_pool2d", X, 2, r=np.zeros(3, complex))


# Numbers that float32 does not hold

OUTSIDE = [
    ("lp_pool2d", "norm_type", {}, (1e-50, 1e-320, 1e39, 1e300, 2**62, float("inf"))),
    ("lp_pool2d", "norm_type", {"mean": True}, (1e-50, 1e39)),
    ("log_mean_exp_pool2d", "r", {}, (1e-50, -1e-50, 1e39, -1e300, 5e-324)),
    ("mixed_pool2d", "alpha", {}, (1e-50, -1e-50, 1e39)),
]


@pytest.mark.parametrize(
    ("fun", "name", "more", "value"),
    [(f, n, more, v) for f, n, more, values in OUTSIDE for v in values],
    ids=lambda v: None if isinstance(v, dict) else str(v),
)
def test_numbers_out_of_range(front: Front, fun: str, name: str, more: Any, value: float) -> None:
    """As numbers, lists, arrays and tensors: what float32 has nearest, neither 0 nor infinite."""
    least, largest = 2.0**-126, float(np.finfo(np.float32).max)
    nearest = value
    if abs(value) < float("inf"):
        nearest = float(np.copysign(np.clip(abs(value), least, largest), value))
    expected = poolgrad.__dict__[fun](X, kernel_size=2, **{name: nearest}, **more)
    forms = [value, float(value), [value] * 3, np.full(3, value, np.float64)]
    if front.name == "torch":
        forms += [torch.tensor(v, dtype=torch.float64) for v in (value, [value] * 3)]
    for given in forms:
        y = front.call(fun, X, kernel_size=2, **{name: given}, **more)
        np.testing.assert_array_equal(y, expected)


def test_limits_of_numbers(front: Front) -> None:
    ones = np.ones((1, 1, 4, 4), np.float32)
    assert np.isinf(front.call("lp_pool2d", ones, 1e-50, 2)).all()
    for fun, args, kwargs in (
        ("lp_pool2d", (1e39, 2), {}), ("log_mean_exp_pool2d", (2,), {"r": 1e-50}),
        ("log_mean_exp_pool2d", (2,), {"r": 1e39}), ("log_mean_exp_pool2d", (2,), {"r": -1e39}),
    ):  # fmt: skip
        np.testing.assert_array_equal(front.call(fun, ones, *args, **kwargs), ones[..., :2, :2])
    with pytest.raises(ValueError, match=r"^norm_type must be positive, got -1e-50$"):
        front.call("lp_pool2d", ones, -1e-50, 2)


@needs_torch
def test_gradients_of_numbers_in_a_wider_type() -> None:
    for value in (2.5, 1e-50, 1e39):
        wide = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        poolgrad.log_mean_exp_pool2d(as_tensor(X), 2, r=wide).sum().backward()
        assert wide.grad.dtype == torch.float64
        assert bool(wide.grad.isfinite())
        if value == 2.5:
            near = torch.tensor(value, requires_grad=True)
            poolgrad.log_mean_exp_pool2d(as_tensor(X), 2, r=near).sum().backward()
            assert wide.grad.float() == near.grad


# Channels


@pytest.mark.parametrize(
    ("fun", "name"),
    [("log_mean_exp_pool2d", "r"), ("lp_pool2d", "norm_type"), ("mixed_pool2d", "alpha")],
)
@pytest.mark.parametrize("channels", [0, 1, 2])
def test_gradients_for_each_channel_of_few(
    front: Front, fun: str, name: str, channels: int
) -> None:
    x = X[:, :channels]
    y, pullback = front.vjp(fun, x, kernel_size=2, **{name: np.ones(channels, np.float32)})
    gy = np.ones_like(y)
    assert pullback(gy).shape == x.shape
    assert pullback.parameters(gy)[name].shape == (channels,)


# Seeds and generators


@draws
@pytest.mark.parametrize("kind", [int, np.int64, np.uint8])
def test_seeds_of_any_integer_type(front: Front, kind: Any) -> None:
    for fun, args in (("stochastic_pool2d", (2,)), ("fractional_max_pool2d", (2, 3))):
        y = front.call(fun, X, *args, generator=kind(3))
        np.testing.assert_array_equal(y, front.call(fun, X, *args, generator=3))


# Tensors


@needs_torch
def test_tensors_that_require_a_gradient_beside_an_array() -> None:
    w = torch.ones((), requires_grad=True)
    for fun, name, args in (
        ("log_mean_exp_pool2d", "r", (2,)), ("mixed_pool2d", "alpha", (2,)),
        ("global_lp_pool", "norm_type", ()), ("fractional_max_pool2d", "_random_samples", (2, 3)),
    ):  # fmt: skip
        for given in (w, [w]):
            with refused(TypeError, name, "detach()"):
                getattr(poolgrad, fun)(X, *args, **{name: given})
    np.testing.assert_array_equal(
        poolgrad.log_mean_exp_pool2d(X, 2, r=w.detach()), poolgrad.log_mean_exp_pool2d(X, 2, r=1.0)
    )


def _tensors_that_are_not_dense() -> dict[str, Any]:
    if torch is None:
        return {}
    x = as_tensor(X)
    return {
        "sparse_coo": x.to_sparse,
        "sparse_csr": x[0, 0].to_sparse_csr,
        "mkldnn": x.to_mkldnn,
        "nested": lambda: torch.nested.nested_tensor([x[0], x[1]]),
        "nested, jagged": lambda: torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged),
    }


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, that these kinds of tensors may change
@pytest.mark.parametrize("kind", _tensors_that_are_not_dense())
def test_tensors_that_are_not_dense(kind: str) -> None:
    x = _tensors_that_are_not_dense()[kind]()
    for fun, args in (
        ("max_pool2d", (2,)), ("global_avg_pool", ()), ("lp_pool2d", (2.0, 2)),
        ("fractional_max_pool2d", (2, None, 0.5)), ("soft_pool2d", (2,)),
        ("stochastic_pool2d", (2,)), ("adaptive_max_pool2d", (2,)),
    ):  # fmt: skip
        if kind != "sparse_csr" or not fun.startswith("global"):  # which asks for the rank first
            with refused(TypeError, "x must be a dense tensor", kind.partition(",")[0]):
                getattr(poolgrad, fun)(x, *args)


def _takers() -> dict[str, Any]:
    """Return a call that takes a tensor, and the tensor, by the name of the argument."""
    if torch is None:
        return {}
    x = as_tensor(X).float()
    leaf, boxes = x.clone().requires_grad_(), torch.zeros(2, 5)
    indices, samples = torch.zeros(x.shape, dtype=torch.int64), torch.full((*x.shape[:2], 2), 0.5)
    return {
        "r": (lambda t: poolgrad.log_mean_exp_pool2d(x, 2, r=t), torch.ones(x.shape[1])),
        "r of a module": (
            lambda t: poolgrad.torch.LogMeanExpPool2d(2, r=t),
            torch.ones(x.shape[1]),
        ),
        "boxes": (lambda t: poolgrad.roi_align(x, t, 2), boxes),
        "boxes[0]": (lambda t: poolgrad.roi_pool(x, [t] * len(x), 2), boxes[:, 1:]),
        "indices": (lambda t: poolgrad.max_unpool2d(x, t, 2), indices),
        "_random_samples": (
            lambda t: poolgrad.fractional_max_pool2d(x, 2, output_size=1, _random_samples=t),
            samples,
        ),
        "logits": (lambda t: poolgrad.lip_pool2d(x, t, 2), x),
        "gy": (lambda t: poolgrad.max_pool2d(leaf, 1).backward(t), x),
        "gy of range": (lambda t: poolgrad.range_pool2d(leaf, 1).backward(t), x),
        "gy of roi_align": (
            lambda t: poolgrad.roi_align(leaf, boxes, 2).backward(t),
            torch.ones(2, x.shape[1], 2, 2),
        ),
        "t": (lambda t: torch.ops.poolgrad.roi_pool_gather(t, indices.int(), boxes, [2, 2]), x),
    }


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _takers())
def test_other_arguments_that_are_not_dense(name: str) -> None:
    take, tensor = _takers()[name]
    with refused(
        TypeError, re.escape(name.partition(" ")[0]) + " must be a dense tensor", "sparse_coo"
    ):
        take(tensor.to_sparse())


@needs_torch
def test_meta_tensors_are_pooled() -> None:
    x = torch.empty(2, 3, 6, 6, device="meta")
    for fun, args in (("max_pool2d", (2,)), ("lp_pool2d", (2.0, 2)), ("global_avg_pool", ())):
        assert getattr(poolgrad, fun)(x, *args).is_meta


# One house


def test_front_ends_do_not_import_each_other() -> None:
    root = Path(poolgrad.__file__).parent / "torch"
    for path in root.glob("*.py"):
        assert "poolgrad.numpy" not in path.read_text()
        assert "from poolgrad import numpy" not in path.read_text()
