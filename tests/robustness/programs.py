"""XLA programs that call the kernels with words that do not fit, as a stored program might.

Such a call must raise an error or return a result, and access nothing outside its arrays.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

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


def spoilt(seed: int) -> tuple[str, list[Shape], list[Shape], dict[int, int]]:
    """Words, operands, results and shared memory (operand: result) of the program of a seed."""
    draw = Seeded(seed)
    words, operands, results = draw.choice(programs())
    each, held, made = words.split(" "), list(operands), list(results)
    if draw.integer(0, 3) == 0:
        each, held, made = _other_dtypes(draw, each, held, made)
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
