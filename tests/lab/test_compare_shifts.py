"""Shifts of images, the agreement of predictions, and networks that do not notice a shift."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from poolgrad.lab.compare import shifts
from poolgrad.lab.model import Design, Network
from poolgrad.lab.settings import Settings


def test_a_circular_shift_moves_every_pixel() -> None:
    image = np.arange(12).reshape(1, 1, 3, 4)
    assert shifts.roll(image, 1, 0)[0, 0].tolist() == [[8, 9, 10, 11], [0, 1, 2, 3], [4, 5, 6, 7]]
    assert shifts.roll(image, 0, -1)[0, 0, 0].tolist() == [1, 2, 3, 0]


def test_a_cropped_shift_repeats_the_border() -> None:
    image = np.arange(12).reshape(1, 1, 3, 4)
    assert shifts.crop(image, 1, 0)[0, 0].tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]
    assert shifts.crop(image, -1, 2)[0, 0].tolist() == [[4, 4, 4, 5], [8, 8, 8, 9], [8, 8, 8, 9]]
    assert np.array_equal(shifts.crop(image, 0, 0), image)


def test_agreement_counts_pairs() -> None:
    predictions = np.random.default_rng(0).integers(0, 3, (5, 7))
    pairs = list(itertools.combinations(range(5), 2))
    expected = np.mean([predictions[i] == predictions[j] for i, j in pairs], axis=0)
    assert shifts.agreement(predictions) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("most", "distances"),
    [(1, [0, 1]), (4, [0, 1, 2, 3, 4]), (16, [0, 1, 3, 5, 7, 10, 12, 14, 16])],
)
def test_distances(most: int, distances: list[int]) -> None:
    assert shifts.chosen_distances(most).tolist() == distances


def test_what_is_measured_is_what_was_predicted() -> None:
    images = np.zeros((2, 1, 8, 8))
    images[0, 0, 3, 3] = images[1, 0, 0, 7] = 1
    asked = []

    def predict(shown: Any) -> Any:
        """The column of the brightest pixel, whichever its row."""
        asked.append(shown)
        return shown[:, 0].max(axis=1).argmax(axis=1)

    labels = np.array([3, 7])
    found = shifts.measure(predict, images, labels, 2)
    assert len(asked) == shifts.evaluations(2) == 17
    assert found.distances == (0, 1, 2)
    assert found.circular_accuracy[0] == found.cropped_accuracy[0] == 1
    # Of the four directions only "down" leaves the column.
    assert found.circular_accuracy[1:].tolist() == [0.25, 0.25]
    assert found.cropped_accuracy[1:].tolist() == [0.25, 0.25]
    # Columns 3 (of 3 shifts), 4, 5 (of 2), 2, 1: 3 + 1 + 1 of 36 pairs.
    assert found.circular_agreement[0] == pytest.approx(5 / 36)
    assert found.circular_consistency == pytest.approx(found.circular_agreement.mean())


def make(pool: str, padding: Any) -> tuple[Network, torch.Tensor]:
    images = np.random.default_rng(1).integers(0, 255, (24, 2, 16, 16), np.uint8)
    settings = Settings.from_options({"data": "images.npz", "pool": pool})
    torch.manual_seed(3)
    network = Network(images, 10, settings, Design((16, 32, 32, 32), "weights", padding)).eval()
    return network, torch.from_numpy(images)


@torch.no_grad()
def test_polyphase_sampling_never_notices_a_circular_shift() -> None:
    network, images = make("aps", "circular")
    assert len(network.maps) == 4
    assert {type(m).__name__ for m in network.modules()} >= {"AdaptivePolyphasePool2d"}
    scores = network(images)
    assert scores.argmax(1).unique().numel() > 1
    for down, right in itertools.product(range(0, 16, 3), range(0, 16, 5)):
        moved = network(images.roll((down, right), (2, 3)))
        assert torch.equal(moved.argmax(1), scores.argmax(1))
        torch.testing.assert_close(moved, scores, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(("pool", "padding"), [("max", "circular"), ("aps", "zeros")])
def test_others_do(pool: str, padding: str) -> None:
    network, images = make(pool, padding)
    moved = network(images.roll((1, 1), (2, 3)))
    assert not torch.allclose(moved, network(images), rtol=1e-2, atol=1e-3)


@torch.no_grad()
def test_without_downsampling_no_circular_shift_is_noticed() -> None:
    network, images = make("none", "circular")
    assert network.maps == [(16, 16)] * 4
    moved = network(images.roll((3, 7), (2, 3)))
    torch.testing.assert_close(moved, network(images), rtol=1e-4, atol=1e-5)
