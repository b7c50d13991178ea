"""The data and the protocol of comparisons that segment images. Imports no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from poolgrad.lab.compare.options import DEFAULT_SIDE
from poolgrad.lab.compare.tasks import Described
from poolgrad.lab.images import header_size, image_files
from poolgrad.lab.segment import data as masked
from poolgrad.lab.segment.canvas import SIDE
from poolgrad.lab.segment.scores import VOID, boundary_width
from poolgrad.lab.segment.variants import REFERENCE
from poolgrad.lab.settings import SCATTERED_DIGITS, counted, steps_per_epoch

if TYPE_CHECKING:
    from poolgrad.lab.compare.options import Plan

WIDTHS = (8, 16, 32)  # channels of the U-Net's levels, from the image's size down


def load(plan: Plan) -> masked.MaskedImages:
    """Read and check images and masks.

    Those of a folder whose images have several sizes, or more than 64 x 64 pixels, are resized to
    64 x 64 unless the plan has a size.
    """
    return masked.load(plan.data, _chosen_size(plan))


def _chosen_size(plan: Plan) -> int | None:
    folder = Path(plan.data) / "images"
    if plan.size is not None or not folder.is_dir():
        return plan.size
    sizes = {header_size(file) for file in image_files(folder)} - {None}
    alike = len(sizes) <= 1 and all(size and max(size) <= DEFAULT_SIDE for size in sizes)
    return None if alike else DEFAULT_SIDE


def describe(plan: Plan, data: masked.MaskedImages) -> Described:
    """Facts about images, masks and their split."""
    parts = masked.split(data)
    height, width = data.size
    channels = "greyscale" if data.images.shape[1] == 1 else f"{data.images.shape[1]} channels"
    if plan.data == SCATTERED_DIGITS:
        source = (
            f"scikit-learn's handwritten digits, one to three of them on each canvas of {SIDE} x"
            f" {SIDE}, above line segments and discs, with noise; each digit is used once"
        )
    else:
        source = plan.data
    counts = np.bincount(data.masks.ravel(), minlength=VOID + 1)
    shares = counts[: len(data.classes)] / max(counts[:VOID].sum(), 1)
    classes = ", ".join(
        f"{name} ({share:.1%} of the pixels)"
        for name, share in zip(data.classes, shares, strict=True)
    )
    facts = {
        "data": f"{source}: {len(data.images)} images of {height} x {width}, {channels}",
        "classes": f"{classes}; the first one is the background",
        "split": (
            f"{len(parts.train)} images for training, {len(parts.validation)} for validation,"
            f" {len(parts.test)} for the test; stratified by the rarest class in each image, the"
            " same in all runs"
        ),
    }
    identity = masked.describe(data, parts)
    return Described(facts, identity, len(parts.train), len(parts.test), data.size)


def protocol(plan: Plan, described: Described) -> dict[str, str]:
    """Facts about networks, training and scores."""
    assert plan.batch_size is not None, "chosen for the data"
    assert plan.epochs is not None
    steps = steps_per_epoch(described.training, plan.batch_size)
    return {
        "network": (
            f"U-Net with {len(WIDTHS)} levels of {', '.join(map(str, WIDTHS))} channels; two"
            f" convolutions 3 x 3 (padding {plan.conv_padding}) in each level of encoder and"
            " decoder, with scaled weight standardisation (Brock et al., 2021) and ReLU; the"
            " decoder also gets the encoder's map of the same size. Between the levels the"
            f" downsampling (kernel {plan.kernel}, stride 2) and its counterpart: unpooling at the"
            " indices of the maxima for max_unpool, a transposed convolution for strided, dilated"
            " convolutions and no change of size for dilated, bilinear interpolation for all"
            " others. Where a variant has weights of its own, the width of the deepest level is"
            f" changed so that the number of weights comes closest to that of {REFERENCE}"
        ),
        "training": (
            f"{counted(plan.epochs, 'epoch')} of {counted(steps, 'step')}, batch size"
            f" {plan.batch_size}; cross entropy plus Dice loss; Adam, learning rate up to"
            f" {plan.lr:g}, linear warm-up over 10 % of the steps, then cosine decay to 0; the last"
            " weights are tested"
        ),
        "augmentation": "translations of up to 1/16 of the sides by whole pixels",
        "scores": (
            "for each test image the mean IoU over the classes in its true or predicted mask,"
            " without the background; 1 if there is none. Boundary IoU (Cheng et al., 2021): the"
            " same of the pixels of each region within"
            f" {counted(boundary_width(described.size), 'pixel')} of its contour, 2 % of the"
            " image's diagonal rounded down. The accuracy of the learning curves is the mean IoU of"
            " batches"
        ),
    }
