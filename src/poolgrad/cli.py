"""The command line: parses options, calls other modules, which are imported on use, and prints."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, NoReturn

from poolgrad import __version__
from poolgrad.bench.rows import Dtype
from poolgrad.lab.pools import NAMES, ConvPadding, Head, Pool
from poolgrad.lab.segment.variants import DEFAULT_VARIANTS
from poolgrad.lab.settings import LabError, Optimizer, check_windows, counted

_INSTALL = 'pip install "poolgrad[lab]"'

try:
    import typer
except ModuleNotFoundError as error:
    if error.name != "typer":
        raise
    # Checked at import, because the commands below need typer; `info` and `check` do not.
    sys.exit(
        'poolgrad: every command but "info" and "check" needs typer, which is not installed: '
        f"{_INSTALL}"
    )


def _listed(names: Sequence[str]) -> str:
    """Join names for a help text."""
    return ", ".join(f"`{name}`" for name in names[:-1]) + f" or `{names[-1]}`"


app = typer.Typer(
    name="poolgrad",
    help="Pooling layers with exact gradients.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"poolgrad {__version__}")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Pooling layers with exact gradients."""
    from poolgrad import core

    try:
        core.instruction_set()
    except RuntimeError as error:  # an invalid environment variable
        _fail(str(error), code=2)


@app.command()
def train(
    data: Annotated[
        str | None,
        typer.Option(
            help="A folder with one folder of images per class, an .npz file with `images` and"
            " `labels`, or `translated-digits`: the digits at random positions of a larger image.",
            show_default="scikit-learn's handwritten digits",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            help="Resize the images of the folder to this height and width.",
            show_default="no resizing",
        ),
    ] = None,
    pool: Annotated[
        Pool | None,
        typer.Option(
            metavar="NAME",
            help=f"How feature maps are downsampled: {_listed(NAMES)}.",
            show_default="max",
        ),
    ] = None,
    head: Annotated[
        Head | None,
        typer.Option(
            metavar="NAME",
            help="Head that computes scores from the last map: `avg`, `flatten`, `max`, `gem` or"
            " `attention`.",
            show_default="avg",
        ),
    ] = None,
    kernel: Annotated[
        int | None, typer.Option(help="Height and width of the windows.", show_default="2")
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            help="Distance between windows; if smaller than the kernel, windows overlap.",
            show_default="the kernel size",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the training images.", show_default="30")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Images per step.", show_default="8 to 64, depending on the number of images"
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Highest learning rate of the schedule.", show_default="depends on the optimizer"
        ),
    ] = None,
    optimizer: Annotated[
        Optimizer | None,
        typer.Option(
            metavar="NAME", help="`sgd`, `adagrad`, `rmsprop` or `adam`.", show_default="adam"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the weights, the order of the images and the augmentation.",
            show_default="0",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Number of threads.", show_default="1 for tiny images, otherwise PyTorch's"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder to write.",
            show_default="in runs/, named after the options",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run in the folder after its last finished epoch."
        ),
    ] = False,
) -> None:
    """Train a small convolutional network that pools with poolgrad.

    Writes result.json, metrics.csv, curves.png and routes.png (the winner of each window and the
    gradients) to the run folder, and a checkpoint after every epoch.
    """
    given = {
        "data": data,
        "size": size,
        "pool": pool,
        "head": head,
        "kernel": kernel,
        "stride": stride,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "optimizer": optimizer,
        "seed": seed,
        "threads": threads,
    }
    options = {name: value for name, value in given.items() if value is not None}
    with _clear_errors():
        from poolgrad.lab import data as lab_data
        from poolgrad.lab.folder import open_folder

        settings, folder, result = open_folder(options, out, resume)
        if result is not None:
            typer.echo(f"{folder.path} holds a finished run; there is nothing to resume")
            _print_result(result, folder.files)
            return
        for package in ("torch", "pytorch_lightning"):  # before images are read
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)
        images = lab_data.load(settings.data, settings.size)
        check_windows(settings.kernel, settings.stride, images.size)
        # PyTorch and Lightning take seconds to import, so the options have been checked before.
        from poolgrad.lab import train as lab

        run = lab.prepare(settings, folder, images)
        typer.echo(run.describe())
        if resume:
            done = f"after epoch {run.finished_epochs}" if run.finished_epochs else "from epoch 1"
            typer.echo(f"resumed {done} of {settings.epochs}")
        try:
            result = run.finish(progress=sys.stdout.isatty())
        except KeyboardInterrupt:
            typer.echo(f"stopped; to resume: poolgrad train --out {folder.path} --resume", err=True)
            raise typer.Exit(130) from None
        _print_result(result, folder.files)


