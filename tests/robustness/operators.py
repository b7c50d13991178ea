"""Calls of ``torch.ops.poolgrad`` with random arguments that do not fit each other.

Such a call must raise an error or return a result, and access nothing outside its arrays.
"""

from __future__ import annotations

import torch
from raw_ops import ALL, WINDOWS, _kept, operand, pooled, pulled, pushed, window, x
from robustness.calls import Draw, Seeded

from poolgrad.windows import adaptive, fixed, flatten

_NUMBERS = (
    -(2**63), -(2**31), -3, -1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 8, 16, 255,
    2**31, 2**61, 2**62, 2**63 - 1,
)  # fmt: skip
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.uint8, torch.int16, torch.int64, torch.bool,
)  # fmt: skip
REFUSED = (ValueError, TypeError, RuntimeError, NotImplementedError, MemoryError, OverflowError)


def _integers(draw: Draw, values: list[int]) -> list[int]:
    """The numbers with some of them replaced, or one too many or too few."""
    values = list(values)
    if draw.integer(0, 7) == 0:
        return values[:-1] if draw.integer(0, 1) else [*values, draw.choice(_NUMBERS)]
    for _ in range(draw.integer(1, 3)):
        values[draw.integer(0, len(values) - 1)] = draw.choice(_NUMBERS)
    return values


def _window(draw: Draw, name: str) -> list[int]:
    """Windows of another operator, or with some numbers replaced."""
    known = [*WINDOWS.values(), flatten(fixed(2, 2)), flatten(adaptive(2, 3))]
    chosen = draw.choice([window(name), *known])
    return list(chosen) if draw.integer(0, 1) else _integers(draw, chosen)


def _tensor(draw: Draw, t: torch.Tensor) -> torch.Tensor:
    """A tensor of another shape, dtype or layout."""
    how = draw.choice(["shape", "dtype", "narrow", "expand", "transpose", "empty", "offset"])
    axis = draw.integer(0, max(0, t.ndim - 1))
    if how == "dtype":
        t = t.to(draw.choice(_DTYPES))
    elif how == "shape":
        sizes = [draw.choice([n, n, 0, 1, 2, 9]) for n in t.shape]
        t = torch.zeros(sizes[: draw.integer(0, len(sizes))] if sizes else [3], dtype=t.dtype)
    elif how == "empty" or not t.ndim:
        t = torch.empty(0, dtype=t.dtype)
    elif how == "narrow":
        t = t.narrow(axis, 0, draw.integer(0, t.shape[axis]))
    elif how == "expand":
        t = t.narrow(axis, 0, min(1, t.shape[axis])).expand(t.shape)
    elif how == "transpose":
        t = t.transpose(axis, t.ndim - 1)
    else:
        other = torch.full((t.numel() + 3,), draw.choice([-1, 0, 255]))
        t = other.to(t.dtype)[3:].view(t.shape)
    return t


def spoilt(seed: int) -> tuple[str, str, dict[str, object]]:
    """Direction, operator and replaced arguments of the call of a seed."""
    draw = Seeded(seed)
    name = draw.choice(ALL)
    direction = draw.choice(["pooled", "pulled", "pushed"])
    op = name + {"pooled": "", "pulled": "_vjp", "pushed": "_jvp"}[direction]
    if not hasattr(torch.ops.poolgrad, op):  # of nonlinear operators there is no jvp
        direction, op = "pulled", f"{name}_vjp"
    right = {"x": x(), "operand": operand(name)}
    if direction != "pooled":
        right |= _kept(name)
    replaced: dict[str, object] = {}
    names = [a.name for a in getattr(torch.ops.poolgrad, op).default._schema.arguments]
    for _ in range(draw.integer(1, 3)):
        which = draw.choice(["window", draw.choice(names)])
        value = right.get(which)
        if which == "window":
            replaced[which] = _window(draw, name)
        elif which == "shape":
            replaced[which] = _integers(draw, [2, 3, 8, 8])
        elif which in ("inner", "divisor"):
            replaced[which] = draw.choice(_NUMBERS)
        elif isinstance(value, torch.Tensor):
            replaced[which] = _tensor(draw, value)
        elif which == "operand":
            replaced[which] = torch.zeros(draw.choice([0, 1, 3]))
        elif which == "ties":
            replaced[which] = draw.choice(["first", "split", "zero", "other"])
        elif which == "routes":
            replaced[which] = draw.choice(["bytes", "packed", "other"])
        else:
            replaced[which] = draw.choice([False, True])
    return direction, name, replaced


def described(seed: int) -> str:
    """The call of a seed in one line."""
    direction, name, replaced = spoilt(seed)
    return f"{direction}({name!r}, {replaced})"


def check(seed: int) -> bytes:
    """Make the call of a seed; whether it was answered or refused.

    Raises
    ------
    AssertionError
        If it was refused with an error of another kind than those for wrong arguments.
    """
    direction, name, replaced = spoilt(seed)
    try:
        {"pooled": pooled, "pulled": pulled, "pushed": pushed}[direction](name, **replaced)
    except REFUSED:
        return b"refused"
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    return b"answered"
