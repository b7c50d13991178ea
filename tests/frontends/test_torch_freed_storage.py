"""Tensors whose storage was freed or made smaller, as FSDP does: an error in every path.

All run in a child process, which a read beyond the storage may end.
"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from processes import assert_runs  # noqa: E402

CODE = """
import sys
sys.path.insert(0, FOLDER)
import torch, poolgrad
from raw_ops import pooled, pulled, pushed, operand, x as image
from torch.nn import functional as F
from poolgrad.torch import accelerate, convert

SHAPE = (1, 2, 64, 64)

def full():
    return torch.ones(SHAPE)

def sliced():
    return torch.ones(1, 4, 64, 64)[:, 1::2]

def freed(t):
    t.untyped_storage().resize_(0)
    return t

def shrunk(t):
    t.untyped_storage().resize_(t.untyped_storage().nbytes() - 64)
    return t

def refuses(words, call):
    try:
        call()
    except RuntimeError as error:
        assert words in str(error), error
        return
    raise AssertionError(f"no error with {words}")

def learn(pool, x):
    x = x.detach().requires_grad_()
    return x, pool(x)

def backward(pool, spoil):
    x, y = learn(pool, full())
    refuses("gy must have memory", lambda: torch.autograd.grad(
        y, x, spoil(torch.ones(y.shape)), retain_graph=True))
    (gx,) = torch.autograd.grad(y, x, torch.ones(()).expand(y.shape))
    assert gx.sum() == y.numel()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        x, y = learn(pool, full())
    for tensor in saved:
        spoil(tensor.data)
        refuses("must have memory", lambda: torch.autograd.grad(y, x, full()[..., ::2, ::2]))

for pool in (lambda x: poolgrad.max_pool2d(x, 2), lambda x: poolgrad.soft_pool2d(x, 2)):
    for spoil in (freed, shrunk):
        for _ in range(3):  # the second and third call are remembered
            for make in (full, sliced):
                refuses("x must have memory", lambda: pool(spoil(make())))
                refuses("x must have memory", lambda: learn(pool, spoil(make())))
                pool(make())
                learn(pool, make())
            backward(pool, spoil)

converted = torch.nn.MaxPool2d(2)
convert(converted)
for spoil in (freed, shrunk):
    for _ in range(2):
        converted(full())
        refuses("", lambda: converted(spoil(full())))
        with accelerate():
            refuses("", lambda: F.max_pool2d(spoil(full()), 2))
            backward(lambda x: F.max_pool2d(x, 2), spoil)

for name in ("lp", "mixed", "stochastic", "fractional_max", "max_unpool"):
    for call in (pooled, pulled):
        beside = freed(operand(name).clone())
        refuses("must have memory", lambda: call(name, operand=beside))
    refuses("x must have memory", lambda: pooled(name, x=freed(image().clone())))
refuses("t must have memory", lambda: pushed("max", t=freed(image().clone())))
"""


def test_freed_memory_is_refused() -> None:
    assert_runs(f"FOLDER = {str(Path(__file__).parents[1])!r}\n{CODE}")