@app.command()
def compare(
    data: Annotated[
        str | None,
        typer.Option(
            help="A folder with one folder of images per class, or an .npz file with `images` and"
            " `labels`; with `--task segment` a folder with `images` and `masks`.",
            show_default="digits at random positions of 32 x 32 pixels",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            help="Resize the images of the folder to this height and width.",
            show_default="64 if they differ in size or are larger",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="`classify` or `segment`.", show_default="classify"),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help=f"Methods to compare, separated by commas: {_listed(NAMES)}. With `--task"
            f" segment`: {_listed(DEFAULT_VARIANTS)}, or one of the other names except `max` and"
            " `none`.",
            show_default="max,avg,strided,blur,aps,lip,soft,none; first four with --task segment",
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Heads to train with each method, separated by commas: `avg`, `flatten`, `max`,"
            " `gem` or `attention`.",
            show_default="avg",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of runs of each method.", show_default="5; 3 with --quick"),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Passes over the training images.",
            show_default="8 to 60, depending on the number of images",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Images per step.", show_default="8 to 32, depending on the number of images"
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Highest learning rate of the schedule.", show_default="0.01"),
    ] = None,
    kernel: Annotated[
        int | None,
        typer.Option(help="Height and width of the windows; the stride is 2.", show_default="2"),
    ] = None,
    conv_padding: Annotated[
        ConvPadding | None,
        typer.Option(
            metavar="NAME",
            help="Padding of the convolutions: `zeros` or `circular`.",
            show_default="zeros",
        ),
    ] = None,
    shifts: Annotated[
        int | None,
        typer.Option(
            help="Largest shift of the test images, in pixels.",
            show_default="an eighth of the image",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer methods, seeds and epochs: about 2 minutes."),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of runs at a time, each in its own process.",
            show_default="one for each processor",
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            help="Number of processes among which the batches of each run are divided.",
            show_default="1",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Execute the runs on a Dask cluster, such as `tcp://scheduler:8786`.",
            show_default="this machine",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the results; the same command resumes an unfinished comparison.",
            show_default="in runs/, named after the options",
        ),
    ] = None,
) -> None:
    """Compare ways of downsampling on your images: accuracy, shifts, time and memory.

    Trains the same small network several times with each method, and writes report.html,
    results.csv, runs.csv and protocol.md. To resume a comparison that was stopped or killed, run
    the same command again; finished runs are not repeated.
    """
    given = {
        "data": data,
        "size": size,
        "task": task,
        "pool": pool,
        "head": head,
        "seeds": seeds,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "kernel": kernel,
        "conv_padding": conv_padding,
        "shifts": shifts,
        "quick": quick,
        "jobs": jobs,
        "devices": devices,
        "cluster": cluster,
    }
    options = {name: value for name, value in given.items() if value is not None}
    with _clear_errors():
        from poolgrad.lab.compare.options import Plan

        Plan.from_options(options)  # before slow imports
        for package in ("torch", "pytorch_lightning", *(["distributed"] if cluster else [])):
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)
        from rich.console import Console

        from poolgrad.lab.compare import command

        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as if by Ctrl-C
        try:
            command.compare(options, out, Console())
        except KeyboardInterrupt:
            typer.echo("stopped; run the same command again to resume", err=True)
            raise typer.Exit(130) from None
        finally:
            signal.signal(signal.SIGTERM, before)


def _print_result(result: dict[str, Any], files: tuple[Path, ...]) -> None:
    typer.echo(
        f"test accuracy {result['test_accuracy']:.4f}"
        f" ({result['test_errors']} of {result['test_images']} images wrong)"
        f" after {counted(result['epochs'], 'epoch')} in {result['seconds']:.1f} seconds"
    )
    _print_files("files of the run:", files)


def _print_files(title: str, files: Iterable[Path]) -> None:
    typer.echo(title)
    for file in files:
        typer.echo(f"  {file}")


