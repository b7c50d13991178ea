"""The page's pooling equals the textbook: generated cases, computed in a real browser.

Where an operator selects, every number and the sign of every zero is equal. Elsewhere NumPy adds
eight and more numbers in another order, and exp, log and powers of Chromium may differ in the last
digit: results may differ by 64 units in the last place of the largest number that is added.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import poolgrad
from poolgrad import explainer, reference
from poolgrad.explainer.build import encodable

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CASES = 2_000
NAMES = ["max", "min", "median", "avg", "lp", "log_mean_exp", "soft", "mixed"]
KINDS = [*NAMES, "adaptive_max", "adaptive_avg", "max_unpool", "global_max", "global_avg"]
KINDS += ["global_lp", "global_log_mean_exp"]
EXACT = ("max", "min", "median", "unpool")
ULP = 2.0**-52

# Takes JSON and gives JSON: NaN, infinities and -0 have words in it.
POOL_ALL = """
async ([source, states]) => {
  const module = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const { check, jacobian, pool, pullback } = await import(module);
  const words = (_, v) =>
    typeof v !== "number" || (Number.isFinite(v) && !Object.is(v, -0)) ? v
      : Object.is(v, -0) ? "-0" : Number.isNaN(v) ? "nan" : v > 0 ? "inf" : "-inf";
  return JSON.stringify(JSON.parse(states).map((given) => {
    const state = check(given);
    const result = pool(state);
    const { gx, terms } = pullback(state, result);
    return {
      y: result.y,
      gx,
      added: terms.map((inputs) => inputs.map((all) => all.reduce((sum, t) => sum + t.value, 0))),
      winners: result.winners?.map((all) =>
        all.map((taps, o) => (taps.length ? result.windows[o].taps[taps[0]].input : -1))) ?? null,
      jacobians: state.x.map((_, example) => jacobian(result, example)),
    };
  }), words);
}
"""


class Case(NamedTuple):
    state: dict[str, Any]
    pullback: reference.Pullback
    cotangent: NDArray[np.float64]
    x: NDArray[np.float64]


def numbers(random: np.random.Generator, shape: tuple[int, ...], infinities: bool) -> Any:
    """Few different numbers, so that there are ties, or many; NaN, -0 and infinities among them."""
    x = [
        lambda: random.integers(-2, 3, shape).astype(float),
        lambda: random.normal(size=shape) * 3,
        lambda: np.zeros(shape),
        lambda: random.normal(size=shape) * 10.0 ** random.integers(-3, 4, shape),
    ][random.integers(4)]()
    rare = [np.nan, -0.0] + [np.inf, -np.inf] * infinities
    places = random.random(shape) < random.choice([0, 0, 0.1, 0.4])
    return np.where(places, random.choice(rare, shape), x)


def windows(random: np.random.Generator, dims: int) -> dict[str, Any]:
    def one_or_each(low: int, high: int) -> Any:
        each = tuple(int(n) for n in random.integers(low, high, dims))
        return each if random.random() < 0.5 else each[0]

    ends = [tuple(int(n) for n in random.integers(0, 4, 2)) for _ in range(dims)]
    padding = [0, one_or_each(0, 3), tuple(ends), "same"]
    return {
        "kernel_size": one_or_each(1, 5),
        "stride": one_or_each(1, 5),
        "padding": padding[random.integers(4)],
        "dilation": one_or_each(1, 3) if random.random() < 0.5 else 1,
        "ceil_mode": bool(random.integers(2)),
    }


def call(random: np.random.Generator, kind: str) -> tuple[Any, Any, dict[str, Any]]:
    """A function of the reference, its input and its other arguments."""
    dims = int(random.integers(1, 3))
    sizes = tuple(int(n) for n in random.integers(1, 9, dims))
    shape = (int(random.integers(1, 3)), 1, *sizes)
    x = numbers(random, shape, infinities=kind.rpartition("_")[2] in ("max", "min", "median"))
    options: dict[str, Any] = {}
    name = kind.rpartition("_")[2]
    if name in ("max", "min", "median"):
        options["ties"] = str(random.choice(["first", "split", "zero"]))
    if name == "lp":
        options["norm_type"] = float(random.choice([1, 1.5, 2, 3, 10, np.inf]))
        options["mean"] = bool(random.integers(2))
    if name == "log_mean_exp":
        options["r"] = float(random.choice([1, -1, 0.1, 8]))
    if name == "mixed":
        options["alpha"] = float(random.choice([0, 0.25, 0.5, 1]))
    if kind in ("avg", "mixed"):
        options["count_include_pad"] = bool(random.integers(2))
    if kind == "avg" and random.random() < 0.3:
        options["divisor_override"] = int(random.choice([-2, 3, 7]))
    if kind.startswith("global"):
        return getattr(reference, f"{kind}_pool"), x, options | {"keepdims": True}
    if kind.startswith("adaptive"):
        bins = tuple(int(n) for n in random.integers(1, 10, dims))
        return getattr(reference, f"{kind}_pool{dims}d"), x, options | {"output_size": bins}
    if kind == "max_unpool":
        kernel, stride = (tuple(int(n) for n in random.integers(1, 4, dims)) for _ in range(2))
        x = x[..., :5, :5] if dims == 2 else x[..., :5]
        out = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], stride, kernel, strict=True)]
        indices = random.integers(0, math.prod(out), x.shape)
        options = {"indices": indices, "kernel_size": kernel, "stride": stride}
        return getattr(reference, f"max_unpool{dims}d"), x, options
    return getattr(reference, f"{kind}_pool{dims}d"), x, options | windows(random, dims)


def cases(seed: int, count: int) -> Iterator[Case]:
    """Calls that the reference takes; about a third has windows that it refuses."""
    random = np.random.default_rng(seed)
    made = 0
    while made < count:
        function, x, options = call(random, KINDS[made % len(KINDS)])
        try:
            y, pullback = reference.vjp(function, x, **options)
        except ValueError:
            continue
        cotangent = numbers(random, y.shape, infinities=False)
        state = explainer.explain(x, function, cotangent=cotangent, **options).state
        assert state is not None
        yield Case(state, pullback, cotangent, x)
        made += 1


def evaluate(browser: Browser, function: str, states: list[Any]) -> Any:
    """What a function of JavaScript returns for pooling.js and these states."""
    source = (Path(explainer.__file__).parent / "page" / "pooling.js").read_text(encoding="utf-8")
    page = browser.new_page()
    answer = page.evaluate(function, [source, json.dumps(encodable(states))])
    page.close()
    return answer


def floats(nested: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Float64 of lists in which words stand for NaN, infinities and -0."""
    return np.array(nested, dtype=object).reshape(shape).astype(np.float64)


