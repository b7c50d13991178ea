"""Feature maps and boxes for the tests of `poolgrad.roi_pool` and `poolgrad.roi_align`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

Array = np.ndarray[Any, np.dtype[Any]]

# What else the functions are called with: every argument that changes how they compute.
POOLS: list[dict[str, Any]] = [{}, {"spatial_scale": 0.5}, {"spatial_scale": 0.37}]
ALIGNS: list[dict[str, Any]] = [
    {},
    {"aligned": True},
    {"sampling_ratio": 1},
    {"sampling_ratio": 2, "aligned": True, "spatial_scale": 0.37},
    {"sampling_ratio": 3, "spatial_scale": 0.5},
]
CALLS = [("roi_pool", kwargs) for kwargs in POOLS] + [("roi_align", kwargs) for kwargs in ALIGNS]
NAMES = [f"{name} {kwargs}" for name, kwargs in CALLS]


def maps(shape: tuple[int, ...] = (2, 3, 11, 13), dtype: Any = np.float64, seed: int = 0) -> Array:
    """Distinct values in random order."""
    n = int(np.prod(shape))
    return (np.random.default_rng(seed).permutation(n).reshape(shape) / n).astype(dtype)


def boxes(count: int = 12, images: int = 2, size: float = 40, seed: int = 1) -> Array:
    """Boxes of all sizes, many of them partly or wholly outside a map of 11 x 13."""
    random = np.random.default_rng(seed)
    corners = random.uniform(-8, size - 8, (count, 2, 2))
    corners.sort(1)
    corners[::4] = corners[::4].round()  # whole pixels
    corners[1::4, 1] = corners[1::4, 0] + random.uniform(0, 1, (len(corners[1::4]), 2))  # small
    corners[2] = corners[2, :1]  # of no size
    index = random.integers(0, images, (count, 1))
    return np.concatenate([index, corners.reshape(count, 4)], 1)


def listed(table: Array, images: int) -> tuple[list[Array], Array]:
    """Boxes as a list with those of each image, and the same as a table in that order."""
    order = np.argsort(table[:, 0], kind="stable")
    return [table[table[:, 0] == n, 1:] for n in range(images)], table[order]


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pool tensors of the CPU as those of devices without kernels."""
    from poolgrad.torch import regions

    monkeypatch.setattr(regions, "_has_kernels", lambda x: False)


def random_regions(most_samples: int) -> Any:
    """Draw boxes, which may reach beyond the maps, maps and arguments of both functions."""
    corner = st.floats(-20, 40, width=32) | st.integers(-20, 40).map(float)
    return given(
        corners=st.lists(st.tuples(corner, corner, corner, corner), min_size=1, max_size=4),
        shape=st.tuples(st.just(1), st.integers(1, 2), st.integers(1, 9), st.integers(1, 9)),
        size=st.tuples(st.integers(1, 6), st.integers(1, 6)),
        scale=st.sampled_from([1.0, 0.25, 0.3, 2.0]),
        ratio=st.integers(-1, most_samples),
        aligned=st.booleans(),
        dtype=st.sampled_from(["float32", "float64"]),
    )
