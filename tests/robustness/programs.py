"""XLA programs that call the kernels with attributes that do not fit, as a stored program might.

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
from poolgrad.dtypes import DTYPE_NAMES

Shape = tuple[tuple[int, ...], str]  # sizes and dtype

Attributes = dict[str, Any]

_CALL = re.compile(
    r"custom_call @poolgrad\(.*mhlo.backend_config = {(.*?)}, operand_layouts"
    r".* : \(([^()]*)\) -> \(?([^()\n]*)"
)
_ATTRIBUTE = re.compile(
    r'(\w+) = (?:"(?P<text>[^"]*)"|dense<(?P<list>[^>]*)> : tensor<(?P<size>\d+)xi64>'
    r"|(?P<number>-?\d+) : i64)"
)
_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "ui8": "uint8", "i8": "int8", "ui16": "uint16", "i16": "int16", "ui32": "uint32",
    "i32": "int32", "i64": "int64", "i1": "bool",
}  # fmt: skip
_NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 64, 2**31, 2**61, 2**62, 2**63 - 1)
_TEXTS = (
    "", "select", "split_winners", "nonlinear", "average", "average_quantized", "draw", "mixed",
    "route_backward",
)  # fmt: skip


class Program(NamedTuple):
    """A call of a kernel: its attributes, operands and results."""

    attributes: Attributes
    operands: list[Shape]
    results: list[Shape]


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
        lambda x: poolgrad.log_mean_exp_pool2d(x, 2, r=2.0),
        lambda x: poolgrad.soft_pool2d(x, 3, 2),
        lambda x: poolgrad.mixed_pool2d(x, 2, alpha=0.25),
        lambda x: poolgrad.stochastic_pool2d(abs(x), 2, **draws),
        lambda x: poolgrad.fractional_max_pool2d(x, 2, output_size=3, **draws),
        lambda x: poolgrad.max_unpool2d(
            *poolgrad.max_pool2d(x, 2, return_indices=True), 2, output_size=(7, 6)
        ),
    ]


@cache
def programs() -> tuple[Program, ...]:
    """Each call of a kernel in poolgrad's own programs."""
    x = jax.ShapeDtypeStruct((2, 3, 7, 6), jnp.float32)
    codes = jax.ShapeDtypeStruct(x.shape, jnp.uint8)
    texts = [
        jax.jit(jax.value_and_grad(lambda x, f=source: f(x).sum())).lower(x).as_text()
        for source in _sources()
    ]
    quantized = jax.jit(lambda x: poolgrad.avg_pool2d(x, 2, quantization=(0.1, 3)))
    found: dict[tuple[str, ...], None] = {}
    for text in (*texts, quantized.lower(codes).as_text()):
        found |= dict.fromkeys(_CALL.findall(text))
    return tuple(Program(_attributes(a), _shapes(o), _shapes(r)) for a, o, r in found)


def _attributes(text: str) -> Attributes:
    """Attributes as MLIR prints them: texts, numbers and lists (short if all items are equal)."""
    found: Attributes = {}
    for match in _ATTRIBUTE.finditer(text):
        if match["text"] is not None:
            found[match[1]] = match["text"]
        elif match["number"] is not None:
            found[match[1]] = int(match["number"])
        else:
            numbers = [int(n) for n in re.findall(r"-?\d+", match["list"])]
            short = len(numbers) == 1
            found[match[1]] = numbers * int(match["size"]) if short else numbers
    return found


def _shapes(text: str) -> list[Shape]:
    shapes: list[Shape] = []
    for tensor in re.findall(r"tensor<([^>]*)>", text):
        *sizes, dtype = tensor.split("x")
        shapes.append((tuple(map(int, sizes)), _DTYPES[dtype]))
    return shapes


def _other_shape(draw: Draw, shape: Shape) -> Shape:
    sizes, dtype = list(shape[0]), shape[1]
    if sizes and draw.integer(0, 3):
        sizes[draw.integer(0, len(sizes) - 1)] = draw.choice([0, 1, 2, 3, 9])
    else:
        dtype = draw.choice(sorted(_DTYPES.values()))
    return tuple(sizes), dtype


def _other_attributes(draw: Draw, attributes: Attributes) -> Attributes:
    """Some attributes with other values, or lists of another length."""
    attributes = dict(attributes)
    for _ in range(draw.integer(1, 3)):
        name = draw.choice(sorted(attributes))
        value = attributes[name]
        if isinstance(value, str):
            attributes[name] = draw.choice(_TEXTS)
        elif isinstance(value, int):
            attributes[name] = draw.choice(_NUMBERS)
        else:
            attributes[name] = _other_list(draw, list(value))
    return attributes


