"""XLA programs that call the kernels with words that do not fit, as a stored program might.

Such a call must raise an error or return a result, and access nothing outside its arrays.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from robustness.calls import Draw, Seeded

import poolgrad

Shape = tuple[tuple[int, ...], str]  # sizes and dtype

_CALL = re.compile(r'custom_call @poolgrad\(.*words = "([^"]*)".* : \(([^()]*)\) -> \(?([^()\n]*)')
_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "ui8": "uint8", "i8": "int8", "ui16": "uint16", "i16": "int16", "ui32": "uint32",
    "i32": "int32", "i64": "int64", "i1": "bool",
}  # fmt: skip
_NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 64, 2**31, 2**61, 2**62, 2**63 - 1)
_WORDS = (
    "-", "<0", "<1", ">0", ">1", "<9", ">9", "[0", "[2", "*", "first", "max", "split", "lp", "soft",
    "float16", "float32", "float64", "uint8", "int64", "select", "curved", "average", "",
)  # fmt: skip


def _sources() -> list[Any]:
    """Functions of an array of shape (2, 3, 7, 6) that pool in every way."""
    draws: dict[str, Any] = {"generator": 1}
    return [
        lambda x: poolgrad.max_pool2d(x, 2),
        lambda x: poolgrad.max_pool2d(x, 3, 1, 1, dilation=2, routes="packed"),
        lambda x: poolgrad.max_pool2d(x, 2, ties="split"),
        lambda x: poolgrad.min_pool2d(x, (3, 2), ceil_mode=True),
        lambda x: poolgrad.relu_max_pool2d(x, 3, 2),
        lambda x: poolgrad.median_pool2d(x, 3, 1),
        lambda x: poolgrad.avg_pool2d(x, 2, divisor_override=3),
        lambda x: poolgrad.avg_pool2d(x, 5, 1, 2, count_include_pad=False),
        lambda x: poolgrad.adaptive_avg_pool2d(x, 4),
        lambda x: poolgrad.adaptive_max_pool2d(x, (5, 3)),
        poolgrad.global_avg_pool,
        lambda x: poolgrad.lp_pool2d(x, 3.0, 2),
        lambda x: poolgrad.lse_pool2d(x, 2, r=2.0),
        lambda x: poolgrad.soft_pool2d(x, 3, 2),
        lambda x: poolgrad.mixed_pool2d(x, 2, alpha=0.25),
        lambda x: poolgrad.stochastic_pool2d(abs(x), 2, **draws),
        lambda x: poolgrad.fractional_max_pool2d(x, 2, output_size=3, **draws),
        lambda x: poolgrad.max_unpool2d(
            *poolgrad.max_pool2d(x, 2, return_indices=True), 2, output_size=(7, 6)
        ),
    ]


@cache
def programs() -> tuple[tuple[str, tuple[Shape, ...], tuple[Shape, ...]], ...]:
    """Words, operands and results of each call of a kernel in poolgrad's own programs."""
    x = jax.ShapeDtypeStruct((2, 3, 7, 6), jnp.float32)
    found: dict[tuple[Any, ...], None] = {}
    for source in _sources():
        text = jax.jit(jax.value_and_grad(lambda x, f=source: f(x).sum())).lower(x).as_text()
        for words, operands, results in _CALL.findall(text):
            found[words, _shapes(operands), _shapes(results)] = None
    return tuple(found)


def _shapes(text: str) -> tuple[Shape, ...]:
    shapes = []
    for tensor in re.findall(r"tensor<([^>]*)>", text):
        *sizes, dtype = tensor.split("x")
        shapes.append((tuple(map(int, sizes)), _DTYPES[dtype]))
    return tuple(shapes)


def _other_shape(draw: Draw, shape: Shape) -> Shape:
    sizes, dtype = list(shape[0]), shape[1]
    if sizes and draw.integer(0, 3):
        sizes[draw.integer(0, len(sizes) - 1)] = draw.choice([0, 1, 2, 3, 9])
    else:
        dtype = draw.choice(sorted(_DTYPES.values()))
    return tuple(sizes), dtype


def _other_words(draw: Draw, words: list[str]) -> list[str]:
    words = list(words)
    for _ in range(draw.integer(1, 3)):
        k = draw.integer(0, len(words) - 1)
        how = draw.integer(0, 9)
        if how == 0:
            del words[k:]
            words = words or [""]
        elif how == 1:
            words.insert(k, draw.choice(words))
        elif how == 2:
            words[k] = draw.choice(_WORDS)
        elif how == 3:
            words[k] = draw.choice(words)
        else:  # a number for a number: what still can be read, but does not fit
            numbers = [i for i, w in enumerate(words) if w.lstrip("-").isdigit()]
            if numbers:
                words[draw.choice(numbers)] = str(draw.choice(_NUMBERS))
    return words


def _other_dtypes(
    draw: Draw, words: list[str], operands: list[Shape], results: list[Shape]
) -> tuple[list[str], list[Shape], list[Shape]]:
    """Another dtype in words, operands and results together: all sizes still fit."""
    old = draw.choice([w for w in words if w in _DTYPES.values()])
    new = draw.choice(sorted(_DTYPES.values()))
    places = [k for k, w in enumerate(words) if w == old]
    chosen = draw.choice([places, *([k] for k in places)])

    def changed(shapes: list[Shape]) -> list[Shape]:
        every = draw.integer(0, 1)
        return [
            (sizes, new) if dtype == old and (every or draw.integer(0, 1)) else (sizes, dtype)
            for sizes, dtype in shapes
        ]

    words = [new if k in chosen else w for k, w in enumerate(words)]
    return words, changed(operands), changed(results)


