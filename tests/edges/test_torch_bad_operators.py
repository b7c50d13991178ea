"""Raw PyTorch operators, called with wrong arguments: an error, never a crash.

Such calls crashed PyTorch (#140923, #142459, #152913) and TensorFlow. Each call is a right one with
one thing changed; all run in a child process, which must go on.
"""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from raw_ops import (  # noqa: E402
    ALL,
    FIXED,
    LEARNED,
    NONLINEAR,
    ROUTED,
    SHAPE,
    operand,
    outcomes,
    pooled,
    pulled,
    pushed,
    x,
)

from poolgrad.windows import adaptive, fixed, flatten, fractional  # noqa: E402


def numbers(
    same: int = 0, ceil_mode: int = 0, kernel_size: int = 2, stride: int = 2, low: int = 0,
    high: int = 0, dilation: int = 1,
) -> list[int]:  # fmt: skip
    """Fixed windows along two axes, flattened, right or wrong."""
    each = (kernel_size, stride, low, high, dilation)
    return [0, same, ceil_mode, *(n for number in each for n in (number, number))]


OPS = torch.ops.poolgrad
assert numbers() == FIXED
OF_PADDING = numbers(kernel_size=1, stride=1, low=2, high=2)

ARGUED = (*LEARNED, "stochastic", "fractional_max", "max_unpool")
RESIDUALS = {
    "lp": 3, "log_mean_exp": 3, "soft": 3, "expected": 3, "mixed": 2, "avg": 0, "max_unpool": 0
} | dict.fromkeys(ROUTED, 1)  # fmt: skip

PUSHED = (*ROUTED, "avg", "max_unpool")


def each(names: tuple[str, ...], calls: dict[str, str]) -> dict[str, str]:
    """The calls, for each operator."""
    return {f"{n}, {what}": c.replace("NAME", repr(n)) for n in names for what, c in calls.items()}


RIGHT = each(ALL, {"forward": "pooled(NAME)", "back": "pulled(NAME)"})
RIGHT |= each(PUSHED, {"ahead": "pushed(NAME)"})

