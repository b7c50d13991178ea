"""Calls past the public functions, as pytorch#140923, #142459, #152913 and TensorFlow's CVEs were.

Each must raise, or read and write inside its arrays. All run in one child process, since any of
them might bring it down.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from processes import run_python

import poolgrad
from poolgrad.windows import fixed, flatten, fractional

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
poolgrad.max_pool2d(torch.ones(1, 2, 2), 2)  # the operators exist from the first tensor on

OPS = torch.ops.poolgrad
R = flatten(fixed(2, 2))


def numbers(
    kernel_size: int = 2, stride: int = 2, low: int = 0, high: int = 0, dilation: int = 1
) -> list[int]:
    """Fixed windows along two axes, flattened, right or wrong."""
    each = (kernel_size, stride, low, high, dilation)
    return [0, 0, 0, *(n for number in each for n in (number, number))]


assert numbers() == R
S, HALF = [2, 3, 8, 8], [2, 3, 4, 4]  # shapes of input and output


def pull(
    gy: str, kept: str, window: Any = R, shape: Any = S, inner: int = -1, ties: str = "first"
) -> str:
    return f"ops.max_pull({gy}, {kept}, {window}, {shape}, False, {inner}, {ties!r}, 'bytes')"


def push(t: str, kept: str, window: Any = R, inner: int = -1, ties: str = "first") -> str:
    return f"ops.max_push({t}, {kept}, {window}, False, {inner}, {ties!r}, 'bytes')"


GY, KEPT = f"torch.ones({HALF})", f"torch.zeros({HALF}, dtype=u8)"
BITS = f"torch.zeros({[*HALF, 1]}, dtype=u8)"
AVG = f"{R}, {S}, False, -1, True, 0"
REFUSED = {
    "gradient smaller than the output": pull("torch.ones(1, 1, 1, 1)", KEPT),
    "gradient larger than the output": pull("torch.ones(2, 3, 5, 5)", KEPT),
    "gradient of another rank": pull("torch.ones(96)", KEPT),
    "empty gradient": pull("torch.ones(0, 3, 4, 4)", KEPT),
    "integer gradient": pull(f"torch.ones({HALF}, dtype=torch.int64)", KEPT),
    "routes smaller than the output": pull(GY, "torch.zeros(1, dtype=u8)"),
    "routes larger than the output": pull(GY, "torch.zeros(9, 3, 4, 4, dtype=u8)"),
    "routes of eight bytes": pull(GY, f"torch.zeros({HALF}, dtype=torch.int64)"),
    "routes of two bytes": pull(GY, f"torch.zeros({HALF}, dtype=torch.uint16)"),
    "routes of floats": pull(GY, GY),
    "routes without memory": pull(GY, f"{KEPT}.to('meta')") + ".sum().item()",
    "shape larger than gradient and routes": pull(GY, KEPT, shape=[2, 3, 800, 800]),
    "shape of another rank": pull(GY, KEPT, shape=[8, 8]),
    "shape that is empty": pull(GY, KEPT, shape=[]),
    "negative shape": pull(GY, KEPT, shape=[2, 3, -8, -8]),
    "shape that overflows": pull(GY, KEPT, shape=[2**31, 2**31, 2**31, 2**31]),
    "inner axis out of range": pull(GY, KEPT, inner=7),
    "inner axis that is pooled": pull(GY, KEPT, inner=2),
    "bits where routes belong": pull(GY, BITS),
    "routes where bits belong": pull(GY, KEPT, ties="split"),
    "too few bits": pull(GY, "torch.zeros(2, 3, 4, 4, 0, dtype=u8)", ties="split"),
    "unknown ties": pull(GY, KEPT, ties="all"),
    "empty window": pull(GY, KEPT, window=[]),
    "window cut off": pull(GY, KEPT, window=R[:-1]),
    "window for four axes": pull(GY, KEPT, window=R + 3 * R[3:]),
    "negative kernel": f"ops.max(x, {numbers(kernel_size=-2)}, False, 'first', 'bytes')",
    "stride 0": f"ops.max(x, {numbers(stride=0)}, False, 'first', 'bytes')",
    "negative stride": f"ops.max(x, {numbers(stride=-1)}, False, 'first', 'bytes')",
    "dilation 0": f"ops.max(x, {numbers(dilation=0)}, False, 'first', 'bytes')",
    "negative padding": f"ops.max(x, {numbers(high=-3)}, False, 'first', 'bytes')",
    "negative number of bins": f"ops.max(x, {[1, 0, 0, -2, -2]}, False, 'first', 'bytes')",
    "kernel that overflows": (
        f"ops.max(x, {numbers(kernel_size=2**62, low=2**62, high=2**62)}, False, 'first', 'bytes')"
    ),
    "dilation that overflows": (
        f"ops.max(x, {numbers(kernel_size=2**40, dilation=2**40)}, False, 'first', 'bytes')"
    ),
    "average of nothing": (
        f"ops.avg(x, {numbers(kernel_size=1, stride=1, low=3, high=3)}, False, False, 0)"
    ),
    "average with stride 0": f"ops.avg(x, {numbers(stride=0)}, False, True, 0)",
    "average back from a small gradient": f"ops.avg_pull(torch.ones(1), {AVG})",
    "average back to a large shape": f"ops.avg_pull({GY}, {R}, [2, 3, 99, 99], False, -1, True, 0)",
    "tangent of another shape": push("torch.ones(2, 3, 80, 80)", KEPT),
    "tangent of another rank": push("torch.ones(8)", KEPT),
    "tangent with an inner axis out of range": push(f"torch.ones({S})", KEPT, inner=9),
    "tangent with routes of another shape": push(f"torch.ones({S})", "torch.zeros(1, dtype=u8)"),
    "indices from other routes": f"ops.route_indices(x, {BITS}, torch.empty(0), {R}, False)",
    "indices from floats": f"ops.route_indices(x, {GY}, torch.empty(0), {R}, False)",
    "indices of no windows": f"ops.route_indices(x, {KEPT}, torch.empty(0), [], False)",
    "indices of windows with stride 0": (
        f"ops.route_indices(x, {KEPT}, torch.empty(0), {numbers(stride=0)}, False)"
    ),
    "indices of fractional windows without samples": (
        f"ops.route_indices(x, {KEPT}, torch.empty(0), {flatten(fractional(2, 2, 4))}, False)"
    ),
    "no leading axes with channels last": f"ops.max(torch.ones(4, 4), {R}, True, 'first', 'bytes')",
}  # fmt: skip
ANSWERED = {  # no errors, but what they read or write must lie inside their arrays
    "routes beyond the window": pull(GY, f"torch.full({HALF}, 254, dtype=u8)"),
    "routes that point into the padding": pull(
        "torch.ones(2, 3, 5, 5)", "torch.zeros(2, 3, 5, 5, dtype=u8)", window=numbers(low=1, high=1)
    ),
    "bits beyond the window": pull(GY, f"torch.full({[*HALF, 1]}, 255, dtype=u8)", ties="split"),
    "expanded routes": pull(GY, f"torch.zeros(1, 1, 1, 1, dtype=u8).expand({HALF})"),
    "tangent along routes beyond the window": push(
        f"torch.ones({S})", f"torch.full({HALF}, 254, dtype=u8)"
    ),
    "indices of routes beyond the window": (
        f"ops.route_indices(x, torch.full({HALF}, 254, dtype=u8), torch.empty(0), {R}, False)"
    ),
}  # fmt: skip
RUN = """
import json, sys
import torch, poolgrad
u8, ops, x = torch.uint8, torch.ops.poolgrad, torch.ones(2, 3, 8, 8)
poolgrad.max_pool2d(x, 2)
for name, code in json.load(sys.stdin).items():
    print(name, end=": ", flush=True)
    try:
        made = eval(code)
        print("answered", float(made.sum()), flush=True)
    except Exception as error:
        print("refused", type(error).__name__, str(error).splitlines()[:1], flush=True)
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    done = run_python(RUN, timeout=120, stdin=json.dumps(REFUSED | ANSWERED))
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    said["all"] = f"ended with {done.returncode} after {list(said)[-1:]}: {done.stderr[-1500:]}"
    return said


