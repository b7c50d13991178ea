"""Every operator in every dtype: small floats are rounded once, integers never."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from expected_errors import refused
from frontend_calls import DASK, NUMPY, TORCH, Front, as_array, as_tensor, torch

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

from adversarial_arrays import LAYOUTS, Layout  # noqa: E402
from robustness.calls import FLOATS, INTEGERS, OF_INTEGERS, example  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad.functional import FUNCTIONS  # noqa: E402

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HALVES = [np.dtype(np.float16), BFLOAT16]
INF = np.inf
needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
halves = pytest.mark.parametrize("dtype", HALVES, ids=str)
each_float = pytest.mark.parametrize("dtype", [np.dtype(d) for d in FLOATS], ids=str)
each_integer = pytest.mark.parametrize("dtype", [np.dtype(d) for d in INTEGERS], ids=str)
DRAWN = [name for name in FUNCTIONS if name.startswith(("stochastic", "fractional"))]
each_function = pytest.mark.parametrize("name", FUNCTIONS)
OPERATOR = {n: re.sub(r"^(adaptive|global)_|_pool(\dd)?$|\dd$", "", n) for n in FUNCTIONS}
SELECTING = ("max", "relu_max", "min", "median", "stochastic", "fractional_max", "max_unpool")


def numbers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    x = 3 * np.random.default_rng(list(shape)).standard_normal(shape)
    if np.dtype(dtype).kind in "iub":
        x = np.abs(np.round(20 * x)) % 100
    return x.astype(dtype)


def wide(array: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a signalling NaN among all the numbers
        return array.astype(np.float64)


def within(dtype: Any, scale: np.ndarray) -> dict[str, float]:
    """One rounding of a small dtype; four of the sums', relative to what was added up."""
    sums = 4 * (2.0**-52 if dtype == np.float64 else 2.0**-23)
    ulp = float(ml_dtypes.finfo(dtype).eps)
    return {"rtol": max(sums, 1.01 * ulp), "atol": sums * float(np.abs(wide(scale)).max())}


# Small floats: sums in float32


@halves
def test_the_mean_of_4096_ones_is_one(front: Front, dtype: Any) -> None:
    x = np.ones((1, 1, 64, 64), dtype)
    for fun, args in (("avg_pool2d", (64,)), ("global_avg_pool", ()), ("soft_pool2d", (64,)),
                      ("log_mean_exp_pool2d", (64,)), ("adaptive_avg_pool2d", (1,))):  # fmt: skip
        y = front.run(fun, x, *args)
        assert (y.dtype, y.ravel().tolist()) == (dtype, [1]), fun
    assert front.run("lp_pool2d", x, 2, 64).item() == 64
    assert front.run("stochastic_pool2d", x, 64, training=False).item() == 1
    assert front.run("mixed_pool2d", x, 64, alpha=0.5).item() == 1


@halves
def test_an_input_that_wins_10000_windows_gets_10000(front: Front, dtype: Any) -> None:
    x = np.zeros((1, 1, 199, 199), dtype)
    x[..., 99, 99] = 1
    for fun in ("max_pool2d", "mixed_pool2d"):
        extras = {"alpha": 1.0} if fun == "mixed_pool2d" else {}
        y, pullback = front.vjp(fun, x, 100, 1, **extras)
        assert y.size == 10_000
        assert pullback(np.ones_like(y))[0, 0, 99, 99] == np.array(10_000).astype(dtype), fun
    low, pullback = front.vjp("min_pool2d", -x, 100, 1, ties="split")
    assert pullback(np.ones_like(low))[0, 0, 99, 99] == np.array(10_000).astype(dtype)


@halves
def test_10000_shares_of_a_gradient_do_not_vanish(front: Front, dtype: Any) -> None:
    """The middle lies in 10,000 windows of 10,000 inputs: one in the end, 1e-4 at a time."""
    x = np.zeros((1, 1, 199, 199), dtype)
    for fun, extras in (("avg_pool2d", {}), ("soft_pool2d", {}), ("log_mean_exp_pool2d", {}),
                        ("stochastic_pool2d", {"training": False})):  # fmt: skip
        y, pullback = front.vjp(fun, x, 100, 1, **extras)
        assert pullback(np.ones_like(y))[0, 0, 99, 99] == 1, fun


