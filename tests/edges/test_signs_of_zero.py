"""Sums begin with 0.0: all algorithms and processors give the same sign of zero."""

from __future__ import annotations

import pytest
from instruction_sets import each_instruction_set
from processes import assert_runs

CODE = """
import numpy as np, poolgrad
WINDOWS = [(2, 2, 0), (3, 2, 1), (3, 1, 1), (3, 3, 0), (2, 3, 0), (5, 2, 2), (13, 1, 6), (4, 4, 0)]
cases = 0
for fun, options in [
    ("max", {}), ("max", {"ties": "zero"}), ("max", {"ties": "split"}), ("relu_max", {}),
    ("min", {}), ("median", {}), ("stochastic", {"generator": 1}),
    ("avg", {}), ("avg", {"count_include_pad": False}), ("avg", {"divisor_override": -3}),
]:
    for dtype in (np.float32, np.float16):
        for kernel, stride, padding in WINDOWS:
            for last in (False, True):
                for size in (19, 40):
                    rng = np.random.default_rng(size)
                    x = np.abs(rng.standard_normal((2, size, size, 9))).astype(dtype)
                    x = x if last else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
                    kwargs = dict(options, channels_last=last)
                    if fun != "stochastic":
                        kwargs["padding"] = padding
                    call = getattr(poolgrad, fun + "_pool2d"), x, kernel, stride
                    y, pullback = poolgrad.vjp(*call, **kwargs)
                    # The gradient of each output, as it is summed, is -0.0.
                    sign = 1 if options.get("divisor_override", 1) < 0 else -1
                    gx = pullback(np.full(y.shape, np.copysign(0, sign), dtype))
                    assert not np.signbit(gx).any(), (call[0], call[2:], kwargs, dtype, size)
                    cases += 1
                    if fun == "avg":
                        y = call[0](np.full_like(x, -0.0), *call[2:], **kwargs)
                        below = options.get("divisor_override", 1) < 0
                        assert (np.signbit(y) == below).all(), (call[2:], kwargs, dtype, size)
print(cases)
"""


@pytest.mark.dispatch
@each_instruction_set
def test_nothing_but_zeros_is_added_to_zero(isa: str) -> None:
    assert int(assert_runs(CODE, POOLGRAD_ISA=isa)) > 500
