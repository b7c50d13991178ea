"""What makes the public functions: any array in, its front end found, the same kind of array out.

A pooling is described once, by a function that returns a `Request`. `in_dimensions` makes of it one
public function for each number of pooled axes, `over_everything` a global one; these hand the
description to the front end of their input.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import BoundArguments, Signature
from inspect import signature as signature_of
from types import FunctionType, ModuleType
from typing import Any, Concatenate, ParamSpec, TypeVar

from poolgrad.contract import Request
from poolgrad.core import first_pooled
from poolgrad.functional.wording import fill
from poolgrad.recipes import KNOWN, Recipes

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


def _numpy() -> ModuleType:
    from poolgrad import numpy

    return numpy


def _torch() -> ModuleType:
    from poolgrad.torch import function

    return function


def _jax() -> ModuleType:
    from poolgrad.jax import function

    return function


def _dask() -> ModuleType:
    from poolgrad.dask import function

    return function


# The first part of a module's name -> what imports the front end for the arrays it defines.
_FRONT_ENDS = {"numpy": _numpy, "torch": _torch, "jax": _jax, "jaxlib": _jax, "dask": _dask}
_found: dict[type, ModuleType] = {}

_MOST = 2**63

FUNCTIONS: dict[str, Callable[..., Any]] = {}  # every public function, by name


def front_end(x: object) -> ModuleType:
    """The module that pools arrays of this type; imported when the first of them arrives.

    Raises
    ------
    TypeError
        If no front end takes this type.
    """
    kind = type(x)
    if kind not in _found:
        if kind is list or kind is tuple:
            known = "numpy"
        elif hasattr(x, "__torch_function__"):  # what a compiler that traces this can tell, too
            known = "torch"
        else:
            known = kind.__module__.partition(".")[0]
        if known not in _FRONT_ENDS:  # a subclass that somebody else defined?
            origins = [c.__module__.partition(".")[0] for c in kind.__mro__]
            known = next((o for o in origins if o in _FRONT_ENDS), "")
        if not known:
            raise TypeError(
                "x must be an array of numpy, torch, jax or dask, "
                f"got {kind.__module__}.{kind.__qualname__}"
            )
        _found[kind] = _FRONT_ENDS[known]()
    return _found[kind]


def shape_of(x: Any) -> tuple[int, ...]:
    """The shape of anything that a front end takes."""
    try:
        return tuple(x.shape)
    except (AttributeError, RuntimeError):  # lists; nested tensors, which have none
        return tuple(front_end(x).asarray(x).shape)


def pooled_sizes(x: Any, dims: int, channels_last: bool) -> tuple[int, ...]:
    """The sizes of the axes of `x` that are pooled.

    Raises
    ------
    ValueError
        If it has too few axes.
    """
    shape = shape_of(x)
    first = first_pooled(shape, dims, channels_last)
    return shape[first : first + dims]


def public(describe: Callable[P, Request], name: str, dims: int) -> Callable[P, Any]:
    """The function that does what `describe` describes, with its signature and documentation."""
    recipes = Recipes()

    def pool(*args: P.args, **kwargs: P.kwargs) -> Any:
        known = KNOWN.get(type(args[0])) if args else None
        result = known.call(recipes, args, kwargs) if known is not None else None
        if result is not None:
            return result
        key = known.key(args, kwargs) if known is not None else None
        request = describe(*args, **kwargs)
        front = front_end(request.x)
        result = front.perform(request)
        if key is not None:
            recipes.keep(key, front.recipe(request))
        return result

    pool.__name__ = pool.__qualname__ = name
    pool.__module__ = "poolgrad"  # where users, and pickle, find it
    pool.__signature__ = signature_of(describe).replace(  # type: ignore[attr-defined]
        return_annotation=Signature.empty
    )
    pool.__doc__ = fill(describe.__doc__ or "", name, dims)
    pool.describe = describe  # type: ignore[attr-defined]
    pool.recipes = recipes  # type: ignore[attr-defined]
    FUNCTIONS[name] = pool
    return pool


def bind(
    name: str, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> BoundArguments:
    """The arguments of a call by their names.

    Raises
    ------
    TypeError
        If this is no call of `name`, which has this signature.
    """
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        words = str(error)
        most = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in signature.parameters.values())
        if len(args) > most:
            words = f"takes at most {most} positional arguments, got {len(args)}"
        elif words.startswith("multiple"):
            words = f"got {words}"
        raise TypeError(f"{name}() {words}") from None


def _renamed(function: Callable[Q, R], name: str) -> Callable[Q, R]:
    """A copy under another name: the one that Python's own errors about arguments give."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__doc__, copy.__annotations__ = function.__doc__, function.__annotations__
    copy.__qualname__ = name
    return copy


def in_dimensions(
    describe: Callable[Concatenate[int, P], Request], dims: tuple[int, ...] = (1, 2, 3)
) -> tuple[Callable[P, Any], ...]:
    """The functions for one, two and three pooled axes, or those numbers of them in `dims`."""

    def of(dims: int) -> Callable[P, Any]:
        name = f"{describe.__name__.strip('_')}{dims}d"
        named = _renamed(describe, name)
        signature = signature_of(describe)
        signature = signature.replace(parameters=[*signature.parameters.values()][1:])

        def describe_here(*args: P.args, **kwargs: P.kwargs) -> Request:
            try:
                return named(dims, *args, **kwargs)
            except TypeError:  # Python's own would count `dims`
                bind(name, signature, args, kwargs)
                raise

        describe_here.__signature__ = signature  # type: ignore[attr-defined]
        describe_here.__doc__ = describe.__doc__
        return public(describe_here, name, dims)

    return tuple(of(d) for d in dims)


def over_everything(describe: Callable[P, Request]) -> Callable[P, Any]:
    """The function for every axis but batch and channels."""
    name = describe.__name__.strip("_")
    return public(_renamed(describe, name), name, 0)


def word(name: str, value: object) -> str:
    """The value of an option that is a word."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {value!r}")
    return value


def choices(ties: object, routes: object) -> tuple[str, str]:
    """The values of the options of a winner: who gets the gradient, and how that is kept."""
    return word("ties", ties), word("routes", routes)


def flag(name: str, value: object) -> bool:
    """The value of an option that is on or off."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def divisor(value: object) -> int:
    """The value of `divisor_override`; 0 for none."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"divisor_override must be an integer or None, got {value!r}")
    if value == 0 or abs(value) >= _MOST:
        raise ValueError(f"divisor_override must be a number of 64 bits but 0, got {value!r}")
    return value
