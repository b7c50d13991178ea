"""Intersection over union (IoU) of predicted and true masks, and of their boundaries.

The scores of an image are means over its classes: those that the true or the predicted mask of this
image contains, without class 0, the background. An image whose masks contain no such class has the
score 1. Pixels that are `VOID` in the true mask do not count.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

VOID = 255  # value in masks, as in Pascal VOC
BOUNDARY_SHARE = 0.02  # of the image's diagonal, as in Cheng et al.

_SQUARE = np.ones((3, 3), bool)

Mask = NDArray[np.integer]
Region = NDArray[np.bool_]


def boundary_width(size: tuple[int, int], share: float = BOUNDARY_SHARE) -> int:
    """Width of the boundary in pixels for images of this height and width.

    Parameters
    ----------
    size
        Height and width.
    share
        Width as a share of the diagonal.

    Returns
    -------
    int
        The share rounded down, at least 1. Cheng et al. round to the nearest integer; on small
        images, two pixels from each side are all of a thin object.

    Examples
    --------
    >>> boundary_width((64, 64)), boundary_width((480, 640))
    (1, 16)
    """
    return max(1, math.floor(share * math.hypot(*size)))


def boundary(region: Region, width: int) -> Region:
    """Pixels of a region that are within `width` pixels of its contour.

    A pixel belongs to the boundary if fewer than `width` erosions with a 3 x 3 square leave it,
    that is, if a pixel outside of the region is at a chessboard distance of at most `width`. What
    lies beyond the image is outside of the region.

    Parameters
    ----------
    region
        Shape (H, W), bool.
    width
        At least 1.

    Returns
    -------
    NDArray[bool]
        Shape (H, W).

    Examples
    --------
    >>> import numpy as np
    >>> boundary(np.ones((3, 4), bool), 1).astype(int)
    array([[1, 1, 1, 1],
           [1, 0, 0, 1],
           [1, 1, 1, 1]])
    """
    inner = ndimage.binary_erosion(region, _SQUARE, iterations=width, border_value=0)
    return region & ~inner


def class_ious(
    true: Mask, predicted: Mask, classes: int, width: int | None = None
) -> NDArray[np.float64]:
    """IoU of every class in one image.

    Parameters
    ----------
    true, predicted
        Class numbers, shape (H, W); `true` may contain `VOID`.
    classes
        Number of classes, including the background 0.
    width
        None: IoU of the regions. Otherwise boundary IoU: that of their boundaries of this width,
        each of them taken inside of its own region (Cheng et al., 2021, "Boundary IoU: Improving
        object-centric image segmentation evaluation").

    Returns
    -------
    NDArray[float64]
        Shape (classes,); NaN for classes that neither mask contains.

    Examples
    --------
    >>> import numpy as np
    >>> class_ious(np.array([[0, 1, 1, 1]]), np.array([[0, 0, 1, 1]]), 3)
    array([0.5       , 0.66666667,        nan])
    """
    counts = true != VOID
    predicted = np.where(counts, predicted, VOID)
    ious = np.full(classes, np.nan)
    for k in range(classes):
        regions = true == k, predicted == k
        if width is not None:
            regions = boundary(regions[0], width), boundary(regions[1], width)
        union = np.count_nonzero(regions[0] | regions[1])
        if union:
            ious[k] = np.count_nonzero(regions[0] & regions[1]) / union
    return ious


def image_scores(
    true: Mask, predicted: Mask, classes: int, width: int | None = None
) -> NDArray[np.float64]:
    """Scores of images: the mean IoU, or boundary IoU, of the classes of each image.

    Parameters
    ----------
    true, predicted
        Class numbers, shape (N, H, W); `true` may contain `VOID`.
    classes
        Number of classes, including the background 0, which is left out of the mean.
    width
        None for IoU; the boundary's width for boundary IoU.

    Returns
    -------
    NDArray[float64]
        Shape (N,), from 0 to 1.

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> import numpy as np
    >>> true = np.array([[[0, 1, 1]], [[0, 0, 0]]])
    >>> image_scores(true, np.array([[[0, 0, 1]], [[0, 0, 0]]]), 2)
    array([0.5, 1. ])
    """
    if true.shape != predicted.shape or true.ndim != 3:
        raise ValueError(
            f"true and predicted must have one shape (N, H, W), got {true.shape} and"
            f" {predicted.shape}"
        )
    scores = np.ones(len(true))
    for i in range(len(true)):
        ious = class_ious(true[i], predicted[i], classes, width)[1:]
        found = ious[~np.isnan(ious)]
        if len(found):
            scores[i] = found.mean()
    return scores


def pooled_ious(true: Mask, predicted: Mask, classes: int) -> NDArray[np.float64]:
    """IoU of every class over the pixels of all images together.

    Parameters
    ----------
    true, predicted
        Class numbers, shape (N, H, W); `true` may contain `VOID`.
    classes
        Number of classes.

    Returns
    -------
    NDArray[float64]
        Shape (classes,); NaN for classes that no mask contains.
    """
    counts = true != VOID
    cells = true[counts].astype(np.int64) * classes + predicted[counts]
    confusion = np.bincount(cells, minlength=classes**2).reshape(classes, classes)
    right = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - right
    with np.errstate(invalid="ignore"):
        return np.where(union > 0, right / union, np.nan)
