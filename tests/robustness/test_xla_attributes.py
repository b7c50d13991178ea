"""Calls of XLA programs from elsewhere: attributes that do not fit the arrays are an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from processes import assert_runs

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import poolgrad  # noqa: E402
import poolgrad.jax  # noqa: E402
from poolgrad.dtypes import DTYPE_NAMES  # noqa: E402
from poolgrad.interface import NONLINEAR, SELECTIONS  # noqa: E402

KIND, IN, OUT, KERNEL, STRIDE, LOW, HIGH, DILATION, FIRST, BEFORE, ALL_IN, ALL_OUT = range(12)
MAX = SELECTIONS.index("max")
FLOAT32, FLOAT64 = map(DTYPE_NAMES.index, ("float32", "float64"))
AXIS = (0, 8, 4, 2, 2, 0, 0, 1, 0, 0, 8, 4)
NONE = -1


def result(number: int) -> int:
    """How `arrays` names a result."""
    return -2 - number


def axes(position: int = 1, **changed: int) -> list[int]:
    """An axis of the plan, with other numbers: ``axes(OUT=5)``."""
    numbers = list(AXIS)
    for name, number in changed.items():
        numbers[globals()[name]] = number
    return [position, *numbers]


SELECT: dict[str, Any] = {
    "kernel": "select",
    "arrays": [0, result(0), result(1), NONE],
    "integers": [MAX, 0],
    "input": 0,
    "in_dtype": FLOAT32,
    "out_dtype": FLOAT32,
    "route_bits": 0,
    "inner_axis": -1,
    "axes": axes(),
}


def typed(value: Any) -> Any:
    """An attribute as XLA takes it."""
    if isinstance(value, list):
        return np.array(value, np.int64)
    return np.int64(value) if isinstance(value, int) else value


def call(attributes: dict[str, Any], *operands: Any, results: Any = None, **kwargs: Any) -> Any:
    """The kernel, jitted, with results of the right shapes unless others are given."""
    x = jnp.arange(24, dtype=jnp.float32).reshape(3, 8)
    made = results or [((3, 4), jnp.float32), ((3, 4), jnp.uint8)]
    shapes = [jax.ShapeDtypeStruct(*r) for r in made]
    with jax.enable_x64(True):
        given = {name: typed(value) for name, value in attributes.items()}

        def run(*operands: Any) -> Any:
            return jax.ffi.ffi_call("poolgrad", shapes, **kwargs)(*operands, **given)

        return jax.block_until_ready(jax.jit(run)(*(operands or (x,))))


def test_attributes_that_fit() -> None:
    y, routes = call(SELECT)
    np.testing.assert_array_equal(y, np.arange(24).reshape(3, 4, 2)[..., 1])
    np.testing.assert_array_equal(routes, np.ones((3, 4)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        # sizes
        ({"axes": axes(IN=80, OUT=40, ALL_IN=80, ALL_OUT=40)}, "another size than the input"),
        ({"input": -2}, "another size than the input"),
        ({"input": NONE}, "lacks an array of the input's shape"),
        ({"input": 1}, "no such array"),
        ({"axes": axes(OUT=4000, ALL_OUT=4000)}, "smaller"),
        ({"axes": axes(OUT=2**62, ALL_OUT=2**62)}, "too large"),
        ({"axes": axes(KERNEL=2**62)}, "too large"),
        # axes
        ({"axes": axes(2)}, "no such pooled axis"),
        ({"axes": axes(2**32 + 1)}, "no such pooled axis"),
        ({"axes": axes(-1)}, "no such pooled axis"),
        ({"axes": []}, "1 to 3 axes"),
        ({"axes": axes() * 4}, "1 to 3 axes"),
        ({"axes": axes()[:-1]}, "1 to 3 axes"),
        ({"axes": axes() * 2}, "no such pooled axis"),
        ({"inner_axis": 7}, "no such inner axis"),
        ({"inner_axis": 2**32}, "no such inner axis"),
        ({"route_bits": 3}, "routes do not fit"),
        ({"route_bits": 2**32 + 2}, "routes do not fit"),
        # arrays
        ({"arrays": [0, NONE, result(1), NONE]}, "missing"),
        ({"arrays": [NONE, result(0), result(1), NONE]}, "missing"),
        ({"arrays": [0, 0, result(1), NONE]}, "an operand is written"),
        ({"arrays": [result(0), result(0), result(1), NONE]}, "a result is read"),
        ({"arrays": [7, result(0), result(1), NONE]}, "no such array"),
        ({"arrays": [0, result(2), result(1), NONE]}, "no such array"),
        ({"arrays": [2**63 - 1, result(0), result(1), NONE]}, "no such array"),
        ({"arrays": [-(2**63), result(0), result(1), NONE]}, "no such array"),
        ({"arrays": [0, result(0), result(1), 0]}, "samples"),
        ({"arrays": [0, result(0), result(1)]}, "another number of arrays"),
        ({"arrays": [0, result(0), result(1), NONE, NONE]}, "another number of arrays"),
        ({"in_dtype": FLOAT64, "out_dtype": FLOAT64}, "items of another size"),
        ({"out_dtype": len(DTYPE_NAMES)}, "no such dtype"),
        ({"in_dtype": -1}, "no such dtype"),
        # the other arguments
        ({"integers": [MAX]}, "another number of integers"),
        ({"integers": [MAX, 0, 1]}, "another number of integers"),
        ({"kernel": "selected"}, "no such kernel"),
        ({"kernel": ""}, "no such kernel"),
        ({"kernel": "average"}, "another number of"),
        ({"kernel": "average_quantized"}, "another number of"),
        ({"integers": [len(SELECTIONS), 0]}, "no such selection"),
        ({"integers": [-1, 0]}, "no such selection"),
        # types
        ({"input": "none"}, "attribute"),
        ({"kernel": 3}, "attribute"),
        ({"axes": np.array(axes(), np.int32)}, "attribute|array data type"),
        ({"axes": np.array(axes(), np.float64)}, "attribute|array data type"),
    ],
)
def test_attributes_that_do_not_fit(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        call(SELECT | changed)


def test_missing_attributes() -> None:
    for name in SELECT:
        with pytest.raises(Exception, match="attribute"):
            call({k: v for k, v in SELECT.items() if k != name})


AVERAGE = SELECT | {"kernel": "average", "arrays": [0, result(0)], "integers": [1, 0]}


@pytest.mark.parametrize(
    ("attributes", "dtypes", "message"),
    [
        (SELECT, ("int32", "float32"), "another dtype"),
        (SELECT, ("float32", "bool"), "another dtype"),
        (SELECT, ("int8", "float32"), "the dtype of the inputs"),
        (AVERAGE, ("int32", "float32"), "another dtype"),
        (AVERAGE, ("float32", "bfloat16"), "another dtype"),
    ],
)
def test_results_of_another_dtype(
    attributes: dict[str, Any], dtypes: tuple[str, str], message: str
) -> None:
    """As the attributes have it: rows of one type would be written over those of a smaller one."""
    numbers = map(DTYPE_NAMES.index, dtypes)
    own = attributes | dict(zip(("in_dtype", "out_dtype"), numbers, strict=True))
    x = jnp.zeros((3, 8), dtypes[0])
    results = [((3, 4), jnp.dtype(dtypes[1])), ((3, 4), jnp.uint8)]
    with pytest.raises(Exception, match=message):
        call(own, x, results=results[: 1 + (attributes is not AVERAGE)])


@pytest.mark.parametrize("numbers", [2, 5, 7])
def test_floating_arguments_are_integers(numbers: int) -> None:
    """One for each: none is read beyond the last."""
    quantized = AVERAGE | {"kernel": "average_quantized", "integers": [1] * numbers}
    with pytest.raises(Exception, match="another number of integers"):
        call(quantized, results=[((3, 4), jnp.float32)])
    with pytest.raises(Exception, match="another number of arrays"):
        call(quantized | {"arrays": [0, result(0), *[NONE] * 4]}, results=[((3, 4), jnp.float32)])


X, Y, R = ((3, 8), jnp.float32), ((3, 4), jnp.float32), ((3, 4), jnp.uint8)
ONE, SEED = ((1,), jnp.float32), ((2,), jnp.uint32)
Y0, Y1 = result(0), result(1)
SOFT, LP = NONLINEAR.index("soft"), NONLINEAR.index("lp")
# kernel: arrays, integers, operands, results
WITHOUT_SAMPLES: dict[str, tuple[list[int], list[int], list[Any], list[Any]]] = {
    "draw": ([0, Y0, Y1, 1], [], [X, SEED], [Y, R]),
    "average": ([0, Y0], [1, 0], [X], [Y]),
    "average_quantized": ([0, Y0], [1, 0, 0, 0, 0, 0], [X], [Y]),
    "average_backward": ([0, Y0], [1, 0], [Y], [X]),
    "mixed": ([0, 1, Y0, Y1, NONE], [1, 1], [X, ONE], [Y, R]),
    "mixed_backward": ([0, 1, 2, Y0], [1, 1], [Y, ONE, R], [X]),
    "nonlinear": ([0, 1, Y0, NONE, NONE, NONE, NONE], [SOFT, 1], [X, ONE], [Y]),
    "nonlinear_backward": ([0, 1, 2, 3, 4, 5, Y0], [SOFT, 1], [Y, X, ONE, Y, Y, Y], [X]),
}


def without_samples(kernel: str, **changed: Any) -> Any:
    arrays, integers, operands, results = WITHOUT_SAMPLES[kernel]
    own = {"kernel": kernel, "arrays": arrays, "integers": integers}
    whole = operands.index(X) if X in operands else result(0)
    attributes = SELECT | own | {"input": whole} | changed
    return call(attributes, *(jnp.ones(*o) for o in operands), results=results)


@pytest.mark.parametrize("kernel", WITHOUT_SAMPLES)
def test_windows_that_samples_would_place(kernel: str) -> None:
    """Such windows have a table only in kernels that take samples; others read no table."""
    without_samples(kernel)
    with pytest.raises(Exception, match="samples are for selections only"):
        without_samples(kernel, axes=axes(KIND=2))


IN_PADDING = """
import jax, jax.numpy as jnp, numpy as np, poolgrad, poolgrad.jax
from poolgrad.dtypes import DTYPE_NAMES
from poolgrad.interface import SELECTIONS

