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

# The names that other files use. isort would import each `as` name by a statement of its own.
# isort: off
from poolgrad.windows.arguments import (
    Ints as Ints,
    Padding as Padding,
    brief as brief,
    flag as flag,
    has_memory as has_memory,
    in_memory as in_memory,
    per_axis as per_axis,
    positive as positive,
    to_python as to_python,
    unmasked as unmasked,
)
from poolgrad.windows.layout import (
    Layout as Layout,
    first_pooled as first_pooled,
    inner_axis as inner_axis,
    lay_out as lay_out,
)
from poolgrad.windows.resolve import (
    Axis as Axis,
    Window as Window,
    axis_names as axis_names,
    has_empty_windows as has_empty_windows,
    require_valid_inputs as require_valid_inputs,
    resolve as resolve,
)
from poolgrad.windows.spec import (
    WindowKind as WindowKind,
    WindowSpec as WindowSpec,
    adaptive as adaptive,
    fixed as fixed,
    flatten as flatten,
    fractional as fractional,
    unflatten as unflatten,
    whole as whole,
)
