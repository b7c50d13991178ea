"""The cost of a call grows with its valid inputs, not with the taps of its windows.

Windows with billions of places are the same windows as small ones, wherever both hold all inputs.
They have to give the same, in a process that may take 256 MB more than the small calls have.
"""

from __future__ import annotations

import pytest
from frontend_calls import torch
from processes import assert_runs

CODE = """
import resource
import numpy as np
import poolgrad

def windows(kernel_size, padding, stride=1, dilation=1):
    return dict(kernel_size=kernel_size, padding=padding, stride=stride, dilation=dilation)

# Small, and with the same inputs and outputs but more places.
PAIRS = [
    (1, windows(32, 16), windows(2**31, 2**30)),
    (1, windows(32, 16, 10**9), windows(2**25, 2**24, 10**9)),
    (1, windows(16, 24, dilation=3), windows(2**20, 3 * 2**19, dilation=3)),
    (2, windows(8, 4), windows((2**15, 2**16), (2**14, 2**15))),
]
random = np.random.default_rng(0)
X = {{1: random.standard_normal((2, 1, 10)), 2: random.standard_normal((2, 1, 3, 4))}}

def pool(name, dims, x, windows):
    fun = getattr(poolgrad, f"{{name}}_pool{{dims}}d")
    extras = {extras}.get(name, {{}})
    {body}

CALLS = [(name, dims, X[dims]) for name in {names} for dims, *_ in PAIRS]
expected = [pool(*call, small) for call, (_, small, _) in zip(CALLS, PAIRS * len({names}))]
with open("/proc/self/statm") as file:
    taken = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**28,) * 2)
for call, (_, _, large), same in zip(CALLS, PAIRS * len({names}), expected):
    np.testing.assert_array_equal(pool(*call, large), same, str((call[0], large)))
"""
EXTRAS = {
    "stochastic": {"generator": 5},
    "lp": {"norm_type": 3.0},
    "mixed": {"count_include_pad": False},
}


def assert_costs_the_same(names: tuple[str, ...], *body: str) -> None:
    code = CODE.format(names=names, extras=EXTRAS, body="\n    ".join(body))
    assert_runs(code, timeout=60)


def test_forward() -> None:
    names = ("max", "median", "stochastic", "lp", "log_mean_exp", "soft", "mixed")
    assert_costs_the_same(names, "return fun(x, **windows, **extras)")


def test_backward() -> None:
    assert_costs_the_same(
        ("max", "median", "stochastic", "lp", "log_mean_exp", "soft", "mixed"),
        "y, pullback = poolgrad.vjp(fun, x, **windows, **extras)",
        "return pullback(y)",
    )


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.slow
def test_second_derivatives() -> None:
    assert_costs_the_same(
        ("lp", "log_mean_exp", "soft", "mixed"),
        "import torch",
        "leaf = torch.tensor(x, requires_grad=True)",
        "y = fun(leaf, **windows, **extras)",
        "(g,) = torch.autograd.grad((y * y).sum(), leaf, create_graph=True)",
        "return torch.autograd.grad((g * g).sum(), leaf)[0].numpy()",
    )