GRADIENTS = {
    "small gradient": "pulled(NAME, gy=torch.ones(1, 1, 1, 1))",
    "large gradient": "pulled(NAME, gy=torch.ones(2, 3, 900, 900))",
    "gradient of another rank": "pulled(NAME, gy=torch.ones(96))",
    "scalar gradient": "pulled(NAME, gy=torch.ones(()))",
    "empty gradient": "pulled(NAME, gy=torch.ones(0, 3, 4, 4))",
    "integer gradient": "pulled(NAME, gy=torch.ones(HALF, dtype=torch.int64))",
    "complex gradient": "pulled(NAME, gy=torch.ones(HALF, dtype=torch.complex64))",
    "large shape": "pulled(NAME, shape=[2, 3, 8000, 8000])",
    "shape of a large batch": "pulled(NAME, shape=[20000, 3, 8, 8])",
    "shape of another rank": "pulled(NAME, shape=[8])",
    "empty shape": "pulled(NAME, shape=[])",
    "negative shape": "pulled(NAME, shape=[2, 3, -8, -8])",
    "negative batch": "pulled(NAME, shape=[-2, -3, 8, 8])",
    "shape that overflows": "pulled(NAME, shape=[2**31, 2**31, 2**31, 2**31])",
    "inner axis out of range": "pulled(NAME, inner=7)",
    "inner axis far out of range": "pulled(NAME, inner=2**40)",
    "inner axis that is pooled": "pulled(NAME, inner=2)",
}
MALFORMED = {
    "empty window": "WHERE(NAME, window=[])",
    "window without axes": "WHERE(NAME, window=window(NAME)[:3])",
    "window cut off": "WHERE(NAME, window=FIXED[:-1])",
    "window of four axes": "WHERE(NAME, window=window(NAME) + 3 * window(NAME)[3:])",
    "kind that does not exist": "WHERE(NAME, window=[4, *FIXED[1:]])",
    "negative kind": "WHERE(NAME, window=[-1, *FIXED[1:]])",
    "negative kernel": f"WHERE(NAME, window={numbers(kernel_size=-2)})",
    "stride 0": f"WHERE(NAME, window={numbers(stride=0)})",
    "negative stride": f"WHERE(NAME, window={numbers(stride=-1)})",
    "dilation 0": f"WHERE(NAME, window={numbers(dilation=0)})",
    "negative padding": f"WHERE(NAME, window={numbers(high=-3)})",
    "same padding, and a padding": f"WHERE(NAME, window={numbers(same=1, low=1)})",
    "same padding 2": f"WHERE(NAME, window={numbers(same=2)})",
    "ceil_mode 3": f"WHERE(NAME, window={numbers(ceil_mode=3)})",
    "negative number of bins": "WHERE(NAME, window=[1, 0, 0, -2, 2])",
    "bins with ceil_mode": "WHERE(NAME, window=[1, 0, 1, 4, 4])",
    "fractional windows with same padding": "WHERE(NAME, window=[2, 1, 0, 2, 2, 4, 4])",
    "fractional windows on one axis and a half": "WHERE(NAME, window=[2, 0, 0, 2, 2, 4])",
    "no fractional windows": "WHERE(NAME, window=[2, 0, 0, 2, 2, 0, 4])",
    "two windows over everything": "WHERE(NAME, window=[3, 0, 0, 1, 2])",
    "kernel that overflows": f"WHERE(NAME, window={numbers(kernel_size=2**62, low=2**62)})",
    "windows of the other kind": (
        "WHERE(NAME, window=FIXED if NAME == 'fractional_max' else WINDOWS['fractional_max'])"
    ),
}
WINDOWS = {
    "dilation that overflows": f"WHERE(NAME, window={numbers(kernel_size=2**40, dilation=2**40)})",
}
OPERANDS = {
    "operand without elements": "WHERE(NAME, operand=operand(NAME).flatten()[:0])",
    "operand of two elements": "WHERE(NAME, operand=operand(NAME).flatten()[:1].repeat(2))",
    "operand of very many": "WHERE(NAME, operand=operand(NAME).flatten()[:1].repeat(9999))",
    "operand of another dtype": "WHERE(NAME, operand=operand(NAME).to(torch.int32))",
    "complex operand": "WHERE(NAME, operand=operand(NAME).to(torch.complex64))",
}
INPUTS = {
    "complex input": "pooled(NAME, x=x().to(torch.complex64))",
    "input without axes": "pooled(NAME, x=torch.ones(()))",
    "input of one axis": "pooled(NAME, x=torch.ones(8))",
    "input of empty planes": "pooled(NAME, x=torch.ones(2, 3, 0, 8))",
    "no channels last": "pooled(NAME, x=torch.ones(4, 4), channels_last=True)",
}
SAVED = {
    "small input": "pulled(NAME, x=torch.ones(1))",
    "input of another batch": "pulled(NAME, x=torch.ones(1, 3, 8, 8))",
    "input of another dtype": "pulled(NAME, x=x().double())",
    "half an input": "pulled(NAME, x=x().half())",
}


def residuals(name: str) -> dict[str, str]:
    cases = {}
    for k in range(RESIDUALS[name]):
        spoilt = {
            "small": "torch.zeros(1, dtype=DTYPE)",
            "empty": "torch.zeros(0, 3, 4, 4, dtype=DTYPE)",
            "large": "torch.zeros(2, 3, 5, 5, dtype=DTYPE)",
            "of another dtype": "torch.zeros(HALF, dtype=torch.int64)",
            "of halves": "torch.zeros(HALF, dtype=torch.float16)",
        }
        dtype = "torch.uint8" if name in ROUTED or (name == "mixed" and k == 0) else "torch.float32"
        if name in LEARNED and k == RESIDUALS[name] - 1:
            del spoilt["empty"]  # a slope that nobody wanted has no elements
        for what, tensor in spoilt.items():
            made = tensor.replace("DTYPE", dtype)
            cases[f"{name}, residual {k} {what}"] = f"pulled({name!r}, residual{k}={made})"
    return cases


def pooled_and_pulled(
    names: tuple[str, ...], calls: dict[str, str], ways: tuple[str, ...] = ("pooled", "pulled")
) -> dict[str, str]:
    made = {}
    for call in ways:
        each_way = {f"{call}, {w}": c.replace("WHERE", call) for w, c in calls.items()}
        made |= each(names, each_way)
    return made