@halves
def test_parameters_gradients_are_summed_in_float32(dtype: Any) -> None:
    x = np.tile(np.array([0, 1], dtype), (1, 1, 10_000))
    y, pullback = poolgrad.vjp(poolgrad.mixed_pool1d, x, 2)
    slope = pullback.parameters(np.ones_like(y))["alpha"]
    assert slope.dtype == np.float32
    assert slope == 5_000  # each window: a maximum of 1, a mean of a half


@halves
def test_only_the_end_is_rounded(front: Front, dtype: Any) -> None:
    """1 + 2**-9 is no bfloat16; the mean of 512 ones and a three is, once rounded, 1."""
    x = np.ones((1, 512), dtype)
    x[0, 0] = 2 + float(ml_dtypes.finfo(dtype).eps) * 2
    exact = float(wide(x).mean())
    assert wide(front.run("avg_pool1d", x, 512)).item() == wide(np.array(exact).astype(dtype))


@halves
def test_halves_round_to_even(front: Front, dtype: Any) -> None:
    ulp = float(ml_dtypes.finfo(dtype).eps)
    x = np.array([1, 1 + ulp, 1 + ulp, 1 + 2 * ulp], dtype)
    assert wide(front.run("avg_pool1d", x[None], 2)).tolist() == [[1, 1 + 2 * ulp]]


@halves
def test_the_smallest_and_the_largest(front: Front, dtype: Any) -> None:
    info = ml_dtypes.finfo(dtype)
    least, most = float(info.smallest_subnormal), float(info.max)
    x = np.array([[least, 3 * least, most, most, -most, -most]], dtype)
    average = wide(front.run("avg_pool1d", x, 2)).tolist()
    if dtype == BFLOAT16:  # whose largest is float32's, too: twice that is infinity
        assert average == [[2 * least, INF, -INF]]
    else:
        assert average == [[2 * least, most, -most]]
    assert wide(front.run("max_pool1d", x, 2)).tolist() == [[3 * least, most, -most]]
    norm = front.run("lp_pool1d", x, 1.0, 2)  # twice the largest is no number of this dtype
    assert wide(norm).tolist() == [[4 * least, INF, INF]]
    gradient = front.vjp("avg_pool1d", x, 1, 2)[1](np.full((1, 3), most, dtype))
    assert wide(gradient).tolist() == [[most, 0, most, 0, most, 0]]
    twice = front.vjp("max_pool1d", np.array([[0, 9, 1]], dtype), 2, 1)
    assert wide(twice[1](np.full((1, 2), most, dtype))).tolist() == [[0, INF, 0]]


@halves
def test_specials_pass_through(front: Front, dtype: Any) -> None:
    x = np.array([[1, np.nan, INF, -INF, INF, 2, -INF, -3]], dtype)
    at = {"max": [np.nan, INF, INF, -3], "min": [np.nan, -INF, 2, -INF]}
    at |= {"median": at["min"], "avg": [np.nan, np.nan, INF, -INF]}
    for kind, expected in at.items():
        np.testing.assert_array_equal(wide(front.run(f"{kind}_pool1d", x, 2)), [expected])


@halves
def test_every_number_comes_back(front: Front, dtype: Any) -> None:
    """All 65,536 of them, NaN as NaN."""
    x = np.arange(65_536).astype(np.uint16).view(dtype).reshape(16, 4096)
    for kind in ("max", "min", "median", "avg", "soft"):
        y = front.run(f"{kind}_pool1d", x, 1)
        known = ~np.isnan(wide(x)) & (np.isfinite(wide(x)) | (kind != "soft"))
        np.testing.assert_array_equal(np.isnan(wide(y)), np.isnan(wide(x)), err_msg=kind)
        np.testing.assert_array_equal(wide(y)[known], wide(x)[known], err_msg=kind)
        if kind in ("max", "min", "median"):  # -0 is -0
            np.testing.assert_array_equal(y.view("u2")[known], x.view("u2")[known], err_msg=kind)


# Which dtypes


