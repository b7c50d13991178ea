"""DataArrays keep dimensions, names, attributes, and coordinates as `DataArray.coarsen` does."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import poolgrad

xr = pytest.importorskip("xarray")


def temperature() -> Any:
    """Two times, six rows and eight columns, with coordinates of many kinds."""
    rng = np.random.default_rng(0)
    return xr.DataArray(
        rng.standard_normal((2, 6, 8)),
        dims=("time", "y", "x"),
        coords={
            "time": np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]"),
            "x": np.arange(8.0) * 10,
            "y": np.arange("2020-01-01", "2020-01-07", dtype="datetime64[D]").astype("M8[ns]"),
            "latitude": (("y", "x"), rng.standard_normal((6, 8))),
            "height": 2.0,
            "season": ("time", ["winter", "summer"]),
        },
        attrs={"units": "K"},
        name="temperature",
    )


@pytest.mark.parametrize("kernel", [2, (2, 4), (3, 1), (4, 3)])
def test_windows_that_tile_give_what_coarsen_gives(kernel: Any) -> None:
    x = temperature()
    rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
    expected = x.coarsen(y=rows, x=columns, boundary="trim").max()
    xr.testing.assert_identical(poolgrad.max_pool2d(x, kernel), expected)


def test_of_other_windows_the_pooled_coordinates_are_dropped() -> None:
    x = temperature()
    others: list[dict[str, Any]] = [
        {"stride": 1}, {"padding": 1}, {"dilation": 2}, {"ceil_mode": True}, {"padding": "same"}
    ]  # fmt: skip
    for given in others:
        y = poolgrad.max_pool2d(x, 2, **given)
        assert y.dims == x.dims
        assert set(y.coords) == {"time", "height", "season"}
        np.testing.assert_array_equal(y.data, poolgrad.max_pool2d(x.data, 2, **given))


def test_each_axis_is_judged_alone() -> None:
    y = poolgrad.max_pool2d(temperature(), 2, stride=(2, 1))
    assert "y" in y.coords
    assert not {"x", "latitude"} & set(y.coords)


def test_words_along_a_pooled_axis_are_dropped() -> None:
    x = xr.DataArray(np.arange(4.0)[None], dims=("c", "x"), coords={"x": list("abcd"), "c": ["r"]})
    y = poolgrad.avg_pool1d(x, 2)
    assert set(y.coords) == {"c"}
    assert y.data.tolist() == [[0.5, 2.5]]


def test_global_and_adaptive_poolings() -> None:
    x = temperature()
    y = poolgrad.global_avg_pool(x)
    assert (y.dims, set(y.coords), y.attrs) == (("time", "y"), {"time", "y", "height", "season"}, x.attrs)  # fmt: skip  # noqa: E501
    assert poolgrad.global_avg_pool(x, keepdims=True).dims == x.dims
    assert set(poolgrad.adaptive_max_pool2d(x, 2).coords) == {"time", "height", "season"}


@pytest.mark.parametrize("kind", ["DataArray", "Variable"])
def test_named_dimensions_are_pooled_in_place(kind: str) -> None:
    x = temperature() if kind == "DataArray" else temperature().variable
    y, indices = poolgrad.max_pool2d(x, (2, 1), dim=("x", "time"), return_indices=True)
    last = x.transpose("y", "x", "time")
    expected, positions = poolgrad.max_pool2d(last, (2, 1), return_indices=True)
    assert y.dims == indices.dims == x.dims
    xr.testing.assert_identical(y, expected.transpose(*x.dims))
    xr.testing.assert_identical(indices, positions.transpose(*x.dims))
    back = poolgrad.max_unpool2d(y, indices, (2, 1), dim=("x", "time"))
    assert (back.dims, back.shape) == (x.dims, x.shape)
    gap = poolgrad.global_avg_pool(x, dim=["time", "x"])
    assert gap.dims == ("y",)
    np.testing.assert_allclose(gap.data, x.data.mean((0, 2)))
    lip = poolgrad.lip_pool1d(x, x.transpose("x", "y", "time"), 2, dim="y")
    np.testing.assert_allclose(lip.data, poolgrad.soft_pool2d(x.data, (2, 1)))


def test_the_pullback_needs_named_dimensions_last() -> None:
    x = temperature()
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 2, dim=("y", "x"))
    assert pullback(y).shape == x.shape
    with pytest.raises(ValueError, match="vjp needs the dimensions in dim last and in this order"):
        poolgrad.vjp(poolgrad.max_pool2d, x, 2, dim=("x", "y"))


@pytest.mark.parametrize(
    ("dim", "words"),
    [
        ("y", "dim must be 2 different names of dimensions, got 'y'"),
        (("y", "y"), "dim must be 2 different names"),
        (("y", "z"), r"dim must be among the dimensions of x, \('time', 'y', 'x'\)"),
    ],
)
def test_wrong_names(dim: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        poolgrad.max_pool2d(temperature(), 2, dim=dim)
    with pytest.raises(ValueError, match="channels_last must be False if dim is set"):
        poolgrad.max_pool2d(temperature(), 2, dim=("y", "x"), channels_last=True)
    with pytest.raises(TypeError, match="dim is accepted only if x is an xarray object"):
        poolgrad.max_pool2d(temperature().data, 2, dim=dim)


def test_indices_unpooling_and_channels_last() -> None:
    x = temperature()
    y, indices = poolgrad.max_pool2d(x, 2, return_indices=True)
    xr.testing.assert_equal(indices.coords.to_dataset(), y.coords.to_dataset())
    back = poolgrad.max_unpool2d(y, indices, 2)
    assert back.dims == x.dims
    assert set(back.coords) == {"time", "height", "season"}
    np.testing.assert_array_equal(back.max(("x", "y")), x.max(("x", "y")))
    last = poolgrad.max_pool1d(x, 3, channels_last=True)
    xr.testing.assert_identical(last, x.coarsen(y=3, boundary="trim").max())


def test_operands_are_matched_by_the_names_of_their_dimensions() -> None:
    x = temperature()
    logits = xr.zeros_like(x)
    logits[0, 0, 0] = 5
    expected = poolgrad.lip_pool2d(x.data, logits.data, 2)
    y = poolgrad.lip_pool2d(x, logits.transpose("x", "time", "y"), 2)
    np.testing.assert_array_equal(y.data, expected)
    powers = xr.DataArray([2.0, 3.0], dims="time")
    expected = poolgrad.lp_pool2d(x.data, powers.data, 2)
    np.testing.assert_array_equal(poolgrad.lp_pool2d(x, powers, 2).data, expected)


@pytest.mark.parametrize("function", [poolgrad.max_pool2d, poolgrad.range_pool2d])
def test_the_pullback_is_that_of_the_array(function: Any) -> None:
    x = temperature()
    y, pullback = poolgrad.vjp(function, x, 2)
    xr.testing.assert_identical(y, function(x, 2))
    _, expected = poolgrad.vjp(function, x.data, 2)
    gradient = pullback(xr.ones_like(y))
    assert type(gradient) is np.ndarray
    np.testing.assert_array_equal(gradient, expected(np.ones(y.shape)))


def test_chunks_stay_lazy_and_tensors_are_refused_a_pullback() -> None:
    dask = pytest.importorskip("dask")
    x = temperature().chunk({"x": 4})
    y = poolgrad.range_pool2d(x, 2)
    assert dask.is_dask_collection(y.data)
    xr.testing.assert_identical(y.compute(), poolgrad.range_pool2d(x.compute(), 2))


def test_variables() -> None:
    y = poolgrad.max_pool2d(temperature().variable, 2)
    xr.testing.assert_identical(y, poolgrad.max_pool2d(temperature(), 2).variable)


def test_errors_name_the_argument_and_datasets_are_refused() -> None:
    with pytest.raises(ValueError, match="kernel_size must be"):
        poolgrad.max_pool2d(temperature(), 0)
    with pytest.raises(TypeError, match=r"xarray\.Dataset"):
        poolgrad.max_pool2d(temperature().to_dataset(), 2)


def test_xarray_is_not_imported_before_a_data_array_is_pooled() -> None:
    code = "import numpy, poolgrad, sys; poolgrad.max_pool1d(numpy.ones((1, 4)), 2)"
    code += "; assert 'xarray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
