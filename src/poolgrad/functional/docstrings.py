"""Composes the docstrings of functions and modules.

The docstring of a declaration (see `declare.Function`) is a template. ``{parameters}`` stands for
the descriptions of the arguments, which are in the docstrings of the classes of `families`; other
``{names}`` stand for the words and paragraphs below. The first line of a paragraph replaces the
name; its other lines keep the indentation that they have here.
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import cleandoc

from poolgrad.windows import axis_names

_COUNT = ("no", "one", "two", "three")
_HEADING = "Parameters\n----------\n"

_WHICH = """
    In an array of three to five axes, batch and channels are not pooled: these are the first two
    axes or, with ``channels_last=True``, the first and the last. An image of shape (C, H, W)
    therefore needs a batch axis: ``x[None]``. An array of two axes is one plane without batch and
    channels: both axes are pooled, and the result has shape ()."""
_TRAP = """
    An image of shape (H, W, 3), as image libraries read it, and a batch of shape (N, H, W, C), as
    Flax uses it, need True: with False, the width and the channels would be pooled."""

_RAISES = """\
TypeError
    If `x` is not an array of a supported library and dtype, or an argument is unknown, missing or
    of the wrong type.
ValueError
    If the windows do not fit `x`, or an argument has an unsuitable value."""

_PARAGRAPHS = {
    "learned": """\
One number for all channels, or an array with one number for each. It has a gradient:
    ``pullback.parameters`` computes it for NumPy arrays; for PyTorch, pass a tensor that requires
    a gradient.""",
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


def of_function(declared: type, name: str, dims: int, arguments: Iterable[str]) -> str:
    """Return the docstring of a public function.

    Parameters
    ----------
    declared : type
        The declaration of the function.
    name : str
        Name of the public function.
    dims : int
        Number of pooled axes; 0 stands for every axis but batch and channels.
    arguments : iterable of str
        The arguments in their order.
    """
    return _filled(cleandoc(declared.__doc__ or ""), name, dims, _listed(arguments, declared))


def of_module(
    declared: type, name: str, dims: int, arguments: Iterable[str], own: type, notes: Iterable[str]
) -> str:
    """Return the docstring of a module class, which calls the function `name`.

    Parameters
    ----------
    declared : type
        The declaration of the function.
    name : str
        Name of the public function.
    dims : int
        Number of axes that the module pools.
    arguments : iterable of str
        The arguments of the constructor in their order.
    own : type
        Describes arguments that differ from those of the function.
    notes : iterable of str
        Sentences that follow the summary; empty ones are left out.
    """
    summary = cleandoc(declared.__doc__ or "").partition("\n\n{parameters}")[0]
    template = "\n\n".join([summary, "\n".join(filter(None, notes)), "{parameters}"])
    return _filled(template, name, dims, _listed(arguments, declared, own))


def _listed(arguments: Iterable[str], *kinds: type) -> str:
    """Return the section of parameters; the last class that describes an argument is used."""
    found: dict[str, str] = {}
    for base in (base for kind in kinds for base in reversed(kind.__mro__)):
        section = cleandoc(base.__doc__ or "").partition(_HEADING)[2]
        for entry in section.replace("\n    ", "\0").splitlines():
            found[entry.partition(" : ")[0]] = entry.replace("\0", "\n    ")
    return _HEADING + "\n".join(found[name] for name in arguments if name in found)


def _filled(template: str, name: str, dims: int, parameters: str) -> str:
    words = {"name": name, "count": _COUNT[dims], **_words(dims)}
    paragraphs = {key: text.format(**words) for key, text in _PARAGRAPHS.items()}
    words |= paragraphs
    return template.format(**words, parameters=parameters.format(**words))


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
            "axes": "every axis but batch and channels",
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
