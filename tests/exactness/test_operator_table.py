"""The operator table is complete: every entry has all that an operator needs."""

from __future__ import annotations

import inspect
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from frontend_calls import torch

import poolgrad
from poolgrad.functional import FUNCTIONS
from poolgrad.operators import OPERATORS
from poolgrad.operators.selecting import Max
from poolgrad.tools import check
from poolgrad.tools.check.cases import Case, cases
from poolgrad.tools.check.gradients import FRONT_ENDS, differences, textbook

DOCS = Path(__file__).parents[2] / "docs"
DIMS = {"fractional_max": {2, 3}}  # of others: 1, 2 and 3


@lru_cache
def calls() -> dict[str, list[Case]]:
    """What `poolgrad check` asks of each operator."""
    asked: dict[str, list[Case]] = {}
    for name in FUNCTIONS:
        for case in cases(name, "float64", channels_last=False):
            asked.setdefault(case.operator, []).append(case)
    return asked


def missing(operator: str) -> list[str]:
    """What an operator of the table lacks."""
    asked = calls().get(operator, [])
    if not asked:
        return [f"public functions that `poolgrad check` knows how to call: {operator}"]
    return [
        *missing_dimensions(operator, asked),
        *missing_gradient_check(operator, asked[0]),
        *(m for name in sorted({case.name for case in asked}) for m in missing_beside(name)),
        *(
            m
            for name in sorted({case.name for case in asked})
            for m in missing_choice(operator, name)
        ),
        *missing_docs(operator, asked),
    ]


def missing_dimensions(operator: str, asked: list[Case]) -> list[str]:
    lacking = DIMS.get(operator, {1, 2, 3}) - {case.dims for case in asked}
    return [f"a public function in {d} dimensions" for d in sorted(lacking)]


def missing_gradient_check(operator: str, case: Case) -> list[str]:
    """The textbook and finite differences, of learned arguments too."""
    try:
        definition, gy = textbook(case)
    except KeyError:
        return [f"a definition in poolgrad.reference: {operator}"]
    slopes = differences(FRONT_ENDS["numpy"].pool, case, gy)
    learned = {OPERATORS[operator].operand.name} if OPERATORS[operator].learned else set()
    lost = []
    if not np.allclose(definition.gx, slopes.gx, atol=check.DIFFERENCES_TOLERANCE):
        lost.append("a definition that goes with the kernel")
    if not definition.parameters.keys() == slopes.parameters.keys() == learned:
        lost.append(f"the gradient of {learned}")
    return lost


def missing_beside(name: str) -> list[str]:
    """What should come with a public function."""
    examples = (inspect.getdoc(FUNCTIONS[name]) or "").partition("\nExamples\n")[2]
    lost = [] if f"poolgrad.{name}(" in examples else [f"an example in the docstring: {name}"]
    if torch is None:
        return lost
    from poolgrad import torch as layers

    if name not in layers.MODULES:
        return [*lost, f"a module in poolgrad.torch: {name}"]
    stem = layers.MODULES[name].__name__[:-2]
    dims = (name[-2],) if name.endswith("d") else ("1", "2", "3")
    modules = [getattr(layers, f"{stem}{d}d", None) for d in dims]
    return lost + [
        f"a module that says it calls poolgrad.{name}"
        for module in modules
        if f"`poolgrad.{name}`" not in (inspect.getdoc(module) or "")
    ]


def missing_choice(operator: str, name: str) -> list[str]:
    """What a function should take where one input of a window wins."""
    if not OPERATORS[operator].selecting:
        return []
    # a draw has one winner, whatever is equal to it
    wanted = ["return_indices"] if operator == "stochastic" else ["ties", "return_indices"]
    given = inspect.signature(FUNCTIONS[name]).parameters
    return [f"an argument of {name}: {argument}" for argument in wanted if argument not in given]


