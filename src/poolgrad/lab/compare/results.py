"""The result types that the runs, the statistics and the report of a comparison exchange.

Needs nothing but NumPy. Arrays of test images have the order of the test part of the split, the
same in all runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Array = NDArray[Any]


def run_name(method: str, head: str, seed: int) -> str:
    """Name of the folder of a run."""
    return f"{method}-{head}-seed{seed}"


def run_title(method: str, head: str, seed: int) -> str:
    """Name of a run for people, with its head where that is not the usual one."""
    return f"{method}{'' if head == 'avg' else f', {head} head'}, seed {seed}"


@dataclass(frozen=True)
class ShiftCurve:
    """Predictions for shifted test images.

    Attributes
    ----------
    distances
        Lengths of the shifts in pixels, shape (D,), from 0 on.
    circular_accuracy, cropped_accuracy
        Share of right predictions at every distance, averaged over directions, shape (D,). Circular
        shifts move pixels that leave the image to its other side; cropped ones move the window
        that is cut out of an image with a wider border.
    circular_consistency, cropped_consistency
        Share of pairs of shifts of one image that get the same class.
    circular_agreement, cropped_agreement
        The same for every test image, shape (T,); their means are the consistencies.
    """

    distances: tuple[int, ...]
    circular_accuracy: FloatArray
    cropped_accuracy: FloatArray
    circular_consistency: float
    cropped_consistency: float
    circular_agreement: FloatArray
    cropped_agreement: FloatArray


@dataclass(frozen=True)
class RunResult:
    """One finished run: a method and a head, trained with one seed.

    Attributes
    ----------
    method, head, seed
        Which run it is.
    labels, predicted
        Classes of the test images, true and predicted, shape (T,); empty for segmentation.
    scores
        For every test image, shape (T,): `"correct"` (0 or 1) for classification, `"iou"` and
        `"boundary_iou"` for segmentation.
    curves
        For every epoch: `epoch`, `train_loss`, `train_accuracy`, `val_loss`, `val_accuracy`.
    shifts
        Predictions for shifted images; None for segmentation.
    seconds
        Duration of the training.
    parameters
        Number of trained weights.
    """

    method: str
    head: str
    seed: int
    labels: IntArray
    predicted: IntArray
    scores: dict[str, FloatArray]
    curves: list[dict[str, float]]
    shifts: ShiftCurve | None
    seconds: float
    parameters: int


@dataclass(frozen=True)
class Cost:
    """Time and memory of one method on this machine.

    Attributes
    ----------
    step_ms, inference_ms
        Median milliseconds of a training step and of a forward pass, for one batch.
    step_spread, inference_spread
        Half of the interquartile range of these times, in milliseconds.
    saved_bytes
        What a training step keeps for the backward pass, without the parameters.
    peak_bytes
        Growth of the peak memory of a process by its training steps.
    parameters
        Number of trained weights.
    """

    method: str
    head: str
    step_ms: float
    step_spread: float
    inference_ms: float
    inference_spread: float
    saved_bytes: int
    peak_bytes: int
    parameters: int


@dataclass(frozen=True)
class Failure:
    """A run that ended with an error, and the error as a sentence."""

    method: str
    head: str
    seed: int
    reason: str

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return run_name(self.method, self.head, self.seed)

    @property
    def title(self) -> str:
        """Name of the run in a sentence."""
        return run_title(self.method, self.head, self.seed)


@dataclass(frozen=True)
class Example:
    """One test image traced through the first downsampling of a method, forward and backward.

    Attributes
    ----------
    method
        Name of the downsampling; the run is that of its first seed.
    image
        Shape (H, W) for grey images, (H, W, 3) for coloured ones.
    before, after
        One channel before and after the downsampling, shapes (h, w) and (h', w').
    arriving
        Gradient of the predicted class's score with respect to `after`.
    returned
        Gradient with respect to `before`.
    share
        For every value of `before`: number of windows that it won (max), or the sum of the absolute
        derivatives of the outputs of this channel with respect to it.
    winners
        Row and column in `before` of the largest value of each window, shape (h', w', 2); None
        where the method selects no input.
    label, predicted
        Names of the true and of the predicted class; for segmentation, of the image and of its
        scores.
    true_mask, predicted_mask
        Class numbers of the pixels of `image`, shape (H, W); None for classification.
    """

    method: str
    image: Array
    before: Array
    after: Array
    arriving: Array
    returned: Array
    share: Array
    winners: Array | None
    label: str
    predicted: str
    true_mask: Array | None = None
    predicted_mask: Array | None = None


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """One row of results.csv: a method with a head, over all its seeds.

    Attributes
    ----------
    method, head, title
        Names; `title` is that for people.
    seeds
        Number of finished runs.
    score
        Accuracy, or IoU.
    difference
        Score minus that of the baseline, paired over seeds and test images; None for the baseline
        itself.
    circular_consistency, cropped_consistency
        See `ShiftCurve`; None for segmentation.
    extra
        Further estimates by name, such as `"boundary_iou"`.
    cost
        None if it was not measured.
    """

    method: str
    head: str
    title: str
    seeds: int
    score: Estimate
    difference: Estimate | None
    circular_consistency: Estimate | None
    cropped_consistency: Estimate | None
    extra: dict[str, Estimate] = field(default_factory=dict)
    cost: Cost | None = None


@dataclass(frozen=True)
class Comparison:
    """The contents of a report.

    Attributes
    ----------
    task
        `"classify"` or `"segment"`.
    data
        Name of the data.
    metric
        What `Summary.score` is: `"accuracy"` or `"IoU"`.
    facts
        The protocol in the order in which it is printed: data, split, network, optimizer, shifts,
        machine, versions.
    baseline
        The method that differences refer to.
    summaries, runs, failures, examples
        The results, in the order of the methods.
    warnings
        Sentences on the limits of the results.
    sentence
        The result in one sentence.
    """

    task: str
    data: str
    metric: str
    facts: dict[str, str]
    baseline: str
    summaries: list[Summary]
    runs: list[RunResult]
    failures: list[Failure]
    examples: list[Example]
    warnings: list[str]
    sentence: str
