"""The tables that gpu.py writes: CSV files, goals, a summary, and a picture.

    python benchmarks/gpu_table.py OUT

prints which goals the measurements in OUT reach, and a table in Markdown, and draws OUT/gpu.png. An
incomplete file is read as far as it goes.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TIMES, COMPILED, NETWORKS = "gpu.csv", "gpu-compiled.csv", "gpu-networks.csv"
WITHOUT = "gpu-without-kernels.csv"
DIRECTIONS = ("forward", "backward", "both")
COLUMNS = (
    "row", "dtype", "format", "direction", "ours_us", "rival_us", "floor_us", "rival / ours",
    "floor / ours", "ours_call_us", "rival_call_us", "missed", "error",
)  # fmt: skip
NETWORK_COLUMNS = (
    "network", "batch", "change", "step_us", "peak_bytes", "kept_bytes", "error",
)  # fmt: skip
WITHOUT_COLUMNS = ("row", "library", "forward_us", "backward_us", "peak_bytes", "error")

OF_COPY, FASTER, NEVER_SLOWER = 0.9, 1.5, 0.98  # medians of equal times differ by up to 2 %
NEAR_COPY = ("2x2 stride 2", "3x3 stride 2")

Line = dict[str, Any]


@contextmanager
def table(path: Path, columns: Sequence[str]) -> Iterator[Callable[[Line], None]]:
    """Open a CSV file; the returned function prints a line and writes it to the disk at once."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()

        def write(line: Line) -> None:
            writer.writerow(line)
            file.flush()
            print(*line.values(), sep="\t", flush=True)

        yield write


def read(path: Path) -> list[Line]:
    """Return the complete lines of a table; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [line for line in csv.DictReader(file) if None not in line.values()]


def missed_goals(line: Line) -> list[str]:
    """Return which goals the times of a line beside eager PyTorch do not reach."""
    name, direction = line["row"], line["direction"]
    missed = []
    if name.endswith(NEAR_COPY) and direction != "both" and line["floor / ours"] < OF_COPY:
        missed.append(f"{OF_COPY:.0%} of copy bandwidth")
    if direction == "both" and line["dtype"] == "bfloat16" and line["rival / ours"] < FASTER:
        missed.append(f"{FASTER} times as fast as PyTorch")
    if line["rival / ours"] < NEVER_SLOWER:
        missed.append("never slower than PyTorch")
    return missed


def summarize(lines: Sequence[Line]) -> None:
    """Print which lines miss a goal, which failed, and how many calls wait for the host."""
    timed = [line for line in lines if line["ours_us"]]
    losing = [line for line in timed if line["missed"]]
    print(f"{len(timed)} lines timed; {len(losing)} miss a goal:")
    for line in losing:
        print(" ", _name(line), line["direction"], f"({line['missed']})")
    for line in lines:
        if line["error"]:
            print("  failed:", _name(line), line["error"])
    slower = [n for n in timed if float(n["ours_call_us"]) > float(n["rival_call_us"])]
    print(
        f"calls on an idle device, with the time of the host: {len(slower)} slower than PyTorch's"
    )


def print_markdown(lines: Sequence[Line], compiled: Sequence[Line]) -> None:
    """Print a row for each pooling: in each direction the times of poolgrad and of the others."""
    others = {(_name(n), n["direction"]): n for n in compiled}
    print("| pooling | dtype | format |", *(f" {d} |" for d in DIRECTIONS), " host, both |", sep="")
    print("|---" * (4 + len(DIRECTIONS)), "|", sep="")
    for name in dict.fromkeys(map(_name, lines)):
        of_name = {n["direction"]: n for n in lines if _name(n) == name}
        if len(of_name) < len(DIRECTIONS):
            continue
        cells = []
        for direction, line in of_name.items():
            times = [line["ours_us"], line["rival_us"]]
            if (name, direction) in others:
                times.append(others[name, direction]["rival_us"])
            cells.append(" / ".join(f"{float(t):.0f}" for t in times))
        last = of_name[DIRECTIONS[-1]]
        cells.append(
            " / ".join(f"{float(last[key]):.0f}" for key in ("ours_call_us", "rival_call_us"))
        )
        print("|", " | ".join([last["row"], last["dtype"], last["format"], *cells]), "|")


def draw(lines: Sequence[Line], compiled: Sequence[Line], path: Path) -> None:
    """Draw the ratio of times of every row, in a panel for each direction."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    series = {"eager PyTorch": lines, "torch.compile": compiled}
    names = list(dict.fromkeys(_name(line) for line in lines))
    figure, panels = pyplot.subplots(
        1, 3, sharey=True, figsize=(14, 0.25 * len(names) + 1.5), layout="constrained"
    )
    for panel, direction in zip(panels, DIRECTIONS, strict=True):
        for (label, rival), marker in zip(series.items(), "os", strict=True):
            shown = {
                _name(n): float(n["rival / ours"]) for n in rival if n["direction"] == direction
            }
            places = [names.index(name) for name in shown if name in names]
            ratios = [ratio for name, ratio in shown.items() if name in names]
            panel.plot(ratios, places, marker, label=label)
        panel.axvline(1, color="black")
        panel.set(title=direction, xlabel="time of the other / of poolgrad", xlim=0)
        panel.grid(axis="both", alpha=0.3)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[0].legend()
    figure.savefig(path, dpi=120)


def _name(line: Line) -> str:
    return f"{line['row']} {line['dtype']} {line['format']}"


def main() -> None:
    """Print the summary of a folder and draw its picture."""
    out = Path(sys.argv[1])
    lines, compiled = read(out / TIMES), read(out / COMPILED)
    summarize(lines)
    timed, timed_compiled = ([n for n in some if n["ours_us"]] for some in (lines, compiled))
    print_markdown(timed, timed_compiled)
    if not find_spec("matplotlib"):
        sys.exit("there is no gpu.png: matplotlib is not installed")
    if not timed:
        sys.exit("there is no gpu.png: nothing was timed")
    draw(timed, timed_compiled, out / "gpu.png")
    print("written:", out / "gpu.png")


if __name__ == "__main__":
    main()
