"""Standard streams whose errors end a command with one sentence."""

import errno
import io
import os
import select
import sys
from typing import Any


class _Output(io.FileIO):
    """A standard stream that cannot fail with an OSError.

    If standard output cannot be written, a SystemExit with one sentence ends the command. It is no
    OSError, so that no handler mistakes it for an error of a file. If standard error cannot be
    written, the command goes on without it, because there is no other place for a message.
    """

    def write(self, data, /):  # type: ignore[no-untyped-def]
        try:
            while (written := super().write(data)) is None:  # full, and not blocking
                select.select((), (self,), ())
            return written
        except OSError as error:
            # What is left in the buffers is flushed to this descriptor when the interpreter exits.
            _discard(self.fileno())
            if self.fileno() == 2:
                return super().write(data)
            if error.errno == errno.EPIPE:
                problem = "was closed by the program that reads it"
            else:
                problem = f"cannot be written: {error.strerror}"
            raise SystemExit(f"poolgrad: standard output {problem}") from None


def _discard(descriptor: int) -> None:
    """Connect a descriptor to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, descriptor)
    if null != descriptor:
        os.close(null)


def _checked(stream: Any) -> Any:
    if os.name == "nt" and stream.isatty():  # Windows has a class for consoles
        return stream
    buffer = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
    # Standard error and terminals, which may go away during a command, are buffered by line. File
    # names may have characters that the encoding lacks.
    by_line = stream is sys.__stderr__ or stream.isatty()
    return io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", line_buffering=by_line)


def prepare() -> None:
    """Open closed standard streams, and check what is written to them."""
    # A closed stream is None, and the next file that is opened would get its descriptor.
    if sys.stdin is None:
        _discard(0)
    if sys.stderr is None:
        _discard(2)
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    if sys.stdout is None:
        sys.exit("poolgrad: standard output is closed")
    if sys.stderr is sys.__stderr__:
        sys.stderr = _checked(sys.stderr)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _checked(sys.stdout)
