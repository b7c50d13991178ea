"""Imports the front ends, each on first use: ``front_ends.torch`` is the front end for PyTorch.

A front end is remembered only after its import is complete, so an import that was interrupted (by
Ctrl-C, or by an error of a signal handler) is begun again by the next call. They are attributes,
because compilers of PyTorch look up attributes of modules but do not trace `import_module`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

MODULES = {name: f"poolgrad.{name}" for name in ("numpy", "xarray")}
MODULES |= {"portable": "poolgrad.array_api"}
MODULES |= {"engine": "poolgrad.portable"}  # of arrays without kernels, for all front ends
MODULES |= {name: f"poolgrad.{name}.function" for name in ("torch", "jax", "dask")}
# The modules of the maps of regions of interest.
MODULES |= {"numpy regions": "poolgrad.region_maps"}
MODULES |= {f"{n} regions": f"poolgrad.{n}.regions" for n in ("torch", "jax", "dask", "portable")}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = ".".join(MODULES[name].split(".")[:2])
    _wait_for(package, "poolgrad.portable")  # which other front ends import
    import_module(package)  # first, because a module does not wait for the import of its package
    module: Any = import_module(MODULES[name])
    is_module = name.endswith(("regions", "engine"))
    found = globals()[name] = module if is_module else module.FRONT_END
    return found


def is_being_imported(module: object) -> bool:
    """Whether a module is incomplete, as Python's own import statement determines it."""
    return getattr(getattr(module, "__spec__", None), "_initializing", False) is True


def _wait_for(*packages: str) -> None:
    """Wait for imports in other threads, and refuse to continue inside one of this thread.

    A module that is imported inside such an import could keep incomplete modules for ever.

    Raises
    ------
    RuntimeError
        If this call interrupts an import of the packages.
    """
    # `copy` runs no Python code. A list of `items` can: its tuples start the garbage collector, and
    # a finalizer that imports, or another thread, would change the dictionary meanwhile.
    for name, module in sys.modules.copy().items():
        if ".".join(name.split(".")[:2]) not in packages or not is_being_imported(module):
            continue
        # Waits for another thread, or imports it if that failed; returns at once in this thread.
        if is_being_imported(import_module(name)):
            raise RuntimeError(
                f"poolgrad cannot pool here, because this call interrupts the import of {name}: in "
                "a signal handler, pool only after the program has pooled such an array or "
                f"imported {packages[0]}"
            )
