"""Tests of the GPU kernels: in Triton's interpreter on the CPU, and compiled without a device.

On a machine with a GPU, ``POOLGRAD_TEST_DEVICE=cuda pytest tests/gpu`` runs the same tests there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

DEVICE = os.environ.get("POOLGRAD_TEST_DEVICE", "cpu")
if DEVICE == "cpu":  # read when a kernel is defined
    os.environ["TRITON_INTERPRET"] = "1"


def patch_once() -> None:
    """Let Triton's interpreter patch its language once, not in each call of a helper.

    Every call of a device function inspects and replaces hundreds of attributes of
    `triton.language`, which takes nearly all of the interpreter's time.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.rewrite()(*args, **kwargs)

    interpreter._patch_lang(tl.zeros.fn)  # of triton.language.core; a launch patches the rest
    interpreter.InterpretedFunction.__call__ = call


_MISSING = [name for name in ("torch", "triton") if not find_spec(name)]


if DEVICE == "cpu" and not _MISSING:
    patch_once()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        # NumPy, of lanes that are masked: the interpreter computes them, too.
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
        if _MISSING:
            item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(_MISSING)}"))


@pytest.fixture
def device() -> Iterator[str]:
    """Where tensors live: the CPU, where kernels are interpreted, or a GPU.

    Networks are compared, so convolutions on a GPU are deterministic, and in float32 not rounded
    to TF32.
    """
    from torch.backends import cudnn

    with cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield DEVICE


def _set_engine(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Set the engine of every device, and let no call skip the choice of an engine."""
    from poolgrad.call_cache import LOOKUPS
    from poolgrad.torch import engines

    monkeypatch.setattr(engines, "engine_of_device", lambda x: engines.Engine[name])
    monkeypatch.delitem(LOOKUPS, engines.Tensor, raising=False)


@pytest.fixture
def on_triton(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pool tensors of the CPU as on a GPU: operators with Triton kernels are computed by these.

    Returns the names of the operators that were, in the order of their calls.
    """
    from poolgrad.torch import engines

    names: list[str] = []
    with_kernels = engines.with_kernels

    def recorded(engine: Any, ready: Any) -> Any:
        names.append(ready.operator.name)
        return with_kernels(engine, ready)

    _set_engine(monkeypatch, "TRITON")
    monkeypatch.setattr(engines, "with_kernels", recorded)
    return names


@pytest.fixture
def on_portable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pool tensors of the CPU as on a device without kernels."""
    _set_engine(monkeypatch, "PORTABLE")
