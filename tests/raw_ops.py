"""``torch.ops.poolgrad`` past the public functions: calls that are right, to be spoilt.

`pooled`, `pulled` and `pushed` fill in everything that a caller does not replace by name, so that
a case says what is wrong in it and nothing else. Imported by child processes, too.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from processes import run_python

import poolgrad
from poolgrad.windows import adaptive, fixed, flatten, fractional

poolgrad.max_pool2d(torch.ones(1, 2, 2), 2)  # the operators exist from the first tensor on

SHAPE, HALF = [2, 3, 8, 8], [2, 3, 4, 4]
WORDS = {
    "channels_last": False, "inner": -1, "shape": SHAPE, "ties": "first", "routes": "bytes",
    "tracked": True,
    "count_include_pad": True, "divisor": 0, "rounding": [], "mean": False,
}  # fmt: skip
FIXED = flatten(fixed(2, 2))
WINDOWS = {
    "fractional_max": flatten(fractional(2, 2, 4)),
    "max_unpool": flatten(adaptive(2, 16)),
}
LEARNED = ("lp", "log_mean_exp", "mixed")
NONLINEAR = ("lp", "log_mean_exp", "soft", "expected", "mixed")
ROUTED = ("max", "relu_max", "min", "median", "stochastic", "fractional_max")
ALL = (*ROUTED, "avg", *NONLINEAR, "max_unpool")


def window(name: str) -> list[int]:
    return WINDOWS.get(name, FIXED)


def x() -> torch.Tensor:
    return torch.linspace(-1, 2, 2 * 3 * 8 * 8).view(SHAPE)


def operand(name: str) -> torch.Tensor | None:
    """The tensor beside the input, if there is one."""
    return {
        "lp": torch.tensor(3.0),
        "log_mean_exp": torch.tensor(2.0),
        "mixed": torch.tensor(0.25),
        "stochastic": torch.tensor(7),
        "fractional_max": torch.full((2, 3, 2), 0.5),
        "max_unpool": torch.arange(2 * 3 * 8 * 8).view(SHAPE) % 256,
    }.get(name)


def _call(op: str, right: dict[str, Any], spoilt: dict[str, Any]) -> Any:
    call = getattr(torch.ops.poolgrad, op).default
    names = [a.name for a in call._schema.arguments]
    assert set(spoilt) <= set(names), f"{op} takes {names}"
    values = WORDS | right | spoilt
    return call(**{n: values[n] for n in names})


def pooled(name: str, **spoilt: Any) -> Any:
    right = {"x": x(), "operand": operand(name), "window": window(name)}
    return _call(name, right, spoilt)


def _kept(name: str) -> dict[str, Any]:
    """What goes with a forward that was right: its arguments, a gradient, and what it keeps."""
    made = pooled(name)
    y, *residual = made if isinstance(made, tuple) else (made,)
    right = {"x": x(), "operand": operand(name), "window": window(name), "gy": torch.ones_like(y)}
    return right | {"t": x()} | {f"residual{k}": r for k, r in enumerate(residual)}


def pulled(name: str, **spoilt: Any) -> Any:
    return _call(f"{name}_vjp", _kept(name), spoilt)


def pushed(name: str, **spoilt: Any) -> Any:
    return _call(f"{name}_jvp", _kept(name), spoilt)


_RUN = """
import json, sys
sys.path.insert(0, {tests!r})
import numpy as np
import torch
import poolgrad
from raw_ops import *
for name, code in json.load(sys.stdin).items():
    print(name, end=": ", flush=True)
    try:
        made = eval(code)
        made = made if isinstance(made, tuple) else (made,)
        print("answered", float(sum(m.sum() for m in made)), flush=True)
    except Exception as error:
        said = " ".join(str(error).split())
        print("refused with", type(error).__name__, said[:300], flush=True)
"""


def outcomes(cases: dict[str, str]) -> dict[str, str]:
    """For each expression "answered ..." or "refused with ...", or how it ended the process."""
    said: dict[str, str] = {}
    while len(said) < len(cases):
        rest = {name: code for name, code in cases.items() if name not in said}
        code = _RUN.format(tests=os.path.dirname(__file__))
        done = run_python(code, timeout=120, stdin=json.dumps(rest))
        lines = [line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line]
        assert lines, done.stderr[-2000:]
        said |= {name: outcome or f"ended with {done.returncode}" for name, outcome in lines}
    return said
