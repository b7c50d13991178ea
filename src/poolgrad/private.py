"""Looks up private symbols of a framework, with a clear message if one is missing.

The module `_compat` of each front end lists those that it uses, with the version that is tested.
"""

from __future__ import annotations

from importlib import import_module, metadata
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from warnings import warn

from poolgrad.front_ends import is_being_imported

_MISSING = object()


def _find(path: str) -> Any:
    """Return the object at a dotted path, or `_MISSING`.

    Errors of the import of a module are not caught: they say more, and may be those of a signal
    handler that ran during the import.

    Raises
    ------
    ImportError
        If a module on the path is itself being imported, as when this import runs in a signal
        handler.
    """
    name, *rest = path.split(".")
    found: Any = import_module(name)
    for part in rest:
        name = f"{name}.{part}"
        is_package = isinstance(found, ModuleType) and hasattr(found, "__path__")
        if not hasattr(found, part) and is_package and find_spec(name) is not None:
            import_module(name)
        if not hasattr(found, part):
            if is_being_imported(found):
                raise ImportError(f"{found.__name__} has no {part} yet, as it is being imported")
            return _MISSING
        found = getattr(found, part)
    return found


class Private:
    """Looks up the private symbols of a package.

    Parameters
    ----------
    package : str
        Its name.
    tested : str
        The version with which poolgrad is tested.
    """

    def __init__(self, package: str, tested: str) -> None:
        self.package, self.tested = package, tested

    def symbol(self, path: str) -> Any:
        """Return the object at ``module.name`` or ``module.class.name``.

        Raises
        ------
        ImportError
            If it does not exist; the message names the installed and the tested version.
        """
        found = _find(path)
        if found is _MISSING:
            raise ImportError(self._message(path, f"install {self.package} {self.tested}"))
        return found

    def symbols_or_none(self, paths: tuple[str, ...], without: str) -> tuple[Any, ...] | None:
        """Return the objects, or None and a warning that ends with `without` if one is missing."""
        found = [_find(path) for path in paths]
        if _MISSING in found:
            missing = paths[found.index(_MISSING)]
            warn(self._message(missing, without), RuntimeWarning, stacklevel=2)
            return None
        return (*found,)

    def _message(self, path: str, what: str) -> str:
        return (
            f"{self.package} {metadata.version(self.package)} has no {path}, which poolgrad uses "
            f"(it is tested with {self.package} {self.tested}): {what}"
        )
