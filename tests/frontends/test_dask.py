"""Dask arrays: lazy, computed chunk by chunk, equal to NumPy for any chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adversarial_arrays import FINITE, LAYOUTS, VALUES
from expected_errors import attempt, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_python
from profiles import examples
from robustness.calls import FLOATS, INTEGERS, OF_INTEGERS
from strategies import cases

pytest.importorskip("jax", reason="JAX is not installed")
dask = pytest.importorskip("dask", reason="Dask is not installed")

import dask.array as da  # noqa: E402
from frontend_calls import native  # noqa: E402
from jax_calls import CLOSE, WEIGHTED, known  # noqa: E402

import poolgrad  # noqa: E402

KINDS = (
    "max", "relu_max", "min", "median", "max_unpool", "avg", "lp", "log_mean_exp", "soft",
    "expected", "mixed", "adaptive_max", "adaptive_avg", "global_max", "global_lp",
)  # fmt: skip
# Chunks that are contiguous once the kernels can read them, on which the order of sums depends.
_HELD = ("contiguous", "read-only", "byte-swapped", "record-field", "unaligned")
HELD = [layout for layout in LAYOUTS if layout.id in _HELD]


@pytest.fixture(autouse=True)
def _in_this_thread() -> Any:
    with dask.config.set(scheduler="synchronous"):
        yield


@st.composite
def cut(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Chunks of an axis."""
    bounds = sorted(draw(st.sets(st.integers(1, size))) | {size})
    return tuple(int(n) for n in np.diff([0, *bounds]))


def _both(function: Any, x: Any, kwargs: dict[str, Any], args: Any, gradient: Any) -> Any:
    """The output and, of floats, the gradients of the input and of learned arguments."""
    if x.dtype.kind not in "fV":
        return (function(x, *args, **kwargs),)
    y, pullback = poolgrad.vjp(function, x, *args, **kwargs)
    gy = gradient(y.shape).astype(y.dtype)
    parameters = pullback.parameters(gy) if hasattr(pullback, "parameters") else {}
    return (y, pullback(gy), *parameters.values())


@pytest.mark.hypothesis
@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_numpy(kind: str) -> None:
    plain = kind.removeprefix("adaptive_").removeprefix("global_")
    values = FINITE if plain in WEIGHTED else VALUES
    dtypes = FLOATS + INTEGERS if plain in OF_INTEGERS else FLOATS

    @settings(max_examples=examples(10))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        case = data.draw(cases(kind, values=values, dtypes=dtypes))
        function = getattr(poolgrad, case.fun)
        x = np.ascontiguousarray(native(case.x))  # as chunks are
        chunks = tuple(data.draw(cut(n)) for n in x.shape)
        call = case.kwargs, case.args, case.gradient
        held = data.draw(st.sampled_from(HELD)).make
        lazy = da.from_array(x, chunks=chunks)
        lazy = lazy.map_blocks(lambda c: held(c) if c.ndim else c, dtype=x.dtype, meta=x[:0])
        ours = attempt(lambda: _both(function, lazy, *call))
        theirs = attempt(lambda: _both(function, x, *call))
        if isinstance(theirs, Exception):
            assert type(ours) is type(theirs)
            assert str(ours) == str(theirs)
            return
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert isinstance(a, da.Array)
            found = a.compute()
            assert (a.shape, a.dtype) == (found.shape, found.dtype) == (b.shape, b.dtype)
            # Learned arguments: a sum over all outputs in float64. Powers of whole numbers are
            # products, if all channels of a chunk have the same. One channel alone lies in memory
            # as if there were none.
            alone = case.kwargs.get("channels_last") and 1 in chunks[-1] and plain in WEIGHTED
            rounded = k == 2 or alone or np.size(case.kwargs.get("norm_type")) > 1
            tolerance = CLOSE.get(b.dtype.name, 0.0) if rounded else 0.0
            np.testing.assert_allclose(known(found), known(b), tolerance, tolerance)

    check()