def missing_docs(operator: str, asked: list[Case]) -> list[str]:
    picture = f"operators/{operator}.png"
    lost = [] if (DOCS / picture).is_file() else [f"docs/{picture}"]
    sections = (DOCS / "operators.md").read_text().split("\n## ")[1:]
    section = next((s for s in sections if f"]({picture})" in s), None)
    if section is None:
        return [*lost, f"a section of docs/operators.md with the picture {picture}"]
    formulas = [line.split("=")[0] for line in section.splitlines() if line.startswith("    ")]
    for derivative in ("y(", "dx("):
        if not any(f.strip().startswith(derivative) for f in formulas):
            lost.append(f"the formula of {derivative}...) in the section with {picture}")
    for line in ("- Use ", "- Source: "):
        if f"\n{line}" not in section:
            lost.append(f"a line '{line}...' in the section with {picture}")
    if not any(f"`{case.name}" in section for case in asked):
        lost.append(f"the functions, in the section with {picture}")
    return lost


@pytest.mark.parametrize("operator", OPERATORS)
def test_nothing_is_missing(operator: str) -> None:
    assert not missing(operator), f"{operator} lacks:\n" + "\n".join(missing(operator))


def test_every_function_calls_an_operator_of_the_table() -> None:
    assert {case.name for asked in calls().values() for case in asked} == set(FUNCTIONS)
    assert set(calls()) == set(OPERATORS)
    if torch is not None:
        from poolgrad import torch as layers

        assert sorted(layers.MODULES) == sorted(FUNCTIONS)


def test_every_function_and_module_is_public() -> None:
    beside = ["Pullback", "empty_cache", "explain", "get_num_threads", "reference"]
    beside += ["RegionPullback", "roi_align", "roi_pool", "set_num_threads", "vjp"]
    assert sorted(poolgrad.__all__) == sorted([*FUNCTIONS, *beside])
    if torch is not None:
        from poolgrad import torch as layers

        modules = [
            module.__name__[:-2] + (name[-2:] if name.endswith("d") else f"{d}d")
            for name, module in layers.MODULES.items()
            for d in ((1,) if name.endswith("d") else (1, 2, 3))
        ]
        others = ["MODULES", "Report", "accelerate", "convert", "revert", *layers.layers.__all__]
        assert sorted(layers.__all__) == sorted([*modules, *others])


def test_functions_come_in_the_order_of_the_docs() -> None:
    """Which is that of `poolgrad check`: what selects, what blends, other windows, the way back."""
    families = list(dict.fromkeys(name.removesuffix("d").rstrip("123") for name in FUNCTIONS))
    assert families == [
        *("max_pool", "relu_max_pool", "min_pool", "median_pool", "stochastic_pool"),
        *("avg_pool", "lp_pool", "log_mean_exp_pool", "soft_pool", "mixed_pool"),
        *("range_pool", "lip_pool"),
        *("adaptive_max_pool", "adaptive_avg_pool"),
        *("global_max_pool", "global_avg_pool", "global_lp_pool", "global_log_mean_exp_pool"),
        *("fractional_max_pool", "max_unpool"),
    ]


def test_names_in_the_table_are_the_operators_own() -> None:
    assert all(operator.name == name for name, operator in OPERATORS.items())


def test_the_walk_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that is nothing but an entry in the table lacks everything else."""
    monkeypatch.setitem(OPERATORS, "mode", Max())
    assert missing("mode") == ["public functions that `poolgrad check` knows how to call: mode"]
    (case,) = calls()["max"][:1]
    monkeypatch.setitem(calls(), "mode", [case])
    monkeypatch.setitem(FUNCTIONS, "mode_pool2d", lambda x: x)
    assert missing("mode") == [
        *(f"a public function in {d} dimensions" for d in {1, 2, 3} - {case.dims}),
        "docs/operators/mode.png",
        "a section of docs/operators.md with the picture operators/mode.png",
    ]
    lost = ["an example in the docstring: mode_pool2d"]
    if torch is not None:
        lost.append("a module in poolgrad.torch: mode_pool2d")
    assert missing_beside("mode_pool2d") == lost
    lost = ["an argument of mode_pool2d: ties", "an argument of mode_pool2d: return_indices"]
    assert missing_choice("mode", "mode_pool2d") == lost
    assert missing_choice("stochastic", "mode_pool2d") == lost[1:]
    assert missing_choice("avg", "mode_pool2d") == []
