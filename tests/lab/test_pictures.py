"""What the pictures show is the truth, and they can be drawn for every kernel and stride."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import poolgrad
from poolgrad.lab import Settings
from poolgrad.lab.curves import draw_curves
from poolgrad.lab.model import Network
from poolgrad.lab.plotting import add_frame, show_part, to_png
from poolgrad.lab.pools import DOWNSAMPLINGS, NAMES, window_padding
from poolgrad.lab.routes import _View, draw_routes
from poolgrad.lab.trace import Trace, follow

CLASSES = tuple("0123456789")
GEOMETRIES = [(2, 2), (3, 2), (3, 1), (2, 3), (1, 1), (8, 8), (1, 8), (7, 1)]


def trace(
    pool: str, kernel: int, stride: int, size: tuple[int, int] = (8, 8), channels: int = 1
) -> tuple[Trace, Settings]:
    options = {"data": "images.npz", "pool": pool, "kernel": kernel, "stride": stride}
    settings = Settings.from_options(options)
    images = np.random.default_rng(3).integers(0, 17, (20, channels, *size), np.uint8)
    torch.manual_seed(0)
    network = Network(images, len(CLASSES), settings)
    return follow(network, settings, images[0]), settings


def size_of(png: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.format == "PNG"
        pixels = np.asarray(picture.convert("L"))
    assert pixels.std() > 10  # something is drawn
    for margin in (pixels[:3], pixels[-3:], pixels[:, :3], pixels[:, -3:]):
        assert (margin == 255).all()  # and nothing is cut off
    return picture.size


@pytest.mark.parametrize(("kernel", "stride"), GEOMETRIES)
def test_max_sends_the_gradient_along_its_routes(kernel: int, stride: int) -> None:
    found, _ = trace("max", kernel, stride)
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
    found, _ = trace("avg", kernel, stride)
    assert found.winners is None
    assert found.share.sum() == pytest.approx(found.after.size)
    assert found.returned.sum() == pytest.approx(found.arriving.sum(), rel=1e-3, abs=1e-5)


def test_strided_weights_are_summed_over_windows_and_channels() -> None:
    found, settings = trace("strided", 2, 2)
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
    found, settings = trace(pool, kernel, stride)
    assert size_of(draw_routes(found, settings, CLASSES)) == (1650, 1166)


@pytest.mark.parametrize("pool", [n for n in NAMES if n not in ("max", "avg", "strided")])
def test_every_downsampling_is_drawn_with_its_windows(pool: str) -> None:
    found, settings = trace(pool, 2, 2, (12, 12))
    kernel, stride, padding = DOWNSAMPLINGS[pool].windows(2, 2)
    assert found.winners is None
    assert found.share.shape == found.before.shape
    assert found.share.any()
    if pool == "none":
        assert found.after.shape == found.before.shape
        assert (found.share == 1).all()
    else:
        assert found.after.shape == (6, 6)
    # No output depends on an input outside its windows.
    covered = np.zeros(found.before.shape, bool)
    for i, j in np.ndindex(found.after.shape):
        rows, columns = (
            slice(max(k * stride - padding, 0), k * stride - padding + kernel) for k in (i, j)
        )
        covered[rows, columns] = True
    assert not found.share[~covered].any()
    if pool in ("aps", "blur", "none"):
        assert size_of(draw_routes(found, settings, CLASSES)) == (1650, 1166)


@pytest.mark.parametrize(
    ("kernel", "stride", "channels"),
    [(2, 2, 1), (3, 2, 2), (3, 2, 3), (15, 20, 1), (2, 30, 1), (20, 1, 1)],
)
def test_routes_of_large_images(kernel: int, stride: int, channels: int) -> None:
    found, settings = trace("max", kernel, stride, (40, 56), channels)
    assert size_of(draw_routes(found, settings, CLASSES)) == (1650, 1166)


@pytest.mark.parametrize("size", [(8, 8), (24, 24), (40, 11)])
@pytest.mark.parametrize(("kernel", "stride"), GEOMETRIES)
def test_every_window_that_is_drawn_is_drawn_whole(
    kernel: int, stride: int, size: tuple[int, int]
) -> None:
    found, settings = trace("max", kernel, stride, size)
    view = _View(found, settings)
    strongest = np.unravel_index(abs(found.returned * found.before).argmax(), size)
    axes = zip(view._outputs, (view._rows, view._columns), size, strongest, strict=True)
    for outputs, shown, extent, place in axes:
        starts = [o * stride - window_padding(kernel) for o in outputs]
        assert starts
        assert all(start in shown and start + kernel - 1 in shown for start in starts)
        assert place in shown
        assert len(shown) <= max(10, kernel) + 2 * window_padding(kernel)
        if extent <= 10:
            assert {*range(extent)} <= {*shown}
    assert all(i in view._outputs[0] and j in view._outputs[1] for i, j in view._framed)
    assert found.winners is not None
    for i in view._outputs[0]:
        for j in view._outputs[1]:
            row, column = found.winners[i, j]
            assert row in view._rows and column in view._columns  # noqa: PT018 - one point


def test_a_frame_at_the_border_of_a_panel_is_as_wide_as_elsewhere() -> None:
    figure = Figure(figsize=(4, 4), dpi=110)
    axes = figure.add_subplot()
    axes.imshow(np.zeros((4, 4)), cmap="gray_r", vmin=0, vmax=1)
    add_frame(axes, (0, 0), (4, 2), "#0000ff", 8)
    show_part(axes, range(4), range(4))
    with Image.open(io.BytesIO(to_png(figure))) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    middle = pixels[pixels.shape[0] // 2 + 25]  # of one row, away from the lines across
    blue = (middle[:, 2] > 200) & (middle[:, 0] < 60)
    edges = np.flatnonzero(np.diff(blue.astype(int)))
    left, right = edges[1] - edges[0], edges[3] - edges[2]
    assert abs(left - 8 * 110 / 72) <= 1
    assert abs(right - left) <= 1


def test_padding_is_hatched_and_explained() -> None:
    padded, inner = (_View(*trace("max", 3, 2, size)) for size in ((8, 8), (40, 40)))
    assert padded._rows == range(-1, 8)
    assert "hatched: padding" in padded.legend()
    inner._outputs = (range(3, 6), range(3, 6))
    inner._rows = inner._columns = range(5, 12)
    assert "padding" not in inner.legend()


def test_a_part_at_the_border_with_every_remark_of_the_legend() -> None:
    found, settings = trace("max", 3, 2, (24, 24))
    found.returned[:] = 0
    found.returned[0, 3] = found.before[0, 3] = 1
    legend = _View(found, settings).legend()
    for remark in ("blue", "orange", "lines", "hatched", "frame"):
        assert f"{remark}" in legend
    assert size_of(draw_routes(found, settings, CLASSES)) == (1650, 1166)


def test_routes_without_any_gradient() -> None:
    found, settings = trace("max", 2, 2)
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
