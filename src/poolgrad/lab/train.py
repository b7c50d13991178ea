"""Executes a training run, from its options to its folder of results.

`prepare` reads and checks everything and touches nothing but a new folder's `settings.json`;
`Run.finish` trains, from the last finished epoch if there is one, and writes the results.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytorch_lightning as lightning
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from poolgrad.lab import data as lab_data
from poolgrad.lab.batches import dataset, in_order
from poolgrad.lab.callbacks import History, ProgressBar, quiet_lightning
from poolgrad.lab.checkpoint import finished_epochs
from poolgrad.lab.curves import draw_curves
from poolgrad.lab.fit import fit, using_threads
from poolgrad.lab.folder import RunFolder, write_atomic
from poolgrad.lab.learner import Learner, generator
from poolgrad.lab.model import Network
from poolgrad.lab.pools import title
from poolgrad.lab.routes import draw_routes
from poolgrad.lab.settings import LabError, Settings, counted, steps_per_epoch
from poolgrad.lab.trace import follow
from poolgrad.lab.versions import versions

_EVALUATION_BATCH = 256
_TINY_BATCH = 64 * 8 * 8  # pixels; above this a second thread pays


@dataclass
class Run:
    """A run that is ready to be trained: checked settings, data, network and folder.

    Attributes
    ----------
    settings, folder
        The settings of the run, and the folder of its results.
    images, parts, network
        The data, their split, and the network, with its first weights.
    finished_epochs
        Number of finished epochs of the checkpoint in the folder; 0 without one.
    threads
        Number of threads: that with which the run was started, so that results keep their bits.
    """

    settings: Settings
    folder: RunFolder
    images: lab_data.LabelledImages
    parts: lab_data.Split
    network: Network
    finished_epochs: int
    threads: int

    @property
    def batch_size(self) -> int:
        """Images in a step, at most."""
        assert self.settings.batch_size is not None, "chosen by `prepare`"
        return self.settings.batch_size

    def describe(self) -> str:
        """The data, the network and the training, in lines for a terminal of 80 columns."""
        settings, parts = self.settings, self.parts
        steps = steps_per_epoch(len(parts.train), self.batch_size)
        height, width = self.images.size
        maps = " -> ".join(f"{h} x {w}" for h, w in self.network.maps)
        counts = len(parts.train), len(parts.validation), len(parts.test)
        lines = {
            "data": (
                f"{settings.data_name}: {len(self.images.labels)} images of {height} x {width},"
                f" {len(self.images.classes)} classes",
                "{} for training, {} for validation, {} for the test".format(*counts),
            ),
            "network": (
                f"{title(settings.pool, settings.head)}, {settings.kernel} x {settings.kernel}"
                f" windows, stride {settings.stride}",
                f"feature maps {maps}, {self.network.parameter_count:,} parameters",
            ),
            "training": (
                f"{counted(settings.epochs, 'epoch')} of {counted(steps, 'step')},"
                f" batch size {self.batch_size}, {counted(self.threads, 'thread')}",
                f"{settings.optimizer}, learning rate up to {settings.lr:g}",
            ),
        }
        return "\n".join(
            f"{head:10}{first}\n{'':10}{second}" for head, (first, second) in lines.items()
        )

    def finish(self, progress: bool) -> dict[str, Any]:
        """Train to the last epoch, test once, and write everything.

        Parameters
        ----------
        progress
            Show a progress bar.

        Returns
        -------
        dict
            What `result.json` holds.

        Raises
        ------
        LabError
            If the training diverges.
        KeyboardInterrupt
            If the user stops it; it can be resumed.
        """
        history = History(self.folder, self.settings)
        with quiet_lightning(), using_threads(self.threads):
            learner, trainer = self._train(history, progress)
            predictions = self._predict(trainer, learner)
        test = self.parts.test
        right = predictions == self.images.labels[test]
        result = self._result(history.rows, int(right.sum()))
        write_atomic(self.folder.curves, draw_curves(history.rows, result["test_accuracy"]))
        shown = self.images.images[test[right.argmax()]]  # the first that is recognised
        trace = follow(self.network, self.settings, shown)
        write_atomic(self.folder.routes, draw_routes(trace, self.settings, self.images.classes))
        self.folder.write_result(result)
        return result

    def _train(self, history: History, progress: bool) -> tuple[Learner, lightning.Trainer]:
        learner = Learner(self.network, self.settings)
        trainer = fit(
            learner,
            self.settings,
            self.folder,
            history,
            (
                self._dataset(self.parts.train),
                in_order(self._dataset(self.parts.validation), _EVALUATION_BATCH),
            ),
            self.finished_epochs,
            [ProgressBar(self.settings.epochs)] if progress else [],
        )
        return learner, trainer

    def _predict(self, trainer: lightning.Trainer, learner: Learner) -> NDArray[np.int64]:
        images = in_order(self._dataset(self.parts.test), _EVALUATION_BATCH)
        batches = trainer.predict(learner, images)
        return torch.cat(batches).numpy()  # type: ignore[arg-type]

    def _dataset(self, indices: NDArray[np.int64]) -> TensorDataset:
        return dataset(self.images.images, self.images.labels, indices)

    def _result(self, rows: list[dict[str, float]], right: int) -> dict[str, Any]:
        tested = len(self.parts.test)
        return {
            "test_accuracy": right / tested,
            "test_images": tested,
            "test_errors": tested - right,
            "validation_accuracy": rows[-1]["val_accuracy"],
            "train_accuracy": rows[-1]["train_accuracy"],
            "epochs": len(rows),
            "seconds": round(sum(row["seconds"] for row in rows), 3),
            "parameters": self.network.parameter_count,
            "feature_maps": [list(size) for size in self.network.maps],
            "settings": self.settings.as_dict(),
            "data": lab_data.describe(self.images, self.parts),
            "versions": {"python": platform.python_version(), **versions()},
            "threads": self.threads,
        }


def prepare(settings: Settings, folder: RunFolder, images: lab_data.LabelledImages) -> Run:
    """Split the images, build the network, and begin or reopen the run.

    Nothing is written before everything has been checked.

    Raises
    ------
    LabError
        If the data cannot be used, have changed since the run began, or are too small for the
        pooling; or if the checkpoint cannot be read.
    """
    parts = lab_data.split(images)
    settings = settings.for_images(len(parts.train))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(settings.seed, "weights").initial_seed())
        network = Network(images.images[parts.train], len(images.classes), settings)
    described = lab_data.describe(images, parts)
    stored = folder.stored()
    if stored is None:
        stored = {
            "settings": settings.as_dict(),
            "data": described,
            "versions": versions(),
            "threads": settings.threads or _enough_threads(settings, images),
        }
        folder.begin(stored)
    elif stored["data"] != described:
        raise LabError(
            f"--data: {settings.data} is not what the run in {folder.path} was started with;"
            " choose another --out"
        )
    done = finished_epochs(folder, network, settings)
    return Run(settings, folder, images, parts, network, done, stored["threads"])


def _enough_threads(settings: Settings, images: lab_data.LabelledImages) -> int:
    """One for tiny images: more gain nothing there, and lose much on a busy machine."""
    height, width = images.size
    assert settings.batch_size is not None
    tiny = settings.batch_size * height * width <= _TINY_BATCH
    return 1 if tiny else torch.get_num_threads()
