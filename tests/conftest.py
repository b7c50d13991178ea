"""Settings of all tests, and the fixtures that several topics share."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

# With a process for each core, threads that wait must not keep a core from another process. It is
# read when a library is loaded that has such threads.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from importlib.util import find_spec

import profiles  # noqa: F401
import pytest
from frontend_calls import FRONTS, torch

import poolgrad

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The conftest.py in there imports what only the lab extra has.
collect_ignore = [] if find_spec("pytorch_lightning") else ["lab"]


def pytest_report_header() -> list[str]:
    return ["tests/lab is left out: the lab extra is not installed"] if collect_ignore else []


def pytest_configure(config: pytest.Config) -> None:
    # A skip without its reason on the screen is a hole that nobody sees.
    if "s" not in config.option.reportchars:
        config.option.reportchars += "s"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with an argument `front` in every front end that the test does not exclude."""
    if "front" not in metafunc.fixturenames:
        return
    markers = [*metafunc.definition.iter_markers()]
    excluded = {name for marker in markers if marker.name == "without" for name in marker.kwargs}
    slow = {name for marker in markers if marker.name == "slow_in" for name in marker.args}
    fronts = [
        pytest.param(front, id=front.name, marks=pytest.mark.slow if front.name in slow else ())
        for front in FRONTS
        if front.name not in excluded
    ]
    metafunc.parametrize("front", fronts)


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> None:
    """Collect garbage, then exempt what is left, such as imported packages, from later collections.

    A collection takes a second where PyTorch and JAX are imported, and many tests cause some.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    before = poolgrad.get_num_threads()
    yield
    poolgrad.set_num_threads(before)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on the CPU take the path of other devices."""
    if torch is None:
        pytest.skip("PyTorch is not installed")
    poolgrad.max_pool2d(torch.ones(1, 2, 2), 2)  # the front end exists from the first tensor on
    from poolgrad.call_cache import LOOKUPS
    from poolgrad.torch import engines

    monkeypatch.delitem(LOOKUPS, torch.Tensor)
    monkeypatch.setattr(engines, "engine_of_device", lambda x: engines.Engine.PORTABLE)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium, one for each test process; without it the tests are skipped."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    chromium = os.environ.get("POOLGRAD_CHROMIUM") or shutil.which("chromium-headless-shell")
    if not chromium:
        pytest.skip("chromium-headless-shell is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()
