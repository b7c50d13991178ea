"""`poolgrad.jax`: Flax's names and arguments, errors, and messages about missing parts."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expected_errors import attempt, refused
from processes import assert_runs, run_python
from robustness.calls import FLOATS, INTEGERS

jax = pytest.importorskip("jax", reason="JAX is not installed")
pytest.importorskip("flax", reason="Flax is not installed")

import flax.linen  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax import nnx  # noqa: E402

import poolgrad  # noqa: E402
import poolgrad.jax  # noqa: E402
from poolgrad.jax import kernels  # noqa: E402
from poolgrad.operators import OPERATORS  # noqa: E402

X = jnp.arange(2 * 3 * 6 * 8, dtype=jnp.float32).reshape(2, 6, 8, 3)


@pytest.mark.parametrize(
    ("theirs", "name"),
    [(module, n) for module in (flax.linen, nnx) for n in ("max_pool", "avg_pool")]
    + [(nnx, "min_pool")],
)
def test_flax_names(theirs: Any, name: str) -> None:
    ours, original = getattr(poolgrad.jax, name), getattr(theirs, name)
    expected = inspect.signature(original).parameters
    found = inspect.signature(ours).parameters
    assert [(p.name, p.default) for p in found.values()] == [
        (p.name, p.default) for p in expected.values()
    ]
    for args in (
        ((2, 2),),
        ((3, 2), (2, 1)),
        ((2, 3), None, "SAME"),
        ((3, 3), (2, 2), ((1, 1), (0, 2))),
    ):
        np.testing.assert_allclose(ours(X, *args), original(X, *args), 1e-6)
    if name == "avg_pool":
        args = ((3, 3), (2, 2), "SAME", False)
        np.testing.assert_allclose(ours(X, *args), original(X, *args), 1e-6)
    signal, volume = X[0, 0], X[:, :, :, None]
    np.testing.assert_allclose(ours(signal, (3,)), original(signal[None], (3,))[0], 1e-6)
    np.testing.assert_allclose(ours(volume, (2, 2, 1)), original(volume, (2, 2, 1)), 1e-6)


def test_window_shape_of_too_many_sizes() -> None:
    for window in ((), (1, 1, 1, 1)):
        with refused(ValueError, "window_shape", window):
            poolgrad.jax.max_pool(X, window)


BAD = [
    ("max_pool2d", (0,), {}),
    ("max_pool2d", (2, 0), {}),
    ("max_pool2d", (9,), {}),
    ("max_pool2d", (2,), {"padding": -1}),
    ("max_pool2d", (2,), {"ties": "all"}),
    ("max_pool3d", (2, 2, 2, "other"), {}),
    ("avg_pool2d", (2,), {"padding": 5, "count_include_pad": False}),
    ("lp_pool2d", (-1.0, 2), {}),
    ("lp_pool2d", (np.ones(4), 2), {}),
    ("adaptive_max_pool2d", (0,), {}),
    ("stochastic_pool2d", (2,), {"generator": -1}),
    ("stochastic_pool2d", (2,), {"generator": 1.5}),
    ("max_unpool2d", (np.zeros((1, 1), np.int64), 2), {}),
    ("fractional_max_pool2d", (2,), {"output_size": 9}),
    ("fractional_max_pool2d", (2,), {"output_size": 2, "_random_samples": np.full((2, 6, 2), 1.5)}),
    ("max_pool2d", (2,), {"channels_last": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "kwargs"), BAD)
def test_refused_as_numpy_arrays_are(name: str, args: Any, kwargs: dict[str, Any]) -> None:
    """The same words, for arrays, while a function is traced, and for shapes alone."""
    function = getattr(poolgrad, name)

    def pool(x: Any) -> Any:
        return function(x, *args, **kwargs)

    expected = attempt(lambda: pool(np.asarray(X)))
    assert isinstance(expected, TypeError | ValueError)
    wanted = str(expected).replace("numpy.random.Generator", "key of jax.random")
    for ask in (
        lambda: pool(X),
        lambda: jax.jit(pool)(X),
        lambda: jax.eval_shape(pool, jax.ShapeDtypeStruct(X.shape, X.dtype)),
        lambda: jax.vmap(pool)(jnp.stack([X, X])),
    ):
        found = attempt(ask)
        assert type(found) is type(expected)
        assert str(found) == wanted


def test_refused_for_jax_only() -> None:
    with pytest.raises(TypeError, match="out is accepted only if x is a NumPy array"):
        poolgrad.max_pool2d(X, 2, out=np.empty((2, 6, 4, 1)))
    with pytest.raises(TypeError, match=r"vjp supports NumPy and Dask.*jax\.vjp"):
        poolgrad.vjp(poolgrad.max_pool2d, X, 2)
    with refused(TypeError, "generator", "got None"):
        poolgrad.stochastic_pool2d(X, 2)
    with refused(TypeError, "x", "key"):
        poolgrad.max_pool1d(jax.random.split(jax.random.key(0), 4), 2)
    with refused(TypeError, "x", "complex64"):
        poolgrad.max_pool2d(X.astype(jnp.complex64), 2)
    with refused(TypeError, "indices", "list"):
        poolgrad.max_unpool2d(X, [[1]], 2)
    with refused(TypeError, "norm_type", "bool"):
        jax.jit(lambda p: poolgrad.lp_pool2d(X, p, 2))(jnp.asarray(True))
    with refused(ValueError, "norm_type", "(2,)"):
        jax.jit(lambda p: poolgrad.lp_pool2d(X, p, 2))(jnp.ones(2))


def test_what_only_the_numbers_tell_is_said_when_it_runs() -> None:
    bad = X.at[0, 0, 0, 0].set(jnp.nan)
    with pytest.raises(Exception, match="x must be finite"):
        jax.block_until_ready(jax.jit(lambda x: poolgrad.stochastic_pool2d(x, 2, generator=1))(bad))
    indices = jnp.full(X.shape, 10**6)
    with pytest.raises(Exception, match=r"indices must be from 0 to .*got 1000000"):
        jax.block_until_ready(jax.jit(lambda i: poolgrad.max_unpool2d(X, i, 2))(indices))
    with pytest.raises(Exception, match=r"_random_samples must be in \[0, 1\)"):
        jax.block_until_ready(
            jax.jit(
                lambda s: poolgrad.fractional_max_pool2d(X, 2, output_size=2, _random_samples=s)
            )(jnp.full((2, 6, 2), -0.5))
        )


def test_kernels_without_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poolgrad.core.xla_handler", lambda: None)
    with pytest.raises(ImportError, match="built without jaxlib"):
        kernels.register()


def test_kernels_for_another_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("FFI handler API version mismatch")

    monkeypatch.setattr("jax.ffi.register_ffi_target", refuse)
    with pytest.raises(ImportError, match=r"does not support poolgrad's kernels.*version mismatch"):
        kernels.register()


@pytest.mark.parametrize(("module", "missing"), [("jax", "jax"), ("dask", "dask")])
def test_a_missing_extra_is_named(module: str, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nimport poolgrad.{module}"
    words = run_python(code).stderr
    assert f'poolgrad.{module} needs {missing}: pip install "poolgrad[{missing}]"' in words


def test_numpy_needs_neither() -> None:
    code = """