def largest(numbers: NDArray[np.float64]) -> float:
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0))


def compare(case: Case, answer: dict[str, Any], *, jacobian: bool) -> None:
    """Assert that what the browser computed equals the textbook."""
    x, y, cotangent = case.x, case.pullback.y, case.cotangent
    gx = case.pullback(cotangent)
    weights = floats(answer["jacobians"], (len(x), y[0].size, x[0].size))
    gradient = 64 * ULP * largest(weights) * largest(cotangent)
    selecting = case.state["operator"] in EXACT

    def equal(came: Any, expected: NDArray[np.float64], tolerance: float) -> None:
        found = floats(came, expected.shape)
        if selecting:
            np.testing.assert_array_equal(found, expected)
            number = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(expected)[number])
        np.testing.assert_allclose(found, expected, rtol=64 * ULP, atol=tolerance)

    equal(answer["y"], y, 64 * ULP * largest(x))
    equal(answer["gx"], gx, gradient)
    equal(answer["added"], gx, gradient)
    if answer["winners"]:
        np.testing.assert_array_equal(np.ravel(answer["winners"]), case.pullback.indices.ravel())
    if jacobian and not np.isnan(weights).any():  # NaN times the zeros of `one` is NaN
        for output in range(y[0].size):
            one = np.zeros((len(x), y[0].size))
            one[:, output] = 1
            equal(weights[:, output], case.pullback(one.reshape(y.shape)).reshape(len(x), -1), 0)


def test_every_number_equals_the_textbook(browser: Browser) -> None:
    made = list(cases(0, CASES))
    answers = json.loads(evaluate(browser, POOL_ALL, [case.state for case in made]))
    for n, (case, answer) in enumerate(zip(made, answers, strict=True)):
        try:
            compare(case, answer, jacobian=n % 16 == 0)
        except AssertionError as error:
            text = json.dumps(encodable(case.state))
            raise AssertionError(f"case {n}, {text}: {error}") from None


PANELS = """
async ([source, given]) => {
  const module = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const { convolution, convolutionGradients, differences, shifted } = await import(module);
  const [state, tied, filter] = JSON.parse(given);
  return {
    differences: differences(state).gx, kinks: differences(state).kinks,
    tied: differences(tied).kinks, shifted: shifted(state, 1, -2).x,
    y: convolution(state, filter).y, ...convolutionGradients(state, filter),
  };
}
"""


