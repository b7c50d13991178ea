"""Small data sets, and processes in which `poolgrad train` can be killed."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

CliProcess = Callable[..., "multiprocessing.process.BaseProcess"]
MakeFolder = Callable[..., Path]


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An .npz of 150 small digits of five classes: an epoch takes a moment."""
    digits = load_digits(n_class=5)
    path = tmp_path_factory.mktemp("data") / "few.npz"
    np.savez(path, images=digits.images[:150].astype(np.uint8), labels=digits.target[:150])
    return path


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Makes a folder of class folders of noise."""

    def make(
        classes: tuple[str, ...] = ("cat", "dog"),
        count: int = 12,
        size: tuple[int, int] = (8, 8),
        mode: str = "L",
        suffix: str = "png",
    ) -> Path:
        folder = tmp_path / "pictures"
        noise = np.random.default_rng(0)
        for name in classes:
            (folder / name).mkdir(parents=True)
            for i in range(count):
                pixels = noise.integers(0, 256, (*size, 3), np.uint8)
                Image.fromarray(pixels).convert(mode).save(folder / name / f"{i:02}.{suffix}")
        return folder

    return make


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Any]:
    """Processes that need not import PyTorch and Lightning again, which takes them seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["poolgrad.lab.train"])
    # One thread each: the same bits, and no crowd on a busy machine.
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    multiprocessing.forkserver.ensure_running()
    if before is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = before
    yield context
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def cli_process(fork_server: Any) -> CliProcess:
    """Starts `poolgrad train` with some arguments in a process of its own.

    Its output goes to the file `log`. With ``die=(name, which, moment)`` it kills itself while it
    writes the file of that name for the which-th time: see cli_process.py.
    """

    def start(
        *arguments: str | Path,
        die: tuple[str, int, str] | None = None,
        log: str | Path = os.devnull,
    ) -> multiprocessing.process.BaseProcess:
        what = {"arguments": ["train", *map(str, arguments)], "log": log, "die": die}
        script = str(Path(__file__).with_name("cli_process.py"))
        process = fork_server.Process(target=runpy.run_path, args=(script, what))
        process.start()
        return process  # type: ignore[no-any-return]

    return start
