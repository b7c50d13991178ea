"""Python in a process of its own: for crashes, forks, environment variables and fresh imports."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(
    code: str, timeout: float = 60, stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `code` with the same interpreter and packages; never hangs longer than `timeout`."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | env,
        check=False,
    )


def assert_runs(code: str, timeout: float = 60, **env: str) -> str:
    """What `code` prints; an AssertionError with its last words if it fails, crashes or hangs."""
    try:
        done = run_python(code, timeout, **env)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"did not end within {timeout} s") from None
    # A negative return code is a signal: -11 a segmentation fault.
    assert done.returncode == 0, f"ended with {done.returncode}:\n{done.stderr[-2000:]}"
    return done.stdout
