"""What was measured, written down: a CSV, and the tables and pictures that are made from it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from poolgrad.bench.pictures import draw_bars, draw_kernels
from poolgrad.bench.result import FLOOR, Figure, Result
from poolgrad.bench.rows import Limits
from poolgrad.environment import describe

_FIELDS = ("name", "dtype", "shape", "seconds", "spread", "floor", "beside", "kept", "apart")
_PEERS = {"onnxruntime": "ONNX Runtime", "jax": "JAX"}  # beside PyTorch
_OWN = ("ms", FLOOR, "x floor", "x other", "x kept", "apart")  # the other columns are peers
_MEANS = {
    "x floor": "*x floor*: the time over the floor",
    "x other": "*x other*: over that of the row it is compared with",
    "x kept": "*x kept*: the bytes kept for backward, parameters left out, over PyTorch's",
    "apart": "*apart*: the relative difference of outputs, or of all gradients, to PyTorch's",
}
_LIMITS = [field.name for field in fields(Limits)]


class Report(NamedTuple):
    """The results of one run, and the machine that made them."""

    machine: Mapping[str, str]
    results: Sequence[Result]

    @property
    def caption(self) -> str:
        """The machine, the threads, the versions."""
        has = self.machine.get
        peers = "".join(f", {name} {has(key)}" for key, name in _PEERS.items() if has(key))
        return (
            f"{has('processor')}, {has('bench threads')} threads, {has('instruction set')};"
            f" poolgrad {has('poolgrad')}, PyTorch {has('torch')}{peers};"
            f" medians of {has('bench turns')} turns"
        )

    @property
    def columns(self) -> list[str]:
        """The heads of all figures: times first, then the peers."""
        found = dict.fromkeys(head for result in self.results for head in result.figures)
        return sorted(found, key=lambda head: head not in _OWN)


def machine(threads: int, turns: int) -> dict[str, str]:
    """What the results depend on."""
    found = {**describe(), "bench threads": str(threads), "bench turns": str(turns)}
    for package in _PEERS:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def write_csv(path: Path, report: Report) -> None:
    """Write everything raw, times in seconds; the machine stands above, in lines with a #."""
    peers = dict.fromkeys(peer for result in report.results for peer in result.peers)
    heads = [*_FIELDS, *(f"limit {name}" for name in _LIMITS), *(f"peer {name}" for name in peers)]
    with path.open("w", newline="") as file:
        file.writelines(f"# {name}: {value}\n" for name, value in report.machine.items())
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(heads)
        for result in report.results:
            own = [getattr(result, name) for name in _FIELDS]
            others = [result.peers.get(name) for name in peers]
            lines.writerow([*own, *asdict(result.limits).values(), *others])


def read_csv(path: Path) -> Report:
    """Read what `write_csv` wrote."""
    lines = path.read_text().splitlines()
    above = [line[2:].partition(": ") for line in lines if line.startswith("# ")]
    results = []
    for line in csv.DictReader(line for line in lines if not line.startswith("# ")):
        name, dtype, shape, *rest = line.values()
        number = {head: float(text) if text else None
                  for head, text in zip(list(line)[3:], rest, strict=True)}  # fmt: skip
        results.append(
            Result(
                name,
                dtype,
                shape,
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


def _cells(columns: Sequence[str], result: Result, mark: Callable[[str, Figure], str]) -> list[str]:
    figures = [result.figures.get(head) for head in columns]
    cells = [mark(f"{figure.value:.3g}", figure) if figure else "" for figure in figures]
    return [result.name, *cells, f"{result.spread:.0%}"]


def _miss(figure: Figure) -> str:
    return f"{'<' if figure.at_least else '>'} {figure.limit:.3g}"


def table(report: Report) -> Table:
    """For a terminal: green where a limit is kept, red with a ! where not."""

    def mark(text: str, figure: Figure) -> str:
        if figure.limit is None:
            return text
        return f"[green]{text}[/]" if figure.met else f"[bold red]{text}![/]"

    made = Table(
        title="time over the floor, over the row beside; times faster than each peer",
        caption=Text(report.caption),
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,  # with all its columns it fits a terminal of 80
    )
    made.add_column("row")
    columns = [head for head in report.columns if head != FLOOR]  # to be narrow
    for head in (*columns, "spread"):
        text = head if head in _OWN else head.replace(" ", "\n")
        made.add_column(text, justify="right", no_wrap=True)
    for result in report.results:
        made.add_row(*_cells(columns, result, mark))
    return made


def complaints(report: Report) -> list[str]:
    """A line for each limit that is missed, and for each peer that failed."""
    missed = [
        f"{result.name}: {head} {figure.value:.3g} {_miss(figure)}"
        for result in report.results
        for head, figure in result.figures.items()
        if not figure.met
    ]
    failed = [
        f"{r.name}: {peer} failed: {why}" for r in report.results for peer, why in r.failed.items()
    ]
    return missed + failed


def markdown(report: Report, names: Sequence[str] = ()) -> str:
    """For a page: all rows, or these and those that miss a limit.

    What misses it is bold, with the limit beside it.
    """

    def mark(text: str, figure: Figure) -> str:
        return text if figure.met else f"**{text}** {_miss(figure)}"

    kept = [r for r in report.results if not names or r.name in names or not r.met]
    part = Report(report.machine, kept)
    peers = [head if head in _OWN else f"faster than {head}" for head in part.columns]
    heads = ["row", *peers, "spread"]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for result in kept:
        name, *numbers = _cells(part.columns, result, mark)
        lines.append([name if result.met else f"**{name}**", *numbers])
    missed = sum(not result.met for result in kept)
    said = [_MEANS[head] for head in part.columns if head in _MEANS]
    text = f"{part.caption}. {'; '.join([*said, '*faster than*: how many times'])}."
    text += (
        f" {missed} of {len(report.results)} rows miss a limit: they are bold." if missed else ""
    )
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", text])


def prepare(folder: Path) -> None:
    """Make the folder, if need be, and try to write there.

    Raises
    ------
    OSError
        If that cannot be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder):
        pass


def write(folder: Path, report: Report, name: str = "bench") -> list[Path]:
    """Write the CSV, and from it the pictures, under this name.

    Returns
    -------
    list of Path
        What was written: without any size of kernel, there is no picture of them.
    """
    files = [folder / f"{name}.csv"]
    write_csv(files[0], report)
    for file, draw in ((f"{name}.png", draw_bars), (f"{name}_kernels.png", draw_kernels)):
        picture = draw(report.results, report.caption)
        if picture:
            files.append(folder / file)
            files[-1].write_bytes(picture)
    return files
