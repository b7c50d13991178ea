"""Reads the input of ``poolgrad explain`` from a file, and makes the page from its options."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad.explainer import Explanation, explain
from poolgrad.explainer.state import MOST_EXAMPLES, MOST_SIDE
from poolgrad.functional import FUNCTIONS

Array = NDArray[np.float64]

# Name of the option -> name of the argument of the pooling functions.
SIZES = {
    "kernel": "kernel_size",
    "stride": "stride",
    "padding": "padding",
    "dilation": "dilation",
    "output-size": "output_size",
}
_PLAIN = ("max", "min", "median", "avg", "lp", "log_mean_exp", "soft", "mixed")
POOLS = (*_PLAIN, "adaptive_max", "adaptive_avg", "global_max", "global_avg")


def page(data: Path | None, crop: bool, pool: str, options: dict[str, Any]) -> Explanation:
    """Return the page for these options of the command.

    Parameters
    ----------
    data : Path or None
        The file of the input; None for small integers.
    crop : bool
        Whether to take a part of a file that is too large.
    pool : str
        One of `POOLS`.
    options : dict
        Arguments of the pooling function.

    Raises
    ------
    TypeError, ValueError
        If an option is wrong, or the file.
    """
    if pool not in POOLS:
        raise ValueError(f"--pool must be one of {', '.join(POOLS)}, got {pool!r}")
    if data is None and pool == "max" and not options:
        return Explanation()
    if pool in _PLAIN:
        options = {"kernel_size": 2} | options
    if pool.startswith("adaptive"):
        options = {"output_size": 2} | options
    if pool == "lp":
        options = {"norm_type": 2.0} | options
    x = _integers(options.get("kernel_size", 2)) if data is None else read(data, crop)
    dims = x.ndim - 1
    name = f"{pool}_pool" if pool.startswith("global") else f"{pool}_pool{dims}d"
    return explain(x[:, None], FUNCTIONS[name], **options)


def sizes(option: str, text: str) -> str | int | tuple[int, ...]:
    """Return a number, one for each axis, or the name of a padding.

    Raises
    ------
    ValueError
        If the text is none of them.
    """
    if option == "padding" and text in ("same", "valid"):
        return text
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        names = ', "same" or "valid"' if option == "padding" else ""
        raise ValueError(
            f"--{option} must be an integer, one for each axis such as 3,2{names}, got {text!r}"
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]


def _integers(kernel: int | tuple[int, ...]) -> Array:
    """Return one plane of integers from 0 to 9, into which a few windows fit."""
    most = max(kernel) if isinstance(kernel, tuple) else kernel
    n = np.arange(min(MOST_SIDE, max(6, 2 * most + most % 2)))
    return ((7 * n[:, None] + 3 * n + n[:, None] * n) % 10)[None].astype(np.float64)


def read(path: Path, crop: bool) -> Array:
    """Return the planes of an array, a table or an image: two axes, or three.

    Parameters
    ----------
    path : Path
        A .npy file, a .csv file, or an image, which becomes grey.
    crop : bool
        Whether to cut the middle and the first planes out of an input that is too large.

    Raises
    ------
    ValueError
        If there are no numbers in the file, or too many.
    """
    try:
        numbers = _numbers(path)
    except (OSError, ValueError, SyntaxError) as error:  # Pillow's errors are among them
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read: {why}") from error
    if numbers.dtype.kind not in "fiub":
        raise ValueError(f"{path} must hold real numbers, got dtype {numbers.dtype}")
    if numbers.size == 0 or numbers.ndim == 0:
        raise ValueError(f"{path} must hold numbers along one axis or more, got {numbers.shape}")
    sides = min(numbers.ndim, 2)
    planes = numbers.reshape(-1, *numbers.shape[-sides:])
    if len(planes) > MOST_EXAMPLES or max(planes.shape[1:]) > MOST_SIDE:
        if not crop:
            shape = " x ".join(map(str, numbers.shape))
            raise ValueError(
                f"{path} has {shape} numbers, but the page shows at most {MOST_EXAMPLES} planes of "
                f"{MOST_SIDE} x {MOST_SIDE}: --crop takes the middle of the first "
                f"{MOST_EXAMPLES} planes"
            )
        for axis in range(1, planes.ndim):
            first = max(0, (planes.shape[axis] - MOST_SIDE) // 2)
            planes = planes.take(range(first, planes.shape[axis])[:MOST_SIDE], axis)
        planes = planes[:MOST_EXAMPLES]
    return planes.astype(np.float64)


def _numbers(path: Path) -> NDArray[Any]:
    if path.suffix.lower() == ".npy":
        with path.open("rb") as file:
            if file.read(6) != np.lib.format.MAGIC_PREFIX:  # np.load would advise to unpickle it
                raise ValueError("it is not an array that numpy.save wrote")
        return np.asarray(np.load(path, allow_pickle=False))
    if path.suffix.lower() == ".csv":
        rows = path.read_text(encoding="utf-8-sig").splitlines()  # spreadsheets write a BOM
        if not any(map(str.strip, rows)):
            return np.empty(0)  # np.loadtxt would print a warning
        return np.loadtxt(rows, delimiter=",", ndmin=2)
    from PIL import Image, UnidentifiedImageError

    try:
        with (
            warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
            Image.open(path) as image,
        ):
            return np.asarray(image.convert("L"))
    except UnidentifiedImageError:
        raise ValueError("it is neither a .npy or .csv file nor an image") from None
    except Image.DecompressionBombError as error:  # neither an OSError nor a ValueError
        raise ValueError(str(error)) from None