@pytest.mark.slow_in("jax", "dask")
@each_function
@each_float
@pytest.mark.parametrize("channels_last", [False, True])
def test_floats_and_their_gradients_keep_their_dtype(
    front: Front, name: str, dtype: Any, channels_last: bool
) -> None:
    shape, kwargs = example(name, channels_last)
    x = numbers(shape, dtype)
    if front is DASK and name in DRAWN:
        with pytest.raises(TypeError, match="pooling does not support Dask arrays"):
            front.run(name, x, **kwargs)
        return
    y, pullback = front.vjp(name, x, **kwargs)
    gy = numbers(y.shape, dtype)
    gx = pullback(gy)
    assert (y.dtype, gx.dtype, gx.shape) == (dtype, dtype, shape)
    kind = np.float64 if dtype == np.float64 else np.float32
    for parameter, gradient in pullback.parameters(gy).items():
        assert gradient.shape == (shape if parameter == "logits" else (3,))
        assert parameter == "logits" or gradient.dtype == kind
    exact, back = front.vjp(name, wide(x), **kwargs)
    if OPERATOR[name] in SELECTING and OPERATOR[name] != "fractional_max":
        np.testing.assert_array_equal(wide(y), exact)
    elif OPERATOR[name] != "fractional_max":  # its windows depend on the dtype
        np.testing.assert_allclose(wide(y), exact, **within(dtype, x))
        np.testing.assert_allclose(wide(gx), back(wide(gy)), **within(dtype, gy))


@pytest.mark.slow_in("jax", "dask")
@each_function
@each_integer
def test_integers_are_for_what_can_take_them(front: Front, name: str, dtype: Any) -> None:
    shape, kwargs = example(name)
    x = numbers(shape, dtype)
    if front is DASK and name in DRAWN:
        with pytest.raises(TypeError, match="pooling does not support Dask arrays"):
            front.run(name, x, **kwargs)
        return
    if OPERATOR[name] not in OF_INTEGERS:
        form = "x must be of dtype float16, bfloat16, float32 or float64 for"
        with refused(TypeError, form, dtype):
            front.run(name, x, **kwargs)
        return
    if name.startswith("fractional"):
        kwargs["_random_samples"] = kwargs["_random_samples"].astype(np.float32)
    y = front.run(name, x, **kwargs)
    result = np.float64 if dtype.itemsize > 2 else np.float32
    assert y.dtype == (result if OPERATOR[name] == "avg" else dtype)
    expected = front.run(name, x.astype(np.float32), **kwargs)
    if OPERATOR[name] in ("max", "min"):
        expected = np.where(np.isinf(expected), y, expected)  # windows without inputs; see below
    np.testing.assert_allclose(y.astype(float), expected, rtol=1e-6)  # float32
    if OPERATOR[name] != "avg":
        np.testing.assert_array_equal(y.astype(float), expected)


@each_function
def test_other_dtypes_are_refused(name: str) -> None:
    shape, kwargs = example(name)
    for dtype in ("c8", "c16", "u8", "U3", "S3", "M8[s]", "O", "f4,f4", np.longdouble):
        x = np.zeros(shape, dtype)
        if x.dtype != np.float64:  # which the long double of some processors is
            came = f"{re.escape(str(x.dtype))}|{re.escape(x.dtype.name)}"
            with pytest.raises(TypeError, match=rf"^x must be of dtype float16, .*, got ({came})"):
                NUMPY.run(name, x, **kwargs)


@each_function
@each_integer
def test_integers_have_no_gradient(name: str, dtype: Any) -> None:
    shape, kwargs = example(name)
    form = "x must be of a floating dtype to have a gradient, got"
    if OPERATOR[name] not in OF_INTEGERS:
        form = "x must be of dtype float16, bfloat16, float32 or float64 for"
    with refused(TypeError, form, dtype):
        NUMPY.vjp(name, numbers(shape, dtype), **kwargs)


# Integers


@each_integer
def test_extremes_of_integers(front: Front, dtype: Any) -> None:
    lowest, highest = (
        (False, True) if dtype == np.bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    )
    x = np.array([[lowest, highest, highest, lowest, highest, highest, lowest, lowest]], dtype)
    y = {k: front.run(f"{k}_pool1d", x, 2).tolist()[0] for k in ("max", "min", "median")}
    assert y["max"] == [highest, highest, highest, lowest]
    assert y["min"] == y["median"] == [lowest, lowest, highest, lowest]
    for kind, empty in (("max", lowest), ("min", highest)):
        y, indices = front.run(f"{kind}_pool1d", x, 1, 8, 1, return_indices=True)
        assert (y.tolist(), indices.tolist()) == ([[empty, x[0, -1]]], [[-1, 7]]), kind


