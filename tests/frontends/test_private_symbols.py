"""A framework without a private symbol: a clear error, or a warning and the slower way."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import run_python

import poolgrad
from poolgrad.private import Private

SOURCES = Path(poolgrad.__file__).parent


def test_a_missing_symbol_is_an_error_with_the_versions() -> None:
    with pytest.raises(ImportError, match=r"numpy \S+ has no numpy\.core_of, .* numpy 1\.2"):
        Private("numpy", "1.2").symbol("numpy.core_of")
    assert Private("numpy", "1.2").symbol("numpy.ndarray.sum").__name__ == "sum"


def test_a_missing_symbol_is_a_warning_where_there_is_another_way() -> None:
    private = Private("numpy", "1.2")
    with pytest.warns(RuntimeWarning, match=r"has no numpy\.absent.*: it is slower"):
        assert private.symbols_or_none(("numpy.ndarray", "numpy.absent"), "it is slower") is None
    assert private.symbols_or_none(("os.path", "math.pi"), "") is not None


def loaded_without(symbol: str, code: str) -> str:
    """What is printed by code that runs where PyTorch has no such symbol."""
    owner, _, name = symbol.rpartition(".")
    done = run_python(
        "import warnings, torch\nfrom pkgutil import resolve_name\n"
        f"delattr(resolve_name({owner!r}), {name!r})\n{code}"
    )
    return done.stdout + done.stderr


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_pytorch_without_a_symbol() -> None:
    shown = loaded_without(
        "torch._C._are_functorch_transforms_active",
        "import poolgrad.torch",
    )
    assert "ImportError: torch 2." in shown
    assert "_are_functorch_transforms_active" in shown


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_pytorch_without_the_call_cache() -> None:
    shown = loaded_without(
        "torch._C._len_torch_function_stack",
        "import poolgrad\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    import poolgrad.torch\n"
        "print(*(str(w.message) for w in seen if 'poolgrad' in str(w.message)))\n"
        "x = torch.arange(16.0).reshape(1, 4, 4).requires_grad_()\n"
        "for _ in range(2): y = poolgrad.max_pool2d(x, 2)\n"
        "y.sum().backward()\n"
        "print(y.tolist(), int(x.grad.sum()), len(poolgrad.max_pool2d.cache))\n",
    )
    assert "has no torch._C._len_torch_function_stack" in shown
    assert "small calls take longer" in shown
    assert "[[[5.0, 7.0], [13.0, 15.0]]] 4 0" in shown


@pytest.mark.parametrize(
    "symbol", ["torch._", "jax._src", "jax.interpreters", "jax.extend", "dask._"]
)
def test_private_symbols_stand_in_one_place(symbol: str) -> None:
    found = [
        file.relative_to(SOURCES)
        for file in SOURCES.rglob("*.py")
        if file.name != "_compat.py"
        and re.search(rf"(?<!poolgrad\.){re.escape(symbol)}(?!_)", file.read_text(encoding="utf-8"))
    ]
    assert found == []
