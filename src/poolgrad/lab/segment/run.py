"""One run of a comparison that segments images: network, training, predictions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from poolgrad.lab.batches import dataset, in_order
from poolgrad.lab.callbacks import History, quiet_lightning
from poolgrad.lab.checkpoint import finished_epochs
from poolgrad.lab.compare.results import Example, RunResult
from poolgrad.lab.compare.run import begin, kept_rows, predictor
from poolgrad.lab.compare.tasks import Case, Job
from poolgrad.lab.data import Split
from poolgrad.lab.fit import fit, using_threads
from poolgrad.lab.folder import RunFolder
from poolgrad.lab.learner import generator
from poolgrad.lab.model import Standardise
from poolgrad.lab.segment import data as masked
from poolgrad.lab.segment.learner import MaskLearner, mask_loss
from poolgrad.lab.segment.protocol import WIDTHS
from poolgrad.lab.segment.scores import boundary_width, image_scores
from poolgrad.lab.segment.trace import follow
from poolgrad.lab.segment.unet import UNet, matched_widths, parameter_count

_EVALUATION_PIXELS = 2**18  # of a batch in evaluation


def run_one(job: Job, data: masked.MaskedImages, folder: Path) -> tuple[RunResult, list[Example]]:
    """Train from the last checkpoint, and test.

    Parameters
    ----------
    job
        Which run.
    data
        All images; they are split here, in the same way every time.
    folder
        Folder of the run: settings, metrics and checkpoint. The result is left to the caller.

    Raises
    ------
    LabError
        If the folder belongs to another run, its checkpoint is damaged, or the training diverges.
    """
    parts = masked.split(data)
    network = make_network(job, data, parts)
    settings, run = job.settings, RunFolder(folder)
    threads = begin(run, job, masked.describe(data, parts) | {"method": job.method})
    done = finished_epochs(run, network, settings)
    batch = max(1, _EVALUATION_PIXELS // (data.size[0] * data.size[1]))
    with quiet_lightning(), using_threads(threads):
        train, validation = (
            dataset(data.images, data.masks, part) for part in (parts.train, parts.validation)
        )
        fit(
            MaskLearner(network, settings),
            settings,
            run,
            History(run, settings),
            (train, in_order(validation, batch)),
            done,
            devices=job.devices,
        )
        images, true = data.images[parts.test], data.masks[parts.test]
        predicted = predictor(network, batch)(images)
        scores = _scores(data, true, predicted)
        examples = [
            _example(network, job, data, i, int(parts.test[i]), scores)
            for i in range(min(job.examples, len(images)))
        ]
    rows = kept_rows(run)
    nothing = np.zeros(0, np.int64)
    result = RunResult(
        method=job.method,
        head=job.head,
        seed=job.seed,
        labels=nothing,
        predicted=nothing,
        scores=scores,
        curves=rows,
        shifts=None,
        seconds=sum(row["seconds"] for row in rows),
        parameters=parameter_count(network),
    )
    return result, examples


def case(job: Job, data: masked.MaskedImages) -> Case:
    """The network with its first weights, and a batch of training images."""
    parts = masked.split(data)
    network = make_network(job, data, parts)
    assert job.settings.batch_size is not None
    first = parts.train[: job.settings.batch_size]
    images = torch.from_numpy(data.images[first]).float()
    masks = torch.from_numpy(data.masks[first]).long()
    return Case(network, images, lambda: mask_loss(network(images), masks))


def make_network(job: Job, data: masked.MaskedImages, parts: Split) -> nn.Sequential:
    """The network of a run, with the weights that its seed gives it."""
    channels, classes, kernel = data.images.shape[1], len(data.classes), job.settings.kernel
    widths = matched_widths(channels, classes, job.method, WIDTHS, kernel)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(job.settings.seed, "weights").initial_seed())
        unet = UNet(channels, classes, job.method, widths, kernel, job.conv_padding)
    return nn.Sequential(Standardise(data.images[parts.train]), unet)


def _example(
    network: nn.Sequential,
    job: Job,
    data: masked.MaskedImages,
    position: int,
    index: int,
    scores: Mapping[str, NDArray[np.float64]],
) -> Example:
    """Return the example of a test image: its position in the test part, its index in the data."""
    found = follow(network, job.method, job.settings, data.images[index])
    return Example(
        method=job.method,
        image=found.image,
        before=found.before,
        after=found.after,
        arriving=found.arriving,
        returned=found.returned,
        share=found.share,
        winners=found.winners,
        label=f"image {index}",
        predicted=(
            f"IoU {scores['iou'][position]:.3f},"
            f" boundary IoU {scores['boundary_iou'][position]:.3f}"
        ),
        true_mask=data.masks[index],
        predicted_mask=found.mask,
    )


def _scores(
    data: masked.MaskedImages, true: NDArray[np.uint8], predicted: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    classes, width = len(data.classes), boundary_width(data.size)
    return {
        "iou": image_scores(true, predicted, classes),
        "boundary_iou": image_scores(true, predicted, classes, width),
    }