@pytest.mark.parametrize("ties", ["first", "split"])
def test_winners_are_where_numpy_finds_them(ties: str) -> None:
    x = np.random.default_rng(0).integers(0, 5, (2, 17, 13)).astype(np.float32)
    lazy = da.from_array(x, chunks=(1, 4, 5))
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("max_pool2d", (3, 2, 1), {"dilation": 2}),
        ("min_pool2d", (2,), {"ceil_mode": True}),
        ("adaptive_max_pool2d", (5,), {}),
        ("max_pool1d", (4, 3), {"padding": "same"}),
    ]
    for name, args, kwargs in calls:
        function = getattr(poolgrad, name)
        expected = function(x, *args, ties=ties, return_indices=True, **kwargs)
        found = function(lazy, *args, ties=ties, return_indices=True, **kwargs)
        for a, b in zip(found, expected, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_array_equal(a.compute(), b)


@pytest.mark.parametrize("ties", ["first", "split", "zero"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("sizes", "bins", "chunks"),
    [((40, 37), (2, 3), (11, 9)), ((16, 50), (1, 3), (7, 13)), ((9, 10), (4, 7), (5, 4))],
)
def test_bins_of_different_sizes(
    sizes: tuple[int, int], bins: tuple[int, int], chunks: tuple[int, int], last: bool, ties: str
) -> None:
    """The larger have more places, and more than 255 of them need a wider type."""
    x = np.random.default_rng(0).integers(0, 9, (2, *sizes, 2) if last else (2, *sizes))
    lazy = da.from_array(x.astype(np.float16), chunks=(1, *chunks, 1) if last else (1, *chunks))
    answers = []
    for array in (lazy, x.astype(np.float16)):
        pool, how = poolgrad.adaptive_max_pool2d, {"ties": ties, "channels_last": last}
        y, pullback = poolgrad.vjp(pool, array, bins, **how)
        gy = np.linspace(-1, 1, y.size).reshape(y.shape).astype(np.float16)
        answers.append((np.asarray(y), np.asarray(pullback(gy))))
    for a, b in zip(*answers, strict=True):
        np.testing.assert_array_equal(a, b)


def test_windows_that_the_end_cuts_off() -> None:
    """By less than a stride, which is more than the input has."""
    x = np.arange(2.0)
    for args in ((4, 3), (3, 5), (5, 4)):
        expected = poolgrad.max_pool1d(x, *args, ceil_mode=True)
        found = poolgrad.max_pool1d(da.from_array(x, chunks=1), *args, ceil_mode=True)
        np.testing.assert_array_equal(found.compute(), expected)


@pytest.mark.parametrize("name", ["avg", "soft", "mixed"])
@pytest.mark.parametrize(
    ("sizes", "args", "chunks"),
    [
        ((40,), (3, 1, 1), 1),
        ((40,), (5,), 4),
        ((200,), (40, 3), 1),
        ((300,), (100, 1, 45), 10),
        ((23,), (2, 3), 12),  # inputs that no window holds
        ((13, 16), (3, 1, 1), 1),
        ((13, 16), (5, 1, 2), 4),
        ((13, 16), (11, 2), 4),
        ((10, 150), ((8, 100), 1), (4, 10)),
        ((100, 20), ((80, 5), 1), (5, 20)),
        ((4, 6, 40), (2, 1), (4, 6, 1)),
        ((4, 6, 30), (3, 2, 1), (4, 6, 2)),
        ((12, 4, 30), ((7, 3, 3), 1), (12, 4, 3)),
        ((4, 20, 20), ((1, 9, 9), (4, 1, 1)), (2, 20, 20)),
    ],
)
def test_sums_are_rounded_as_in_one_piece(
    name: str, sizes: tuple[int, ...], args: Any, chunks: Any
) -> None:
    """In windows that share inputs or none, wide and narrow: what a chunk holds decides nothing."""
    x = np.random.default_rng(0).standard_normal(sizes, np.float32)
    function = getattr(poolgrad, f"{name}_pool{len(sizes)}d")
    y, pullback = poolgrad.vjp(function, x, *args)
    gy = np.random.default_rng(1).standard_normal(y.shape, np.float32)
    found, back = poolgrad.vjp(function, da.from_array(x, chunks=chunks), *args)
    np.testing.assert_array_equal(found.compute(), y)
    gradient = back(gy)
    np.testing.assert_array_equal(gradient.compute(), pullback(gy))
    piece = gradient.blocks[(0,) * len(sizes)].compute()
    assert piece.base is None or piece.base.nbytes <= 2 * piece.nbytes


def test_windows_of_padding_alone() -> None:
    """As many as NumPy makes, though none holds an input."""
    x = np.ones(1, np.float32)
    for ceil_mode in (False, True):
        expected = poolgrad.max_pool1d(x, 1, 3, 2, ceil_mode=ceil_mode)
        found = poolgrad.max_pool1d(da.from_array(x), 1, 3, 2, ceil_mode=ceil_mode)
        np.testing.assert_array_equal(found.compute(), expected)


class Chunks:
    """An array that counts how often each part of it is read."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype, self.ndim = shape, np.dtype(np.float32), len(shape)
        self.read: dict[Any, int] = {}

    def __getitem__(self, index: Any) -> np.ndarray:
        self.read[str(index)] = self.read.get(str(index), 0) + 1
        sizes = [len(range(*s.indices(n))) for s, n in zip(index, self.shape, strict=True)]
        return np.ones(sizes, self.dtype)


def test_nothing_is_read_until_it_is_asked_for_and_then_once() -> None:
    source = Chunks((64, 64))
    x = da.from_array(source, chunks=16, asarray=False)
    source.read.clear()  # Dask asks for the kind of array that it is
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 3, 1, 1)
    gradient = pullback(y)
    assert not source.read
    dask.compute(y, gradient)
    assert len(source.read) == 16
    assert set(source.read.values()) == {1}


def test_only_strips_cross_a_border() -> None:
    """Of a window of five, two inputs on each side; with no overlap, nothing."""
    x = da.ones((64, 64), chunks=16)
    graph = dict(poolgrad.max_pool2d(x, 5, 1, 2).dask)
    sizes = [a.shape for a in dask.get(graph, [key for key in graph if "part" in key[0]])]
    assert sizes
    # A chunk goes with the windows that begin in it: of itself all but what the chunk before has.
    assert all(16 in size or max(size) <= 14 for size in sizes)
    assert sum(a * b for a, b in sizes) < 2 * 64 * 64
    halves = poolgrad.max_pool2d(x, 2)
    assert not [key for key in dict(halves.dask) if "part" in key[0]]
    assert halves.chunks == ((8,) * 4,) * 2


def test_chunks_that_do_not_divide_by_the_stride() -> None:
    x = np.random.default_rng(0).random((23, 31))
    lazy = da.from_array(x, chunks=((5, 1, 7, 10), (3, 11, 17)))
    for call in ((2,), (3, 2), (4, 3, 1), (2, 5)):
        y = poolgrad.max_pool2d(lazy, *call)
        np.testing.assert_array_equal(y.compute(), poolgrad.max_pool2d(x, *call))
        assert max(len(c) for c in y.chunks) > 1  # nothing was brought together


def test_chunks_without_anything() -> None:
    x = np.random.default_rng(0).random((2, 3, 11, 13))
    lazy = da.from_array(x, chunks=((2,), (0, 3), (0, 5, 0, 6), (13, 0)))
    for name, args in (("max", (3, 2)), ("adaptive_avg", ((4, 5),)), ("global_max", ())):
        function = getattr(poolgrad, f"{name}_pool" + "2d" * (name != "global_max"))
        y, pullback = poolgrad.vjp(function, lazy, *args)
        expected, back = poolgrad.vjp(function, x, *args)
        np.testing.assert_allclose(y.compute(), expected, 1e-15)
        np.testing.assert_allclose(pullback(expected).compute(), back(expected), 1e-15)
    small, indices = poolgrad.max_pool2d(x, 2, return_indices=True)
    chunks = ((2,), (3,), (0, 5), (1, 0, 5))
    cut_up = (da.from_array(a, chunks=chunks) for a in (small, indices))
    values, where = cut_up
    how = {"indices": where, "kernel_size": 2, "output_size": (11, 13)}
    y, pullback = poolgrad.vjp(poolgrad.max_unpool2d, values, **how)
    expected, back = poolgrad.vjp(poolgrad.max_unpool2d, small, **how | {"indices": indices})
    np.testing.assert_array_equal(y.compute(), expected)
    np.testing.assert_array_equal(pullback(x).compute(), back(x))


def test_one_number_for_inputs_without_channels() -> None:
    x = np.random.default_rng(0).random((11, 13))
    y, pullback = poolgrad.vjp(poolgrad.lp_pool2d, da.from_array(x, chunks=4), np.array([2.5]), 2)
    expected, back = poolgrad.vjp(poolgrad.lp_pool2d, x, np.array([2.5]), 2)
    np.testing.assert_allclose(y.compute(), expected, 1e-12)
    slope = pullback.parameters(expected)["norm_type"]
    np.testing.assert_allclose(slope.compute(), back.parameters(expected)["norm_type"], 1e-9)


def test_refused() -> None:
    x = da.ones((8, 8), chunks=4)
    masked = da.ma.masked_array(x, mask=x > 2)
    with refused(TypeError, "x", "without a mask"):
        poolgrad.max_pool2d(masked, 2)
    unknown = x[x[:, 0] > 0]
    with refused(ValueError, "indices", "compute_chunk_sizes"):
        poolgrad.max_unpool2d(x, unknown.astype(int), 2)
    with refused(ValueError, "x", "compute_chunk_sizes"):
        poolgrad.max_pool2d(x[x[:, 0] > 0], 2)
    for name, kwargs in (("stochastic", {}), ("fractional_max", {"output_size": 2})):
        function = getattr(poolgrad, f"{name}_pool2d")
        with pytest.raises(TypeError, match=rf"{name} pooling does not support Dask arrays"):
            function(x, 2, **kwargs)
    with pytest.raises(TypeError, match="out is accepted only if x is a NumPy array"):
        poolgrad.max_pool2d(x, 2, out=np.empty((4, 4)))
    with refused(TypeError, "x", "complex128"):
        poolgrad.max_pool2d(x.astype(complex), 2)
    with refused(TypeError, "x", "V0"):
        poolgrad.max_pool2d(da.from_array(np.empty((8, 8), "V0"), chunks=4), 2)
    with refused(TypeError, "x", "int64"):
        poolgrad.vjp(poolgrad.max_pool2d, x.astype(int), 2)
    _, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 2)
    with refused(ValueError, "gy", "(3, 4)"):
        pullback(da.ones((3, 4)))
    with refused(TypeError, "gy", "int32"):
        pullback(da.ones((4, 4), dtype="int32"))
    unpooled = poolgrad.max_unpool2d(x, da.full((8, 8), 256), 2)
    with refused(ValueError, "indices", "256"):
        unpooled.compute()


PYRAMID = """
import runpy, sys, numpy as np, zarr, dask.array as da, poolgrad
from pathlib import Path
example = runpy.run_path({example!r})
if __name__ == "__main__":
    peaks = example["pyramid"](Path({out!r}), {side}, {kill})
    group = zarr.open({out!r}, mode="r")
    level = group["0"][:]
    for k in range(1, len(list(group))):
        mean = poolgrad.avg_pool2d(level, 2, ceil_mode=True)
        level = np.round(mean).astype("uint8")
        assert np.array_equal(group[str(k)][:], level), k
    print("levels", len(list(group)), "MiB", max(peaks) >> 20)
"""


@pytest.mark.parametrize(
    ("side", "kill"),
    [
        pytest.param(5_000, False, marks=pytest.mark.slow),
        pytest.param(20_000, True, marks=pytest.mark.nightly),
    ],
)
def test_a_pyramid_in_little_memory(tmp_path: Path, side: int, kill: bool) -> None:
    """Of up to 20,000 x 20,000 pixels, on two workers, one of which is killed."""
    example = Path(__file__).parents[2] / "examples" / "pyramid.py"
    script = tmp_path / "script.py"
    out = str(tmp_path / "image.zarr")
    script.write_text(PYRAMID.format(example=str(example), out=out, side=side, kill=kill))
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    done = run_python(code, timeout=240, PYTHONWARNINGS="ignore")
    assert done.returncode == 0, done.stderr[-3000:]
    levels, _, peak = done.stdout.rsplit("levels", 1)[1].split()
    assert int(levels) == (8 if side == 20_000 else 6)
    assert 10 < int(peak) < 1024


@pytest.mark.parametrize("form", [list, np.ndarray.tolist, memoryview, da.asarray])
def test_logits_in_every_form_that_numpy_takes(form: Any) -> None:
    x, logits = np.random.default_rng(0).random((2, 2, 8, 8))
    y, pullback = poolgrad.vjp(
        poolgrad.lip_pool2d, da.from_array(x, chunks=(1, 4, 4)), form(logits), 2
    )
    expected, of_numpy = poolgrad.vjp(poolgrad.lip_pool2d, x, logits, 2)
    assert np.array_equal(y.compute(), expected)
    assert np.array_equal(pullback(y).compute(), of_numpy(expected))
    with refused(TypeError, "logits", "Delayed"):
        poolgrad.lip_pool2d(da.from_array(x, chunks=4), dask.delayed(logits), 2)
