"""Formats results as a CSV file, and as tables for terminals and Markdown pages."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from poolgrad.lab.folder import write_atomic
from poolgrad.tools.bench.result import (
    DIFFERENCE,
    EAGER,
    FLOOR,
    KEPT,
    OWN,
    TIME,
    TO_FLOOR,
    TO_OTHER,
    Figure,
    Result,
)
from poolgrad.tools.bench.targets import Limits
from poolgrad.tools.info import describe

_NAMES = ("name", "dtype", "shape", "isa")
_FIELDS = (*_NAMES, "seconds", "spread", "floor", "beside", "kept", "apart")
_FASTEST = "speedup over the fastest library"
_PEERS = {"onnxruntime": "ONNX Runtime", "jax": "JAX"}  # packages beside PyTorch
_OWN = (TIME, FLOOR, TO_FLOOR, TO_OTHER, KEPT, DIFFERENCE)  # the other columns are peers
_MEANINGS = {
    TO_FLOOR: "The floor is the time of a copy of as many bytes as the operation must move.",
    TO_OTHER: f"*{TO_OTHER}* compares with the same operation in float32, with byte routes, or with"
    " a 3x3 kernel.",
    KEPT: f"*{KEPT}* compares the bytes kept for the backward pass, without the parameters.",
    DIFFERENCE: f"*{DIFFERENCE}* is the norm of the difference from PyTorch's outputs, and in a"
    " training step from its gradients, divided by the norm of PyTorch's.",
}
_SPEEDUP = "*speedup* is the time of the other library divided by poolgrad's."
_SPREAD = "*spread* is the interquartile range of poolgrad's times, relative to their median."
_ABBREVIATIONS = {  # in the names of rows
    r" NCHW": "*NCHW* is channels first",
    r" NHWC": "*NHWC* is channels last",
    r" s\d": "*s2* is stride 2",
    r" p\d": "*p1* is padding 1",
    r" d\d": "*d2* is dilation 2",
    r" N(CHW|HWC) forward$": "*forward* is the forward pass of an input that requires a gradient",
    r" values$": "*values* is the forward pass of an input that requires no gradient",
}
_LIMITS = [field.name for field in fields(Limits)]


class Report(NamedTuple):
    """The results of one run, and the machine."""

    machine: Mapping[str, str]
    results: Sequence[Result]

    @property
    def isa(self) -> str:
        """The instruction set of the kernels, which is the same in all rows of a run."""
        return self.results[0].isa

    @property
    def caption(self) -> str:
        """The machine, the threads and the versions, in two sentences."""
        has = self.machine.get
        peers = "".join(f", {name} {has(key)}" for key, name in _PEERS.items() if has(key))
        count = has("bench threads", "?")
        threads = f"{count} thread{'s' * (count != '1')}"
        return (
            f"Measured on {processor(self.machine)}, with {threads} and {self.isa} kernels:"
            f" poolgrad {has('poolgrad')}, PyTorch {has('torch')}{peers}."
            f" Times are medians of {has('bench turns')} runs."
        )

    @property
    def columns(self) -> list[str]:
        """The heads of all columns: times first, then the peers."""
        found = dict.fromkeys(head for result in self.results for head in result.figures)
        return sorted(found, key=lambda head: head not in _OWN)

    @property
    def legend(self) -> list[str]:
        """A sentence for each kind of column whose head does not explain itself."""
        columns = self.columns
        sentences = [meaning for head, meaning in _MEANINGS.items() if head in columns]
        names = [result.name for result in self.results]
        short = [
            meaning
            for pattern, meaning in _ABBREVIATIONS.items()
            if any(re.search(pattern, name) for name in names)
        ]
        if short:
            sentences.append(f"In the names of rows, {_listed(short)}.")
        if any(head not in _OWN for head in columns):
            sentences.append(_SPEEDUP)
        return [*sentences, _SPREAD]


def machine(threads: int, turns: int) -> dict[str, str]:
    """Return the facts that the results depend on."""
    found = {**describe(), "bench threads": str(threads), "bench turns": str(turns)}
    for package in _PEERS:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def processor(machine: Mapping[str, str]) -> str:
    """Return the processor and its number of logical processors, for a sentence."""
    return re.sub(r"(\d+) logical$", r"\1 logical processors", machine.get("processor", "unknown"))


def write_csv(path: Path, report: Report) -> None:
    """Write all results, times in seconds, after a description of the machine in lines with a #."""
    peers = dict.fromkeys(peer for result in report.results for peer in result.peers)
    heads = [*_FIELDS, *(f"limit {name}" for name in _LIMITS), *(f"peer {name}" for name in peers)]
    text = io.StringIO()
    text.writelines(f"# {name}: {value}\n" for name, value in report.machine.items())
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(heads)
    for result in report.results:
        own = [getattr(result, name) for name in _FIELDS]
        others = [result.peers.get(name) for name in peers]
        lines.writerow([*own, *asdict(result.limits).values(), *others])
    write_atomic(path, text.getvalue().encode())


def read_csv(path: Path) -> Report:
    """Read what `write_csv` wrote."""
    lines = path.read_text().splitlines()
    above = [line[2:].partition(": ") for line in lines if line.startswith("# ")]
    results = []
    for line in csv.DictReader(line for line in lines if not line.startswith("# ")):
        name, dtype, shape, isa = (line.pop(head) for head in _NAMES)
        number = {head: float(text) if text else None for head, text in line.items()}
        results.append(
            Result(
                name,
                dtype,
                shape,
                isa,
                seconds=number["seconds"] or 0.0,
                spread=number["spread"] or 0.0,
                floor=number["floor"],
                beside=number["beside"],
                kept=number.get("kept"),
                apart=number.get("apart"),
                peers={head[5:]: n for head, n in number.items() if head.startswith("peer ") and n},
                limits=Limits(*(number.get(f"limit {name}") for name in _LIMITS)),
            )
        )
    return Report({name: value for name, _, value in above}, results)


