"""One run of the command line in a process of its own; run by path, with its globals set.

`arguments` is the command, `log` the file for its output, `die` None or (name, which, moment): kill
this process while the file of that name is written for the which-th time, when half of its content
is on the disk ("half"), when all is, but under another name ("before"), or just "after".
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from poolgrad.cli.commands import app

arguments: list[str] = globals()["arguments"]
log: str | Path = globals()["log"]
die: tuple[str, int, str] | None = globals()["die"]

_replace = os.replace
_writes = 0


def _replace_or_die(source: Path, target: Path) -> None:
    global _writes
    assert die is not None
    name, which, moment = die
    _writes += Path(target).name == name
    if Path(target).name != name or _writes != which:
        _replace(source, target)
        return
    if moment == "half":
        os.truncate(source, os.path.getsize(source) // 2)
    elif moment == "after":
        _replace(source, target)
    os.kill(os.getpid(), signal.SIGKILL)


if die is not None:
    os.replace = _replace_or_die
# Whoever runs the tests in the background ignores it, and so would this process.
signal.signal(signal.SIGINT, signal.default_int_handler)
with (
    open(log, "a") as output,
    contextlib.redirect_stdout(output),
    contextlib.redirect_stderr(output),
):
    app(arguments)
