"""Gradients written with non-temporal stores have the same bits as with usual stores."""

from __future__ import annotations

import pytest
from instruction_sets import each_instruction_set
from processes import assert_runs, run_python

# Results of a mebibyte or more begin with a cache line; rows of 111 and 100 are no whole lines,
# rows of 112 are three and a half times what is made at once with AVX-512, and long rows are cut in
# parts that begin anywhere.
CODE = """
import hashlib
import numpy as np, poolgrad
LAST = {"channels_last": True}
for threads in (1, 5):
    poolgrad.set_num_threads(threads)
    for dtype in (np.float32, np.float64):
        for fun, shape, args, kwargs in [
            ("max_pool2d", (40, 80, 112), (2,), {}),
            ("max_pool2d", (40, 80, 111), (2,), {}),
            ("max_pool2d", (40, 80, 112), (3, 2, 1), {}),
            ("max_pool2d", (40, 80, 112), (3, 1, 1), {}),
            ("max_pool2d", (2, 900, 192), (2,), {}),
            ("avg_pool2d", (40, 80, 112), (2,), {}),
            ("avg_pool2d", (40, 80, 112), (3, 1, 1), {}),
            ("avg_pool2d", (40, 80, 100), (3, 1, 1), {"count_include_pad": False}),
            ("max_pool2d", (1, 90, 90, 64), (2,), LAST),
            ("max_pool2d", (1, 91, 90, 64), (3, 2, 1), LAST),
            ("max_pool2d", (1, 90, 91, 48), (3, 1, 1), LAST),
            ("max_pool2d", (1, 90, 90, 50), (2,), LAST),
            ("max_pool3d", (4, 32, 48, 64), (2,), {}),
            ("max_pool3d", (4, 31, 48, 64), (3, 2, 1), {}),
            ("adaptive_avg_pool2d", (30, 112, 112), (7,), {}),
            ("adaptive_avg_pool2d", (4, 112, 112, 16), (7,), LAST),
            ("avg_pool1d", (1, 512003), (16,), {}),
            ("avg_pool1d", (3, 60005, 8), (16,), LAST),
            ("max_pool1d", (1, 512003), (2,), {}),
        ]:
            x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
            y, pullback = poolgrad.vjp(getattr(poolgrad, fun), x, *args, **kwargs)
            gx = pullback(np.random.default_rng(1).standard_normal(y.shape).astype(dtype))
            print(threads, fun, shape, args, hashlib.sha256(gx.tobytes()).hexdigest(), sep="; ")
"""


@pytest.mark.dispatch
@each_instruction_set
def test_past_the_caches_changes_no_bit(isa: str) -> None:
    through = assert_runs(CODE, POOLGRAD_ISA=isa, POOLGRAD_STREAM_BYTES=str(2**62))
    past = assert_runs(CODE, POOLGRAD_ISA=isa, POOLGRAD_STREAM_BYTES="0")
    assert len(past.splitlines()) == 2 * 2 * 19
    assert past == through


def test_a_limit_that_is_no_number_is_refused() -> None:
    done = run_python("import poolgrad", POOLGRAD_STREAM_BYTES="much")
    assert "POOLGRAD_STREAM_BYTES must be a number of bytes, got 'much'" in done.stderr
