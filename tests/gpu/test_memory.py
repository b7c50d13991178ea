"""Kernels read and write nothing outside of their tensors: every address in the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from gpu_calls import WITH_KERNELS, made, name_of, outcome  # noqa: E402

from poolgrad.torch import triton as package  # noqa: E402
from poolgrad.torch.triton import launch  # noqa: E402


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch, device: str) -> Iterator[list[int]]:
    """Check each access against the tensors of its launch; count the accesses."""
    if device != "cpu":
        pytest.skip("compute-sanitizer checks accesses on a GPU; see benchmarks/gpu.sh")
    from triton.runtime import interpreter

    tensors: list[torch.Tensor] = []
    counted = [0]
    launched = launch._launched

    def remember(one: launch.Launch) -> Any:
        def repeat_checked(*args: Any) -> None:
            tensors[:] = [a for a in args if torch.is_tensor(a)]
            repeat(*args)

        tensors[:] = [a for a in one.args if torch.is_tensor(a)]
        repeat = launched(one)
        return repeat_checked

    def check(addresses: Any, mask: Any) -> None:
        wanted = np.atleast_1d(addresses.data)
        active = np.broadcast_to(np.atleast_1d(mask.data), wanted.shape).astype(bool)
        wanted = wanted[active].astype(np.int64)
        inside = np.zeros(wanted.shape, bool)
        for t in tensors:
            begin = t.untyped_storage().data_ptr()
            inside |= (wanted >= begin) & (wanted < begin + t.untyped_storage().nbytes())
        assert inside.all(), "an access outside of every tensor"
        counted[0] += wanted.size

    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def checked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        check(ptrs, mask)
        return load(self, ptrs, mask, *rest)

    def checked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(ptrs, mask)
        return store(self, ptrs, value, mask, *rest)

    monkeypatch.setattr(launch, "_launched", remember)
    monkeypatch.setattr(builder, "create_masked_load", checked_load)
    monkeypatch.setattr(builder, "create_masked_store", checked_store)
    package.on_device.cache_clear()  # every launch passes `remember`
    yield counted
    package.on_device.cache_clear()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("call", WITH_KERNELS, ids=name_of)
def test_accesses_are_inside_of_tensors(
    call: Any, channels_last: bool, device: str, on_triton: list[str], checked: list[int]
) -> None:
    pool, x = made(call, device, channels_last=channels_last)
    outcome(pool, x)
    assert on_triton
    assert checked[0] > x.numel()
