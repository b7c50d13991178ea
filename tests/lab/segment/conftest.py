"""Folders of images and masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from poolgrad.lab.segment import data as masked

MakeMasks = Callable[..., Path]


@pytest.fixture(scope="session")
def scattered() -> masked.MaskedImages:
    """The default data."""
    return masked.load("scattered-digits")


@pytest.fixture
def make_masks(tmp_path: Path) -> MakeMasks:
    """Makes a folder of images with bright squares, and of their masks."""

    def make(
        count: int = 12,
        size: tuple[int, int] = (20, 24),
        mode: str = "L",
        values: tuple[int, int] = (0, 255),
    ) -> Path:
        folder = tmp_path / "squares"
        random = np.random.default_rng(0)
        for part in ("images", "masks"):
            (folder / part).mkdir(parents=True)
        for i in range(count):
            row, column = random.integers(0, 10, 2)
            mask = np.full(size, values[0], np.uint8)
            mask[row : row + 8, column : column + 8] = values[1]
            pixels = random.integers(0, 100, (*size, 3)) + 150 * (mask == values[1])[..., None]
            image = Image.fromarray(pixels.astype(np.uint8)).convert(mode)
            image.save(folder / "images" / f"{i:02}.png")
            Image.fromarray(mask).save(folder / "masks" / f"{i:02}.png")
        return folder

    return make
