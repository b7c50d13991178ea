"""Every example in the documentation runs, and every public name is documented."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from typing import Any

import pytest
from fronts import torch

import poolgrad

POOLING = [
    n for n in poolgrad.__all__ if "pool" in n and n != "poolgrad"
]  # fmt: skip
MODULES = ["core", "operators", "window", "numpy", "pullback", "reference", "functional"]
MODULES += ["torch", "torch.function", "torch.modules"] if torch is not None else []


def run(name: str, thing: Any) -> int:
    """How many examples ran; an AssertionError with the report of the first that failed."""
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    tried = 0
    for test in doctest.DocTestFinder(recurse=False).find(thing, name, globs={}):
        result = runner.run(test, out=said.append, clear_globs=True)
        tried += result.attempted
        assert result.failed == 0, "".join(said)
    return tried


@pytest.mark.parametrize("name", [*POOLING, "vjp"])
def test_every_function_has_examples_that_run(name: str) -> None:
    assert run(name, getattr(poolgrad, name)) > 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_modules_run(name: str) -> None:
    module = importlib.import_module(f"poolgrad.{name}")
    tried = run(name, module)
    for member, thing in vars(module).items():
        here = getattr(thing, "__module__", None) == module.__name__
        public = not member.startswith("_")
        if here and public and (inspect.isclass(thing) or inspect.isfunction(thing)):
            tried += run(f"{name}.{member}", thing)
    assert tried > 0 or ">>>" not in inspect.getsource(module)


def test_a_wrong_example_would_be_seen() -> None:
    def wrong() -> None:
        """
        >>> 1 + 1
        3
        """

    with pytest.raises(AssertionError, match="Expected"):
        run("wrong", wrong)


@pytest.mark.parametrize(
    "name", [n for n in poolgrad.__all__ if n not in {"reference", "Pullback"}]
)
def test_numpydoc_sections(name: str) -> None:
    function = getattr(poolgrad, name)
    doc = inspect.getdoc(function)
    assert doc
    assert not doc.startswith("\n")
    first = doc.splitlines()[0]
    assert first.endswith(".")
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        assert parameter.name.strip("*") in doc.partition("Returns")[0], parameter
    if name in [*POOLING, "vjp"]:
        for section in ("Parameters", "Returns", "Raises", "Examples"):
            assert f"\n{section}\n{'-' * len(section)}\n" in doc
        assert "{" not in doc


@pytest.mark.parametrize("name", POOLING)
def test_documented_shapes_are_those_of_the_function(name: str) -> None:
    """One axis for each that is pooled, in text that one template makes."""
    doc = inspect.getdoc(getattr(poolgrad, name)) or ""
    letters = {"1d": "N, C, L)", "2d": "N, C, H, W)", "3d": "N, C, D, H, W)"}
    assert letters.get(name[-2:], "N, C, ...)") in doc
    assert getattr(poolgrad, name).__name__ == name
    assert getattr(poolgrad, name).__qualname__ == name


def test_all_is_sorted_and_complete() -> None:
    assert poolgrad.__all__ == sorted(poolgrad.__all__)
    for name in poolgrad.__all__:
        assert hasattr(poolgrad, name)
    assert {n for n in POOLING if hasattr(poolgrad.reference, n)} == set(POOLING)


def test_every_public_member_has_words() -> None:
    for name, member in vars(poolgrad.Pullback).items():
        if not name.startswith("_") or name == "__call__":
            assert inspect.getdoc(member), name
    for found in pkgutil.iter_modules(poolgrad.__path__):
        if f"{found.name}" in {"core", "window", "operators", "functional", "numpy", "reference"}:
            assert importlib.import_module(f"poolgrad.{found.name}").__doc__
