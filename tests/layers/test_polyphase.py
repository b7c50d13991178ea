"""Adaptive polyphase sampling commutes with circular shifts, to the last bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from processes import assert_runs

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

from poolgrad.torch import AdaptivePolyphasePool2d, BlurPool2d  # noqa: E402
from poolgrad.torch.layers.polyphase import component_norms, greatest  # noqa: E402

NORMS = st.sampled_from([1, 2, 3, math.inf])
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# Floats of all sizes, infinity, NaN and -0; few values, so that norms tie; almost equal values,
# so that a sum with rounding would depend on its order.
VALUES = [
    st.floats(width=16),
    st.sampled_from([0.0, -0.0, 1.0, -1.0]),
    st.sampled_from([1e3, 1e3 + 0.5, 1e-3, 3e-3]),
]


def bits(x: Any) -> Any:
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def is_a_shift(a: Any, b: Any) -> bool:
    """Whether one map is the other shifted around its edges, to the last bit."""
    height, width = a.shape[-2:]
    shifts = (a.roll((i, j), (-2, -1)) for i in range(height) for j in range(width))
    return any(torch.equal(bits(shifted), bits(b)) for shifted in shifts)


@st.composite
def calls(draw: Any) -> tuple[Any, tuple[int, int], tuple[int, int]]:
    """Maps of one example, the stride, and a shift."""
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    out = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    shape = (1, draw(st.integers(1, 3)), out[0] * stride[0], out[1] * stride[1])
    x = torch.from_numpy(draw(arrays(np.float64, shape, elements=draw(st.sampled_from(VALUES)))))
    shift = draw(st.tuples(st.integers(0, shape[2] - 1), st.integers(0, shape[3] - 1)))
    return x.to(draw(st.sampled_from(DTYPES))), stride, shift


@settings(max_examples=400, deadline=None)
@given(call=calls(), norm=NORMS, filter_size=st.sampled_from([None, 1, 2, 3, 4]))
def test_shifted_input_gives_the_shifted_output(call: Any, norm: Any, filter_size: Any) -> None:
    x, stride, shift = call
    pool = AdaptivePolyphasePool2d(stride, norm, filter_size)
    assert is_a_shift(pool(x), pool(x.roll(shift, (-2, -1))))


@settings(max_examples=100, deadline=None)
@given(call=calls(), norm=NORMS)
def test_each_example_of_a_batch_is_shifted_by_itself(call: Any, norm: Any) -> None:
    x, stride, shift = call
    pool = AdaptivePolyphasePool2d(stride, norm)
    shifted = x.roll(shift, (-2, -1))
    a, b, c = pool(torch.cat((x, shifted, x)))
    assert torch.equal(bits(a), bits(c))
    assert torch.equal(bits(a), bits(pool(x[0])))
    assert is_a_shift(a, b)


def test_bits_of_nan_break_no_tie() -> None:
    """PyTorch's sums of bfloat16 have NaN of other bits at other positions of an array."""
    torch.manual_seed(0)
    pool = AdaptivePolyphasePool2d(2, filter_size=2)
    for _ in range(100):
        x = torch.tensor([0.0, 1.0, math.nan])[torch.randint(0, 3, (3, 1, 6, 6))].bfloat16()
        alone = torch.cat([pool(x[n : n + 1]) for n in range(3)])
        assert torch.equal(pool(x).nan_to_num(9.0), alone.nan_to_num(9.0))


