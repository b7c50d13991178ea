"""Paragraphs that the docstrings of several public functions share.

The docstrings of the modules in this folder are templates: ``{names}`` in them stand for the words
and paragraphs below. The first line of a paragraph replaces the name; its other lines keep the
indentation that they have here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

from poolgrad.windows import axis_names

_COUNT = ("no", "one", "two", "three")
_AXES = {1: "the last axis", 2: "the last two axes", 3: "the last three axes"}

_WHICH = """
    In an array of three to five axes, batch and channels are not pooled: these are the first two
    axes or, with ``channels_last=True``, the first and the last. An image of shape (C, H, W)
    therefore needs a batch axis: ``x[None]``. An array of two axes is one plane without batch and
    channels: both axes are pooled, and the result has shape ()."""
_TRAP = """
    An image of shape (H, W, 3), as image libraries read it, needs True: with False, the width and
    the three colours would be pooled."""

_RAISES = """\
TypeError
    If `x` is not an array of a supported library and dtype, or an argument is unknown, missing or
    of the wrong type.
ValueError
    If the windows do not fit `x`, or an argument has an unsuitable value."""

_PARAGRAPHS = {
    "x": """\
x : array, shape ({shape}){leading}
    float16, bfloat16, float32, float64, int8, uint8, int16, uint16, int32, uint32, int64 or bool;
    any strides. Not modified.{which}""",
    "x_real": """\
x : array, shape ({shape}){leading}
    float16, bfloat16, float32 or float64; any strides. Not modified.{which}""",
    "windows": """\
kernel_size : int or sequence of {count} int
    Number of taps of a window along each axis.
stride : int or sequence of {count} int, optional
    Distance between neighbouring windows; default: `kernel_size`.
padding : int, sequence of int, sequence of (low, high), "valid" or "same"
    Padding at both ends of each axis, of any size; "same" gives ``ceil(size / stride)`` outputs,
    with the odd element of padding at the high end. Default: 0.
dilation : int or sequence of {count} int
    Distance between neighbouring taps of a window; default: 1.
ceil_mode : bool
    The number of outputs along an axis is
    ``floor((size + low + high - dilation * (kernel_size - 1) - 1) / stride) + 1``. If True, ceil
    replaces floor, so that a last, partial window is kept if it begins in the input or its low
    padding. Default: False.""",
    "bins": """\
output_size : int, None, or sequence of {count} of them
    Number of bins along each axis; None keeps the size of the axis. Bin o holds the inputs from
    ``floor(o * size / output_size)`` up to, not including,
    ``ceil((o + 1) * size / output_size)``.""",
    "return_indices": """\
return_indices : bool
    If True, return the positions of the winners, too. Default: False.""",
    "ties": """\
ties : "first", "split" or "zero"
    If several inputs of a window equal the output, the first in row-major order gets the gradient
    ("first", the default), all get equal shares ("split"), or none gets it ("zero").""",
    "routes": """\
routes : "bytes" or "packed"
    Storage of routes for the backward pass: one byte or more for each output ("bytes", the
    default), or two or four bits for windows of at most 4 or 16 taps (3 or 15 if a window can be
    without a winner). Results do not depend on it.""",
    "learned": """\
One number for all channels, or an array with one number for each. It has a gradient:
    ``pullback.parameters`` computes it for NumPy arrays; for PyTorch, pass a tensor that requires
    a gradient.""",
    "keepdims": """\
keepdims : bool
    If True, the result keeps the pooled axes, with length one. Default: False.""",
    "channels_last": """\
channels_last : bool
    If True, {pooled_before_last}. Default: False.{trap}""",
    "out": """\
out : array, optional
    Array that the result is written to, with the shape and dtype of the result. NumPy only; a
    TypeError for other libraries.""",
    "y": """\
array, shape ({out_shape})
    {same} as `x`.""",
    "means": """\
The mean of int8, uint8, int16, uint16 or bool is float32; that of other integers is float64.""",
    "indices": """\
indices : int64 array of the same shape
    Only if `return_indices`: for each output the flat position of its winner in the pooled axes of
    its plane; -1 for a window without any input.""",
    "raises": _RAISES,
    "raises_if_empty": f"{_RAISES[:-1]},\n    or a window contains padding only.",
}


def fill(template: str, name: str, dims: int) -> str:
    """Return the docstring of a public function, made from its template.

    Parameters
    ----------
    template : str
        The docstring of the function that returns the `Request`.
    name : str
        Name of the public function.
    dims : int
        Number of pooled axes; 0 stands for every axis but batch and channels.
    """
    words = {"name": name, "count": _COUNT[dims], **_words(dims)}
    paragraphs = {key: text.format(**words) for key, text in _PARAGRAPHS.items()}
    return inspect.cleandoc(template).format(**words, **paragraphs)


_CAPITALS = {"lp": "LP", "lse": "LSE", "relu": "ReLU"}


def class_name(function: str) -> str:
    """Return the name of the module class of a public function: MaxPool2d for max_pool2d."""
    words = function.split("_")
    return "".join(_CAPITALS.get(word, word[0].upper() + word[1:]) for word in words)


def of_module(
    function: Callable[..., Any], dims: int, takes: Collection[str], notes: Iterable[str]
) -> str:
    """Return the docstring of a module class, made from that of its function.

    Parameters
    ----------
    function : callable
        The public function.
    dims : int
        Number of axes that the module pools.
    takes : collection of str
        The arguments of the constructor.
    notes : iterable of str
        Sentences that follow the summary; empty ones are left out.
    """
    words = (function.__doc__ or "").replace("every axis but batch and channels", _AXES[dims])
    summary, _, rest = words.partition("\n\nParameters\n----------\n")
    entries = re.split(r"\n(?=\S)", rest.partition("\n\nReturns\n")[0])
    kept = [e for e in entries if not set(re.split(", | : ", e)).isdisjoint(takes)]
    sections = [summary, "\n".join(filter(None, notes))]
    return "\n\n".join([*sections, "\n".join(["Parameters", "----------", *kept])])


def _words(dims: int) -> dict[str, str]:
    if dims == 0:
        return {
            "shape": "N, C, ...",
            "out_shape": "N, C",
            "leading": " or (H, W)",
            "which": _WHICH,
            "same": "Array of the same library and dtype",
            "pooled_before_last": "the axes between the first and the last are pooled",
            "trap": "",
        }
    letters = [n[0].upper() for n in axis_names(dims)]
    return {
        "shape": ", ".join(["N", "C", *letters]),
        "out_shape": ", ".join(["N", "C", *(f"{a}_out" for a in letters)]),
        "leading": " or any other number of leading axes",
        "same": "Array of the same library, dtype and memory format",
        "which": "",
        "pooled_before_last": "the pooled axes are those before the last axis",
        "trap": _TRAP if dims == 2 else "",
        "dims": str(dims),
        "axes": "the last axis" if dims == 1 else f"the last {_COUNT[dims]} axes",
        # For examples: the brackets of an array with one row, windows along the row, and shapes.
        "open": "[" * dims,
        "close": "]" * dims,
        "two": _along_the_row("2", dims),
        "three": _along_the_row("3", dims),
        "sixes": ", ".join(["2", "3", *["6"] * dims]),
        "fours": ", ".join(["2", "3", *["4"] * dims]),
        "threes": ", ".join(["2", "3", *["3"] * dims]),
    }


def _along_the_row(size: str, dims: int) -> str:
    return size if dims == 1 else f"({', '.join([*['1'] * (dims - 1), size])})"