def test_no_call_brings_the_process_down(outcomes: dict[str, str]) -> None:
    assert outcomes["all"].startswith("ended with 0 "), outcomes["all"]
    assert len(outcomes) == len(REFUSED) + len(ANSWERED) + 1


@pytest.mark.parametrize("name", REFUSED)
def test_bad_calls_are_refused(outcomes: dict[str, str], name: str) -> None:
    assert outcomes.get(name, "not reached").startswith("refused")


@pytest.mark.parametrize("name", ANSWERED)
def test_tampered_routes_stay_inside(outcomes: dict[str, str], name: str) -> None:
    assert outcomes.get(name, "not reached").startswith("answered")


def test_bits_of_any_strides() -> None:
    """What ties="split" keeps may come back from a hook in another layout."""
    x = torch.randint(0, 2, (2, 3, 8, 8)).float()
    y, bits = OPS.max(x, R, False, "split", "bytes")
    gy = torch.ones_like(y)
    expected = OPS.max_pull(gy, bits, R, S, False, -1, "split", "bytes")
    flipped = bits.flip(0).flip(0)
    strided = bits.movedim(0, -1).contiguous().movedim(-1, 0)
    for kept in (flipped, strided, bits.repeat_interleave(2, 1)[:, ::2]):
        assert torch.equal(kept, bits)
        assert torch.equal(OPS.max_pull(gy, kept, R, S, False, -1, "split", "bytes"), expected)
        assert torch.equal(OPS.max_push(x, kept, R, False, -1, "split", "bytes"), y)


def test_routes_of_any_strides() -> None:
    x = torch.randn(2, 3, 8, 8)
    y, routes = OPS.max(x, R, False, "first", "bytes")
    expected = OPS.max_pull(y, routes, R, S, False, -1, "first", "bytes")
    strided = routes.movedim(0, -1).contiguous().movedim(-1, 0)
    for kept in (strided, routes.repeat_interleave(2, 1)[:, ::2]):
        assert torch.equal(OPS.max_pull(y, kept, R, S, False, -1, "first", "bytes"), expected)
        assert torch.equal(OPS.max_push(x, kept, R, False, -1, "first", "bytes"), y)
