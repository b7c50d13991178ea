"""Stochastic pooling and S3Pool: the mean of 10,000 draws, seeds, gradients and errors.

The bounds on means are five standard errors, which a right sampler leaves once in two million
comparisons.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest

import poolgrad

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from layer_checks import (  # noqa: E402
    check_exported,
    check_gradients,
    check_unbatched,
    distinct,
    exporters,
)
from torch.nn import functional  # noqa: E402

from poolgrad.torch import StochasticPool1d, StochasticPool2d, StochasticPool3d  # noqa: E402
from poolgrad.torch.layers.stochastic import S3Pool2d, _drawn  # noqa: E402

N = 10_000
LAYERS: dict[str, Any] = {"StochasticPool2d": StochasticPool2d, "S3Pool2d": S3Pool2d}
each_layer = pytest.mark.parametrize("name", LAYERS)
GRIDS = [
    {},
    {"kernel_size": 3, "stride": 2},
    {"grid_size": 4},
    {"kernel_size": (2, 3), "stride": (2, 1), "grid_size": (4, 3)},
]


def assert_means_agree(drawn: torch.Tensor, expected: torch.Tensor) -> None:
    bound = 5 * drawn.std(0) / len(drawn) ** 0.5
    assert ((drawn.mean(0) - expected).abs() <= bound + 1e-9).all()
    assert (bound > 0).any()


# The expectation


def test_the_mean_of_stochastic_draws_is_what_evaluation_gives() -> None:
    x = distinct(1, 2, 6, 6) - 0.7  # some values are negative: they are never drawn
    layer = StochasticPool2d(3, generator=1)
    drawn = layer(x.expand(N, -1, -1, -1))
    assert_means_agree(drawn, layer.eval()(x)[0])
    windows = functional.unfold(x.transpose(0, 1), 3, stride=3)  # (C, 9, outputs)
    chances = windows.clamp(min=0)
    by_hand = (chances * windows).sum(1) / chances.sum(1)
    torch.testing.assert_close(layer(x)[0], by_hand.reshape(2, 2, 2))


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (GRIDS[0], (8, 8)),
        (GRIDS[3], (7, 9)),
        pytest.param(GRIDS[1], (7, 9), marks=pytest.mark.slow),
        pytest.param(GRIDS[2], (7, 9), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_mean_of_s3_draws_is_what_evaluation_gives(given: Any, size: Any) -> None:
    x = distinct(1, 1, *size)
    layer = S3Pool2d(**given, generator=torch.Generator().manual_seed(3))
    drawn = torch.cat([layer(x) for _ in range(N)])
    assert_means_agree(drawn, layer.eval()(x)[0])


@pytest.mark.parametrize("size", [4, 5])
def test_the_mean_of_s3_draws_is_the_mean_of_all_choices(size: int) -> None:
    """Every choice of rows and columns once, enumerated."""
    x = distinct(1, 1, size, size)
    maxima = functional.max_pool2d(functional.pad(x, (0, 1, 0, 1), value=-torch.inf), 2, 1)
    choices = [[*pair] for pair in itertools.combinations(range(4), 2)]
    if size == 5:  # the last strip is one row, which is always kept
        choices = [[*pair, 4] for pair in choices]
    every = [maxima[..., r, :][..., c] for r in choices for c in choices]
    layer = S3Pool2d(2, grid_size=4).eval()
    torch.testing.assert_close(layer(x), torch.stack(every).mean(0))


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (1, 1), (1, 5)], ids=str)
def test_evaluation_is_the_average_of_blocks(size: Any) -> None:
    """Where one row of each strip is kept."""
    x = distinct(2, 3, *size)
    maxima = functional.max_pool2d(functional.pad(x, (0, 1, 0, 1), value=-torch.inf), 2, 1)
    expected = functional.avg_pool2d(maxima, 2, ceil_mode=True)
    torch.testing.assert_close(S3Pool2d(2).eval()(x), expected)


def test_evaluation_computes_the_same_elsewhere() -> None:
    """The operations for other devices and for export."""
    for given in GRIDS:
        layer, x = S3Pool2d(**given).eval(), distinct(2, 3, 7, 9)
        y = layer(x)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("poolgrad.torch.layers.stochastic.pools", lambda x: False)
            torch.testing.assert_close(layer(x), y)


# What is drawn


@pytest.mark.parametrize("given", GRIDS, ids=str)
@pytest.mark.parametrize("size", [(8, 8), (7, 9), (1, 1), (3, 2)], ids=str)
def test_rows_and_columns_are_kept_in_order(given: Any, size: Any) -> None:
    layer = S3Pool2d(**given)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        for axis, n in enumerate(size):
            stride, grid = layer.stride[axis], layer.grid_size[axis]
            kept = _drawn(n, stride, grid, generator, generator.device)
            assert len(kept) == -(-n // stride)
            assert (kept.diff() > 0).all()
            in_strip = torch.bincount(kept // grid, minlength=-(-n // grid))
            sizes = [min(grid, n - first) for first in range(0, n, grid)]
            assert in_strip.tolist() == [-(-s // stride) for s in sizes]
    y = layer(distinct(2, 3, *size))
    assert y.shape == (2, 3, *(-(-n // s) for n, s in zip(size, layer.stride, strict=True)))


def test_s3_selects_from_the_maxima() -> None:
    """With values that name their row and column."""
    x = (10 * torch.arange(8.0)[:, None] + torch.arange(8.0)).expand(2, 3, 8, 8)
    y = S3Pool2d(1, 2, generator=5)(x)
    assert torch.equal(y, y[:1, :1].expand(2, 3, 4, 4))  # one draw for all maps
    assert torch.equal(y % 10, (y % 10)[..., :1, :].expand_as(y))
    assert torch.equal(y // 10, (y // 10)[..., :1].expand_as(y))


# Seeds


@each_layer
def test_a_seed_gives_the_same_draw(name: str) -> None:
    x = distinct(2, 3, 16, 16)
    layer = LAYERS[name](2, generator=7)
    y = layer(x)
    state = torch.get_rng_state()
    assert torch.equal(layer(x), y)
    assert torch.equal(LAYERS[name](2, generator=7)(x), y)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(LAYERS[name](2, generator=8)(x), y)


@each_layer
def test_manual_seed_gives_the_same_draws(name: str) -> None:
    x, layer = distinct(2, 3, 16, 16), LAYERS[name](2)
    with torch.random.fork_rng():
        made = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            made.append((layer(x), layer(x)))
    assert torch.equal(made[0][0], made[1][0])
    assert torch.equal(made[0][1], made[1][1])
    assert not torch.equal(made[0][0], made[0][1])
    assert not torch.equal(made[0][0], made[2][0])


@each_layer
def test_a_generator_moves_on_and_can_be_made_again(name: str) -> None:
    x = distinct(2, 3, 16, 16)
    a, b = (LAYERS[name](2, generator=torch.Generator().manual_seed(4)) for _ in range(2))
    first, second = a(x), a(x)
    assert not torch.equal(first, second)
    assert torch.equal(b(x), first)
    assert torch.equal(b(x), second)


@each_layer
def test_the_default_dtype_does_not_matter(name: str) -> None:
    x, layer = distinct(2, 3, 16, 16), LAYERS[name](2, generator=7)
    y = layer(x)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(layer(x), y)
    finally:
        torch.set_default_dtype(torch.float32)


# Gradients and the rest


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("given", GRIDS, ids=str)
def test_gradients(given: Any, training: bool) -> None:
    check_gradients(S3Pool2d(**given, generator=2).train(training), distinct(2, 2, 5, 4))


@pytest.mark.parametrize("training", [False, True])
def test_gradients_of_stochastic_pooling(training: bool) -> None:
    check_gradients(StochasticPool2d(2, generator=2).train(training), distinct(2, 2, 5, 4))


def test_the_gradient_goes_to_the_maxima_that_were_kept() -> None:
    x = distinct(1, 1, 8, 8).requires_grad_()
    y = S3Pool2d(2, generator=3)(x)
    y.sum().backward()
    for value in y.unique():
        assert x.grad[x == value] == (y == value).sum()
    assert x.grad.sum() == y.numel()


@pytest.mark.parametrize("given", GRIDS, ids=str)
@exporters
def test_evaluation_is_exported(given: Any, dynamo: bool) -> None:
    kinds = check_exported(S3Pool2d(**given), distinct(2, 3, 7, 9).float(), dynamo)
    assert "MaxPool" in kinds


@pytest.mark.parametrize(
    ("dims", "given"),
    [
        (1, {"kernel_size": 3}),
        (2, {"kernel_size": 3, "stride": 2, "padding": 1}),
        (2, {"kernel_size": (2, 3), "ceil_mode": True}),
        (3, {"kernel_size": 2}),
    ],
    ids=str,
)
@exporters
def test_the_mean_of_stochastic_pooling_is_exported(dims: int, given: Any, dynamo: bool) -> None:
    """Windows with positive inputs only, with some, and with none, very large ones, too."""
    pool = {1: StochasticPool1d, 2: StochasticPool2d, 3: StochasticPool3d}[dims]
    for scale in (1.0, 1e30):
        x = (distinct(2, 3, *(7, 6, 5)[:dims]) - 1) * scale
        x[0, 0].abs_()
        x[0, 1].abs_().neg_()
        check_exported(pool(**given), x.float(), dynamo)


def test_copies_and_unbatched_maps() -> None:
    layer, x = S3Pool2d(2, generator=3), distinct(2, 3, 8, 8)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert layer.state_dict() == {}
    check_unbatched(layer, x)


SIZES = [(8, 8), (7, 10), (12, 9)]
S3_LAYERS = {
    "drawn": lambda: S3Pool2d(2),
    "drawn from strips": lambda: S3Pool2d(2, grid_size=4),
    "mean": lambda: S3Pool2d(2, grid_size=4).eval(),
}


def _same(layer: Any, traced: Any, sizes: Any = SIZES) -> None:
    with torch.random.fork_rng():
        for size in sizes:
            made = []
            for call in (layer, traced):
                torch.manual_seed(2)
                made.append(call(distinct(2, 3, *size)))
            assert torch.equal(*made)


@pytest.mark.parametrize(
    "name", ["drawn", "mean", pytest.param("drawn from strips", marks=pytest.mark.slow)]
)
def test_compiled_for_several_sizes(name: str) -> None:
    torch.compiler.reset()
    layer = S3_LAYERS[name]()
    _same(layer, torch.compile(layer, fullgraph=True, backend="aot_eager"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", S3_LAYERS)
def test_traced(name: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    layer, x = S3_LAYERS[name](), distinct(2, 3, *SIZES[0])
    _same(layer, torch.jit.trace(layer, x, check_trace=False), SIZES[:1])
    _same(layer, make_fx(layer, tracing_mode="symbolic")(x), SIZES[:1])


@pytest.mark.parametrize(
    "pool",
    [
        S3Pool2d(2, generator=3),
        lambda x: poolgrad.fractional_max_pool2d(x, 2, output_size=3, generator=3),
    ],
)
def test_a_seed_draws_the_same_in_every_call(pool: Any) -> None:
    """Under transformations, for which draws without a seed are errors, and on the device meta."""
    x = distinct(3, 2, 3, 8, 8)
    assert torch.equal(torch.func.vmap(pool)(x)[1], pool(x[1]))
    gradient = torch.func.grad(lambda x: pool(x).sum())
    assert torch.equal(torch.func.vmap(gradient)(x)[1], gradient(x[1]))
    assert pool(x[0].to("meta")).shape == pool(x[0]).shape


def test_bad_arguments() -> None:
    for name in ("kernel_size", "stride", "grid_size"):
        for value in ("two", 1.5, True):
            with pytest.raises(TypeError, match=f"^{name} must be an integer or a sequence of 2"):
                S3Pool2d(**{name: value})
        for value in (0, -2, (2, 0)):
            with pytest.raises(ValueError, match=f"^{name} must be positive, got"):
                S3Pool2d(**{name: value})
        with pytest.raises(ValueError, match=f"^{name} must be an integer or a sequence of 2"):
            S3Pool2d(**{name: (2, 2, 2)})
    for value in (3, 1, (4, 3)):
        with pytest.raises(ValueError, match=r"^grid_size must be a multiple of the stride \(2, 2"):
            S3Pool2d(2, grid_size=value)
    for value in ("seed", 1.5, True):
        with pytest.raises(TypeError, match=r"^generator must be a torch\.Generator, a seed or"):
            S3Pool2d(generator=value)
    with pytest.raises(ValueError, match=r"^generator must be from 0 to"):
        S3Pool2d(generator=-1)
    with pytest.raises(ValueError, match=r"^x must have the shape \(N, C, H, W\) or"):
        S3Pool2d()(torch.ones(4, 4))
    with pytest.raises(TypeError, match=r"^x must be a tensor of floating-point"):
        S3Pool2d()(torch.ones(1, 1, 4, 4, dtype=torch.int32))