@app.command()
def check() -> None:
    """Check the gradients of every operator and layer for every installed array library.

    In 1 to 3 dimensions and both memory formats, results and gradients are compared with the
    reference implementation, with central finite differences (float64), and with PyTorch's
    operators. Gradients of layers and of their parameters are compared with finite differences.
    The exit code is 1 if a check fails.
    """
    from poolgrad.check import report

    raise typer.Exit(report.run())


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
            help="`float32`, `float64`, `bfloat16` or `float16`. Only float32 has targets.",
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
    algorithms: Annotated[
        bool,
        typer.Option(
            "--algorithms",
            help="Time the kernels alone: each row with every algorithm that can compute it.",
        ),
    ] = False,
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
    _refuse_several(networks, jax, overhead, algorithms)
    if overhead:
        return _print_overhead()
    if device != "cpu" or dry_run:
        return _print_gpu_model(device, dry_run)
    name = "networks" if networks else "jax" if jax else "bench"
    with _clear_errors():
        from rich.console import Console
        from rich.progress import Progress

        from poolgrad.bench import report
    try:
        chosen = _select_rows(name, rows or (), dtype)
        report.prepare(out)
    except (ValueError, ModuleNotFoundError) as error:
        _fail(str(error), code=2)
    except OSError as error:
        _fail(f"--out {out} cannot be written: {error.strerror}", code=2)
    with _clear_errors():  # PyTorch takes seconds to import, so the options come first
        import torch

        from poolgrad.bench import files, measure
    threads = threads or torch.get_num_threads()
    turns = measure.QUICK_TURNS if quick else measure.TURNS
    if algorithms:
        _ablation(chosen, threads, turns, out)
        return
    timed = _measurement(name)
    console, results, stopped = Console(), [], False
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as if by Ctrl-C
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("", total=len(chosen))
            for row in chosen:
                progress.update(task, description=row.name)
                results.append(timed(row, threads, turns))
                progress.advance(task)
    except KeyboardInterrupt:
        stopped = True
    finally:  # always prints and writes what was measured
        signal.signal(signal.SIGTERM, before)
        if results:
            made = report.Report(report.machine(threads, turns), results)
            console.print(report.table(made))
            for text in report.explanation(made):
                console.print(f"\n{text}", markup=False, highlight=False)
            console.print()
            for line in report.complaints(made):
                console.print(line, style="red", markup=False, highlight=False)
            _print_files("written:", files.write(out, made, name))
    if stopped:
        typer.echo(f"stopped after {len(results)} of {len(chosen)} rows", err=True)
        raise typer.Exit(130)


def _refuse_several(*benchmarks: bool) -> None:
    if sum(benchmarks) > 1:
        _fail(
            "--networks, --jax, --overhead and --algorithms are separate benchmarks; choose one"
            " of them",
            code=2,
        )


def _print_overhead() -> None:
    from poolgrad.bench import overhead

    typer.echo(overhead.markdown(overhead.measure()))


def _ablation(rows: Sequence[Any], threads: int, turns: int, out: Path) -> None:
    """Time the rows with every algorithm, print the gain of each, and write the times."""
    from rich.console import Console
    from rich.progress import track

    from poolgrad.bench import algorithms, report

    console = Console()
    timed = [
        algorithms.measure(row, threads, turns)
        for row in track(rows, "timing", console=console, transient=True)
    ]
    machine = report.machine(threads, turns)
    console.print(algorithms.markdown(machine, timed), markup=False, highlight=False)
    file = out / "algorithms.csv"
    algorithms.write_csv(file, machine, timed)
    _print_files("written:", [file])


def _print_gpu_model(device: str, dry_run: bool) -> None:
    if device != "cuda" or not dry_run:
        _fail(
            "--device must be cpu, or cuda together with --dry-run "
            f"(benchmarks/gpu.sh measures on a GPU), got {device}",
            code=2,
        )
    if find_spec("triton") is None:
        _fail("--device cuda needs triton: pip install triton", code=2)
    with _clear_errors():
        from poolgrad.torch.triton.variants import print_model
    print_model()


def _select_rows(name: str, parts: Sequence[str], dtype: str) -> Sequence[Any]:
    if name == "networks":
        from poolgrad.bench import networks

        return networks.select(parts)
    if name == "jax":
        from poolgrad.bench import jax

        return jax.select(parts)
    from poolgrad.bench import rows

    return rows.select(parts, dtype)