@settings(max_examples=50, deadline=None)
@given(shift=st.tuples(st.integers(0, 7), st.integers(0, 11)), seed=st.integers(0, 99))
def test_gradient_goes_where_the_shift_does(shift: tuple[int, int], seed: int) -> None:
    """For values without ties the output is shifted by a known distance, and the gradient too."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 8, 12, generator=generator)
    pool = AdaptivePolyphasePool2d((2, 3))
    leaf, moved = x.clone().requires_grad_(), x.roll(shift, (-2, -1)).requires_grad_()
    pool(leaf).square().sum().backward()
    pool(moved).square().sum().backward()
    assert torch.equal(leaf.grad.roll(shift, (-2, -1)), moved.grad)
    kept = leaf.grad != 0
    assert torch.equal(leaf.grad[kept], 2 * x[kept])
    assert kept.sum() == x.numel() // 6


def test_the_component_of_the_largest_norm_is_kept() -> None:
    x = torch.randn(5, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    y = AdaptivePolyphasePool2d((2, 3), norm=1)(x)
    for n in range(5):
        parts = [x[n, :, i::2, j::3] for i in range(2) for j in range(3)]
        assert torch.equal(y[n], max(parts, key=lambda part: part.double().abs().sum()))


@pytest.mark.parametrize("norm", [1, 2, 3, math.inf])
def test_norms_are_those_of_the_definition(norm: float) -> None:
    x = torch.randn(2, 3, 8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    parts = [x[:, :, i::2, j::3].flatten(1) for i in range(2) for j in range(3)]
    expected = torch.stack([torch.linalg.vector_norm(p, norm, 1) for p in parts], 1)
    found = component_norms(x, (2, 3), float(norm))
    if norm != math.inf:
        found = found ** (1 / norm)
    ratio = found / expected
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-13, atol=0)


def test_norms_do_not_depend_on_the_order() -> None:
    """Sums in float64 with their rounding would."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(3 * 32 * 32) * 10.0 ** rng.integers(-6, 6, 3 * 32 * 32)
    orders = [torch.from_numpy(rng.permutation(values)).reshape(1, 3, 32, 32) for _ in range(50)]
    assert len({component_norms(x, (1, 1), 2.0).item() for x in orders}) == 1
    assert len({x.square().sum().item() for x in orders}) > 1


def test_ties_are_broken_by_contents() -> None:
    """The offset of the first component of equal norm would change with the shift."""
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, ::2, ::2] = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    x[0, 0, 1::2, 1::2] = torch.tensor([[4.0, 0.0], [0.0, 0.0]])
    assert component_norms(x, (2, 2), 1.0).unique(return_counts=True)[1].tolist() == [2, 2]
    pool = AdaptivePolyphasePool2d(norm=1)
    for i in range(4):
        for j in range(4):
            assert pool(x.roll((i, j), (-2, -1))).max() == 4


@given(
    parts=st.integers(1, 3).flatmap(
        lambda c: arrays(np.int64, (3, c, 4, 6), elements=st.integers(0, 1))
    ),
    shift=st.tuples(st.integers(0, 3), st.integers(0, 5)),
    order=st.permutations(range(3)),
)
@settings(max_examples=150, deadline=None)
def test_order_of_maps_ignores_shifts(parts: Any, shift: Any, order: Any) -> None:
    again = torch.from_numpy(np.roll(parts, shift, (2, 3))[order])
    parts = torch.from_numpy(parts)
    assert is_a_shift(parts[greatest(parts)], again[greatest(again)])


def exactly(values: Any) -> Any:
    """Multiples of 1/4, of which float64 sums and multiplies many without rounding."""
    return (values * 4).round() / 4


