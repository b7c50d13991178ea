"""Write the tables of README.md and docs/*.md from the docs/*.csv."""

from __future__ import annotations

import csv
from pathlib import Path

from poolgrad.tools.bench import algorithms
from poolgrad.tools.bench.report import markdown, read_csv

HERE = Path(__file__).parent
IN_README = (
    "max 2x2 s2 NCHW forward",
    "max 3x3 s2 p1 NCHW forward",
    "max 13x13 s1 batch 4 NCHW forward",
    "average 31x31 s1 batch 4 NCHW forward",
    "global average NCHW forward",
)
NETWORKS_IN_README = (
    "SqueezeNet 1.0 inference, convert",
    "VGG-11 inference, convert",
    "VGG-16 training step, convert",
    "VGG-16 training step, convert(fuse=True)",
)
BARS = "![Time over the floor, every row, for poolgrad and PyTorch](%sbench.png)"
KERNELS = "![Time of a maximum against the size of its kernel](%sbench_kernels.png)"


def write_between(path: Path, name: str, text: str) -> None:
    """Put the text between the markers of that name in a page, in place of what is there.

    Raises
    ------
    ValueError
        If the page has not both markers.
    """
    first, last = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, begin, rest = path.read_text().partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{path} has no {first} followed by {last}")
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def compared(path: Path, score: str) -> str:
    """The `results.csv` of a comparison as a Markdown table, the best method first."""
    with path.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: -float(row[score]))
    minus = f"{score}_minus_"
    difference = next(name for name in rows[0] if name.startswith(minus))
    estimates = {
        score: score.replace("iou", "IoU").replace("_", " "),
        difference: f"minus `{difference.removeprefix(minus)}`",
        "boundary_iou": "boundary IoU",
        "circular_consistency": "consistency, circular shifts",
        "cropped_consistency": "consistency, cropped shifts",
    }
    shown = {n: head for n, head in estimates.items() if any(row.get(n) for row in rows)}
    heads = ["method", *shown.values(), "training step, ms", "kept for backward, MB", "parameters"]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for row in rows:
        cells = [f"`{row['method']}`"]
        for name in shown:
            ends = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
            sign = "+" if name == difference else ""
            numbers = [f"{float(end):{sign}.3f}" for end in ends if end]
            cells.append(f"{numbers[0]} [{numbers[1]}, {numbers[2]}]" if numbers else "")
        cells.append(f"{float(row['step_ms']):.1f}" if row["step_ms"] else "")
        cells.append(f"{float(row['saved_bytes']) / 1e6:.1f}" if row["saved_bytes"] else "")
        cells.append(f"{int(float(row['parameters'])):,}" if row["parameters"] else "")
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Write them all."""
    readme = HERE.parent / "README.md"
    report = read_csv(HERE / "bench.csv")
    # Runs with other instruction sets, such as that of `make bench-avx2`.
    others = [read_csv(path) for path in sorted(HERE.glob("bench-*.csv"))]
    short = markdown(report, IN_README, others)
    write_between(readme, "bench", f"{short}\n\n{KERNELS % 'docs/'}")
    full = f"{markdown(report, others=others)}\n\n{BARS % ''}\n\n{KERNELS % ''}"
    write_between(HERE / "performance.md", "bench", full)
    ablation = algorithms.markdown(*algorithms.read_csv(HERE / "algorithms.csv"))
    write_between(HERE / "performance.md", "algorithms", ablation)
    networks = read_csv(HERE / "networks.csv")
    write_between(readme, "networks", markdown(networks, NETWORKS_IN_README))
    write_between(HERE / "pytorch.md", "networks", markdown(networks))
    write_between(HERE / "jax.md", "jax", markdown(read_csv(HERE / "jax.csv")))
    choosing = HERE / "choosing.md"
    write_between(choosing, "compare", compared(HERE / "compare.csv", "accuracy"))
    write_between(choosing, "segment", compared(HERE / "segment.csv", "iou"))


if __name__ == "__main__":
    main()
