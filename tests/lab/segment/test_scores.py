"""IoU and boundary IoU against cases that are counted by hand, and against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from poolgrad.lab.segment.scores import (
    VOID,
    boundary,
    boundary_width,
    class_ious,
    image_scores,
    pooled_ious,
)

Mask = NDArray[np.integer]


def rectangle(size: tuple[int, int], rows: slice, columns: slice) -> Mask:
    mask = np.zeros(size, np.uint8)
    mask[rows, columns] = 1
    return mask


def distant(region: NDArray[np.bool_], width: int) -> NDArray[np.bool_]:
    """Pixels of a region near to one outside of it, or to the border: by the definition."""
    near = np.zeros_like(region)
    height, length = region.shape
    for i, j in np.argwhere(region):
        for k in range(i - width, i + width + 1):
            for m in range(j - width, j + width + 1):
                inside = 0 <= k < height and 0 <= m < length
                near[i, j] |= not inside or not region[k, m]
    return near


def plain_ious(true: Mask, predicted: Mask, classes: int, width: int | None) -> list[float]:
    ious = []
    for k in range(classes):
        found = np.where(true == VOID, VOID, predicted)
        regions = [mask == k for mask in (true, found)]
        if width is not None:
            regions = [distant(region, width) for region in regions]
        pairs = list(zip(*(region.ravel().tolist() for region in regions), strict=True))
        union = sum(a or b for a, b in pairs)
        ious.append(sum(a and b for a, b in pairs) / union if union else float("nan"))
    return ious


class TestByHand:
    def test_shifted_square(self) -> None:
        # 4 x 4 squares, one pixel apart: 12 in both, 20 in either.
        true = rectangle((8, 8), slice(2, 6), slice(2, 6))
        predicted = rectangle((8, 8), slice(2, 6), slice(3, 7))
        assert class_ious(true, predicted, 2)[1] == 12 / 20
        # Their boundaries of one pixel: two rings of 12. The rings share 3 pixels of the upper
        # side and 3 of the lower one; the ring's vertical sides lie inside the other's interior.
        assert class_ious(true, predicted, 2, 1)[1] == 6 / 18

    def test_boundary_is_a_ring_inside(self) -> None:
        square = rectangle((9, 9), slice(1, 8), slice(1, 8)).astype(bool)
        for width, inner in ((1, 5), (2, 3), (3, 1), (4, 0)):
            assert boundary(square, width).sum() == 49 - inner**2

    def test_the_border_of_the_image_is_a_contour(self) -> None:
        assert boundary(np.ones((5, 5), bool), 1).sum() == 16

    def test_same_and_disjoint(self) -> None:
        one = rectangle((6, 6), slice(0, 3), slice(0, 3))
        other = rectangle((6, 6), slice(3, 6), slice(3, 6))
        for width in (None, 1):
            assert image_scores(one[None], one[None], 2, width).tolist() == [1]
            assert image_scores(one[None], other[None], 2, width).tolist() == [0]

    def test_images_of_background_only(self) -> None:
        nothing = np.zeros((1, 6, 6), np.uint8)
        something = rectangle((6, 6), slice(2, 3), slice(2, 3))[None]
        assert image_scores(nothing, nothing, 2).tolist() == [1]
        assert image_scores(nothing, something, 2).tolist() == [0]
        assert image_scores(something, nothing, 2, 1).tolist() == [0]

    def test_mean_over_the_classes_of_the_image(self) -> None:
        true = np.array([[[1, 1, 2, 2, 0, 0]]])
        predicted = np.array([[[1, 1, 2, 0, 0, 0]]])
        # Class 1: 1; class 2: 1/2; class 3 is in neither, and class 0 is the background.
        assert image_scores(true, predicted, 4).tolist() == [0.75]

    def test_void_does_not_count(self) -> None:
        true = np.array([[[1, 1, VOID, VOID, 0, 0]]], np.uint8)
        predicted = np.array([[[1, 1, 1, 0, 0, 0]]], np.uint8)
        assert image_scores(true, predicted, 2).tolist() == [1]
        assert pooled_ious(true, predicted, 2).tolist() == [1, 1]

    def test_width_is_a_share_of_the_diagonal(self) -> None:
        assert boundary_width((4, 4)) == 1
        assert boundary_width((300, 400)) == 10

    def test_shapes_must_be_equal(self) -> None:
        with pytest.raises(ValueError, match=r"one shape \(N, H, W\)"):
            image_scores(np.zeros((1, 2, 2), int), np.zeros((2, 2), int), 2)


@pytest.mark.parametrize("width", [None, 1, 2, 3])
def test_equals_plain_loops(width: int | None) -> None:
    random = np.random.default_rng(0)
    for _ in range(12):
        size = tuple(random.integers(1, 13, 2))
        true, predicted = (
            # Blocks, so that regions have insides.
            np.kron(random.integers(0, 4, size), np.ones((3, 3), int))[: size[0], : size[1]]
            for _ in range(2)
        )
        true = np.where(random.random(size) < 0.05, VOID, true)
        expected = plain_ious(true, predicted, 4, width)
        np.testing.assert_array_equal(class_ious(true, predicted, 4, width), expected)
        foreground = [iou for iou in expected[1:] if not math.isnan(iou)]
        score = image_scores(true[None], predicted[None], 4, width)[0]
        assert score == pytest.approx(np.mean(foreground) if foreground else 1)


def test_pooled_over_images() -> None:
    random = np.random.default_rng(1)
    true, predicted = random.integers(0, 3, (2, 5, 7, 6))
    flat = true.reshape(1, -1), predicted.reshape(1, -1)
    np.testing.assert_allclose(pooled_ious(true, predicted, 4), class_ious(*flat, 4))
