"""Looks up private symbols of a framework, with a clear message if one is missing.

The module `_compat` of each front end lists those that it uses, with the version that is tested.
"""

from __future__ import annotations

from importlib import metadata
from pkgutil import resolve_name
from typing import Any
from warnings import warn


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
        try:
            return resolve_name(path)
        except (ImportError, AttributeError) as error:
            raise ImportError(self._message(path, f"install {self.package} {self.tested}")) from (
                error
            )

    def symbols_or_none(self, paths: tuple[str, ...], without: str) -> tuple[Any, ...] | None:
        """Return the objects, or None and a warning that ends with `without` if one is missing."""
        try:
            return tuple(map(self.symbol, paths))
        except ImportError as error:
            missing = next(path for path in paths if path in str(error))
            warn(self._message(missing, without), RuntimeWarning, stacklevel=2)
            return None

    def _message(self, path: str, what: str) -> str:
        return (
            f"{self.package} {metadata.version(self.package)} has no {path}, which poolgrad uses "
            f"(it is tested with {self.package} {self.tested}): {what}"
        )
