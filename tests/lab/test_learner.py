from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch import nn

from poolgrad.lab import LabError, Settings
from poolgrad.lab.learner import EpochBatches, Learner, augment, generator


def batches(count: int, size: int, seed: int = 0, epoch: int = 0) -> list[list[int]]:
    sampler = EpochBatches(count, size, seed)
    sampler.set_epoch(epoch)
    found = [batch.tolist() for batch in sampler]
    assert len(sampler) == len(found)
    return found


@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [
        (10, 5, [5, 5]),
        (11, 5, [4, 4, 3]),
        (7, 64, [7]),
        (65, 64, [33, 32]),  # not 64 and 1
        (3, 2, [3]),  # not 2 and 1
        (7, 2, [3, 2, 2]),
        (2, 2, [2]),
    ],
)
def test_batches_are_even_and_never_of_one_image(count: int, size: int, sizes: list[int]) -> None:
    found = batches(count, size)
    assert [len(batch) for batch in found] == sizes
    assert sorted(chain.from_iterable(found)) == list(range(count))


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    torch.manual_seed(1)
    first = batches(40, 10, seed=3, epoch=5)
    torch.manual_seed(2)
    assert batches(40, 10, seed=3, epoch=5) == first
    assert batches(40, 10, seed=3, epoch=6) != first
    assert batches(40, 10, seed=4, epoch=5) != first
    assert batches(40, 10, seed=4, epoch=4) != batches(40, 10, seed=3, epoch=5)


def test_purposes_have_their_own_numbers() -> None:
    drawn = {
        torch.rand((), generator=generator(0, purpose, epoch)).item()
        for purpose in ("weights", "order", "augmentation")
        for epoch in range(3)
    }
    assert len(drawn) == 9


def test_augmentation_moves_every_image_by_its_own_amount() -> None:
    image = torch.zeros(1, 1, 16, 16)
    image[..., 4:12, 6:10] = 1
    moved = augment(image.expand(8, 1, 16, 16), generator(0, "augmentation"))
    assert moved.shape == (8, 1, 16, 16)
    assert len({tuple(one.flatten().tolist()) for one in moved}) == 8
    # Still the same picture: a little turned, scaled, moved.
    overlap = (moved * image).sum(dim=(1, 2, 3)) / image.sum()
    assert overlap.min() > 0.6
    assert overlap.max() < 1
    again = augment(image.expand(8, 1, 16, 16), generator(0, "augmentation"))
    assert torch.equal(again, moved)


def test_a_loss_that_is_no_number_blames_the_learning_rate() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    learner = Learner(network, Settings.from_options({"lr": 1e6}))
    learner.on_train_epoch_start()
    batch = torch.full((4, 1, 8, 8), torch.inf), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(
        LabError, match=r"^--lr 1e\+06 is too large: the loss became nan in epoch 1"
    ):
        learner.training_step(batch, 0)
