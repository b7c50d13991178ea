"""Child processes that call one function each, and that never outlive their parent.

A child that is killed, or that crashes, costs the piece it worked on and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from poolgrad.lab.folder import UnwritableError, write_atomic
from poolgrad.lab.settings import LabError


@dataclass(frozen=True)
class Outcome:
    """The result of a child process.

    Attributes
    ----------
    value
        What the function returned.
    error
        A sentence, if it did not return.
    unwritable
        Whether the system refused to write a file: then there is no use in going on.
    """

    value: Any = None
    error: str | None = None
    unwritable: bool = False


def context(preload: str) -> Any:
    """Where children come from: a server that has imported a module, or new interpreters."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload([preload])
    return chosen


class Child:
    """A function call in a child process.

    Parameters
    ----------
    start
        From `context`.
    function, args
        Must be picklable.
    log
        A file for the traceback of an error that is none of ours.

    Attributes
    ----------
    link
        Becomes readable when the child has ended.
    """

    def __init__(
        self, start: Any, function: Callable[..., Any], args: tuple[Any, ...], log: Path | None
    ) -> None:
        lifeline, self._lifeline = start.Pipe(duplex=False)
        self.link, answer = start.Pipe(duplex=False)
        self._process = start.Process(target=_work, args=(lifeline, answer, function, args, log))
        self._process.start()
        lifeline.close()
        answer.close()

    def outcome(self) -> Outcome:
        """Wait for the end of the child."""
        try:
            found: Outcome = self.link.recv()
        except EOFError:
            self._process.join()
            found = Outcome(error=_describe_end(self._process.exitcode))
        self._process.join()
        self._close()
        return found

    def kill(self) -> None:
        """End the child at once."""
        self._process.kill()
        self._process.join()
        self._close()

    def _close(self) -> None:
        self.link.close()
        self._lifeline.close()
        self._process.close()


def call(start: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
    """Call a function in a child and wait for it."""
    child = Child(start, function, args, None)
    try:
        return child.outcome()
    except BaseException:
        child.kill()
        raise


def one_line(error: BaseException) -> str:
    """An error as the end of a sentence."""
    if isinstance(error, LabError):
        return str(error)
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]


def _work(
    lifeline: Connection,
    answer: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    log: Path | None,
) -> None:
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    try:
        found = Outcome(value=function(*args))
    except UnwritableError as error:
        found = Outcome(error=str(error), unwritable=True)
    except LabError as error:
        found = Outcome(error=str(error))
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        found = Outcome(error=one_line(error) + _logged(log))
    answer.send(found)
    answer.close()


def _logged(log: Path | None) -> str:
    if log is None:
        return ""
    try:
        write_atomic(log, traceback.format_exc().encode())
    except LabError:
        return ""
    return f" (traceback in {log})"


def _end_with_parent(lifeline: Connection) -> None:
    """End this process when the other end of the pipe is closed, which a kill does, too."""
    try:
        lifeline.recv()
    except (EOFError, OSError):
        os._exit(1)


def _describe_end(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        memory = "; perhaps the memory is too small" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{memory}"
    return f"its process ended with exit code {code}"
