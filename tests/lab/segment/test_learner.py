from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from poolgrad.lab.learner import generator
from poolgrad.lab.segment.learner import batch_iou, mask_loss, move
from poolgrad.lab.segment.scores import VOID


def scores_of(masks: torch.Tensor, classes: int, sure: float = 60.0) -> torch.Tensor:
    """Scores of a network that is sure of these classes."""
    return sure * functional.one_hot(masks, classes).movedim(-1, 1).float()


class TestMove:
    def test_images_and_masks_move_together_by_whole_pixels(self) -> None:
        images = torch.rand(40, 2, 32, 48)
        masks = (images[:, 0] * 5).long()
        moved, labels = move(images, masks, generator(0, "augmentation"))
        assert moved.shape == images.shape
        assert torch.equal((moved[:, 0] * 5).long(), labels)
        distances = set()
        for image, before in zip(moved, images, strict=True):
            (found,) = (
                (i, j)
                for i in range(-2, 3)
                for j in range(-3, 4)
                if torch.equal(image[:, 4:-4, 4:-4], before[:, 4 + i : 28 + i, 4 + j : 44 + j])
            )
            distances.add(found)
        assert len(distances) > 15

    def test_borders_are_repeated(self) -> None:
        images = torch.arange(16.0).expand(30, 1, 16, 16)
        moved, _ = move(images, images[:, 0].long(), generator(0, "augmentation"))
        rows = {tuple(row) for row in moved[:, 0, 0].tolist()}
        right = (1.0, *range(2, 16), 15.0)
        assert rows == {tuple(range(16)), right, (0.0, *range(15))}

    def test_depends_on_the_generator_only(self) -> None:
        images, masks = torch.rand(4, 1, 32, 32), torch.zeros(4, 32, 32, dtype=torch.long)
        one, other, later = (
            move(images, masks, generator(0, "augmentation", epoch))[0] for epoch in (1, 1, 2)
        )
        assert torch.equal(one, other)
        assert not torch.equal(one, later)


class TestLoss:
    def test_by_hand(self) -> None:
        # One image of two pixels, a probability of 1/2 everywhere: the entropy is log 2, and Dice
        # of the one foreground pixel 2 (1/2) / (1 + 1).
        loss = mask_loss(torch.zeros(1, 2, 1, 2), torch.tensor([[[0, 1]]]))
        assert loss.item() == pytest.approx(math.log(2) + 1 / 2)

    def test_right_is_zero_and_wrong_is_large(self) -> None:
        masks = torch.randint(0, 3, (4, 6, 5))
        assert mask_loss(scores_of(masks, 3), masks).item() == pytest.approx(0, abs=1e-6)
        assert mask_loss(scores_of((masks + 1) % 3, 3), masks).item() > 20

    def test_is_the_mean_over_images(self) -> None:
        masks, scores = torch.randint(0, 3, (4, 6, 5)), torch.randn(4, 3, 6, 5)
        each = [mask_loss(scores[i : i + 1], masks[i : i + 1]) for i in range(4)]
        torch.testing.assert_close(mask_loss(scores, masks), torch.stack(each).mean())

    def test_void_does_not_count(self) -> None:
        masks, scores = torch.randint(0, 3, (2, 6, 5)), torch.randn(2, 3, 6, 5)
        kept = mask_loss(scores[..., :3], masks[..., :3])
        masks[..., 3:] = VOID
        torch.testing.assert_close(mask_loss(scores, masks), kept)

    def test_nothing_but_void_or_background_is_finite(self) -> None:
        scores = torch.randn(1, 3, 4, 4, requires_grad=True)
        for value in (0, VOID):
            loss = mask_loss(scores, torch.full((1, 4, 4), value))
            loss.backward()
            assert loss.isfinite()
            assert scores.grad is not None
            assert scores.grad.isfinite().all()


def test_batch_iou() -> None:
    masks = torch.tensor([[[0, 1, 1, 2]], [[2, 0, 0, VOID]]])
    found = torch.tensor([[[0, 1, 0, 2]], [[0, 0, 0, 2]]])
    # Class 1: 1 of 2; class 2: 1 of 2 (that on VOID does not count); class 3 is in neither.
    assert batch_iou(scores_of(found, 4), masks).item() == 0.5
    nothing = torch.zeros(1, 2, 2, dtype=torch.long)
    assert batch_iou(scores_of(nothing, 2), nothing).item() == 1
