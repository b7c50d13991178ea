"""Builds the page: one HTML file with its style, modules and initial state."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).parent / "page"
_MODULES = ("dom", "words", "pooling", "stage", "panels", "view")  # each imports earlier ones only

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-0": -0.0}

_BLOCK = re.compile(r"^[ \t]*/\*(?:[^*]|\*(?!/))*\*/[ \t]*\n", re.MULTILINE)
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:class|const|function) (\w+))", re.MULTILINE)


def build(state: dict[str, Any] | None = None) -> str:
    """Return the page as HTML that makes no request.

    Parameters
    ----------
    state : dict, optional
        The initial state, as `Explanation.state`. Default: the example of the page.
    """
    text = json.dumps(encodable(state), separators=(",", ":"), allow_nan=False)
    start = text.replace("<", "\\u003c")  # nothing may end the script element
    return _template().replace(">null</script>", f">{start}</script>")


@cache
def _template() -> str:
    style = f"<style>\n{_shortened(_read('style.css'))}</style>"
    script = "\n".join(_scoped(name) for name in _MODULES)
    page = _read("index.html").replace('<link rel="stylesheet" href="style.css">', style)
    return page.replace(
        '<script type="module" src="view.js"></script>',
        f'<script type="module">\n{script}\n</script>',
    )


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


def _scoped(name: str) -> str:
    """Return a module as an object of its exports: a file has no other modules to import from."""
    source = _shortened(_read(f"{name}.js"))
    exports = ", ".join(_EXPORT.findall(source))
    body = _EXPORT.sub("", _IMPORT.sub(r"const \1 = \2_js;", source))
    return f"const {name}_js = (() => {{\n{body}return {{ {exports} }};\n}})();"


def _shortened(source: str) -> str:
    """Return the lines without indentation, comments of whole lines, and empty lines."""
    lines = (line.strip() for line in _BLOCK.sub("", source).splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))


def encodable(value: Any) -> Any:
    """Return the value with strings for the numbers that JSON does not support."""
    if isinstance(value, dict):
        return {name: encodable(part) for name, part in value.items()}
    if isinstance(value, list):
        return [encodable(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def decoded(value: Any) -> Any:
    """Return the value with numbers for the strings of `encodable`, and for the page's "-0"."""
    if isinstance(value, dict):
        return {name: decoded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [decoded(part) for part in value]
    return _WORDS.get(value, value) if isinstance(value, str) else value
