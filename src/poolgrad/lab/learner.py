"""Lightning module: loss, augmentation, optimizer and schedule.

Everything random is drawn from a generator seeded with (seed, purpose, epoch), never from a global
one: an epoch is the same whether or not the run was killed and resumed before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import numpy as np
import pytorch_lightning as lightning
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.utils.data import Sampler

from poolgrad.lab.settings import LabError, Settings, steps_per_epoch

Batch = tuple[Tensor, Tensor]

_PURPOSES = {"weights": 0, "order": 1, "augmentation": 2, "pooling": 3}
_LABEL_SMOOTHING = 0.1
_WARM_UP = 0.1  # share of the steps in which the learning rate rises
# How far an image is turned, scaled, and moved (as a share of its side), each way.
_TURN, _SCALE, _SHIFT = math.radians(10), 0.1, 1 / 16


def generator(
    seed: int, purpose: Literal["weights", "order", "augmentation", "pooling"], epoch: int = 0
) -> torch.Generator:
    """A source of random numbers that depends on its arguments only."""
    entropy = np.random.SeedSequence((seed, _PURPOSES[purpose], epoch))
    return torch.Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0]))


class EpochBatches(Sampler[Tensor]):
    """Batches of indices in a new order for every epoch.

    Batches are of nearly equal size, so that none is too small for batch normalisation.

    Parameters
    ----------
    count
        How many images there are.
    batch_size
        Largest number of images in a batch (three if batches of 2 would leave one image).
    seed
        Seed of the run.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        self._count = count
        self._batches = steps_per_epoch(count, batch_size)
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order; Lightning calls this before every epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        """The number of batches."""
        return self._batches

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the indices of one batch after the other, each of shape (n,)."""
        order = torch.randperm(self._count, generator=generator(self._seed, "order", self._epoch))
        yield from order.tensor_split(self._batches)


def augment(
    images: Tensor,
    randomness: torch.Generator,
    part: slice = slice(None),
) -> Tensor:
    """Turn, scale and move every image a little.

    Parameters
    ----------
    images
        Shape (N, C, H, W), float32.
    randomness
        Where the amounts are drawn from.
    part
        Which images are returned; the amounts are those of the whole batch.

    Returns
    -------
    Tensor
        Images of the same shape; what comes in from outside repeats the border.
    """
    amounts = (torch.rand(4, len(images), generator=randomness) * 2 - 1)[:, part]
    images = images[part]
    turn, scale = amounts[0] * _TURN, torch.exp(amounts[1] * _SCALE)
    shift = amounts[2:] * 2 * _SHIFT  # affine_grid measures the image from -1 to 1
    cos, sin = turn.cos() * scale, turn.sin() * scale
    rows = (torch.stack([cos, -sin, shift[0]]), torch.stack([sin, cos, shift[1]]))
    affine = torch.stack(rows).permute(2, 0, 1)
    grid = functional.affine_grid(affine, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


class Learner(lightning.LightningModule):
    """Trains a network to classify images.

    Logs `train_loss`, `train_accuracy` (of the augmented images, while they are learned),
    `val_loss` and `val_accuracy` for every epoch. Losses are cross entropies.

    Parameters
    ----------
    network
        Images, shape (N, C, H, W), to scores, shape (N, classes).
    settings
        `lr`, `optimizer` and `seed` are used.

    Notes
    -----
    Every process of a data-parallel training gets the whole batch, and learns from its own part of
    it. The loss is scaled so that the average of the processes' gradients is the gradient of the
    whole batch, also where the parts are not of equal size.
    """

    def __init__(self, network: nn.Module, settings: Settings) -> None:
        super().__init__()
        self.network = network
        self._settings = settings

    def forward(self, images: Tensor) -> Tensor:
        """Scores, shape (N, classes)."""
        return self.network(images)

    def on_train_epoch_start(self) -> None:
        """Begin the epoch's own sequences of augmentations and of random pooling."""
        self._randomness = generator(self._settings.seed, "augmentation", self.current_epoch)
        torch.manual_seed(
            generator(self._settings.seed, "pooling", self.current_epoch).initial_seed()
        )

    def training_step(self, batch: Batch, _: int) -> Tensor:
        """Loss of one batch, with smoothed labels; the logged loss has no smoothing.

        Raises
        ------
        LabError
            If the loss is not finite any more.
        """
        images, labels = batch
        part, scale = own_part(len(labels))
        scores = self(augment(images.float(), self._randomness, part))
        labels = labels[part]
        loss = scale * functional.cross_entropy(scores, labels, label_smoothing=_LABEL_SMOOTHING)
        self.check_finite(loss)
        self._log("train", scores.detach(), labels)
        return loss

    def validation_step(self, batch: Batch, _: int) -> None:
        """Log loss and accuracy of one batch."""
        images, labels = batch
        self._log("val", self(images), labels)

    def predict_step(self, batch: Batch, _: int) -> Tensor:
        """The class with the highest score for each image, shape (N,)."""
        return self(batch[0]).argmax(1)

    def configure_optimizers(self) -> Any:
        """The optimizer, and a learning rate that rises a little while and then falls to zero."""
        optimizer = _OPTIMIZERS[self._settings.optimizer](self.parameters(), self._settings.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        rising = math.ceil(steps * _WARM_UP)

        def factor(step: int) -> float:
            fall = (1 + math.cos(math.pi * min(step / steps, 1))) / 2
            return min((step + 1) / rising, 1) * fall

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def check_finite(self, loss: Tensor) -> None:
        """Raise an error if the training diverges.

        Raises
        ------
        LabError
            If the loss is infinite or NaN.
        """
        if not loss.isfinite():
            raise LabError(
                f"--lr {self._settings.lr:g} is too large: the loss became {loss.item()} in epoch"
                f" {self.current_epoch + 1}"
            )

    def log_part(self, part: str, loss: Tensor, accuracy: Tensor, images: int) -> None:
        """Log loss and accuracy of a batch, to be averaged over the images of the epoch."""
        for name, value in (("loss", loss), ("accuracy", accuracy)):
            self.log(
                f"{part}_{name}",
                value,
                batch_size=images,
                on_step=False,
                on_epoch=True,
                sync_dist=_processes() > 1,
                prog_bar=name == "accuracy",  # both would not fit into one line
            )

    def _log(self, part: str, scores: Tensor, labels: Tensor) -> None:
        loss = functional.cross_entropy(scores, labels)
        accuracy = (scores.argmax(1) == labels).float().mean()
        self.log_part(part, loss, accuracy, len(labels))


def _processes() -> int:
    return distributed.get_world_size() if _is_parallel() else 1


def _is_parallel() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def own_part(count: int) -> tuple[slice, float]:
    """The part of a batch that this process learns from, and the factor of its mean loss."""
    if not _is_parallel():
        return slice(None), 1.0
    processes, rank = distributed.get_world_size(), distributed.get_rank()
    start, stop = (count * k // processes for k in (rank, rank + 1))
    return slice(start, stop), (stop - start) * processes / count


def _sgd(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr, momentum=0.9, nesterov=True)


_OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer]] = {
    "sgd": _sgd,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
}