MEDIAN, FLOAT32 = SELECTIONS.index("median"), DTYPE_NAMES.index("float32")

def call(kernel, arrays, integers, *operands):
    pad = KERNEL + 1
    out = (9 + pad) // STRIDE + 1
    lists = dict(
        arrays=arrays, integers=integers,
        axes=[1, 0, 9, out, KERNEL, STRIDE, pad, pad, 1, 0, 0, 9, out],
    )
    attributes = {k: np.array(v, np.int64) for k, v in lists.items()}
    numbers = dict(input=0, route_bits=0, inner_axis=-1, in_dtype=FLOAT32, out_dtype=FLOAT32)
    attributes |= {k: np.int64(v) for k, v in numbers.items()}
    attributes["kernel"] = kernel
    made = [jax.ShapeDtypeStruct((3, out), d) for d in (jnp.float32, jnp.uint8)]
    x = 1 + jnp.arange(27, dtype=jnp.float32).reshape(3, 9)
    run = jax.jit(lambda *given: jax.ffi.ffi_call("poolgrad", made)(*given, **attributes))
    y, routes = run(x, *operands)
    begin = np.arange(out) * STRIDE - pad
    padding = (begin + KERNEL <= 0) | (begin >= 9)
    assert padding.any()
    assert (np.asarray(y)[:, padding] == 0).all()
    assert (np.asarray(y)[:, ~padding] > 0).all()

