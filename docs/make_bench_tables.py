"""Write the tables of README.md and docs/performance.md from docs/bench.csv."""

from __future__ import annotations

from pathlib import Path

from poolgrad.bench.report import markdown, read_csv

HERE = Path(__file__).parent
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
IN_README = (
    "max 2x2 s2 NCHW forward",
    "max 2x2 s2 NHWC backward",
    "max 3x3 s2 p1 NCHW forward",
    "max 13x13 s1 batch 4 NCHW forward",
    "max 2x2x2 s2 NCHW backward",
    "average 2x2 s2 NCHW forward",
    "average 31x31 s1 batch 4 NCHW forward",
    "global average NCHW forward",
    "adaptive average 7x7 NCHW backward",
)
BARS = "![Time over the floor, every row, for poolgrad and PyTorch](%sbench.png)"
KERNELS = "![Time of a maximum against the size of its kernel](%sbench_kernels.png)"


def write_between(path: Path, text: str) -> None:
    """Put the text between the markers of a page, in place of what is there.

    Raises
    ------
    ValueError
        If the page has not both markers.
    """
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no {BEGIN} followed by {END}")
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def main() -> None:
    """Write both."""
    report = read_csv(HERE / "bench.csv")
    short = markdown(report, IN_README)
    write_between(HERE.parent / "README.md", f"{short}\n\n{KERNELS % 'docs/'}")
    full = markdown(report)
    write_between(HERE / "performance.md", f"{full}\n\n{BARS % ''}\n\n{KERNELS % ''}")


if __name__ == "__main__":
    main()
