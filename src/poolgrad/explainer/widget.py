"""The page as a widget of Jupyter notebooks, for which anywidget must be installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from poolgrad.explainer.build import decoded, encodable


def widget(
    page: str, state: dict[str, Any] | None, changed: Callable[[dict[str, Any]], None]
) -> Any:
    """Return the page in a frame, whose trait `state` is that of the page and can be set.

    Parameters
    ----------
    page : str
        The HTML of the page.
    state : dict or None
        The state that the page begins with; None for its own opening.
    changed : function
        Called with each new state of the page.

    Returns
    -------
    anywidget.AnyWidget
        The widget, which a notebook displays.

    Raises
    ------
    ModuleNotFoundError
        If anywidget is not installed.
    """
    made = _widget_class()(page=page, state=encodable(state))
    made.observe(lambda change: changed(decoded(change["new"] or {})), names="state")
    return made


@cache
def _widget_class() -> Any:
    import anywidget
    import traitlets

    class ExplanationWidget(anywidget.AnyWidget):
        _esm = (Path(__file__).parent / "widget.js").read_text(encoding="utf-8")
        page = traitlets.Unicode().tag(sync=True)
        state = traitlets.Dict(allow_none=True).tag(sync=True)

    return ExplanationWidget
