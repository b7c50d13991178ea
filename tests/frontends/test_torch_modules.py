"""Modules behave like PyTorch's in everything but the forward pass."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from typing import Any

import numpy as np
import pytest

import poolgrad

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import poolgrad.torch as layers  # noqa: E402
from poolgrad.functional import FUNCTIONS  # noqa: E402
from poolgrad.torch import MODULES  # noqa: E402

PLAIN = ["MaxPool", "AvgPool", "LPPool", "AdaptiveMaxPool", "AdaptiveAvgPool"]
NAMES = [f"{kind}{dims}d" for kind in PLAIN for dims in (1, 2, 3)]
FRACTIONAL = ["FractionalMaxPool2d", "FractionalMaxPool3d"]
UNPOOL = [f"MaxUnpool{dims}d" for dims in (1, 2, 3)]
PYTORCHS = [*NAMES, *FRACTIONAL, *UNPOOL]
OURS = [
    f"{kind}Pool{dims}d"
    for kind in ("ReLUMax", "Min", "Median", "Stochastic", "LogMeanExp", "Soft", "Mixed")
    for dims in (1, 2, 3)
]
COMPOSED = [f"{kind}Pool{dims}d" for kind in ("Range", "Lip") for dims in (1, 2, 3)]
GLOBAL = [
    f"Global{kind}Pool{dims}d" for kind in ("Max", "Avg", "LP", "LogMeanExp") for dims in (1, 2, 3)
]
EVERY = [*PYTORCHS, *OURS, *COMPOSED, *GLOBAL]


def dims_of(name: str) -> int:
    return int(name[-2])


def images(name: str, size: int = 9, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, *[size] * dims_of(name), generator=generator)


def made(name: str, **extras: Any) -> Any:
    """A layer with windows of two; draws are repeated."""
    if name in FRACTIONAL:
        return getattr(layers, name)(2, 4, **{"generator": 3, **extras})
    if name.startswith("Stochastic"):
        return getattr(layers, name)(2, **{"generator": 3, **extras})
    args = () if name in GLOBAL else (2.5, 2) if name.startswith("LP") else (2,)
    return getattr(layers, name)(*args, **extras)


def called(layer: Any, x: torch.Tensor) -> torch.Tensor:
    name = type(layer).__name__
    if name.startswith("Lip"):
        return layer(x, x.cos())
    if name not in UNPOOL:
        return layer(x)
    pool = getattr(poolgrad, f"max_pool{dims_of(name)}d")
    return layer(*pool(x, 2, return_indices=True, channels_last=layer.channels_last))


def function_of(name: str) -> str:
    """What the public function of a layer is called; of global ones, there is one for all dims."""
    kind = layers.MODULES.items()
    return next(f for f, c in kind if c.__name__ in (name, f"{name[:-2]}2d" * (name in GLOBAL)))


def test_all_modules_are_public() -> None:
    others = ["MODULES", "Report", "accelerate", "convert", "revert"]
    assert sorted(layers.__all__) == sorted([*EVERY, *others, *layers.layers.__all__])
    assert sorted(layers.MODULES) == sorted(poolgrad.functional.FUNCTIONS)


@pytest.mark.parametrize("name", EVERY)
def test_documentation_is_the_functions_without_what_only_calls_take(name: str) -> None:
    layer = getattr(layers, name)
    doc = inspect.getdoc(layer)
    assert f"`poolgrad.{function_of(name)}`" in doc
    assert (f"`torch.nn.{name}`" in doc) == (name in PYTORCHS)
    assert "every axis" not in doc
    documented = [
        argument
        for line in doc.partition("Parameters\n----------\n")[2].splitlines()
        if not line.startswith(" ")
        for argument in line.partition(" : ")[0].split(", ")
    ]
    assert sorted(documented) == sorted(inspect.signature(layer).parameters)


@pytest.mark.parametrize("name", PYTORCHS)
def test_is_pytorchs_class(name: str) -> None:
    ours, theirs = getattr(layers, name), getattr(nn, name)
    assert issubclass(ours, theirs)
    assert isinstance(made(name), theirs)
    assert ours.__name__ == ours.__qualname__ == theirs.__name__


@pytest.mark.parametrize("name", PYTORCHS)
def test_constructor_is_pytorchs(name: str) -> None:
    ours = list(inspect.signature(getattr(layers, name)).parameters.values())
    theirs = list(inspect.signature(getattr(nn, name)).parameters.values())
    for mine, other in zip(ours, theirs, strict=False):
        assert (mine.name, mine.default, mine.kind) == (other.name, other.default, other.kind)
    # One number more: PyTorch's 1-D average has no divisor_override, and ours has no reason not to.
    extra = ours[len(theirs) + (name == "AvgPool1d") :]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in extra)
    assert len(ours) >= len(theirs)


@pytest.mark.parametrize("kind", ["Min", "Median", "ReLUMax"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_what_selects_takes_what_a_maximum_takes(kind: str, dims: int) -> None:
    ours, maximum = (inspect.signature(getattr(layers, f"{k}Pool{dims}d")) for k in (kind, "Max"))
    assert ours.parameters.keys() == maximum.parameters.keys()


def positional(function: Any) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


@pytest.mark.parametrize("name", [n for n in EVERY if n not in PYTORCHS])
def test_other_positional_arguments_are_the_windows(name: str) -> None:
    before = {"LipPool": ["logits"], "GlobalLPPool": ["norm_type"]}.get(name[:-2], [])
    windows = [] if name in GLOBAL else ["kernel_size", "stride", "padding"]
    assert positional(getattr(poolgrad, function_of(name))) == ["x", *before, *windows]
    assert positional(getattr(layers, name)) == [*(n for n in before if n != "logits"), *windows]


def test_calls_in_the_order_of_pytorch() -> None:
    x = torch.rand(1, 2, 9, 9)
    y, indices = poolgrad.max_pool2d(x, 3, 2, 1, 1, True, True)
    expected, positions = nn.functional.max_pool2d(x, 3, 2, 1, 1, True, True)
    assert torch.equal(y, expected)
    assert torch.equal(indices, positions)
    torch.testing.assert_close(
        poolgrad.avg_pool2d(x, 3, 2, 1, True, False),
        nn.functional.avg_pool2d(x, 3, 2, 1, True, False),
    )
    torch.testing.assert_close(poolgrad.lp_pool2d(x, 2, 3, 2), nn.functional.lp_pool2d(x, 2, 3, 2))


@pytest.mark.parametrize("name", PYTORCHS)
def test_function_takes_what_the_module_takes(name: str) -> None:
    """The order of torch.nn.functional, which has (ceil_mode, return_indices) in its own order."""
    function = function_of(name)
    ours = [*inspect.signature(getattr(poolgrad, function)).parameters][1:]
    theirs = getattr(torch.nn.functional, f"_{function}", getattr(torch.nn.functional, function))
    if name.startswith(("AvgPool", "Adaptive")):  # compiled, without a signature
        theirs = [*inspect.signature(getattr(nn, name)).parameters]
    else:
        theirs = [*inspect.signature(theirs).parameters][1:]
    assert ours[: len(theirs)] == theirs


SETTINGS: dict[str, list[dict[str, Any]]] = {
    "MaxPool": [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": 3, "stride": 1, "dilation": 2},
    ],
    "AvgPool": [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        {"kernel_size": 2, "ceil_mode": True},
    ],
    "LPPool": [
        {"norm_type": 2, "kernel_size": 2},
        {"norm_type": 4.0, "kernel_size": 3, "stride": 2},
    ],
    "AdaptiveMaxPool": [{"output_size": 4}],
    "AdaptiveAvgPool": [{"output_size": 4}],
}
same = pytest.mark.parametrize(
    ("name", "settings"), [(n, s) for n in NAMES for s in SETTINGS[n[:-2]]], ids=str
)


@same
def test_answers_and_looks_like_pytorchs(name: str, settings: dict[str, Any]) -> None:
    ours, theirs = getattr(layers, name)(**settings), getattr(nn, name)(**settings)
    assert repr(ours) == repr(theirs)
    assert ours.state_dict() == theirs.state_dict() == {}
    assert list(ours.parameters()) == []
    x = images(name)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6, atol=1e-6)  # float32
    for attribute in settings:
        assert getattr(ours, attribute) == getattr(theirs, attribute)


@pytest.mark.parametrize("name", [n for n in NAMES if "Max" in n])
def test_return_indices(name: str) -> None:
    settings = SETTINGS[name[:-2]][0] | {"return_indices": True}
    x = images(name)
    y, indices = getattr(layers, name)(**settings)(x)
    expected, their_indices = getattr(nn, name)(**settings)(x)
    assert torch.equal(y, expected)
    assert torch.equal(indices, their_indices)


@pytest.mark.parametrize("name", FRACTIONAL)
@pytest.mark.parametrize("size", [{"output_size": 4}, {"output_ratio": 0.5}], ids=str)
def test_fractional_answers_like_pytorchs(name: str, size: dict[str, Any]) -> None:
    samples = torch.rand(2, 3, dims_of(name), generator=torch.Generator().manual_seed(0))
    settings = {**size, "return_indices": True, "_random_samples": samples}
    ours, theirs = (getattr(m, name)(2, **settings) for m in (layers, nn))
    x = images(name)
    for mine, other in zip(ours(x), theirs(x), strict=True):
        assert torch.equal(mine, other)
    assert [*ours.state_dict()] == [*theirs.state_dict()] == ["_random_samples"]
    for attribute in ("kernel_size", "output_size", "output_ratio", "return_indices"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)
    assert not torch.equal(getattr(layers, name)(2, **size)(x), ours(x)[0])  # it draws


@pytest.mark.parametrize("name", UNPOOL)
def test_unpooling_answers_like_pytorchs(name: str) -> None:
    ours, theirs = (getattr(m, name)(3, 2, 1) for m in (layers, nn))
    assert repr(ours) == repr(theirs)
    x = images(name)
    pool = getattr(nn, f"MaxPool{dims_of(name)}d")(3, 2, 1, return_indices=True)
    y, indices = pool(x)
    assert torch.equal(ours(y, indices), theirs(y, indices))
    for size in (x.shape, [8] * dims_of(name)):
        inside = indices % 8
        assert torch.equal(ours(y, inside, size) != 0, theirs(y, inside, output_size=size) != 0)


@pytest.mark.parametrize("name", OURS)
def test_answers_like_its_function(name: str) -> None:
    x = images(name)
    settings = {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}
    settings |= {"generator": 5} if name.startswith("Stochastic") else {}
    function = getattr(poolgrad, function_of(name))
    assert torch.equal(getattr(layers, name)(**settings)(x), function(x, **settings))
    last = x.movedim(1, -1)
    settings["channels_last"] = True
    assert torch.equal(getattr(layers, name)(**settings)(last), function(last, **settings))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_draws_while_it_is_trained(dims: int) -> None:
    layer = getattr(layers, f"StochasticPool{dims}d")(3)
    x = images(layer._get_name()).abs().requires_grad_()
    assert not torch.equal(layer(x), layer(x))
    (routed,) = torch.autograd.grad(layer(x).sum(), x)
    assert set(routed.unique().tolist()) == {0, 1}
    expected = getattr(poolgrad, f"stochastic_pool{dims}d")(x, 3, training=False)
    assert torch.equal(layer.eval()(x), expected)
    layer = getattr(layers, f"StochasticPool{dims}d")(3, return_indices=True)
    assert len(layer(x)) == 2
    assert torch.equal(layer.eval()(x), expected)  # a mean has no winners
    assert len(layer.train()(x)) == 2


@pytest.mark.parametrize("name", EVERY)
def test_copies_and_pickles(name: str) -> None:
    extras: dict[str, Any] = {"channels_last": True}
    if "ties" in inspect.signature(getattr(layers, name)).parameters:
        extras["ties"] = "split"
    layer = made(name, **extras).eval()
    x = images(name, 8).movedim(1, -1)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for twin in (
        copy.deepcopy(layer),
        copy.copy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(file, weights_only=False),
    ):
        assert type(twin) is type(layer)
        assert repr(twin) == repr(layer)
        assert not twin.training
        assert torch.equal(called(twin, x), called(layer, x))


def test_repr_shows_extras_that_differ_from_their_defaults() -> None:
    assert "ties" not in repr(layers.MaxPool2d(2))
    shown = repr(layers.MaxPool2d(2, ties="split", channels_last=True))
    assert "ties='split'" in shown
    assert "channels_last=True" in shown
    assert "dilation=2" in repr(layers.AvgPool2d(2, dilation=2))
    assert repr(layers.GlobalAvgPool2d(keepdims=True)) == "GlobalAvgPool2d(keepdims=True)"
    assert repr(layers.GlobalMaxPool1d(ties="zero")) == "GlobalMaxPool1d(ties='zero')"
    assert "norm_type=3.0, " in repr(layers.LPPool2d(np.float64(3), 2))
    assert "padding='same'" in repr(layers.MaxPool2d(3, padding="same"))
    assert repr(layers.LPPool1d(3, 2, mean=True)) == (
        "LPPool1d(norm_type=3, kernel_size=2, stride=None, ceil_mode=False, mean=True)"
    )
    assert repr(layers.MixedPool1d(2, alpha=0.3)) == (
        "MixedPool1d(kernel_size=2, stride=None, padding=0, alpha=0.3)"
    )
    assert repr(layers.FractionalMaxPool2d(2, 3)) == (
        "FractionalMaxPool2d(kernel_size=(2, 2), output_size=(3, 3), output_ratio=None)"
    )


@pytest.mark.parametrize("padding", ["same", "valid", ((1, 0), (2, 1)), (0, 4), 3])
@pytest.mark.parametrize("kind", ["MaxPool2d", "AvgPool2d"])
def test_every_form_of_padding(kind: str, padding: Any) -> None:
    x = images("2d")
    function = poolgrad.max_pool2d if kind == "MaxPool2d" else poolgrad.avg_pool2d
    layer = getattr(layers, kind)(3, 2, padding)
    assert torch.equal(layer(x), function(x, 3, 2, padding))


def test_words_for_padding_in_one_dimension() -> None:
    x = images("1d", 8)
    for kind, function in (("MaxPool1d", poolgrad.max_pool1d), ("AvgPool1d", poolgrad.avg_pool1d)):
        assert torch.equal(getattr(layers, kind)(3, 1, "same")(x), function(x, 3, 1, "same"))


@pytest.mark.parametrize("name", [*PYTORCHS, *OURS])
def test_bad_settings_are_refused_when_the_layer_is_made(name: str) -> None:
    argument = "output_size" if "Adaptive" in name else "kernel_size"
    others: dict[str, Any] = {"norm_type": 2} if name.startswith("LP") else {}
    others |= {"output_size": 2} if name in FRACTIONAL else {}
    for value in (0, -1, (2,) * 5):
        with pytest.raises(ValueError, match=argument):
            getattr(layers, name)(**{argument: value, **others})
    with pytest.raises(TypeError, match=argument):
        getattr(layers, name)(**{argument: "two", **others})
    for unknown, meant in (("kernel", "kernel_size"), ("outputsize", "output_size")):
        if meant == argument:
            words = rf"^{name}\(\) has no argument '{unknown}'; did you mean '{meant}'\?$"
            with pytest.raises(TypeError, match=words):
                getattr(layers, name)(**{unknown: 2})
    for unknown in ("size_of_kernel", "dims"):
        with pytest.raises(TypeError, match=rf"^{name}\(\) has no argument '{unknown}'; "):
            made(name, **{unknown: 2})
    with pytest.raises(TypeError, match=rf"^{name}\(\) missing a required argument: "):
        getattr(layers, name)()
    with pytest.raises(TypeError, match="channels_last"):
        made(name, channels_last=1)


@pytest.mark.parametrize(
    "name", [n for n in EVERY if "ties" in inspect.signature(getattr(layers, n)).parameters]
)
def test_bad_ties_are_refused_when_the_layer_is_made(name: str) -> None:
    for ties in ("all", "last"):
        with pytest.raises(ValueError, match=rf"^ties.*{ties}"):
            made(name, ties=ties)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_samples_that_a_cast_rounds_to_one(dtype: Any) -> None:
    samples = torch.full((1, 4, 2), 0.9999)
    pool, x = layers.FractionalMaxPool2d(2, 2, _random_samples=samples), torch.rand(1, 4, 7, 7)
    expected = poolgrad.fractional_max_pool2d(x.to(dtype), 2, 2, _random_samples=samples)
    assert torch.equal(pool.to(dtype)(x.to(dtype)), expected)
    assert torch.equal(pool.float()(x.to(dtype).float()), expected.float())
    with pytest.raises(ValueError, match=r"_random_samples must be in \[0, 1\), got 1.5"):
        layers.FractionalMaxPool2d(2, 2, _random_samples=samples + 0.5001)(x)


@pytest.mark.parametrize("name", [n for n in EVERY if n.startswith(("Stoch", "Fractional"))])
def test_bad_generators_are_refused_when_the_layer_is_made(name: str) -> None:
    for value, error in (("a", TypeError), (True, TypeError), (1.0, TypeError), (-1, ValueError)):
        with pytest.raises(error, match=r"^generator must be"):
            made(name, generator=value)
    for value in (None, np.int64(3), torch.Generator()):
        made(name, generator=value)


@pytest.mark.parametrize("name", FRACTIONAL)
def test_bad_sizes_are_refused_when_the_layer_is_made(name: str) -> None:
    for sizes in ({}, {"output_size": 2, "output_ratio": 0.5}, {"output_ratio": 1.0}):
        with pytest.raises(ValueError, match=r"output_(size|ratio)"):
            getattr(layers, name)(2, **sizes)


def by_torch(name: str, x: torch.Tensor, axes: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    kind = name[len("Global") : -len("Pool2d")]
    if kind == "LogMeanExp":
        return (x.exp().mean(axes, keepdim=keepdim)).log()
    norm = torch.linalg.vector_norm
    return {"Max": torch.amax, "Avg": torch.mean, "LP": lambda *a, **k: norm(a[0], 2, a[1], **k)}[
        kind
    ](x, axes, keepdim=keepdim)


@pytest.mark.parametrize("name", GLOBAL)
@pytest.mark.parametrize("keepdims", [False, True])
def test_global_modules(name: str, keepdims: bool) -> None:
    layer, x = getattr(layers, name)(keepdims=keepdims), images(name)
    expected = by_torch(name, x, tuple(range(2, x.dim())), keepdims)
    assert layer(x).shape == expected.shape
    close = {"rtol": 1e-6, "atol": 1e-6}  # float32
    torch.testing.assert_close(layer(x), expected, **close)
    torch.testing.assert_close(layer(x[0]), expected[0], **close)  # unbatched
    torch.testing.assert_close(layer(x[None, :, None]), expected[None, :, None], **close)
    last = getattr(layers, name)(keepdims=keepdims, channels_last=True)(x.movedim(1, -1))
    expected = expected.movedim(1, -1) if keepdims else expected
    assert last.shape == expected.shape
    torch.testing.assert_close(last, expected, **close)


def test_global_module_is_the_function() -> None:
    x = images("2d").requires_grad_()
    for ties in ("first", "split", "zero"):
        layer = layers.GlobalMaxPool2d(ties=ties)
        function = poolgrad.global_max_pool(x, ties=ties)
        assert torch.equal(layer(x), function)
        ours, theirs = (torch.autograd.grad(y.sum(), x)[0] for y in (layer(x), function))
        assert torch.equal(ours, theirs)


def test_global_pooling_of_ones_keeps_leading_axes_of_length_one() -> None:
    """Only pooled axes are squeezed away."""
    x = torch.ones(1, 1, 4, 4)
    assert layers.GlobalAvgPool2d()(x).shape == (1, 1)
    assert layers.GlobalMaxPool2d(channels_last=True)(x.movedim(1, -1)).shape == (1, 1)
    assert poolgrad.global_max_pool(x).shape == (1, 1)


@pytest.mark.parametrize("name", [n for n in MODULES if n[-2:] not in ("1d", "3d")])
def test_fx_traces_modules_and_functions(name: str) -> None:
    """Also as the root of the trace, which is never a leaf."""
    made, x = MODULES[name], torch.rand(2, 2, 6, 6)
    needed = [n for n, p in made.__signature__.parameters.items() if p.default is p.empty]
    given: dict[str, Any] = dict.fromkeys(needed, 2)
    if "generator" in made.__signature__.parameters:
        given["generator"] = 0
    if name.startswith("fractional"):
        given |= {"kernel_size": 2, "output_size": 3}
    inputs = (x,)
    if name.startswith("max_unpool"):
        inputs = poolgrad.max_pool2d(x, 2, return_indices=True)
    elif name.startswith("lip"):
        inputs = (x, x)
    module = made(**given)
    # PyTorch's operators, which are traced in place of ours, round differently.
    torch.testing.assert_close(torch.fx.symbolic_trace(module)(*inputs), module(*inputs))
    if len(inputs) == 1 and name in FUNCTIONS:
        function = FUNCTIONS[name]
        traced = torch.fx.symbolic_trace(lambda x: function(x=x, **given))
        torch.testing.assert_close(traced(x), function(x, **given))


@pytest.mark.parametrize("name", [n for n in EVERY if not n.startswith(("Lip", "MaxUnpool"))])
def test_traced_networks_can_be_pickled(name: str) -> None:
    """A sequence, because PyTorch pickles no root whose annotations are strings."""
    layer, x = made(name).eval(), images(name, 8)
    traced = torch.fx.symbolic_trace(nn.Sequential(layer))
    torch.testing.assert_close(pickle.loads(pickle.dumps(traced))(x), layer(x))
