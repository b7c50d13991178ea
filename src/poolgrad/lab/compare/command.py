"""Executes a comparison, from its options to its folder of results. Does not import PyTorch."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from poolgrad.lab.compare import costs as lab_costs
from poolgrad.lab.compare import files, grid, processes, shifts, terminal
from poolgrad.lab.compare.options import Plan
from poolgrad.lab.compare.progress import Display, duration
from poolgrad.lab.compare.results import Comparison, Cost, Example, Failure, RunResult, Summary
from poolgrad.lab.compare.sentence import name_of, sentence, warnings
from poolgrad.lab.compare.statistics import DRAWS, Scores, differences, estimate
from poolgrad.lab.compare.tasks import Described, Job
from poolgrad.lab.folder import is_leftover, locked, read_json, to_json, write_atomic
from poolgrad.lab.pools import with_head
from poolgrad.lab.settings import LabError, check_entries, counted, flag, shorten
from poolgrad.lab.versions import versions
from poolgrad.tools.info import describe as describe_machine

_MARK, _COSTS = "comparison.json", "costs.json"
_MARKED: dict[str, tuple[type, ...]] = {"options": (dict,), "data": (dict,), "versions": (dict,)}
_COST: dict[str, tuple[type, ...]] = {
    "method": (str,),
    "head": (str,),
    "saved_bytes": (int,),
    "peak_bytes": (int,),
    "parameters": (int,),
    **{
        f"{what}_{unit}": (float, int)
        for what in ("step", "inference")
        for unit in ("ms", "spread")
    },
}
_OVERHEAD_MS = 6.0  # of a step, beside the network: data, augmentation, optimizer, Lightning
_START_SECONDS = 1.5  # of a run


@dataclass
class Session:
    """A comparison that is ready to start: checked options, data and folder."""

    plan: Plan
    out: Path
    data: Any
    described: Described
    console: Console

    def make(self) -> tuple[Comparison, list[Path]]:
        """Execute all runs that have not finished, and write the results.

        Returns
        -------
        comparison, files
            The files that were written, the most wanted first.

        Raises
        ------
        LabError
            If the system refuses to write, or no run has finished.
        """
        jobs = self.plan.grid()
        finished, waiting, damaged = grid.sort_jobs(self.out, jobs)
        start = processes.context(self.plan.task_entry.training_module)
        with self._client(waiting) as client:  # before the costs, because the address may be wrong
            measured = self._costs(start)
            failures = damaged + self._run(start, client, waiting, finished, measured)
        order = {job.name: index for index, job in enumerate(jobs)}
        failures.sort(key=lambda f: order[f.name])
        comparison = self.gather(jobs, failures, measured)
        return comparison, self.write(comparison)

    @contextmanager
    def _client(self, waiting: Sequence[Job]) -> Iterator[Any]:
        """The client of the Dask cluster; None where no cluster is needed."""
        if self.plan.cluster is None or not waiting:
            yield None
            return
        from poolgrad.lab.compare import cluster

        client = cluster.connect(self.plan.cluster)
        try:
            yield client
        finally:
            client.close()

    def _costs(self, start: Any) -> dict[str, Cost]:
        """Measure costs that were not measured before."""
        path = self.out / _COSTS
        known = _read_costs(path)
        jobs = {job.name: job for job in (self.plan.job(m, h, 0) for m, h in self.plan.pairs())}
        if any(name not in known for name in jobs):
            # All methods are measured again, because they are timed in alternation.
            text = "measuring time and memory of each method, nothing else runs"
            if not self.console.is_terminal:  # there is no status display
                self.console.print(text, highlight=False)
            with self.console.status(text):
                known = lab_costs.measure(
                    start, self.data, list(jobs.values()), self.plan.quick, self._complain
                )
            write_atomic(path, to_json({name: asdict(cost) for name, cost in known.items()}))
        return {name: known[name] for name in jobs if name in known}

    def _complain(self, text: str) -> None:
        self.console.print(text, style="red", markup=False, highlight=False)

    def _run(
        self,
        start: Any,
        client: Any,
        waiting: Sequence[Job],
        finished: Sequence[Job],
        measured: Mapping[str, Cost],
    ) -> list[Failure]:
        if finished:
            self.console.print(
                f"{counted(len(finished), 'run')} of {len(finished) + len(waiting)} in {self.out}"
                " finished earlier",
                highlight=False,
            )
        if not waiting:
            return []
        expected = {job.name: self._expected(job, measured) for job in waiting}
        epochs = self.plan.epochs or 1
        if client is not None:
            from poolgrad.lab.compare import cluster

            workers = cluster.workers_of(client)
            where = f"on {counted(workers, 'worker')} of {self.plan.cluster}"
            self._announce(expected, workers, where)
            with Display(self.console, expected, epochs, workers) as display:
                return cluster.run_on(client, self.data, self.out, waiting, display)
        workers = min(self.plan.jobs, len(waiting))
        self._announce(expected, workers, f"{workers} at a time")
        with Display(self.console, expected, epochs, workers) as display:
            return grid.run_local(start, self.data, self.out, waiting, workers, display)

    def _announce(self, expected: Mapping[str, float], workers: int, where: str) -> None:
        seconds = max(sum(expected.values()) / workers, *expected.values())
        runs = counted(len(expected), "run")
        epochs = counted(self.plan.epochs or 1, "epoch")
        self.console.print(
            f"{runs} of {epochs}, {where}: {duration(seconds)}", markup=False, highlight=False
        )

    def _expected(self, job: Job, measured: Mapping[str, Cost]) -> float:
        """Seconds that a run is expected to take."""
        plan = self.plan
        assert plan.batch_size is not None, "chosen for the data"
        assert plan.epochs is not None
        assert plan.shifts is not None
        first = plan.job(job.method, job.head, 0)  # type: ignore[arg-type]
        cost = measured.get(first.name)
        if cost is None:
            return _START_SECONDS
        steps = plan.epochs * self.described.training / plan.batch_size
        evaluations = shifts.evaluations(plan.shifts) if plan.task_entry.shifts else 1
        images = self.described.tested * evaluations
        inference = images / plan.batch_size * cost.inference_ms
        return _START_SECONDS + (steps * (cost.step_ms + _OVERHEAD_MS) + inference) / 1000

    def gather(
        self, jobs: Sequence[Job], failures: Sequence[Failure], measured: Mapping[str, Cost]
    ) -> Comparison:
        """Read all finished runs, and compute estimates, sentence and warnings."""
        from poolgrad.lab.compare.store import load_run

        runs: list[RunResult] = []
        examples: list[Example] = []
        failed = {(f.method, f.head, f.seed) for f in failures}
        for method, head in self.plan.pairs():
            for job in jobs:
                this = (job.method, job.head) == (method, head)
                if not this or (method, head, job.seed) in failed:
                    continue
                found = load_run(grid.run_folder(self.out, job))
                if found is not None:
                    runs.append(found[0])
                    if head == self.plan.heads[0]:
                        examples += found[1]
        if not runs:
            reasons = "; ".join(f"{f.method}: {f.reason}" for f in failures[:3])
            raise LabError(f"no run of the comparison in {self.out} has finished: {reasons}")
        return _compare(self.plan, self.described, runs, list(failures), examples, measured)

    def write(self, comparison: Comparison) -> list[Path]:
        """Write tables, protocol and report, and return their paths, the most wanted first.

        Raises
        ------
        LabError
            If the system refuses to write.
        """
        from poolgrad.lab.compare.report import write_report

        results, runs, protocol = (
            self.out / name for name in ("results.csv", "runs.csv", "protocol.md")
        )
        files.write_results(comparison, results)
        files.write_runs(comparison, runs)
        files.write_protocol(comparison, repeat_command(self.plan), protocol)
        page, *pictures = write_report(comparison, self.out)
        return [page, results, runs, protocol, *pictures]


@contextmanager
def opened(options: Mapping[str, Any], out: Path | None, console: Console) -> Iterator[Session]:
    """Check options, folder and data; nothing is written before all are right.

    Parameters
    ----------
    options
        As `Plan.from_options` takes them.
    out
        The folder; None: named after the options.
    console
        For messages and the progress display.

    Raises
    ------
    LabError
        If an option is wrong, the data cannot be used, or the folder cannot be written, belongs to
        something else, or is in use.
    """
    plan = Plan.from_options(options)
    out = out or plan.default_out()
    _stored(out)  # before the folder is created
    with locked(out):
        stored = _stored(out)
        reader = plan.task_entry.data_functions()
        data = reader.load(plan)
        described = reader.describe(plan, data)
        plan = plan.for_data(described.training, described.size)
        if stored is None:
            mark = {"options": plan.deciding(), "data": described.identity, "versions": versions()}
            write_atomic(out / _MARK, to_json(mark))
        else:
            _check_same(plan, described, stored, out)
        described.facts.update(reader.protocol(plan, described))
        yield Session(plan, out, data, described, console)


def _stored(out: Path) -> dict[str, Any] | None:
    """Return the stored options of the comparison in a folder; None if there is none."""
    mark = out / _MARK
    try:
        if mark.exists():
            return check_entries(read_json(mark), _MARKED, mark)
        if out.exists() and not out.is_dir():
            raise LabError(f"--out {out} is a file, not a folder")
        used = out.exists() and not all(map(is_leftover, out.iterdir()))
    except OSError as error:
        raise LabError(f"--out {out} cannot be read: {error.strerror}") from error
    if used:
        raise LabError(f"--out {out} is not empty and holds no comparison; choose another")
    return None


def _check_same(plan: Plan, described: Described, stored: Mapping[str, Any], out: Path) -> None:
    for name, value in plan.deciding().items():
        before = stored["options"].get(name)
        if name != "data" and before != value:  # data may have moved
            raise LabError(
                f"{flag(name)}: the comparison in {out} was started with {shorten(before)}, not"
                f" {shorten(value)}; pass that value, or choose another --out"
            )
    if stored["data"] != json.loads(json.dumps(described.identity)):
        raise LabError(
            f"--data: {plan.data} is not what the comparison in {out} was started with;"
            " choose another --out"
        )


def _read_costs(path: Path) -> dict[str, Cost]:
    """Return costs that were measured earlier; none if the file is damaged."""
    try:
        stored = read_json(path)
        if not isinstance(stored, dict):
            return {}
        return {name: Cost(**check_entries(row, _COST, path)) for name, row in stored.items()}
    except LabError:
        return {}


def _compare(
    plan: Plan,
    described: Described,
    runs: list[RunResult],
    failures: list[Failure],
    examples: list[Example],
    measured: Mapping[str, Cost],
) -> Comparison:
    task = plan.task_entry
    groups: dict[tuple[str, str], list[RunResult]] = {}
    for run in runs:
        groups.setdefault((run.method, run.head), []).append(run)
    scores = {pair: _scores(some, task.score) for pair, some in groups.items()}
    baseline = next((pair for pair in groups if pair[0] == plan.baseline), next(iter(groups)))
    apart = _differences(scores, baseline)
    others = list(dict.fromkeys(name for run in runs for name in run.scores if name != task.score))
    extra = {name: {pair: _scores(some, name) for pair, some in groups.items()} for name in others}
    extra_apart = {name: _differences(some, baseline) for name, some in extra.items()}
    circular: dict[tuple[str, str], Scores] = {}
    cropped: dict[tuple[str, str], Scores] = {}
    for pair, some in groups.items():
        if all(run.shifts is not None for run in some):
            circular[pair] = _agreement(some, "circular_agreement")
            cropped[pair] = _agreement(some, "cropped_agreement")
    summaries = []
    for pair, some in groups.items():
        method, head = pair
        first = plan.job(method, head, 0)  # type: ignore[arg-type]
        more = {}
        for name in others:
            more[name] = estimate(extra[name][pair].values)
            if pair in extra_apart[name]:
                more[f"{name}_minus_{baseline[0]}"] = extra_apart[name][pair]
        summaries.append(
            Summary(
                method=method,
                head=head,
                title=with_head(task.titles[method], head),
                seeds=len(some),
                score=estimate(scores[pair].values),
                difference=apart.get(pair),
                circular_consistency=estimate(circular[pair].values) if pair in circular else None,
                cropped_consistency=estimate(cropped[pair].values) if pair in cropped else None,
                extra=more,
                cost=measured.get(first.name),
            )
        )
    base = next(s for s in summaries if (s.method, s.head) == baseline)
    named = {
        name_of(s): circular[(s.method, s.head)]
        for s in summaries
        if (s.method, s.head) in circular
    }
    return Comparison(
        task=plan.task,
        data=plan.data_name,
        metric=task.metric,
        facts=_facts(plan, described),
        baseline=baseline[0],
        summaries=summaries,
        runs=runs,
        failures=failures,
        examples=examples,
        warnings=[
            *warnings(summaries, failures, described.tested, plan.seeds, task.metric),
            *_remarks(plan, groups),
        ],
        sentence=sentence(summaries, base, task.metric, named),
    )


def _remarks(plan: Plan, groups: Collection[tuple[str, str]]) -> list[str]:
    """Return notes for readers of the papers."""
    if plan.conv_padding == "circular" or all(method != "aps" for method, _ in groups):
        return []
    return [
        "aps is proved to be exactly consistent under circular shifts where the convolutions are"
        " circular, too; here they pad with zeros, and borders break it. --conv-padding circular"
        " (with another --out) shows it."
    ]


def _scores(runs: Sequence[RunResult], name: str) -> Scores:
    return Scores(tuple(run.seed for run in runs), np.array([run.scores[name] for run in runs]))


def _agreement(runs: Sequence[RunResult], name: str) -> Scores:
    values = np.array([getattr(run.shifts, name) for run in runs])
    return Scores(tuple(run.seed for run in runs), values)


def _differences(
    scores: Mapping[tuple[str, str], Scores], baseline: tuple[str, str]
) -> dict[tuple[str, str], Any]:
    by_name = {"/".join(pair): some for pair, some in scores.items()}
    found = differences(by_name, "/".join(baseline))
    return {pair: found["/".join(pair)] for pair in scores if "/".join(pair) in found}


def _facts(plan: Plan, described: Described) -> dict[str, str]:
    machine = describe_machine()
    seeds = "seed 0" if plan.seeds == 1 else f"seeds 0 to {plan.seeds - 1}"
    parallel = f"; each batch divided among {plan.devices} processes" if plan.devices > 1 else ""
    where = f" on the Dask cluster {plan.cluster}" if plan.cluster else ""
    return {
        **described.facts,
        "runs": f"every method with {seeds}, which decide weights, order and augmentation{where}",
        "intervals": (
            f"95 %, crossed bootstrap over seeds and test images ({DRAWS} draws); differences are"
            " paired by seed and image, and their intervals simultaneous over all methods, so that"
            " 95 % of such comparisons have no false difference at all"
        ),
        "costs": (
            f"batch of {plan.batch_size}, {counted(plan.threads, 'thread')}, methods in turns while"
            " nothing else ran here; a training step is forward, loss, backward and Adam's update;"
            " median and half the interquartile range; peak: growth of a new process's memory by"
            " training steps"
        ),
        "machine": (
            f"{machine['processor']}; {machine['system']};"
            f" instruction set {machine['instruction set']}; {counted(plan.threads, 'thread')} in"
            f" each process{parallel}"
        ),
        "versions": ", ".join(
            f"{name} {number}"
            for name, number in {"Python": platform.python_version(), **versions()}.items()
        ),
    }


def repeat_command(plan: Plan) -> str:
    """Return the command that repeats a comparison, with all options that affect the results."""
    options: dict[str, Any] = {
        "task": plan.task,
        "data": plan.data,
        "size": plan.size,
        "pool": ",".join(plan.methods),
        "head": ",".join(plan.heads) if plan.task_entry.heads else None,
        "seeds": plan.seeds,
        "epochs": plan.epochs,
        "batch_size": plan.batch_size,
        "lr": f"{plan.lr:g}",
        "kernel": plan.kernel,
        "conv_padding": plan.conv_padding,
        "shifts": plan.shifts if plan.task_entry.shifts else None,
    }
    words = [f"{flag(k)} {shlex.quote(str(v))}" for k, v in options.items() if v is not None]
    return " \\\n  ".join(["poolgrad compare", *words])


def compare(options: Mapping[str, Any], out: Path | None, console: Console) -> None:
    """Execute or resume a comparison, and print its result.

    Raises
    ------
    LabError
        See `opened` and `Session.make`.
    """
    with opened(options, out, console) as session:
        for topic in ("data", "split"):
            text = session.described.facts.get(topic)
            if text:
                console.print(f"{topic}: {text}", markup=False, highlight=False)
        comparison, written = session.make()
        terminal.show(console, comparison, written)