def test_beyond_what_float64_can_tell_apart(front: Front) -> None:
    x = np.array([[2**53, 2**53 + 1, -(2**53) - 1, -(2**53)]], np.int64)
    x = np.concatenate([x, np.array([[2**63 - 1, 2**63 - 2, -(2**63) + 1, -(2**63)]])], 1)
    for ties in ("first", "split", "zero"):
        top, low, mid = (
            front.run(f"{k}_pool1d", x, 2, return_indices=True, ties=ties)
            for k in ("max", "min", "median")
        )
        assert top[0].tolist() == [[2**53 + 1, -(2**53), 2**63 - 1, -(2**63) + 1]]
        assert low[0].tolist() == [[2**53, -(2**53) - 1, 2**63 - 2, -(2**63)]]
        assert mid[0].tolist() == low[0].tolist()
        assert top[1].tolist() == [[1, 3, 4, 6]]
        assert low[1].tolist() == mid[1].tolist() == [[0, 2, 5, 7]]
    indices = np.arange(16)[None, ::2].copy()
    assert (
        front.run("max_unpool1d", x, indices=indices, kernel_size=2)[0, ::2].tolist()
        == x[0].tolist()
    )


def test_unsigned_numbers_are_not_negative(front: Front) -> None:
    x = np.array([[127, 128, 255, 1]], np.uint8)
    assert front.run("max_pool1d", x, 2).tolist() == [[128, 255]]
    assert front.run("min_pool1d", x, 2).tolist() == [[127, 1]]
    assert front.run("median_pool1d", x, 3).tolist() == [[128]]
    assert front.run("avg_pool1d", x, 2).tolist() == [[127.5, 128]]


def test_unsigned_numbers_beyond_the_signed_ones(front: Front) -> None:
    for dtype, top in ((np.uint16, 2**16), (np.uint32, 2**32)):
        x = np.array([[top - 1, top // 2, top - 2, 1]], dtype)
        assert front.run("max_pool1d", x, 2).tolist() == [[top - 1, top - 2]]
        assert front.run("min_pool1d", x, 2).tolist() == [[top // 2, 1]]
        assert front.run("median_pool1d", x, 3).tolist() == [[top - 2]]
        y, indices = front.run("max_pool1d", x, 2, return_indices=True)
        assert indices.tolist() == [[0, 2]]
        back = front.run("max_unpool1d", y, indices=indices, kernel_size=2)
        assert (back.dtype, back.tolist()) == (dtype, [[top - 1, 0, top - 2, 0]])
        assert front.run("avg_pool1d", x, 4).tolist() == [[(2.5 * top - 2) / 4]]


@each_integer
def test_averages_of_extremes(front: Front, dtype: Any) -> None:
    """Sums of integers do not go round."""
    highest = True if dtype == np.bool else np.iinfo(dtype).max
    y = front.run("avg_pool2d", np.full((1, 8, 8), highest, dtype), 8)
    assert y.dtype == (np.float64 if dtype.itemsize > 2 else np.float32)
    assert y.item() == float(highest)
    y = front.run("avg_pool2d", np.full((1, 8, 8), highest, dtype), 4, 8, [(1, 0), (0, 0)])
    assert y.item() == 0.75 * float(highest)


def test_the_share_of_truth(front: Front) -> None:
    x = np.array([[True, False, False, False], [True, True, True, False]])
    assert front.run("avg_pool1d", x, 4).tolist() == [[0.25], [0.75]]
    assert front.run("max_pool1d", x, 2).tolist() == [[True, False], [True, True]]
    assert front.run("min_pool1d", x, 2).tolist() == [[False, False], [True, False]]
    assert front.run("max_pool1d", x, 2).dtype == np.bool


# Memory


@pytest.mark.without(jax="its arrays have one layout")
@pytest.mark.slow_in("dask")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda m: m.id)
@pytest.mark.parametrize("dtype", [np.dtype(d) for d in FLOATS + INTEGERS], ids=str)
def test_layouts(front: Front, layout: Layout, dtype: Any) -> None:
    for shape in ((2, 3, 6, 7), (2, 17, 5, 4)):
        x = layout.make(numbers(shape, dtype))
        plain = np.ascontiguousarray(x).astype(dtype)
        for fun in ("max_pool2d", "min_pool2d", "median_pool2d"):
            got = front.run(fun, x, 3, 2, 1)
            assert got.dtype == dtype
            np.testing.assert_array_equal(wide(got), wide(front.run(fun, plain, 3, 2, 1)))
        close = {"rtol": 1e-6} if dtype not in HALVES else {"rtol": 2**-7}
        for fun in ("avg_pool2d",) + ("soft_pool2d",) * (dtype.kind in "fV"):
            got, expected = (wide(front.run(fun, v, 3, 2, 1)) for v in (x, plain))
            np.testing.assert_allclose(got, expected, **close)


@pytest.mark.without(jax="its arrays have one layout")
@pytest.mark.slow_in("dask")
@halves
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda m: m.id)
def test_gradients_in_any_layout(front: Front, layout: Layout, dtype: Any) -> None:
    x = layout.make(np.random.default_rng(0).permutation(210).reshape(2, 3, 5, 7).astype(dtype))
    y, pullback = front.vjp("max_pool2d", x, 2, 1)
    _, expected = front.vjp("max_pool2d", np.ascontiguousarray(x).astype(dtype), 2, 1)
    gy = layout.make(numbers(y.shape, dtype))
    plain = np.ascontiguousarray(gy).astype(dtype)
    np.testing.assert_array_equal(wide(pullback(gy)), wide(expected(plain)))


@halves
def test_out(dtype: Any) -> None:
    x, out = numbers((2, 8), dtype), np.zeros((2, 8), dtype)[:, ::2]
    assert poolgrad.max_pool1d(x, 2, out=out) is out
    np.testing.assert_array_equal(wide(out), wide(poolgrad.max_pool1d(x, 2)))
    with pytest.raises(TypeError, match=r"^out must be of dtype"):
        poolgrad.max_pool1d(x, 2, out=np.zeros((2, 4), np.float32))


# The same kernels


@pytest.mark.without(numpy="compared with itself", jax="test_jax.py", dask="test_dask.py")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, np.dtype(dtype))
        for name in FUNCTIONS
        if not name.startswith("lip")  # an exponential of each library
        for dtype in (FLOATS + INTEGERS if OPERATOR[name] in OF_INTEGERS else FLOATS)
    ],
    ids=str,
)
def test_front_ends_give_the_same_bits(front: Front, name: str, dtype: Any) -> None:
    shape, kwargs = example(name)
    x = numbers(shape, dtype)
    ours, theirs = (f.run(name, x, **kwargs) for f in (NUMPY, front))
    assert ours.dtype == theirs.dtype
    assert ours.tobytes() == theirs.tobytes()
    if dtype.kind not in "iub":
        gy = numbers(ours.shape, dtype)
        ours, theirs = (f.vjp(name, x, **kwargs)[1](gy) for f in (NUMPY, front))
        assert ours.tobytes() == theirs.tobytes()


