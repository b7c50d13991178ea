"""Fabricated comparisons, shaped like those of `poolgrad compare`, for the tests of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import poolgrad
from poolgrad.lab.compare.results import (
    Comparison,
    Cost,
    Estimate,
    Example,
    Failure,
    RunResult,
    ShiftCurve,
    Summary,
)

# Title, probability of a right answer, accuracy lost with a pixel of shift, milliseconds a step.
CLASSIFIERS = {
    "max": ("Max pooling", 0.958, 0.006, 8.1),
    "avg": ("Average pooling", 0.949, 0.005, 7.9),
    "strided": ("Strided convolution", 0.931, 0.010, 6.2),
    "blur": ("Max pooling, then blur", 0.962, 0.002, 10.4),
    "aps": ("Adaptive polyphase sampling", 0.956, 0.002, 11.8),
    "lip": ("Local importance pooling", 0.955, 0.005, 14.2),
    "gated": ("Gated pooling", 0.957, 0.005, 12.6),
    "none": ("No downsampling, dilated", 0.968, 0.003, 41.5),
}
MORE = {
    "mixed": ("Mixed pooling", 0.955, 0.005, 11.1),
    "tree": ("Tree pooling", 0.954, 0.006, 15.0),
    "soft": ("Soft pooling", 0.959, 0.005, 10.9),
    "lp": ("Lp pooling, p = 2", 0.953, 0.005, 9.9),
    "stochastic": ("Stochastic pooling", 0.948, 0.006, 10.0),
    "s3": ("S3 pooling", 0.944, 0.007, 9.3),
    "median": ("Median pooling", 0.940, 0.006, 13.3),
    "a-method-with-a-long-name": ("A method with a long name and a longer title", 0.95, 0.005, 9.0),
}
SEGMENTERS = {
    "max_unpool": ("Max pooling, unpooling", 0.842, 0.0, 21.0),
    "max_upsample": ("Max pooling, upsampling", 0.851, 0.0, 23.0),
    "strided": ("Strided convolution", 0.836, 0.0, 19.0),
    "dilated": ("No downsampling, dilated", 0.874, 0.0, 88.0),
}
SENTENCE = (
    "blur and max are not distinguishable on your data: 0.962 [0.951, 0.970] against 0.958"
    " [0.947, 0.967]; strided is worse by 0.027 [0.014, 0.041]; aps keeps its answer under shifts"
    " most often."
)
SENTENCE_SEGMENT = (
    "dilated is better than max_upsample on your data by 0.026 [0.019, 0.032]: IoU 0.875"
    " [0.870, 0.879] against 0.849 [0.845, 0.853]."
)
FACTS = {
    "Data": "translated-digits: 1,797 digits of scikit-learn, placed at random on 32 x 32 pixels",
    "Split": "1,257 for training, 270 for validation, 270 for the test; stratified, seed 0",
    "Network": "three blocks of convolution 3 x 3, normalisation, ReLU and downsampling; head avg",
    "Optimizer": "Adam, learning rate 0.01, one cycle, 12 epochs, batch 32",
    "Intervals": "95 %, crossed bootstrap over seeds and test images; differences paired",
    "Shifts": "0 to 8 pixels in eight directions, circular and cropped",
    "Machine": "2 cores of an x86-64 processor, Linux",
    "Versions": "poolgrad 0.1.0, PyTorch 2.8.0, Python 3.12",
}


def _bootstrapped(values: np.ndarray, noise: np.random.Generator) -> Estimate:
    """Mean over seeds and images, shape (S, T), and the interval of a bootstrap over both."""
    seeds, images = values.shape
    means = [
        values[noise.integers(0, seeds, seeds)][:, noise.integers(0, images, images)].mean()
        for _ in range(200)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(values.mean()), float(low), float(high))


def _curves(final: float, noise: np.random.Generator, metric: str) -> list[dict[str, float]]:
    rows = []
    for epoch in range(1, 13):
        score = (
            final
            - (final - 0.12) * np.exp(-epoch / 2.2)
            + noise.normal(0, 0.03) * np.exp(-epoch / 9)
        )
        rows.append(
            {
                "epoch": float(epoch),
                "train_loss": float(-np.log(max(score, 0.05))),
                f"train_{metric}": float(score),
                "val_loss": float(-np.log(max(score - 0.01, 0.05))),
                f"val_{metric}": float(min(score - 0.005, 1)),
            }
        )
    return rows


def _shifts(
    method: str, right: float, loss: float, images: int, noise: np.random.Generator
) -> ShiftCurve:
    distances = tuple(range(9))
    circular = right - loss * np.minimum(distances, 5) * (method != "aps")
    cropped = right - 1.3 * loss * np.array(distances)
    kept = 1.0 if method == "aps" else 1 - 6 * loss
    agreement = np.clip(noise.normal(kept, 0.05 * (method != "aps"), images), 0, 1)
    cut = np.clip(noise.normal(0.99 - 7 * loss, 0.05, images), 0, 1)
    wobble = noise.normal(0, 0.002, (2, len(distances)))
    return ShiftCurve(
        distances,
        circular + wobble[0] * (method != "aps"),
        cropped + wobble[1],
        float(agreement.mean()),
        float(cut.mean()),
        agreement,
        cut,
    )


def _example(method: str, image: np.ndarray, label: str, noise: np.random.Generator) -> Example:
    before = np.maximum(image.astype(float) + noise.normal(0, 1.5, image.shape), 0)
    if method in ("max", "blur", "aps"):
        after, pullback = poolgrad.vjp(poolgrad.max_pool2d, before, 2)
        rows, columns = np.divmod(pullback.routes.astype(int), 2)
        starts = np.indices(after.shape) * 2
        winners = np.moveaxis(starts + np.array([rows, columns]), 0, -1)
        share = pullback.mask()
    else:
        after, pullback = poolgrad.vjp(poolgrad.avg_pool2d, before, 2)
        winners, share = None, pullback(np.ones_like(after))
    arriving = noise.normal(0, 1e-3, after.shape)
    return Example(
        method, image, before, after, arriving, pullback(arriving), share, winners, label, label
    )


def fabricated(
    task: str = "classify",
    methods: Sequence[str] | None = None,
    seeds: int = 3,
    heads: Sequence[str] = ("avg",),
    images: int = 270,
    **changes: Any,
) -> Comparison:
    """A comparison with plausible numbers, the same at every call.

    Parameters
    ----------
    task
        `"classify"` or `"segment"`.
    methods
        Names out of the tables above; None: `CLASSIFIERS` or `SEGMENTERS`.
    seeds, heads, images
        How many runs, which heads, how many test images.
    **changes
        Attributes of the comparison that are replaced.
    """
    noise = np.random.default_rng(0)
    segment = task == "segment"
    table = SEGMENTERS if segment else CLASSIFIERS | MORE
    chosen = list(methods or (SEGMENTERS if segment else CLASSIFIERS))
    baseline = "max_upsample" if segment else "max"
    baseline = baseline if baseline in chosen else chosen[0]
    difficulty = noise.uniform(0, 1, (seeds, images)) * 0.6 + noise.uniform(0, 1, images) * 0.4
    scores = {}
    for method in chosen:
        right = table[method][1]
        for head in heads:
            mixed = difficulty + noise.normal(0, 0.05, (seeds, images))
            easy = (mixed < np.quantile(mixed, right)).astype(float)
            scores[method, head] = (
                np.clip(noise.normal(right, 0.05, (seeds, images)), 0, 1) if segment else easy
            )
    runs, summaries = [], []
    for method in chosen:
        title, right, loss, milliseconds = table[method]
        for head in heads:
            values = scores[method, head]
            shifts = [
                None if segment else _shifts(method, right, loss, images, noise)
                for _ in range(seeds)
            ]
            parameters = 9_818 + 24_000 * (method in ("strided", "lip")) + 12 * (method == "gated")
            labels = np.arange(0 if segment else images, dtype=np.int64) % 10
            for seed in range(seeds):
                named = {"iou": values[seed], "boundary_iou": values[seed] - 0.2}
                runs.append(
                    RunResult(
                        method,
                        head,
                        seed,
                        labels,
                        labels
                        if segment
                        else np.where(values[seed] == 1, labels, (labels + 1) % 10),
                        named if segment else {"correct": values[seed]},
                        _curves(right, noise, "iou" if segment else "accuracy"),
                        shifts[seed],
                        12.5,
                        parameters,
                    )
                )
            circular = cropped = None
            if not segment:
                found = [s for s in shifts if s is not None]
                circular = _bootstrapped(np.array([s.circular_agreement for s in found]), noise)
                cropped = _bootstrapped(np.array([s.cropped_agreement for s in found]), noise)
            own = values - scores[baseline, heads[0]]
            first = (method, head) == (baseline, heads[0])
            boundary = {"boundary_iou": _bootstrapped(values - 0.2, noise)} if segment else {}
            summaries.append(
                Summary(
                    method,
                    head,
                    title,
                    seeds,
                    _bootstrapped(values, noise),
                    None if first else _bootstrapped(own, noise),
                    circular,
                    cropped,
                    boundary,
                    Cost(
                        method,
                        head,
                        milliseconds,
                        0.04 * milliseconds,
                        0.3 * milliseconds,
                        0.01 * milliseconds,
                        int(140_000 * milliseconds),
                        int(2_100_000 * milliseconds),
                        parameters,
                    ),
                )
            )
    digits = load_digits()
    examples = []
    for i in (3, 14, 27):
        canvas = np.zeros((16, 16), np.uint8)
        canvas[i % 8 : i % 8 + 8, 5:13] = digits.images[i]
        label = str(digits.target[i])
        examples += [_example(method, canvas, label, noise) for method in chosen]
    comparison = Comparison(
        task=task,
        data="digits on a canvas" if segment else "translated-digits",
        metric="IoU" if segment else "accuracy",
        facts={name: fact for name, fact in FACTS.items() if not segment or name != "Shifts"},
        baseline=baseline,
        summaries=summaries,
        runs=runs,
        failures=[],
        examples=[] if segment else examples,
        warnings=[],
        sentence=SENTENCE_SEGMENT if segment else SENTENCE,
    )
    return replace(comparison, **changes)


def with_failures() -> Comparison:
    """Eight methods and three seeds, of which two runs failed, with warnings."""
    return fabricated(
        failures=[
            Failure("lip", "avg", 1, "the loss became NaN in epoch 4"),
            Failure("stochastic", "avg", 0, "ValueError: `kernel_size` must be positive, got 0"),
        ],
        warnings=[
            "Only 24 test images: the intervals of the accuracies are 0.13 wide, so that"
            " differences below about 0.1 cannot be seen.",
            "Two of 27 runs failed; their methods are compared with fewer seeds, or not at all.",
        ],
    )


def one_seed(comparison: Comparison) -> Comparison:
    """The same without any interval."""

    def bare(estimate: Estimate | None) -> Estimate | None:
        return estimate and Estimate(estimate.mean, float("nan"), float("nan"))

    summaries = [
        replace(
            s,
            seeds=1,
            score=bare(s.score),
            difference=bare(s.difference),
            circular_consistency=bare(s.circular_consistency),
            cropped_consistency=bare(s.cropped_consistency),
        )
        for s in comparison.summaries
    ]
    return replace(
        comparison, summaries=summaries, runs=[r for r in comparison.runs if r.seed == 0]
    )
