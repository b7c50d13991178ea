"""Kernels access only their own arrays: each lies next to pages without access.

A few of the generated calls; `.ci/run` makes 10,000 with each instruction set, ``make fuzz``
200,000.
"""

from __future__ import annotations

import os
import re
import sys

import numpy as np
import pytest
from instruction_sets import BEST, each_instruction_set
from processes import assert_runs

pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

from robustness.calls import KINDS, _bounded, call
from robustness.drive import outcome
from robustness.fuzz import fuzz
from robustness.memory import Heap

import poolgrad
from poolgrad.functional import FUNCTIONS

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="pages are protected by Linux's mprotect here"
)


@linux
@pytest.mark.dispatch
@each_instruction_set
def test_generated_calls_stay_inside_their_arrays(isa: str) -> None:
    assert fuzz(0, 150, sets=[isa]) == []


NARROW = """
import numpy as np, poolgrad
from robustness.memory import Guarded, placed
memory = Guarded()
for name, shape, dtype, kernel, stride, padding, dilation in [
    ("max_pool2d", (8, 8), "float32", 3, 1, 9, 4),
    ("max_pool2d", (3, 2), "float32", 3, 1, 5, 3),
    ("avg_pool2d", (6, 1), "float64", 3, 1, 6, 3),
    ("avg_pool2d", (9, 4), "float32", 3, 1, 5, 2),
    ("max_pool3d", (2, 5, 1), "float32", 2, 1, 5, 4),
]:
    for side in ("end", "begin"):
        memory.reset(side)
        x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
        options = {"stride": stride, "padding": padding, "dilation": dilation}
        y = getattr(poolgrad, name)(placed(memory, x), kernel, **options)
        expected = getattr(poolgrad.reference, name)(x, kernel, **options)
        np.testing.assert_allclose(y, expected, 1e-6)
"""


@linux
@pytest.mark.dispatch
@each_instruction_set
def test_planes_narrower_than_their_padding(isa: str) -> None:
    """Rows beside the padding were read where they lie, also where the input has ended."""
    assert_runs(NARROW, POOLGRAD_ISA=isa, PYTHONPATH=os.pathsep.join(sys.path))


APART = """
import numpy as np, poolgrad
from robustness.memory import Guarded, placed
memory = Guarded()
for dtype in ("float16", "float32", "float64"):
    for lanes in (4, 8, 16, 32):  # of a vector
        # Images are neighbours in memory, then come two rows, then the columns.
        x = np.asfortranarray(np.zeros((lanes // 2, 1, 2, 17, 2), dtype))
        x[...] = np.random.default_rng(0).standard_normal(x.shape)
        for name in ("avg_pool2d", "max_pool2d", "min_pool2d"):
            memory.reset("end")
            options = {"stride": 1, "padding": "same", "channels_last": True}
            y = getattr(poolgrad, name)(placed(memory, x), 7, **options)
            expected = getattr(poolgrad.reference, name)(x, 7, **options)
            tolerance = 2e-3 if dtype == "float16" else 1e-6
            np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance)
"""


@linux
@pytest.mark.dispatch
@each_instruction_set
def test_columns_that_are_a_vector_apart(isa: str) -> None:
    """Columns of fewer channels than lanes were copied as whole vectors, also the last one."""
    assert_runs(APART, POOLGRAD_ISA=isa, PYTHONPATH=os.pathsep.join(sys.path))


@linux
def test_a_call_that_ends_its_process_is_named() -> None:
    """Seed 3 is made to read from a guard page; the calls after it run all the same."""
    failures = fuzz(1, 6, ["--crash", "3"], sets=[BEST])
    assert len(failures) == 1
    assert "SIGSEGV" in failures[0]
    assert "python -m robustness.drive --first 3" in failures[0]


@linux
@pytest.mark.slow
def test_tensors_that_other_code_may_pass() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert fuzz(0, 300, ["--tensors"], sets=[BEST]) == []


def test_calls_are_repeated_from_their_seeds() -> None:
    for seed in range(20):
        one, other = call(seed), call(seed)
        assert repr(one) == repr(other)
        assert one.case.x.tobytes() == other.case.x.tobytes()


def test_a_call_has_a_bounded_number_of_outputs() -> None:
    """Thousands of planes of few inputs, each with thousands of outputs, took all memory."""
    windows = {"kernel_size": 3, "stride": 1, "padding": [(27, 27), (25, 25), (26, 26)]}
    kwargs = {**windows, "dilation": 13, "channels_last": False, "norm_type": np.ones(5850)}
    x, kwargs = _bounded(np.ones((5850, 1, 14, 1), np.float32), (1, 14, 1), kwargs)
    assert 0 < poolgrad.lp_pool3d(x, **kwargs).size <= 1 << 22
    assert kwargs["stride"] == 1


def test_few_calls_are_refused() -> None:
    """Else less is tested than it seems; and only sizes and windows that must be."""
    made = [outcome(call(seed), Heap(), 1)[0] for seed in range(300)]
    refused = [m.decode() for m in made if m.startswith((b"ValueError", b"TypeError"))]
    assert 5 < len(refused) < 45
    assert [m for m in refused if not re.search("padding|positive|spans|need", m)] == []


def test_every_public_function_is_called() -> None:
    made = [call(seed) for seed in range(1500)]
    assert {c.case.fun for c in made} == set(FUNCTIONS)
    assert len({c.case.x.dtype.newbyteorder("=") for c in made}) == 12
    sizes = {n for c in made for n in c.case.x.shape}
    assert {0, 1, 33, 40} <= sizes
    assert any(s < 0 for c in made for s in c.case.x.strides)
    assert len(KINDS) == len(set(KINDS))
