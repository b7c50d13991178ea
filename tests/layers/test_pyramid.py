"""Spatial pyramid pooling: one output size for all inputs, made of adaptive poolings."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from layer_checks import (  # noqa: E402
    check_compiled,
    check_copies,
    check_exported,
    check_gradients,
    check_unbatched,
    distinct,
    exporters,
)
from torch.nn import functional  # noqa: E402

from poolgrad.torch.layers.pyramid import SpatialPyramidPool2d  # noqa: E402

THEIRS = {"max": functional.adaptive_max_pool2d, "avg": functional.adaptive_avg_pool2d}
each_mode = pytest.mark.parametrize("mode", THEIRS)


@settings(max_examples=50, deadline=None)
@given(
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    levels=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    mode=st.sampled_from(sorted(THEIRS)),
)
def test_any_size_gives_one_length(height: int, width: int, levels: list[int], mode: str) -> None:
    x = distinct(2, 3, height, width)
    layer = SpatialPyramidPool2d(levels, mode)
    y = layer(x)
    assert y.shape == (2, 3 * sum(level**2 for level in levels))
    assert y.shape[1] == layer.features(3)
    expected = torch.cat([THEIRS[mode](x, level).flatten(1) for level in levels], 1)
    torch.testing.assert_close(y, expected)


def test_the_order_of_the_output() -> None:
    """First the whole map of both channels, then the quarters of the first channel."""
    x = torch.arange(32.0).reshape(1, 2, 4, 4)
    y = SpatialPyramidPool2d((1, 2))(x)
    assert y.tolist() == [[15, 31, 5, 7, 13, 15, 21, 23, 29, 31]]


@each_mode
def test_gradients(mode: str) -> None:
    check_gradients(SpatialPyramidPool2d((1, 2, 3), mode), distinct(2, 2, 4, 5))


@each_mode
def test_copies_compiler_and_unbatched_maps(mode: str) -> None:
    x = distinct(2, 3, 7, 5).float()
    check_copies(lambda: SpatialPyramidPool2d((1, 3), mode), x)
    check_compiled(SpatialPyramidPool2d((1, 3), mode), x)
    check_unbatched(SpatialPyramidPool2d((1, 3), mode), x)


@pytest.mark.parametrize("size", [(8, 12), (7, 9), (3, 1)], ids=str)
@each_mode
@exporters
def test_exported(mode: str, size: tuple[int, int], dynamo: bool) -> None:
    """ONNX has no adaptive pooling: the file has slices, where bins overlap, too."""
    check_exported(SpatialPyramidPool2d((1, 2, 4), mode), distinct(2, 3, *size).float(), dynamo)


def test_bad_arguments() -> None:
    for value in (3, "124", None):
        with pytest.raises(TypeError, match=r"^levels must be a sequence of integers, got"):
            SpatialPyramidPool2d(value)
    for value in ((1.5,), (True,), ("1",), (None,)):
        with pytest.raises(TypeError, match=r"^levels must be an integer, got"):
            SpatialPyramidPool2d(value)
    with pytest.raises(ValueError, match=r"^levels must hold at least one level"):
        SpatialPyramidPool2d(())
    with pytest.raises(ValueError, match=r"^levels must be positive, got 0"):
        SpatialPyramidPool2d((1, 0))
    for value in ("mean", None, 1):
        with pytest.raises(ValueError, match=r"^mode must be one of 'max', 'avg', got"):
            SpatialPyramidPool2d(mode=value)
    with pytest.raises(ValueError, match=r"^x must have the shape \(N, C, H, W\) or"):
        SpatialPyramidPool2d()(torch.ones(4, 4))
    with pytest.raises(ValueError, match=r"^x must have at least one channel, row and column"):
        SpatialPyramidPool2d()(torch.ones(1, 2, 0, 4))
