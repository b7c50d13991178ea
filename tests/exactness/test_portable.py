"""`poolgrad.portable` against the reference: arrays of array-api-strict, PyTorch and JAX."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from frontend_calls import Front, find, torch
from hypothesis import given, settings
from profiles import examples
from reference_comparison import KINDS, compare
from robustness.calls import INTEGERS, Case, dtypes_of, example
from strategies import cases

import poolgrad
from poolgrad.functional import FUNCTIONS

strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")


def as_strict(value: Any) -> Any:
    """The array in array-api-strict, which implements the standard and nothing else."""
    if not isinstance(value, np.ndarray):
        return value
    return strict.asarray(value.astype(value.dtype.newbyteorder("="), order="C"))


class StrictPullback:
    """A pullback that takes and returns NumPy arrays."""

    def __init__(self, pullback: Any) -> None:
        self._pullback = pullback

    def __call__(self, gy: np.ndarray) -> np.ndarray:
        return np.asarray(self._pullback(as_strict(gy)))

    def parameters(self, gy: np.ndarray) -> dict[str, np.ndarray]:
        found = self._pullback.parameters(as_strict(gy))
        return {name: np.asarray(g) for name, g in found.items()}


def _given(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: as_strict(v) for k, v in kwargs.items()}


def _run(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    made = find(fun)(as_strict(x), *args, **_given(kwargs))
    return tuple(map(np.asarray, made)) if isinstance(made, tuple) else np.asarray(made)


def _vjp(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    y, pullback = poolgrad.vjp(find(fun), as_strict(x), *args, **_given(kwargs))
    return np.asarray(y), StrictPullback(pullback)


STRICT = Front("array API", _run, _vjp, _run)
NONLINEAR = ("lp_", "log_mean_exp_", "soft_", "mixed_", "global_lp_", "global_log_mean_exp_")
_STRICT_DTYPES = (np.float32, np.float64, *INTEGERS)


@pytest.mark.hypothesis
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_the_standard(kind: str) -> None:
    dtypes = [d for d in dtypes_of(kind) if d in _STRICT_DTYPES]

    @settings(max_examples=examples(3))
    @given(cases(kind, values=KINDS[kind], dtypes=dtypes))
    def check(case: Case) -> None:
        compare(case, [STRICT])

    check()


@pytest.mark.hypothesis
@pytest.mark.parametrize("kind", KINDS)
def test_tensors(kind: str, no_kernels: None) -> None:
    from frontend_calls import TORCH

    @settings(max_examples=examples(3))
    @given(cases(kind, values=KINDS[kind], dtypes=dtypes_of(kind)))
    def check(case: Case) -> None:
        compare(case, [TORCH])

    check()


INF, LARGE = float("inf"), 1e308
UNUSUAL = [
    [1, INF, 2, 3], [INF, INF, 1, 2], [-INF, 1, 2, 3], [INF, -INF, 0, 1], [INF] * 4, [-INF] * 4,
    [LARGE, -LARGE, 1, 0], [LARGE] * 4, [-LARGE] * 4, [0] * 4,
    [np.nan, INF, 1, 2], [np.nan, 1, 2, 3], [np.nan, -1, -2, -3],
]  # fmt: skip
LIMITS: dict[str, tuple[Any, dict[str, Any]]] = {
    "norm": (poolgrad.lp_pool2d, {"norm_type": 3.0}),
    "largest": (poolgrad.lp_pool2d, {"norm_type": INF}),
    "power mean": (poolgrad.lp_pool2d, {"norm_type": 0.5, "mean": True}),
    "log_mean_exp": (poolgrad.log_mean_exp_pool2d, {"r": 100.0}),
    "log_mean_exp, negative": (poolgrad.log_mean_exp_pool2d, {"r": -3.0}),
    "log_mean_exp, small": (poolgrad.log_mean_exp_pool2d, {"r": 1e-4}),
    "soft": (poolgrad.soft_pool2d, {}),
    "maximum": (poolgrad.mixed_pool2d, {"alpha": 1.0}),
    "average": (poolgrad.mixed_pool2d, {"alpha": 0.0}),
    "expected": (poolgrad.stochastic_pool2d, {"training": False}),
}


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_nonlinear_operators(name: str) -> None:
    """Infinities and numbers close to the largest one; NaN stays NaN."""
    function, options = LIMITS[name]
    x = np.array(UNUSUAL, np.float64).reshape(-1, 1, 2, 2)
    expected = function(x, kernel_size=2, **options)
    y, pullback = poolgrad.vjp(function, as_strict(x), kernel_size=2, **options)
    np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-12)
    if name != "power mean":  # whose slope is infinite at 0
        g = np.asarray(pullback(strict.ones_like(y)))
        numbers = ~np.isnan(x).any((1, 2, 3))
        np.testing.assert_array_equal(np.isfinite(g[numbers]), True)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if "max" in n and "unpool" not in n])
def test_indices(name: str, channels_last: bool) -> None:
    shape, kwargs = example(name, channels_last)
    x = np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape).astype(np.float64)
    expected = FUNCTIONS[name](x, **kwargs, return_indices=True)
    found = FUNCTIONS[name](as_strict(x), **_given(kwargs), return_indices=True)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)
    assert found[1].dtype == strict.int64


@pytest.mark.parametrize("padding", [1, (2, 0), (0, 2)])
def test_shared_gradients_of_windows_that_begin_in_the_padding(padding: Any) -> None:
    """Numbers of taps after the window's end have no bit, and often no byte."""
    x = np.tile(np.array([1, 2, 2, 1, 0, 2], np.float32), (6, 1))
    given = {"kernel_size": 4, "stride": 1, "ties": "split"}
    given["padding"] = padding if isinstance(padding, int) else (padding, padding)
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, **given)
    found, other = _vjp("max_pool2d", x, **given)
    np.testing.assert_array_equal(found, y)
    np.testing.assert_allclose(other(y), pullback(y), rtol=1e-6)  # float32, in another order


