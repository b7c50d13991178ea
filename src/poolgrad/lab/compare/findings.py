"""Formats numbers and verdicts of the report, and compares them with published results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from poolgrad.lab.compare.results import Comparison, Cost, Estimate, Summary

_MINUS = "\N{MINUS SIGN}"
_NONE = "\N{EN DASH}"  # for a missing number


def number(value: float, digits: int = 3) -> str:
    r"""Return a number as the report prints it; NaN and infinities are a dash.

    Parameters
    ----------
    value
        Any number.
    digits
        Decimals; fewer of numbers above 100, whose thousands are set apart.

    Examples
    --------
    >>> number(0.9617), number(123456.7, 1)
    ('0.962', '123\xa0457')
    """
    if not math.isfinite(value):
        return _NONE
    digits = 0 if abs(value) >= 100 else digits
    text = f"{value:,.{digits}f}".replace(",", "\N{NO-BREAK SPACE}")
    return text.replace("-", _MINUS) if float(f"{value:.{digits}f}") else text.lstrip("-")


def signed(value: float) -> str:
    """Return a difference with its sign and three decimals.

    Examples
    --------
    >>> signed(0.0041), signed(0.0)
    ('+0.004', '0.000')
    """
    text = number(value)
    return f"+{text}" if math.isfinite(value) and float(f"{value:.3f}") > 0 else text


def has_interval(estimate: Estimate) -> bool:
    """Return whether both ends of the interval are known."""
    return math.isfinite(estimate.low) and math.isfinite(estimate.high)


def with_interval(estimate: Estimate, form: Callable[[float], str] = number) -> str:
    """Return a mean and its interval in brackets, or the mean if there is no interval.

    Examples
    --------
    >>> with_interval(Estimate(0.9617, 0.951, 0.97))
    '0.962 [0.951, 0.970]'
    """
    if not has_interval(estimate):
        return form(estimate.mean)
    return f"{form(estimate.mean)} [{form(estimate.low)}, {form(estimate.high)}]"


@dataclass(frozen=True)
class Verdict:
    """A paired difference in words.

    Attributes
    ----------
    name
        For the style of the page.
    sign
        Printed before the words, so that colour is not the only difference.
    words
        A description of the difference.
    """

    name: Literal["better", "worse", "same", "unknown", "baseline"]
    sign: str
    words: str

    def __str__(self) -> str:
        return f"{self.sign} {self.words}".strip()


def find_baseline(comparison: Comparison) -> Summary | None:
    """Return the summary that differences refer to; None if it has no finished run."""
    return next(
        (s for s in comparison.summaries if s.method == comparison.baseline and not s.difference),
        None,
    )


def verdict_of(summary: Summary, baseline: Summary | None) -> Verdict:
    """Return the verdict on a paired difference: whether its interval contains zero.

    Parameters
    ----------
    summary
        Whose difference.
    baseline
        From `find_baseline`.
    """
    difference = summary.difference
    if summary is baseline:
        return Verdict("baseline", "", "baseline")
    if difference is None:
        return Verdict("unknown", "?", "not compared")  # no seed in common
    if not has_interval(difference):
        return Verdict("unknown", "?", "no interval")
    if difference.low > 0:
        return Verdict("better", "▲", "better")
    if difference.high < 0:
        return Verdict("worse", "▼", "worse")
    return Verdict("same", "≈", "not distinguishable")


@dataclass(frozen=True)
class CostColumn:
    """One quantity of a `Cost`, and how it is printed."""

    title: str
    digits: int
    value: Callable[[Cost], float]
    spread: Callable[[Cost], float] | None = None


COSTS = (
    CostColumn("ms a training step", 1, lambda c: c.step_ms, lambda c: c.step_spread),
    CostColumn("ms an inference", 1, lambda c: c.inference_ms, lambda c: c.inference_spread),
    CostColumn("kB kept for backward", 0, lambda c: c.saved_bytes / 1e3),
    CostColumn("MB peak memory", 1, lambda c: c.peak_bytes / 1e6),
    CostColumn("parameters", 0, lambda c: c.parameters),
)


def sort_by_score(comparison: Comparison) -> list[Summary]:
    """Return the summaries, the highest score first; those without a score last."""
    return sorted(
        comparison.summaries,
        key=lambda s: (not math.isfinite(s.score.mean), -s.score.mean, s.method, s.head),
    )


Curve = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def validation_curve(comparison: Comparison, method: str, head: str) -> Curve | None:
    """Return the validation score of a method over the epochs that all its runs have.

    Parameters
    ----------
    comparison
        Its runs hold the curves; the score is the first entry that begins with `val_` and is not
        the loss.
    method, head
        Which runs.

    Returns
    -------
    epochs, low, mean, high : array
        Shape (E,): lowest value of the seeds, their mean, and their highest; None without curves.
    """
    runs = [r.curves for r in comparison.runs if (r.method, r.head) == (method, head) and r.curves]
    if not runs:
        return None
    names = [n for n in runs[0][0] if n.startswith("val_") and n != "val_loss"]
    if not names:
        return None
    length = min(len(rows) for rows in runs)
    values = np.array([[row.get(names[0], np.nan) for row in rows[:length]] for rows in runs])
    epochs = np.array([row.get("epoch", i + 1) for i, row in enumerate(runs[0][:length])], float)
    return epochs, values.min(0), values.mean(0), values.max(0)


@dataclass(frozen=True)
class Claim:
    """The result of a paper, and that of this comparison.

    Attributes
    ----------
    paper
        Authors, title, venue and year.
    reported
        The finding as a sentence.
    outcome
        `"agrees"`, `"unclear"`, `"differs"` or `"not tested"`.
    here
        What was found here, with numbers; where it differs, what can be the reason.
    """

    paper: str
    reported: str
    outcome: Literal["agrees", "unclear", "differs", "not tested"]
    here: str


def compare_with_papers(comparison: Comparison) -> list[Claim]:
    """Return the results of the papers next to those of this comparison."""
    if comparison.task == "segment":
        return [_unpooling(comparison), _dilation(comparison)]
    return [_blur(comparison), _polyphase(comparison), _accuracy_lifts(comparison)]


_ZHANG = "Zhang, Making Convolutional Networks Shift-Invariant Again, ICML 2019"
_CHAMAN = "Chaman and Dokmanić, Truly Shift-Invariant Convolutional Neural Networks, CVPR 2021"
_SEGNET = "Badrinarayanan, Kendall and Cipolla, SegNet, IEEE TPAMI 2017"
_DILATED = "Yu and Koltun, Multi-Scale Context Aggregation by Dilated Convolutions, ICLR 2016"


def _first(comparison: Comparison, method: str) -> Summary | None:
    return next((s for s in comparison.summaries if s.method == method), None)


def _missing(*methods: str) -> str:
    names = " and ".join(f"“{m}”" for m in methods)
    return f"Not tested: this needs finished runs of {names}."


def _order(high: Estimate, low: Estimate) -> tuple[Literal["agrees", "unclear", "differs"], str]:
    """Return whether one estimate is above the other, with the numbers of both."""
    numbers = f"{with_interval(high)} against {with_interval(low)}"
    if has_interval(high) and has_interval(low) and high.low > low.high:
        return "agrees", numbers
    if high.mean > low.mean:
        return "unclear", f"{numbers}: higher, but not beyond the uncertainty"
    return "differs", f"{numbers}: not higher"


def _blur(comparison: Comparison) -> Claim:
    reported = (
        "On ImageNet, a blur before the subsampling makes classifiers more consistent under shifts"
        " than max pooling, and more accurate."
    )
    blur, most = _first(comparison, "blur"), _first(comparison, "max")
    if blur is None or most is None or None in (blur.cropped_consistency, most.cropped_consistency):
        return Claim(_ZHANG, reported, "not tested", _missing("blur", "max"))
    assert blur.cropped_consistency is not None
    assert most.cropped_consistency is not None
    outcome, numbers = _order(blur.cropped_consistency, most.cropped_consistency)
    here = f"Consistency under cropped shifts, blur against max: {numbers}."
    if outcome == "differs":
        here += (
            " Possible reasons, not tested here: the images are smaller and the classes fewer than"
            " ImageNet's, the network is shallow, so that few layers subsample, and augmentation"
            " with shifts teaches every network consistency."
        )
    return Claim(_ZHANG, reported, outcome, here)


def _polyphase(comparison: Comparison) -> Claim:
    reported = (
        "Adaptive polyphase sampling (APS) makes consistency under circular shifts exactly 1, if"
        " the convolutions pad circularly, too, and the head does not depend on positions. It"
        " promises nothing exact for other shifts."
    )
    runs = [r for r in comparison.runs if r.method == "aps" and r.shifts is not None]
    if not runs:
        return Claim(_CHAMAN, reported, "not tested", _missing("aps"))
    found = [run.shifts.circular_agreement for run in runs if run.shifts is not None]
    cropped = [run.shifts.cropped_consistency for run in runs if run.shifts is not None]
    total = sum(len(agreement) for agreement in found)
    wrong = sum(int((agreement < 1).sum()) for agreement in found)
    others = f"Under cropped shifts it is {number(float(np.mean(cropped)))}."
    if wrong == 0:
        here = f"Exactly 1 under circular shifts, for all {total} pairs of a run and a test image."
        return Claim(_CHAMAN, reported, "agrees", f"{here} {others}")
    heads = sorted({run.head for run, a in zip(runs, found, strict=True) if (a < 1).any()})
    here = (
        f"Not exact: {wrong} of {total} pairs of a run and a test image change their class under"
        f" some circular shift (heads: {', '.join(heads)}). Reasons for this can be convolutions"
        " that pad with zeros, and a head that depends on positions, such as flatten."
    )
    return Claim(_CHAMAN, reported, "differs", f"{here} {others}")


def _accuracy_lifts(comparison: Comparison) -> Claim:
    paper = "Arithmetic, not a paper"
    reported = (
        "Higher accuracy alone lifts consistency: two right answers for one image are the same"
        " answer. A network with accuracy a on shifted images has a consistency of at least"
        " 2a \N{MINUS SIGN} 1. So consistency is compared between methods of similar accuracy."
    )
    pairs = [
        (s.score.mean, s.cropped_consistency.mean)
        for s in comparison.summaries
        if s.cropped_consistency is not None
    ]
    finite = np.array([p for p in pairs if np.isfinite(p).all()]).reshape(-1, 2)
    if len(finite) < 4 or min(len(np.unique(column)) for column in finite.T) < 2:
        here = "Not tested: this needs at least four methods with different results."
        return Claim(paper, reported, "not tested", here)
    correlation = float(spearmanr(*finite.T).statistic)
    here = (
        f"Rank correlation of accuracy and consistency under cropped shifts over {len(finite)}"
        f" methods: {signed(correlation)} (Spearman). "
    )
    if correlation > 0.5:
        return Claim(paper, reported, "agrees", here + "The more accurate tend to be consistent.")
    words = "Here the consistency of these methods follows their accuracy weakly or not at all"
    return Claim(paper, reported, "unclear", here + words + "; the bound holds all the same.")


def _boundary(comparison: Comparison, paper: str, reported: str, high: str, low: str) -> Claim:
    pair = [_first(comparison, method) for method in (high, low)]
    found = [s.extra.get("boundary_iou") for s in pair if s is not None]
    if len(found) < 2 or found[0] is None or found[1] is None:
        return Claim(paper, reported, "not tested", _missing(high, low))
    outcome, numbers = _order(found[0], found[1])
    return Claim(paper, reported, outcome, f"Boundary IoU, {high} against {low}: {numbers}.")


def _unpooling(comparison: Comparison) -> Claim:
    reported = "Unpooling with the indices of max pooling draws boundaries better than upsampling."
    return _boundary(comparison, _SEGNET, reported, "max_unpool", "max_upsample")


def _dilation(comparison: Comparison) -> Claim:
    reported = "Dilated convolutions keep the resolution, which serves dense prediction."
    return _boundary(comparison, _DILATED, reported, "dilated", "max_upsample")
