"""Base classes of the modules for JAX, which Flax NNX and Equinox take alike.

A module is an immutable dataclass and a pytree. It stores the arguments of a public function and
calls that function. `nn` has a class for each public function and number of pooled axes. Neither
Flax nor Equinox is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from inspect import Signature
from numbers import Real
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import GetAttrKey
from jax.typing import ArrayLike

from poolgrad.arguments import real_numbers, refuse_numbers
from poolgrad.functional.declare import bind
from poolgrad.functional.docstrings import of_module
from poolgrad.functional.families import Arguments, signature_of
from poolgrad.functional.modules import LEADING_AXES, LEARNED, limited, operator_of
from poolgrad.jax.function import is_key
from poolgrad.windows import brief, flag, in_memory
from poolgrad.windows.arguments import to_python

Y = TypeVar("Y")

_LEAF = "An array as a learned argument is a leaf of the pytree; a number is a constant."


class Pool(Arguments, Generic[Y], kw_only=True):
    """A public function with its arguments; `Y` is the type of the result.

    An array as a learned argument (`norm_type`, `r`, `alpha`) is a leaf of the pytree. Everything
    else, a number as a learned argument included, is part of the structure of the pytree.

    Parameters
    ----------
    channels_last : bool
        If True (default), the pooled axes are those before the last one, as in Flax. If False, they
        are the last ones, as in Equinox.

    Attributes
    ----------
    function : callable
        The public function.
    dims : int
        The number of pooled axes.
    note : str
        A sentence for the documentation.
    """

    __signature__: ClassVar[Signature]  # of the constructor; each argument becomes an attribute
    function: ClassVar[Callable[..., Any]]
    dims: ClassVar[int]
    note: ClassVar[str] = "A call takes `x`; a `key` is accepted and not used."
    channels_last: bool = True

    def __init_subclass__(cls, *, calls: Any = None) -> None:
        """Define the modules that call a public function, for the number of axes in their name.

        Without a function, the class is a base class.
        """
        super().__init_subclass__()
        if calls is None:
            return
        cls.dims = int(cls.__name__[-2])
        function = limited(calls, cls.dims)
        cls.function = staticmethod(function)
        known = cls.__signature__ = signature_of(cls)
        cls.__init__ = Pool.__init__  # type: ignore[method-assign] # not that of the dataclass
        notes = [f"Calls `poolgrad.{calls.__name__}`. {cls.note}"]
        notes += [] if function is calls else [LEADING_AXES]
        notes += [] if LEARNED.isdisjoint(known.parameters) else [_LEAF]
        own = calls.declared, calls.__name__, cls.dims, known.parameters, cls
        cls.__doc__ = of_module(*own, notes)
        # Leaves may be any objects while a transformation runs, so modules are rebuilt unchecked.
        jax.tree_util.register_pytree_with_keys(cls, Pool._flatten_with_keys, cls._unflatten)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = bind(type(self).__name__, self.__signature__, args, kwargs)
        bound.apply_defaults()
        given = {
            name: _learned(name, value) if name in LEARNED else _hashable(name, value)
            for name, value in bound.arguments.items()
        }
        learned = LEARNED & given.keys()
        leaves = tuple(name for name in learned if not isinstance(given[name], float))
        operator = operator_of(self.function, self.dims, given)
        for name in learned:
            value = _unwrapped(given[name])
            if not isinstance(value, jax.core.Tracer):
                operator.check_operand(np.asarray(value, np.float64).ravel().tolist())
        vars(self).update(given, _leaves=leaves)
        nnx = sys.modules.get("flax.nnx")
        if leaves and nnx is not None:  # so that it can be an attribute of a module of Flax NNX
            nnx.register_data_type(type(self))

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__signature__.parameters}

    def _flatten_with_keys(self) -> tuple[list[Any], tuple[Any, ...]]:
        names = vars(self)["_leaves"]
        rest = tuple((n, v) for n, v in self._arguments().items() if n not in names)
        return [(GetAttrKey(n), getattr(self, n)) for n in names], (names, rest)

    @classmethod
    def _unflatten(cls, structure: tuple[Any, ...], leaves: Iterable[Any]) -> Pool[Any]:
        names, rest = structure
        module = object.__new__(cls)
        vars(module).update(rest, _leaves=names, **dict(zip(names, leaves, strict=True)))
        return module

    def __call__(self, x: ArrayLike, *, key: Array | None = None) -> Y:
        """Call the public function with the arguments of the module.

        Parameters
        ----------
        x : array
            The input, of a dtype that the function accepts, with any number of leading axes.
        key : array, optional
            Not used: containers of modules pass a key to each of them.

        Returns
        -------
        array or (array, array)
            The output; with ``return_indices=True``, also the indices of the winners.

        Raises
        ------
        TypeError, ValueError
            If the input does not suit the function or the windows.
        """
        return self.function(_array(x), **self._arguments())


class Random(Pool[Any]):
    """A pooling that draws random numbers in every call."""

    note = "A call takes `x` and a `key` of `jax.random`."

    def __call__(self, x: ArrayLike, *, key: Array | None = None) -> Any:
        """Call the public function with random numbers from the key; see `Pool.__call__`.

        Raises
        ------
        TypeError
            If `key` is not a key of `jax.random`.
        """
        return self._drawn(x, key, self._arguments())

    def _drawn(self, x: ArrayLike, key: Any, given: dict[str, Any]) -> Any:
        if not is_key(key):
            raise TypeError(
                f"key must be a key of jax.random, got {brief(key)}: "
                f"{type(self).__name__} draws random numbers"
            )
        return self.function(_array(x), generator=key, **given)


class Stochastic(Random):
    """A random input of each window in training, the weighted mean otherwise."""

    note = (
        "A call takes `x`, a `key` of `jax.random`\n"
        "and optionally `training`, instead of the argument of the constructor. If False, the\n"
        "result is the mean, without indices, and no key is needed."
    )

    def __call__(
        self, x: ArrayLike, *, key: Array | None = None, training: bool | None = None
    ) -> Any:
        """Return a random input of each window, or the weighted mean; see `Pool.__call__`.

        Parameters
        ----------
        x, key : array
            The input, and a key of `jax.random`, which only training needs.
        training : bool, optional
            Replaces the argument of the constructor.
        """
        given = self._arguments()
        if training is not None:
            given["training"] = flag("training", training)
        if given["training"]:
            return self._drawn(x, key, given)
        return self.function(_array(x), **given | {"return_indices": False})


class Unpool(Pool[Array]):
    """Unpooling, which takes indices in every call."""

    note = "A call takes `x`, its `indices` and optionally\n`output_size`."

    def __call__(  # type: ignore[override]
        self, x: ArrayLike, indices: ArrayLike, output_size: Any = None, *, key: Array | None = None
    ) -> Array:
        """Return the values at their indices, and zeros elsewhere; see `Pool.__call__`.

        Parameters
        ----------
        x, indices : array
            The values and their indices, of the same shape.
        output_size : sequence of int, optional
            Sizes of the pooled axes of the output; default: that of the public function.
        """
        given = self._arguments() | {"output_size": output_size}
        return self.function(_array(x), indices, **given)


class Lip(Pool[Array]):
    """Local importance pooling, which takes logits in every call."""

    note = "A call takes `x` and its `logits`."

    def __call__(  # type: ignore[override]
        self, x: ArrayLike, logits: ArrayLike, *, key: Array | None = None
    ) -> Array:
        """Return the mean of each window, weighted with the softmax of its logits.

        Parameters
        ----------
        x, logits : array
            The values and the logarithms of their weights, of the same shape.
        """
        return self.function(_array(x), logits, **self._arguments())


# Arguments


def _array(x: ArrayLike) -> Array:
    """Return the input of a call as an array of JAX."""
    return jnp.asarray(in_memory("x", x))


def _hashable(name: str, value: object) -> Any:
    """Return the value with tuples for lists and arrays: JAX hashes the structure of a pytree."""
    value = to_python(name, value)
    if isinstance(value, list | tuple):
        return tuple(_hashable(name, part) for part in value)
    return value


def _unwrapped(value: Any) -> Any:
    """Return the array that a variable of Flax NNX holds, or the value itself."""
    is_variable = not isinstance(value, Array) and hasattr(value, "__jax_array__")
    return value.__jax_array__() if is_variable else value


def _learned(name: str, value: Any) -> Any:
    """Return a number as a float, anything else as an array of floats or the variable that has one.

    Raises
    ------
    TypeError, ValueError
        If it is none of these.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    held = _unwrapped(value)
    if held is not value:
        held = jnp.asarray(held)
    elif not isinstance(held, Array):
        held = value = real_numbers(name, held).astype(np.float32)
    if not any(jnp.issubdtype(held.dtype, kind) for kind in (jnp.floating, jnp.integer)):
        raise refuse_numbers(name, held.dtype)
    if held.ndim > 1:
        raise ValueError(f"{name} must be a number or one for each channel, got shape {held.shape}")
    if held is not value:
        return value
    return jnp.asarray(held, None if jnp.issubdtype(held.dtype, jnp.floating) else jnp.float32)
