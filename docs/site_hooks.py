"""MkDocs hooks: links to files outside docs/, and the interactive page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import poolgrad

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/poolgrad/poolgrad/blob/main/"
PAGE = ROOT / "docs" / "explain.html"
MARKER = "<!-- explain -->"
EMBEDDED = """
<iframe class="explain" src="explain.html" title="The gradient flow, step by step" loading="lazy">
</iframe>

[Open this page alone](explain.html), or start it with your own numbers: `poolgrad explain`.
"""
OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([^)#]+)")


def on_pre_build(config: Any) -> None:
    """Write the interactive page, if this version of poolgrad has it."""
    if hasattr(poolgrad, "explain"):
        command = [sys.executable, "-m", "poolgrad", "explain", "--no-open", "--out", str(PAGE)]
        subprocess.run(command, check=True, cwd=ROOT)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to files outside docs/ at the repository; embed the interactive page."""
    here = (Path(config["docs_dir"]) / page.file.src_uri).parent

    def linked(match: re.Match[str]) -> str:
        target = (here / match[1] / match[2]).resolve()
        if target.is_relative_to(config["docs_dir"]):
            return match[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {target}, which does not exist")
        return f"]({REPOSITORY}{target.relative_to(ROOT).as_posix()}"

    if PAGE.exists():
        markdown = markdown.replace(MARKER, EMBEDDED)
    return OUTSIDE.sub(linked, markdown)
