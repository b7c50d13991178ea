"""Commands that measure: `poolgrad bench` and `poolgrad profile`."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolgrad.cli.common import app, clear_errors, fail, print_files
from poolgrad.tools.bench.rows import Dtype
from poolgrad.tools.bench.targets import Limits
from poolgrad.tools.bench.targets import read as read_targets
from poolgrad.tools.progress import Progress

if TYPE_CHECKING:  # they need rich
    from poolgrad.tools.bench.report import Report
    from poolgrad.tools.bench.result import Result

# Benchmark -> the modules of `poolgrad.tools.bench` that select its rows and time one.
_MODULES = {
    "bench": ("rows", "measure"),
    "jax": ("jax", "jax"),
    "networks": ("networks", "measure_network"),
}


@app.command()
def bench(
    rows: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Time only rows whose names contain this text, such as `NHWC backward`. May be"
            " repeated.",
            show_default="all",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Time each call 3 times instead of 9.")
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Number of threads of every library. XLA always uses all processors, so it is not"
            " timed with fewer threads.",
            show_default="PyTorch's",
        ),
    ] = None,
    dtype: Annotated[
        Dtype,
        typer.Option(
            metavar="NAME",
            help="`float32`, `float64`, `bfloat16` or `float16`.",
        ),
    ] = "float32",
    networks: Annotated[
        bool,
        typer.Option(
            "--networks",
            help="Time whole networks, unchanged and with `convert` or `accelerate`.",
        ),
    ] = False,
    jax: Annotated[
        bool,
        typer.Option("--jax", help="Time JAX with its own pooling and with poolgrad's."),
    ] = False,
    overhead: Annotated[
        bool,
        typer.Option(
            "--overhead",
            help="Time small calls with every form of the arguments, for NumPy arrays and tensors.",
        ),
    ] = False,
    callers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Time a short call from this many Python threads at once, beside PyTorch.",
            show_default="none",
        ),
    ] = None,
    busy: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=64,
            help="Time a short call while this many other processes compute, beside PyTorch.",
            show_default="none",
        ),
    ] = None,
    algorithms: Annotated[
        bool,
        typer.Option(
            "--algorithms",
            help="Time the kernels alone: each row with every algorithm that can compute it.",
        ),
    ] = False,
    targets: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV file of targets by the name of the row, such as benchmarks/targets.csv of the"
            " repository. Without one, the target is to be as fast as each other library.",
            show_default="none",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="`cpu`, or with `--dry-run` also `cuda`.", metavar="NAME")
    ] = "cpu",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="With `--device cuda`: print the bytes that each kernel moves, and the time that"
            " this takes at the bandwidth in data sheets. No kernel is run.",
        ),
    ] = False,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder to write.")] = Path("bench"),
) -> None:
    """Time every operator against PyTorch, oneDNN, ONNX Runtime, XLA and a copy of memory.

    The floor of an operation is the time of a copy of as many bytes as the operation must move.
    Writes bench.csv, bench.png and bench_kernels.png; with `--networks`, networks.csv; with
    `--jax`, jax.csv; with `--algorithms`, algorithms.csv.
    """
    under_load = callers is not None or busy is not None
    _refuse_several(networks, jax, overhead, algorithms, under_load)
    if overhead:
        return _print_overhead()
    if under_load:
        return _print_load(callers or 1, busy or 0, threads)
    if device != "cpu" or dry_run:
        return _print_gpu_model(device, dry_run)
    name = "networks" if networks else "jax" if jax else "bench"
    with clear_errors():
        from poolgrad.tools.bench import report
    try:
        limits = _read_targets(targets, dtype)
        chosen = _select_rows(name, rows or (), dtype)
        report.prepare(out)
    except (ValueError, ModuleNotFoundError) as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"--out {out} cannot be written: {error.strerror}", code=2)
    with clear_errors(), Progress() as progress:
        # PyTorch takes seconds to import, so the options come first.
        progress.show("importing PyTorch")
        import torch

        from poolgrad.tools.bench import measure
    threads = threads or torch.get_num_threads()
    turns = measure.QUICK_TURNS if quick else measure.TURNS
    if algorithms:
        _ablation(chosen, threads, turns, out)
        return
    timed = import_module(f"poolgrad.tools.bench.{_MODULES[name][1]}").measure
    results: list[Result] = []
    stopped = False
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as if by Ctrl-C
    try:
        with Progress() as progress:
            for row in chosen:
                progress.show(f"timing {len(results) + 1} of {len(chosen)}: {row.name}")
                result = timed(row, threads, turns)
                results.append(replace(result, limits=limits.get(row.name, result.limits)))
    except KeyboardInterrupt:
        stopped = True
    finally:  # always writes and prints what was measured
        signal.signal(signal.SIGTERM, before)
        if results:
            _publish(report.Report(report.machine(threads, turns), results), out, name)
    if stopped:
        typer.echo(f"stopped after {len(results)} of {len(chosen)} rows", err=True)
        raise typer.Exit(130)


def _publish(made: Report, out: Path, name: str) -> None:
    """Write and print the results; if one of both fails, the other is done."""
    from rich.console import Console

    from poolgrad.tools.bench import files, report

    console = Console()
    with clear_errors():
        try:
            written = files.write(out, made, name)
        finally:
            console.print(report.table(made))
            for text in report.explanation(made):
                console.print(f"\n{text}", markup=False, highlight=False)
            console.print()
            for line in report.complaints(made):
                console.print(line, style="red", markup=False, highlight=False)
    print_files("written:", written)


def _read_targets(path: Path | None, dtype: str) -> dict[str, Limits]:
    if path is None or dtype != "float32":
        return {}
    try:
        return read_targets(path)
    except OSError as error:
        fail(f"--targets {path} cannot be read: {error.strerror}", code=2)
    except ValueError as error:
        fail(f"--targets {path}: {error}", code=2)


def _refuse_several(*benchmarks: bool) -> None:
    if sum(benchmarks) > 1:
        fail(
            "--networks, --jax, --overhead, --algorithms and --callers or --busy are separate"
            " benchmarks; choose one of them",
            code=2,
        )


def _print_overhead() -> None:
    from poolgrad.tools.bench import overhead

    with Progress() as progress:
        progress.show("timing small calls")
        timed = overhead.measure()
    typer.echo(overhead.markdown(timed))


def _print_load(callers: int, busy: int, threads: int | None) -> None:
    with clear_errors(), Progress() as progress:
        progress.show("timing a short call")
        import torch

        from poolgrad.tools.bench import load

        timed = load.measure(callers, busy, threads or torch.get_num_threads())
    typer.echo(load.markdown(timed, callers, busy))


def _ablation(rows: Sequence[Any], threads: int, turns: int, out: Path) -> None:
    """Time the rows with every algorithm, print the gain of each, and write the times."""
    from poolgrad.tools.bench import algorithms, report

    timed = []
    with Progress() as progress:
        for k, row in enumerate(rows):
            progress.show(f"timing {k + 1} of {len(rows)}: {row.name}")
            timed.append(algorithms.measure(row, threads, turns))
    machine = report.machine(threads, turns)
    file = out / "algorithms.csv"
    with clear_errors():
        try:  # first, because standard output may fail
            algorithms.write_csv(file, machine, timed)
        finally:
            typer.echo(algorithms.markdown(machine, timed))
    print_files("written:", [file])


def _print_gpu_model(device: str, dry_run: bool) -> None:
    if device != "cuda" or not dry_run:
        fail(
            "--device must be cpu, or cuda together with --dry-run "
            f"(benchmarks/gpu.sh measures on a GPU), got {device}",
            code=2,
        )
    if find_spec("triton") is None:
        fail("--device cuda needs triton: pip install triton", code=2)
    with clear_errors():
        from poolgrad.tools.bench.gpu_model import print_model
    print_model()


def _select_rows(name: str, parts: Sequence[str], dtype: str) -> Sequence[Any]:
    module = import_module(f"poolgrad.tools.bench.{_MODULES[name][0]}")
    return module.select(parts, *(dtype,) * (name == "bench"))


@app.command()
def profile(
    model: Annotated[
        str,
        typer.Argument(
            help="Function that returns the network: `package.module:function` or"
            " `file.py:function`."
        ),
    ],
    shape: Annotated[
        str, typer.Option(help="Shape of the random input, such as 8,3,224,224.")
    ] = "1,3,224,224",
    training: Annotated[
        bool,
        typer.Option(
            "--train/--inference", help="Measure a training step, or only the forward pass."
        ),
    ] = True,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Number of threads.", show_default="PyTorch's"),
    ] = None,
    turns: Annotated[
        int,
        typer.Option(
            min=6, max=1000, help="Number of timed steps; more steps narrow the interval."
        ),
    ] = 15,
    out: Annotated[Path, typer.Option(dir_okay=False, help="Picture to write.")] = Path(
        "profile.png"
    ),
) -> None:
    """Measure the share of pooling in a network's time and memory, before and after `convert`.

    The time is the median of a step; the share of pooling comes from PyTorch's profiler. Steps of
    the network and of its converted copy alternate. The ratio of times is the median over all pairs
    of successive steps, with its 95 % confidence interval. The memory is the size of the tensors
    that a step keeps for the backward pass, without the parameters; the share of pooling is the
    size of the tensors that no other operator keeps.
    """
    from poolgrad.tools.bench import factory

    try:
        sizes = tuple(int(size) for size in shape.replace("x", ",").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        fail(f"--shape must be positive numbers such as 8,3,224,224, got {shape!r}", code=2)
    if not out.parent.is_dir():
        fail(f"--out: there is no folder {out.parent}", code=2)
    try:
        makes = factory.parse(model)
    except ValueError as error:
        fail(str(error), code=2)
    try:
        with clear_errors(), Progress() as progress:
            # PyTorch and the plotting library take seconds to import, so the options come first.
            progress.show(f"importing {model}")
            network = factory.load(makes)
            import torch
            from rich.console import Console

            from poolgrad.tools.bench import profiling

            threads = threads or torch.get_num_threads()
            made = profiling.measure(network, sizes, training, threads, turns, progress.show)
    except ValueError as error:
        fail(str(error), code=2)
    console = Console()
    try:
        try:  # first, because standard output may fail
            out.write_bytes(profiling.draw(made))
        finally:
            console.print(profiling.table(made))
            console.print(profiling.verdict(made), markup=False, highlight=False)
            console.print(str(made.report), markup=False, highlight=False)
    except OSError as error:
        fail(f"--out {out} cannot be written: {error.strerror}", code=2)
    print_files("written:", [out])
