"""Every operator against torch.nn.functional: same values, shapes, gradients and errors.

Maximum: values, indices and gradients bit for bit. Average: within two units in the last place;
bit for bit, too, where windows share nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from adversarial_arrays import FINITE, VALUES
from hypothesis import given
from hypothesis import strategies as st

import poolgrad

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional

FORMATS = {
    2: {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last},
    3: {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last_3d},
    1: {"contiguous": torch.contiguous_format},
}


@dataclass
class Question:
    """A call that both understand."""

    fun: str
    x: torch.Tensor = field(repr=False)
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    memory: torch.memory_format  # of the input
    gy_memory: torch.memory_format
    made: str


def bits(t: torch.Tensor) -> torch.Tensor:
    """The numbers as integers, so that +0 and -0 differ; all NaN alike."""
    t = torch.where(t.isnan(), torch.full_like(t, torch.nan), t)
    return t.view(torch.int32 if t.dtype == torch.float32 else torch.int64)


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    assert torch.equal(bits(got.detach().contiguous()), bits(expected.detach().contiguous()))


def assert_keeps_format(got: torch.Tensor, q: Question) -> None:
    """In the input's format, where no axis of length one leaves a choice.

    Not compared with PyTorch's output: its 3-D averages and adaptive pools do not keep it.
    """
    if min(*q.x.shape, *got.shape) > 1:
        assert got.is_contiguous(memory_format=q.memory)


@st.composite
def questions(draw: st.DrawFn, kind: str, values: list[Any], most: int = 5) -> Question:
    dims = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(1, 12 if dims < 3 else 7), min_size=dims, max_size=dims))
    lead = draw(st.tuples(st.integers(1, 3), st.integers(1, 4)))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    made, name = draw(st.sampled_from(values)), draw(st.sampled_from(sorted(FORMATS[dims])))
    memory = FORMATS[dims][name]
    x = torch.from_numpy(made.make((*lead, *sizes), dtype)).contiguous(memory_format=memory)
    note = f"{made.id} {name} {dtype.__name__} {tuple(x.shape)}"
    gy_memory = FORMATS[dims][draw(st.sampled_from(sorted(FORMATS[dims])))]
    if kind.startswith("adaptive"):
        out = tuple(draw(st.lists(st.integers(1, 9), min_size=dims, max_size=dims)))
        return Question(f"{kind}_pool{dims}d", x, (out,), {}, memory, gy_memory, note)

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=dims, max_size=dims))

    dilation = each(1, 3) if kind == "max" else [1] * dims
    kernel = [
        min(k, (n - 1) // d + 1) for k, n, d in zip(each(1, most), sizes, dilation, strict=True)
    ]
    # PyTorch's limit: at most half the kernel.
    padding = [min(p, k // 2) for p, k in zip(each(0, 2), kernel, strict=True)]
    kwargs: dict[str, Any] = {
        "stride": tuple(each(1, 4)),
        "padding": tuple(padding),
        "ceil_mode": draw(st.booleans()),
    }
    if kind == "max":
        kwargs["dilation"] = tuple(dilation)
    else:
        kwargs["count_include_pad"] = draw(st.booleans())
        if dims > 1:
            kwargs["divisor_override"] = draw(st.sampled_from([None, None, 3, -5]))
    return Question(f"{kind}_pool{dims}d", x, (tuple(kernel),), kwargs, memory, gy_memory, note)


def gradient_of(y: torch.Tensor) -> torch.Tensor:
    """The same gradient for every output of one shape."""
    r = np.random.default_rng(list(y.shape))
    return torch.from_numpy(r.standard_normal(tuple(y.shape))).to(y.dtype)


def ask(module: Any, q: Question, **more: Any) -> tuple[torch.Tensor, ...]:
    """Output, (indices,) gradient of the input."""
    x = q.x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    made = getattr(module, q.fun)(x, *q.args, **q.kwargs, **more)
    y, *indices = made if isinstance(made, tuple) else (made,)
    y.backward(gradient_of(y).contiguous(memory_format=q.gy_memory))
    return (y.detach(), *indices, x.grad)


def without_format(q: Question) -> Question:
    """The question in rows of columns.

    In volumes with channels last PyTorch counts the index of a window of -inf alone, and sends its
    gradient, from the first depth on.
    """
    plain = torch.contiguous_format
    return replace(q, x=q.x.contiguous(), memory=plain, gy_memory=plain)


def check_max(q: Question) -> None:
    y, indices, gradient = ask(poolgrad, q, return_indices=True)
    theirs = without_format(q) if q.x.ndim == 5 and (q.x == -torch.inf).any() else q
    expected, their_indices, their_gradient = ask(F, theirs, return_indices=True)
    assert_same_bits(y, expected)
    assert_keeps_format(y, q)
    assert_keeps_format(gradient, q)
    assert torch.equal(indices, their_indices)
    assert indices.dtype == torch.int64
    assert_same_bits(gradient, their_gradient)
    assert_same_bits(ask(poolgrad, q)[0], expected)
    assert_same_bits(ask(poolgrad, q)[1], their_gradient)


@given(questions("max", VALUES))
def test_max(q: Question) -> None:
    check_max(q)


@given(questions("adaptive_max", VALUES))
def test_adaptive_max(q: Question) -> None:
    check_max(q)


def in_units(got: torch.Tensor, expected: torch.Tensor, size: torch.Tensor) -> np.ndarray:
    """Distance in units in the last place of `size`, what the result would be if nothing cancelled.

    A sum that cancels has no better measure: its terms are rounded at their own size, and either
    order of adding them is as right as the other.
    """
    size = size.detach().abs().numpy()
    unit = np.spacing(np.maximum(size, np.finfo(size.dtype).tiny)).astype(np.float64)
    return (got.detach().double() - expected.detach().double()).abs().numpy() / unit


def sizes_of(q: Question) -> tuple[torch.Tensor, torch.Tensor]:
    """Averages of absolute values, and what absolute gradients add up to."""
    x = q.x.abs().requires_grad_()
    y = getattr(F, q.fun)(x, *q.args, **q.kwargs)
    y.backward(gradient_of(y).abs())
    return y, x.grad


def check_average(q: Question) -> None:
    y, gradient = ask(poolgrad, q)
    expected, their_gradient = ask(F, q)
    size, gradient_size = sizes_of(q)
    assert in_units(y, expected, size).max() <= 2
    assert in_units(gradient, their_gradient, gradient_size).max() <= 2
    assert_keeps_format(y, q)
    assert_keeps_format(gradient, q)


@given(questions("avg", FINITE, most=4))
def test_avg(q: Question) -> None:
    check_average(q)


@given(questions("adaptive_avg", FINITE))
def test_adaptive_avg(q: Question) -> None:
    check_average(q)


@pytest.mark.parametrize("name", ["contiguous", "channels_last"])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("size", [28, 55])
def test_max_of_real_size(size: int, batch: int, name: str) -> None:
    """Large enough for several threads and whole vectors, as networks have them."""
    memory = FORMATS[2][name]
    x = torch.randn(batch, 64, size, size, generator=torch.Generator().manual_seed(size))
    x = x.relu().contiguous(memory_format=memory)  # half of it ties at zero
    for kernel, stride, padding in ((2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 1, 2), (13, 1, 6)):
        kwargs = {"stride": stride, "padding": padding}
        check_max(Question("max_pool2d", x, (kernel,), kwargs, memory, memory, name))


@pytest.mark.parametrize("name", ["contiguous", "channels_last"])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 2, 2), (13, 5, 6)]
)
def test_average_of_real_size(kernel: int, stride: int, padding: int, name: str) -> None:
    """Many large sums: PyTorch's own are up to 2.7 units from the exact value, ours no farther."""
    memory = FORMATS[2][name]
    x = torch.randn(4, 32, 35, 35, generator=torch.Generator().manual_seed(1))
    kwargs = {"stride": stride, "padding": padding}
    x = x.contiguous(memory_format=memory)
    q = Question("avg_pool2d", x, (kernel,), kwargs, memory, memory, name)
    exact = Question("avg_pool2d", x.double(), (kernel,), kwargs, memory, memory, name)
    for ours, theirs, right, size in zip(
        ask(poolgrad, q), ask(F, q), exact_results(exact), sizes_of(q), strict=True
    ):
        distance = in_units(ours, right, size).max()
        assert distance <= 2.5
        assert distance <= in_units(theirs, right, size).max()


