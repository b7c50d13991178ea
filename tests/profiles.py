"""Hypothesis profiles: how many examples of a property are drawn.

``POOLGRAD_TEST_PROFILE=full pytest -m hypothesis`` draws as many as `.ci/run`, ``thorough`` many
more, different ones each time.
"""

from __future__ import annotations

import os

from hypothesis import settings

_FULL = 80

settings.register_profile("quick", max_examples=20, derandomize=True, deadline=None, database=None)
settings.register_profile(
    "full", max_examples=_FULL, derandomize=True, deadline=None, database=None
)
settings.register_profile(
    "thorough", max_examples=3000, deadline=None, database=None, print_blob=True
)
settings.load_profile(os.environ.get("POOLGRAD_TEST_PROFILE", "quick"))


def examples(full: int) -> int:
    """Number of examples of an expensive property, in proportion to the profile that is loaded."""
    return max(2, full * settings.default.max_examples // _FULL)
