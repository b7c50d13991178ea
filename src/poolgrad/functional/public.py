"""Makes the public functions from functions that return a `Request`.

A pooling is described once, by a function that returns a `Request`. `in_dimensions` makes one
public function for each number of pooled axes from it, `in_all_dimensions` a global one. The public
functions pass the request to the front end of their input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import BoundArguments, Signature
from inspect import signature as signature_of
from typing import Any, Concatenate, ParamSpec, TypeVar

from poolgrad.call_cache import LOOKUPS, CallCache
from poolgrad.frontend import front_end
from poolgrad.functional.docstrings import fill
from poolgrad.interface import Request, Selection
from poolgrad.windows import brief, first_pooled

P = ParamSpec("P")
R = TypeVar("R")


_DIVISOR_LIMIT = 2**63

FUNCTIONS: dict[str, Callable[..., Any]] = {}  # every public function, by name


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of an input of any front end."""
    try:
        if not getattr(x, "is_nested", False):
            return tuple(x.shape)
    except AttributeError:  # lists
        pass
    return tuple(front_end(x).asarray("x", x).shape)  # of nested tensors: raises the error


def pooled_sizes(x: Any, dims: int, channels_last: bool) -> tuple[int, ...]:
    """Return the sizes of the pooled axes of `x`.

    Raises
    ------
    ValueError
        If `x` has too few axes.
    """
    shape = shape_of(x)
    first = first_pooled(shape, dims, channels_last)
    return shape[first : first + dims]


def is_proxy(x: object) -> bool:
    """Whether `x` records calls by PyTorch's protocol without being a tensor, as in `torch.fx`."""
    kind = type(x)
    return hasattr(kind, "__torch_function__") and not hasattr(kind, "data_ptr")


def recorded(function: Callable[..., Any], x: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Record a call of a public function with a proxy."""
    return type(x).__torch_function__(function, (type(x),), args, kwargs)


def described(
    describe: Callable[P, Request], name: str, module: str = "poolgrad"
) -> Callable[P, Any]:
    """Return the function that computes what `describe` describes.

    Pickles and traces of `torch.fx` store it as the attribute `name` of `module`, where it must be.
    """
    cache = CallCache()

    def pool(*args: P.args, **kwargs: P.kwargs) -> Any:
        lookup = LOOKUPS.get(type(args[0])) if args else None
        result = lookup.call(cache, args, kwargs) if lookup is not None else None
        if result is not None:
            return result
        if lookup is None and is_proxy(first := args[0] if args else kwargs.get("x")):
            return recorded(pool, first, args, kwargs)
        key = lookup.key(args, kwargs) if lookup is not None else None
        request = describe(*args, **kwargs)
        front = front_end(request.x)
        if key is not None and (bound := front.bound_call(request)) is not None:
            cache.keep(key, bound)
            return bound(request.x)
        return front.perform(request)

    pool.describe = describe  # type: ignore[attr-defined]
    pool.cache = cache  # type: ignore[attr-defined]
    pool.pullbacks = CallCache()  # type: ignore[attr-defined]
    pool.__name__ = pool.__qualname__ = name
    pool.__module__ = module
    return pool


def public(describe: Callable[P, Request], name: str, dims: int) -> Callable[P, Any]:
    """Return the public function for `describe`, with its signature and docstring."""
    pool = described(describe, name)
    pool.__signature__ = signature_of(describe).replace(  # type: ignore[attr-defined]
        return_annotation=Signature.empty
    )
    pool.__doc__ = fill(describe.__doc__ or "", name, dims)
    FUNCTIONS[name] = pool
    return pool


# Names of the same argument in different libraries whose spellings are not similar.
_SYNONYMS = (
    ("kernel_size", "pool_size", "window_shape", "window", "size"),
    ("x", "input", "inputs", "array", "image"),
    ("channels_last", "data_format"),
    ("norm_type", "p"),
    ("generator", "seed", "key", "rng"),
)


def _unknown(argument: str, known: Sequence[str]) -> str:
    """Return the error for an unknown argument, with the known one that was probably meant."""
    from difflib import get_close_matches

    meant = [n for names in _SYNONYMS if argument in names for n in names if n in known]
    meant = meant or [n for n in known if argument in n.split("_")]
    meant = meant or get_close_matches(argument.lower(), known, 1)
    if meant:
        return f"has no argument {argument!r}; did you mean {meant[0]!r}?"
    return f"has no argument {argument!r}; it takes {', '.join(known)}"


def bind(
    name: str, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> BoundArguments:
    """Bind the arguments of a call to a signature.

    Raises
    ------
    TypeError
        If the arguments do not match the signature of `name`.
    """
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        words = str(error)
        known = signature.parameters
        most = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in known.values())
        unknown = next((k for k in kwargs if k not in known), None)
        if unknown is not None:
            words = _unknown(unknown, [*known])
        elif len(args) > most:
            words = f"takes at most {most} positional arguments, got {len(args)}"
        elif words.startswith("multiple"):
            words = f"got {words}"
        raise TypeError(f"{name}() {words}") from None


def named(function: Callable[..., R], name: str, *first: Any) -> Callable[..., R]:
    """Bind the first arguments of a function; invalid further ones raise the error of `bind`."""
    signature = signature_of(function)
    signature = signature.replace(parameters=[*signature.parameters.values()][len(first) :])

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> R:
        try:
            return function(*first, *args, **kwargs)
        except TypeError:  # Python's own message would count the bound arguments
            bind(name, signature, args, kwargs)
            raise

    called.__signature__ = signature  # type: ignore[attr-defined]
    return called


def in_dimensions(
    describe: Callable[Concatenate[int, P], Request], dims: tuple[int, ...] = (1, 2, 3)
) -> tuple[Callable[P, Any], ...]:
    """Return the public functions for one, two and three pooled axes, or for those in `dims`."""

    def of(dims: int) -> Callable[P, Any]:
        name = f"{describe.__name__.strip('_')}{dims}d"
        return public(named(describe, name, dims), name, dims)

    return tuple(of(d) for d in dims)


def in_all_dimensions(describe: Callable[P, Request]) -> Callable[P, Any]:
    """Return the public function that pools every axis but batch and channels."""
    name = describe.__name__.strip("_")
    return public(named(describe, name), name, 0)


def checked_string(name: str, value: object) -> str:
    """Return the value of a string option, checked."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {brief(value)}")
    return value


def selection(ties: object, routes: object) -> Selection:
    """Return the options of a selecting operator, checked."""
    return Selection(checked_string("ties", ties), checked_string("routes", routes))


def divisor(value: object) -> int:
    """Return the value of `divisor_override`, checked; 0 stands for None."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"divisor_override must be an integer or None, got {brief(value)}")
    if value == 0:
        raise ValueError(
            f"divisor_override must not be zero, as every sum is divided by it, got {brief(value)}"
        )
    if abs(value) >= _DIVISOR_LIMIT:
        raise ValueError(
            f"divisor_override must be less than 2**63 in magnitude, got {brief(value)}"
        )
    return value
