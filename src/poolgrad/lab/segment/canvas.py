"""Draws the default data of the segmentation task: digits among distractors on noisy canvases."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

SIDE = 64
CANVASES = 400

_SEED = 0
_DIGIT_SIDES = (20, 34)  # smallest and largest, in pixels, with a margin
_TRIALS = 20  # positions that are tried for a digit before it is omitted
_NOISE = 0.06  # standard deviation; ink is 0.55 to 1

Plane = NDArray[np.float64]


def scatter_digits(canvases: int = CANVASES) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Draw canvases with one to three of scikit-learn's digits each, and their masks.

    Digits of random size do not overlap one another, and lie above line segments and discs of the
    same range of brightness, width and sharpness of edges. The background varies smoothly, and all
    pixels have Gaussian noise. No digit is drawn twice. The result is always the same.

    Parameters
    ----------
    canvases
        How many, at most 599 (there are 1,797 digits).

    Returns
    -------
    images
        Shape (canvases, 1, 64, 64), uint8.
    masks
        Shape (canvases, 64, 64), uint8: 1 where a digit covers at least half of a pixel.
    """
    from sklearn.datasets import load_digits

    # With a margin, strokes at the border of a digit's image have a soft edge, too.
    digits = np.pad(load_digits().images / 16, ((0, 0), (1, 1), (1, 1)))
    random = np.random.default_rng(_SEED)
    order = random.permutation(len(digits)).reshape(-1, 3)
    images = np.empty((canvases, 1, SIDE, SIDE), np.uint8)
    masks = np.empty((canvases, SIDE, SIDE), np.uint8)
    for i in range(canvases):
        canvas, mask = _draw(digits[order[i, : random.integers(1, 4)]], random)
        images[i, 0] = np.rint(canvas * 255)
        masks[i] = mask
    return images, masks


def _draw(digits: Plane, random: np.random.Generator) -> tuple[Plane, NDArray[np.bool_]]:
    smooth = ndimage.gaussian_filter(random.standard_normal((SIDE, SIDE)), 12, mode="wrap")
    canvas = 0.2 + 0.1 * smooth / smooth.std()
    for _ in range(random.integers(3, 7)):
        canvas = _paint(canvas, _distractor(random), random)
    mask = np.zeros((SIDE, SIDE), bool)
    taken = np.zeros((SIDE, SIDE), bool)
    for digit in digits:
        side = int(random.integers(_DIGIT_SIDES[0], _DIGIT_SIDES[1] + 1))
        grown = ndimage.zoom(digit, side / len(digit), order=1, mode="nearest", grid_mode=True)
        for _ in range(_TRIALS):
            row, column = random.integers(0, SIDE - side + 1, 2)
            region = slice(row, row + side), slice(column, column + side)
            if not taken[region].any():
                break
        else:
            continue
        cover = np.zeros((SIDE, SIDE))
        cover[region] = grown
        canvas = _paint(canvas, cover, random)
        mask |= cover >= 0.5
        taken[region] = True
    canvas += _NOISE * random.standard_normal(canvas.shape)
    return canvas.clip(0, 1), mask


def _paint(canvas: Plane, cover: Plane, random: np.random.Generator) -> Plane:
    """Lay ink of a random brightness over the canvas; `cover` is its opacity."""
    ink = random.uniform(0.55, 1)
    return canvas * (1 - cover) + ink * cover


def _distractor(random: np.random.Generator) -> Plane:
    """Opacity of a line segment with round ends, or of a disc."""
    begin = random.uniform(0, SIDE, 2)
    if random.random() < 0.3:
        end, radius = begin, random.uniform(2, 6)
    else:
        angle, length = random.uniform(0, 2 * np.pi), random.uniform(8, 36)
        end = begin + length * np.array([np.sin(angle), np.cos(angle)])
        radius = random.uniform(1.2, 3)
    pixels = np.moveaxis(np.indices((SIDE, SIDE)), 0, -1) - begin
    along = end - begin
    share = (pixels @ along / max(float(along @ along), 1e-9)).clip(0, 1)
    distance = np.linalg.norm(pixels - share[..., None] * along, axis=-1)
    # Soft edges, like those of enlarged digits of 8 x 8 pixels.
    return ((radius - distance) / 2 + 0.5).clip(0, 1)
