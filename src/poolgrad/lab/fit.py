"""Trains a network epoch by epoch, with a checkpoint after each, from the last one on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pytorch_lightning as lightning
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor
from torch.multiprocessing.spawn import ProcessRaisedException
from torch.utils.data import DataLoader, TensorDataset

from poolgrad.lab.callbacks import AtomicCheckpointIO, History
from poolgrad.lab.folder import RunFolder
from poolgrad.lab.learner import EpochBatches
from poolgrad.lab.settings import LabError, Settings


def fit(
    learner: lightning.LightningModule,
    settings: Settings,
    folder: RunFolder,
    history: History,
    data: tuple[TensorDataset, DataLoader[tuple[Tensor, ...]]],
    finished_epochs: int,
    callbacks: Sequence[lightning.Callback] = (),
    devices: int = 1,
) -> lightning.Trainer:
    """Train to the last epoch, after which `learner` has the last weights.

    Parameters
    ----------
    learner
        Has the network.
    settings
        `epochs`, `batch_size` and `seed` are used.
    folder
        For `metrics.csv` and the checkpoint.
    history
        A callback for the metrics. With more than one device its rows stay empty here; those of
        the checkpoint count.
    data
        Training images and labels; batches of validation images and labels.
    finished_epochs
        Epochs that the checkpoint in the folder has finished; 0 without a checkpoint.
    callbacks
        Further ones.
    devices
        Processes among which each batch is divided (data-parallel, with gloo).

    Raises
    ------
    LabError
        If the training diverges, or the checkpoint cannot be restored.
    KeyboardInterrupt
        If the user stops it; it can be resumed.
    """
    training, validation = data
    checkpoint = folder.checkpoint
    # The last weights are the result: at the end of the schedule the learning rate is zero,
    # and choosing among epochs by a few hundred validation images would choose by luck.
    keeper = ModelCheckpoint(
        dirpath=checkpoint.parent,
        filename=checkpoint.stem,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=_strategy(devices),
        max_epochs=settings.epochs,
        callbacks=[history, keeper, *callbacks],
        plugins=[AtomicCheckpointIO(), LightningEnvironment()],
        default_root_dir=folder.path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # each process selects its part of every batch
    )
    assert settings.batch_size is not None, "chosen for the number of images"
    order = EpochBatches(len(training), settings.batch_size, settings.seed)
    # Every iterator draws a number, and a resumed epoch makes one iterator less. Random poolings
    # draw from the global generator, so the iterators must not.
    batches = DataLoader(training, batch_size=None, sampler=order, generator=torch.Generator())
    try:
        with torch.random.fork_rng(devices=[]):  # random poolings draw from the global generator
            trainer.fit(
                learner,
                batches,
                validation,
                ckpt_path=checkpoint if finished_epochs else None,
                weights_only=True,
            )
    except LabError:
        raise
    except ProcessRaisedException as error:
        # The message ends with the traceback of the process, and that with the error.
        name, _, reason = str(error).strip().splitlines()[-1].partition(": ")
        if name == f"{LabError.__module__}.{LabError.__qualname__}":
            raise LabError(reason) from error
        raise
    except Exception as error:
        if history.started or not finished_epochs:
            raise
        # Parts of the checkpoint that `finished_epochs` has not checked.
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise LabError(f"{checkpoint} cannot be resumed from: {reason}") from error
    except SystemExit as stopped:  # Lightning's reaction to Ctrl-C
        raise KeyboardInterrupt from stopped
    return trainer


def _strategy(devices: int) -> Any:
    if devices == 1:
        return "auto"
    # A fork is quick, because PyTorch is already imported; it is safe on Linux only.
    start: Literal["fork", "spawn"] = "fork" if sys.platform == "linux" else "spawn"
    return DDPStrategy(process_group_backend="gloo", start_method=start)


@contextlib.contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """So many threads of PyTorch, and those that there were before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
