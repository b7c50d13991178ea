"""Forward mode and second derivatives for very large, very small and equal numbers.

First derivatives in reverse mode come from kernels of their own (test_nonlinear); these do not.
"""

from __future__ import annotations

from typing import Any

import pytest

import poolgrad

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# PyTorch's forward mode still imports torch.jit.script, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

PARAMETER = {"lp": "norm_type", "log_mean_exp": "r", "mixed": "alpha"}
CALLS: list[tuple[str, float | None]] = [
    *(("lp", p) for p in (1.0, 1.5, 2.0, 3.5, 1e3, float("inf"))),
    *(("log_mean_exp", r) for r in (1.0, -1.0, 1e3)),
    ("mixed", 0.25),
    ("soft", None),
    ("expected", None),
]
WINDOWS = {
    "zeros": [0.0] * 6,
    "equal": [2.0] * 6,
    "negative": [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0],
    "one-zero": [0.0, 1.0, 2.0, 3.0, 0.0, -1.0],
    "large": [1e30, -1e30, 1e30, 3.0, 1e29, -1e28],
    "subnormal": [1e-40, -1e-40, 0.0, 1e-42, 2e-40, 1e-38],
}
calls = pytest.mark.parametrize(("kind", "value"), CALLS)
windows = pytest.mark.parametrize("values", WINDOWS.values(), ids=WINDOWS)


def made(kind: str, value: float | None, values: list[float], dtype: Any) -> tuple[Any, Any]:
    """A function of tensors, and tensors."""
    x = torch.tensor([[values]], dtype=dtype)
    if value is None:
        extras = {"training": False} if kind == "expected" else {}
        pool = getattr(poolgrad, f"{kind.replace('expected', 'stochastic')}_pool1d")
        return lambda x: pool(x, 3, **extras), (x,)
    pool = getattr(poolgrad, f"{kind}_pool1d")
    theta = torch.tensor(value, dtype=dtype)
    return lambda x, t: pool(x, kernel_size=3, **{PARAMETER[kind]: t}), (x, theta)


def directions(inputs: Any) -> Any:
    """Along each of the inputs, nothing along the others."""
    zeros = [torch.zeros_like(t) for t in inputs]
    for k, t in enumerate(inputs):
        for i in range(t.numel()):
            one = torch.zeros_like(t).flatten()
            one[i] = 1
            yield k, i, (*zeros[:k], one.view_as(t), *zeros[k + 1 :])


@windows
@calls
def test_forward_mode_is_reverse_mode(kind: str, value: Any, values: list[float]) -> None:
    for dtype, rtol in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        pool, inputs = made(kind, value, values, dtype)
        y, pullback = torch.func.vjp(pool, *inputs)
        gradients = pullback(torch.ones_like(y))
        for k, i, tangents in directions(inputs):
            pushed = torch.func.jvp(pool, inputs, tangents)[1].sum()
            # by a parameter, it is a difference of numbers like the inputs, which may be subnormal
            scale = 1.0 if k == 0 else float(inputs[0].abs().max())
            atol = rtol * scale + torch.finfo(dtype).smallest_normal
            torch.testing.assert_close(pushed, gradients[k].flatten()[i], rtol=rtol, atol=atol)


@pytest.mark.parametrize("r", [1e-2, 1e-4, 1e-6, 1e-8, -1e-6, 1e-30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forward_mode_of_lse_near_the_mean(dtype: Any, r: float) -> None:
    """Half the variance, as r goes to 0: what reverse mode says, too."""
    pool, inputs = made("log_mean_exp", r, [0.25, -1.25, 2.0], dtype)
    tangents = (torch.zeros_like(inputs[0]), torch.ones_like(inputs[1]))
    slope = torch.func.jvp(pool, inputs, tangents)[1].item()
    half = inputs[0].double().var(correction=0).item() / 2
    assert slope == pytest.approx(half, rel=abs(r) * 5 + 1e-5)


@windows
@calls
def test_second_derivatives_are_finite(kind: str, value: Any, values: list[float]) -> None:
    """In double precision, and of inputs that double precision has room around."""
    pool, inputs = made(kind, value, values, torch.float64)
    leaves = [t.clone().requires_grad_() for t in inputs]
    first = torch.autograd.grad(pool(*leaves).sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in first), leaves)
    assert all(g.isfinite().all() for g in (*first, *second)), second


@pytest.mark.parametrize("r", [1e-2, 1e-4, 1e-6, 1e-8, -1e-6, 1e-30])
def test_second_derivatives_of_lse_near_the_mean(r: float) -> None:
    """By r twice: a third of the third moment; by an input and r: its distance from the mean."""
    pool, inputs = made("log_mean_exp", r, [0.25, -1.25, 2.0], torch.float64)
    (_, across), (_, twice) = torch.func.hessian(lambda x, t: pool(x, t).sum(), (0, 1))(*inputs)
    apart = inputs[0] - inputs[0].mean()
    torch.testing.assert_close(across.view_as(apart), apart / 3, rtol=1e-4, atol=10 * abs(r))
    third = (apart**3).mean() / 3
    torch.testing.assert_close(twice, third, rtol=1e-4, atol=10 * abs(r))
