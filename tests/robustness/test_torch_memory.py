"""Every tensor that an operator takes, in memory that no kernel can read: the right values.

Zero tensors have no memory, and negative and misaligned views need a copy. Freed and shrunk tensors
are errors, in every argument of every function. All run in a child process, which a read of an
invalid address would end.
"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from processes import assert_runs  # noqa: E402

CODE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import torch, poolgrad
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of PyTorch's own forward mode
from torch.func import grad, jvp
from torch.nn import functional as F
from poolgrad.torch import accelerate, convert
from raw_ops import ALL, FIXED, WORDS, _kept

def zero(t):
    # A slice of a zero tensor: its address is the offset of the slice.
    if t.dim() == 0:
        return torch._efficientzerotensor((2,), dtype=t.dtype)[1]
    return torch._efficientzerotensor((t.shape[0] + 1, *t.shape[1:]), dtype=t.dtype)[1:]

def negative(t):
    view = torch._neg_view(-t)
    assert view.is_neg()
    return view

def misaligned(t):
    memory = torch.empty(t.numel() * t.itemsize + 1, dtype=torch.uint8)[1:]
    view = torch.frombuffer(memory.numpy(), dtype=t.dtype).view(t.shape)
    assert t.itemsize == 1 or view.data_ptr() % t.itemsize
    return view.copy_(t)

def freed(t):
    t = t.clone()
    t.untyped_storage().resize_(0)
    return t

def shrunk(t):
    # The second half of a storage that holds the first only.
    t = torch.cat([t.flatten()] * 2)[t.numel():].view(t.shape)
    t.untyped_storage().resize_(t.numel() * t.itemsize)
    return t

class Subclass(torch.Tensor):
    pass

class Dispatching(torch.Tensor):
    # A type whose operations reach those of a plain tensor, with its memory.
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return super().__torch_dispatch__(function, types, args, kwargs or dict())

class Wrapper(Dispatching):
    # The same without memory.
    @staticmethod
    def __new__(cls, t):
        return torch.Tensor._make_wrapper_subclass(cls, t.shape, dtype=t.dtype, strides=t.stride())

def refuses(call, *given):
    try:
        call(*given)
    except RuntimeError as error:
        assert "must have memory" in str(error), error
    else:
        raise AssertionError("a tensor without all its memory is read")

def numbers(made):
    made = made if isinstance(made, tuple) else (made,)
    return [m.clone() for m in made]

def outcome(call):
    try:
        return numbers(call())
    except ValueError as error:  # a value that the operator does not accept, such as r = 0
        return str(error)

def same(call, given, expected):
    one, two = outcome(lambda: call(given)), outcome(lambda: call(expected))
    if isinstance(one, str) or isinstance(two, str):
        assert one == two, (one, two)
    else:
        torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)
"""

OPERATORS = """
boxes = torch.tensor([[0, 0, 0, 4, 4.0], [1, 1, 1, 5, 6.0]])
image, gy, routes = torch.rand(2, 3, 8, 8), torch.rand(2, 3, 2, 2), torch.ones(2, 3, 2, 2).int()
shape, where = [2, 3, 8, 8], (1.0, 2, True)
calls = {
    "roi_align": ([image, boxes], ([2, 2], *where)),
    "roi_align_backward": ([gy, boxes], (shape, *where)),
    "roi_pool": ([image, boxes], ([2, 2], 1.0)),
    "roi_pool_backward": ([gy, routes, boxes], (shape,)),
    "roi_pool_gather": ([image, routes, boxes], ([2, 2],)),
}
for name in ALL:
    for suffix in ("", "_vjp", "_jvp", "_indices"):
        if not hasattr(torch.ops.poolgrad, name + suffix):
            continue
        schema = getattr(torch.ops.poolgrad, name + suffix).default._schema
        values = WORDS | _kept(name)
        tensors = [a.name for a in schema.arguments if str(a.type) == "Tensor"]
        rest = [values[a.name] for a in schema.arguments[len(tensors):]]
        calls[name + suffix] = ([values[n] for n in tensors], rest)
count = 0
for name, (tensors, rest) in calls.items():
    op = getattr(torch.ops.poolgrad, name)
    for k, given in enumerate(tensors):
        if given.numel() == 0:
            continue
        def call(t):
            return op(*tensors[:k], t, *tensors[k + 1:], *rest)
        count += 1
        same(call, zero(given), torch.zeros_like(given))
        if given.dtype not in (torch.uint8, torch.bool):
            same(call, negative(given), given)
        same(call, misaligned(given), given)
        for kind in (Subclass, Dispatching):
            same(call, misaligned(given).as_subclass(kind), given.as_subclass(kind))
        names = {"x", "operand"} if name == "stochastic_indices" else {"x"}
        if name.endswith("_indices") and op.default._schema.arguments[k].name in names:  # not read
            continue
        for kind in (torch.Tensor, Subclass, Dispatching):
            for change in (freed, shrunk):
                refuses(call, change(given).as_subclass(kind))
        refuses(call, Wrapper(given))
assert count > 70, count
"""