def test_memory_of_shared_gradients_grows_with_the_window() -> None:
    """One bit is kept for each tap; no array has an element for each pair of taps."""
    taps = 4096
    x = strict.ones((1, 1, taps), dtype=strict.float32)
    poolgrad.vjp(poolgrad.global_max_pool, x, ties="split")
    tracemalloc.start()
    try:
        poolgrad.vjp(poolgrad.global_max_pool, x, ties="split")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 500 * taps


def tensors(name: str, channels_last: bool = False) -> tuple[Any, dict[str, Any]]:
    """An input, and arguments; what is an array is a tensor."""
    shape, kwargs = example(name, channels_last)
    given = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    return torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(0)), given


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("device", ["meta", "cuda"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_shapes_and_dtypes_without_numbers(name: str, channels_last: bool, device: str) -> None:
    """On the device ``meta``, gradients too, and on a GPU that fake tensors stand for."""
    from torch._subclasses import FakeTensorMode

    x, kwargs = tensors(name, channels_last)
    expected = FUNCTIONS[name](x, **kwargs)
    with FakeTensorMode(allow_non_fake_inputs=True):

        def moved(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return torch.empty(value.shape, dtype=value.dtype, device=device)

        leaf = moved(x).requires_grad_(device == "meta")  # autograd needs a real GPU
        y = FUNCTIONS[name](leaf, **{k: moved(v) for k, v in kwargs.items()})
        assert (y.device.type, y.shape, y.dtype) == (device, expected.shape, expected.dtype)
        if device == "meta":
            (gx,) = torch.autograd.grad(y.sum(), leaf)
            assert (gx.device.type, gx.shape, gx.dtype) == (device, x.shape, x.dtype)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_memory_format_is_that_of_the_kernels(
    name: str, channels_last: bool, no_kernels: None
) -> None:
    """Compiled code relies on it: what is fake tells it the strides."""
    x, kwargs = tensors(name, channels_last)
    if not channels_last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = FUNCTIONS[name](mode.from_tensor(x), **kwargs)
    assert FUNCTIONS[name](x, **kwargs).stride() == fake.stride()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_the_gradient(name: str, no_kernels: None) -> None:
    x, kwargs = tensors(name)
    x = x[:1, :1].clone().requires_grad_()
    tensors_of = {k: v for k, v in kwargs.items() if isinstance(v, torch.Tensor)}
    kwargs |= {k: v[:1] if v.dim() == 1 else v[:1, :1] for k, v in tensors_of.items()}
    pool = FUNCTIONS[name]
    torch.autograd.gradgradcheck(lambda x: pool(x, **kwargs), x)
    (tangent,) = torch.func.jvp(lambda x: pool(x, **kwargs), (x.detach(),), (x.detach(),))[1:]
    numeric = (pool(x * (1 + 1e-6), **kwargs) - pool(x * (1 - 1e-6), **kwargs)) / 2e-6
    torch.testing.assert_close(tangent, numeric.detach(), rtol=1e-5, atol=1e-5)


def test_random_numbers_come_from_the_generator(no_kernels: None) -> None:
    x = torch.rand(2, 3, 9, 9)
    for name, args in (("stochastic_pool2d", (2,)), ("fractional_max_pool2d", (2, 4))):
        pool = getattr(poolgrad, name)
        first, second, third = (
            pool(x, *args, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
        )
        assert torch.equal(first, second)
        assert not torch.equal(first, third)


@pytest.mark.parametrize(
    ("size", "outputs", "kernel"), [(112, 56, 2), (1200, 1000, 2), (700, 650, 5)]
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_samples_of_few_digits(
    dtype: str, size: int, outputs: int, kernel: int, request: pytest.FixtureRequest
) -> None:
    """Of narrow dtypes, in which many windows begin at one input, no window is left out."""
    if torch is None:
        pytest.skip("PyTorch is not installed")
    samples = torch.full((1, 1, 2), 0.5, dtype=getattr(torch, dtype))
    x = torch.arange(size * 2.0).flip(0).reshape(1, 1, size, 2).to(samples.dtype).requires_grad_()

    def gradient() -> Any:
        y = poolgrad.fractional_max_pool2d(
            x, (kernel, 1), output_size=(outputs, 2), _random_samples=samples
        )
        (gx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        return gx

    expected = gradient()
    request.getfixturevalue("no_kernels")
    assert torch.equal(gradient(), expected)


def test_the_same_draw_as_the_kernels() -> None:
    x = np.random.default_rng(0).random((2, 3, 16, 16))
    expected = poolgrad.stochastic_pool2d(x, 3, generator=7)
    found = poolgrad.stochastic_pool2d(as_strict(x), 3, generator=7)
    np.testing.assert_array_equal(np.asarray(found), expected)


def test_no_tensor_is_copied_to_the_host(no_kernels: None) -> None:
    """Nothing asks a tensor of another device for its numbers: on a GPU it would wait for them."""
    from watching import Watching

    for name in FUNCTIONS:
        x, kwargs = tensors(name)
        leaf = x.requires_grad_()
        with Watching() as watching:
            FUNCTIONS[name](leaf, **kwargs).sum().backward()
        assert not watching.refused


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n.startswith(NONLINEAR)])
@pytest.mark.parametrize("learned", [False, True])
def test_nonlinear_operators_save_only_what_backward_reads(
    name: str, learned: bool, no_kernels: None
) -> None:
    """The input, from which everything is computed again, and a learned parameter."""
    x, kwargs = tensors(name)
    if learned:
        parameter = torch.tensor(1.5, dtype=x.dtype, requires_grad=True)
        kwargs |= {k: parameter for k in kwargs if k in ("norm_type", "r", "alpha")}
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        FUNCTIONS[name](x.requires_grad_(), **kwargs).sum().backward()
    most = x.shape[1] * x.itemsize  # of a parameter
    assert sum(t.nbytes for t in saved if t.shape != x.shape) <= most
    assert [t.data_ptr() for t in saved if t.shape == x.shape] == [x.data_ptr()]


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n.startswith(NONLINEAR)])
def test_gradients_of_mapped_nonlinear_operators(name: str, no_kernels: None) -> None:
    x, kwargs = tensors(name)
    gradient = torch.func.grad(lambda x: FUNCTIONS[name](x, **kwargs).sum())
    found = torch.func.vmap(gradient)(torch.stack([x, -x]))
    torch.testing.assert_close(found, torch.stack([gradient(x), gradient(-x)]))


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("way", ["kernels", "no_kernels"])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if not name.startswith("roi")])
def test_second_derivatives_gather(name: str, way: str, request: pytest.FixtureRequest) -> None:
    from watching import Watching

    if way == "no_kernels":
        request.getfixturevalue(way)
    x, kwargs = tensors(name)
    leaf = x.requires_grad_()
    with Watching() as watching:
        y = FUNCTIONS[name](leaf, **kwargs)
        (slope,) = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)
        slope.square().sum().backward()
    assert not watching.refused


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "words"),
    [
        ((2,), {"routes": "x"}, ValueError, "routes must be"),
        ((2,), {"ties": "last"}, ValueError, "ties must be"),
        ((9,), {}, ValueError, "kernel_size"),
        ((0,), {}, ValueError, "kernel_size must be positive"),
        ((2,), {"out": 3}, TypeError, "out is accepted only if"),
    ],
)
def test_errors_are_those_of_the_kernels(args: Any, kwargs: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        poolgrad.max_pool2d(strict.ones((1, 2, 8, 8)), *args, **kwargs)
    with pytest.raises(TypeError, match=r"x must be of dtype .*, got complex64"):
        poolgrad.max_pool2d(strict.ones((2, 2), dtype=strict.complex64), 2)
    if torch is not None:
        with torch._subclasses.FakeTensorMode():
            x = torch.empty(1, 2, 8, 8, device="cuda")
            with pytest.raises(error, match=words):
                poolgrad.max_pool2d(x, *args, **kwargs)
            with pytest.raises(TypeError, match="x must be of dtype"):
                poolgrad.max_pool2d(x.to(torch.float8_e4m3fn), 2)


def test_cotangents_and_operands_that_are_refused() -> None:
    x = strict.ones((1, 2, 4, 4))
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 2)
    with pytest.raises(ValueError, match="gy must have the shape of the output"):
        pullback(x)
    with pytest.raises(TypeError, match="gy must be an array of a floating dtype, got int64"):
        pullback(strict.ones(y.shape, dtype=strict.int64))
    with pytest.raises(TypeError, match="x must be of a floating dtype to have a gradient"):
        poolgrad.vjp(poolgrad.max_pool2d, strict.ones((2, 2), dtype=strict.int32), 2)
    with pytest.raises(ValueError, match="r must be a number or one for each of 2 channels"):
        poolgrad.log_mean_exp_pool2d(x, 2, r=strict.ones(3))
    with pytest.raises(
        TypeError, match="r must be a real number or an array of real numbers, got bool"
    ):
        poolgrad.log_mean_exp_pool2d(x, 2, r=strict.asarray(True))
    with pytest.raises(ValueError, match="norm_type must be positive"):
        poolgrad.lp_pool2d(x, -1.0, 2)
    with pytest.raises(TypeError, match="generator must be a"):
        poolgrad.stochastic_pool2d(x, 2, generator="x")
    with pytest.raises(TypeError, match="indices must be of dtype int64"):
        poolgrad.max_unpool2d(x, strict.ones(x.shape, dtype=strict.int32), 2)