TANGENTS = {
    "tangent of another shape": "pushed(NAME, t=torch.ones(2, 3, 80, 80))",
    "tangent of another rank": "pushed(NAME, t=torch.ones(8))",
    "tangent with an inner axis out of range": "pushed(NAME, inner=9)",
}
INDICES = {  # what is changed in a call that makes indices of routes
    "other routes": "torch.zeros([*HALF, 1], dtype=torch.uint8), FIXED",
    "floats": "torch.ones(HALF), FIXED",
    "no windows": "KEPT, []",
    "windows with stride 0": f"KEPT, {numbers(stride=0)}",
    "fractional windows": "KEPT, WINDOWS['fractional_max']",
}


def indices_of(changed: str) -> str:
    changed = changed.replace("KEPT", "torch.zeros(HALF, dtype=torch.uint8)")
    return f"torch.ops.poolgrad.max_indices(x(), {changed}, False, 'first', 'bytes')"


REFUSED = each(ALL, GRADIENTS) | each(PUSHED, TANGENTS)
REFUSED |= {f"indices of {what}": indices_of(changed) for what, changed in INDICES.items()}
REFUSED |= pooled_and_pulled(ALL, WINDOWS)
REFUSED |= pooled_and_pulled(ARGUED, OPERANDS) | each(ALL, INPUTS) | each(NONLINEAR, SAVED)
del REFUSED["fractional_max, large shape"]  # its windows say how many outputs: any input will do
del REFUSED["fractional_max, tangent of another shape"], REFUSED["avg, tangent of another shape"]
for operator in ALL:
    REFUSED |= residuals(operator)
REFUSED |= {
    f"fractional_max, {call} with samples of {value}": (
        f"{call}('fractional_max', operand=torch.full((2, 3, 2), {value}))"
    )
    for call in ("pooled", "pulled", "pushed")
    for value in ("float('nan')", "float('inf')", "1e30", "-1e30", "1.0", "-1.0", "3e9")
}
NUMBERS = {
    "lp": ("0.0", "-1.0", "float('nan')", "-float('inf')"),
    "log_mean_exp": ("0.0", "float('nan')", "float('inf')"),
    "mixed": ("float('nan')", "float('inf')"),
}
REFUSED |= {
    f"{name}, {call} with {value}": f"{call}({name!r}, operand=torch.tensor({value}))"
    for name, values in NUMBERS.items()
    for call in ("pooled", "pulled")
    for value in values
}
REFUSED |= {
    "max_unpool, pooled to nowhere": "pooled('max_unpool', operand=torch.full(SHAPE, -1))",
    "max_unpool, pulled from nowhere": "pulled('max_unpool', operand=torch.full(SHAPE, -1))",
    "max_unpool, pushed too far": "pushed('max_unpool', operand=torch.full(SHAPE, 256))",
    "avg, windows of padding": f"pooled('avg', window={OF_PADDING}, count_include_pad=False)",
    "stochastic, negative seed": "pooled('stochastic', operand=torch.tensor(-1))",
    "stochastic, NaN": "pooled('stochastic', x=x() * float('nan'))",
    "stochastic, inf": "pooled('stochastic', x=x() * float('inf'))",
    "stochastic, windows of padding": f"pooled('stochastic', window={OF_PADDING})",
    "median, windows of padding": f"pooled('median', window={OF_PADDING})",
    "soft, windows of padding": f"pooled('soft', window={OF_PADDING})",
    "lp, mean of padding": f"pooled('lp', window={OF_PADDING}, mean=True)",
    "fractional_max, unknown ties": "pooled('fractional_max', ties='all')",
    "min, unknown ties": "pulled('min', ties='last')",
    "min, bits where routes belong": "pulled('min', residual0=torch.zeros(2, 3, 4, 4, 1).byte())",
    "median, routes where bits belong": "pulled('median', ties='split')",
    "fractional_max, too few bits": (
        "pulled('fractional_max', ties='split', residual0=torch.zeros(2, 3, 4, 4, 0).byte())"
    ),
}  # fmt: skip
# No errors, but what they read or write must lie inside their arrays.
FAR = {
    "routes beyond": "pulled(NAME, residual0=torch.full(HALF, 254, dtype=torch.uint8))",
    "routes of 255": "pulled(NAME, residual0=torch.full(HALF, 255, dtype=torch.uint8))",
    "ahead of routes beyond": "pushed(NAME, residual0=torch.full(HALF, 254, dtype=torch.uint8))",
}
JUNK = {
    f"residual {k} of {value}": f"pulled(NAME, residual{k}=torch.full(HALF, {value}))"
    for k in range(3)
    for value in ("float('nan')", "float('inf')", "-3e38", "1e-45")
}
ANSWERED = each(ROUTED, FAR) | each(NONLINEAR[:-1], JUNK)
ANSWERED |= {
    "mixed, routes beyond": "pulled('mixed', residual0=torch.full(HALF, 254, dtype=torch.uint8))",
    "mixed, slopes of NaN": "pulled('mixed', residual1=torch.full(HALF, float('nan')))",
    "max, routes into the padding": (
        f"pulled('max', window={numbers(low=1, high=1)}, gy=torch.ones(2, 3, 5, 5), "
        "residual0=torch.zeros(2, 3, 5, 5, dtype=torch.uint8))"
    ),
    "max, expanded routes": (
        "pulled('max', residual0=torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(HALF))"
    ),
    "indices of routes beyond": indices_of(
        "torch.full(HALF, 254, dtype=torch.uint8), FIXED"
    ),
    "min, bits beyond": (
        "pulled('min', ties='split', residual0=torch.full([*HALF, 1], 255, dtype=torch.uint8))"
    ),
    "fractional_max, bits beyond": (
        "pulled('fractional_max', ties='split', "
        "residual0=torch.full([*HALF, 1], 255, dtype=torch.uint8))"
    ),
    "max_unpool, no inputs": (
        "pooled('max_unpool', x=torch.ones(0, 3, 8, 8), operand=torch.zeros(0, 3, 8, 8).long())"
    ),
    "lp, expanded operand": "pooled('lp', operand=torch.tensor([2.0]).expand(3))",
    "mixed, expanded gradient": "pulled('mixed', gy=torch.ones(1, 1, 1, 1).expand(HALF))",
}  # fmt: skip
WRONG_WINDOWS = pooled_and_pulled(ALL, MALFORMED)
WRONG_WINDOWS |= pooled_and_pulled(PUSHED, MALFORMED, ("pushed",))
_draw = random.Random(0)
_ODD = (-(2**63), -2, -1, 0, 1, 2, 3, 9, 2**60, 2**62, 2**63 - 1)


