"""Import costs: `import poolgrad` loads NumPy alone; a framework is loaded when its arrays come."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest
from frontend_calls import torch
from processes import assert_runs, run_python

import poolgrad

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
        "assert 'torch._dynamo' not in sys.modules\n"  # the compiler takes a second to import
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


# The public names


@pytest.mark.parametrize("name", ["indices", "torch", "jax", "dask"])
def test_public_modules_are_there_when_they_are_used(name: str) -> None:
    pytest.importorskip({"indices": "numpy"}.get(name, name))
    code = (
        "import sys, poolgrad\n"
        f"assert 'poolgrad.{name}' not in sys.modules\n"
        f"print(poolgrad.{name}.__name__)\n"
        f"assert poolgrad.{name} is sys.modules['poolgrad.{name}']\n"
    )
    assert assert_runs(code).strip() == f"poolgrad.{name}"


@pytest.mark.parametrize("name", ["torch", "jax", "dask"])
def test_a_missing_framework_names_the_extra(name: str) -> None:
    code = (
        f"import sys\nsys.modules[{name!r}] = None\nimport poolgrad\n"
        f"try: poolgrad.{name}\nexcept ImportError as error: print(error)\n"
        f"print({name!r} in dir(poolgrad), 'max_pool2d' in dir(poolgrad))"
    )
    words, listed = assert_runs(code).splitlines()
    assert words == f'poolgrad.{name} needs {name}: pip install "poolgrad[{name}]"'
    assert listed == "False True"  # so that `help(poolgrad)` does not trip over it


def test_dir_lists_public_names_only() -> None:
    names = dir(poolgrad)
    assert names == sorted(names)
    front_ends = [n for n in ("torch", "jax", "dask") if find_spec(n)]
    assert {*names} == {*poolgrad.__all__, *front_ends, "indices", "__version__"}
    assert all(hasattr(poolgrad, name) for name in names)


def test_help_without_any_framework() -> None:
    code = (
        "import sys\nfor name in ('torch', 'jax', 'dask'): sys.modules[name] = None\n"
        "import pydoc, poolgrad\nprint(pydoc.render_doc(poolgrad, renderer=pydoc.plaintext))"
    )
    assert "max_pool2d(x" in assert_runs(code)


def test_a_misspelt_name_finds_the_right_one() -> None:
    with pytest.raises(AttributeError, match=r"^module 'poolgrad' has no attribute 'maxpool2d'$"):
        poolgrad.maxpool2d  # noqa: B018
    done = run_python("import poolgrad\npoolgrad.maxpool2d")
    assert "Did you mean: 'max_pool2d'?" in done.stderr
