"""Every variant compiled for GPUs that are not present; what a compiler traces of an operator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("cuda:80", marks=pytest.mark.nightly),
        pytest.param("cuda:90", marks=pytest.mark.slow),
        pytest.param("hip:gfx942", marks=pytest.mark.nightly),
    ],
)
def test_every_variant_compiles(target: str) -> None:
    run(str(Path(__file__).with_name("compile_offline.py")), target)


TRACE = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
import poolgrad.torch
from poolgrad.windows import fixed, flatten

def pool(x):
    return torch.ops.poolgrad.max(x, flatten(fixed(2, 3, 2, 1)), False, "first", "bytes")

def pool_without_kernels(x):
    window = flatten(fixed(2, 3, 2, 1))
    y, routes = torch.ops.poolgrad.median(x, window, False, "first", "bytes")
    return y, torch.ops.poolgrad.max(x, window, False, "split", "bytes")[0]

with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
    for device in ("cuda", "cpu"):
        x = torch.empty(2, 3, 8, 16, device=device)
        print(device, make_fx(dispatch_functionalize(pool))(x).code)
    x = torch.empty(2, 3, 8, 16, device="cuda")
    print("portable", make_fx(dispatch_functionalize(pool_without_kernels))(x).code)
"""


def test_compilers_see_the_kernels() -> None:
    """On a GPU launches of Triton kernels; on the CPU, and without such kernels, the operator."""
    gpu, rest = run("-c", TRACE).split("\ncpu ")
    cpu, portable = rest.split("\nportable ")
    assert "triton_kernel_wrapper" in gpu
    assert "poolgrad.max" not in gpu
    assert "poolgrad.max" in cpu
    assert "triton_kernel_wrapper" not in portable
    assert "poolgrad.median" in portable
    assert "poolgrad.max" in portable


SIZES = """
import sys
import torch
sys.path.append(sys.argv[1])
from compile_offline import source_of
from poolgrad.tools.bench.gpu_model import _Row, _variants_of
from poolgrad.windows import whole

for name, options in (("lp", (True,)), ("log_mean_exp", ())):
    for dims in (1, 2, 3):
        for last in (False, True):
            rows = [_Row(name, "global", whole(dims), (2, 8, *(n,) * dims), options)
                    for n in (24, 40, 56)]
            calls = [v for row in rows for v in _variants_of(row, torch.float32, last)]
            kernels = {source_of(one).hash() for v in calls for one in v.launches}
            assert len(kernels) == 2, (name, dims, last, len(kernels))
"""


def test_planes_of_all_sizes_share_a_kernel() -> None:
    """One forward and one backward: a network that sees images of many sizes compiles once."""
    run("-c", SIZES, str(Path(__file__).parent))
