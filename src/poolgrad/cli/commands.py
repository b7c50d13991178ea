"""The commands `check`, `explain` and `info`, and the imports of all others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from poolgrad.cli.common import app, clear_errors, fail, print_files  # first: it needs typer

# isort: split
import typer

# The order of imports is the order of commands in the help text.
from poolgrad.cli import lab

# isort: split
from poolgrad.cli import bench

__all__ = ["app", "bench", "lab"]


@app.command()
def check() -> None:
    """Check the gradients of every operator and layer for every installed array library.

    In 1 to 3 dimensions and both memory formats, results and gradients are compared with the
    reference implementation, with central finite differences (float64), and with PyTorch's
    operators. Gradients of layers and of their parameters are compared with finite differences.
    The exit code is 1 if a check fails.
    """
    from poolgrad.tools.check import report

    raise typer.Exit(report.run())


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
            help="`max`, `min`, `median`, `avg`, `lp`, `log_mean_exp`, `soft`, `mixed`, "
            "`adaptive_max`, `adaptive_avg`, `global_max` or `global_avg`.",
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
        with clear_errors():  # an image needs Pillow
            page = command.page(data, crop, pool, given)
    except (TypeError, ValueError) as error:
        fail(str(error), code=2)
    try:
        page.save(out)
    except OSError as error:
        fail(f"--out {out} cannot be written: {error.strerror}", code=2)
    print_files("written:", [out])
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
        from poolgrad.tools.plan import report as described

        try:
            typer.echo(described(plan))
        except (TypeError, ValueError) as error:
            fail(str(error), code=2)
        return
    from poolgrad.tools.info import report

    typer.echo(report())
