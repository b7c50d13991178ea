"""`poolgrad bench`: what it counts, writes and prints. Speed itself is not tested."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run_python

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
testing = pytest.importorskip("typer.testing", reason="the lab extra is not installed")
pytest.importorskip("matplotlib", reason="the lab extra is not installed")
pytest.importorskip("rich", reason="the lab extra is not installed")

from rich.console import Console  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad import core  # noqa: E402
from poolgrad.cli.commands import app  # noqa: E402
from poolgrad.tools import algorithms as kernel_algorithms  # noqa: E402
from poolgrad.tools.bench import (  # noqa: E402
    algorithms,
    load,
    measure,
    networks,
    pictures,
    report,
    rows,
)  # fmt: skip
from poolgrad.tools.bench import jax as jax_rows  # noqa: E402
from poolgrad.tools.bench.result import OWN, Result  # noqa: E402
from poolgrad.tools.bench.rows import Row  # noqa: E402
from poolgrad.tools.bench.targets import Limits  # noqa: E402

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("tables", ROOT / "docs/make_tables.py")
tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tables)

SIDES = (1, 2, 96, 96, 16)  # of what rows are tested with: large enough for a floor


def small(row: Row) -> Row:
    shape = tuple(min(n, side) for n, side in zip(row.shape, SIDES, strict=False))
    return replace(row, shape=shape, beside=row.beside and small(row.beside))


FEW = tuple(
    small(row)
    for row in rows.ROWS
    if row.name.startswith(("max 2x2 s2 NCHW", "max 3x3 s1 batch 4", "max 2x2 s2 uint8"))
)
WON = Result("won", "float32", "1x2x3x3", "avx512", 2e-3, 0.1, 1e-3, None, {"PyTorch": 8e-3},
             limits=Limits(2, 4))  # fmt: skip
LOST = Result("lost", "float32", "1x2x3x3", "avx512", 2e-3, 0, 1e-3, 1e-3,
              {"PyTorch": 1e-2, "oneDNN": 1e-3}, limits=Limits(1.5, 5, 3, 1e-3))  # fmt: skip
REPORT = report.Report(
    {"processor": "an: abacus", "bench threads": "2", "bench turns": "3"}, [WON, LOST]
)
AVX2 = report.Report(
    {"processor": "a loom", "bench threads": "1", "bench turns": "9"},
    [
        replace(WON, isa="avx2", seconds=3e-3, peers={"PyTorch": 9e-3, "oneDNN": 6e-3}),
        replace(LOST, isa="avx2", floor=None, peers={}),
    ],
)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ROWS", FEW)


def bench(out: Path, *arguments: str) -> Any:
    given = ["bench", "--quick", "--threads", "1", "--out", str(out), *arguments]
    return testing.CliRunner().invoke(app, given, env={"COLUMNS": "150", "NO_COLOR": "1"})


def outputs(row: Row) -> tuple[Any, list[Any]]:
    x, ys, _ = measure._prepare(row)
    return x, ys


@pytest.mark.parametrize(
    ("direction", "function", "dtype", "expected"),
    [
        ("forward", "max_pool2d", "float32", 4 * 96 + 4 * 24 + 24),  # routes: a byte for each of 24
        ("backward", "max_pool2d", "float32", 4 * 96 + 4 * 24 + 24),
        ("values", "max_pool2d", "float32", 4 * 96 + 4 * 24),
        ("values", "max_pool2d", "uint8", 96 + 24),
        ("forward", "max_pool2d", "bfloat16", 2 * 96 + 2 * 24 + 24),
        ("backward", "avg_pool2d", "float32", 4 * 96 + 4 * 24),
        ("forward", "avg_pool2d", "float64", 8 * 96 + 8 * 24),
    ],
)
def test_bytes_as_counted_by_hand(direction: str, function: str, dtype: str, expected: int) -> None:
    row = Row("", function, ({"kernel_size": 2},), (1, 2, 6, 8), "NHWC", direction, dtype=dtype)
    assert measure.bytes_moved(row, *outputs(row)) == expected
    assert measure.bytes_moved(row, *outputs(replace(row, calls=row.calls * 3))) == 3 * expected


def test_the_floor_is_the_time_of_a_copy_of_these_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row("", "max_pool2d", ({"kernel_size": 2},), (1, 4, 64, 64))
    x_bytes, y_bytes, routes = 4 * 4 * 64 * 64, 4 * 4 * 32 * 32, 4 * 32 * 32
    times = {"poolgrad": [3.0, 5.0, 4.0], "a copy": [2.0, 2.0, 9.0], "PyTorch": [8.0]}
    monkeypatch.setattr(measure, "take_turns", lambda calls, turns: times)
    result = measure.measure(row, 1)
    assert result.isa == core.instruction_set()
    assert result.seconds == 4
    assert result.spread == pytest.approx((4.5 - 3.5) / 4)
    assert result.floor == pytest.approx(2 * (x_bytes + y_bytes + routes) / (2 * x_bytes))
    assert result.figures["PyTorch"].value == 2
    del times["a copy"]
    assert measure.measure(replace(row, shape=(1, 8, 8, 8)), 1).floor is None


def test_all_are_called_as_often_as_the_slowest() -> None:
    """Who is repeated finds in the caches what the others must fetch."""
    called: list[str] = []

    def slow() -> None:
        time.sleep(3e-3)
        called.append("slow")

    times = measure.take_turns({"fast": lambda: called.append("fast"), "slow": slow}, 5)
    assert [len(times["fast"]), len(times["slow"])] == [5, 5]
    assert called.count("fast") == called.count("slow")
    assert called[-4:] == ["slow", "fast", "fast", "slow"]  # the order is reversed each turn


def _check_row(row: Row, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Calls poolgrad and the peers once each, compares the results, and returns them by name."""
    called: dict[str, Any] = {}

    def take_turns(calls: Any, turns: int) -> dict[str, list[float]]:
        called.update({name: call() for name, call in calls.items()})
        return {name: [1.0] for name in calls}

    monkeypatch.setattr(measure, "take_turns", take_turns)
    result = measure.measure(row, os.cpu_count() or 1)
    assert not result.failed
    assert ("PyTorch" in result.peers) == row.peers
    assert (result.beside is not None) == (row.beside is not None)
    assert (result.floor is None) == row.tiny
    if row.direction == "backward" or not row.peers or len(row.calls) > 1:
        return called
    theirs = [called[name] for name in ("PyTorch", "torch.compile") if name in called]
    theirs += [y.to_dense() for name, y in called.items() if name == "oneDNN"]
    theirs += [torch.as_tensor(np.array(y)) for name, y in called.items() if name == "XLA"]
    if "lp3" not in row.name:  # PyTorch's norms of odd powers keep signs
        for y in theirs:
            torch.testing.assert_close(torch.as_tensor(called["poolgrad"]), y, check_stride=False)
    return called


