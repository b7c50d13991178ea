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
OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([^)#]+)")


def on_pre_build(config: Any) -> None:
    """Write the interactive page, which the chapters embed."""
    if hasattr(poolgrad, "explain"):
        command = [sys.executable, "-m", "poolgrad", "explain", "--no-open", "--out", str(PAGE)]
        subprocess.run(command, check=True, cwd=ROOT)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to files outside docs/ at the repository."""
    here = (Path(config["docs_dir"]) / page.file.src_uri).parent

    def linked(match: re.Match[str]) -> str:
        target = (here / match[1] / match[2]).resolve()
        if target.is_relative_to(config["docs_dir"]):
            return match[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {target}, which does not exist")
        return f"]({REPOSITORY}{target.relative_to(ROOT).as_posix()}"

    return OUTSIDE.sub(linked, markdown)