def _listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _number(value: float) -> str:
    """Three significant digits, and all digits before the point."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _target(figure: Figure) -> str:
    assert figure.limit is not None
    return f"{'at least' if figure.at_least else 'at most'} {_number(figure.limit)}"


def table(report: Report) -> Table:
    """Table for a terminal of 80 columns, without floors and with the fastest of the other peers.

    A figure that meets its target is green, one that misses it is red with an exclamation mark.
    """
    columns = [head for head in report.columns if head in _OWN and head != FLOOR]
    peers = [head for head in report.columns if head not in _OWN]
    heads = [*columns, *(f"speedup over {head}" for head in peers[:1])]
    if peers[1:]:
        heads.append("over the fastest other")
    made = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)
    made.add_column("row", ratio=1)
    for head in (*heads, "spread"):
        made.add_column(_IN_LINES.get(head, head), justify="right", no_wrap=True)
    for result in report.results:
        figures = result.figures
        cells = [_coloured(figures.get(head)) for head in (*columns, *peers[:1])]
        if peers[1:]:
            others = [figures[head] for head in peers[1:] if head in figures]
            cells.append(_coloured(min(others, default=None)))
        made.add_row(result.name, *cells, f"{result.spread:.0%}")
    return made


# Heads of columns whose numbers are narrower.
_IN_LINES = {
    TIME: "time,\nms",
    TO_FLOOR: "time /\nfloor",
    TO_OTHER: "time /\nother\nrow",
    KEPT: "memory /\nPyTorch's",
    DIFFERENCE: "relative\ndifference",
    f"speedup over {EAGER}": "speedup\nover\nPyTorch",
    f"speedup over {OWN}": "speedup\nover\nJAX's own",
    "over the fastest other": "over the\nfastest\nother",
}


def _coloured(figure: Figure | None) -> str:
    if figure is None:
        return ""
    text = _number(figure.value)
    if figure.limit is None:
        return text
    return f"[green]{text}[/]" if figure.met else f"[bold red]{text}![/]"


def explanation(report: Report) -> list[str]:
    """The paragraphs under the table in a terminal: the machine, then the columns and targets."""
    meanings = [line.replace("*", "") for line in report.legend]
    others = [head for head in report.columns if head not in _OWN][1:]
    if others:
        fastest = f"the fastest of {_listed(others)}" if others[1:] else others[0]
        meanings.insert(-1, f"The fastest other is {fastest}; the CSV file has the times of each.")
    if any(figure.limit is not None for r in report.results for figure in r.figures.values()):
        missed = sum(not result.met for result in report.results)
        meanings.append(
            "A figure in green meets its target; one in red, with an exclamation mark, misses it."
            f" Rows with a missed target: {missed} of {len(report.results)}."
        )
    return [report.caption, "\n".join(meanings)]


def complaints(report: Report) -> list[str]:
    """A sentence for each target that is missed, and for each peer that failed."""
    missed = [
        f"{result.name}: {_said(head)} is {_number(figure.value)} and should be {_target(figure)}."
        for result in report.results
        for head, figure in result.figures.items()
        if not figure.met
    ]
    failed = [
        f"{r.name} could not be timed with {peer}: {why}"
        for r in report.results
        for peer, why in r.failed.items()
    ]
    return missed + failed


def _said(head: str) -> str:
    if head == TIME:
        return "the time in ms"
    return head if head in _OWN else f"the speedup over {head}"


def markdown(report: Report, names: Sequence[str] = (), others: Sequence[Report] = ()) -> str:
    """Table for a page: all rows, or these rows and those that miss a target.

    Each other run, with another instruction set, adds two columns: time / floor, and the speedup
    over the fastest peer. A figure that misses its target is bold, with the target beside it; the
    name of a row is bold if a figure of any run does.
    """
    kept = [r for r in report.results if not names or r.name in names or not r.met]
    missed = {r.name for run in (report, *others) for r in run.results if not r.met}
    part = Report(report.machine, kept)
    peers = [head if head in _OWN else f"speedup over {head}" for head in part.columns]
    brief = [f"{run.isa}: {head}" for run in others for head in (TO_FLOOR, _FASTEST)]
    heads = ["row", *peers, "spread", *brief]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    runs = [{r.name: (r.figures.get(TO_FLOOR), r.fastest) for r in run.results} for run in others]
    for result in kept:
        cells = [_emphasised(result.figures.get(head)) for head in part.columns]
        more = [figure for run in runs for figure in run.get(result.name, (None, None))]
        name = f"**{result.name}**" if result.name in missed else result.name
        lines.append([name, *cells, f"{result.spread:.0%}", *map(_emphasised, more)])
    texts = [[report.caption, *part.legend, *_misses(report)]]
    for run in others:
        texts.append([f"The columns *{run.isa}* are from another run.", run.caption, *_misses(run)])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([table, *map(" ".join, texts)])


def _misses(report: Report) -> list[str]:
    """A sentence about the rows that miss a target, in a list; none if every row meets its own."""
    missed = sum(not result.met for result in report.results)
    if not missed:
        return []
    miss = f"{missed} of {len(report.results)} rows miss{'es' * (missed == 1)} a target"
    return [f"{miss}; the figure is in bold, with the target in parentheses."]


def _emphasised(figure: Figure | None) -> str:
    if figure is None:
        return ""
    text = _number(figure.value)
    return text if figure.met else f"**{text}** ({_target(figure)})"


def prepare(folder: Path) -> None:
    """Create the folder if necessary, and test that it is writable.

    Raises
    ------
    OSError
        If that cannot be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder):
        pass
