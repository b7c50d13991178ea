"""Every variant compiled for GPUs that are not there, and what a compiler sees of an operator."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")


def run(*command: str) -> str:
    """Python where kernels are compiled, not interpreted."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_every_variant_compiles(target: str) -> None:
    run("-m", "poolgrad.torch.triton.variants", target)


TRACE = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
import poolgrad.torch
from poolgrad.windows import fixed, flatten

def pool(x):
    return torch.ops.poolgrad.max(x, flatten(fixed(2, 3, 2, 1)), False, "first", "bytes")

with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
    for device in ("cuda", "cpu"):
        x = torch.empty(2, 3, 8, 16, device=device)
        print(device, make_fx(dispatch_functionalize(pool))(x).code)
"""


def test_compilers_see_the_kernels() -> None:
    """On a GPU launches of Triton kernels, on the CPU the operator."""
    gpu, cpu = run("-c", TRACE).split("\ncpu ")
    assert "triton_kernel_wrapper" in gpu
    assert "poolgrad.max" not in gpu
    assert "poolgrad.max" in cpu
