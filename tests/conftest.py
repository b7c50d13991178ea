"""Hypothesis profiles, and the fixtures that several topics share.

``POOLGRAD_TEST_PROFILE=thorough pytest`` draws many more examples, other ones each time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

# With a process for each core, threads that wait must not keep a core from another process. It is
# read when a library is loaded that has such threads.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hypothesis
import pytest
from fronts import FRONTS, Front

import poolgrad

hypothesis.settings.register_profile(
    "ci", max_examples=80, derandomize=True, deadline=None, database=None
)
hypothesis.settings.register_profile(
    "thorough", max_examples=3000, deadline=None, database=None, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("POOLGRAD_TEST_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    # A skip without its reason on the screen is a hole that nobody sees.
    if "s" not in config.option.reportchars:
        config.option.reportchars += "s"


@pytest.fixture(params=FRONTS, ids=lambda f: f.name)
def front(request: pytest.FixtureRequest) -> Front:
    """Each front end in turn: the same question, asked of NumPy arrays and of tensors."""
    return request.param


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    before = poolgrad.get_num_threads()
    yield
    poolgrad.set_num_threads(before)
