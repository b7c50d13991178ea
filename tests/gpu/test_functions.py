"""Every public function as on a GPU: values, gradients and indices of the textbook.

Triton kernels compute most of them, and `poolgrad.portable` those that have no such kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from robustness.calls import example  # noqa: E402

from poolgrad import reference  # noqa: E402
from poolgrad.functional import FUNCTIONS  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_triton")
NAMES = [name for name in FUNCTIONS if not name.startswith("roi")]
PORTABLE = ("stochastic", "median", "fractional", "max_unpool")


def call(name: str, channels_last: bool) -> tuple[np.ndarray, dict[str, Any]]:
    """An input and arguments as arrays."""
    shape, kwargs = example(name, channels_last)
    return np.random.default_rng(3).standard_normal(shape), kwargs


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_the_textbooks(
    name: str, channels_last: bool, device: str, on_triton: list[str]
) -> None:
    x, kwargs = call(name, channels_last)
    expected, pullback = reference.vjp(getattr(reference, name), x, **kwargs)
    cotangent = np.random.default_rng(4).standard_normal(expected.shape)
    leaf = torch.tensor(x, device=device, requires_grad=True)
    tensors = {
        k: torch.tensor(v, device=device) if isinstance(v, np.ndarray) else v
        for k, v in kwargs.items()
    }
    y = FUNCTIONS[name](leaf, **tensors)
    y.backward(torch.tensor(cotangent, device=device).reshape(y.shape))
    np.testing.assert_allclose(y.detach().cpu(), expected, rtol=1e-10, atol=1e-12)
    gradients = pullback(cotangent)
    gradient = gradients[0] if isinstance(gradients, tuple) else gradients
    np.testing.assert_allclose(leaf.grad.cpu(), gradient, rtol=1e-9, atol=1e-11)
    assert bool(on_triton) == (not name.startswith(PORTABLE)), on_triton


@pytest.mark.parametrize("name", ["avg_pool2d", "log_mean_exp_pool2d", "max_pool2d"])
def test_inputs_in_fewer_windows_than_a_window_has_taps(name: str, device: str) -> None:
    x = np.random.default_rng(3).standard_normal((1, 2, 6, 4))
    kwargs = {"kernel_size": (5, 3), "stride": 1} | (
        {"r": 2.0} if name.startswith("log_mean_exp") else {}
    )
    y, pullback = reference.vjp(getattr(reference, name), x, **kwargs)
    leaf = torch.tensor(x, device=device, requires_grad=True)
    FUNCTIONS[name](leaf, **kwargs).sum().backward()
    gradients = pullback(np.ones_like(y))
    gradient = gradients[0] if isinstance(gradients, tuple) else gradients
    np.testing.assert_allclose(leaf.grad.cpu(), gradient, rtol=1e-9, atol=1e-11)


INDEXED = ["max_pool2d", "min_pool1d", "median_pool2d", "adaptive_max_pool3d"]


@pytest.mark.parametrize("name", INDEXED)
def test_indices_are_the_textbooks(name: str, device: str) -> None:
    x, kwargs = call(name, channels_last=False)
    _, expected = getattr(reference, name)(x, **kwargs, return_indices=True)
    _, indices = FUNCTIONS[name](torch.tensor(x, device=device), **kwargs, return_indices=True)
    np.testing.assert_array_equal(indices.cpu(), expected)


@pytest.mark.parametrize(
    "name", ["max_pool2d", "avg_pool2d", "log_mean_exp_pool2d", "median_pool2d"]
)
def test_double_backward_agrees_with_differences(name: str, device: str) -> None:
    x, kwargs = call(name, channels_last=False)
    small = torch.tensor(x, device=device)[:1, :1, :4, :4].requires_grad_()
    kwargs = {"kernel_size": 2} | ({"r": 2.0} if name.startswith("log_mean_exp") else {})

    def squared(t: torch.Tensor) -> torch.Tensor:
        return FUNCTIONS[name](t, **kwargs).square()

    assert torch.autograd.gradgradcheck(squared, small)


def test_values_that_are_out_of_range_fail_an_assertion(device: str) -> None:
    """No call waits for the device, so on a GPU the assertion fails later and ends the process."""
    if device != "cpu":
        pytest.skip("a failed assertion on a GPU ends the process")
    x = torch.ones(1, 1, 6, 6)
    with pytest.raises(RuntimeError, match=r"_random_samples must be in \[0, 1\)"):
        FUNCTIONS["fractional_max_pool2d"](x, 2, 3, _random_samples=torch.ones(1, 1, 2))
    with pytest.raises(RuntimeError, match="indices must be from 0 to 143"):
        FUNCTIONS["max_unpool2d"](x, torch.full((1, 1, 6, 6), 144), 2)


def test_functional_transformations_and_deterministic_mode(device: str) -> None:
    x = torch.randn(2, 3, 6, 6, device=device, dtype=torch.float64)
    pool = FUNCTIONS["max_pool2d"]
    torch.use_deterministic_algorithms(True)
    try:
        batched = torch.func.vmap(lambda t: pool(t, 2))(x)
        gradient = torch.func.grad(lambda t: pool(t, 2).sum())(x)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(batched, torch.nn.functional.max_pool2d(x, 2))
    assert gradient.sum() == 2 * 3 * 9
