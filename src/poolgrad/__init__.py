"""Pooling layers with exact gradients for NumPy, PyTorch, JAX, Dask and other array libraries."""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from poolgrad import functional, reference
from poolgrad.core import empty_cache, get_num_threads, set_num_threads
from poolgrad.explainer import explain
from poolgrad.functional import *  # noqa: F403 - the names are listed there
from poolgrad.functional.vjp import vjp
from poolgrad.pullback import Pullback
from poolgrad.regions import RegionPullback, roi_align, roi_pool

__version__ = "0.1.0"

__all__ = ["Pullback", "empty_cache", "explain", "get_num_threads", "reference", "set_num_threads"]
__all__ += ["RegionPullback", "roi_align", "roi_pool", "vjp"]
__all__ += functional.__all__

# Public modules that are imported on first use, and the package that each needs.
_LAZY = {"dask": "dask", "indices": "numpy", "jax": "jax", "torch": "torch"}

if TYPE_CHECKING:  # without `__getattr__`, so that type checkers find misspelt names
    from poolgrad import dask as dask
    from poolgrad import indices as indices
    from poolgrad import jax as jax
    from poolgrad import torch as torch
else:

    def __getattr__(name: str) -> ModuleType:
        if name in _LAZY:
            return import_module(f"poolgrad.{name}")
        # `obj` lets Python suggest a similar name.
        own = sys.modules[__name__]
        raise AttributeError(f"module 'poolgrad' has no attribute {name!r}", name=name, obj=own)


def __dir__() -> list[str]:
    """Return the public names, including lazy modules whose package is installed."""
    usable = [name for name, package in _LAZY.items() if find_spec(package)]
    return sorted([*__all__, *usable, "__version__"])
