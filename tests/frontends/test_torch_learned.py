"""Learned arguments of modules: numbers, tensors and parameters."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import numpy as np
import pytest

import poolgrad

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import poolgrad.torch as layers  # noqa: E402

KINDS = {
    "LPPool": ("norm_type", {"kernel_size": 2, "mean": True}),
    "LogMeanExpPool": ("r", {"kernel_size": 2}),
    "MixedPool": ("alpha", {"kernel_size": 2}),
    "GlobalLPPool": ("norm_type", {"mean": True}),
    "GlobalLogMeanExpPool": ("r", {}),
}
CHANNELS = 3
each_module = pytest.mark.parametrize(
    ("kind", "dims"), [(kind, dims) for kind in KINDS for dims in (1, 2, 3)]
)
each_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind: str, dims: int, value: Any, **extras: Any) -> tuple[Any, str]:
    """A layer, and what its learned argument is called."""
    argument, settings = KINDS[kind]
    layer = getattr(layers, f"{kind}{dims}d")(**{argument: value, **settings, **extras})
    return layer, argument


def parameter(value: float = 2.0, channels: int | None = CHANNELS) -> nn.Parameter:
    return nn.Parameter(torch.full(() if channels is None else (channels,), value))


def images(dims: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(2, CHANNELS, *[4] * dims, generator=generator)


def function_of(kind: str, dims: int) -> Any:
    name = next(f for f, c in layers.MODULES.items() if c.__name__ == f"{kind}2d")
    return getattr(poolgrad, name.replace("2d", f"{dims}d"))


@pytest.mark.parametrize("channels", [None, CHANNELS])
@each_module
def test_a_parameter_is_learned(kind: str, dims: int, channels: int | None) -> None:
    """Every step of gradient descent comes closer to the value that another layer has."""
    layer, argument = made(kind, dims, parameter(2.0, channels))
    teacher, _ = made(kind, dims, 1.0)
    assert list(dict(layer.named_parameters())) == [argument]
    descent = torch.optim.SGD(layer.parameters(), lr=0.3)
    x, losses = 3 * images(dims), []
    for _ in range(10):
        descent.zero_grad()
        loss = nn.functional.mse_loss(layer(x), teacher(x))
        loss.backward()
        descent.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.99 * losses[0]
    distance = getattr(layer, argument) - 1
    assert ((distance > -1e-3) & (distance < 1)).all()


@each_module
def test_forms_of_the_argument_agree(kind: str, dims: int) -> None:
    x = images(dims)
    number, argument = made(kind, dims, 2.5)
    expected = number(x)
    assert number.state_dict() == {}
    for value in (torch.tensor(2.5), torch.full((CHANNELS,), 2.5)):
        for given in (value, value.tolist(), value.numpy()):
            layer, _ = made(kind, dims, given)
            plain = not isinstance(given, torch.Tensor)
            assert [name for name, _ in layer.named_buffers()] == [argument] * (not plain)
            assert list(layer.parameters()) == []
            torch.testing.assert_close(layer(x), expected)
        layer, _ = made(kind, dims, nn.Parameter(value))
        assert list(layer.buffers()) == []
        torch.testing.assert_close(layer(x), expected)
    function = function_of(kind, dims)
    settings = KINDS[kind][1]
    assert torch.equal(function(x, **settings, **{argument: 2.5}), expected)


@each_module
def test_a_list_is_exact_in_every_dtype(kind: str, dims: int) -> None:
    x, numbers = images(dims).double(), [0.1, 0.2, 0.3][:CHANNELS]
    layer, argument = made(kind, dims, numbers)
    settings = KINDS[kind][1]
    expected = function_of(kind, dims)(x, **settings, **{argument: numbers})
    for twin in (layer, layer.half().float(), made(kind, dims, np.array(numbers))[0]):
        assert twin.state_dict() == {}
        assert torch.equal(twin(x), expected)
    with torch.inference_mode():
        layer, _ = made(kind, dims, numbers)
    leaf = x.clone().requires_grad_()
    layer(leaf).sum().backward()
    with pytest.raises(ValueError, match=f"^{argument} must be a number or one for each channel"):
        made(kind, dims, [numbers])


def test_a_module_with_a_list_is_compiled_and_exported() -> None:
    layer, x = layers.LPPool2d([2.0, 3.0, 2.5], 2), images(2)
    expected = layer(x)
    torch.compiler.reset()
    for run in (
        torch.compile(layer, backend="eager", fullgraph=True, dynamic=False),
        torch.compile(layer, backend="eager", fullgraph=True, dynamic=True),
        torch.fx.symbolic_trace(layer),
        torch.export.export(layer, (x,)).module(),
    ):
        assert torch.equal(run(x), expected)


def test_generalised_mean() -> None:
    """GeM as its authors write it."""
    x = images(2)
    p = parameter(3.0)
    gem = layers.GlobalLPPool2d(p, mean=True)
    expected = x.pow(p[:, None, None]).mean((2, 3)).pow(1 / p)
    torch.testing.assert_close(gem(x), expected)
    (ours,), (theirs,) = (torch.autograd.grad(y.sum(), p) for y in (gem(x), expected))
    torch.testing.assert_close(ours, theirs)


@each_module
def test_state_goes_around(kind: str, dims: int) -> None:
    x = images(dims)
    layer, argument = made(kind, dims, parameter(1.5))
    other, _ = made(kind, dims, parameter(4.0))
    assert not torch.equal(layer(x), other(x))
    other.load_state_dict(layer.state_dict())
    assert list(layer.state_dict()) == [argument]
    assert torch.equal(layer(x), other(x))
    buffered, _ = made(kind, dims, torch.full((CHANNELS,), 4.0))
    buffered.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), buffered(x))


@each_module
def test_copies_and_pickles(kind: str, dims: int) -> None:
    x = images(dims)
    for value in (parameter(1.5), torch.tensor(1.5)):
        layer, argument = made(kind, dims, value)
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        for twin in (
            copy.deepcopy(layer),
            pickle.loads(pickle.dumps(layer)),
            torch.load(file, weights_only=False),
        ):
            assert repr(twin) == repr(layer)
            assert torch.equal(twin(x), layer(x))
            assert getattr(twin, argument) is not getattr(layer, argument)
            assert type(getattr(twin, argument)) is type(getattr(layer, argument))


@each_module
def test_moves_with_the_module(kind: str, dims: int) -> None:
    x = images(dims)
    for value in (parameter(1.5), torch.tensor(1.5)):
        layer, argument = made(kind, dims, value)
        expected = layer(x)
        layer.double()
        assert getattr(layer, argument).dtype == torch.float64
        y = layer(x.double())
        assert y.dtype == torch.float64
        torch.testing.assert_close(y.float(), expected)
        assert layer(x).dtype == torch.float32  # a mixed precision is the input's
        assert getattr(layer.to("meta"), argument).is_meta


def test_is_made_without_values() -> None:
    """As large networks are, before their weights are loaded."""
    layer = layers.GlobalLPPool2d(nn.Parameter(torch.empty(CHANNELS, device="meta")))
    layer.load_state_dict({"norm_type": torch.full((CHANNELS,), 2.0)}, assign=True)
    torch.testing.assert_close(layer(images(2)), layers.GlobalLPPool2d()(images(2)))


def test_repr_says_what_is_learned() -> None:
    assert repr(layers.GlobalLPPool2d(parameter(), mean=True)) == (
        "GlobalLPPool2d(norm_type=Parameter of shape (3,), mean=True)"
    )
    assert "r=Tensor of shape ()" in repr(layers.LogMeanExpPool1d(2, r=torch.tensor(2.0)))
    assert "r=" not in repr(layers.LogMeanExpPool1d(2))
    assert "alpha=0.1" in repr(layers.MixedPool3d(2, alpha=0.1))


BAD = {
    "norm_type": (0, -1.0, math.nan),
    "r": (0, math.inf, math.nan),
    "alpha": (math.inf, math.nan),
}


@each_kind
def test_bad_values_are_refused_when_the_layer_is_made(kind: str) -> None:
    argument = KINDS[kind][0]
    for value in BAD[argument]:
        forms = value, torch.tensor(float(value)), nn.Parameter(torch.tensor([1.0, value, 1.0]))
        for given in forms:
            with pytest.raises(ValueError, match=f"^{argument} must"):
                made(kind, 2, given)
    for given in (torch.ones(2, 2), torch.tensor(True), torch.tensor(1j)):
        with pytest.raises((TypeError, ValueError), match=f"^{argument} must"):
            made(kind, 2, given)
    for given in ("two", None, True, 1j, ["two"], [True], [1j]):
        with pytest.raises(TypeError, match=f"^{argument} must"):
            made(kind, 2, given)
    for given in ([1.0, BAD[argument][-1]], [[1.0], [2.0]], [[1.0], [1.0, 2.0]]):
        with pytest.raises(ValueError, match=f"^{argument} must"):
            made(kind, 2, given)


@each_kind
def test_a_wrong_number_of_channels_is_refused_when_it_is_seen(kind: str) -> None:
    layer, argument = made(kind, 2, parameter(2.0, CHANNELS + 1))
    with pytest.raises(ValueError, match=rf"^{argument} must.*{CHANNELS} channels"):
        layer(images(2))