def exact_results(q: Question) -> tuple[torch.Tensor, ...]:
    """In float64, from the float32 gradient: 29 more bits are exact enough."""
    x = q.x.clone().requires_grad_()
    y = getattr(F, q.fun)(x, *q.args, **q.kwargs)
    y.backward(gradient_of(y.float()).double())
    return y.detach(), x.grad


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("fun", ["max", "avg", "adaptive_max", "adaptive_avg"])
def test_outputs_and_gradients_keep_the_memory_format(fun: str, dims: int) -> None:
    memory = FORMATS[dims]["channels_last"]
    x = torch.randn(2, 5, *[8] * dims).contiguous(memory_format=memory).requires_grad_()
    y = getattr(poolgrad, f"{fun}_pool{dims}d")(x, 2)
    assert y.is_contiguous(memory_format=memory)
    y.backward(torch.ones(y.shape))  # a gradient in the other format changes nothing
    assert x.grad.is_contiguous(memory_format=memory)


CUTS = {
    "every second channel": np.s_[:, ::2],
    "some channels": np.s_[:, 1:4],
    "every second image and channel": np.s_[::2, ::2],
    "every second column": np.s_[..., ::2],
}


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@pytest.mark.parametrize("fun", ["max", "avg", "adaptive_max", "adaptive_avg"])
def test_slices_have_pytorchs_strides(fun: str, memory: str) -> None:
    from poolgrad.torch import accelerate

    name = f"{fun}_pool2d"
    whole = torch.randn(4, 6, 8, 8).contiguous(memory_format=FORMATS[2][memory])
    for what, cut in CUTS.items():
        x = whole[cut].requires_grad_()
        gy = torch.ones_like(getattr(F, name)(x, 2))

        def strides(y: torch.Tensor, x: torch.Tensor = x, gy: torch.Tensor = gy) -> Any:
            return y.stride(), torch.autograd.grad(y, x, gy)[0].stride()

        expected = strides(getattr(F, name)(x, 2))
        with accelerate():
            assert strides(getattr(F, name)(x, 2)) == expected, what
        assert strides(getattr(poolgrad, name)(x, 2)) == expected, what


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_unbatched(dims: int) -> None:
    x = torch.randn(3, *[8] * dims)
    for fun in ("max", "avg", "adaptive_max", "adaptive_avg"):
        name = f"{fun}_pool{dims}d"
        expected = getattr(F, name)(x, 2)
        torch.testing.assert_close(getattr(poolgrad, name)(x, 2), expected)
        assert getattr(poolgrad, name)(x, 2).shape == expected.shape


