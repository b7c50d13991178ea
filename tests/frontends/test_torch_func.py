"""torch.func: vmap, jvp, Jacobians and Hessians through pooling, in any order, along any axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import poolgrad

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# PyTorch's forward mode still imports torch.jit.script, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

POOLS: dict[str, Callable[[Any], Any]] = {
    "max-first": lambda x: poolgrad.max_pool2d(x, 2, 1),
    "max-split": lambda x: poolgrad.max_pool2d(x, 2, 1, ties="split"),
    "max-zero": lambda x: poolgrad.max_pool2d(x, 2, 1, ties="zero"),
    "max-indices": lambda x: poolgrad.max_pool2d(x, 2, 1, return_indices=True)[0],
    "avg": lambda x: poolgrad.avg_pool2d(x, 2, 1),
    "adaptive-max": lambda x: poolgrad.adaptive_max_pool2d(x, 3, ties="split"),
    "adaptive-avg": lambda x: poolgrad.adaptive_avg_pool2d(x, 3),
}
pools = pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
Pool = Callable[[Any], Any]


def tied(*shape: int, seed: int = 0) -> torch.Tensor:
    """Small integers, so that windows have ties; float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 3, shape, generator=generator).double()


def loss(pool: Pool) -> Callable[[Any], Any]:
    return lambda x: (pool(x) ** 3).sum()


def one_by_one(fun: Pool, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
    return torch.stack([fun(part) for part in x.unbind(dim)])


def jacobian(pool: Pool, x: torch.Tensor) -> torch.Tensor:
    """Row by row, by as many calls of backward."""
    x = x.detach().clone().requires_grad_()
    y = pool(x)
    rows = []
    for i in range(y.numel()):
        gy = torch.zeros(y.numel(), dtype=y.dtype)
        gy[i] = 1
        rows += torch.autograd.grad(y, x, gy.view_as(y), retain_graph=True)
    return torch.stack(rows).view(*y.shape, *x.shape)


@pools
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_vmap_of_values(pool: Pool, dim: int) -> None:
    x = tied(2, 3, 4, 5).movedim(0, dim).contiguous()
    got = torch.func.vmap(pool, in_dims=dim)(x)
    assert torch.equal(got, one_by_one(pool, x, dim))


@pools
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_vmap_of_gradients(pool: Pool, dim: int) -> None:
    gradient = torch.func.grad(loss(pool))
    x = tied(2, 3, 4, 5).movedim(0, dim).contiguous()
    got = torch.func.vmap(gradient, in_dims=dim)(x)
    assert torch.equal(got, one_by_one(gradient, x, dim))


@pools
@pytest.mark.parametrize("dim", [0, 3])
def test_vmap_of_gradients_where_all_sizes_agree(pool: Pool, dim: int) -> None:
    """Equal sizes hide axes that were mixed up from every check of shapes."""
    gradient = torch.func.grad(loss(pool))
    x = tied(3, 3, 4, 4).movedim(0, dim).contiguous()
    got = torch.func.vmap(gradient, in_dims=dim)(x)
    assert torch.equal(got, one_by_one(gradient, x, dim))


@pools
def test_vmap_of_gradients_of_slices(pool: Pool) -> None:
    """Every other example, and pooled axes that may pass for contiguous."""
    gradient = torch.func.grad(loss(pool))
    for x in (tied(6, 3, 4, 5)[::2], tied(4, 3, 2, 2)[::2], tied(4, 5, 6, 3).movedim(-1, 1)):
        assert torch.equal(torch.func.vmap(gradient)(x), one_by_one(gradient, x))


@pytest.mark.parametrize("ties", ["first", "split", "zero"])
def test_vmap_over_a_slice_of_single_pixels(ties: str) -> None:
    gradient = torch.func.grad(lambda x: (poolgrad.max_pool2d(x, 1, ties=ties) ** 3).sum())
    x = tied(4, 3, 1, 1)[::2]
    assert torch.equal(torch.func.vmap(gradient)(x), one_by_one(gradient, x))


@pools
def test_vmap_in_vmap(pool: Pool) -> None:
    gradient = torch.func.grad(loss(pool))
    x = tied(2, 3, 4, 5)
    got = torch.func.vmap(torch.func.vmap(gradient))(x)
    assert torch.equal(got, torch.stack([one_by_one(gradient, v) for v in x]))


@pools
@pytest.mark.parametrize("method", ["jacrev", "jacfwd"])
@pytest.mark.parametrize("memory", ["contiguous_format", "channels_last"])
def test_jacobians(pool: Pool, method: str, memory: str) -> None:
    x = tied(1, 2, 4, 5).contiguous(memory_format=getattr(torch, memory))
    assert torch.equal(getattr(torch.func, method)(pool)(x), jacobian(pool, x))


@pools
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_vectorized_jacobians(pool: Pool, strategy: str) -> None:
    x = tied(2, 4, 5)
    got = torch.autograd.functional.jacobian(pool, x, vectorize=True, strategy=strategy)
    assert torch.equal(got, jacobian(pool, x))


HESSIANS = {
    "hessian": torch.func.hessian,
    "rev-over-rev": lambda f: torch.func.jacrev(torch.func.grad(f)),
    "fwd-over-rev": lambda f: torch.func.jacfwd(torch.func.grad(f)),
    "rev-over-fwd": lambda f: torch.func.jacrev(torch.func.jacfwd(f)),
    "fwd-over-fwd": lambda f: torch.func.jacfwd(torch.func.jacfwd(f)),
}


@pools
@pytest.mark.parametrize("method", HESSIANS)
def test_hessians(pool: Pool, method: str) -> None:
    """Pooling is linear between ties, so the Hessian of the sum of cubes is J' diag(6 y) J."""
    x = tied(2, 3, 4)
    flat = jacobian(pool, x).reshape(pool(x).numel(), x.numel())
    expected = flat.T @ (6 * pool(x).reshape(-1, 1) * flat)
    got = HESSIANS[method](loss(pool))(x).reshape(x.numel(), x.numel())
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=1e-13)  # float64


