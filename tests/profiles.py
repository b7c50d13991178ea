"""Hypothesis profiles: how many examples of a property are drawn.

``POOLGRAD_TEST_PROFILE=full pytest -m hypothesis`` draws four times as many, and ``thorough`` many
more, different ones each time.
"""

from __future__ import annotations

import os

from hypothesis import settings

_USUAL = 80

settings.register_profile(
    "usual", max_examples=_USUAL, derandomize=True, deadline=None, database=None
)
settings.register_profile(
    "full", max_examples=4 * _USUAL, derandomize=True, deadline=None, database=None
)
settings.register_profile(
    "thorough", max_examples=3000, deadline=None, database=None, print_blob=True
)


def load() -> None:
    """Load the chosen profile, also after another package has loaded its own."""
    settings.load_profile(os.environ.get("POOLGRAD_TEST_PROFILE", "usual"))


load()


def examples(usual: int) -> int:
    """Number of examples of an expensive property; other profiles draw proportionally more."""
    return usual * settings.default.max_examples // _USUAL
