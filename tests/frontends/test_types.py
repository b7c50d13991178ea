"""Types: mypy and pyright infer what functions return, and refuse wrong arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "frontends" / "typing" / "cases.py"
FRAMEWORKS = ("torch", "jax", "dask")

needs_frameworks = pytest.mark.skipif(
    not all(map(find_spec, FRAMEWORKS)), reason=f"needs {', '.join(FRAMEWORKS)}"
)


@pytest.mark.slow
@needs_frameworks
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_infers_the_types(tmp_path: Path) -> None:
    options = [
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(tmp_path),
        "--follow-imports=silent",
    ]
    # `torch.nn.Parameter` and others are untyped calls, which are not what is tested
    options += ["--allow-untyped-calls", "--no-error-summary"]
    program = [sys.executable, "-m", "mypy", *options, str(CASES)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_frameworks
@pytest.mark.skipif(find_spec("pyright") is None, reason="pyright is not installed")
@pytest.mark.skipif(which("node") is None, reason="pyright needs node, which is not installed")
def test_pyright_infers_the_types(tmp_path: Path) -> None:
    import poolgrad

    settings = tmp_path / "pyrightconfig.json"
    source = Path(poolgrad.__file__).parents[1]
    rules = {"reportUnnecessaryTypeIgnoreComment": "error", "extraPaths": [str(source)]}
    (tmp_path / CASES.name).write_text(CASES.read_text())
    settings.write_text(json.dumps({"include": [CASES.name], **rules}))
    program = [sys.executable, "-m", "pyright", "--project", str(settings)]
    program += ["--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] > 0
    errors = [
        f"{Path(d['file']).name}:{d['range']['start']['line'] + 1}: {d['message']}"
        for d in answer["generalDiagnostics"]
        if d["severity"] == "error"
    ]
    assert errors == []
