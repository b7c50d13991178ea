"""Attention pooling: its definition, permutations of positions, equal weights, and errors."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from layer_checks import (  # noqa: E402
    check_compiled,
    check_copies,
    check_exported,
    check_gradients,
    check_unbatched,
    distinct,
    exporters,
)
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from poolgrad.torch.layers import attention  # noqa: E402
from poolgrad.torch.layers.attention import (  # noqa: E402
    AttentionPool2d,
    AttentionPoolLatent,
    MultiHeadAttention,
)

SIZE = (3, 4)
LAYERS: dict[str, Any] = {
    "AttentionPool2d": lambda channels=8, **how: AttentionPool2d(channels, SIZE, **how),
    "AttentionPoolLatent": AttentionPoolLatent,
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def made(name: str, channels: int = 8, **how: Any) -> Any:
    """A layer in float64, its parameters always the same, none of them zero."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = LAYERS[name](channels, **how).double()
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.5)
    return layer


def image(channels: int = 8) -> torch.Tensor:
    return distinct(2, channels, *SIZE) - 1


def permuted(x: torch.Tensor, seed: int) -> torch.Tensor:
    """The same positions in another order."""
    order = torch.randperm(math.prod(SIZE), generator=torch.Generator().manual_seed(seed))
    return x.flatten(-2)[..., order].reshape(x.shape)


def make_equal(layer: Any) -> None:
    """Let all positions have the same weight."""
    for projection in (layer.attention.query, layer.attention.key):
        nn.init.zeros_(projection.weight)
        nn.init.zeros_(projection.bias)


def make_identity(projection: nn.Linear) -> None:
    nn.init.eye_(projection.weight)
    nn.init.zeros_(projection.bias)


# The definitions


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention_is_what_pytorchs_module_computes(heads: int) -> None:
    """With the same projections."""
    theirs = nn.MultiheadAttention(8, heads, batch_first=True).double()
    ours = MultiHeadAttention(8, heads, 8).double()
    with torch.no_grad():
        theirs.in_proj_bias.normal_()
        theirs.out_proj.bias.normal_()
        for k, projection in enumerate((ours.query, ours.key, ours.value)):
            projection.weight.copy_(theirs.in_proj_weight.chunk(3)[k])
            projection.bias.copy_(theirs.in_proj_bias.chunk(3)[k])
        ours.output.load_state_dict(theirs.out_proj.state_dict())
    queries, tokens = distinct(2, 3, 8) - 1, distinct(2, 5, 8, seed=1) - 1
    torch.testing.assert_close(ours(queries, tokens), theirs(queries, tokens, tokens)[0])


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_pool_by_hand(heads: int) -> None:
    """As CLIP's paper describes it, with plain matrix products."""
    layer, x = made("AttentionPool2d", heads=heads, out_channels=5), image()
    tokens = x.flatten(2).transpose(1, 2)
    tokens = torch.cat([tokens.mean(1, keepdim=True), tokens], 1) + layer.positions
    projections = layer.attention
    q, k, v = (p(tokens) for p in (projections.query, projections.key, projections.value))
    width = 8 // heads
    parts = []
    for h in range(heads):
        here = slice(h * width, (h + 1) * width)
        scores = q[:, :1, here] @ k[..., here].transpose(1, 2) / math.sqrt(width)
        parts.append(scores.softmax(-1) @ v[..., here])
    expected = projections.output(torch.cat(parts, -1))[:, 0]
    torch.testing.assert_close(layer(x), expected)


def test_latent_pool_by_hand() -> None:
    layer, x = made("AttentionPoolLatent", heads=2, latents=3, out_channels=5), image()
    tokens, queries = x.flatten(2).transpose(1, 2), layer.queries.expand(2, 3, 8)
    hidden = layer.norm(queries + layer.attention(queries, tokens))
    rows = layer.norm_out(hidden + layer.feed_forward(hidden).relu())
    torch.testing.assert_close(layer(x), layer.projection(rows.reshape(2, 24)))


