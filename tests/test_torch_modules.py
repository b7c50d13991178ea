"""The modules: PyTorch's own in everything but the forward."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from typing import Any

import pytest

import poolgrad

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import poolgrad.torch as layers  # noqa: E402

KINDS = ["MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool"]
NAMES = [f"{kind}{dims}d" for kind in KINDS for dims in (1, 2, 3)]
GLOBAL = [f"Global{kind}Pool{dims}d" for kind in ("Max", "Avg") for dims in (1, 2, 3)]


def dims_of(name: str) -> int:
    return int(name[-2])


def images(name: str, size: int = 9, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, *[size] * dims_of(name), generator=generator)


def test_all_modules_are_public() -> None:
    assert sorted(layers.__all__) == sorted(NAMES + GLOBAL)
    for name in layers.__all__:
        assert getattr(layers, name).__doc__


@pytest.mark.parametrize("name", NAMES)
def test_is_pytorchs_class(name: str) -> None:
    ours, theirs = getattr(layers, name), getattr(nn, name)
    assert issubclass(ours, theirs)
    assert isinstance(ours(2), theirs)
    assert ours.__name__ == theirs.__name__


@pytest.mark.parametrize("name", NAMES)
def test_constructor_is_pytorchs(name: str) -> None:
    ours = list(inspect.signature(getattr(layers, name)).parameters.values())
    theirs = list(inspect.signature(getattr(nn, name)).parameters.values())
    for mine, other in zip(ours, theirs, strict=False):
        assert (mine.name, mine.default, mine.kind) == (other.name, other.default, other.kind)
    # One number more: PyTorch's 1-D average has no divisor_override, and ours has no reason not to.
    extra = ours[len(theirs) + (name == "AvgPool1d") :]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in extra)
    assert len(ours) >= len(theirs)


@pytest.mark.parametrize("name", NAMES)
def test_function_takes_what_the_module_takes(name: str) -> None:
    """The order of torch.nn.functional, which has (ceil_mode, return_indices) in its own order."""
    function = {"Max": "max", "Avg": "avg"}[name.replace("Adaptive", "")[:3]]
    function = f"{'adaptive_' if 'Adaptive' in name else ''}{function}_pool{dims_of(name)}d"
    ours = [*inspect.signature(getattr(poolgrad, function)).parameters][1:]
    theirs = getattr(torch.nn.functional, f"_{function}", getattr(torch.nn.functional, function))
    if name.startswith("MaxPool"):
        theirs = [*inspect.signature(theirs).parameters][1:]
    else:
        theirs = [*inspect.signature(getattr(nn, name)).parameters]
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


@pytest.mark.parametrize("name", NAMES + GLOBAL)
def test_copies_and_pickles(name: str) -> None:
    extras: dict[str, Any] = {"channels_last": True}
    if "Max" in name:
        extras["ties"] = "split"
    layer = getattr(layers, name)(*(() if name in GLOBAL else (2,)), **extras).eval()
    x = images(name)
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
        assert torch.equal(twin(x), layer(x))


def test_repr_shows_extras_that_differ_from_their_defaults() -> None:
    assert "ties" not in repr(layers.MaxPool2d(2))
    shown = repr(layers.MaxPool2d(2, ties="split", channels_last=True))
    assert "ties='split'" in shown
    assert "channels_last=True" in shown
    assert "dilation=2" in repr(layers.AvgPool2d(2, dilation=2))
    assert repr(layers.GlobalAvgPool2d(keepdims=True)) == "GlobalAvgPool2d(keepdims=True)"
    assert (
        repr(layers.GlobalMaxPool1d(ties="zero")) == "GlobalMaxPool1d(keepdims=False, ties='zero')"
    )
    assert "padding=same" in repr(layers.MaxPool2d(3, padding="same"))


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


@pytest.mark.parametrize("name", NAMES)
def test_bad_settings_are_refused_when_the_layer_is_made(name: str) -> None:
    argument = "output_size" if "Adaptive" in name else "kernel_size"
    for value in (0, -1, (2,) * 5):
        with pytest.raises(ValueError, match=argument):
            getattr(layers, name)(value)
    with pytest.raises(TypeError, match=argument):
        getattr(layers, name)("two")


@pytest.mark.parametrize("name", [n for n in NAMES + GLOBAL if "Max" in n])
def test_bad_ties_are_refused(name: str) -> None:
    args, x = () if name in GLOBAL else (2,), images(name)
    for ties in ("all", "last"):
        with pytest.raises(ValueError, match=rf"^ties.*{ties}"):
            getattr(layers, name)(*args, ties=ties)(x)


@pytest.mark.parametrize("name", GLOBAL)
@pytest.mark.parametrize("keepdims", [False, True])
def test_global_modules(name: str, keepdims: bool) -> None:
    layer, x = getattr(layers, name)(keepdims), images(name)
    axes = tuple(range(2, x.dim()))
    expected = (torch.amax if "Max" in name else torch.mean)(x, axes, keepdim=keepdims)
    assert layer(x).shape == expected.shape
    torch.testing.assert_close(layer(x), expected, rtol=1e-6, atol=1e-6)  # float32
    torch.testing.assert_close(layer(x[0]), expected[0], rtol=1e-6, atol=1e-6)  # unbatched
    last = getattr(layers, name)(keepdims, channels_last=True)(x.movedim(1, -1))
    expected = expected.movedim(1, -1) if keepdims else expected
    assert last.shape == expected.shape
    torch.testing.assert_close(last, expected, rtol=1e-6, atol=1e-6)


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


class Saved:
    """What autograd keeps between forward and backward."""

    def __init__(self, pool: Any, x: torch.Tensor) -> None:
        self.tensors: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t):
            self.y = pool(x)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.tensors.append(tensor)
        return tensor


@pytest.mark.parametrize(
    "pool",
    [
        layers.MaxPool2d(2),
        layers.MaxPool2d(3, 2, 1, ties="zero"),
        layers.MaxPool2d(3, 2, return_indices=True),
        layers.AdaptiveMaxPool2d(3),
        layers.GlobalMaxPool2d(),
    ],
    ids=str,
)
@pytest.mark.parametrize("memory", ["contiguous_format", "channels_last"])
def test_backward_keeps_one_byte_of_route_for_each_output(pool: Any, memory: str) -> None:
    x = images("2d", 12).contiguous(memory_format=getattr(torch, memory)).requires_grad_()
    saved = Saved(pool, x)
    y = saved.y[0] if isinstance(saved.y, tuple) else saved.y
    assert [t.dtype for t in saved.tensors] == [torch.uint8]
    assert saved.tensors[0].numel() == y.numel()
    inputs = x.untyped_storage().data_ptr()
    assert saved.tensors[0].untyped_storage().data_ptr() != inputs
    y.sum().backward()
    assert x.grad.count_nonzero() > 0


def test_backward_of_split_keeps_bits_and_of_an_average_nothing() -> None:
    x = images("2d", 12).requires_grad_()
    saved = Saved(layers.MaxPool2d(3, ties="split"), x)  # nine places: two bytes of bits
    assert [(t.dtype, t.numel()) for t in saved.tensors] == [(torch.uint8, 2 * saved.y.numel())]
    assert Saved(layers.AvgPool2d(3), x).tensors == []
    assert Saved(layers.MaxPool2d(2), x.detach()).tensors == []  # nothing without a gradient


def test_wider_routes_only_for_large_windows() -> None:
    x = torch.randn(1, 1, 40, 40, requires_grad=True)
    for kernel, dtype in ((15, torch.uint8), (16, torch.uint16)):
        saved = Saved(layers.MaxPool2d(kernel, 1), x)
        assert [t.dtype for t in saved.tensors] == [dtype]
        saved.y.sum().backward()


def test_the_input_may_change_after_the_forward() -> None:
    """PyTorch's own refuses this backward: it kept the input."""
    leaf = images("2d").requires_grad_()
    x = leaf * 1
    y = layers.MaxPool2d(2)(x)
    (expected,) = torch.autograd.grad(y.sum(), leaf, retain_graph=True)
    x.data.zero_()
    x.add_(1)
    y.sum().backward()
    assert torch.equal(leaf.grad, expected)
    assert expected.count_nonzero() == y.numel()
