"""The versions of the packages that decide the result of a run."""

from __future__ import annotations

from importlib.metadata import version

_PACKAGES = ("poolgrad", "torch", "pytorch-lightning", "numpy", "scikit-learn")


def versions() -> dict[str, str]:
    """The installed versions by package."""
    return {name: version(name) for name in _PACKAGES}
