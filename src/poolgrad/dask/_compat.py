"""Every private symbol of Dask that poolgrad uses."""

from __future__ import annotations

from typing import Any

from poolgrad.private import Private

PRIVATE = Private("dask", "2026.8")

Task = PRIVATE.symbol("dask._task_spec.Task")
TaskRef = PRIVATE.symbol("dask._task_spec.TaskRef")
ArrayChunkShapeDep = PRIVATE.symbol("dask.layers.ArrayChunkShapeDep")


def chunk_type(array: Any) -> type:
    """Return the type of the chunks of a Dask array."""
    return type(array._meta)