def _changed(window: list[int]) -> list[int]:
    changes = {_draw.randrange(len(window)): _draw.choice(_ODD) for _ in range(_draw.randint(1, 3))}
    return [changes.get(k, number) for k, number in enumerate(window)]


RANDOM_WINDOWS = {
    f"{name}, {call} with window {window}": f"{call}({name!r}, window={window})"
    for name in ALL
    for call in ("pooled", "pulled")
    for base in (fixed(2, 2), fixed(2, 3, 2, "same", 1, True), adaptive(2, 4), fractional(2, 2, 4))
    for window in (_changed(flatten(base)) for _ in range(4))
}
CASES = RIGHT | REFUSED | ANSWERED | WRONG_WINDOWS | RANDOM_WINDOWS


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    return outcomes(CASES)


def test_no_call_brings_the_process_down(said: dict[str, str]) -> None:
    assert set(said) == set(CASES)
    assert {n: o for n, o in said.items() if o.startswith("ended with")} == {}


@pytest.mark.parametrize("operator", ALL)
def test_what_is_right_is_answered(said: dict[str, str], operator: str) -> None:
    outcome = {n: said[n] for n in RIGHT if n.startswith(f"{operator}, ")}
    assert len(outcome) in (2, 3)
    assert all(o.startswith("answered") for o in outcome.values()), outcome


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused(said: dict[str, str], name: str) -> None:
    errors = ("ValueError", "TypeError", "RuntimeError")  # others are an error of the test itself
    assert said[name].startswith(tuple(f"refused with {error}" for error in errors)), said[name]


@pytest.mark.parametrize("operator", ALL)
def test_windows_that_no_function_makes_are_refused_by_name(
    said: dict[str, str], operator: str
) -> None:
    words = "refused with ValueError window "
    outcome = {n: said[n] for n in WRONG_WINDOWS if n.startswith(f"{operator}, ")}
    assert {n: o for n, o in outcome.items() if not o.startswith(words)} == {}


