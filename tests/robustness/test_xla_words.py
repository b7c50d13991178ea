"""Programs for XLA from elsewhere: words that do not fit the arrays are an error, not memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from processes import assert_runs

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import poolgrad  # noqa: E402
import poolgrad.jax  # noqa: E402

AXIS = "0 {size} {out} 2 2 0 0 1 0 0 {size} {out}"
PLAN = f"<0 float32 float32 0 -1 1 1 {AXIS.format(size=8, out=4)}"
SELECT = f"select {PLAN} max <0 >0 >1 0 - *"


def call(words: str, *operands: Any, results: Any = None, **kwargs: Any) -> Any:
    """The kernel, jitted, with results of the right shapes unless others are given."""
    poolgrad.max_pool1d(jnp.ones((1, 1, 2)), 2)  # registers the kernels
    x = jnp.arange(24, dtype=jnp.float32).reshape(3, 8)
    made = results or [((3, 4), jnp.float32), ((3, 4), jnp.uint8)]
    shapes = [jax.ShapeDtypeStruct(*r) for r in made]

    def run(*operands: Any) -> Any:
        return jax.ffi.ffi_call("poolgrad", shapes, **kwargs)(*operands, words=words)

    return jax.block_until_ready(jax.jit(run)(*(operands or (x,))))


def test_words_that_fit() -> None:
    y, routes = call(SELECT)
    np.testing.assert_array_equal(y, np.arange(24).reshape(3, 4, 2)[..., 1])
    np.testing.assert_array_equal(routes, np.ones((3, 4)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # sizes
        (SELECT.replace("0 8 4", "0 80 40").replace("0 0 8 4", "0 0 80 40"), "another size"),
        (SELECT.replace("0 8 4 2 2", "0 8 4000 2 2").replace("0 0 8 4", "0 0 8 4000"), "smaller"),
        (SELECT.replace("0 8 4 2 2", f"0 8 {2**62} 2 2").replace("8 4 max", f"8 {2**62} max"),
         "too large"),
        (SELECT.replace("8 4 2 2", "8 4 4611686018427387904 2"), "too large"),
        # axes
        (SELECT.replace("0 -1 1 1 0 8", "0 -1 1 2 0 8"), "no such pooled axis"),
        (SELECT.replace("0 -1 1 1 0 8", "0 7 1 1 0 8"), "no such inner axis"),
        (SELECT.replace("0 -1 1 1 0 8", "0 -1 4 1 0 8"), "1 to 3 axes"),
        (SELECT.replace("0 -1 1 1 0 8", "3 -1 1 1 0 8"), "routes do not fit"),
        # arrays
        (SELECT.replace("max <0 >0", "max <0 -"), "missing"),
        (SELECT.replace("max <0 >0", "max - >0"), "missing"),
        (SELECT.replace("max <0 >0", "max <0 <0"), "an operand is written"),
        (SELECT.replace("max <0 >0", "max >0 >0"), "a result is read"),
        (SELECT.replace("max <0 >0", "max <7 >0"), "no such array"),
        (SELECT.replace("max <0 >0", "max <0 >0x"), "not a number"),
        (SELECT.replace("max <0 >0", "max <0 ?0"), "no such array"),
        (SELECT.replace(">1 0 -", ">1 0 <0"), "samples"),
        (SELECT.replace("float32 float32", "float64 float64"), "items of another size"),
        (SELECT.replace("float32 float32", "float32 complex64"), "no such dtype"),
        # words
        ("", "too few words"),
        (SELECT.rsplit(" ", 3)[0], "too few words"),
        (SELECT + " 1", "too many words"),
        (SELECT.replace("select", "selected"), "no such kernel"),
        (SELECT.replace(" max ", " most "), "no such selection"),
        (SELECT.replace("0 8 4 2 2", "0 8 4 2 two"), "not a number"),
        (SELECT.replace("0 8 4 2 2", "0 8 4 2 99999999999999999999"), "not a number"),
    ],
)  # fmt: skip
def test_words_that_do_not_fit(words: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        call(words)


@pytest.mark.parametrize(
    ("words", "dtypes", "message"),
    [
        (SELECT, ("int32", "float32"), "another dtype"),
        (SELECT, ("float32", "bool"), "another dtype"),
        (SELECT, ("int8", "float32"), "the dtype of the inputs"),
        (f"average {PLAN} <0 >0 1 0 *", ("int32", "float32"), "another dtype"),
        (f"average {PLAN} <0 >0 1 0 *", ("float32", "bfloat16"), "another dtype"),
    ],
)
def test_results_of_another_dtype(words: str, dtypes: tuple[str, str], message: str) -> None:
    """As the words say it: rows of one type would be written over those of a smaller one."""
    words = words.replace("float32 float32", " ".join(dtypes))
    x = jnp.zeros((3, 8), dtypes[0])
    results = [((3, 4), jnp.dtype(dtypes[1])), ((3, 4), jnp.uint8)]
    with pytest.raises(Exception, match=message):
        call(words, x, results=results[: 1 + words.startswith("select")])


X, Y, R = ((3, 8), jnp.float32), ((3, 4), jnp.float32), ((3, 4), jnp.uint8)
ONE, SEED = ((1,), jnp.float32), ((2,), jnp.uint32)
WITHOUT_SAMPLES = {
    "draw": ("<0 >0 >1 <1 *", [X, SEED], [Y, R]),
    "average": ("<0 >0 1 0 *", [X], [Y]),
    "average_backward": ("<0 >0 1 0 *", [Y], [X]),
    "mixed": ("<0 <1 1 1 >0 >1 - *", [X, ONE], [Y, R]),
    "mixed_backward": ("<0 <1 1 1 <2 >0 *", [Y, ONE, R], [X]),
    "curved": ("soft <0 <1 1 >0 [0 - *", [X, ONE], [Y]),
    "curved_backward": ("soft <0 <1 <2 1 [3 <3 <4 <5 >0 *", [Y, X, ONE, Y, Y, Y], [X]),
}  # fmt: skip


@pytest.mark.parametrize("kernel", WITHOUT_SAMPLES)
def test_windows_that_samples_would_place(kernel: str) -> None:
    """Such windows have a table only in kernels that take samples; others read no table."""
    arguments, operands, results = WITHOUT_SAMPLES[kernel]
    plan = PLAN.replace("1 1 0 8", "1 1 2 8")
    if results == [X]:
        plan = plan.replace("<0", ">0")
    with pytest.raises(Exception, match="samples are for selections only"):
        call(f"{kernel} {plan} {arguments}", *(jnp.ones(*o) for o in operands), results=results)


IN_PADDING = """
import jax, jax.numpy as jnp, numpy as np, poolgrad, poolgrad.jax