def test_differences_shifts_and_a_convolution_before_the_pooling(browser: Browser) -> None:
    random = np.random.default_rng(5)
    x, w = random.normal(size=(2, 7, 8)), random.normal(size=(2, 2))
    state = explainer.explain(x, poolgrad.max_pool2d, 3, stride=2).state
    tied = explainer.explain([[3.0, 3.0], [2.0, 0.5]], poolgrad.max_pool2d, 2).state
    found = evaluate(browser, PANELS, [state, tied, w.tolist()])

    def gradient(of: NDArray[np.float64]) -> NDArray[np.float64]:
        y, pullback = reference.vjp(reference.max_pool2d, of, 3, stride=2)
        return np.asarray(pullback(np.ones(y.shape)))

    np.testing.assert_allclose(found["differences"], gradient(x), atol=1e-8)
    assert (found["kinks"], found["tied"]) == ([], [[0, 0], [0, 1]])
    moved = np.pad(x, ((0, 0), (1, 0), (0, 2)), mode="edge")[:, :7, 2:]
    np.testing.assert_array_equal(found["shifted"], moved)
    patches = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(1, 2))
    z = np.einsum("erckl,kl->erc", patches, w)
    np.testing.assert_allclose(found["y"], z, rtol=1e-12, atol=1e-12)
    each = np.einsum("erckl,erc->ekl", patches, gradient(z))
    np.testing.assert_allclose(found["each"], each, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found["mean"], each.mean(axis=0), rtol=1e-12, atol=1e-12)


# States whose code is run by every library: kinds of windows, and arguments that few have.
CALLS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "max": ("max_pool2d", (2, 1, 5, 6), {"kernel_size": (2, 3), "stride": (2, 1), "ties": "split"}),
    "min": ("min_pool1d", (1, 1, 7), {"kernel_size": 3, "padding": ((1, 2),), "ceil_mode": True}),
    "median": ("median_pool2d", (1, 1, 4, 4), {"kernel_size": 2, "ties": "zero"}),
    "avg": ("avg_pool2d", (1, 1, 5, 5), {"kernel_size": 2, "padding": (1, 0), "dilation": 2}),
    "divisor": ("avg_pool1d", (2, 1, 6), {"kernel_size": 2, "divisor_override": 3}),
    "padding": (
        "avg_pool2d",
        (1, 1, 3, 3),
        {"kernel_size": 3, "padding": ((1, 0), (0, 2)), "count_include_pad": False},
    ),
    "lp": ("lp_pool2d", (1, 1, 4, 4), {"kernel_size": 2, "norm_type": 3.0, "mean": True}),
    "log_mean_exp": ("log_mean_exp_pool1d", (1, 1, 6), {"kernel_size": 3, "r": -2.0}),
    "soft": ("soft_pool2d", (1, 1, 4, 4), {"kernel_size": 2}),
    "mixed": ("mixed_pool2d", (1, 1, 4, 4), {"kernel_size": 2, "alpha": 0.25}),
    "adaptive": ("adaptive_max_pool2d", (1, 1, 5, 5), {"output_size": (2, 3)}),
    "global": ("global_lp_pool", (2, 1, 3, 3), {"keepdims": True}),
    "unpool": (
        "max_unpool2d",
        (1, 1, 2, 2),
        {"kernel_size": 3, "stride": 2, "indices": np.array([[[[0, 6], [12, 24]]]])},
    ),
}
WRITE_ALL = """
async ([source, states]) => {
  const module = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const { code, decode, encode, pool, presets, pullback } = await import(module);
  return [...JSON.parse(states), ...Object.values(presets)].map((given) => {
    const state = decode(encode(given));
    const result = pool(state);
    const shown = { y: result.y.flat(2), gx: pullback(state, result).gx.flat(2) };
    const codes = ["numpy", "torch", "jax"].map((library) => [library, code(state, library)]);
    return { shown, ...Object.fromEntries(codes) };
  });
}
"""


@pytest.fixture(scope="module")
def written(browser: Browser) -> list[dict[str, Any]]:
    random = np.random.default_rng(3)
    states = [
        explainer.explain(random.normal(size=shape), getattr(poolgrad, name), **options).state
        for name, shape, options in CALLS.values()
    ]
    answers: list[dict[str, Any]] = evaluate(browser, WRITE_ALL, states)
    assert len(answers) == len(CALLS) + 6
    return answers


@pytest.mark.parametrize("library", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_the_code_of_a_state_gives_its_numbers(
    written: list[dict[str, Any]], library: str, request: pytest.FixtureRequest
) -> None:
    framework = pytest.importorskip(library)
    if library == "jax":  # the code switches float64 on
        before = framework.config.jax_enable_x64
        request.addfinalizer(lambda: framework.config.update("jax_enable_x64", before))
    for answer in written:
        names: dict[str, Any] = {}
        exec(answer[library], names)
        for name, numbers in answer["shown"].items():
            array = names[name].detach().numpy() if library == "torch" else np.asarray(names[name])
            assert array.dtype == np.float64
            np.testing.assert_allclose(
                array.ravel(), numbers, rtol=1e-12, atol=1e-12, err_msg=answer[library]
            )
