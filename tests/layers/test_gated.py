"""Gated and tree pooling: gates of 0 and 1 are the parts, between them is the mix."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad.torch import GatedPool2d, MixedPool2d, TreePool2d  # noqa: E402

WINDOWS = [(2, None, 0), (3, 2, 1), ((3, 2), (1, 2), (1, 0))]
windows = pytest.mark.parametrize("window", WINDOWS, ids=str)
PER = pytest.mark.parametrize("per", ["layer", "channel"])


def positive(*shape: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, dtype=torch.float64, generator=generator) + 0.1


def with_gates(layer: Any, value: float, name: str = "weight") -> Any:
    """The layer with masks of one value: of positive windows its sign opens or closes the gate."""
    with torch.no_grad():
        getattr(layer, name).fill_(value)
    return layer.double()


@windows
@PER
def test_open_and_closed_gates_are_maximum_and_average_to_the_last_bit(
    window: Any, per: str
) -> None:
    x = positive(2, 3, 8, 7)
    layer = GatedPool2d(3, *window, per=per)
    most, mean = poolgrad.max_pool2d(x, *window), poolgrad.avg_pool2d(x, *window)
    assert torch.equal(with_gates(layer, 1e5)(x), most)
    assert torch.equal(with_gates(layer, -1e5)(x), mean)
    half = with_gates(layer, 0)(x)
    torch.testing.assert_close(half, (most + mean) / 2)


@windows
def test_a_gate_that_does_not_respond_is_mixed_pooling(window: Any) -> None:
    x = positive(2, 3, 8, 7)
    mixed = MixedPool2d(*window, alpha=nn.Parameter(torch.tensor(0.5)))
    torch.testing.assert_close(GatedPool2d(3, *window).double()(x), mixed.double()(x))


@PER
def test_mixed_pooling_with_alpha_0_and_1_is_its_parts(per: str) -> None:
    x = positive(2, 3, 8, 7)
    shape = () if per == "layer" else (3,)
    for alpha, part in ((0.0, poolgrad.avg_pool2d), (1.0, poolgrad.max_pool2d)):
        layer = MixedPool2d(2, alpha=nn.Parameter(torch.full(shape, alpha))).double()
        torch.testing.assert_close(layer(x), part(x, 2))


@windows
@PER
def test_gates_are_the_formula_of_the_paper(window: Any, per: str) -> None:
    """For each window: sigmoid(w . x), the scalar product over its padded values."""
    torch.manual_seed(0)
    layer = with_gates(GatedPool2d(3, *window, per=per), 0)
    nn.init.normal_(layer.weight)
    x = torch.randn(2, 3, 8, 7, dtype=torch.float64)
    kernel, stride, padding = layer.kernel_size, layer.stride, layer.padding
    taps = nn.functional.unfold(x, kernel, 1, padding, stride).unflatten(1, (3, -1))
    gate = (layer.weight.flatten(1)[..., None] * taps).sum(2).sigmoid()
    most = poolgrad.max_pool2d(x, *window)
    gate = gate.reshape(most.shape)
    expected = gate * most + (1 - gate) * poolgrad.avg_pool2d(x, kernel, stride, padding)
    torch.testing.assert_close(layer(x), expected)


@windows
@PER
def test_gates_of_a_tree_choose_a_leaf(window: Any, per: str) -> None:
    torch.manual_seed(1)
    layer, x = TreePool2d(3, *window, per=per), positive(2, 3, 8, 7)
    left, right = (leaf(layer, x, i) for i in range(2))
    assert torch.equal(with_gates(layer, 1e5, "gates")(x), left)
    assert torch.equal(with_gates(layer, -1e5, "gates")(x), right)
    torch.testing.assert_close(with_gates(layer, 0, "gates")(x), (left + right) / 2)


def leaf(layer: Any, x: Any, index: int) -> Any:
    """What one filter of a tree gives: a depthwise convolution."""
    weight = layer.leaves[:, index, None].detach().double().expand(3, 1, -1, -1)
    return nn.functional.conv2d(x, weight, None, layer.stride, layer.padding, groups=3)


def test_a_deep_tree_takes_every_way() -> None:
    """Three gates, each open to the left or to the right."""
    torch.manual_seed(2)
    layer, x = TreePool2d(3, 3, 2, 1, depth=3).double(), positive(2, 3, 8, 7)
    assert layer.leaves.shape == (1, 4, 3, 3)
    assert layer.gates.shape == (1, 3, 3, 3)
    for root in (0, 1):
        for below in (0, 1):
            with torch.no_grad():
                layer.gates[:, 0] = 1e5 * (1 - 2 * root)
                layer.gates[:, 1 + root] = 1e5 * (1 - 2 * below)
                layer.gates[:, 2 - root] = 0.3
            torch.testing.assert_close(layer(x), leaf(layer, x, 2 * root + below))


def test_a_tree_of_one_leaf_is_a_filter() -> None:
    layer, x = TreePool2d(3, depth=1).double(), positive(2, 3, 8, 8)
    torch.testing.assert_close(layer(x), leaf(layer, x, 0))
    assert layer.gates.numel() == 0
    with torch.no_grad():
        layer.leaves.fill_(1 / 4)
    torch.testing.assert_close(layer(x), poolgrad.avg_pool2d(x, 2))


def test_a_tree_begins_near_the_average() -> None:
    torch.manual_seed(3)
    x = positive(2, 3, 8, 8)
    ratio = TreePool2d(3, depth=4).double()(x) / poolgrad.avg_pool2d(x, 2)
    assert ((ratio > 0.8) & (ratio < 1.2)).all()


@pytest.mark.parametrize(
    ("layer", "count"),
    [
        (GatedPool2d(8, 3), 9),
        (GatedPool2d(8, 3, per="channel"), 72),
        (TreePool2d(8, 3, depth=2), 27),
        (TreePool2d(8, 3, depth=3), 63),
        (TreePool2d(8, 3, depth=2, per="channel"), 216),
    ],
    ids=str,
)
def test_numbers_of_parameters(layer: Any, count: int) -> None:
    assert sum(p.numel() for p in layer.parameters()) == count


@pytest.mark.parametrize("kind", [GatedPool2d, TreePool2d])
@PER
def test_they_learn(kind: Any, per: str) -> None:
    """A gate comes to open for windows that another layer opens it for."""
    torch.manual_seed(4)
    teacher, layer = kind(2, per=per), kind(2, per=per)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.add_(torch.randn_like(parameter))
    x = torch.randn(32, 2, 8, 8)
    descent = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(150):
        descent.zero_grad()
        loss = nn.functional.mse_loss(layer(x), teacher(x))
        loss.backward()
        descent.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


@pytest.mark.parametrize("kind", [GatedPool2d, TreePool2d])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"channels": 0}, "channels must be positive, got 0"),
        ({"channels": 2.0}, "channels must be an integer"),
        ({"kernel_size": 0}, "kernel_size must be positive"),
        ({"stride": -1}, "stride must be positive"),
        ({"padding": 2}, r"padding must be from 0 to half of kernel_size=\(2, 2\), got 2"),
        ({"per": "region"}, "per must be one of 'layer', 'channel', got 'region'"),
    ],
)
def test_bad_arguments(kind: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        kind(**{"channels": 3, **arguments})


def test_bad_depths() -> None:
    with pytest.raises(ValueError, match="depth must be positive, got 0"):
        TreePool2d(3, depth=0)
    with pytest.raises(ValueError, match="depth must be at most 10, got 11"):
        TreePool2d(3, depth=11)


@pytest.mark.parametrize("kind", [GatedPool2d, TreePool2d])
def test_bad_maps(kind: Any) -> None:
    with pytest.raises(ValueError, match="x must have 3 channels, got"):
        kind(3)(positive(1, 2, 4, 4))
    with pytest.raises(ValueError, match="must fit into the padded map of 1 x 4"):
        kind(3)(positive(1, 3, 1, 4))