@pytest.mark.parametrize("operator", ALL)
def test_random_windows_are_refused_or_answered(said: dict[str, str], operator: str) -> None:
    allowed = ("answered", "refused with ValueError")
    outcome = {n: said[n] for n in RANDOM_WINDOWS if n.startswith(f"{operator}, ")}
    assert {n: o for n, o in outcome.items() if not o.startswith(allowed)} == {}


@pytest.mark.parametrize("name", ANSWERED)
def test_what_was_tampered_with_stays_inside(said: dict[str, str], name: str) -> None:
    assert said[name].startswith("answered"), said[name]


@pytest.mark.parametrize("name", [name for name in REFUSED if "inner axis" in name])
def test_a_wrong_inner_axis_is_refused_by_name(said: dict[str, str], name: str) -> None:
    assert "refused with ValueError inner must be -1 or an axis that is not pooled" in said[name]


# Right calls


def test_bits_of_any_strides() -> None:
    """What ties="split" keeps may come back from a hook in another layout."""
    x = torch.randint(0, 2, (2, 3, 8, 8)).float()
    y, bits = OPS.max(x, FIXED, False, "split", "bytes")
    gy = torch.ones_like(y)
    expected = OPS.max_vjp(gy, bits, FIXED, SHAPE, False, -1, "split", "bytes")
    flipped = bits.flip(0).flip(0)
    strided = bits.movedim(0, -1).contiguous().movedim(-1, 0)
    for kept in (flipped, strided, bits.repeat_interleave(2, 1)[:, ::2]):
        assert torch.equal(kept, bits)
        assert torch.equal(
            OPS.max_vjp(gy, kept, FIXED, SHAPE, False, -1, "split", "bytes"), expected
        )
        assert torch.equal(OPS.max_jvp(x, kept, FIXED, False, -1, "split", "bytes"), y)


def test_routes_of_any_strides() -> None:
    x = torch.randn(2, 3, 8, 8)
    y, routes = OPS.max(x, FIXED, False, "first", "bytes")
    expected = OPS.max_vjp(y, routes, FIXED, SHAPE, False, -1, "first", "bytes")
    strided = routes.movedim(0, -1).contiguous().movedim(-1, 0)
    for kept in (strided, routes.repeat_interleave(2, 1)[:, ::2]):
        assert torch.equal(
            OPS.max_vjp(y, kept, FIXED, SHAPE, False, -1, "first", "bytes"), expected
        )
        assert torch.equal(OPS.max_jvp(x, kept, FIXED, False, -1, "first", "bytes"), y)


# Devices


@pytest.mark.parametrize("name", ALL)
def test_tensors_on_several_devices_are_refused_by_name(name: str) -> None:
    """An extra operand may be on the CPU."""
    made = pooled(name)
    y, *residual = made if isinstance(made, tuple) else (made,)
    words = "all tensors must be on one device, got .*{} on meta"
    for k, kept in enumerate(residual):
        spoilt = {f"residual{k}": kept.to("meta")}
        with pytest.raises(ValueError, match=words.format(f"gy on cpu, .*residual{k}")):
            pulled(name, **spoilt)
        if name in PUSHED:
            with pytest.raises(ValueError, match=words.format(f"t on cpu, .*residual{k}")):
                pushed(name, **spoilt)
    if residual:
        with pytest.raises(ValueError, match=r"got gy on meta, .*residual0 on cpu"):
            pulled(name, gy=torch.ones_like(y, device="meta"))
    if name in NONLINEAR:
        with pytest.raises(ValueError, match=words.format("gy on cpu, x")):
            pulled(name, x=x().to("meta"))
    if name in ARGUED:
        with pytest.raises(ValueError, match=words.format("x on cpu, operand")):
            pooled(name, operand=operand(name).to("meta"))
        made = pooled(name, x=x().to("meta"))
        assert (made[0] if isinstance(made, tuple) else made).is_meta


def test_regions_on_several_devices_are_refused_by_name() -> None:
    maps, table = torch.ones(1, 1, 2, 2), torch.zeros(1, 5)
    with pytest.raises(ValueError, match="got input on cpu, boxes on meta"):
        OPS.roi_align(maps, table.to("meta"), [1, 1], 1.0, 1, True)
    indices = torch.zeros(1, 1, 1, 1, dtype=torch.int32, device="meta")
    with pytest.raises(ValueError, match="got gy on cpu, indices on meta, boxes on cpu"):
        OPS.roi_pool_backward(maps[..., :1, :1], indices, table, [1, 1, 2, 2])
