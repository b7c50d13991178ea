"""MkDocs hooks: the interactive page, links that open it, and links to files outside docs/."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mkdocs.exceptions import PluginError

import poolgrad
from poolgrad.explainer.build import encodable

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/poolgrad/poolgrad/blob/main/"
PAGE = "gradient-flow.html"  # in the folder of the pages that link to it
OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([^)#]+)")
PLAY = re.compile(r"^<!-- play: (.+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to files outside docs/ at the repository; make links of `play` comments."""
    here = (Path(config["docs_dir"]) / page.file.src_uri).parent

    def linked(match: re.Match[str]) -> str:
        target = (here / match[1] / match[2]).resolve()
        if target.is_relative_to(config["docs_dir"]):
            return match[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {target}, which does not exist")
        return f"]({REPOSITORY}{target.relative_to(ROOT).as_posix()}"

    return OUTSIDE.sub(linked, PLAY.sub(lambda match: play(match[1]), markdown))


def play(arguments: str) -> str:
    """Link to the interactive page in the state of ``poolgrad.explain(arguments)``."""
    names = {"explain": poolgrad.explain, "np": np, "poolgrad": poolgrad}
    state = eval(f"explain({arguments})", names).state
    text = json.dumps(encodable(state), separators=(",", ":"))
    fragment = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    return f'<a class="play" href="{PAGE}#{fragment}">Play this example</a>'


def on_post_build(config: Any) -> None:
    """Write the interactive page.

    Raises
    ------
    PluginError
        If `poolgrad explain` fails.
    """
    page = Path(config["site_dir"]) / PAGE
    command = [sys.executable, "-m", "poolgrad", "explain", "--no-open", "--out", str(page)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise PluginError(f"`poolgrad explain` failed:\n{done.stderr or done.stdout}")
