"""The folder of one training run: what lies in it, and how a kill at any moment leaves it whole."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from poolgrad.lab.settings import (
    MOST_THREADS,
    LabError,
    Settings,
    check_entries,
    flag,
    join_stored,
)

_PARTIAL = ".partial"  # left behind by a kill; overwritten by the next write of the same file
_LOCK = "in-use.lock"  # left behind by a kill, too, but then unlocked
# The entries of settings.json, and those of result.json that are printed, with their types.
_STORED: dict[str, tuple[type, ...]] = {
    "settings": (dict,),
    "data": (dict,),
    "versions": (dict,),
    "threads": (int,),
}
_PRINTED: dict[str, tuple[type, ...]] = {
    "test_accuracy": (float, int),
    "test_errors": (int,),
    "test_images": (int,),
    "epochs": (int,),
    "seconds": (float, int),
}


class UnwritableError(LabError):
    """The system refuses to write a file, such as on a full disk."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write a file into an UnwritableError that names it."""
    try:
        yield
    except OSError as error:
        raise UnwritableError(f"{path} cannot be written: {error.strerror or error}") from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file atomically: at every moment it has either the old or the new content.

    Parameters
    ----------
    path
        The file; its folder must exist.
    content
        All of it.

    Raises
    ------
    LabError
        If the system refuses to write it; the message names the file and the reason.
    """
    partial = path.with_name(path.name + _PARTIAL)
    with writing(path):
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Create a folder of results and lock it, so that one process at a time writes to it.

    The operating system unlocks the folder when the process ends, even if it is killed. A folder
    that is still empty at the end is removed.

    Parameters
    ----------
    path
        The folder; it may exist.

    Raises
    ------
    LabError
        If another process has locked it, or it cannot be written.
    """
    created = [each for each in (path, *path.parents) if not each.exists()]
    lock = FileLock(path / _LOCK)  # creates the folder
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise LabError(
            f"--out {path} is in use by another poolgrad train or compare; wait until that ends, or"
            " choose another --out"
        ) from None
    except OSError as error:
        raise UnwritableError(f"--out {path} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes the file when it is unlocked
            os.unlink(path / _LOCK)
        lock.release()
        with contextlib.suppress(OSError):  # not empty
            for each in created:
                each.rmdir()


def is_leftover(path: Path) -> bool:
    """Whether a file holds no result: the lock of a folder, or a partly written file."""
    return path.name == _LOCK or path.suffix == _PARTIAL


@dataclass(frozen=True)
class RunFolder:
    """Paths and state of a run folder.

    `settings.json` marks a run that has begun, `result.json`, written last, one that has finished.
    """

    path: Path

    @property
    def settings(self) -> Path:
        """The file of the settings of the run."""
        return self.path / "settings.json"

    @property
    def result(self) -> Path:
        """The outcome of a finished run."""
        return self.path / "result.json"

    @property
    def metrics(self) -> Path:
        """One row an epoch."""
        return self.path / "metrics.csv"

    @property
    def curves(self) -> Path:
        """The learning curves."""
        return self.path / "curves.png"

    @property
    def routes(self) -> Path:
        """The picture of one image on its way through the first pooling and back."""
        return self.path / "routes.png"

    @property
    def checkpoint(self) -> Path:
        """Weights, optimizer, schedule and history after the last finished epoch."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of a finished run, the most important first."""
        return (self.result, self.metrics, self.curves, self.routes, self.checkpoint)

    def stored(self) -> dict[str, Any] | None:
        """Return what `begin` wrote; None if no run has begun.

        Raises
        ------
        LabError
            If the folder is none, holds something else than a run, or cannot be read.
        """
        try:
            if self.settings.exists():
                return self._checked(read_json(self.settings))
            if self.path.exists() and not self.path.is_dir():
                raise LabError(f"--out {self.path} is a file, not a folder")
            used = self.path.exists() and not all(map(is_leftover, self.path.iterdir()))
        except OSError as error:
            raise LabError(f"--out {self.path} cannot be read: {error.strerror}") from error
        if used:
            raise LabError(f"--out {self.path} is not empty and not a run folder; choose another")
        return None

    def stored_result(self) -> dict[str, Any] | None:
        """What `write_result` wrote; None where the run has not finished."""
        if not self.result.exists():
            return None
        return check_entries(read_json(self.result), _PRINTED, self.result, others=True)

    def _checked(self, content: object) -> dict[str, Any]:
        stored = check_entries(content, _STORED, self.settings)
        if not 1 <= stored["threads"] <= MOST_THREADS:
            raise LabError(
                f"`threads` in {self.settings} must be from 1 to {MOST_THREADS}, got"
                f" {stored['threads']}"
            )
        return stored

    def begin(self, content: Mapping[str, Any]) -> None:
        """Make the folder and write `settings.json`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self.settings, to_json(content))
        except OSError as error:
            raise UnwritableError(
                f"--out {self.path} cannot be written: {error.strerror}"
            ) from error

    def write_metrics(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Write `metrics.csv`: all rows so far, numbers to six digits."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: f"{value:.6g}" for name, value in row.items()} for row in rows)
        write_atomic(self.metrics, text.getvalue().encode())

    def write_result(self, content: Mapping[str, Any]) -> None:
        """Write `result.json`, which marks the run as finished, and delete temporary files."""
        write_atomic(self.result, to_json(content))
        for partial in self.path.rglob("*" + _PARTIAL):
            with contextlib.suppress(OSError):  # leftovers are harmless
                partial.unlink()


@contextlib.contextmanager
def open_folder(
    options: Mapping[str, Any], out: Path | None, resume: bool
) -> Iterator[tuple[Settings, RunFolder, dict[str, Any] | None]]:
    """Find and lock the run folder of the options, and find the settings of its run.

    The folder of a finished run is not locked, because nothing is written to it.

    Parameters
    ----------
    options
        The settings that the user gave, by name.
    out
        The run folder; None: named after the settings.
    resume
        Go on with the run in the folder.

    Yields
    ------
    settings, folder, result
        `result` is what a finished run wrote, otherwise None.

    Raises
    ------
    LabError
        If an option is wrong, the folder is in use, its run has other settings or cannot be read,
        or there is no run to resume.
    """
    settings = Settings.from_options(options)
    folder = RunFolder(out or settings.default_out())
    folder.stored()  # an error before the folder is locked, which writes to it
    with contextlib.nullcontext() if folder.result.exists() else locked(folder.path):
        yield _begun(options, settings, folder, resume)


def _begun(
    options: Mapping[str, Any], settings: Settings, folder: RunFolder, resume: bool
) -> tuple[Settings, RunFolder, dict[str, Any] | None]:
    """Find the settings of the run in a folder that no other process writes to."""
    stored = folder.stored()
    if stored is None and resume:
        raise LabError(
            f"--resume: {folder.path} holds no run, since there is no {folder.settings.name}; leave"
            " --resume out to begin one"
        )
    if stored is None:
        return settings, folder, None
    result = folder.stored_result()
    if not resume:
        if result:
            raise LabError(
                f"{folder.path} holds a finished run, with test accuracy"
                f" {result['test_accuracy']:.4f}; choose another --out, or remove it"
            )
        raise LabError(
            f"{folder.path} holds an unfinished run; resume it with --resume, or choose another"
            " --out"
        )
    begun = Settings.from_stored(stored["settings"], folder.settings)
    settings = Settings.from_options(join_stored(begun.as_dict(), options, folder.path))
    if result and settings.data != begun.data:
        raise LabError(
            f"{flag('data')}: the run in {folder.path} was trained on {begun.data}; choose another"
            " --out"
        )
    return settings, folder, result


def to_json(content: Mapping[str, Any]) -> bytes:
    """Encode an object as the content of a JSON file."""
    return (json.dumps(content, indent=2) + "\n").encode()


def read_json(path: Path) -> object:
    """Read a JSON file.

    Raises
    ------
    LabError
        If it cannot be read or is not JSON; the message names the file.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # endless nesting
        raise LabError(f"{path} is not JSON: {error}") from error
