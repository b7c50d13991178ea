"""The intervals against known cases, and the sentence that is made of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from poolgrad.lab.compare.results import Estimate, Summary
from poolgrad.lab.compare.sentence import sentence, warnings
from poolgrad.lab.compare.statistics import Scores, best, differences, estimate


def scores(values: np.ndarray) -> Scores:
    return Scores(tuple(range(len(values))), values.astype(np.float64))


def simulated(
    randomness: np.random.Generator, seeds: int, images: int, effect: float = 0.0
) -> np.ndarray:
    """Right or wrong, with easy and hard images and good and bad seeds."""
    easy = randomness.normal(1.5, 1.0, images)
    good = randomness.normal(effect, 0.3, (seeds, 1))
    return randomness.random((seeds, images)) < stats.norm.cdf(easy + good)


def test_one_seed_is_the_ordinary_bootstrap() -> None:
    values = np.random.default_rng(0).normal(0, 1, (1, 80))
    found = estimate(values)
    theirs = stats.bootstrap(
        (values[0],), np.mean, n_resamples=8000, method="percentile", rng=0
    ).confidence_interval
    assert found.mean == values.mean()
    assert found.low == pytest.approx(theirs.low, abs=0.02)
    assert found.high == pytest.approx(theirs.high, abs=0.02)


def test_the_variance_over_seeds_is_not_underestimated() -> None:
    """Images alike, seeds not: the standard error is that of the mean over seeds."""
    values = np.repeat(np.array([[0.1], [0.2], [0.4], [0.6]]), 50, axis=1)
    found = differences({"a": scores(values), "b": scores(np.zeros((4, 50)))}, "b")["a"]
    error = values[:, 0].std(ddof=1) / 2
    assert found.mean == pytest.approx(0.325)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.12)


def test_intervals_cover() -> None:
    """In at least about 95 of 100 comparisons without any difference, none is reported."""
    randomness, covered, trials = np.random.default_rng(5), 0, 40
    for _ in range(trials):
        easy = randomness.normal(1.5, 1.0, 60)
        methods = {}
        for name in "abcd":
            good = randomness.normal(0, 0.2, (5, 1))
            right = randomness.random((5, 60)) < stats.norm.cdf(easy + good)
            methods[name] = scores(right)
        found = differences(methods, "a")
        covered += all(each.low <= 0 <= each.high for each in found.values())
    assert covered / trials > 0.88


def test_a_true_difference_is_found() -> None:
    randomness = np.random.default_rng(2)
    methods = {
        "max": scores(simulated(randomness, 5, 300)),
        "better": scores(simulated(randomness, 5, 300, 1.5)),
    }
    assert differences(methods, "max")["better"].low > 0
    assert best(methods) == ("better", [])


def test_differences_are_paired() -> None:
    """Images that are hard for both do not widen the interval of the difference."""
    base = np.random.default_rng(0).random((3, 200)) < 0.5
    other = base.copy()
    other[:, :20] = True
    found = differences({"a": scores(base), "b": scores(other)}, "a")["b"]
    whole = estimate(base.astype(np.float64))
    assert found.high - found.low < 0.6 * (whole.high - whole.low)


def test_more_methods_widen_the_intervals() -> None:
    randomness = np.random.default_rng(3)
    every = {str(k): scores(simulated(randomness, 3, 100)) for k in range(8)}
    two = {name: every[name] for name in ("0", "1")}
    wide, narrow = differences(every, "0")["1"], differences(two, "0")["1"]
    assert wide.mean == narrow.mean
    assert wide.high - wide.low > 1.1 * (narrow.high - narrow.low)


def test_only_shared_seeds_are_compared() -> None:
    base = Scores((0, 1, 2), np.array([[0.0] * 9, [1.0] * 9, [0.0] * 9]))
    other = Scores((1, 5), np.array([[1.0] * 9, [0.0] * 9]))
    found = differences({"a": base, "b": other, "c": Scores((7,), np.ones((1, 9)))}, "a")
    assert list(found) == ["b"]
    assert found["b"].mean == 0


def test_equal_scores_do_not_pretend_certainty() -> None:
    right = np.ones((3, 36))
    found = estimate(right)
    exact = stats.binomtest(36, 36, alternative="greater").proportion_ci(0.95)
    assert (found.mean, found.high) == (1, 1)
    assert found.low == pytest.approx(exact.low)
    apart = differences({"a": scores(right), "b": scores(right)}, "a")["b"]
    assert apart.low == pytest.approx(found.low - 1)
    assert apart.high == -apart.low


def summary(name: str, score: float, difference: tuple[float, float] | None) -> Summary:
    around = None
    if difference is not None:
        around = Estimate((difference[0] + difference[1]) / 2, *difference)
    shown = Estimate(score, score - 0.01, score + 0.01)
    return Summary(name, "avg", name, 3, shown, around, shown, shown)


def test_the_sentence() -> None:
    base = summary("max", 0.958, None)
    rows = [
        base,
        summary("blur", 0.962, (-0.004, 0.012)),
        summary("strided", 0.938, (-0.03, -0.01)),
    ]
    agreement = {
        "max": scores(np.full((3, 50), 0.9)),
        "blur": scores(np.random.default_rng(0).normal(0.98, 0.01, (3, 50))),
        "strided": scores(np.full((3, 50), 0.8)),
    }
    assert sentence(rows, base, "accuracy", agreement) == (
        "blur is not distinguishable from max in accuracy on these data: 0.962 [0.952, 0.972]"
        " against 0.958 [0.948, 0.968]; strided is worse by 0.020 [0.010, 0.030]; blur keeps its"
        " answer under circular shifts most often: 0.962 [0.952, 0.972], then max with 0.958"
        " [0.948, 0.968]."
    )


def test_sentences_of_other_cases() -> None:
    base = summary("max", 0.9, None)
    assert sentence([base], base, "accuracy", {}).startswith(
        "max has accuracy 0.900 [0.890, 0.910]"
    )
    better = [base, *(summary(name, 0.95, (0.04, 0.06)) for name in ("a", "b"))]
    assert sentence(better, base, "accuracy", {}) == (
        "a and b are better than max in accuracy (0.900 [0.890, 0.910]): a by 0.050 [0.040, 0.060]"
        " and b by 0.050 [0.040, 0.060]."
    )
    alike = [base, *(summary(name, 0.9, (-0.1, 0.1)) for name in "abc")]
    same = {name: scores(np.full((3, 50), 0.9)) for name in ("max", "a", "b", "c")}
    text = sentence(alike, base, "accuracy", same)
    assert "a, b and c are not distinguishable from max" in text
    assert "no method keeps its answer under circular shifts measurably more often" in text


def test_small_test_sets_and_wide_intervals_are_warned_of_with_numbers() -> None:
    rows = [summary("max", 0.9, None), summary("avg", 0.8, (-0.2, 0.1))]
    few, wide, seeds = warnings(rows, [], 18, 2, "accuracy")
    assert "only 18 test images: one image more or less is 0.056" in few
    assert "up to 0.150 wide to each side" in wide
    assert seeds.startswith("2 seeds")
    assert warnings([rows[0]], [], 300, 3, "accuracy") == []