@pools
@pytest.mark.parametrize("memory", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("tangent_memory", ["contiguous_format", "channels_last"])
def test_jvp_with_a_tangent_of_another_format(pool: Pool, memory: str, tangent_memory: str) -> None:
    x = tied(2, 3, 4, 5).contiguous(memory_format=getattr(torch, memory))
    t = tied(2, 3, 4, 5, seed=1).contiguous(memory_format=getattr(torch, tangent_memory))
    y, ty = torch.func.jvp(pool, (x,), (t,))
    assert torch.equal(y, pool(x))
    expected = (jacobian(pool, x).reshape(y.numel(), -1) @ t.reshape(-1)).view_as(y)
    torch.testing.assert_close(ty, expected, rtol=1e-14, atol=1e-14)  # float64
    assert ty.is_contiguous(memory_format=getattr(torch, memory))


@pools
def test_vmap_of_jvp_over_tangents_alone(pool: Pool) -> None:
    """The input and its routes stay, only tangents are many."""
    x, tangents = tied(2, 4, 5), tied(6, 2, 4, 5, seed=2)
    jvp = lambda t: torch.func.jvp(pool, (x,), (t,))[1]  # noqa: E731
    assert torch.equal(torch.func.vmap(jvp)(tangents), one_by_one(jvp, tangents))


@pools
def test_vmap_of_vjp_over_gradients_alone(pool: Pool) -> None:
    x = tied(2, 4, 5)
    y, pullback = torch.func.vjp(pool, x)
    gy = tied(6, *y.shape, seed=3)
    got = torch.func.vmap(lambda g: pullback(g)[0])(gy)
    assert torch.equal(got, one_by_one(lambda g: pullback(g)[0], gy))


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
@pytest.mark.parametrize("ties", ["first", "split", "zero"])
def test_vmap_of_indices(ties: str, dim: int) -> None:
    x = tied(2, 3, 4, 5)
    expected = torch.nn.functional.max_pool2d(x, 2, 1, return_indices=True)[1]
    got = torch.func.vmap(
        lambda v: poolgrad.max_pool2d(v, 2, 1, ties=ties, return_indices=True)[1], in_dims=dim
    )(x.movedim(0, dim).contiguous())
    assert torch.equal(got, expected)


IMAGE = tied(2, 3, 6, 6)
DRAWN: dict[str, Callable[[Any], Any]] = {
    "lp": lambda x: poolgrad.lp_pool2d(x, 3.0, 2),
    "log_mean_exp": lambda x: poolgrad.log_mean_exp_pool2d(x, 2, r=torch.ones(3, dtype=x.dtype)),
    "range": lambda x: poolgrad.range_pool2d(x, 2),
    "stochastic": lambda x: poolgrad.stochastic_pool2d(x, 2, generator=1),
    "roi_align": lambda x: poolgrad.roi_align(x, torch.zeros(2, 5), 2),
    "roi_pool": lambda x: poolgrad.roi_pool(x, torch.zeros(2, 5), 2),
}


@pytest.mark.parametrize("pool", (POOLS | DRAWN).values(), ids=POOLS | DRAWN)
def test_functionalize(pool: Pool) -> None:
    x = tied(2, 3, 6, 6)
    functional = torch.func.functionalize(pool)
    torch.testing.assert_close(functional(x), pool(x))
    torch.testing.assert_close(torch.func.vmap(functional)(x[None]), pool(x)[None])
    leaves = x.clone().requires_grad_(), x.clone().requires_grad_()
    functional(leaves[0]).sum().backward()
    pool(leaves[1]).sum().backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


@pytest.mark.parametrize(
    "transform", [torch.func.grad, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))]
)
def test_functionalize_with_derivatives_is_an_error(transform: Any) -> None:
    pool = transform(lambda x: poolgrad.max_pool2d(x, 2).sum())
    with pytest.raises(RuntimeError, match="Functionalize"):
        torch.func.functionalize(pool)(tied(2, 3, 6, 6))


