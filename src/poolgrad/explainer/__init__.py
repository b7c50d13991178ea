"""Shows how a gradient passes through a pooling, in an interactive HTML page.

`build` makes the file, `state` describes a pooling as the page needs it, `command` is what
``poolgrad explain`` does, `widget` shows the page in notebooks. The folder ``page`` holds the page:
``pooling.js`` computes poolings and their gradients, ``words.js`` has the sentences, ``stage.js``
draws the arrays, ``panels.js`` what is below them, and ``view.js`` connects them with controls,
pointer and keys.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from poolgrad.explainer.build import build, encodable
from poolgrad.explainer.state import state_of
from poolgrad.functional.inputs import shape_of
from poolgrad.pullback import Pullback
from poolgrad.windows import brief

__all__ = ["Explanation", "explain"]


class Explanation:
    """A pooling in an interactive page, returned by `explain`. Notebooks display it.

    Where anywidget is installed, a notebook displays it as a widget: `state` is then the
    current state of the page, and setting `state` changes the page.

    Parameters
    ----------
    state : dict, optional
        The initial state of the page: input, gradient of the output, operator and windows, as
        lists, numbers and strings. Default: the example of the page.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self._state = state
        self._widget: Any = None

    @property
    def state(self) -> dict[str, Any] | None:
        """The initial state of the page or, displayed as a widget, its current state."""
        return self._state

    @state.setter
    def state(self, state: dict[str, Any] | None) -> None:
        self._state = state
        if self._widget is not None:
            self._widget.state = encodable(state)

    def __repr__(self) -> str:
        return f"<Explanation of {(self.state or {}).get('operator', 'max')} pooling>"

    @property
    def html(self) -> str:
        """The page: one HTML file that makes no request."""
        return build(self.state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, which any browser opens.

        Parameters
        ----------
        path : str or path
            The file; it is replaced if it exists.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        Path(path).write_text(self.html, encoding="utf-8")

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Return the widget for a notebook; without anywidget, `_repr_html_` is used."""
        if find_spec("anywidget") is None:
            return {}
        from poolgrad.explainer.widget import widget

        if self._widget is None:
            self._widget = widget(self.html, self._state, self._follow)
        return self._widget._repr_mimebundle_(**kwargs)

    def _follow(self, state: dict[str, Any]) -> None:
        self._state = state

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" title="How the gradient passes a pooling"'
            ' allow="clipboard-write" style="width: 100%; height: 900px; border: 0"></iframe>'
        )


def explain(
    x: Any, fun: Callable[..., Any] | Pullback, *args: Any, cotangent: Any = None, **kwargs: Any
) -> Explanation:
    """Show how a gradient passes through a pooling, in an interactive page.

    Parameters
    ----------
    x : array
        The input: one or two planes (batch and channels together) of at most 16 x 16 numbers, or
        of one row of 16.
    fun : function or Pullback
        A pooling function of poolgrad for one or two axes, such as `poolgrad.max_pool2d`, or the
        pullback that `poolgrad.vjp` returned for `x`. Stochastic, fractional and ReLU poolings are
        not shown.
    *args, **kwargs
        Further arguments of the function; none with a pullback.
    cotangent : array, optional
        The gradient of the output, in its shape. Default: ones.

    Returns
    -------
    Explanation
        Displays itself in a notebook; ``save("page.html")`` writes a file for any browser.

    Raises
    ------
    TypeError, ValueError
        If the pooling is not defined or too large for the page, with the limit.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array([[1.0, 3.0], [2.0, 0.5]])
    >>> page = poolgrad.explain(x, poolgrad.max_pool2d, 2, cotangent=2.5)
    >>> page
    <Explanation of max pooling>
    >>> page.state["x"], page.state["cotangent"]
    ([[[1.0, 3.0], [2.0, 0.5]]], [[[2.5]]])
    """
    if isinstance(fun, Pullback):
        if args or kwargs:
            raise TypeError("fun is a pullback, which takes no further arguments")
        shared = fun.call
        expected = shared.ready.layout.in_shape
        if shape_of(x) != expected:
            raise ValueError(
                f"x must have the shape of the pullback's input, {expected}, got {shape_of(x)}"
            )
        return Explanation(state_of(replace(shared.request, x=x), cotangent))
    describe = getattr(fun, "describe", None)
    if describe is None:
        raise TypeError(
            "fun must be a pooling function of poolgrad, such as poolgrad.max_pool2d, "
            f"or a pullback of poolgrad.vjp, got {brief(fun)}"
        )
    return Explanation(state_of(describe(x, *args, **kwargs), cotangent))