def test_samples_given_and_drawn() -> None:
    x = np.random.default_rng(0).random((1, 2, 9, 9))
    pool = poolgrad.fractional_max_pool2d
    first, again = (np.asarray(pool(as_strict(x), 2, 4, generator=3)) for _ in range(2))
    np.testing.assert_array_equal(first, pool(x, 2, 4, generator=3))
    np.testing.assert_array_equal(first, again)
    with pytest.raises(ValueError, match=r"_random_samples must be in \[0, 1\), got 1.5"):
        pool(as_strict(x), 2, 4, _random_samples=np.full((1, 2, 2), 1.5))


def test_values_of_operands_are_clipped_or_dropped_where_they_cannot_be_checked() -> None:
    x = np.random.default_rng(0).random((1, 2, 9, 9))
    samples = np.array([[[-0.5, 1.5], [0.5, 2.0]]])
    pool = poolgrad.fractional_max_pool2d
    y = pool(as_strict(x), 2, 4, _random_samples=as_strict(samples))
    inside = np.clip(samples, 0, 1 - 2.0**-53)
    np.testing.assert_array_equal(np.asarray(y), pool(x, 2, 4, _random_samples=inside))

    ones, indices = np.ones((1, 1, 2, 2)), np.array([[[[0, 99], [-1, 3]]]])
    y, pullback = poolgrad.vjp(poolgrad.max_unpool2d, as_strict(ones), as_strict(indices), 2)
    assert np.flatnonzero(np.asarray(y)).tolist() == [0, 3]
    gy = np.arange(1.0, 17).reshape(1, 1, 4, 4)
    assert np.asarray(pullback(as_strict(gy))).tolist() == [[[[1, 0], [0, 4]]]]
