"""What an error must say: the argument's name first, and what came."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest


def refused(error: Any, name: str, came: object) -> Any:
    """Expect an `error` whose message begins with `name` (a pattern) and shows `came`."""
    return pytest.raises(error, match=rf"^{name}\b(.|\n)*{re.escape(str(came))}")


def attempt(ask: Callable[[], Any]) -> Any:
    """The answer, or the error with which it was refused."""
    try:
        return ask()
    except (TypeError, ValueError) as error:
        return error
