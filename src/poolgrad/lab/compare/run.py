"""One run of a comparison that classifies images: network, training, predictions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from poolgrad.lab import data as lab_data
from poolgrad.lab.batches import dataset, in_order
from poolgrad.lab.callbacks import History, quiet_lightning
from poolgrad.lab.checkpoint import finished_epochs
from poolgrad.lab.compare import shifts
from poolgrad.lab.compare.classify import WIDTHS
from poolgrad.lab.compare.results import Array, Example, IntArray, RunResult
from poolgrad.lab.compare.tasks import Case, Job
from poolgrad.lab.fit import fit, using_threads
from poolgrad.lab.folder import RunFolder
from poolgrad.lab.learner import Learner, generator
from poolgrad.lab.model import Design, Network
from poolgrad.lab.settings import LabError
from poolgrad.lab.trace import follow
from poolgrad.lab.versions import versions

_EVALUATION_BATCH = 256


def run_one(
    job: Job, data: lab_data.LabelledImages, folder: Path
) -> tuple[RunResult, list[Example]]:
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
    parts = lab_data.split(data)
    network = make_network(job, data, parts)
    settings, run = job.settings, RunFolder(folder)
    threads = begin(run, job, lab_data.describe(data, parts))
    done = finished_epochs(run, network, settings)
    history, learner = History(run, settings), Learner(network, settings)
    with quiet_lightning(), using_threads(threads):
        train, validation = (
            dataset(data.images, data.labels, part) for part in (parts.train, parts.validation)
        )
        fit(
            learner,
            settings,
            run,
            history,
            (train, in_order(validation, _EVALUATION_BATCH)),
            done,
            devices=job.devices,
        )
        rows = kept_rows(run)
        predict = predictor(network, _EVALUATION_BATCH)
        images, labels = data.images[parts.test], data.labels[parts.test]
        predicted = predict(images)
        curve = shifts.measure(predict, images, labels, job.shifts)
        examples = [
            _example(network, job, data, int(index))
            for index in example_images(labels, job.examples, parts.test)
        ]
    result = RunResult(
        method=job.method,
        head=job.head,
        seed=job.seed,
        labels=labels,
        predicted=predicted,
        scores={"correct": (predicted == labels).astype(np.float64)},
        curves=rows,
        shifts=curve,
        seconds=sum(row["seconds"] for row in rows),
        parameters=network.parameter_count,
    )
    return result, examples


def case(job: Job, data: lab_data.LabelledImages) -> Case:
    """The network with its first weights, and a batch of training images."""
    parts = lab_data.split(data)
    network = make_network(job, data, parts)
    assert job.settings.batch_size is not None
    first = parts.train[: job.settings.batch_size]
    images = torch.from_numpy(data.images[first]).float()
    labels = torch.from_numpy(data.labels[first])
    return Case(network, images, lambda: functional.cross_entropy(network(images), labels))


def make_network(job: Job, data: lab_data.LabelledImages, parts: lab_data.Split) -> Network:
    """The network of a run, with the weights that its seed gives it."""
    design = Design(WIDTHS, "weights", job.conv_padding)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(job.settings.seed, "weights").initial_seed())
        return Network(data.images[parts.train], len(data.classes), job.settings, design)


def begin(run: RunFolder, job: Job, described: dict[str, object]) -> int:
    """Begin a run or reopen its folder, and return the number of threads it began with.

    Raises
    ------
    LabError
        If the folder belongs to a run with other settings or data.
    """
    stored = run.stored()
    if stored is None:
        content = {"settings": job.settings.as_dict(), "data": described, "versions": versions()}
        run.begin(content | {"threads": job.threads})
        return job.threads
    free = {"data": None}  # the data may have moved
    if stored["data"] != described or stored["settings"] | free != job.settings.as_dict() | free:
        raise LabError(f"{run.settings} belongs to another run; remove {run.path} to begin again")
    return int(stored["threads"])


def kept_rows(run: RunFolder) -> list[dict[str, float]]:
    """The metrics of all epochs, from the checkpoint: another process may have trained."""
    content = torch.load(run.checkpoint, weights_only=True)
    return list(content["callbacks"][History.__qualname__]["rows"])


def predictor(network: nn.Module, batch: int) -> Callable[[Array], IntArray]:
    """Return a function from images, shape (T, C, H, W), to the predicted classes.

    Parameters
    ----------
    network
        Images to scores, whose second axis are the classes.
    batch
        How many images at a time.
    """
    network.eval()

    def predict(images: Array) -> IntArray:
        with torch.no_grad():
            parts = torch.from_numpy(np.ascontiguousarray(images)).split(batch)
            classes: IntArray = torch.cat([network(part).argmax(1) for part in parts]).numpy()
        return classes

    return predict


def example_images(labels: IntArray, count: int, test: IntArray) -> IntArray:
    """Indices of the first test images of different classes, as far as there are so many."""
    _, first = np.unique(labels, return_index=True)
    return test[np.sort(first)[:count]]


def _example(network: Network, job: Job, data: lab_data.LabelledImages, index: int) -> Example:
    found = follow(network, job.settings, data.images[index])
    return Example(
        method=job.method,
        image=found.image,
        before=found.before,
        after=found.after,
        arriving=found.arriving,
        returned=found.returned,
        share=found.share,
        winners=found.winners,
        label=data.classes[data.labels[index]],
        predicted=data.classes[found.predicted],
    )
