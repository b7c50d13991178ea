"""The page as a widget of Jupyter notebooks; imported where anywidget is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from poolgrad.explainer.build import decoded, encodable

__all__ = ["ExplanationWidget"]


class ExplanationWidget(anywidget.AnyWidget):
    """The page in a frame, whose state Python sees and sets.

    Parameters
    ----------
    page : str
        The HTML of the page.
    state : dict or None
        The state that the page begins with; None for its own opening.
    changed : function
        Called with each new state of the page.
    """

    _esm = (Path(__file__).parent / "widget.js").read_text(encoding="utf-8")
    page = traitlets.Unicode().tag(sync=True)
    state = traitlets.Dict(allow_none=True).tag(sync=True)

    def __init__(
        self, page: str, state: dict[str, Any] | None, changed: Callable[[dict[str, Any]], None]
    ) -> None:
        super().__init__(page=page, state=encodable(state))
        self.observe(lambda change: changed(decoded(change["new"])), names="state")
