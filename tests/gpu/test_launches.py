"""What is launched, and where: launches recorded on tensors without data, of any size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
tl = pytest.importorskip("triton.language", reason="Triton is not installed")

from poolgrad.interface import Selection  # noqa: E402
from poolgrad.operators import OPERATORS, prepare  # noqa: E402
from poolgrad.torch import engines, function, triton  # noqa: E402
from poolgrad.torch.arrays import DTYPES, as_operand, empty, inner_of  # noqa: E402
from poolgrad.torch.engines import Engine  # noqa: E402
from poolgrad.torch.triton.launch import Launch, launch, recorded  # noqa: E402
from poolgrad.windows import WindowSpec, adaptive, fixed, whole  # noqa: E402

# The others are computed by `poolgrad.portable`.
WITH_KERNELS = ["max", "relu_max", "min", "avg", "lp", "log_mean_exp", "soft", "expected", "mixed"]


class Calls(NamedTuple):
    """The launches of each direction of an operator."""

    forward: list[Launch]
    backward: list[Launch]
    tangent: list[Launch]  # empty for nonlinear operators
    indices: list[Launch]  # empty without routes

    @property
    def all(self) -> list[Launch]:
        return [one for direction in self for one in direction]


def record(
    name: str, spec: WindowSpec, shape: tuple[int, ...], dtype: str = "float32", *options: Any,
    last: bool = False, inference: bool = False,
) -> Calls:  # fmt: skip
    """Record the launches of a call; `inference`: nothing is kept for the backward pass."""
    operator = OPERATORS[name]
    x = torch.empty(shape, dtype=DTYPES[dtype], device="meta")
    if last:
        x = x.to(memory_format=torch.channels_last)
    where = (shape, False, inner_of(x, spec, False), dtype)
    ready = triton.on_device(prepare(name, spec, operator.options(*options), *where))
    operand = None
    if operator.operand.count:
        accepted, shapes, _ = operator.operand.accepted(ready.layout)
        tensor = torch.empty(shapes[0], dtype=DTYPES[accepted], device="meta")
        operand = as_operand(ready, (tensor,))
    y, gx = empty(ready.output, x), empty(ready.input, x)
    residual = () if inference else tuple(empty(b, x) for b in ready.residual)
    with recorded() as forward:
        how = {"residual": residual, "operand": operand}
        ready.operator.forward(ready.call(x, y, **how))
    with recorded() as backward:
        if not inference:
            ready.operator.vjp(ready.call(y, gx, x=x, **how))
    with recorded() as tangent:
        if not inference and not operator.nonlinear:
            ready.operator.jvp(ready.call(x, y, **how))
    with recorded() as indices:
        if not inference and operator.name == "max":
            kernels: Any = ready.kernels
            kernels.route_indices(*residual, empty(ready.per_output("int64"), x), None, 1)
    return Calls(forward, backward, tangent, indices)


def offsets(launches: list[Launch]) -> set[Any]:
    return {one.constants["INDEX"] for one in launches}


# Offsets


@pytest.mark.parametrize(("size", "out"), [(46341, 46340), (46340, 46341), (2**20 + 1, 2048)])
@pytest.mark.parametrize("name", ["max", "avg"])
def test_products_of_adaptive_bins_fit_their_type(name: str, size: int, out: int) -> None:
    """Bins begin at ``o * size // out``, whose numerator may be larger than every offset."""
    calls = record(name, adaptive(1, out), (1, 1, size))
    assert offsets(calls.all) == {tl.int64}


@pytest.mark.parametrize("spec", [fixed(1, 2), adaptive(1, 32)])
def test_long_signals_need_no_large_products(spec: WindowSpec) -> None:
    calls = record("max", spec, (1, 1, 2**17))
    assert offsets(calls.all) == {tl.int32}


@pytest.mark.parametrize("bins", [1, 7])
def test_indices_of_large_planes_have_64_bits(bins: int) -> None:
    """The routes are few, but the positions that they stand for may be 2**31 or more."""
    calls = record("max", adaptive(2, bins), (1, 1, 50000, 50000), "uint8")
    assert offsets(calls.indices) == {tl.int64}


