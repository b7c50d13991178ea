"""Shifts test images, circularly and by cropping, and compares the predictions.

Shifts and consistency: Zhang 2019, "Making convolutional networks shift-invariant again", and
Chaman & Dokmanic 2021, "Truly shift-invariant convolutional neural networks".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from poolgrad.lab.compare.results import Array, FloatArray, IntArray, ShiftCurve

Predict = Callable[[Array], IntArray]

# Right, down and both diagonals; opposite shifts are equivalent, except at the border.
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
_MOST_DISTANCES = 8


def measure(predict: Predict, images: Array, labels: IntArray, most: int) -> ShiftCurve:
    """Predict the classes of shifted images.

    Parameters
    ----------
    predict
        Images, shape (T, C, H, W), to classes, shape (T,).
    images, labels
        The test images and their classes, shape (T,).
    most
        Longest shift in pixels, at least 1. Up to 8 distances from 1 on are evaluated, each in the
        four directions of `DIRECTIONS`.
    """
    distances = tuple(int(d) for d in chosen_distances(most))
    unshifted = predict(images)
    circular, cropped = ([[unshifted]] for _ in range(2))
    for distance in distances[1:]:
        offsets = [(distance * down, distance * right) for down, right in DIRECTIONS]
        circular.append([predict(roll(images, *offset)) for offset in offsets])
        cropped.append([predict(crop(images, *offset)) for offset in offsets])
    agreements = [agreement(np.concatenate(every)) for every in (circular, cropped)]
    return ShiftCurve(
        distances=distances,
        circular_accuracy=np.array([np.mean(np.array(some) == labels) for some in circular]),
        cropped_accuracy=np.array([np.mean(np.array(some) == labels) for some in cropped]),
        circular_consistency=float(agreements[0].mean()),
        cropped_consistency=float(agreements[1].mean()),
        circular_agreement=agreements[0],
        cropped_agreement=agreements[1],
    )


def chosen_distances(most: int) -> IntArray:
    """Distances from 0 to `most` pixels: all of them, or eight beside 0."""
    steps = np.linspace(1, most, min(most, _MOST_DISTANCES)).round().astype(np.int64)
    return np.concatenate([[0], np.unique(steps)])


def evaluations(most: int) -> int:
    """Return how many times `measure` predicts the classes of all test images."""
    return 1 + 2 * len(DIRECTIONS) * (len(chosen_distances(most)) - 1)


def roll(images: Array, down: int, right: int) -> Array:
    """Shift circularly: pixels that leave an image enter on its other side.

    Parameters
    ----------
    images
        Shape (..., H, W).
    down, right
        In pixels.
    """
    return np.roll(images, (down, right), (-2, -1))


def crop(images: Array, down: int, right: int) -> Array:
    """Shift by moving the window that is cut out of an image whose border pixels are repeated.

    Parameters
    ----------
    images
        Shape (..., H, W).
    down, right
        In pixels.
    """
    height, width = images.shape[-2:]
    rows = np.clip(np.arange(height) - down, 0, height - 1)
    columns = np.clip(np.arange(width) - right, 0, width - 1)
    return images[..., rows[:, None], columns]


def agreement(predictions: Sequence[IntArray] | IntArray) -> FloatArray:
    """Share of pairs of shifts of one image that get the same class.

    Parameters
    ----------
    predictions
        Classes, shape (K, T), of K >= 2 shifts of T images.

    Returns
    -------
    ndarray
        Shape (T,).
    """
    classes = np.asarray(predictions)
    counts = np.zeros((int(classes.max(initial=0)) + 1, classes.shape[1]))
    for row in classes:
        counts[row, np.arange(len(row))] += 1
    shifts = len(classes)
    return (counts * (counts - 1)).sum(0) / (shifts * (shifts - 1))