FUNCTIONS = """
x, v = torch.rand(1, 2, 8, 8), torch.rand(1, 2, 8, 8)
pools = [
    lambda x: poolgrad.max_pool2d(x, 2),
    lambda x: poolgrad.avg_pool2d(x, 2),
    lambda x: poolgrad.lp_pool2d(x, 3.0, 2),
    lambda x: poolgrad.soft_pool2d(x, 2),
]
converted = torch.nn.Sequential(torch.nn.MaxPool2d(2), torch.nn.AvgPool2d(2))
convert(converted)

def accelerated(x):
    with accelerate():
        return F.max_pool2d(x, 2)

def backward(pool, change):
    leaf = x.clone().requires_grad_()
    y = pool(leaf)
    y.backward(change(torch.zeros(y.shape)))
    return leaf.grad

for pool in (*pools, converted, accelerated):
    for _ in range(3):  # the second and third call are cached
        pool(x)
        same(pool, zero(x), torch.zeros_like(x))
        same(pool, negative(x), x)
        same(pool, misaligned(x), x)
        for change in (zero, negative, misaligned):
            assert not backward(pool, change).count_nonzero()

for first in pools:
    for second in pools:
        def joined(a):
            return torch.cat([first(a), second(a)], 1).pow(2).sum()
        hessian = torch.func.hessian(joined)(x).reshape(128, 128)
        product = grad(lambda a: jvp(joined, (a,), (v,))[1])(x)
        torch.testing.assert_close(product.flatten(), hessian @ v.flatten())

values = torch.rand(1, 2, 2, 2)
indices = torch.zeros(1, 2, 2, 2, dtype=torch.int64)
same(lambda i: poolgrad.max_unpool2d(values, i, 2), zero(indices), indices)
boxes = torch.tensor([[0, 0, 0, 4, 4.0], [0, 1, 1, 5, 6.0]])
for pool in (poolgrad.roi_align, poolgrad.roi_pool):
    for change in (zero, negative, misaligned):
        same(lambda x: pool(x, boxes, 2), change(x), x if change is not zero else 0 * x)
        same(lambda b: pool(x, b, 2), change(boxes), boxes if change is not zero else 0 * boxes)
for learned in (torch.rand(2), torch.rand(())):
    same(lambda p: poolgrad.mixed_pool2d(x, 2, alpha=p), zero(learned), torch.zeros_like(learned))
for pool in (lambda n: poolgrad.max_pool2d(x, 2, 2, n), lambda n: poolgrad.max_pool2d(x, n)):
    same(pool, zero(torch.ones(2).int()), torch.zeros(2).int())

pool = poolgrad.torch.AdaptivePolyphasePool2d()
for change in (zero, negative, misaligned):
    same(pool, change(x), x if change is not zero else 0 * x)
"""

