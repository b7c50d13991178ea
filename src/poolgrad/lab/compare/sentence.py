"""Puts the result of a comparison into one honest sentence, and its limits into warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poolgrad.lab.compare.results import Estimate, Failure, Summary
from poolgrad.lab.compare.statistics import Scores, best
from poolgrad.lab.settings import counted

# With fewer test images, or wider intervals, the report warns.
FEW_IMAGES = 30
WIDE = 0.05
FEW_SEEDS = 3


def name_of(summary: Summary) -> str:
    """Name of a method in a sentence, with its head where that is not the usual one."""
    return summary.method if summary.head == "avg" else f"{summary.method} ({summary.head} head)"


def interval(found: Estimate) -> str:
    """Such as `0.962 [0.951, 0.970]`."""
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def sentence(
    summaries: Sequence[Summary],
    baseline: Summary,
    metric: str,
    consistency: Mapping[str, Scores],
) -> str:
    """Return the result in one sentence.

    Parameters
    ----------
    summaries
        Summaries of all methods that have finished runs.
    baseline
        The one that differences refer to.
    metric
        Name of the score.
    consistency
        Agreement under circular shifts by name of the method (`name_of`); empty if it was not
        measured.
    """
    parts = [*_scores(summaries, baseline, metric)]
    if len(consistency) > 1:
        parts.append(_consistency(summaries, consistency))
    if not parts:
        return f"{name_of(baseline)} has {metric} {interval(baseline.score)} on these data."
    return "; ".join(parts) + "."


def _scores(summaries: Sequence[Summary], baseline: Summary, metric: str) -> list[str]:
    others = [s for s in summaries if s.difference is not None]
    alike = [s for s in others if s.difference and s.difference.low <= 0 <= s.difference.high]
    better = [s for s in others if s.difference and s.difference.low > 0]
    worse = [s for s in others if s.difference and s.difference.high < 0]
    parts = []
    named, its = name_of(baseline), interval(baseline.score)
    if alike:
        verb = "is" if len(alike) == 1 else "are"
        if len(alike) <= 2:
            shown = listed([interval(s.score) for s in alike])
        else:
            means = [s.score.mean for s in alike]
            shown = f"{min(means):.3f} to {max(means):.3f}"
        parts.append(
            f"{listed([name_of(s) for s in alike])} {verb} not distinguishable from {named} in"
            f" {metric} on these data: {shown} against {its}"
        )
    for some, word in ((better, "better"), (worse, "worse")):
        if some:
            verb = "is" if len(some) == 1 else "are"
            versus = "" if parts else f" than {named} in {metric} ({its})"
            apart = listed([f"{name_of(s)} by {_size(s)}" for s in some])
            if len(some) == 1:
                apart = f"{name_of(some[0])} {verb} {word}{versus} by {_size(some[0])}"
            else:
                apart = f"{verb} {word}{versus}: {apart}"
                apart = f"{listed([name_of(s) for s in some])} {apart}"
            parts.append(apart)
    return parts


def _size(summary: Summary) -> str:
    assert summary.difference is not None
    ends = sorted((abs(summary.difference.low), abs(summary.difference.high)))
    return f"{abs(summary.difference.mean):.3f} [{ends[0]:.3f}, {ends[1]:.3f}]"


def _consistency(summaries: Sequence[Summary], consistency: Mapping[str, Scores]) -> str:
    top, equal = best(consistency)
    found = {name_of(s): s.circular_consistency for s in summaries}
    shown = found[top]
    assert shown is not None
    if len(equal) + 1 == len(consistency):
        return (
            "no method keeps its answer under circular shifts measurably more often than the others"
            f" ({_range(found, consistency)})"
        )
    if equal:
        return (
            f"{listed([top, *equal])} keep their answer under circular shifts most often"
            f" ({_range(found, [top, *equal])}, not distinguishable)"
        )
    runner_up = max(
        (name for name in consistency if name != top),
        key=lambda name: consistency[name].values.mean(),
    )
    second = found[runner_up]
    assert second is not None
    return (
        f"{top} keeps its answer under circular shifts most often: {interval(shown)}, then"
        f" {runner_up} with {interval(second)}"
    )


def _range(found: Mapping[str, Estimate | None], names: object) -> str:
    means = [e.mean for name, e in found.items() if e is not None and name in names]  # type: ignore[operator]
    low, high = f"{min(means):.3f}", f"{max(means):.3f}"
    return low if low == high else f"{low} to {high}"


def listed(items: Sequence[str]) -> str:
    """Such as `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def warnings(
    summaries: Sequence[Summary], failures: Sequence[Failure], tested: int, seeds: int, metric: str
) -> list[str]:
    """Return the limits of the results, in sentences with numbers.

    Parameters
    ----------
    summaries, failures
        The results.
    tested
        Number of test images.
    seeds
        The requested number of seeds.
    metric
        Name of the score.
    """
    found = []
    if tested < FEW_IMAGES:
        found.append(
            f"There are only {counted(tested, 'test image')}: one image more or less is"
            f" {1 / tested:.3f} of the {metric}. At least {FEW_IMAGES} are needed to"
            " draw a conclusion, and hundreds to tell small differences; more images help, more"
            " seeds do not."
        )
    halves = [(s.difference.high - s.difference.low) / 2 for s in summaries if s.difference]
    if halves and max(halves) > WIDE:
        found.append(
            f"Intervals of differences are up to {max(halves):.3f} wide to each side: smaller"
            f" differences in {metric} cannot be seen with {counted(tested, 'test image')} and"
            f" {counted(seeds, 'seed')}."
        )
    if seeds < FEW_SEEDS:
        found.append(
            f"{counted(seeds, 'seed')} can hardly tell how much results vary from seed to seed:"
            + (
                " intervals are over test images only."
                if seeds == 1
                else " intervals over seeds are rough. --seeds 5 adds runs to this comparison."
            )
        )
    if failures:
        names = listed(list(dict.fromkeys(f"{f.method} (seed {f.seed})" for f in failures)))
        found.append(f"{counted(len(failures), 'run')} failed and are left out: {names}.")
    short = [name_of(s) for s in summaries if s.seeds < seeds]
    if short:
        found.append(f"{listed(short)}: fewer than {counted(seeds, 'seed')} finished.")
    return found