def network(seed: int, exact: bool) -> nn.Sequential:
    """Two circular convolutions, each with a polyphase pooling, and the mean of the map."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        AdaptivePolyphasePool2d(),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        AdaptivePolyphasePool2d(filter_size=3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    ).double()
    if exact:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.copy_(exactly(3 * torch.randn_like(parameter)))
    return net.eval()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), shift=st.tuples(st.integers(0, 15), st.integers(0, 15)))
@example(seed=0, shift=(1, 1))
def test_a_network_without_rounding_is_invariant_to_the_last_bit(
    seed: int, shift: tuple[int, int]
) -> None:
    """Of numbers whose products and sums are exact, however a convolution orders them."""
    with torch.random.fork_rng(), torch.no_grad():
        net = network(seed, exact=True)
        x = exactly(2 * torch.randn(3, 2, 16, 16, dtype=torch.float64))
        assert torch.equal(net(x), net(x.roll(shift, (-2, -1))))
        strided = nn.Sequential(*(nn.AvgPool2d(1, 2) if i in (2, 5) else m
                                  for i, m in enumerate(net)))  # fmt: skip
        if shift[0] % 4 or shift[1] % 4:
            assert not torch.equal(strided(x), strided(x.roll(shift, (-2, -1))))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), shift=st.tuples(st.integers(0, 15), st.integers(0, 15)))
def test_a_network_is_invariant_within_the_rounding_of_its_convolutions(
    seed: int, shift: tuple[int, int]
) -> None:
    with torch.random.fork_rng(), torch.no_grad():
        net = network(seed, exact=False)
        x = torch.randn(3, 2, 16, 16, dtype=torch.float64)
        torch.testing.assert_close(net(x), net(x.roll(shift, (-2, -1))), rtol=0, atol=1e-13)


@pytest.mark.parametrize("filter_size", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "zeros", "circular"])
def test_blur_is_that_of_the_blurring_layer(filter_size: int, mode: str) -> None:
    x = torch.randn(2, 3, 8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    pool = AdaptivePolyphasePool2d(1, filter_size=filter_size, padding_mode=mode)
    torch.testing.assert_close(pool(x), BlurPool2d(filter_size, 1, mode)(x))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "zeros", "circular"])
@pytest.mark.parametrize("size", [(1, 1), (5, 4), (3, 7)])
def test_odd_sizes_are_extended(mode: str, size: tuple[int, int]) -> None:
    x = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(3)).requires_grad_()
    y = AdaptivePolyphasePool2d(padding_mode=mode)(x)
    assert y.shape == (2, 3, -(-size[0] // 2), -(-size[1] // 2))
    y.sum().backward()
    assert x.grad.sum() > 0


@pytest.mark.parametrize("norm", [0, -1, 2.5, True, math.nan, -math.inf, "2", 65, None])
def test_bad_norms(norm: Any) -> None:
    with pytest.raises(ValueError, match=r"norm must be an integer from 1 to 64 or math\.inf"):
        AdaptivePolyphasePool2d(norm=norm)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="stride must be positive"):
        AdaptivePolyphasePool2d(0)
    with pytest.raises(ValueError, match="filter_size must be positive"):
        AdaptivePolyphasePool2d(filter_size=0)
    with pytest.raises(ValueError, match="padding_mode must be one of 'reflect'"):
        AdaptivePolyphasePool2d(padding_mode="constant")


# Where values cannot be read


@pytest.mark.parametrize("filter_size", [None, 3])
def test_vmap_chooses_as_a_loop_does(filter_size: int | None) -> None:
    """Ties, NaN and infinity included."""
    layer = AdaptivePolyphasePool2d(2, filter_size=filter_size)
    xs = torch.randint(0, 2, (5, 3, 2, 4, 6), generator=torch.Generator().manual_seed(0)).float()
    xs[1, 0, 0, 0, 0], xs[2, 1, 1, 2, 3], xs[3] = math.nan, math.inf, 0.0
    expected = torch.stack([layer(x) for x in xs])
    came = torch.func.vmap(layer)(xs)
    assert torch.equal(came.nan_to_num(7.0), expected.nan_to_num(7.0))
    gradients = torch.func.vmap(torch.func.grad(lambda x: layer(x).sum()))(xs)
    leaf = xs.clone().requires_grad_()
    torch.stack([layer(x) for x in leaf]).sum().backward()
    assert torch.equal(gradients, leaf.grad)


DISTRIBUTED = """
import torch, torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from poolgrad.torch import AdaptivePolyphasePool2d
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
x = torch.randint(0, 2, (3, 2, 4, 6)).float()
for placement in (Shard(0), Replicate()):
    for layer in (AdaptivePolyphasePool2d(2), AdaptivePolyphasePool2d(3, 1, 3, "reflect")):
        part = distribute_tensor(x, mesh, [placement]).requires_grad_()
        y = layer(part)
        assert torch.equal(y.full_tensor(), layer(x))
        y.sum().backward()
        assert part.grad.full_tensor().sum() > 0
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_distributed_tensors() -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("PyTorch has no gloo")
    assert_runs(
        DISTRIBUTED.replace("import torch,", "import warnings, torch,").replace(
            "store =", "warnings.simplefilter('ignore')\nstore ="
        )
    )
