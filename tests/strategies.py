"""Hypothesis as the source of `robustness.calls`, so that failing calls are shrunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from robustness import calls

T = TypeVar("T")


class _Drawn:
    """See `calls.Draw`."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(options))


@st.composite
def cases(draw: st.DrawFn, kind: str, **how: Any) -> calls.Case:
    """A call of `kind` that is small enough for the textbook; `how`: see `calls.case`."""
    return calls.case(_Drawn(draw), kind, calls.FOR_ORACLE, **how)
