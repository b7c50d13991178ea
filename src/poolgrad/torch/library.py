"""Makes the libraries in which modules define operators, so that a module can be executed again.

PyTorch keeps an operator after the module that defined it has failed to import, and refuses a
second definition. This module defines nothing, so it survives an interrupted import of the others.
"""

from __future__ import annotations

from torch.library import Library

_LIBRARIES: dict[str, Library] = {}


def library(module: str) -> Library:
    """Return a new library for the operators of a module; its former one is destroyed."""
    if module in _LIBRARIES:
        _LIBRARIES[module]._destroy()
    made = _LIBRARIES[module] = Library("poolgrad", "FRAGMENT")
    return made