def test_global_pooling_is_pytorchs_reduction() -> None:
    x = torch.randn(2, 3, 7, 5, dtype=torch.float64)
    assert torch.equal(poolgrad.global_max_pool(x), x.amax((2, 3)))
    mean = poolgrad.global_avg_pool(x, keepdims=True)
    torch.testing.assert_close(mean, x.mean((2, 3), keepdim=True), rtol=1e-14, atol=1e-16)


def test_split_is_the_gradient_of_amax() -> None:
    """Where one window covers all, ties="split" is what torch.amax does."""
    x = torch.randint(0, 2, (3, 4, 5, 5)).double()
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    poolgrad.global_max_pool(ours, ties="split").sum().backward()
    theirs.amax((2, 3)).sum().backward()
    assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("size", [(7, 3), (9, 5), (10, 4), (5, 7), (6, 6)])
def test_indices_are_those_that_unpooling_takes(dims: int, size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *[size[0]] * dims)
    y, indices = getattr(poolgrad, f"max_pool{dims}d")(x, 2, return_indices=True)
    back = getattr(F, f"max_unpool{dims}d")(y, indices, 2, output_size=x.shape)
    assert torch.equal(back[back != 0].sort().values, y.flatten().sort().values)
    assert torch.equal(x[back != 0], back[back != 0])


def small_network(layers: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 3, padding=1),
        torch.nn.ReLU(),  # whose zeros tie
        layers.MaxPool2d(3, 2, 1),
        torch.nn.Conv2d(6, 8, 3, padding=1),
        torch.nn.ReLU(),
        layers.AdaptiveMaxPool2d(3),
        torch.nn.Flatten(),
        torch.nn.Linear(72, 4),
    )


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "args"),
    [
        ((2, 20, 56, 58), (2,)),
        ((2, 20, 33, 35), (3, 3, 1)),
        ((2, 20, 33, 35), (3, 3, 1, False, False)),
        ((2, 20, 30, 31), ((4, 5),)),
        ((2, 70, 7, 7), (7, 1)),
        ((2, 20, 8, 8), (8,)),
        ((2, 20, 8, 12, 20), (2,)),
        ((2, 3, 9, 9, 10), (3, 3, 1)),
    ],
)
def test_averages_of_windows_that_share_nothing(
    shape: tuple[int, ...], args: tuple[Any, ...], dtype: str, memory: str
) -> None:
    """Bit for bit: they are added in PyTorch's order, as nothing is gained by another."""
    dims = len(shape) - 2
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    answers = []
    for library in (poolgrad, F):
        given = x.clone(memory_format=FORMATS[dims][memory]).requires_grad_()
        y = getattr(library, f"avg_pool{dims}d")(given, *args)
        answers.append((y, torch.autograd.grad((y * y).sum(), given)[0]))
    for ours, theirs in zip(*answers, strict=True):
        assert torch.equal(ours, theirs)


def test_training_is_the_same_bit_for_bit() -> None:
    """Only the pooling layers are swapped: the same losses, and the same weights at the end."""
    from poolgrad import torch as layers

    x = torch.randn(16, 1, 14, 14, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(16) % 4
    losses: list[list[float]] = []
    networks = [small_network(layers), small_network(torch.nn)]
    for network in networks:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        losses.append([])
        for _ in range(15):
            optimizer.zero_grad()
            loss = F.cross_entropy(network(x), labels)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
    for ours, theirs in zip(*(n.parameters() for n in networks), strict=True):
        assert torch.equal(ours, theirs)