import sys, numpy, poolgrad
poolgrad.max_pool2d(numpy.eye(4), 2)
print([name for name in ("jax", "dask", "torch") if name in sys.modules])
"""
    assert assert_runs(code).strip() == "[]"


@pytest.mark.parametrize("room", ["jax", "dask"])
def test_no_operator_is_named_in_a_front_end(room: str) -> None:
    """An operator is defined once, a framework taught once; Flax's names are Flax's."""
    for file in (Path(poolgrad.__file__).parent / room).glob("*.py"):
        if file.name == "__init__.py":
            continue
        words = {
            n.value for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Constant)
        }
        assert not words & OPERATORS.keys(), file.name


def test_memory_is_used_again() -> None:
    for bad in (-1, 2**31, 1.5, True):
        with refused(ValueError, "limit", bad):
            poolgrad.jax.reuse_memory(bad)  # type: ignore[arg-type]
    code = "import poolgrad.jax; print(poolgrad.jax.reuse_memory())"
    assert assert_runs(code).strip() in ("True", "False")


def test_errors_name_the_arguments_of_flax() -> None:
    x = jnp.ones((1, 4, 4, 1))
    words = r"window_shape must be a sequence of 1 to 3 integers, got"
    for window in (2, None, ()):
        with refused(ValueError, words, window):
            poolgrad.jax.max_pool(x, window)
    with refused(ValueError, "window_shape must be positive, got", (2, -2)):
        poolgrad.jax.min_pool(x, (2, -2))
    with refused(ValueError, "strides must be positive, got", 0):
        poolgrad.jax.avg_pool(x, (2, 2), strides=0)
    for pool, unknown, meant in (
        (poolgrad.jax.max_pool, "kernel_size", "window_shape"),
        (poolgrad.jax.min_pool, "stride", "strides"),
        (poolgrad.jax.avg_pool, "x", "inputs"),
    ):
        name = pool.__name__
        words = rf"^{name}\(\) has no argument '{unknown}'; did you mean '{meant}'\?$"
        with pytest.raises(TypeError, match=words):
            pool(x, (2, 2), **{unknown: 2})


@pytest.mark.parametrize(
    "dtype",  # but those that JAX has only where it was given 64 bits
    [np.dtype(d) for d in (*FLOATS, *INTEGERS) if d not in (np.float64, np.int64)],
    ids=str,
)
def test_every_dtype_of_the_documentation(dtype: Any) -> None:
    assert np.dtype(dtype).name in (poolgrad.jax.max_pool.__doc__ or "")
    x = jnp.array([[1], [0], [1]]).astype(dtype)
    for pool, expected in ((poolgrad.jax.max_pool, [1, 1]), (poolgrad.jax.min_pool, [0, 0])):
        y = pool(x, (2,))
        assert (y.dtype, y.ravel().tolist()) == (dtype, expected)


def test_masked_logits() -> None:
    masked = np.ma.array(np.ones((1, 4, 4), np.float32), mask=True)
    with pytest.raises(TypeError, match=r"^logits must have no mask; fill it first"):
        poolgrad.lip_pool2d(jnp.ones((1, 4, 4)), masked, 2)