@each_layer
def test_scaled_dot_product_attention_is_inside(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def watched(*args: Any) -> Any:
        calls.append([tuple(a.shape) for a in args])
        return functional.scaled_dot_product_attention(*args)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", watched)
    with torch.no_grad():  # it lacks second derivatives
        made(name, heads=2)(image())
    tokens = 12 + (name == "AttentionPool2d")
    assert calls == [[(2, 2, 1, 4), (2, 2, tokens, 4), (2, 2, tokens, 4)]]


# Permutations


@pytest.mark.parametrize("latents", [1, 3])
def test_latent_pool_does_not_depend_on_the_order(latents: int) -> None:
    layer, x = made("AttentionPoolLatent", heads=2, latents=latents), image()
    y = layer(x)
    for seed in range(5):
        torch.testing.assert_close(layer(permuted(x, seed)), y)
    torch.testing.assert_close(layer(x.transpose(2, 3)), y)


def test_attention_pool_depends_on_the_order_through_its_positions_only() -> None:
    layer, x = made("AttentionPool2d", heads=2), image()
    with_positions = layer(x)
    for seed in range(5):
        assert (layer(permuted(x, seed)) - with_positions).abs().max() > 1e-3
    nn.init.zeros_(layer.positions)
    y = layer(x)
    assert (y - with_positions).abs().max() > 1e-3
    for seed in range(5):
        torch.testing.assert_close(layer(permuted(x, seed)), y)


# Equal weights


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_attention_pool_with_equal_weights_is_the_average(heads: int) -> None:
    """The average of all tokens: that of the map, and their average once more."""
    layer, x = made("AttentionPool2d", heads=heads), image()
    make_equal(layer)
    nn.init.zeros_(layer.positions)
    make_identity(layer.attention.value)
    make_identity(layer.attention.output)
    torch.testing.assert_close(layer(x), x.mean((2, 3)))


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_latent_attention_with_equal_weights_is_the_average(heads: int) -> None:
    layer, x = made("AttentionPoolLatent", heads=heads), image()
    unequal = layer(x)
    make_equal(layer)
    flat = x.mean((2, 3), keepdim=True).expand_as(x)
    torch.testing.assert_close(layer(x), layer(flat))  # the average is all that it sees
    assert (layer(x) - unequal).abs().max() > 1e-3
    make_identity(layer.attention.value)
    make_identity(layer.attention.output)
    attended = layer.attention(layer.queries.expand(2, 1, 8), x.flatten(2).transpose(1, 2))
    torch.testing.assert_close(attended[:, 0], x.mean((2, 3)))


# Shapes, parameters, gradients


@each_layer
def test_shapes(name: str) -> None:
    assert made(name)(image()).shape == (2, 8)
    assert made(name, out_channels=5)(image()).shape == (2, 5)
    check_unbatched(made(name, heads=2, out_channels=5), image())
    latent = made("AttentionPoolLatent", latents=3)
    assert latent(image()).shape == (2, 24)
    assert latent(distinct(2, 8, 1, 1)).shape == latent(distinct(2, 8, 9, 2)).shape == (2, 24)


def test_default_heads() -> None:
    """Of 64 channels, or wider where that does not divide the channels."""
    for channels, heads in ((8, 1), (64, 1), (128, 2), (100, 1), (192, 3), (200, 2), (2048, 32)):
        assert AttentionPoolLatent(channels).heads == heads
    assert AttentionPool2d(128, 1).heads == 2


def test_parameter_counts() -> None:
    def count(layer: nn.Module) -> int:
        return sum(p.numel() for p in layer.parameters())

    linear = 8 * 8 + 8
    assert count(made("AttentionPool2d")) == 13 * 8 + 4 * linear
    assert count(made("AttentionPool2d", out_channels=5)) == 13 * 8 + 3 * linear + 8 * 5 + 5
    assert count(made("AttentionPoolLatent")) == 8 + 5 * linear + 2 * 16
    latent = made("AttentionPoolLatent", latents=3, out_channels=5)
    assert count(latent) == 24 + 5 * linear + 2 * 16 + 24 * 5 + 5


@each_layer
def test_gradients(name: str) -> None:
    check_gradients(made(name, 4, heads=2, out_channels=3), image(4))


def test_second_derivatives_with_the_unfused_kernel() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    layer = made("AttentionPoolLatent", 2)
    x = (distinct(1, 2, 2, 2) - 1).requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(layer, (x,))


@each_layer
def test_copies_and_compiler(name: str) -> None:
    x = image().float()
    check_copies(lambda: made(name, heads=2, out_channels=3).float(), x)
    check_compiled(made(name, heads=2, out_channels=3).float(), x)


@each_layer
@exporters
def test_exported(name: str, dynamo: bool) -> None:
    check_exported(made(name, heads=2, out_channels=3).float(), image().float(), dynamo)


@each_layer
def test_bad_arguments(name: str) -> None:
    layer = LAYERS[name]
    for argument in ("channels", "heads", "out_channels"):
        for value in ("two", 1.5, True):
            with pytest.raises(TypeError, match=f"^{argument} must be an integer, got"):
                layer(**{"channels": 8, argument: value})
        with pytest.raises(ValueError, match=f"^{argument} must be positive, got 0"):
            layer(**{"channels": 8, argument: 0})
    with pytest.raises(ValueError, match=r"^heads must divide the 8 channels, got 3"):
        layer(8, heads=3)
    with pytest.raises(ValueError, match=r"^x must have 8 channels.*got 4 \(shape \(2, 4, 3, 4\)"):
        layer(8)(image(4).float())
    with pytest.raises(ValueError, match=r"^x must have the shape \(N, C, H, W\) or"):
        layer(8)(torch.ones(2, 8))


def test_bad_sizes() -> None:
    for value in ("two", 1.5, None):
        with pytest.raises(TypeError, match=r"^size must be an integer or a sequence of 2"):
            AttentionPool2d(8, value)
    with pytest.raises(ValueError, match=r"^size must be positive"):
        AttentionPool2d(8, (3, 0))
    with pytest.raises(ValueError, match=r"^x must have height and width \(3, 4\).*\(2, 8, 4, 3\)"):
        AttentionPool2d(8, SIZE)(image().float().transpose(2, 3))
    for value in ("two", 1.5, True, None):
        with pytest.raises(TypeError, match=r"^latents must be an integer, got"):
            AttentionPoolLatent(8, latents=value)
    with pytest.raises(ValueError, match=r"^latents must be positive, got 0"):
        AttentionPoolLatent(8, latents=0)


@each_layer
def test_second_derivatives_of_a_plain_backward_pass(name: str) -> None:
    layer, x = made(name), image().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that create_graph keeps memory
        layer(x).sum().backward(create_graph=True)
    (second,) = torch.autograd.grad(x.grad.square().sum(), x)
    assert second.abs().max() > 0
    small = image()[:1].requires_grad_()
    assert torch.autograd.gradgradcheck(layer, (small,))
    assert torch.autograd.gradcheck(layer, (small,), check_forward_ad=True)


@each_layer
def test_derivatives_of_forward_mode(name: str) -> None:
    layer, x = made(name), image()[:1]
    direction = distinct(*x.shape) - 0.5

    def loss(x: torch.Tensor) -> torch.Tensor:
        return layer(x).sin().sum()

    def slope(x: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(loss, (x,), (direction,))[1]

    gradient = torch.func.grad(loss)
    step = 1e-5 * direction
    expected = (gradient(x + step) - gradient(x - step)) / 2e-5
    torch.testing.assert_close(torch.func.grad(slope)(x), expected, rtol=1e-6, atol=1e-7)
    along = torch.func.jvp(slope, (x,), (direction,))[1]
    torch.testing.assert_close(along, (expected * direction).sum(), rtol=1e-6, atol=1e-7)


@each_layer
def test_without_gradients_the_fused_attention_computes_the_same(name: str) -> None:
    layer, x = made(name), image()
    with torch.no_grad():
        y = layer(x)
    torch.testing.assert_close(y, layer(x))
