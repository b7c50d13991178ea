"""Small examples with values and gradients computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from frontend_calls import Front, torch

import poolgrad


def exactly(got: np.ndarray, expected: object) -> None:
    """Equal in shape and in every number; no tolerance."""
    np.testing.assert_array_equal(got, np.array(expected, got.dtype), strict=True)


FOUR = np.array([[1.0, 3, 2, 4], [5, 6, 1, 2], [7, 2, 9, 1], [3, 4, 0, 8]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_window_sends_the_gradient_to_its_winner(front: Front, dtype: type) -> None:
    y, pullback = front.vjp("max_pool2d", np.array([[1, 3], [2, 0.5]], dtype), 2)
    exactly(y, [[3]])
    exactly(pullback(np.array([[2.5]], dtype)), [[0, 2.5], [0, 0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_average_shares_the_gradient(front: Front, dtype: type) -> None:
    y, pullback = front.vjp("avg_pool2d", np.array([[1, 3], [2, 0.5]], dtype), 2)
    exactly(y, [[1.625]])
    exactly(pullback(np.array([[2.0]], dtype)), [[0.5, 0.5], [0.5, 0.5]])


def test_four_windows_max(front: Front) -> None:
    y, pullback = front.vjp("max_pool2d", FOUR, 2)
    exactly(y, [[6, 4], [7, 9]])
    exactly(
        pullback(np.array([[10.0, 20], [30, 40]])),
        [[0, 0, 0, 20], [0, 10, 0, 0], [30, 0, 40, 0], [0, 0, 0, 0]],
    )


def test_four_windows_average(front: Front) -> None:
    y, pullback = front.vjp("avg_pool2d", FOUR, 2)
    exactly(y, [[3.75, 2.25], [4, 4.5]])
    exactly(
        pullback(np.array([[4.0, 8], [12, 16]])),
        [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]],
    )


def test_routes_mask_and_indices_of_four_windows() -> None:
    _, pullback = poolgrad.vjp(poolgrad.max_pool2d, FOUR, 2)
    assert pullback.routes.dtype == np.uint8
    exactly(pullback.routes, [[3, 1], [0, 0]])
    exactly(pullback.mask(), [[0, 0, 0, 1], [0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])
    _, indices = poolgrad.max_pool2d(FOUR, 2, return_indices=True)
    assert indices.dtype == np.int64
    exactly(indices, [[5, 3], [8, 10]])


# As in AlexNet: 3x3 windows at distance 2 overlap by one row and one column.
OVERLAPPING = np.array(
    [[1.0, 2, 3, 2, 1], [2, 4, 5, 4, 2], [3, 5, 9, 5, 3], [2, 4, 5, 4, 2], [1, 2, 3, 2, 1]]
)


def test_a_winner_of_several_windows_gets_the_sum(front: Front) -> None:
    y, pullback = front.vjp("max_pool2d", OVERLAPPING, 3, 2)
    exactly(y, [[9, 9], [9, 9]])
    expected = np.zeros((5, 5))
    expected[2, 2] = 1 + 2 + 3 + 4
    exactly(pullback(np.array([[1.0, 2], [3, 4]])), expected)


def test_mask_counts_the_windows_that_an_input_won() -> None:
    _, pullback = poolgrad.vjp(poolgrad.max_pool2d, OVERLAPPING, 3, 2)
    assert pullback.mask()[2, 2] == 4
    assert pullback.mask().sum() == 4


def test_overlapping_windows_with_two_winners(front: Front) -> None:
    x = np.array([1.0, 2, 8, 3, 4, 9, 5])  # windows [1 2 8], [8 3 4], [4 9 5]
    y, pullback = front.vjp("max_pool1d", x, 3, 2)
    exactly(y, [8, 8, 9])
    exactly(pullback(np.array([1.0, 10, 100])), [0, 0, 11, 0, 0, 100, 0])


def test_overlapping_average_adds_the_shares(front: Front) -> None:
    y, pullback = front.vjp("avg_pool1d", np.array([1.0, 2, 3, 4]), 3, 1)
    exactly(y, [2, 3])
    exactly(pullback(np.array([3.0, 6])), [1, 3, 3, 2])


@pytest.mark.parametrize(
    ("ties", "expected"),
    [
        ("first", [[0, 6], [0, 0]]),
        ("split", [[0, 2], [2, 2]]),
        ("zero", [[0, 0], [0, 0]]),
    ],
)
def test_ties(front: Front, ties: str, expected: list[list[float]]) -> None:
    y, pullback = front.vjp("max_pool2d", np.array([[1.0, 7], [7, 7]]), 2, ties=ties)
    exactly(y, [[7]])
    exactly(pullback(np.array([[6.0]])), expected)


def test_without_ties_all_rules_agree(front: Front) -> None:
    gy = np.array([[1.0, 2], [3, 4]])
    gradients = [
        front.vjp("max_pool2d", FOUR, 2, ties=t)[1](gy) for t in ("first", "split", "zero")
    ]
    exactly(gradients[1], gradients[0])
    exactly(gradients[2], gradients[0])


def test_full_gradient_to_all_winners_is_refused(front: Front) -> None:
    with pytest.raises(ValueError, match=r'ties="all".*not a subgradient'):
        front.run("max_pool2d", FOUR, 2, ties="all")


def test_split_mask_shows_every_winner() -> None:
    _, pullback = poolgrad.vjp(poolgrad.max_pool1d, np.array([5.0, 5, 1, 5]), 2, 1, ties="split")
    exactly(pullback.mask(), [1, 2, 0, 1])  # windows [5 5], [5 1], [1 5]


def test_non_winners_get_exactly_zero(front: Front) -> None:
    x = np.arange(36.0).reshape(1, 1, 6, 6)
    gx = front.vjp("max_pool2d", x, 3)[1](np.full((1, 1, 2, 2), np.inf))
    won = np.zeros((6, 6), bool)
    won[2::3, 2::3] = True
    assert np.isposinf(gx[0, 0][won]).all()
    assert (gx[0, 0][~won] == 0).all()  # and not the NaN of 0 * inf
    assert not np.signbit(gx).any()


def test_gradient_of_a_batch_is_example_by_example(front: Front) -> None:
    r = np.random.default_rng(0)
    x, gy = r.standard_normal((5, 3, 6, 6)), r.standard_normal((5, 3, 3, 3))
    for fun in ("max_pool2d", "avg_pool2d"):
        whole = front.vjp(fun, x, 2)[1](gy)
        for n in range(len(x)):
            exactly(whole[n], front.vjp(fun, x[n], 2)[1](gy[n]))


def test_one_example_leaves_the_others_alone(front: Front) -> None:
    gy = np.zeros((3, 1, 2, 2))
    gy[1] = 1
    for fun in ("max_pool2d", "avg_pool2d"):
        gx = front.vjp(fun, np.tile(FOUR, (3, 1, 1, 1)), 2)[1](gy)
        assert not gx[[0, 2]].any()
        assert gx[1].sum() == 4


@pytest.mark.parametrize(("height", "width"), [(4, 4), (3, 5), (7, 7), (1, 1)])
def test_global_average_spreads_one_over_height_times_width(
    front: Front, height: int, width: int
) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, height, width))
    y, pullback = front.vjp("global_avg_pool", x)
    assert y.shape == (2, 3)
    exactly(pullback(np.ones((2, 3))), np.full(x.shape, 1 / (height * width)))


def test_global_max_routes_to_the_one_winner(front: Front) -> None:
    y, pullback = front.vjp("global_max_pool", FOUR[None, None])
    exactly(y, [[9]])
    expected = np.zeros((1, 1, 4, 4))
    expected[0, 0, 2, 2] = 5
    exactly(pullback(np.array([[5.0]])), expected)


def test_one_dimension(front: Front) -> None:
    y, pullback = front.vjp("max_pool1d", np.array([[1.0, 5, 2, 2, 7]]), 2)
    exactly(y, [[5, 2]])
    exactly(pullback(np.array([[3.0, 4]])), [[0, 3, 4, 0, 0]])


def test_three_dimensions(front: Front) -> None:
    x = np.arange(16.0).reshape(2, 2, 4)
    x[0, 1, 1] = 50
    y, pullback = front.vjp("max_pool3d", x, 2)
    exactly(y, [[[50, 15]]])
    gx = pullback(np.array([[[2.0, 3]]]))
    assert gx[0, 1, 1] == 2
    assert gx[1, 1, 3] == 3
    assert np.count_nonzero(gx) == 2


def test_dilated_and_padded_window(front: Front) -> None:
    # onnxruntime#29637. Places at -1 and 1, 0 and 2, 1 and 3, 2 and 4 of [4, 1, 3, 2].
    x = np.array([4.0, 1, 3, 2])
    y, pullback = front.vjp("max_pool1d", x, 2, 1, 1, 2)
    exactly(y, [1, 4, 2, 3])
    exactly(pullback(np.array([1.0, 2, 4, 8])), [2, 1, 8, 4])


@pytest.mark.parametrize(("counted", "shares"), [(True, [0.5, 0.5, 0.5]), (False, [1.0, 0.5, 0.5])])
def test_average_backward_with_padding(front: Front, counted: bool, shares: list[float]) -> None:
    # pytorch PR#188345: windows [pad 2], [4 6]; channels last, where it went wrong.
    x = np.array([2.0, 4, 6])[None, None, :, None]
    y, pullback = front.vjp(
        "avg_pool2d", x, (1, 2), 2, ((0, 0), (1, 0)),
        count_include_pad=counted, channels_last=True,
    )  # fmt: skip
    exactly(y.ravel(), [2 * shares[0], 5])
    exactly(pullback(np.ones_like(y)).ravel(), shares)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("pool", ["MaxPool2d", "AvgPool2d"])
def test_mean_loss_gradient_is_the_mean_of_the_examples_gradients(pool: str) -> None:
    """Nothing is averaged over a batch inside pooling: the loss alone does that."""
    from torch.func import functional_call, grad, vmap

    from poolgrad import torch as layers

    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.ReLU(),
        getattr(layers, pool)(3, 2, 1),
        torch.nn.Conv2d(4, 6, 3),
        layers.GlobalAvgPool2d(),
        torch.nn.Linear(6, 3),
    ).double()
    x, labels = torch.randn(8, 1, 9, 9).double(), torch.randint(0, 3, (8,))
    parameters = {k: v.detach() for k, v in network.named_parameters()}

    def loss(weights: dict, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        scores = functional_call(network, weights, (image[None],))
        return torch.nn.functional.cross_entropy(scores, label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, labels)
    torch.nn.functional.cross_entropy(network(x), labels).backward()
    for name, parameter in network.named_parameters():
        assert each[name].shape == (8, *parameter.shape)
        assert parameter.grad.abs().max() > 0
        # float64: sums over 8 examples, in another order
        torch.testing.assert_close(each[name].mean(0), parameter.grad, rtol=1e-12, atol=1e-14)
