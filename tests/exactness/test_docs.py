"""Every example in the documentation runs, and every public name is documented."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import pkgutil
import re
import tokenize
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontend_calls import torch

import poolgrad
from poolgrad.operators import OPERATORS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = {  # of docs/operators.md, by heading: what is below it
    heading: body.strip()
    for heading, _, body in (
        part.partition("\n") for part in (DOCS / "operators.md").read_text().split("\n## ")[1:]
    )
}
PICTURE = re.compile(r"^!\[(.+)\]\(operators/(\w+)\.png\)$", re.MULTILINE)
PLAYED = [  # on the interactive page; docs/site_hooks.py makes links of these comments
    arguments
    for page in PAGES
    for arguments in re.findall(r"^<!-- play: (.+) -->$", page.read_text(), re.MULTILINE)
]
POOLING = [
    n for n in poolgrad.__all__ if "pool" in n and n not in {"poolgrad", "roi_pool"}
]  # fmt: skip
REGIONS = ["roi_pool", "roi_align"]  # which have a page of their own
MODULES = ["interface", "core", "functional", "indices", "numpy", "operators", "pullback"]
MODULES += ["explainer", "reference", "windows"]
MODULES += [name for name in ("jax", "dask") if find_spec(name)]
MODULES += ["jax.nn"] if find_spec("jax") else []
if torch is not None:
    MODULES += ["torch", "torch.function", "torch.modules"]
    LAYERS = pkgutil.iter_modules(importlib.import_module("poolgrad.torch.layers").__path__)
    MODULES += [f"torch.layers.{layer.name}" for layer in LAYERS]


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


@pytest.mark.parametrize("name", [*POOLING, *REGIONS, "explain", "vjp"])
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


def named(page: Path) -> str:
    return page.relative_to(DOCS.parent).as_posix()


def stated(comment: str) -> Any:
    """The Python literal that a comment begins with: `# [0, 2.5]: the maximum` states a list."""
    for end in range(len(comment), 0, -1):
        with contextlib.suppress(SyntaxError, ValueError):
            return ast.literal_eval(comment[:end].strip())
    raise AssertionError(f"no literal in the comment {comment!r}")


def run_block(code: str, names: dict[str, Any]) -> int:
    """How many results were compared: expressions with a comment that states their value."""
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    compared = 0
    for statement in ast.parse(code).body:
        comment = comments.get(statement.end_lineno or 0, "")
        source = ast.unparse(statement)
        if isinstance(statement, ast.Expr) and re.match(r"[\[(\d-]|True|False", comment):
            value = eval(source, names)
            np.testing.assert_allclose(
                np.asarray(value, float), np.asarray(stated(comment), float), atol=6e-4, rtol=0,
                err_msg=source,
            )  # fmt: skip
            compared += 1
        else:
            exec(source, names)
    return compared


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_code_of_pages_runs(page: Path) -> None:
    names: dict[str, Any] = {}
    for code in CODE.findall(page.read_text()):
        packages = ("jax", "torch", "dask", "flax", "equinox", "xarray")
        used = [name for name in packages if re.search(rf"\b{name}\b", code)]
        missing = [name for name in used if not find_spec(name)]
        if missing:  # later blocks may use the names of this one
            pytest.skip(f"from here on the page needs {', '.join(missing)}, not installed")
        run_block(code, names)


def test_a_wrong_result_in_a_page_would_be_seen() -> None:
    assert run_block("x = 2\nx + 1  # 3: a sum", {}) == 1
    with pytest.raises(AssertionError, match="Mismatch"):
        run_block("x = 2\nx + 1  # 4", {})


@pytest.mark.parametrize(
    "name",
    [n for n in poolgrad.__all__ if n not in {"reference", "Pullback", "RegionPullback"}],
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
    if name in [*POOLING, *REGIONS, "explain", "vjp"]:
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


def test_all_is_complete() -> None:
    assert len(set(poolgrad.__all__)) == len(poolgrad.__all__)
    for name in poolgrad.__all__:
        assert hasattr(poolgrad, name)
    assert all(hasattr(poolgrad.reference, name) for name in [*POOLING, *REGIONS])


def test_every_public_member_has_words() -> None:
    for kind in (poolgrad.Pullback, poolgrad.RegionPullback):
        for name, member in vars(kind).items():
            if not name.startswith("_") or name == "__call__":
                assert inspect.getdoc(member), name
    for found in pkgutil.iter_modules(poolgrad.__path__):
        if f"{found.name}" in {"core", "window", "operators", "functional", "numpy", "reference"}:
            assert importlib.import_module(f"poolgrad.{found.name}").__doc__


def test_every_folder_has_a_page_that_names_its_files() -> None:
    code = [*(DOCS.parent / "csrc").rglob("*.[ch]pp"), *(DOCS.parent / "src").rglob("*.py")]
    known = {f.name for f in (*code, *(DOCS.parent / "tests").rglob("*.py"))}
    for folder in {f.parent for f in code}:
        page, module = folder / "README.md", folder / "__init__.py"
        text = page.read_text() if page.exists() else ""
        if module.exists():
            text += ast.get_docstring(ast.parse(module.read_text())) or ""
        files = {f.stem for f in code if f.parent == folder} - {"__init__"}
        assert files <= {*re.findall(r"\w+", text)}, folder
        assert {*re.findall(r"`(?:[\w/]+/)?(\w+\.(?:py|[ch]pp))`", text)} <= known, folder


def functions_of(section: str) -> set[str]:
    """The names in its first line, of which `max_pool1d/2d/3d` stands for three."""
    names = re.findall(r"`(\w*pool)(\w*)((?:/\dd)*)`", SECTIONS[section].partition("\n")[0])
    return {n + d for n, first, others in names for d in [first, *others.split("/")[1:]]}


def test_every_function_has_a_section() -> None:
    assert set.union(*map(functions_of, SECTIONS)) == set(POOLING)


@pytest.mark.parametrize("section", SECTIONS)
def test_sections_have_formula_use_source_and_pictures(section: str) -> None:
    body = SECTIONS[section]
    assert functions_of(section)
    formula = "".join(line for line in body.splitlines(True) if line.startswith("    "))
    assert re.search(r"^    (y|W)\b", formula, re.MULTILINE)
    assert "dx" in formula or "Gradients" in body
    assert "\n- Use " in body
    assert "\n- Source: " in body
    assert PICTURE.search(body)
    adaptive_or_global = section in {"Adaptive", "Global"}  # what is kept is said elsewhere
    assert ("\n- Kept: " in body) != adaptive_or_global


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_a_picture(name: str) -> None:
    assert [n for body in SECTIONS.values() for _, n in PICTURE.findall(body)].count(name) == 1


def test_pictures_are_there_small_described_and_made_by_the_script() -> None:
    shown = PICTURE.findall((DOCS / "operators.md").read_text())
    files = {f.stem: f for f in (DOCS / "operators").iterdir()}
    assert {name for _, name in shown} == set(files)
    assert all(len(words) > 40 for words, _ in shown)
    assert all(f.stat().st_size < 40_000 for f in files.values())
    script = (DOCS / "make_pictures.py").read_text()
    assert sorted(re.findall(r'^    "(\w+)": Picture\(', script, re.MULTILINE)) == sorted(files)


def test_pictures_of_the_chapter_are_small_and_described() -> None:
    text = (DOCS / "backpropagation.md").read_text()
    shown = dict(re.findall(r"!\[(.+)\]\(backpropagation/(\w+\.png)\)", text))
    files = list((DOCS / "backpropagation").iterdir())
    assert sorted(shown.values()) == sorted(f.name for f in files)
    assert all(len(words) > 40 for words in shown)
    assert all(f.stat().st_size < 40_000 for f in files)


def test_every_question_of_the_chapter_has_an_answer_and_code() -> None:
    _, *sections = (DOCS / "backpropagation.md").read_text().split("\n## ")
    assert len(sections) == 20
    for section in sections[:-1]:  # the last are the sources
        question, _, body = section.partition("\n\n")
        assert question.endswith("?")
        assert re.match(r"\*\*.+\*\*\n\n", body), question
        assert CODE.search(body), question


@pytest.mark.parametrize("arguments", PLAYED)
def test_examples_to_play_are_calls_of_explain(arguments: str) -> None:
    assert eval(f"poolgrad.explain({arguments})").state["x"]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]+`", "", page.read_text())  # code, where a call may look like a link
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}


def test_every_test_that_is_named_exists() -> None:
    root = DOCS.parent
    pages = [*PAGES, root / "CONTRIBUTING.md", *(root / "csrc").rglob("README.md")]
    for page in pages:
        for name in re.findall(r"tests/[\w/*]+\.py", page.read_text()):
            assert list(root.glob(name)), f"{page.relative_to(root)} names {name}"


def test_every_test_in_the_table_of_promises_exists() -> None:
    """A name without a folder lies in the folder of the name before it."""
    tests = DOCS.parent / "tests"
    for line in (tests / "README.md").read_text().splitlines():
        folder = ""
        for name in re.findall(r"`(?!examples/)([\w/*]+\.py)`", line):
            folder = f"{name.rpartition('/')[0]}/" if "/" in name else folder
            paths = (name, f"{folder}{name}")
            assert any(list(tests.glob(path)) for path in paths), f"{name} in: {line}"


def test_every_public_name_is_in_the_api_reference() -> None:
    pages = "".join(page.read_text() for page in (DOCS / "api").iterdir())
    listed = re.findall(r"^::: poolgrad\.(\S+)$", pages, re.MULTILINE)
    names = {name for name in poolgrad.__all__ if name != "reference"}
    for module in ("torch", "jax"):
        if find_spec(module):
            public = importlib.import_module(f"poolgrad.{module}").__all__
            names |= {f"{module}.{name}" for name in public if name != "MODULES"}
    # The reference would show the module of a function in a module of the same name, so such a
    # function is listed as `torch.convert.convert`.
    assert names <= {re.sub(r"\.(\w+)\.\1$", r".\1", name) for name in listed}
    sources = Path(poolgrad.__file__).parent
    assert [n for n in listed if (sources / f"{n.replace('.', '/')}.py").exists()] == []
