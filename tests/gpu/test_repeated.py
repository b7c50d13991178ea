"""Launches that are repeated for other tensors of the same layouts; see `launch.repeated`."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from torch import Tensor  # noqa: E402

from poolgrad.dtypes import name_of  # noqa: E402
from poolgrad.operators import OPERATORS, Prepared, prepare  # noqa: E402
from poolgrad.torch import triton  # noqa: E402
from poolgrad.torch.arrays import empty, inner_of  # noqa: E402
from poolgrad.windows import WindowSpec, fixed, whole  # noqa: E402

SHAPE = (1, 2, 6, 12)
CASES = {
    "max": fixed(2, 3, 2, 1),
    "max, separable": fixed(2, 7, 1, 3),
    "max, whole planes": whole(2),
    "avg": fixed(2, 3, 1, 1),
    "avg, separable": fixed(2, 7, 1, 3),
    "avg, whole planes": whole(2),
    "soft": fixed(2, 3, 2, 1),
    "soft, stride 1": fixed(2, 3, 1, 1),
    "mixed": fixed(2, 2),
}


def prepared(case: str, spec: WindowSpec, x: Tensor) -> Prepared:
    name = case.partition(", ")[0]
    options = OPERATORS[name].options()
    where = (tuple(x.shape), False, inner_of(x, spec, False), name_of(x.dtype))
    return prepare(name, spec, options, *where)


def outcome(ready: Prepared, x: Tensor, gy: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the gradient for the first cotangents of `gy` or for all."""
    number = torch.tensor([0.5], device=x.device)
    operand = (number, 1) if ready.operator.operand.count else None
    y, gx = empty(ready.output, x), empty(ready.input, x)
    residual = tuple(empty(b, x) for b in ready.residual)
    how = {"residual": residual, "operand": operand}
    ready.operator.forward(ready.call(x, y, **how))
    cotangent = gy[..., : y.shape[2], : y.shape[3]]
    ready.operator.vjp(ready.call(cotangent, gx, x=x, **how))
    return y, gx


def moved(x: Tensor, device: str) -> Tensor:
    """Move a tensor to a device with all of its storage, so that slices stay slices."""
    storage = x.new_empty(0).set_(x.untyped_storage()).to(device)
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())


def assert_repeats(case: str, given: list[tuple[Tensor, Tensor]], device: str) -> Prepared:
    """Compare calls of one layout with those of the CPU kernels."""
    on_cpu = prepared(case, CASES[case], given[0][0])
    ready = triton.on_device.__wrapped__(on_cpu)  # without launches of other tests
    for x, gy in given:
        expected = outcome(on_cpu, x, gy)
        made = outcome(ready, moved(x, device), moved(gy, device))
        for found, other in zip(made, expected, strict=True):
            torch.testing.assert_close(found.cpu(), other)
    return ready


def numbers(seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.manual_seed(seed)
    x, gy = (torch.randn(SHAPE, generator=generator, dtype=dtype) for _ in range(2))
    return x, gy


@pytest.mark.parametrize("case", CASES)
def test_repeated_launches_read_and_write_their_own_tensors(case: str, device: str) -> None:
    ready = assert_repeats(case, [numbers(seed) for seed in range(3)], device)
    bound = vars(ready.kernels)["bound"]
    assert bound
    assert all(bound.values()), "a method is prepared again in each call"


def test_a_repeated_call_prepares_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, gy = (t.to(device) for t in numbers(0))
    ready = triton.on_device.__wrapped__(prepared("max", CASES["max"], x.cpu()))
    first = outcome(ready, x, gy)
    monkeypatch.delattr("poolgrad.torch.triton.kernels.launch")
    for found, expected in zip(outcome(ready, x, gy), first, strict=True):
        assert torch.equal(found, expected)


def test_other_layouts_are_prepared(device: str) -> None:
    """Slices, transposed images, and addresses that are not multiples of 16."""
    x, gy = numbers(0)
    wide = torch.randn(1, 2, 6, 25, generator=torch.manual_seed(1))
    given = [(x, gy), (wide[..., 1:13], gy), (wide[..., 2:14], gy), (wide[..., ::2][..., 1:], gy)]
    assert_repeats("max", [*given, *given], device)
    assert_repeats("avg", [(a, a) for a, _ in given] * 2, device)


def test_two_dtypes_of_a_gradient(device: str) -> None:
    """As `mixed` has: one layout, and gradients of the dtype of the input and of sums."""
    x, gy = (t.to(device) for t in numbers(0))
    kernels: Any = triton.on_device.__wrapped__(prepared("avg", CASES["avg"], x.cpu())).kernels
    made = [torch.empty_like(x, dtype=dtype) for dtype in (torch.float32, torch.float64) * 2]
    for gx in made:
        kernels.average_backward(gy, gx, True, 0, 1)
    for gx in made[1:]:
        torch.testing.assert_close(gx.float(), made[0])


def test_bool_is_read_as_bytes(device: str) -> None:
    on_cpu = prepared("max", CASES["max"], torch.empty(SHAPE, dtype=torch.bool))
    ready = triton.on_device.__wrapped__(on_cpu)
    for seed in range(3):
        x = numbers(seed)[0] > 1
        outputs: list[Any] = []
        for call, tensor in ((on_cpu, x), (ready, x.to(device))):
            y = empty(call.output, tensor)
            routes = tuple(empty(b, tensor) for b in call.residual)
            call.operator.forward(call.call(tensor, y, residual=routes))
            outputs.append((y.cpu(), *(r.cpu() for r in routes)))
        for found, expected in zip(*outputs, strict=True):
            assert torch.equal(found, expected)


def test_one_tensor_for_two_arguments(device: str) -> None:
    """The launches of a call with one tensor as two arguments are not stored."""
    x, gy = numbers(0)
    assert_repeats("soft, stride 1", [(x, x), (x, gy), (gy, x)], device)