@pytest.mark.parametrize("name", ["max", "avg"])
@pytest.mark.parametrize("last", [False, True])
def test_arrays_between_separable_passes_may_be_larger_than_both(name: str, last: bool) -> None:
    """From 8000x10 to 10x8000: pooled along one axis only, an array may be 8000x8000."""
    calls = record(name, adaptive(2, (10, 8000)), (1, 40, 8000, 10), last=last)
    assert tl.int64 in offsets(calls.forward)
    assert (tl.int64 in offsets(calls.backward)) == (name == "max")  # its passes begin outermost


# Arguments


def calls_of(inference: bool) -> list[Launch]:
    """Launches of every operator with kernels, with small, wide and global windows."""
    return [
        one
        for name in WITH_KERNELS
        for spec in (fixed(2, 3, 2, 1), fixed(2, 9, 1, 4), whole(2))
        for one in record(name, spec, (2, 3, 9, 9), inference=inference).all
    ]


@pytest.mark.parametrize("inference", [False, True])
def test_no_written_tensor_is_an_alias(inference: bool) -> None:
    """A compiler may replace each written argument by a copy; see `layout.written`."""
    for one in calls_of(inference):
        last_number = max(k for k, a in enumerate(one.args) if not torch.is_tensor(a))
        memory = [a.untyped_storage()._cdata if torch.is_tensor(a) else None for a in one.args]
        outputs = memory[last_number + 1 :]
        assert outputs, one.kernel
        assert len({*outputs}) == len(outputs), one.kernel
        assert not {*outputs} & {*memory[:last_number]}, one.kernel


def test_numbers_are_integers() -> None:
    """Triton passes Python's floats in 32 bits, which divisors of float64 averages exceed."""
    for one in calls_of(inference=False):
        numbers = [a for a in one.args if not torch.is_tensor(a)]
        assert {type(n) for n in numbers} <= {int}, one.kernel


@pytest.mark.parametrize("seeded", [torch.Generator(), None, 7])
def test_seeds_are_on_the_device_of_the_input(seeded: Any) -> None:
    x = torch.empty(1, device="meta")
    assert function.FRONT_END.seed(seeded, x).device == x.device


# Threads and devices


def test_launches_of_other_threads_are_not_recorded() -> None:
    launched = []
    kernel = {(1,): lambda *args: launched.append(args)}
    x = torch.empty(1)
    first, second = (Launch(kernel, 1, 128, (x,), (n,), (), {}) for n in (2, 3))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # starts the thread
        with recorded() as own:
            pool.submit(launch, first).result()
            launch(second)
    assert launched == [(x, 2)]
    assert own == [second]


CAPABILITIES = [(7, 5), (8, 0), (12, 0)]


@pytest.mark.parametrize("hip", [None, "6.4"])
def test_kernels_are_used_where_triton_can_compile_them(
    hip: str | None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Older NVIDIA GPUs use `poolgrad.portable`."""
    request.addfinalizer(triton.is_available.cache_clear)
    triton.is_available.cache_clear()
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda d: CAPABILITIES[d.index])
    for number, capability in enumerate(CAPABILITIES):
        x = SimpleNamespace(is_cpu=False, is_cuda=True, device=torch.device("cuda", number))
        is_supported = hip is not None or capability >= (8, 0)
        engine = Engine.TRITON if is_supported else Engine.PORTABLE
        assert engines.engine_of_device(x) is engine
        for operator in OPERATORS.values():
            expected = engine if operator.name in WITH_KERNELS else Engine.PORTABLE
            assert engines.engine_of(operator, operator.options(), x) is expected
        for ties in ("first", "zero"):
            assert engines.engine_of(OPERATORS["max"], Selection(ties), x) is engine
        assert engines.engine_of(OPERATORS["max"], Selection("split"), x) is Engine.PORTABLE


def test_calls_that_are_prepared_while_compiling_are_not_cached(monkeypatch: Any) -> None:
    options = OPERATORS["max"].options()
    ready = prepare("max", fixed(2, 2), options, (1, 2, 8, 8), False, -1, "float32")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    before = triton.on_device.cache_info()
    assert engines.with_kernels(Engine.TRITON, ready).layout == ready.layout
    assert triton.on_device.cache_info() == before
