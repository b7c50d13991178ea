"""Makes the public functions from their declarations.

A declaration is a subclass of `Function`. `functions` makes one public function for each number of
pooled axes from it, which makes a `Request` from its arguments and passes it to the front end of
its input. The protocols describe public functions to type checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from inspect import BoundArguments, Parameter, Signature, signature
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    get_origin,
    overload,
)

from poolgrad.call_cache import LOOKUPS, CallCache
from poolgrad.frontend import front_end
from poolgrad.functional.docstrings import of_function
from poolgrad.functional.families import Axes, signature_of
from poolgrad.functional.inputs import dimensions, is_proxy, recorded
from poolgrad.interface import Request
from poolgrad.operators import OPERATORS
from poolgrad.windows import WindowSpec, brief, fixed, flag

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import TypeVar as TypeVarWithDefault

    class Array(Protocol):
        """An array of NumPy, PyTorch, JAX, Dask or another library."""

        @property
        def shape(self) -> Any:
            """The sizes of the axes."""

        @property
        def dtype(self) -> Any:
            """The type of the elements."""

    # The type of the result is that of the input; lists are pooled as NumPy arrays.
    A = TypeVarWithDefault("A", bound=Array, default=NDArray[Any])
    T = TypeVarWithDefault("T", bound=np.generic, default=Any)

P = ParamSpec("P")
Q = ParamSpec("Q")
S = ParamSpec("S")
R = TypeVar("R")

# The type of `return_indices`, from which the type of the result follows.
Flag = TypeVar("Flag", bound=bool)
No = Literal[False]
Yes = Literal[True]

FUNCTIONS: dict[str, Callable[..., Any]] = {}  # every public function, by name
_declared: dict[str, type[Function]] = {}  # their declarations


class Pool(Protocol[P]):
    """The type of public functions without indices; `P` are the arguments after the input."""

    def __call__(self, x: A | Sequence[Any], *args: P.args, **kwargs: P.kwargs) -> A:
        """Pool the input."""


class MeanPool(Protocol[P]):
    """The type of public functions that average; the means of integers are floats.

    With `quantization`, which is one of the arguments `P`, they have the type of the input.
    """

    @overload
    def __call__(
        self, x: A | Sequence[Any], *args: Any, quantization: Sequence[Any], **kwargs: Any
    ) -> A: ...
    @overload
    def __call__(
        self, x: NDArray[np.integer[Any] | np.bool], *args: P.args, **kwargs: P.kwargs
    ) -> NDArray[np.floating[Any]]: ...
    @overload
    def __call__(self, x: A | Sequence[Any], *args: P.args, **kwargs: P.kwargs) -> A: ...


class SelectingPool(Protocol[P, Q, S]):
    """The type of public functions with indices.

    `P`, `Q` and `S` are the arguments after the input if `return_indices` is False, True or
    unknown.
    """

    @overload
    def __call__(self, x: A | Sequence[Any], *args: P.args, **kwargs: P.kwargs) -> A: ...
    @overload
    def __call__(
        self, x: NDArray[T] | Sequence[Any], *args: Q.args, **kwargs: Q.kwargs
    ) -> tuple[NDArray[T], NDArray[np.int64]]: ...
    @overload
    def __call__(self, x: A, *args: Q.args, **kwargs: Q.kwargs) -> tuple[A, A]: ...
    @overload
    def __call__(
        self, x: NDArray[T] | Sequence[Any], *args: S.args, **kwargs: S.kwargs
    ) -> NDArray[T] | tuple[NDArray[T], NDArray[np.int64]]: ...
    @overload
    def __call__(self, x: A, *args: S.args, **kwargs: S.kwargs) -> A | tuple[A, A]: ...


class Function(Axes, kw_only=True):
    """Declares a public function: its arguments, and the request that they make.

    The docstring of a subclass is the template of the function's docstring; see `docstrings`.

    Parameters
    ----------
    x : array, shape ({shape}){leading}
        float16, bfloat16, float32, float64, int8, uint8, int16, uint16, int32, uint32, int64 or
        bool; any strides. Not modified.{which}
    out : array, optional
        Array that the result is written to, with the shape and dtype of the result. NumPy only; a
        TypeError for other libraries.
    dim : name or sequence of {count} names, optional
        The pooled axes of an array of xarray, by name and in this order. The axis of channels is
        the last one of the others. A TypeError for other libraries. Default: the last axes.
    """

    operator: ClassVar[str]  # its name in the table
    out: Any = None
    dim: Any = None

    def request(self, x: Any, dims: int) -> Request:
        """Return the request of a call with these arguments.

        Parameters
        ----------
        x : array
            The input.
        dims : int
            Number of pooled axes; 0 stands for every axis but batch and channels.
        """
        last = flag("channels_last", self.channels_last)
        spec = self.windows(x, dims, last)
        keepdims = flag("keepdims", getattr(self, "keepdims", True))
        indices = flag("return_indices", getattr(self, "return_indices", False))
        operands = self.operands() if OPERATORS[self.operator].operand.count else ()
        return Request(
            self.operator, x, spec, self.options(), operands, last, keepdims, indices, self.out
        )

    def windows(self: Any, x: Any, dims: int, channels_last: bool) -> WindowSpec:
        """Return the windows: by default those of the arguments of `families.Windows`."""
        sizes = self.kernel_size, self.stride, self.padding, self.dilation
        return fixed(dims, *sizes, self.ceil_mode)

    def options(self) -> Any:
        """Return the options of the operator: the arguments of the same names, or the defaults."""
        options = OPERATORS[self.operator].options
        fields = options._field_defaults.items()
        return options(*[_option(n, getattr(self, n, default), default) for n, default in fields])

    def operands(self) -> tuple[Any, ...]:
        """Return the extra operand of the operator: the argument of its name."""
        return (getattr(self, OPERATORS[self.operator].operand.name),)


class RealFunction(Function):
    """Declares a public function of real numbers.

    Parameters
    ----------
    x : array, shape ({shape}){leading}
        float16, bfloat16, float32 or float64; any strides. Not modified.{which}
    """


def _option(name: str, value: Any, default: Any) -> Any:
    """Return the value of an option, checked: it must have the type of its default."""
    if isinstance(default, str) and not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {brief(value)}")
    return flag(name, value) if isinstance(default, bool) else value


# Errors of arguments

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
    name: str, takes: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> BoundArguments:
    """Bind the arguments of a call to a signature.

    Raises
    ------
    TypeError
        If the arguments do not match the signature of `name`.
    """
    try:
        return takes.bind(*args, **kwargs)
    except TypeError as error:
        words = str(error)
        known = takes.parameters
        most = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in known.values())
        unknown = next((k for k in kwargs if k not in known), None)
        if unknown is not None:
            words = _unknown(unknown, [*known])
        elif len(args) > most:
            words = f"takes at most {most} positional arguments, got {len(args)}"
        elif words.startswith("multiple"):
            words = f"got {words}"
        raise TypeError(f"{name}() {words}") from None


def named(
    function: Callable[P, R], name: str = "", known: Signature | None = None
) -> Callable[P, R]:
    """Return the function with the errors of `bind` for arguments that its signature lacks.

    Parameters
    ----------
    function : callable
        The function.
    name : str
        Its name in errors, if it is not ``function.__name__``.
    known : Signature, optional
        Its signature, if the function only passes arguments on.
    """
    takes = known or signature(function)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:  # Python's own message would name another function
            bind(name or function.__name__, takes, args, kwargs)
            raise

    called.__signature__ = takes  # type: ignore[attr-defined]
    return called


# Public functions


def described(
    describe: Callable[P, Request], name: str, module: str = "poolgrad"
) -> Callable[P, Any]:
    """Return the function that computes what `describe` describes.

    Pickles and traces of `torch.fx` store it as the attribute `name` of `module`, where it must be.
    """
    cache = CallCache()

    def pool(*args: P.args, **kwargs: P.kwargs) -> Any:
        lookup = LOOKUPS.get(type(args[0])) if args else None
        if lookup is not None and (result := lookup.call(cache, args, kwargs)) is not None:
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


def _public(declared: type[Function], name: str, dims: int) -> Any:
    """Make a public function."""
    x = Parameter("x", Parameter.POSITIONAL_OR_KEYWORD, annotation="Any")
    known = Signature([x, *signature_of(declared).parameters.values()])

    _declared[name] = declared

    def describe(x: Any, *args: Any, **kwargs: Any) -> Request:
        # Looked up by name, because PyTorch's compiler compares the names in closures, not classes:
        # it would take the code of another function with equal arguments.
        given = _declared[name](*args, **kwargs)
        if given.dim is None:
            return given.request(x, dims)
        names = dimensions(x, given.dim, dims, given.channels_last)
        request = given.request(x.transpose(..., *names), len(names))
        return replace(request, dimensions=tuple(x.dims))

    is_own = declared.__module__.startswith("poolgrad.functional.")
    module = "poolgrad" if is_own else declared.__module__
    pool: Any = described(named(describe, name, known), name, module)
    pool.declared, pool.dims = declared, dims
    pool.__signature__ = known
    pool.__doc__ = of_function(declared, name, dims, known.parameters)
    FUNCTIONS[name] = pool
    return pool


def functions(
    name: str, declared: Callable[P, Function], dims: tuple[int, ...] = (1, 2, 3)
) -> tuple[Pool[P], ...]:
    """Make the public functions of a declaration.

    Parameters
    ----------
    name : str
        Name of the functions, without the number of axes.
    declared : type
        The declaration: a subclass of `Function`.
    dims : tuple of int
        Numbers of pooled axes, with one function for each. 0 stands for every axis but batch and
        channels, and is not part of the name.

    Returns
    -------
    tuple of callable
        The functions, which pickles find as attributes of the module of the declaration.
    """
    kind: Any = get_origin(declared) or declared
    return tuple(_public(kind, f"{name}{d}d" if d else name, d) for d in dims)


def mean_functions(
    name: str, declared: Callable[P, Function], dims: tuple[int, ...] = (1, 2, 3)
) -> tuple[MeanPool[P], ...]:
    """Make the public functions of a declaration of averages; see `functions`."""
    return functions(name, declared, dims)  # type: ignore[arg-type,return-value]


def selecting_functions(
    name: str,
    without: Callable[P, Function],
    with_indices: Callable[Q, Function],
    either: Callable[S, Function],
    dims: tuple[int, ...] = (1, 2, 3),
) -> tuple[SelectingPool[P, Q, S], ...]:
    """Make the public functions of a declaration with `return_indices`.

    Parameters
    ----------
    name, dims
        See `functions`.
    without, with_indices, either : type
        The declaration with `No`, `Yes` and `bool` as the type of `return_indices`. They differ for
        type checkers only.
    """
    return functions(name, without, dims)  # type: ignore[return-value]
