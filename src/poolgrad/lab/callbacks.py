"""Callbacks for Lightning: a history of the epochs, and checkpoints that survive a kill."""

from __future__ import annotations

import contextlib
import io
import logging
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning_fabric.utilities.warnings import disable_possible_user_warnings
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as BarOfSteps

from poolgrad.lab.folder import RunFolder, write_atomic, writing
from poolgrad.lab.settings import Settings
from poolgrad.tools.progress import Progress

METRICS = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "lr", "seconds")


class History(lightning.Callback):
    """Collects one row of metrics per epoch, in the checkpoint and in `metrics.csv`.

    The checkpoint's rows count: the file is rewritten from them, so that an epoch that is done
    again after a kill does not appear twice.

    Parameters
    ----------
    folder
        Folder of the run.
    settings
        Settings of the run; the checkpoint holds them, too.

    Attributes
    ----------
    rows
        Rows of the finished epochs.
    started
        Whether the training has begun; before that, a checkpoint is restored.
    """

    def __init__(self, folder: RunFolder, settings: Settings) -> None:
        self._settings = settings
        self.rows: list[dict[str, float]] = []
        self.started = False
        self._folder = folder
        self._began = 0.0
        self._lr = 0.0

    def on_train_start(self, trainer: lightning.Trainer, _: lightning.LightningModule) -> None:
        """Note that the checkpoint, if there is one, has been restored."""
        self.started = True

    def on_train_epoch_start(
        self, trainer: lightning.Trainer, _: lightning.LightningModule
    ) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_train_batch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Note the learning rate, before the schedule moves it on."""
        self._lr = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_epoch_end(self, trainer: lightning.Trainer, _: lightning.LightningModule) -> None:
        """Add the epoch's row, and write all of them."""
        *logged, lr, seconds = METRICS
        self.rows.append(
            {
                "epoch": trainer.current_epoch + 1,
                **{name: trainer.callback_metrics[name].item() for name in logged},
                lr: self._lr,
                seconds: time.perf_counter() - self._began,
            }
        )
        if trainer.is_global_zero:
            self._folder.write_metrics(self.rows)

    def state_dict(self) -> dict[str, Any]:
        """The rows and the settings, for the checkpoint."""
        return {"rows": self.rows, "settings": self._settings.as_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The rows of a checkpoint."""
        self.rows = list(state_dict["rows"])


class ProgressBar(lightning.Callback):
    """Shows the steps of the whole run, the epoch and the latest validation accuracy in one line.

    The line disappears at the end of the training. Where standard output is no terminal, the epoch
    and the accuracy are shown on standard error; see `poolgrad.tools.progress`.

    Parameters
    ----------
    epochs
        Epochs of the run.
    console
        Where to draw; None: the terminal.
    """

    def __init__(self, epochs: int, console: Console | None = None) -> None:
        self._epochs = epochs
        columns = TextColumn("{task.description}"), BarColumn(bar_width=None), TimeRemainingColumn()
        self._bar = BarOfSteps(*columns, console=console, transient=True, expand=True)
        self._task = self._bar.add_task("", total=None)
        self._in_terminal = self._bar.console.is_terminal
        self._lines = Progress()
        self._accuracy = ""

    def on_train_start(self, trainer: lightning.Trainer, _: lightning.LightningModule) -> None:
        """Draw the line, from the first step of this run or of the resumed one."""
        self._bar.update(self._task, total=int(trainer.estimated_stepping_batches))
        self._update(trainer)
        if self._in_terminal:
            self._bar.start()

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Count the step."""
        self._update(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, _: lightning.LightningModule) -> None:
        """Show the accuracy of the epoch's validation."""
        accuracy = trainer.callback_metrics["val_accuracy"].item()
        self._accuracy = f", validation accuracy {accuracy:.3f}"
        self._update(trainer)

    def on_train_end(self, *_: Any) -> None:
        """Remove the line."""
        if self._in_terminal:
            self._bar.stop()
        else:
            self._lines.end()

    def on_exception(self, *_: Any) -> None:
        """Remove the line, also if the user stops the run."""
        self.on_train_end()

    def _update(self, trainer: lightning.Trainer) -> None:
        epoch = min(trainer.current_epoch + 1, self._epochs)
        described = f"epoch {epoch} of {self._epochs}{self._accuracy}"
        if self._in_terminal:
            self._bar.update(self._task, description=described, completed=trainer.global_step)
        else:
            self._lines.show(described)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints to a temporary name and renames them.

    Lightning's own writer makes its temporary file in the system's folder for them; where that is
    on another disk, moving it is a copy, and a kill in the middle of it loses both checkpoints.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint, whole or not at all."""
        content = io.BytesIO()
        torch.save(checkpoint, content)
        with writing(Path(path)):
            Path(path).parent.mkdir(exist_ok=True)
        write_atomic(Path(path), content.getvalue())


@contextlib.contextmanager
def quiet_lightning() -> Iterator[None]:
    """Suppress Lightning's tips, and its warnings about settings that are intended here."""
    logs = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            disable_possible_user_warnings()  # small data need no workers, a CPU run no GPU
            warnings.filterwarnings("ignore", r".*LeafSpec.* is deprecated")  # Lightning's own use
            warnings.filterwarnings("ignore", r"Checkpoint directory .* exists and is not empty")
            warnings.filterwarnings("ignore", r"The dirpath has changed")  # a moved run folder
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
