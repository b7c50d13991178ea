"""Defines windows as the caller specifies them (`WindowSpec`) and for an input (`Window`).

| file | contents |
|---|---|
| `arguments.py` | checks and normalises arguments: int, list, tuple, array, ``"same"`` |
| `spec.py` | `WindowSpec`, its constructors, and its form as a flat list of integers |
| `resolve.py` | `Window`: the windows of an input of known size; every shape rule |
| `layout.py` | `Layout`: the windows, shapes, dtypes and memory formats of the arrays of a call |

All front ends use this package, so that output sizes and error messages agree. The rules are those
of docs/semantics.md. Tests: tests/exactness/test_windows.py and tests/exactness/test_geometry.py.
"""

from poolgrad.windows.arguments import (
    Ints,
    Padding,
    brief,
    flag,
    has_memory,
    in_memory,
    per_axis,
    positive,
    to_python,
    unmasked,
)
from poolgrad.windows.layout import Layout, first_pooled, inner_axis, lay_out
from poolgrad.windows.resolve import (
    Axis,
    Window,
    axis_names,
    has_empty_windows,
    require_valid_inputs,
    resolve,
)
from poolgrad.windows.spec import (
    WindowKind,
    WindowSpec,
    adaptive,
    fixed,
    flatten,
    fractional,
    unflatten,
    whole,
)

__all__ = [
    "Axis",
    "Ints",
    "Layout",
    "Padding",
    "Window",
    "WindowKind",
    "WindowSpec",
    "adaptive",
    "axis_names",
    "brief",
    "first_pooled",
    "fixed",
    "flag",
    "flatten",
    "fractional",
    "has_empty_windows",
    "has_memory",
    "in_memory",
    "inner_axis",
    "lay_out",
    "per_axis",
    "positive",
    "require_valid_inputs",
    "resolve",
    "to_python",
    "unflatten",
    "unmasked",
    "whole",
]