# PyTorch


@needs_torch
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    "dtype", [np.dtype(d) for d in (*FLOATS, *INTEGERS) if d is not np.bool], ids=str
)
def test_maximum_of_pytorch(dims: int, dtype: Any) -> None:
    x = as_tensor(numbers((2, 3, *(9, 8, 7)[:dims]), dtype))
    try:
        theirs = getattr(torch.nn.functional, f"max_pool{dims}d")
        expected = theirs(x, 3, 2, 1, return_indices=True)
    except NotImplementedError as error:  # which versions have which dtypes differs
        pytest.skip(f"this PyTorch cannot: {error}")
    got = getattr(poolgrad, f"max_pool{dims}d")(x, 3, 2, 1, return_indices=True)
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == e.dtype
        assert torch.equal(g, e)


@needs_torch
@halves
def test_gradient_of_pytorch(dtype: Any) -> None:
    x = as_tensor(numbers((2, 3, 9, 8), dtype)).requires_grad_()
    for ours, theirs in ((poolgrad.max_pool2d, torch.nn.functional.max_pool2d),
                         (poolgrad.avg_pool2d, torch.nn.functional.avg_pool2d)):  # fmt: skip
        y, expected = ours(x, 2), theirs(x, 2)
        assert torch.equal(y, expected)
        gy = as_tensor(numbers(tuple(y.shape), dtype))
        got, wanted = (torch.autograd.grad(v, x, gy)[0] for v in (y, expected))
        np.testing.assert_array_equal(wide(as_array(got)), wide(as_array(wanted)))


@needs_torch
@each_integer
def test_integer_tensors_ask_for_no_gradient(dtype: Any) -> None:
    y = poolgrad.max_pool1d(as_tensor(numbers((2, 8), dtype)), 2)
    assert not y.requires_grad
    assert TORCH.run("avg_pool1d", numbers((2, 8), dtype), 2).dtype.kind == "f"
