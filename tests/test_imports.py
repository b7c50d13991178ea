"""What importing costs: NumPy alone, and a framework only when its array comes."""

from __future__ import annotations

import sys

import pytest
from fronts import torch
from processes import assert_runs

HEAVY = ("torch", "scipy", "jax", "dask", "matplotlib", "sklearn", "rich", "typer", "hypothesis")


def loaded(code: str) -> set[str]:
    """Top-level modules that are loaded after `code`."""
    names = assert_runs(f"{code}\nimport sys; print(*{{m.split('.')[0] for m in sys.modules}})")
    return set(names.split())


def test_importing_poolgrad_loads_no_framework() -> None:
    modules = loaded("import poolgrad")
    assert modules.isdisjoint(HEAVY)
    new = modules - loaded("import numpy") - set(sys.stdlib_module_names)
    assert new <= {"poolgrad", "nanobind", "_kernels"}


def test_pooling_numpy_arrays_loads_no_framework() -> None:
    modules = loaded(
        "import numpy as np, poolgrad\n"
        "y, pullback = poolgrad.vjp(poolgrad.max_pool2d, np.ones((4, 4)), 2)\n"
        "pullback(y), pullback.routes, pullback.mask()\n"
        "poolgrad.reference.avg_pool2d(np.ones((4, 4)), 2)\n"
    )
    assert modules.isdisjoint(HEAVY)


def test_refusing_what_is_no_array_loads_no_framework() -> None:
    code = "import poolgrad\ntry: poolgrad.max_pool2d('x', 2)\nexcept TypeError: pass"
    assert loaded(code).isdisjoint(HEAVY)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_the_front_end_is_found_when_the_tensor_comes() -> None:
    code = (
        "import torch, poolgrad, sys\n"
        "assert 'poolgrad.torch' not in sys.modules\n"
        "poolgrad.max_pool2d(torch.ones(1, 4, 4), 2)\n"
        "assert 'poolgrad.torch' in sys.modules\n"
        "assert 'poolgrad.torch.function' in sys.modules\n"
    )
    assert "scipy" not in loaded(code)


def test_missing_kernels_say_what_to_do() -> None:
    code = (
        "import sys\nsys.modules['poolgrad._kernels'] = None\n"
        "try: import poolgrad\nexcept ImportError as error: print(error)"
    )
    assert "pip install" in assert_runs(code)
    assert "missing" in assert_runs(code)


def test_matrix_without_scipy_says_what_to_do() -> None:
    code = (
        "import sys\nsys.modules['scipy'] = sys.modules['scipy.sparse'] = None\n"
        "import numpy as np, poolgrad\n"
        "_, pullback = poolgrad.vjp(poolgrad.max_pool2d, np.ones((4, 4)), 2)\n"
        "try: pullback.matrix()\nexcept ImportError as error: print(error)"
    )
    assert "needs SciPy: pip install scipy" in assert_runs(code)


@pytest.mark.parametrize("ties", ["first", "split", "zero"])
def test_mask_needs_no_scipy(ties: str) -> None:
    code = (
        "import sys\nsys.modules['scipy'] = sys.modules['scipy.sparse'] = None\n"
        "import numpy as np, poolgrad\n"
        f"_, pullback = poolgrad.vjp(poolgrad.max_pool2d, np.eye(4), 2, ties={ties!r})\n"
        "print(pullback.mask().sum())"
    )
    expected = {"first": "4", "split": "12", "zero": "0"}[ties]
    assert assert_runs(code).strip() == expected
