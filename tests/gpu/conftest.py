"""Tests of the GPU kernels: in Triton's interpreter on the CPU, and compiled without a device.

On a machine with a GPU, ``POOLGRAD_TEST_DEVICE=cuda pytest tests/gpu`` runs the same tests there.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

DEVICE = os.environ.get("POOLGRAD_TEST_DEVICE", "cpu")
if DEVICE == "cpu":  # read when a kernel is defined
    os.environ["TRITON_INTERPRET"] = "1"

_MISSING = [name for name in ("torch", "triton") if not find_spec(name)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" not in item.path.parts:
            continue
        # NumPy, of lanes that are masked: the interpreter computes them, too.
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
        if _MISSING:
            item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(_MISSING)}"))


@pytest.fixture
def device() -> str:
    """Where tensors live: the CPU, where kernels are interpreted, or a GPU."""
    return DEVICE


@pytest.fixture
def on_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the front end for PyTorch use the Triton kernels, also for tensors of the CPU."""
    from poolgrad.call_cache import LOOKUPS
    from poolgrad.torch import adapter, function, triton

    for module in (adapter, function):
        monkeypatch.setattr(module, "with_kernels_for", lambda ready, x: triton.on_device(ready))
    monkeypatch.delitem(LOOKUPS, adapter.Tensor, raising=False)
