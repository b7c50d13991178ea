"""What a bug report needs: versions, processor, instruction set, threads, front ends."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from poolgrad import core

_PACKAGES = (
    "poolgrad",
    "numpy",
    "scipy",
    "torch",
    "pytorch-lightning",
    "scikit-learn",
    "matplotlib",
)
_FRONT_ENDS = {"numpy": "numpy", "torch": "torch"}
_VARIABLES = (
    "POOLGRAD_ISA",
    "POOLGRAD_NUM_THREADS",
    "POOLGRAD_CACHE_BYTES",
    "POOLGRAD_STREAM_BYTES",
    "OMP_NUM_THREADS",
)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def describe() -> dict[str, str]:
    """Names and values, in the order in which they are best read."""
    found = [name for name, package in _FRONT_ENDS.items() if _version(package) != "not installed"]
    return {
        **{package: _version(package) for package in _PACKAGES},
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(),
        "processor": f"{_processor()}, {os.cpu_count()} logical",
        "instruction set": f"{core.instruction_set()} (of {', '.join(core.instruction_sets())})",
        "threads": str(core.get_num_threads()),
        "front ends": ", ".join(found),
        "settings": " ".join(f"{v}={os.environ[v]}" for v in _VARIABLES if v in os.environ)
        or "none",
    }