@pytest.mark.parametrize("row", [small(row) for row in rows.ROWS], ids=lambda row: row.name)
def test_every_row_runs_beside_its_peers(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """With code that is not compiled in place of what torch.compile makes, which takes seconds."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    _check_row(row, monkeypatch)


# Only maxima without gradients are timed beside what torch.compile makes of PyTorch's own.
COMPILED = [
    small(row)
    for row in rows.ROWS
    if row.function.startswith("max_pool") and row.peers and not row.tiny and len(row.calls) == 1
    if (row.direction, row.layout, row.dtype) == ("values", "NCHW", "float32")
]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "c++")), reason="no C++ compiler")
@pytest.mark.parametrize("row", COMPILED, ids=lambda row: row.name)
def test_rows_run_beside_compiled_code(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torch.compile" in _check_row(row, monkeypatch)


def test_names_are_different() -> None:
    names = [row.name for row in rows.ROWS]
    assert len({*names}) == len(names)
    assert {*tables.IN_README} <= {*names}
    assert {*tables.NETWORKS_IN_README} <= {network.name for network in networks.NETWORKS}
    assert {rows.kernel_row(k).name for k in rows.KERNELS} <= {*names}


def test_targets_name_rows() -> None:
    from poolgrad.tools.bench import targets

    names = {row.name for row in (*rows.ROWS, *networks.NETWORKS, *jax_rows.ROWS)}
    path = Path(__file__).parents[2] / "benchmarks/targets.csv"
    assert {*targets.read(path)} <= names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file"),
        ("name,floor\n", "the columns must be name, floor, faster, share, seconds, kept, apart"),
        ("name,floor,faster,share,seconds,kept,apart\nmax,x,,,,,\n", "got 'x,,,,,' for 'max'"),
        ("name,floor,faster,share,seconds,kept,apart\nmax,1\n", "got '1' for 'max'"),
    ],
)
def test_bad_targets(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "targets.csv"
    if text is not None:
        path.write_text(text)
    done = bench(tmp_path / "out", "--targets", str(path))
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_rows_of_another_dtype() -> None:
    chosen = rows.select(["63x63", "uint8", "NumPy"], "float64")
    assert {row.title for row in chosen} == {"max 63x63 s1 batch 4"}
    assert all(row.dtype == row.beside.dtype == "float64" for row in chosen)


def test_what_is_met() -> None:
    assert WON.met
    assert not LOST.met
    missed = [head for head, figure in LOST.figures.items() if not figure.met]
    assert missed == ["time, ms", "time / floor", "oneDNN"]  # 5 times PyTorch is just enough
    assert report.complaints(REPORT) == [
        "lost: the time in ms is 2 and should be at most 1.",
        "lost: time / floor is 2 and should be at most 1.5.",
        "lost: the speedup over oneDNN is 0.5 and should be at least 1.",
    ]


def test_a_peer_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("broken\nfor long")

    row = replace(FEW[0], direction="values")
    monkeypatch.setattr(measure, "others", lambda row, x: iter([("a", lambda: fail), ("b", fail)]))
    result = measure.measure(row, 1, 1)
    assert [*result.peers] == ["PyTorch"]
    assert result.failed == dict.fromkeys("ab", "RuntimeError: broken")
    assert f"{row.name} could not be timed with a: RuntimeError: broken" in report.complaints(
        REPORT._replace(results=[result])
    )


def test_csv_there_and_back(tmp_path: Path) -> None:
    for made in (REPORT, AVX2):
        report.write_csv(tmp_path / "a.csv", made)
        assert report.read_csv(tmp_path / "a.csv") == made
        report.write_csv(tmp_path / "a.csv", report.read_csv(tmp_path / "a.csv"))
        assert report.read_csv(tmp_path / "a.csv") == made


def test_markdown_marks_losing_rows() -> None:
    text = report.markdown(REPORT).splitlines()
    assert text[0].startswith(
        "| row | time, ms | floor, ms | time / floor | time / other row | speedup over PyTorch |"
    )
    assert text[2] == "| won | 2 | 1 | 2 |  | 4 |  | 10% |"
    lost = "| **lost** | **2** (at most 1) | 1 | **2** (at most 1.5) | 2 | 5 |"
    assert text[3] == f"{lost} **0.5** (at least 1) | 0% |"
    assert text[5].startswith("Measured on an: abacus, with 2 threads and avx512 kernels: ")
    assert text[5].endswith(
        " misses a target; the figure is in bold, with the target in parentheses."
    )
    assert "won" not in report.markdown(REPORT, ["another"])
    assert "**lost**" in report.markdown(REPORT, ["another"])
    assert " 1 of 2 rows misses a target" in report.markdown(REPORT, ["another"])
    assert "bold" not in report.markdown(REPORT._replace(results=[WON]))


def test_markdown_of_another_instruction_set_in_columns_beside() -> None:
    text = report.markdown(REPORT, others=[AVX2]).splitlines()
    assert text[0].endswith(
        " | spread | avx2: time / floor | avx2: speedup over the fastest library |"
    )
    assert text[1].count("---") == text[0].count(" | ") + 1
    # The fastest is oneDNN. The row misses a target with AVX2 only.
    assert text[2] == "| **won** | 2 | 1 | 2 |  | 4 |  | 10% | **3** (at most 2) | 2 |"
    assert text[3].endswith(" | **0.5** (at least 1) | 0% |  |  |")
    assert "avx512" in text[5]
    assert " 1 of 2 rows misses a target; " in text[5]
    assert " Measured on a loom, with 1 thread and avx2 kernels: " in text[7]
    assert " 2 of 2 rows miss a target; " in text[7]
    assert "won" not in report.markdown(REPORT, ["another"], [AVX2])
    without = report.markdown(REPORT, others=[AVX2._replace(results=AVX2.results[1:])])
    assert "| won | 2 | 1 | 2 |  | 4 |  | 10% |  |  |" in without


def test_every_column_and_abbreviation_is_explained_in_a_sentence() -> None:
    """In the terminal and on the pages the same, and only what is there."""
    row = replace(LOST, name="max 2x2 s2 NCHW values", kept=0.5, apart=0.0)
    said = " ".join(report.explanation(REPORT._replace(results=[row])))
    for sentence in (
        "with 2 threads",
        "medians of 3 runs.",
        "The floor is the time of a copy of as many bytes as the operation must move.",
        "time / other row compares with the same operation in float32,",
        "memory / PyTorch's compares the bytes kept for the backward pass,",
        "relative difference is the norm of the difference from PyTorch's outputs,",
        "speedup is the time of the other library divided by poolgrad's.",
        "spread is the interquartile range of poolgrad's times, relative to their median.",
        "s2 is stride 2 and values is the forward pass of an input that requires no gradient.",
        "The fastest other is oneDNN; the CSV file has the times of each.",
        "misses it. Rows with a missed target: 1 of 1.",
    ):
        assert sentence in said
    for line in said.splitlines():
        assert line.endswith(".")
    alone = replace(WON, peers={}, floor=None, limits=Limits())
    said = " ".join(report.explanation(REPORT._replace(results=[alone])))
    for word in ("floor", "other", "memory", "difference", "speedup", "stride", "green"):
        assert word not in said
    assert "spread is" in said


def test_the_table_fits_80_columns_with_every_column() -> None:
    """A column for PyTorch, one for the fastest of all others; a name takes two lines at most."""
    peers = {"PyTorch": 8e-3, "torch.compile": 3e-3, "oneDNN": 1e-3, "ONNX Runtime": 9e-1}
    name = "max 2x2 s2 packed routes NCHW backward"
    row = replace(LOST, name=name, peers=peers, seconds=1.234567, floor=1.0, beside=1.0)
    console = Console(width=80, record=True, file=io.StringIO(), no_color=True)
    console.print(report.table(REPORT._replace(results=[row, WON])))
    lines = console.export_text().rstrip().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    body = lines[next(i for i, line in enumerate(lines) if "──" in line) + 1 :]
    assert len(body) <= 3
    assert body[0].split()[-2:] == ["0.00081!", "0%"]  # the fastest other is oneDNN
    assert body[-1].split() == ["won", "2", "2", "4", "10%"]


def test_large_numbers_have_no_exponent() -> None:
    slow = replace(WON, seconds=1.5471, limits=Limits())
    assert "| 1547 |" in report.markdown(REPORT._replace(results=[slow]))


def test_tables_go_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    first, last = "<!-- a:begin -->", "<!-- a:end -->"
    page.write_text(f"above {first} old {last} below <!-- b:begin --> b <!-- b:end -->")
    for _ in range(2):
        tables.write_between(page, "a", "new")
        kept = "<!-- b:begin --> b <!-- b:end -->"
        assert page.read_text() == f"above {first}\n\nnew\n\n{last} below {kept}"
    page.write_text(f"{last} {first}")
    with pytest.raises(ValueError, match=r"page\.md has no <!-- a:begin"):
        tables.write_between(page, "a", "new")


def test_readme_and_docs_have_a_place_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(tables, "HERE", tmp_path / "docs")
    pages = (
        "README.md",
        "docs/performance.md",
        "docs/pytorch.md",
        "docs/jax.md",
        "docs/choosing.md",
    )
    for page in pages:
        (tmp_path / page).write_text((ROOT / page).read_text())
    named = replace(WON, name=tables.IN_README[0])
    report.write_csv(tmp_path / "docs/bench.csv", REPORT._replace(results=[named, LOST]))
    slower = replace(WON, name=named.name, isa="avx2", seconds=3e-3)
    report.write_csv(tmp_path / "docs/bench-avx2.csv", AVX2._replace(results=[slower]))
    network = replace(WON, name=tables.NETWORKS_IN_README[0], kept=0.5)
    report.write_csv(tmp_path / "docs/networks.csv", REPORT._replace(results=[network]))
    own = replace(WON, name=jax_rows.ROWS[0].name, peers={OWN: 4e-3}, limits=Limits())
    report.write_csv(tmp_path / "docs/jax.csv", REPORT._replace(results=[own]))
    algorithms.write_csv(tmp_path / "docs/algorithms.csv", REPORT.machine, ABLATION)
    for name in ("compare.csv", "segment.csv"):
        (tmp_path / "docs" / name).write_text((ROOT / "docs" / name).read_text())
    tables.main()
    readme, performance, pytorch, jax, choosing = ((tmp_path / page).read_text() for page in pages)
    for page in (readme, performance):
        assert f"| **{named.name}** | 2 |" in page
        assert "| 10% | **3** (at most 2) | **2.67** (at least 4) |" in page
        assert "Measured on a loom, with 1 thread and avx2 kernels" in page
    assert f"| {network.name} | 2 |" in readme
    assert f"| {network.name} | 2 |" in pytorch
    assert f"| {own.name} | 2 |" in jax
    assert "**lost**" in readme
    assert "**lost**" in performance
    assert "| wide 3.00 |" in performance
    assert choosing == (ROOT / "docs/choosing.md").read_text()  # the table is that of the file


def test_a_table_of_a_comparison(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(
        "method,accuracy,accuracy_low,accuracy_high,accuracy_minus_max,accuracy_minus_max_low,"
        "accuracy_minus_max_high,step_ms,saved_bytes,parameters\n"
        "avg,0.9,0.85,0.95,-0.05,-0.1,0.01,12.34,2500000,23738\n"
        "max,0.95,0.9,1,,,,,,\n"
    )
    lines = tables.compared(path, "accuracy").splitlines()
    assert "| method | accuracy | minus `max` |" in lines[0]
    assert lines[2].startswith("| `max` | 0.950 [0.900, 1.000] |  |")  # the best first
    assert lines[3] == (
        "| `avg` | 0.900 [0.850, 0.950] | -0.050 [-0.100, +0.010] | 12.3 | 2.5 | 23,738 |"
    )


def test_rows_of_jax(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forward = [r.name for r in jax_rows.select(["max 2x2 s2 forward"])]
    assert forward[0] == "max 2x2 s2 forward"
    # Those where memory is used again come last: it stays so.
    assert [r.reused for r in jax_rows.ROWS] == sorted(r.reused for r in jax_rows.ROWS)
    monkeypatch.setattr(jax_rows, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="jax is not installed: pip install"):
        jax_rows.select()
    done = bench(tmp_path, "--networks", "--jax")
    assert done.exit_code == 2
    assert "choose one of them" in done.output


@pytest.mark.parametrize("what", ["both", pytest.param("step", marks=pytest.mark.slow)])
def test_a_row_of_jax(what: Any) -> None:
    window = (2, 2, 0) if what == "both" else (4, 8)
    row = jax_rows.Row("tiny", what, window, (2, 8, 8, 3))
    result = jax_rows.measure(row, 2, 1)
    assert result.isa == core.instruction_set()
    assert result.seconds > 0
    assert result.peers[OWN] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_a_run_prints_and_writes(tmp_path: Path) -> None:
    before = torch.get_num_threads(), poolgrad.get_num_threads()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        done = bench(tmp_path / "new" / "folder")
    assert done.exit_code == 0, done.output
    assert not warned
    assert before == (torch.get_num_threads(), poolgrad.get_num_threads())
    written = report.read_csv(tmp_path / "new/folder/bench.csv")
    assert [result.name for result in written.results] == [row.name for row in FEW]
    assert written.machine["bench threads"] == "1"
    for row in FEW:
        assert row.name in done.output
    for name in ("bench.csv", "bench.png", "bench_kernels.png"):
        assert name in done.output
        assert (tmp_path / "new/folder" / name).stat().st_size > 0


def test_pictures_are_drawn_of_what_is_there() -> None:
    kernels = [replace(LOST, name=rows.kernel_row(k).name) for k in (3, 63)]
    assert pictures.draw_bars([WON, LOST], "caption").startswith(b"\x89PNG")
    assert pictures.draw_kernels(kernels, "caption").startswith(b"\x89PNG")
    assert pictures.draw_bars([replace(WON, floor=None)], "caption") is None
    assert pictures.draw_kernels([WON], "caption") is None


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("measured", [0, 1])
@pytest.mark.parametrize("by", [signal.SIGTERM, None])
def test_stopped_it_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: signal.Signals | None, measured: int
) -> None:
    """By the system, or by Ctrl-C, which is not raised as a signal: it may be switched off here."""

    results = iter([WON][:measured])

    def interrupted(*_: Any) -> Result:
        for result in results:
            return result
        if by is None:
            raise KeyboardInterrupt
        signal.raise_signal(by)
        raise AssertionError("it went on")

    monkeypatch.setattr(measure, "measure", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    stopped = bench(tmp_path)
    assert signal.getsignal(signal.SIGTERM) == before
    assert stopped.exit_code == 130
    assert f"stopped after {measured} of {len(FEW)} rows" in stopped.output
    assert "Traceback" not in stopped.output
    if measured:
        assert report.read_csv(tmp_path / "bench.csv").results == [WON]
    assert (tmp_path / "bench.csv").exists() == bool(measured)


@pytest.mark.usefixtures("few")
def test_an_error_loses_nothing_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = iter([WON])
    monkeypatch.setattr(measure, "measure", lambda *_: next(results))
    failed = bench(tmp_path)
    assert isinstance(failed.exception, StopIteration)
    assert report.read_csv(tmp_path / "bench.csv").results == [WON]


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(measure, "measure", None)
    refused = bench(tmp_path / "file" / "folder")
    assert refused.exit_code == 2
    assert "cannot be written" in refused.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows", "no such row"], "no row has 'no such row' in its name"),
        (["--rows", "tiny", "--rows", "typo"], "no row has 'typo' in its name"),
        (["--dtype", "int7"], "'int7' is not one of"),
        (["--threads", "0"], "--threads"),
    ],
)
def test_errors_say_what_is_wrong(tmp_path: Path, arguments: list[str], said: str) -> None:
    refused = bench(tmp_path / "out", *arguments)
    assert refused.exit_code == 2
    assert said in refused.output
    assert "Traceback" not in refused.output
    assert not (tmp_path / "out").exists()


def test_an_unknown_instruction_set_is_told_in_one_line(tmp_path: Path) -> None:
    code = (
        f"from poolgrad.cli.commands import app; app(['bench', '--out', {str(tmp_path / 'out')!r}])"
    )
    refused = run_python(code, POOLGRAD_ISA="sse17")
    assert refused.returncode == 2
    assert refused.stderr.startswith("poolgrad: POOLGRAD_ISA must be one of")
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


ABLATION = [
    algorithms.Timed("wide", "neon", "column_sums", {"column_sums": 1e-3, "separable": 3e-3}),
    algorithms.Timed("small", "neon", "unrolled", {"separable": 1e-3, "unrolled": 2e-3}),
    algorithms.Timed("median", "neon", "sliding_ranks", {"sliding_ranks": 1e-3}),
]


def test_what_each_algorithm_wins(tmp_path: Path) -> None:
    machine = dict(REPORT.machine)
    path = tmp_path / "algorithms.csv"
    algorithms.write_csv(path, machine, ABLATION)
    assert algorithms.read_csv(path) == (machine, ABLATION)
    lines = algorithms.markdown(machine, ABLATION).splitlines()
    assert "| `column_sums` | 1 | 3.00 | wide 3.00 |" in lines
    assert "| `unrolled` | 1 | 0.50 | small 0.50 |" in lines
    assert "| `separable` | 2 |  | none |" in lines
    assert "| `sliding_ranks` | 1 |  | 1 row that no other algorithm can compute |" in lines
    assert "with 2 threads and neon kernels" in lines[-1]
    assert "small: separable takes 0.50 times as long as unrolled" in lines[-1]
    assert "wide: " not in lines[-1]


@pytest.mark.usefixtures("few")
def test_the_ablation_of_a_few_rows(tmp_path: Path) -> None:
    done = bench(tmp_path, "--algorithms", "--rows", "max 3x3 s1 batch 4")
    assert done.exit_code == 0, done.output
    assert "algorithms.csv" in done.stdout
    _, timed = algorithms.read_csv(tmp_path / "algorithms.csv")
    assert [one.row for one in timed] == [r.name for r in rows.select(["max 3x3 s1 batch 4"])]
    for one in timed:
        assert one.isa == core.instruction_set()
        assert {one.chosen, "separable"} <= set(one.seconds)


def test_a_row_is_computed_by_the_algorithm_that_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[str, set[str]] = {}

    def take_turns(calls: Any, turns: int) -> dict[str, list[float]]:
        for name, (call, context) in calls.items():
            with context():
                used[name] = {step.algorithm for step in kernel_algorithms.steps(call)}
        return {name: [1.0] for name in calls}

    monkeypatch.setattr(algorithms, "take_turns", take_turns)
    for direction in ("forward", "values", "backward"):
        for layout in ("NCHW", "NHWC"):
            call = {"kernel_size": 3, "stride": 1}
            row = Row("", "max_pool2d", (call, call), (2, 3, 20, 40), layout, direction)
            made = algorithms.measure(row, 2, 1)
            assert made.chosen in made.seconds
            assert used == {name: {name} for name in made.seconds}
            used.clear()


@pytest.mark.parametrize(("callers", "busy"), [(1, 1), (3, 0)])
def test_calls_under_load(monkeypatch: pytest.MonkeyPatch, callers: int, busy: int) -> None:
    monkeypatch.setattr(load, "_TURNS", 1)
    monkeypatch.setattr(load, "_SECONDS", 0.05)
    timed = load.measure(callers, busy, threads=2)
    cases = [("poolgrad", 2), ("PyTorch", 2), ("poolgrad", 1), ("PyTorch", 1)]
    assert [(row.library, row.threads) for row in timed] == cases
    for row in timed:
        assert row.seconds.min() > 0
        assert row.per_second == len(row.seconds) / 0.05
    lines = load.markdown(timed, callers, busy).splitlines()
    assert lines[0].endswith(f"callers: {callers}, busy processes: {busy}")
    assert len(lines) == 4 + len(timed)
