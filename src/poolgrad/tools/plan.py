"""Describes one call without computing it: the algorithms, tasks, threads and bytes moved.

The function of `poolgrad info --plan`. Needs nothing but NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from poolgrad import core
from poolgrad.buffers import dtype_named
from poolgrad.dtypes import FLOATS, INTEGERS
from poolgrad.functional.public import FUNCTIONS
from poolgrad.tools.algorithms import bind, steps

FORM = (
    "a plan is a pooling function, the shape of the input, and options: kernel k3 or k3x5, stride "
    "s2, padding p1, dilation d2, same, ceil, output size o7, a dtype, channels_last, routes, "
    "packed, threads=2, or another argument of the function such as ties=zero; for example "
    '"max_pool2d 32x64x112x112 k3 s2 p1 float32"'
)
_SIZES = {"k": "kernel_size", "s": "stride", "p": "padding", "d": "dilation", "o": "output_size"}
_FLAGS: dict[str, tuple[str, Any]] = {
    "ceil": ("ceil_mode", True),
    "channels_last": ("channels_last", True),
    "packed": ("routes", "packed"),
    "same": ("padding", "same"),
}
_DEFAULTS: dict[str, Any] = {"norm_type": 2.0}  # of required arguments
_WITHOUT = ("unpool", "fractional")  # their algorithm also depends on indices or samples


class Plan(NamedTuple):
    """A call that the argument of ``poolgrad info --plan`` describes.

    Attributes
    ----------
    function : str
        The name of a public function.
    shape : tuple of int
        Shape of the input, axes in the order in which the function takes them.
    dtype : str
        Dtype of the input.
    arguments : dict
        Further arguments of the function.
    stored : bool
        Whether the forward pass stores what the backward pass needs.
    threads : int or None
        None for those of NumPy arrays.
    """

    function: str
    shape: tuple[int, ...]
    dtype: str
    arguments: dict[str, Any]
    stored: bool
    threads: int | None


def _refused(token: str, why: str) -> ValueError:
    return ValueError(f"{token!r} {why}; {FORM}")


def _numbers(token: str, digits: str) -> tuple[int, ...]:
    sizes = digits.split("x")
    if not all(size.isascii() and size.isdecimal() and len(size) < 19 for size in sizes):
        raise _refused(token, "is not a size such as 3 or 3x5")
    return tuple(map(int, sizes))


def _value(text: str) -> Any:
    """Parse the value of an argument: a bool, an integer, a real number or a string."""
    words = {"True": True, "true": True, "False": False, "false": False}
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _argument(function: str, token: str) -> tuple[str, Any]:
    """Parse an option to the name and the value of an argument."""
    name, equals, text = token.partition("=")
    value: Any
    if token in _FLAGS:
        name, value = _FLAGS[token]
    elif equals:
        value = _value(text)
    elif token[0] in _SIZES and token[1:2].isdecimal():
        name, sizes = _SIZES[token[0]], _numbers(token, token[1:])
        value = sizes if len(sizes) > 1 else sizes[0]
    else:
        raise _refused(token, "is not an option")
    known = signature(FUNCTIONS[function]).parameters
    if name not in known or name in ("x", "out", "return_indices", "generator"):
        raise _refused(token, f"is not an argument of {function}")
    return name, value


def parse(text: str) -> Plan:
    """Parse the description of a call; see `FORM`.

    Raises
    ------
    ValueError
        If the plan has another form, with what is accepted.
    """
    function, *tokens = text.split() or [""]
    if function not in FUNCTIONS or any(word in function for word in _WITHOUT):
        raise _refused(function, "is not a pooling function whose plan depends on shapes alone")
    if not tokens:
        raise _refused(text, "has no shape")
    shape = _numbers(tokens[0], tokens[0])
    if not all(shape):
        raise _refused(tokens[0], "has an axis without elements")
    known = signature(FUNCTIONS[function]).parameters
    arguments = {name: value for name, value in _DEFAULTS.items() if name in known}
    dtype, stored, threads = "float32", False, None
    for token in tokens[1:]:
        if token in (*FLOATS, *INTEGERS):
            dtype = token
        elif token == "routes":
            stored = True
        elif token.startswith("threads="):
            (threads, *more) = _numbers(token, token[len("threads=") :])
            if more or not threads:
                raise _refused(token, "is not a number of threads")
        else:
            name, value = _argument(function, token)
            arguments[name] = value
    return Plan(function, shape, dtype, arguments, stored or "routes" in arguments, threads)


def _amount(number: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _described(run: Callable[[], None], moved: int) -> str:
    made = steps(run, dry=True)
    ways = [
        f"{step.algorithm}, {_counted(step.tasks, 'task')} on {_counted(step.threads, 'thread')}"
        for step in made
    ]
    return f"{'; '.join(ways)}, {_amount(moved)} moved"


def describe(text: str) -> dict[str, str]:
    """Return the properties of a plan by name, in the order in which they are printed.

    The calls are planned by the kernels themselves, without reading or writing an array.

    Raises
    ------
    TypeError, ValueError
        If the plan has another form, or the function refuses its arguments.
    """
    plan = parse(text)
    threads = plan.threads or core.get_num_threads()
    try:
        x = np.empty(plan.shape, dtype_named(plan.dtype))
        made = bind(FUNCTIONS[plan.function], x, plan.arguments, threads, plan.stored)
    except ModuleNotFoundError as error:
        raise ValueError(f"{plan.dtype} arrays need {error.name}, which is not installed") from None
    except MemoryError:
        raise ValueError(
            f"arrays for an input of shape {plan.shape} do not fit into memory"
        ) from None
    found = {
        "plan": " ".join(text.split()),
        "output": "x".join(map(str, made.out_shape)),
        "instruction set": core.instruction_set(),
        "forward": _described(made.forward, made.forward_bytes),
    }
    if made.differentiable:
        found["backward"] = _described(made.backward, made.backward_bytes)
    return found


def report(text: str) -> str:
    """Format the result of `describe` as lines of text."""
    return "\n".join(f"{name + ':':19}{value}" for name, value in describe(text).items())
