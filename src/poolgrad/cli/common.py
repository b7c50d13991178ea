"""The Typer application, and functions that all commands use."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, NoReturn

from poolgrad import __version__
from poolgrad.lab.settings import LabError

_INSTALL = 'pip install "poolgrad[lab]"'

try:
    import typer
    import typer.core
except ModuleNotFoundError as error:
    if error.name != "typer":
        raise
    # Checked at import, because the commands below need typer; `info` and `check` do not.
    sys.exit(
        'poolgrad: every command but "info" and "check" needs typer, which is not installed: '
        f"{_INSTALL}"
    )


def listed(names: Sequence[str]) -> str:
    """Join names for a help text."""
    return ", ".join(f"`{name}`" for name in names[:-1]) + f" or `{names[-1]}`"


class _Commands(typer.core.TyperGroup):
    """Ends every command at Ctrl-C with one sentence, where Typer prints nothing."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            fail("stopped", code=130)


app = typer.Typer(
    name="poolgrad",
    cls=_Commands,
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
        fail(str(error), code=2)


def print_files(title: str, files: Iterable[Path]) -> None:
    """Print the files that a command has written."""
    typer.echo(title)
    for file in files:
        typer.echo(f"  {file}")


@contextmanager
def clear_errors() -> Iterator[None]:
    """Print one line instead of a traceback for errors that the user can fix."""
    try:
        yield
    except LabError as error:
        fail(str(error), code=2)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "poolgrad"):
            raise
        extra = "[cluster]" if package in ("distributed", "dask") else "[lab]"
        fail(f"{package} is not installed: {_INSTALL.replace('[lab]', extra)}", code=1)


def fail(message: str, code: int) -> NoReturn:
    """Print an error and end the command with this exit code."""
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
