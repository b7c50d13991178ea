"""Calls that were made before, made again without being looked at again.

What a pooling does depends on its arguments and on the kind of its input: shape, strides and dtype.
A front end says what kind an array is (`kind_of`; None if it needs a closer look, because it is to
have a gradient, say) and makes of a call a recipe, the function that does the same to another array
of that kind (`recipe`; None if there is none). A small call costs what the recipe costs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import chain
from typing import Any

# Values of other types may be equal and yet mean something else (True and 1.0), or change.
_PLAIN = frozenset((int, bool, str, type(None)))
_MOST = 4096  # recipes of one function

KIND_OF: dict[type, Callable[[Any], Hashable]] = {}  # by the exact type of an array


def key_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """What a recipe is kept under; None if the call cannot have one."""
    kind_of = KIND_OF.get(type(args[0])) if args else None
    if kind_of is None:
        return None
    kind, rest = kind_of(args[0]), args[1:]
    if kind is None:
        return None
    types: tuple[Any, ...] = tuple(map(type, rest))
    if kwargs:
        rest = (*rest, *kwargs, *kwargs.values())
        types = tuple(map(type, rest))
    if not _PLAIN.issuperset(types):
        within = [tuple(map(type, value)) for value in rest if type(value) is tuple]
        if not _PLAIN.issuperset(chain(*within, (t for t in types if t is not tuple))):
            return None
        types = (types, *within)
    return kind, rest, types, len(kwargs)  # a name may be given as a value, too


class Recipes(dict[Hashable, Callable[[Any], Any]]):
    """The recipes of one function, by `key_of`."""

    def keep(self, key: Hashable, recipe: Callable[[Any], Any] | None) -> None:
        """Keep a recipe, if there is one; not more than so many."""
        if recipe is not None:
            if len(self) >= _MOST:
                self.clear()
            self[key] = recipe
