"""Collects what a bug report needs: versions, processor, instruction set, threads, front ends.

Needs nothing but NumPy: other packages are looked up in the list of installed ones.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np

import poolgrad
from poolgrad import core

_PACKAGES = (
    "scipy",
    "torch",
    "jax",
    "jaxlib",
    "dask",
    "ml-dtypes",
    "pytorch-lightning",
    "scikit-learn",
    "matplotlib",
)
_FRONT_ENDS = (
    "torch",
    "jax",
    "dask",
)  # besides NumPy's; each has the name of the package that it needs
_VARIABLES = (
    "POOLGRAD_ISA",
    "POOLGRAD_NUM_THREADS",
    "POOLGRAD_CACHE_BYTES",
    "POOLGRAD_STREAM_BYTES",
    "OMP_NUM_THREADS",
)
_MISSING = "not installed"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _MISSING


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _instruction_set() -> str:
    return f"{core.instruction_set()} (of {', '.join(core.instruction_sets())})"


def _or_error(read: Callable[[], object]) -> str:
    """Return the result or, if an environment variable is invalid, the error message."""
    try:
        return str(read())
    except (RuntimeError, ValueError) as error:
        return str(error)


def _jax_kernels() -> str:
    """Return whether the kernels for JAX on CPUs were built, and whether XLA accepts them."""
    if core.xla_handler() is None:
        return "not built: jaxlib was not installed when poolgrad was built"
    if _version("jax") == _MISSING:
        return "built"
    try:
        from poolgrad.jax import kernels  # noqa: F401 - registers them with XLA
    except Exception as error:  # every error belongs in a bug report
        return f"built, but not usable: {error}"
    return "built and registered with XLA"


def describe() -> dict[str, str]:
    """Return names and values in the order in which they are printed."""
    versions = {package: _version(package) for package in _PACKAGES}
    front_ends = ["numpy", *(name for name in _FRONT_ENDS if versions[name] != _MISSING)]
    return {
        "poolgrad": poolgrad.__version__,
        "numpy": np.__version__,
        **versions,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(),
        "processor": f"{_processor()}, {os.cpu_count()} logical",
        "instruction set": _or_error(_instruction_set),
        "threads": _or_error(lambda: f"{core.get_num_threads()} (for NumPy arrays)"),
        "front ends": ", ".join(front_ends),
        "JAX CPU kernels": _jax_kernels(),
        "settings": " ".join(f"{v}={os.environ[v]}" for v in _VARIABLES if v in os.environ)
        or "none",
    }


def report() -> str:
    """Format the result of `describe` as lines of text."""
    return "\n".join(f"{name + ':':19}{value}" for name, value in describe().items())
