"""Arrays in whatever form NumPy holds them are taken by pullbacks, from pickles, and as `out`."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from adversarial_arrays import LAYOUTS
from processes import assert_runs
from robustness.calls import example
from robustness.memory import carried

import poolgrad
from poolgrad.functional import FUNCTIONS

HELD = [
    layout
    for layout in LAYOUTS
    if layout.id in ("byte-swapped", "read-only", "record-field", "reversed", "unaligned")
]
BOXES = np.array([[0, 0.0, 0.0, 3.0, 3.0], [1, 1.0, 0.0, 2.0, 3.0]])


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if "1d" not in n and "3d" not in n])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_pullbacks_from_unaligned_pickles(name: str, dtype: Any) -> None:
    shape, kwargs = example(name)
    x = np.random.default_rng(0).random(shape).astype(dtype)
    y, pullback = poolgrad.vjp(FUNCTIONS[name], x, **kwargs)
    if FUNCTIONS[name].__name__.startswith(("avg", "global_avg", "adaptive_avg")):
        return  # keeps no array
    moved = carried(pullback)
    gy = np.random.default_rng(1).integers(-4, 5, y.shape).astype(y.dtype)
    np.testing.assert_array_equal(moved(gy), pullback(gy))
    for key, value in pullback.parameters(gy).items():
        np.testing.assert_array_equal(moved.parameters(gy)[key], value)
    if hasattr(pullback, "matrix"):  # composed operators have none
        np.testing.assert_array_equal(moved.matrix().toarray(), pullback.matrix().toarray())


FORMATS = {
    "channels last": lambda x: np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1),
    "column-major": np.asfortranarray,
    "reversed": lambda x: x[..., ::-1],
}


@pytest.mark.parametrize("options", [{}, {"ties": "split"}, {"ties": "zero"}, {"routes": "packed"}])
@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if "1d" not in n and "3d" not in n])
def test_pullbacks_of_other_memory_formats_from_pickles(
    name: str, form: Any, options: dict[str, str]
) -> None:
    shape, kwargs = example(name)
    shape = (2, 3, *shape[-2:]) if "unpool" not in name and "lip" not in name else shape
    x = form(np.random.default_rng(0).integers(0, 4, shape).astype(np.float32))
    try:
        y, pullback = poolgrad.vjp(FUNCTIONS[name], x, **kwargs | options)
    except TypeError:
        pytest.skip(f"no option {options}") if options else pytest.fail("an example is wrong")
    gy = np.random.default_rng(1).integers(-4, 5, y.shape).astype(y.dtype)
    moved = pickle.loads(pickle.dumps(pullback))
    np.testing.assert_array_equal(moved(gy), pullback(gy))
    for key, value in pullback.parameters(gy).items():
        np.testing.assert_array_equal(moved.parameters(gy)[key], value)


def test_wide_routes_from_an_unaligned_pickle() -> None:
    x = np.random.default_rng(0).random((1, 40, 40))
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 20, 3)
    moved = carried(pullback)
    assert moved.routes.dtype == np.uint16
    np.testing.assert_array_equal(moved.routes, pullback.routes)
    np.testing.assert_array_equal(moved(y), pullback(y))


@pytest.mark.parametrize("pool", [poolgrad.roi_pool, poolgrad.roi_align])
@pytest.mark.parametrize("layout", HELD, ids=lambda layout: layout.id)
def test_regions(layout: Any, pool: Any) -> None:
    x = np.random.default_rng(0).random((2, 3, 5, 6))
    y, pullback = poolgrad.vjp(pool, x, BOXES, 2)
    other, same = poolgrad.vjp(pool, layout.make(x), layout.make(BOXES), 2)
    np.testing.assert_array_equal(other, y)
    gy = np.random.default_rng(1).random(y.shape)
    for held in (same, carried(same)):
        np.testing.assert_array_equal(held(layout.make(gy)), pullback(gy))


@pytest.mark.parametrize("layout", [a for a in HELD if a.id != "read-only"], ids=lambda a: a.id)
def test_out(layout: Any) -> None:
    x = np.random.default_rng(0).random((2, 3, 8, 9)).astype(np.float32)
    for pool in (poolgrad.max_pool2d, poolgrad.avg_pool2d, poolgrad.soft_pool2d):
        expected = pool(x, 2)
        out = layout.make(np.zeros_like(expected))
        assert pool(x, 2, out=out) is out
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if "1d" not in n and "3d" not in n])
def test_out_of_every_function(name: str) -> None:
    shape, kwargs = example(name)
    x = np.random.default_rng(0).random(shape)
    expected = FUNCTIONS[name](x, **kwargs)
    for out in (np.zeros_like(expected), np.zeros_like(expected)[::-1]):
        assert FUNCTIONS[name](x, **kwargs, out=out) is out
        np.testing.assert_array_equal(out, expected)
    with pytest.raises(ValueError, match="out must have shape"):
        FUNCTIONS[name](x, **kwargs, out=np.zeros((*expected.shape, 1)))


SWAPPED = """
import pickle
import ml_dtypes, numpy as np, poolgrad

bfloat16 = np.dtype(ml_dtypes.bfloat16)
samples = np.full((1, 2, 2), 0.25, bfloat16).astype(bfloat16.newbyteorder(">"))
x = np.arange(72).reshape(2, 6, 6).astype(bfloat16)
pull = poolgrad.vjp(poolgrad.fractional_max_pool2d, x, 2, 3, _random_samples=samples)[1]
pickle.loads(pickle.dumps(pull))
assert bfloat16.isnative and np.ones(1, bfloat16) + 1 == 2
"""


def test_no_byte_swapped_bfloat16_is_pickled() -> None:
    """Reading a pickle of one makes the dtype bfloat16 of the whole process byte-swapped."""
    pytest.importorskip("ml_dtypes")
    assert_runs(SWAPPED)
