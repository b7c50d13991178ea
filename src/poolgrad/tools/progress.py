"""Shows on standard error what a long command does, in terminals and in files. Needs no package."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

_SECONDS = 5.0  # between two lines where standard error is no terminal


class Progress:
    """Shows one line that changes, and that disappears at the end.

    Where standard error is no terminal, such as a pipe or a log file, the first line is written at
    once, and a later line at most every five seconds.
    """

    def __init__(self) -> None:
        self._last = -float("inf")  # when a line was written
        self._length = 0  # of the line in the terminal

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Remove the line from a terminal."""
        if self._length and sys.stderr.isatty():
            self._overwrite("")

    def show(self, text: str) -> None:
        """Show what begins now, in a line."""
        if sys.stderr.isatty():
            self._overwrite(text)
        elif time.monotonic() - self._last >= _SECONDS:
            print(text, file=sys.stderr, flush=True)
            self._last = time.monotonic()

    def _overwrite(self, text: str) -> None:
        text = text[: shutil.get_terminal_size().columns - 1]  # the last column may break the line
        rest = self._length - len(text)  # of the line before
        blanks, back = " " * rest, "\b" * rest
        print(f"\r{text}{blanks}{back}", end="", file=sys.stderr, flush=True)
        self._length = len(text)