seed = jnp.array([1, 2], jnp.uint32)
for KERNEL, STRIDE in ((3, 1), (30, 2), (200, 100)):
    call("draw", [0, -2, -3, 1], [], seed)
    call("select", [0, -2, -3, -1], [MEDIAN, 0])
    call("select", [0, -2, -3, -1], [MEDIAN, 1])
"""


def test_windows_in_the_padding_have_no_median() -> None:
    """The public functions refuse such windows, a stored program cannot."""
    assert_runs(IN_PADDING)


def test_routes_of_another_number() -> None:
    gradient, routes = jnp.ones((3, 4)), jnp.zeros((3, 2), jnp.uint8)
    own = {"kernel": "route_backward", "arrays": [0, 1, Y0, NONE], "integers": []}
    own["input"] = Y0
    with pytest.raises(Exception, match="another shape"):
        call(SELECT | own, gradient, routes, results=[((3, 8), jnp.float32)])


@pytest.mark.parametrize("kind", [SOFT, LP])
def test_another_number_of_residuals(kind: int) -> None:
    numbers = [0, 1, 2, 3, 4, NONE if kind == SOFT else 5, Y0]
    with pytest.raises(Exception, match="another number of residuals"):
        without_samples("nonlinear_backward", integers=[kind, 1], arrays=numbers)


def test_a_seed_of_another_shape() -> None:
    own = {"kernel": "draw", "arrays": [0, Y0, Y1, 1], "integers": []}
    x = jnp.ones((3, 8))
    for seed in (jnp.zeros(1, jnp.uint32), jnp.zeros((2, 1), jnp.uint32), jnp.zeros(2, jnp.uint8)):
        with pytest.raises(Exception, match="two halves"):
            call(SELECT | own, x, seed)


def test_a_result_where_an_operand_lies() -> None:
    windows = axes(OUT=8, ALL_OUT=8, KERNEL=1, STRIDE=1)
    with pytest.raises(Exception, match="overlaps"):
        call(
            SELECT | {"axes": windows, "arrays": [0, Y0, NONE, NONE]},
            results=[((3, 8), jnp.float32)],
            input_output_aliases={0: 0},
        )


def test_arguments_are_checked_once() -> None:
    """A kernel with other arguments than its own is refused when a program is compiled."""
    x = jnp.zeros((3, 8))
    wrong = {name: typed(value) for name, value in (SELECT | {"kernel": "average"}).items()}
    made = [jax.ShapeDtypeStruct((3, 4), d) for d in (jnp.float32, jnp.uint8)]
    lowered = jax.jit(lambda x: jax.ffi.ffi_call("poolgrad", made)(x, **wrong)).lower(x)
    with pytest.raises(Exception, match="another number of"):
        lowered.compile()


EXPORTED = """
import jax, jax.numpy as jnp, numpy as np
if {before}:
    jax.devices()
import poolgrad, poolgrad.jax
x = jnp.arange(24, dtype=jnp.float32).reshape(3, 8)
exported = jax.export.deserialize(bytearray.fromhex("{program}"))
np.testing.assert_array_equal(exported.call(x), np.arange(24).reshape(3, 4, 2)[..., 1])
"""


@pytest.mark.parametrize("before", [False, True])
def test_a_program_of_another_process(before: bool) -> None:
    """It needs the import only, whether that is before or after JAX starts its backend."""
    x = jax.ShapeDtypeStruct((3, 8), jnp.float32)
    pool = jax.jit(lambda x: poolgrad.max_pool1d(x, 2))
    calls = jax.export.DisabledSafetyCheck.custom_call("poolgrad")
    program = jax.export.export(pool, disabled_checks=[calls])(x).serialize().hex()
    assert_runs(EXPORTED.format(program=program, before=before))


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