def call(words, *operands):
    pad = KERNEL + 1
    out = (9 + pad) // STRIDE + 1
    axis = f"0 9 {out} {KERNEL} {STRIDE} {pad} {pad} 1 0 0 9 {out}"
    made = [jax.ShapeDtypeStruct((3, out), d) for d in (jnp.float32, jnp.uint8)]
    words = words.replace("PLAN", f"<0 float32 float32 0 -1 1 1 {axis}")
    x = 1 + jnp.arange(27, dtype=jnp.float32).reshape(3, 9)
    run = jax.jit(lambda *given: jax.ffi.ffi_call("poolgrad", made)(*given, words=words))
    y, routes = run(x, *operands)
    begin = np.arange(out) * STRIDE - pad
    padding = (begin + KERNEL <= 0) | (begin >= 9)
    assert padding.any()
    assert (np.asarray(y)[:, padding] == 0).all()
    assert (np.asarray(y)[:, ~padding] > 0).all()

seed = jnp.array([1, 2], jnp.uint32)
for KERNEL, STRIDE in ((3, 1), (30, 2), (200, 100)):
    call("draw PLAN <0 >0 >1 <1 *", seed)
    call("select PLAN median <0 >0 >1 0 - *")
    call("select PLAN median <0 >0 >1 1 - *")
"""


def test_windows_in_the_padding_have_no_median() -> None:
    """The public functions refuse such windows, a stored program cannot."""
    assert_runs(IN_PADDING)


def test_routes_of_another_number() -> None:
    gradient, routes = jnp.ones((3, 4)), jnp.zeros((3, 2), jnp.uint8)
    words = "route_backward " + PLAN.replace("<0", ">0") + " <0 <1 >0 - *"
    with pytest.raises(Exception, match="another shape"):
        call(words, gradient, routes, results=[((3, 8), jnp.float32)])


def test_lists_that_are_too_long() -> None:
    words = f"curved {PLAN} soft <0 <1 1 >0 [99999999 - - - - *"
    with pytest.raises(Exception, match="no such list"):
        call(words, jnp.ones((3, 8)), jnp.ones(1))


def test_a_result_where_an_operand_lies() -> None:
    words = f"select {PLAN.replace('1 1 0 8 4 2 2', '1 1 0 8 8 1 1').replace('8 4', '8 8')}"
    with pytest.raises(Exception, match="overlaps"):
        call(
            f"{words} max <0 >0 - 0 - *",
            results=[((3, 8), jnp.float32)],
            input_output_aliases={0: 0},
        )


RACE = """
import threading, time
import numpy as np, jax, jax.numpy as jnp, poolgrad
stop = time.monotonic() + 8
def gradient(side):
    x = np.random.default_rng(side).standard_normal((8, 16, side, side)).astype(np.float32)
    pool = lambda x: poolgrad.max_pool2d(x, 2, routes="packed").sum()
    return jax.jit(jax.grad(pool)), jnp.asarray(x)
calls = [gradient(side) for side in (128, 96, 64, 112)]
wanted = [np.asarray(f(x)) for f, x in calls]
wrong = []
def run(number):
    f, x = calls[number]
    while time.monotonic() < stop and not wrong:
        if not np.array_equal(np.asarray(f(x)), wanted[number]):
            wrong.append(number)
threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
for thread in threads: thread.start()
large = np.zeros((2048, 2048), np.float32)
while time.monotonic() < stop:
    kept = [poolgrad.max_pool1d(large, 2) for _ in range(4)]
for thread in threads: thread.join()
assert not wrong, wrong
"""


@pytest.mark.slow
def test_threads_of_xla_and_python_share_the_cache() -> None:
    """Packed routes are unpacked into memory of the cache, without Python's lock."""
    assert_runs(RACE)