def _measurement(name: str) -> Callable[[Any, int, int], Any]:
    if name == "networks":
        from poolgrad.bench import measure_network

        return measure_network.measure
    if name == "jax":
        from poolgrad.bench import jax

        return jax.measure
    from poolgrad.bench import measure

    return measure.measure


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
    from poolgrad.bench import factory

    try:
        sizes = tuple(int(size) for size in shape.replace("x", ",").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        _fail(f"--shape must be positive numbers such as 8,3,224,224, got {shape!r}", code=2)
    if not out.parent.is_dir():
        _fail(f"--out: there is no folder {out.parent}", code=2)
    try:
        makes = factory.parse(model)
    except ValueError as error:
        _fail(str(error), code=2)
    try:
        with _clear_errors():  # PyTorch takes seconds to import: the options were checked before
            network = factory.load(makes)
    except ValueError as error:
        _fail(str(error), code=2)
    with _clear_errors():  # the plotting library takes seconds to import, too
        import torch
        from rich.console import Console

        from poolgrad.bench import profiling
    console = Console()
    threads = threads or torch.get_num_threads()
    try:
        with console.status(f"timing {type(network).__name__} with input {shape}"):
            made = profiling.measure(network, sizes, training, threads, turns)
    except ValueError as error:
        _fail(str(error), code=2)
    console.print(profiling.table(made))
    console.print(profiling.verdict(made), markup=False, highlight=False)
    console.print(str(made.report), markup=False, highlight=False)
    try:
        out.write_bytes(profiling.draw(made))
    except OSError as error:
        _fail(f"--out {out} cannot be written: {error.strerror}", code=2)
    _print_files("written:", [out])


@app.command()
def explain(
    data: Annotated[
        Path | None,
        typer.Option(
            help="Input: an array (`.npy`), a table (`.csv`) or an image, which is converted to"
            " grey; at most 2 planes of 16 x 16 numbers.",
            show_default="small integers",
        ),
    ] = None,
    crop: Annotated[
        bool, typer.Option("--crop", help="Show only the centre of an input that is too large.")
    ] = False,
    pool: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="`max`, `min`, `median`, `avg`, `lp`, `lse`, `soft`, `mixed`, `adaptive_max`,"
            " `adaptive_avg`, `global_max` or `global_avg`.",
        ),
    ] = "max",
    kernel: Annotated[
        str | None,
        typer.Option(metavar="N[,N]", help="Height and width of the windows.", show_default="2"),
    ] = None,
    stride: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N]", help="Distance between windows.", show_default="the kernel size"
        ),
    ] = None,
    padding: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N]", help="Padding at both ends of each axis, or `same`.", show_default="0"
        ),
    ] = None,
    dilation: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N]", help="Distance between the taps of a window.", show_default="1"
        ),
    ] = None,
    ceil_mode: Annotated[
        bool, typer.Option("--ceil-mode", help="Keep a last, partial window.")
    ] = False,
    output_size: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N]", help="Number of outputs of an adaptive pooling.", show_default="2"
        ),
    ] = None,
    ties: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which of several equal winners gets the gradient: the `first`, all (`split`) or"
            " none (`zero`).",
            show_default="first",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(dir_okay=False, help="File to write.")] = Path(
        "explain.html"
    ),
    show: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the file in the browser.")
    ] = True,
) -> None:
    """Write a page that shows how a gradient passes through a pooling, and open it in a browser.

    The page is one HTML file that needs no network. Its numbers, operator and windows can be
    changed; the options set their initial values. By default the page shows one 2 x 2 window.
    """
    from poolgrad.explainer import command

    texts = {
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "output-size": output_size,
    }
    given: dict[str, Any] = {"ties": ties} if ties else {}
    given |= {"ceil_mode": True} if ceil_mode else {}
    try:
        for option, text in texts.items():
            if text is not None:
                given[command.SIZES[option]] = command.sizes(option, text)
        with _clear_errors():  # an image needs Pillow
            page = command.page(data, crop, pool, given)
    except (TypeError, ValueError) as error:
        _fail(str(error), code=2)
    try:
        page.save(out)
    except OSError as error:
        _fail(f"--out {out} cannot be written: {error.strerror}", code=2)
    _print_files("written:", [out])
    if show:
        import webbrowser

        if not webbrowser.open(out.absolute().as_uri()):
            typer.echo("no browser was found; open the file in one", err=True)


@app.command()
def info(
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Describe one call: a function, the shape of its input and options, such as"
            ' `"max_pool2d 32x64x112x112 k3 s2 p1 float32"`. Kernel, stride, padding, dilation'
            " and output size are written as `k3` or `k3x5`, `s2`, `p1`, `d2` and `o7`. Further"
            " options are `same`, `ceil`, `channels_last` (then the last size is the number of"
            " channels), a dtype, `threads=2`, `packed`, other arguments of the function, such as"
            " `ties=zero`, and `routes`, with which the forward pass stores what the backward pass"
            " needs.",
        ),
    ] = None,
) -> None:
    """Print versions, processor, instruction set, threads and front ends, for bug reports.

    With `--plan`, print the algorithms that compute one call, forward and backward, and the numbers
    of tasks, threads and bytes moved. The call itself is not computed.
    """
    if plan is not None:
        from poolgrad import algorithms

        try:
            typer.echo(algorithms.report(plan))
        except (TypeError, ValueError) as error:
            _fail(str(error), code=2)
        return
    from poolgrad.environment import report

    typer.echo(report())


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Print one line instead of a traceback for errors that the user can fix."""
    try:
        yield
    except LabError as error:
        _fail(str(error), code=2)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "poolgrad"):
            raise
        extra = "[cluster]" if package in ("distributed", "dask") else "[lab]"
        _fail(f"{package} is not installed: {_INSTALL.replace('[lab]', extra)}", code=1)


def _fail(message: str, code: int) -> NoReturn:
    message = f"poolgrad: {message}"
    if sys.stderr.isatty():
        message = _wrapped(message, shutil.get_terminal_size().columns)
    typer.echo(message, err=True)
    raise typer.Exit(code)


def _wrapped(message: str, width: int) -> str:
    """Break lines between words, except the indented lines of a traceback."""
    lines = message.splitlines()
    return "\n".join(
        line
        if line.startswith(" ")
        else fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in lines
    )