ARGUMENTS = """
from itertools import product
from torch.autograd import forward_ad
from poolgrad.indices import convert_indices

x, wide, rows = torch.rand(2, 2, 8, 8), torch.rand(2, 2, 8, 8).double(), torch.rand(2).double()
boxes = torch.tensor([[0, 0, 0, 4, 4.0], [1, 1, 1, 5, 6.0]])
samples = torch.rand(2, 2, 2)
converted_max = torch.nn.MaxPool2d(2)
convert(converted_max)
own = torch.nn.FractionalMaxPool2d(2, output_size=3, _random_samples=samples)
convert(own)

def fractional(s):
    return poolgrad.fractional_max_pool2d(x, 2, output_size=3, _random_samples=s)

def converted(s):
    own._random_samples = s
    return own(x)

def pull(gy):
    leaf = torch.rand(2, 2, 16, 16, dtype=gy.dtype).requires_grad_()
    return torch.autograd.grad(poolgrad.lp_pool2d(leaf, 3.0, 2), leaf, gy)

def second(v):
    leaf = torch.rand(v.shape, dtype=v.dtype).requires_grad_()
    gx, = torch.autograd.grad(poolgrad.lp_pool2d(leaf, 3.0, 2).sum(), leaf, create_graph=True)
    return torch.autograd.grad(gx, leaf, v)

takes = {
    "max": (lambda x: poolgrad.max_pool2d(x, 2), x),
    "range": (lambda x: poolgrad.range_pool2d(x, 2), x),
    "lip": (lambda x: poolgrad.lip_pool2d(x, torch.rand(2, 2, 8, 8), 2), x),
    "logits": (lambda logits: poolgrad.lip_pool2d(x, logits, 2), x),
    "r": (lambda r: poolgrad.log_mean_exp_pool2d(x, 2, r=r), rows.float()),
    "r, converted": (lambda r: poolgrad.log_mean_exp_pool2d(x, 2, r=r), rows),
    "r of a batch": (
        torch.vmap(lambda r: poolgrad.log_mean_exp_pool2d(x, 2, r=r)), rows.repeat(2, 1)
    ),
    "r of a module": (lambda r: poolgrad.torch.LogMeanExpPool2d(2, r=torch.nn.Parameter(r)), rows),
    "input": (lambda x: poolgrad.roi_align(x, boxes, 2), x),
    "boxes": (lambda b: poolgrad.roi_pool(x, b, 2), boxes),
    "boxes, converted": (lambda b: poolgrad.roi_align(x, b, 2), boxes.double()),
    "list of boxes": (lambda b: poolgrad.roi_align(x, [b, boxes[:, 1:]], 2), boxes[:, 1:].clone()),
    "samples": (fractional, samples),
    "samples, converted": (fractional, samples.double()),
    "samples of a module": (converted, samples.double()),
    "indices of a library": (
        lambda i: convert_indices(i, x.shape, "torch", "onnx"), torch.zeros(x.shape).long()
    ),
    "indices": (lambda i: poolgrad.max_unpool2d(x, i, 2), torch.zeros(x.shape).long()),
    "cotangent": (pull, x),
    "second cotangent": (second, x),
}
for (name, (call, given)), change in product(takes.items(), (freed, shrunk)):
    call(given.clone())
    try:
        refuses(call, change(given))
        if given.is_floating_point() and name in ("max", "input", "cotangent"):
            refuses(call, torch._neg_view(change(given)))
        if "," not in name and "batch" not in name and "module" not in name:
            refuses(call, change(given).as_subclass(Dispatching))
    except BaseException:
        print(name, change.__name__, file=sys.stderr)
        raise

for pool, size in product((lambda x: poolgrad.lp_pool2d(x, 3.0, 2), converted_max), (0, 64)):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(x.shape))
        pool(dual)
        forward_ad.unpack_dual(dual).tangent.untyped_storage().resize_(size)
        refuses(pool, dual)
"""


@pytest.mark.parametrize(
    "code", [OPERATORS, FUNCTIONS, ARGUMENTS], ids=["operators", "functions", "arguments"]
)
def test_tensors_without_readable_memory(code: str) -> None:
    assert_runs(CODE + code)
