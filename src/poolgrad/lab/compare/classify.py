"""The data and the protocol of comparisons that classify images. Imports no PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from poolgrad.lab import data as lab_data
from poolgrad.lab.compare.options import DEFAULT_SIDE, LARGEST_FOR_NONE, STRIDE, Plan
from poolgrad.lab.compare.tasks import Described
from poolgrad.lab.pools import HEAD_TITLES
from poolgrad.lab.settings import counted, steps_per_epoch

WIDTHS = (16, 32, 32, 32)  # channels of the convolutions


def load(plan: Plan) -> lab_data.LabelledImages:
    """Read and check the images.

    Those of a folder that have several sizes, or more than 64 x 64 pixels, are resized to 64 x 64
    unless the plan has a size.
    """
    return lab_data.load(plan.data, chosen_size(plan))


def chosen_size(plan: Plan) -> int | None:
    """Side to which the images of a folder are resized; None: they keep their size."""
    folder = Path(plan.data)
    if plan.size is not None or not folder.is_dir():
        return plan.size
    sizes = lab_data.image_sizes(folder)
    alike = len(sizes) <= 1 and all(max(size) <= DEFAULT_SIDE for size in sizes)
    return None if alike else DEFAULT_SIDE


def describe(plan: Plan, data: lab_data.LabelledImages) -> Described:
    """Facts about the images and their split."""
    parts = lab_data.split(data)
    height, width = data.size
    channels = "greyscale" if data.images.shape[1] == 1 else f"{data.images.shape[1]} channels"
    counts = np.bincount(data.labels)
    source = {
        "digits": "scikit-learn's handwritten digits",
        "translated-digits": "scikit-learn's handwritten digits (8 x 8), each at a random place on"
        " an empty canvas",
    }.get(plan.data, plan.data)
    facts = {
        "data": f"{source}: {len(data.labels)} images of {height} x {width}, {channels}",
        "classes": f"{len(data.classes)}, with {counts.min()} to {counts.max()} images each",
        "split": (
            f"{len(parts.train)} images for training, {len(parts.validation)} for validation,"
            f" {len(parts.test)} for the test; stratified by class, the same in all runs"
        ),
    }
    identity = lab_data.describe(data, parts)
    return Described(facts, identity, len(parts.train), len(parts.test), data.size)


def protocol(plan: Plan, described: Described) -> dict[str, str]:
    """Facts about networks, training and shifts."""
    assert plan.batch_size is not None, "chosen for the data"
    assert plan.epochs is not None
    steps = steps_per_epoch(described.training, plan.batch_size)
    heads = "; ".join(HEAD_TITLES[head] for head in plan.heads)
    facts = {
        "network": (
            f"{len(WIDTHS)} convolutions 3 x 3 at most ({', '.join(map(str, WIDTHS))} channels,"
            f" padding {plan.conv_padding}) with scaled weight standardisation (Brock et al. 2021:"
            " no batch statistics, so that small batches do no harm) and ReLU; between them the"
            f" downsampling (kernel {plan.kernel}, stride {STRIDE}); head: {heads}. `none` dilates"
            " the convolutions instead"
        ),
        "training": (
            f"{counted(plan.epochs, 'epoch')} of {counted(steps, 'step')}, batch size"
            f" {plan.batch_size}; Adam, learning rate up to {plan.lr:g}, linear warm-up over 10 %"
            " of the steps, then cosine decay to 0; label smoothing 0.1; the last weights are"
            " tested"
        ),
        "augmentation": (
            "rotations of up to 10 degrees, scales of up to exp(0.1), translations of up to 1/16 of"
            " the side; images seen in training are shifted, too, which lifts all consistencies"
        ),
        "shifts": (
            f"test images are shifted by 1 to {plan.shifts} pixels to the right, down, and along"
            " both diagonals; circular: pixels that leave the image come in on its other side;"
            " cropped: the pixels of the border are repeated outwards, and a window of the image's"
            " size is cut out. Consistency: share of pairs of shifts of one image, the unshifted"
            " image included, that get the same class"
        ),
    }
    if not plan.chosen and min(described.size) > LARGEST_FOR_NONE:
        facts["left out"] = (
            f"`none`, since images are larger than {LARGEST_FOR_NONE} pixels and it would take most"
            " of the time; --pool with `none` in its list trains it"
        )
    return facts
