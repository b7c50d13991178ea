"""The entry point of the script `poolgrad` and of ``python -m poolgrad``.

`poolgrad info` and `poolgrad check` need NumPy alone; every other command needs the `lab` extra.
"""

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


def _prepare_streams() -> None:
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


def main() -> None:
    """Run the command line; Ctrl-C and a failing output end it with one sentence."""
    try:
        _prepare_streams()
        try:
            _run()
        finally:
            sys.stdout.flush()  # here, because the interpreter's own flush cannot report an error
    except KeyboardInterrupt:
        print("poolgrad: stopped", file=sys.stderr)
        sys.exit(130)


def _run() -> None:
    if sys.argv[1:] == ["info"]:
        from poolgrad.environment import report

        print(report())
        return
    if sys.argv[1:] == ["check"]:
        from poolgrad.check import report as checks

        sys.exit(checks.run())
    if sys.argv[1:3] == ["info", "--plan"] and len(sys.argv) == 4:
        from poolgrad import algorithms

        try:
            print(algorithms.report(sys.argv[3]))
        except (RuntimeError, TypeError, ValueError) as error:
            sys.exit(_failed(error))
        return
    from poolgrad.cli import app

    app()


def _failed(error: Exception) -> int:
    print(f"poolgrad: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
