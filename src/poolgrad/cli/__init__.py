"""The command line: parses options, calls functions of `tools`, `lab` and `explainer`, and prints.

| file | content |
|---|---|
| `streams.py` | standard streams whose errors end a command with one sentence |
| `common.py` | the Typer application, and the functions that all commands use |
| `commands.py` | the commands `check`, `explain` and `info`; imports those of the other files |
| `lab.py` | the commands `train` and `compare` |
| `bench.py` | the commands `bench` and `profile` |

Modules of the commands are imported on use. `poolgrad info` and `poolgrad check` need NumPy alone
and run without Typer; every other command needs the `lab` extra. ``tests/frontends`` tests streams,
errors, imports and `info`; each other command is tested beside what it calls.
"""

import sys

from poolgrad.cli import streams


def main() -> None:
    """Run the command line; Ctrl-C and a failing output end it with one sentence."""
    try:
        streams.prepare()
        try:
            _run()
        finally:
            sys.stdout.flush()  # here, because the interpreter's own flush cannot report an error
    except KeyboardInterrupt:
        print("poolgrad: stopped", file=sys.stderr)
        sys.exit(130)


def _run() -> None:
    if sys.argv[1:] == ["info"]:
        from poolgrad.tools import info

        print(info.report())
        return
    if sys.argv[1:] == ["check"]:
        from poolgrad.tools.check import report

        sys.exit(report.run())
    if sys.argv[1:3] == ["info", "--plan"] and len(sys.argv) == 4:
        from poolgrad.tools import plan

        try:
            print(plan.report(sys.argv[3]))
        except (RuntimeError, TypeError, ValueError) as error:
            print(f"poolgrad: {error}", file=sys.stderr)
            sys.exit(2)
        return
    from poolgrad.cli.commands import app

    app()