@pytest.mark.parametrize("pool", (POOLS | DRAWN).values(), ids=POOLS | DRAWN)
def test_vmap_of_an_empty_batch(pool: Pool) -> None:
    x = tied(0, 2, 3, 6, 6)
    y = torch.func.vmap(pool)(x)
    assert y.shape == (0, *pool(tied(2, 3, 6, 6)).shape)
    assert torch.func.vmap(torch.func.grad(loss(pool)))(x).shape == x.shape


@pytest.mark.parametrize(
    "pool",
    [
        lambda r: poolgrad.log_mean_exp_pool2d(IMAGE, 2, r=r[0, :3]),
        lambda b: poolgrad.roi_align(IMAGE, b, 2),
        lambda b: poolgrad.roi_pool(IMAGE, b, 2),
    ],
)
def test_vmap_of_an_empty_batch_of_operands(pool: Pool) -> None:
    y = torch.func.vmap(pool)(torch.ones(0, 4, 5))
    assert y.shape == (0, *pool(torch.ones(4, 5)).shape)


def test_samples_have_the_tangent_zero() -> None:
    x, samples = tied(2, 3, 8, 8), torch.rand(2, 3, 2, dtype=torch.float64)

    def pool(samples: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = poolgrad.fractional_max_pool2d(
            x, 2, output_size=3, _random_samples=samples
        )
        return y

    y, t = torch.func.jvp(pool, (samples,), (samples,))
    assert torch.equal(y, pool(samples))
    assert torch.equal(t, torch.zeros_like(y))
    assert not torch.func.jacfwd(pool)(samples).count_nonzero()
    assert not torch.func.hessian(lambda s: pool(s).sum())(samples).count_nonzero()


def test_a_batching_rule_may_pool() -> None:
    """It calls with plain tensors while the transformation is active."""

    @torch.library.custom_op("poolgrad_tests::pooled", mutates_args=())
    def pooled(x: torch.Tensor) -> torch.Tensor:
        return poolgrad.max_pool2d(x, 2).clone()

    @pooled.register_vmap
    def rule(info: Any, in_dims: Any, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        x = x.movedim(in_dims[0], 0)
        y = poolgrad.max_pool2d(x.flatten(0, 1), 2)
        return y.unflatten(0, x.shape[:2]), 0

    x = torch.rand(3, 2, 4, 8, 8)
    expected = torch.stack([poolgrad.max_pool2d(image, 2) for image in x])
    assert torch.equal(torch.func.vmap(pooled)(x), expected)