def _other_list(draw: Draw, numbers: list[int]) -> list[int]:
    how = draw.integer(0, 7)
    k = draw.integer(0, len(numbers))
    if how == 0 or k == len(numbers):
        return [*numbers[:k], draw.choice([*numbers, *_NUMBERS]), *numbers[k:]]
    if how == 1:
        return numbers[:k] + numbers[k + 1 :]
    numbers[k] = draw.choice(numbers if how == 2 else _NUMBERS)
    return numbers


def _other_dtypes(draw: Draw, program: Program) -> Program:
    """Another dtype in attributes, operands and results together: all sizes still fit."""
    attributes, operands, results = program
    number = draw.choice([attributes["in_dtype"], attributes["out_dtype"]])
    old = DTYPE_NAMES[number]
    new = draw.choice(sorted(_DTYPES.values()))
    names = [name for name in ("in_dtype", "out_dtype") if attributes[name] == number]
    chosen = draw.choice([names, *([name] for name in names)])

    def changed(shapes: list[Shape]) -> list[Shape]:
        every = draw.integer(0, 1)
        return [
            (sizes, new) if dtype == old and (every or draw.integer(0, 1)) else (sizes, dtype)
            for sizes, dtype in shapes
        ]

    attributes = attributes | dict.fromkeys(chosen, DTYPE_NAMES.index(new))
    return Program(attributes, changed(operands), changed(results))


class _Axis(NamedTuple):
    """The numbers of an axis in the attributes of a call, behind its position."""

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


def _other_windows(draw: Draw, program: Program) -> Program:
    """Other windows and pooled sizes in attributes, operands and results together."""
    attributes, operands, results = program
    begins = range(0, len(attributes["axes"]), 13)
    old = [_Axis(*attributes["axes"][b + 1 : b + 13]) for b in begins]
    new = [_other_axis(draw, axis.kind) for axis in old]
    positions = [attributes["axes"][b] for b in begins]
    attributes = attributes | {
        "axes": [n for p, axis in zip(positions, new, strict=True) for n in (p, *axis)],
        "inner_axis": draw.choice([attributes["inner_axis"], 0, 1]),
    }
    places, bits = math.prod(a.kernel for a in new), attributes["route_bits"]
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

    return Program(attributes, [changed(s) for s in operands], [changed(s) for s in results])


def spoilt(seed: int) -> tuple[Program, dict[int, int]]:
    """The program of a seed, and its shared memory (operand: result)."""
    draw = Seeded(seed)
    program = draw.choice(programs())
    how = draw.integer(0, 3)
    if how == 0:
        program = _other_dtypes(draw, program)
    elif how == 1:
        program = _other_windows(draw, program)
    elif draw.integer(0, 3):
        program = program._replace(attributes=_other_attributes(draw, program.attributes))
    _, held, made = program = program._replace(
        operands=list(program.operands), results=list(program.results)
    )
    for shapes in (held, made):
        if draw.integer(0, 3) == 0:
            k = draw.integer(0, len(shapes) - 1)
            shapes[k] = _other_shape(draw, shapes[k])
        if len(shapes) > 1 and draw.integer(0, 15) == 0:
            shapes.pop()
    shared = [(a, b) for a, one in enumerate(held) for b, other in enumerate(made) if one == other]
    lent = dict([draw.choice(shared)]) if shared and draw.integer(0, 3) == 0 else {}
    return program, lent


def described(seed: int) -> str:
    """The program of a seed in one line."""
    program, shared = spoilt(seed)
    return f"{program}, shared: {shared}"


def _typed(value: Any) -> Any:
    """An attribute as XLA takes it."""
    if isinstance(value, list):
        return np.array(value, np.int64)
    return np.int64(value) if isinstance(value, int) else value


def check(seed: int) -> bytes:
    """Run the program of a seed; whether it was answered or refused."""
    (attributes, operands, results), shared = spoilt(seed)
    typed = {name: _typed(value) for name, value in attributes.items()}
    made = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in results]
    values = np.random.default_rng(seed)
    most = int(values.choice([3, 256]))  # routes of a window, or any
    given = [values.integers(0, most, shape).astype(jnp.dtype(dtype)) for shape, dtype in operands]
    call = jax.ffi.ffi_call("poolgrad", made, input_output_aliases=shared)
    try:
        with jax.enable_x64(True):
            jax.block_until_ready(jax.jit(lambda *given: call(*given, **typed))(*given))
    except (jax.errors.JaxRuntimeError, ValueError):
        return b"refused"
    return b"answered"
