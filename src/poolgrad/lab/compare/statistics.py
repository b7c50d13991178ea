"""Intervals over seeds and test images, and paired differences: the crossed bootstrap.

Seeds and images are two crossed factors of the scores: every network is tested on the same images.
Both are resampled, independently of each other (the pigeonhole bootstrap: Owen 2007, "The
pigeonhole bootstrap", Annals of Applied Statistics 1). Of n seeds, n - 1 are drawn with
replacement, so that the variance over the few seeds is not underestimated (Rao & Wu 1988,
"Resampling inference with complex survey data", JASA 83). All methods share the draws, so that
differences are paired.

Intervals of differences are simultaneous over all methods: their half widths are the standard error
times the 95 % quantile of the largest studentised deviation over methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poolgrad.lab.compare.results import Estimate, FloatArray

LEVEL = 0.95
DRAWS = 4000
_SEED = 0
_AT_ONCE = 2_000_000  # weights in memory at a time


@dataclass(frozen=True)
class Scores:
    """Scores of one method.

    Attributes
    ----------
    seeds
        The seeds of its runs.
    values
        Shape (seeds, images).
    """

    seeds: tuple[int, ...]
    values: FloatArray

    def of(self, seeds: Sequence[int]) -> FloatArray:
        """The scores of these seeds, in this order."""
        return self.values[[self.seeds.index(seed) for seed in seeds]]


def estimate(values: FloatArray, bounds: tuple[float, float] | None = (0.0, 1.0)) -> Estimate:
    """The mean and its percentile interval.

    Parameters
    ----------
    values
        Shape (seeds, images).
    bounds
        Least and largest possible score. If all scores are equal, the bootstrap variance is 0;
        the interval is then the Clopper-Pearson bound for an event that no test image showed.
    """
    drawn = _bootstrap([values])[0]
    low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    mean = float(values.mean())
    if bounds is not None and np.ptp(values) == 0:
        hidden = _hidden(values.shape[1]) * (bounds[1] - bounds[0])
        return Estimate(mean, max(mean - hidden, bounds[0]), min(mean + hidden, bounds[1]))
    return Estimate(mean, float(low), float(high))


def differences(scores: Mapping[str, Scores], baseline: str) -> dict[str, Estimate]:
    """Mean difference of every other method to the baseline, with simultaneous intervals.

    Parameters
    ----------
    scores
        By method. Only seeds that a method shares with the baseline are compared.
    baseline
        One of the methods.

    Returns
    -------
    dict
        By method, without the baseline and without methods that share no seed with it.
    """
    pairs: dict[str, FloatArray] = {}
    for name, own in scores.items():
        shared = [seed for seed in own.seeds if seed in scores[baseline].seeds]
        if name != baseline and shared:
            pairs[name] = own.of(shared) - scores[baseline].of(shared)
    if not pairs:
        return {}
    drawn = _bootstrap(list(pairs.values()))
    means = np.array([values.mean() for values in pairs.values()])
    errors = drawn.std(axis=1, ddof=1)
    varies = errors > 0
    deviation = abs(drawn - means[:, None])[varies] / errors[varies, None]
    factor = float(np.quantile(deviation.max(axis=0), LEVEL)) if varies.any() else 0.0
    found = {}
    for name, values, mean, error in zip(pairs, pairs.values(), means, errors, strict=True):
        # Equal on every image; a difference is still possible, as in `estimate`.
        half = factor * float(error) if error > 0 else _hidden(values.shape[1])
        found[name] = Estimate(float(mean), float(mean) - half, float(mean) + half)
    return found


def best(scores: Mapping[str, Scores]) -> tuple[str, list[str]]:
    """Return the method with the highest mean, and those that are not distinguishable from it.

    Parameters
    ----------
    scores
        By method.
    """
    top = max(scores, key=lambda name: float(scores[name].values.mean()))
    apart = differences(scores, top)
    return top, [name for name, found in apart.items() if found.high >= 0]


def _hidden(images: int) -> float:
    """Largest rate of an event that none of the images shows with a probability of 5 %."""
    return float(1 - (1 - LEVEL) ** (1 / images))


def _bootstrap(samples: Sequence[FloatArray]) -> FloatArray:
    """Means of resampled seeds and images, shape (samples, draws).

    Samples with the same number of seeds share the draws of seeds; all share those of images.
    """
    images = samples[0].shape[1]
    randomness = np.random.default_rng(_SEED)
    seed_weights: dict[int, FloatArray] = {}
    for count in sorted({len(values) for values in samples}):
        if count == 1:
            seed_weights[count] = np.ones((DRAWS, 1))
        else:
            drawn = np.random.default_rng((_SEED, count)).multinomial(
                count - 1, np.full(count, 1 / count), DRAWS
            )
            seed_weights[count] = drawn / (count - 1)
    means = np.empty((len(samples), DRAWS))
    step = max(1, _AT_ONCE // images)
    for start in range(0, DRAWS, step):
        rows = slice(start, min(start + step, DRAWS))
        size = rows.stop - rows.start
        weights = randomness.multinomial(images, np.full(images, 1 / images), size) / images
        for k, values in enumerate(samples):
            means[k, rows] = ((seed_weights[len(values)][rows] @ values) * weights).sum(axis=1)
    return means
