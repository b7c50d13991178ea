"""Types where no framework but NumPy is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import poolgrad

CASES = Path(__file__).parent / "typing" / "numpy_cases.py"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_infers_the_types_without_other_frameworks(tmp_path: Path) -> None:
    packages = tmp_path / "packages"  # all that mypy finds, as it looks at no environment
    packages.mkdir()
    for package in (np, poolgrad):
        (packages / package.__name__).symlink_to(Path(package.__file__).parent)
    options = ["--strict", "--config-file=", "--no-site-packages", "--follow-imports=silent"]
    options += ["--cache-dir", str(tmp_path / "cache"), "--no-error-summary"]
    program = [sys.executable, "-m", "mypy", *options, str(CASES)]
    environment = {**os.environ, "MYPYPATH": str(packages)}
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode in (0, 1), done.stderr
    assert [line for line in done.stdout.splitlines() if CASES.name in line] == []
