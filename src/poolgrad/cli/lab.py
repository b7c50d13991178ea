"""Commands of the lab: `poolgrad train` and `poolgrad compare`."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from poolgrad.cli.common import app, clear_errors, listed, print_files
from poolgrad.lab.pools import NAMES, ConvPadding, Head, Pool
from poolgrad.lab.segment.variants import DEFAULT_VARIANTS
from poolgrad.lab.settings import Optimizer, check_windows, counted


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
            help=f"How feature maps are downsampled: {listed(NAMES)}.",
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
    with clear_errors():
        from poolgrad.lab import data as lab_data
        from poolgrad.lab.folder import open_folder

        with open_folder(options, out, resume) as (settings, folder, result):
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
                done = (
                    f"after epoch {run.finished_epochs}" if run.finished_epochs else "from epoch 1"
                )
                typer.echo(f"resumed {done} of {settings.epochs}")
            try:
                finished = run.finish(progress=True)
            except KeyboardInterrupt:
                again = f"poolgrad train --out {folder.path} --resume"
                typer.echo(f"stopped; to resume: {again}", err=True)
                raise typer.Exit(130) from None
            _print_result(finished, folder.files)


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
            help=f"Methods to compare, separated by commas: {listed(NAMES)}. With `--task"
            f" segment`: {listed(DEFAULT_VARIANTS)}, or one of the other names except `max` and"
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
    with clear_errors():
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
    print_files("files of the run:", files)