class _Axis(NamedTuple):
    """An axis of windows in the words of a call."""

    kind: int  # 0: at equal distances, 1: bins, 2: placed by samples
    inputs: int
    outputs: int
    kernel: int
    stride: int
    low: int
    high: int
    dilation: int
    first: int
    before: int
    all_inputs: int
    all_outputs: int


def _other_axis(draw: Draw, kind: int) -> _Axis:
    """Windows that the kernels take, also those that the public functions refuse."""
    n, k = draw.choice([1, 2, 3, 5, 8, 17, 33]), draw.choice([1, 2, 2, 3, 3, 5, 9, 31])
    if kind == 1:
        m = draw.integer(1, 9)
        return _Axis(kind, n, m, n // m + 2, m, 0, 0, 1, 0, 0, n, m)
    if kind == 2:
        k = min(n, k)
        m = draw.integer(1, n - k + 1)
        return _Axis(kind, n, m, k, 1, 0, 0, 1, 0, 0, n, m)
    stride, dilation = draw.choice([1, 1, 2, 3]), draw.choice([1, 1, 2, 4])
    reach = (k - 1) * dilation
    low, high = (draw.integer(0, draw.choice([0, 1, reach, reach + 3, 45])) for _ in range(2))
    m = max(1, min(40, (n + low + high - reach - 1) // stride + draw.integer(0, 2)))
    part = draw.integer(0, 7) == 0  # of a larger axis
    first, before, more = (draw.integer(0, 3) if part else 0 for _ in range(3))
    return _Axis(
        kind, n, m, k, stride, low, high, dilation, first, before, n + before + more,
        m + first + more,
    )  # fmt: skip


_AXES = 7  # words before those of the first axis


def _other_windows(
    draw: Draw, words: list[str], operands: list[Shape], results: list[Shape]
) -> tuple[list[str], list[Shape], list[Shape]]:
    """Other windows and pooled sizes in words, operands and results together."""
    begins = [_AXES + 1 + a * 13 for a in range(int(words[_AXES - 1]))]  # after the axis' number
    old = [_Axis(*map(int, words[b : b + 12])) for b in begins]
    new = [_other_axis(draw, axis.kind) for axis in old]
    words = list(words)
    for begin, axis in zip(begins, new, strict=True):
        words[begin : begin + 12] = map(str, axis)
    words[5] = draw.choice([words[5], "0", "1"])  # the innermost axis
    places, bits = math.prod(a.kernel for a in new), int(words[4])
    routes = "uint8" if places <= 255 else "uint16" if places <= 65535 else "uint32"
    forms = [
        ([a.inputs for a in old], [a.inputs for a in new], None),
        ([a.outputs for a in old], [a.outputs for a in new], routes),
        (
            [*(a.outputs for a in old), -(-math.prod(a.kernel for a in old) // 8)],
            [*(a.outputs for a in new), -(-places // 8)],
            None,
        ),
    ]
    if bits:
        *others, last = [a.outputs for a in old]
        *more, width = [a.outputs for a in new]
        forms.append(([*others, -(-last * bits // 8)], [*more, -(-width * bits // 8)], None))

    def changed(shape: Shape) -> Shape:
        sizes, dtype = list(shape[0]), shape[1]
        for before, after, of_routes in forms:
            if sizes[2:] == before:
                wide = of_routes if of_routes and dtype == "uint8" else dtype
                return (*sizes[:2], *after), wide
        return shape

    return words, [changed(s) for s in operands], [changed(s) for s in results]


def spoilt(seed: int) -> tuple[str, list[Shape], list[Shape], dict[int, int]]:
    """Words, operands, results and shared memory (operand: result) of the program of a seed."""
    draw = Seeded(seed)
    words, operands, results = draw.choice(programs())
    each, held, made = words.split(" "), list(operands), list(results)
    how = draw.integer(0, 3)
    if how == 0:
        each, held, made = _other_dtypes(draw, each, held, made)
    elif how == 1:
        each, held, made = _other_windows(draw, each, held, made)
    elif draw.integer(0, 3):
        each = _other_words(draw, each)
    for shapes in (held, made):
        if draw.integer(0, 3) == 0:
            k = draw.integer(0, len(shapes) - 1)
            shapes[k] = _other_shape(draw, shapes[k])
        if len(shapes) > 1 and draw.integer(0, 15) == 0:
            shapes.pop()
    shared = [(a, b) for a, one in enumerate(held) for b, other in enumerate(made) if one == other]
    lent = dict([draw.choice(shared)]) if shared and draw.integer(0, 3) == 0 else {}
    return " ".join(each), held, made, lent


def described(seed: int) -> str:
    """The program of a seed in one line."""
    words, operands, results, shared = spoilt(seed)
    return f"{words!r} of {operands} to {results}, shared: {shared}"


def check(seed: int) -> bytes:
    """Run the program of a seed; whether it was answered or refused."""
    words, operands, results, shared = spoilt(seed)
    made = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in results]
    values = np.random.default_rng(seed)
    most = int(values.choice([3, 256]))  # routes of a window, or any
    given = [values.integers(0, most, shape).astype(jnp.dtype(dtype)) for shape, dtype in operands]
    call = jax.ffi.ffi_call("poolgrad", made, input_output_aliases=shared)
    try:
        with jax.enable_x64(True):
            jax.block_until_ready(jax.jit(lambda *given: call(*given, words=words))(*given))
    except (jax.errors.JaxRuntimeError, ValueError):
        return b"refused"
    return b"answered"
