"""How the U-Net learns: loss and augmentation; all else is that of the lab's classifier."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from poolgrad.lab.learner import Batch, Learner, own_part
from poolgrad.lab.segment.scores import VOID

_SHIFT = 1 / 16  # longest shift, as a share of the side


def move(images: Tensor, masks: Tensor, randomness: torch.Generator) -> tuple[Tensor, Tensor]:
    """Move every image with its mask by whole numbers of pixels, so that the mask stays exact.

    Parameters
    ----------
    images, masks
        Shapes (N, C, H, W), float32, and (N, H, W).
    randomness
        Where the distances are drawn from: up to a sixteenth of the sides, each way.

    Returns
    -------
    tuple of Tensor
        The same shapes; what comes in from outside repeats the border.
    """
    moved = []
    positions = []
    for size in images.shape[2:]:
        most = int(size * _SHIFT)
        distances = torch.randint(-most, most + 1, (len(images), 1), generator=randomness)
        positions.append((torch.arange(size) + distances).clamp(0, size - 1))
    rows, columns = positions[0][:, :, None], positions[1][:, None, :]
    which = torch.arange(len(images))[:, None, None]
    for each in (images.movedim(1, -1), masks):
        moved.append(each[which, rows, columns])
    return moved[0].movedim(-1, 1).contiguous(), moved[1]


def mask_loss(scores: Tensor, masks: Tensor) -> Tensor:
    """Cross entropy plus Dice loss, averaged over the images.

    The Dice loss of an image is one minus the Dice coefficient of probabilities and mask, averaged
    over the classes that the mask contains without the background, class 0; it is zero for an image
    of background only (Milletari et al., 2016, "V-Net: Fully convolutional neural networks for
    volumetric medical image segmentation").

    Parameters
    ----------
    scores
        Shape (N, classes, H, W).
    masks
        Shape (N, H, W), int64; pixels that are `VOID` do not count.

    Returns
    -------
    Tensor
        One number.
    """
    counts = masks != VOID
    pixels = counts.sum((1, 2)).clamp(min=1)  # an image may be all VOID
    entropy = functional.cross_entropy(scores, masks, ignore_index=VOID, reduction="none")
    hot = functional.one_hot(masks.where(counts, 0), scores.shape[1]).movedim(-1, 1)
    hot = hot[:, 1:] * counts[:, None]
    probabilities = scores.softmax(1)[:, 1:] * counts[:, None]
    true = hot.sum((2, 3))
    both = (probabilities * hot).sum((2, 3))
    dice = 2 * both / (probabilities.sum((2, 3)) + true).clamp(min=1e-6)
    found = true > 0
    dice_loss = ((1 - dice) * found).sum(1) / found.sum(1).clamp(min=1)
    return (entropy.sum((1, 2)) / pixels + dice_loss).mean()


def batch_iou(scores: Tensor, masks: Tensor) -> Tensor:
    """Mean over the foreground classes of the IoU over all pixels of a batch.

    Parameters
    ----------
    scores, masks
        As `mask_loss` takes them.

    Returns
    -------
    Tensor
        One number; 1 where neither masks nor predictions contain a foreground class.
    """
    counts = masks != VOID
    predicted = scores.argmax(1)
    ious = []
    for k in range(1, scores.shape[1]):
        true, found = masks == k, (predicted == k) & counts
        union = (true | found).sum()
        if union:
            ious.append((true & found).sum() / union)
    return torch.stack(ious).mean() if ious else scores.new_ones(())


class MaskLearner(Learner):
    """Trains a network to classify every pixel.

    The loss is `mask_loss`. Logs `train_loss`, `train_accuracy` (of the moved
    images, while they are learned), `val_loss` and `val_accuracy` for every epoch, where accuracy
    is `batch_iou`, averaged over the batches.

    Parameters
    ----------
    network
        Images, shape (N, C, H, W), to scores, shape (N, classes, H, W).
    settings
        `lr`, `optimizer` and `seed` are used.
    """

    def training_step(self, batch: Batch, _: int) -> Tensor:
        """Loss of one batch of moved images.

        Raises
        ------
        LabError
            If the loss is not finite any more.
        """
        images, masks = move(batch[0].float(), batch[1].long(), self._randomness)
        part, scale = own_part(len(images))
        loss = scale * self._log_masks("train", self(images[part]), masks[part])
        self.check_finite(loss)
        return loss

    def validation_step(self, batch: Batch, _: int) -> None:
        """Log loss and IoU of one batch."""
        self._log_masks("val", self(batch[0]), batch[1].long())

    def predict_step(self, batch: Batch, _: int) -> Tensor:
        """The class with the highest score for each pixel, shape (N, H, W), uint8."""
        return self(batch[0]).argmax(1).to(torch.uint8)

    def _log_masks(self, part: str, scores: Tensor, masks: Tensor) -> Tensor:
        loss = mask_loss(scores, masks)
        self.log_part(part, loss.detach(), batch_iou(scores.detach(), masks), len(masks))
        return loss
