"""Opens the interactive page in the browser of tests/conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from poolgrad.explainer import build

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

ORIGIN = "http://page.invalid/"


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens the page; the test fails if there was an error, or any request but that of the page."""
    problems: list[str] = []
    contexts = []

    def open_it(fragment: str = "", width: int = 1280, content: str = "", **settings: str) -> Page:
        def answer(route: Route) -> None:
            if route.request.url.split("#")[0] != ORIGIN:
                problems.append(f"request of {route.request.url}")
                return route.abort()
            return route.fulfill(body=content or build(), content_type="text/html")

        settings = {"reduced_motion": "reduce"} | settings
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.route("**/*", answer)
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(ORIGIN + fragment)
        page.wait_for_selector("[data-cell]")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert set(problems) == set()


@pytest.fixture
def page(open_page: Callable[..., Page]) -> Page:
    return open_page()
