"""The words that the documentation of all public functions shares, written once.

The docstrings beside this file are templates: their ``{names}`` stand for the words and paragraphs
here. A paragraph goes where its first line is put; its other lines are indented as they are here.
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
    Of three to five axes, batch and channels are not pooled: the first two or, with
    ``channels_last=True``, the first and the last. So an image of shape (C, H, W) needs a batch:
    ``x[None]``. An array of two axes is one plane without batch and channels: both are pooled, to
    an array of shape ()."""
_TRAP = """
    An image of shape (H, W, 3), as image libraries read it, needs True: without it the last two
    axes are pooled, the width and the three colours."""

_PARAGRAPHS = {
    "x": """\
x : array, shape ({shape}){leading}
    float16, bfloat16, float32, float64, int8, uint8, int16, uint16, int32, uint32, int64 or bool;
    any strides. Not modified.{which}""",
    "x_real": """\
x : array, shape ({shape}){leading}
    float16, bfloat16, float32 or float64; any strides. Not modified.{which}""",
    "windows": """\
kernel_size, stride, dilation : int or sequence of {count} int
    Size of the windows, distance between them (default: the kernel size), and distance between
    the inputs of a window.
padding : int, sequence of int, sequence of (low, high), "valid" or "same"
    How far windows may reach beyond the input; any size.
ceil_mode : bool
    Whether a window that the end of the input cuts off counts.""",
    "bins": """\
output_size : int, None, or sequence of {count} of them
    Bins along each axis; None: as many as there are inputs. Bin o goes from
    ``floor(o * size / output_size)`` to ``ceil((o + 1) * size / output_size)``.""",
    "return_indices": """\
return_indices : bool
    Whether to return the positions of the winners too.""",
    "ties": """\
ties : "first", "split" or "zero"
    Which of equal winners gets the gradient: the first in row-major order, each an equal share,
    or none.""",
    "routes": """\
routes : "bytes" or "packed"
    How routes are kept for the backward pass: one byte or more for each output, or two or four
    bits where a window has at most 4 or 16 places (3 or 15 where an output may be routed
    nowhere). Results do not depend on it.""",
    "learned": """\
One number for all channels, or an array of one for each. It has a gradient too:
    ``pullback.parameters`` for NumPy; for PyTorch, give a tensor that requires one.""",
    "keepdims": """\
keepdims : bool
    Whether the pooled axes stay, with length one.""",
    "channels_last": """\
channels_last : bool
    Whether {pooled_before_last}.{trap}""",
    "out": """\
out : array, optional
    Where the result goes (NumPy only); shape and dtype of the result.""",
    "y": """\
array, shape ({out_shape})
    {same} as `x`.""",
    "means": """\
Means of integers are float32 (of int8, uint8, int16, uint16 and bool) or float64.""",
    "indices": """\
indices : int64 array of the same shape
    If `return_indices`: for each output the flat position of its winner among the pooled axes
    of its plane; -1 for a window without any input.""",
    "raises": """\
TypeError, ValueError
    With the argument named, before anything is computed.""",
    "raises_if_empty": """\
TypeError, ValueError
    With the argument named, before anything is computed.
    Also if padding leaves a window without any input.""",
}


def fill(template: str, name: str, dims: int) -> str:
    """The documentation of a function, from its template.

    Parameters
    ----------
    template : str
        The docstring of the function that describes the pooling.
    name : str
        What the public function is called.
    dims : int
        How many axes it pools; 0 for every axis but batch and channels.
    """
    words = {"name": name, "count": _COUNT[dims], **_words(dims)}
    paragraphs = {key: text.format(**words) for key, text in _PARAGRAPHS.items()}
    return inspect.cleandoc(template).format(**words, **paragraphs)


def of_module(
    function: Callable[..., Any], dims: int, takes: Collection[str], notes: Iterable[str]
) -> str:
    """The documentation of a module class, from that of its function.

    Parameters
    ----------
    function : callable
        The public function.
    dims : int
        How many axes the module pools.
    takes : collection of str
        The arguments of the constructor.
    notes : iterable of str
        Sentences about the module, which follow the summary; empty ones are left out.
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
            "same": "The same kind of array and dtype",
            "pooled_before_last": "the axes between the first and the last are pooled",
            "trap": "",
        }
    letters = [n[0].upper() for n in axis_names(dims)]
    return {
        "shape": ", ".join(["N", "C", *letters]),
        "out_shape": ", ".join(["N", "C", *(f"{a}_out" for a in letters)]),
        "leading": " or any other number of leading axes",
        "same": "The same kind of array, dtype and memory format",
        "which": "",
        "pooled_before_last": "the pooled axes are those before the last one",
        "trap": _TRAP if dims == 2 else "",
        "dims": str(dims),
        "axes": "the last axis" if dims == 1 else f"the last {_COUNT[dims]} axes",
        # For examples: one row of numbers as an array, windows along it, and shapes.
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
