"""Nonlinear operators against PyTorch's operations in float64, rounded: within 2 ulp."""

from __future__ import annotations

import math
from typing import Any

import pytest

import poolgrad
from poolgrad.operators import OPERATORS
from poolgrad.windows import fixed

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outputs(dtype: str) -> None:
    x = torch.rand(2, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = (4 * x + 0.125).to(getattr(torch, dtype))
    exact = x.double()
    tiles = exact.unfold(2, 3, 3).unfold(3, 3, 3).reshape(2, 3, 4, 4, 9)
    means = math.log(9)
    weighted = (tiles.softmax(-1) * tiles).sum(-1)
    pairs = [
        (poolgrad.soft_pool2d(x, 3), weighted),
        (poolgrad.log_mean_exp_pool2d(x, 3), tiles.logsumexp(-1) - means),
        (poolgrad.log_mean_exp_pool2d(x, 3, r=-2.5), ((-2.5 * tiles).logsumexp(-1) - means) / -2.5),
        (poolgrad.global_log_mean_exp_pool(x), exact.flatten(2).logsumexp(-1) - math.log(144)),
    ]
    for p in (1.0, 2.0, 3.0, 2.5, 7.25):
        norm = torch.nn.functional.lp_pool2d(exact, p, 3)
        pairs.append((poolgrad.lp_pool2d(x, p, 3), norm))
        pairs.append((poolgrad.lp_pool2d(x, p, 3, mean=True), norm / 9 ** (1 / p)))
    for ours, theirs in pairs:
        ulp = torch.finfo(ours.dtype).eps
        torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=2 * ulp, atol=0)


@pytest.mark.parametrize("seed", range(5))
def test_gradients(seed: int) -> None:
    """Within 3 ulp of a window's largest gradient; where nothing cancels, 6 of each gradient.

    An output is rounded once or twice. A gradient is a product of rounded factors (that of the
    output, a reciprocal sum, a weight), so 2 ulp would be luck: PyTorch's own are up to 6 of the
    largest away in the same calls. Single ones may be further off in terms of themselves: those of
    ``soft`` and of the expected value go through 0 where two terms cancel, and a small weight,
    ``(|x| / y)**(p - 1)``, has the rounding of its logarithm times p - 1.
    """
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(2, 3, 9, 9, generator=random) * 4 + 0.125
    exact = x.double().requires_grad_()
    leaf = x.clone().requires_grad_()

    def tiled(t: Any) -> Any:
        return t.unfold(2, 3, 3).unfold(3, 3, 3).reshape(2, 3, 3, 3, 9)

    tiles = tiled(exact)
    p = torch.tensor([1.5, 2.0, 3.25], dtype=torch.float64)[:, None, None]
    norms = (1.0, 1.5, 2.0, 2.5, 3.0, 7.25)
    pairs = [
        (poolgrad.soft_pool2d(leaf, 3), (tiles.softmax(-1) * tiles).sum(-1), math.inf),
        (
            poolgrad.stochastic_pool2d(leaf, 3, training=False),
            (tiles * tiles).sum(-1) / tiles.sum(-1),
            math.inf,
        ),
        (poolgrad.log_mean_exp_pool2d(leaf, 3, r=2.0), (2 * tiles).logsumexp(-1) / 2, 6),
        (poolgrad.mixed_pool2d(leaf, 3, alpha=0.3), 0.3 * tiles.amax(-1) + 0.7 * tiles.mean(-1), 6),
        (poolgrad.lp_pool2d(leaf, p.flatten(), 3), (tiles ** p[..., None]).sum(-1) ** (1 / p), 6),
        *(
            (
                poolgrad.lp_pool2d(leaf, p, 3),
                torch.nn.functional.lp_pool2d(exact, p, 3),
                6 if p < 4 else math.inf,
            )
            for p in norms
        ),
    ]
    gy = torch.randn(2, 3, 3, 3, generator=random)
    ulp = torch.finfo(torch.float32).eps
    for ours, theirs, each in pairs:
        (got,) = torch.autograd.grad(ours, leaf, gy, retain_graph=True)
        (expected,) = torch.autograd.grad(theirs, exact, gy.double(), retain_graph=True)
        apart, size = tiled((got - expected).abs()), tiled(expected.abs())
        assert (apart <= 3 * ulp * size.amax(-1, keepdim=True)).all()
        assert (apart <= each * ulp * size).all()


def test_definitions_of_mixtures_keep_their_ends() -> None:
    """The formula in PyTorch's operations, for higher derivatives, agrees with the kernel."""
    from poolgrad.torch.formulas import define

    pool = define(OPERATORS["mixed"], fixed(1, 4), False, (True,))
    x = torch.tensor([[[-math.inf, 1.0, 2.0, 3.0, math.inf, 1.0, 2.0, 3.0]]])
    for alpha in (0.0, 0.5, 1.0):
        y = pool(x, torch.tensor(alpha))
        assert torch.equal(y, poolgrad.mixed_pool1d(x, 4, alpha=alpha))
    assert y.tolist() == [[[3, math.inf]]]
