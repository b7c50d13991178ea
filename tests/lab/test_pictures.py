"""What the pictures show is the truth, and they can be drawn for every kernel and stride."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import poolgrad
from poolgrad.lab import Settings
from poolgrad.lab.curves import draw_curves
from poolgrad.lab.model import Network, window_padding
from poolgrad.lab.passage import Passage, follow
from poolgrad.lab.routes import draw_routes

CLASSES = tuple("0123456789")
GEOMETRIES = [(2, 2), (3, 2), (3, 1), (2, 3), (1, 1), (8, 8), (1, 8), (7, 1)]


def passage(
    pool: str, kernel: int, stride: int, size: tuple[int, int] = (8, 8), channels: int = 1
) -> tuple[Passage, Settings]:
    settings = Settings.from_options({"pool": pool, "kernel": kernel, "stride": stride})
    images = np.random.default_rng(3).integers(0, 17, (20, channels, *size), np.uint8)
    torch.manual_seed(0)
    network = Network(images, len(CLASSES), settings)
    return follow(network, settings, images[0]), settings


def size_of(png: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.format == "PNG"
        pixels = np.asarray(picture.convert("L"))
    assert pixels.std() > 10  # something is drawn
    return picture.size


@pytest.mark.parametrize(("kernel", "stride"), GEOMETRIES)
def test_max_sends_the_gradient_along_its_routes(kernel: int, stride: int) -> None:
    found, _ = passage("max", kernel, stride)
    args = (found.before, kernel, stride, window_padding(kernel))
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, *args)
    assert np.array_equal(found.after, y)
    assert np.array_equal(found.returned, pullback(found.arriving))
    assert np.array_equal(found.share, pullback.mask())
    assert found.winners is not None
    rows, columns = np.moveaxis(found.winners, -1, 0)
    assert np.array_equal(found.before[rows, columns], y)
    assert not found.returned[found.share == 0].any()


@pytest.mark.parametrize(("kernel", "stride"), GEOMETRIES)
def test_avg_gives_every_input_its_share(kernel: int, stride: int) -> None:
    found, _ = passage("avg", kernel, stride)
    assert found.winners is None
    assert found.share.sum() == pytest.approx(found.after.size)
    assert found.returned.sum() == pytest.approx(found.arriving.sum(), rel=1e-3, abs=1e-5)


def test_strided_weights_are_summed_over_windows_and_channels() -> None:
    found, settings = passage("strided", 2, 2)
    assert found.winners is None
    assert found.share.shape == found.before.shape
    tiles = found.share.reshape(4, 2, 4, 2).transpose(0, 2, 1, 3).reshape(16, 4)
    assert np.array_equal(tiles, np.broadcast_to(tiles[0], tiles.shape))
    assert tiles.min() > 0
    assert size_of(draw_routes(found, settings, CLASSES)) == (1650, 1166)


@pytest.mark.parametrize(
    ("pool", "kernel", "stride"),
    [
        ("avg", 2, 2),
        ("strided", 3, 2),
        ("max", 2, 2),
        ("max", 1, 8),
        pytest.param("avg", 3, 2, marks=pytest.mark.slow),
        *(
            pytest.param("max", *geometry, marks=pytest.mark.slow)
            for geometry in GEOMETRIES
            if geometry not in [(2, 2), (1, 8)]
        ),
    ],
)
def test_routes_are_drawn(pool: str, kernel: int, stride: int) -> None:
    found, settings = passage(pool, kernel, stride)
    assert size_of(draw_routes(found, settings, CLASSES)) == (1650, 1166)


@pytest.mark.parametrize(
    ("kernel", "stride", "channels"),
    [(2, 2, 1), (3, 2, 2), (3, 2, 3), (15, 20, 1), (2, 30, 1), (20, 1, 1)],
)
def test_routes_of_large_images(kernel: int, stride: int, channels: int) -> None:
    found, settings = passage("max", kernel, stride, (40, 56), channels)
    assert size_of(draw_routes(found, settings, CLASSES)) == (1650, 1166)


def test_routes_without_any_gradient() -> None:
    found, settings = passage("max", 2, 2)
    for plane in (found.before, found.after, found.arriving, found.returned):
        plane[:] = 0
    assert size_of(draw_routes(found, settings, ("a class with a very long name " * 9,) * 10))


@pytest.mark.parametrize("epochs", [1, 2, 40])
def test_curves_are_drawn(epochs: int) -> None:
    rows: list[dict[str, Any]] = [
        {
            "epoch": epoch,
            "train_loss": 1 / epoch,
            "val_loss": 2 / epoch,
            "train_accuracy": 1 - 0.5 / epoch,
            "val_accuracy": 1 - 0.4 / epoch,
        }
        for epoch in range(1, epochs + 1)
    ]
    assert size_of(draw_curves(rows, 0.98)) == (1210, 495)
