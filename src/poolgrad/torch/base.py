"""Defines the base class of the modules: a public function with its arguments."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from inspect import Signature, signature
from numbers import Real
from typing import Any, ClassVar, Concatenate, ParamSpec

import numpy as np
import torch
from torch import Tensor, nn

from poolgrad.arguments import real_numbers
from poolgrad.call_cache import LOOKUPS, CallCache
from poolgrad.functional.declare import bind
from poolgrad.functional.docstrings import of_module
from poolgrad.functional.families import Arguments, signature_of
from poolgrad.functional.modules import LEADING_AXES, LEARNED, limited, operator_of
from poolgrad.torch.arrays import checked, pads_at_most_half, pools
from poolgrad.torch.function import FRONT_END, known_generator
from poolgrad.windows import brief, has_memory, to_python

P = ParamSpec("P")

MODULES: dict[str, type[nn.Module]] = {}  # by public function; for a global one, the 2-D module
SUBCLASSES: dict[type[nn.Module], type[Pool]] = {}  # by PyTorch's class

_NOT_SHOWN = ("return_indices", "count_include_pad", "_random_samples")
_BUFFER = (
    "A tensor is a buffer, unless it is an `nn.Parameter`: then it is learned. A list or an array "
    "is kept as plain numbers."
)


def constructor(
    arguments: Callable[P, Arguments],
) -> Callable[[Any], Callable[Concatenate[Any, P], None]]:
    """Return a decorator that replaces a constructor by that of `Pool`, with these arguments."""

    def replaced(declared: Any) -> Callable[Concatenate[Any, P], None]:
        def __init__(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            Pool.__init__(self, *args, **kwargs)

        # Tools that inspect classes resolve a method by its module and qualified name.
        __init__.__module__, __init__.__qualname__ = declared.__module__, declared.__qualname__
        __init__.known = signature_of(arguments)  # type: ignore[attr-defined]
        return __init__

    return replaced


class Pool(nn.Module):
    """Base class of the modules: a public function and its arguments.

    Attributes
    ----------
    function : callable
        The public function.
    dims : int
        Number of pooled axes.
    init_signature : Signature
        The signature of the constructor; each argument becomes an attribute.
    names : tuple of str
        The arguments of the constructor.
    pytorch_class : type or None
        PyTorch's class, if there is one.
    inherited : tuple of str
        The arguments that the constructor of PyTorch's class stores.
    added : dict
        The arguments that PyTorch's class does not have, with their defaults. A plain dictionary,
        because compilers do not support a mapping proxy.
    shown : tuple of str
        The arguments that are always printed.
    note : str
        A sentence for the docstring.
    autocast_to_float32 : bool
        Whether PyTorch's autocast converts the input to float32.
    call_cache : CallCache
        The bound calls of the function.
    checked : CallCache
        Cached calls of converted modules whose results equal PyTorch's.
    converted : bool
        Whether the module was PyTorch's; then it behaves as PyTorch's for all inputs.
    """

    init_signature: ClassVar[Signature]
    function: ClassVar[Callable[..., Any]]
    dims: ClassVar[int]
    names: ClassVar[tuple[str, ...]]
    pytorch_class: ClassVar[type[nn.Module] | None]
    inherited: ClassVar[tuple[str, ...]]
    added: ClassVar[dict[str, Any]]
    shown: ClassVar[tuple[str, ...]] = ()
    note: ClassVar[str] = ""
    autocast_to_float32: ClassVar[bool] = False
    call_cache: ClassVar[CallCache]
    checked: ClassVar[CallCache]
    converted: bool = False

    def __init_subclass__(cls, *, calls: Any = None) -> None:
        """Define the modules that call a public function, for the number of axes in their name.

        Without a function, the class is a base class.
        """
        super().__init_subclass__()
        if calls is None:
            return
        known = cls.__signature__ = cls.init_signature = cls.__init__.known  # type: ignore
        theirs: Any = next((c for c in cls.__bases__ if not issubclass(c, Pool)), None)
        cls.dims, cls.pytorch_class = int(cls.__name__[-2]), theirs
        function = limited(calls, cls.dims)
        cls.function, cls.call_cache = staticmethod(function), function.cache
        cls.checked = CallCache()
        cls.names = tuple(known.parameters)
        cls.inherited = tuple(signature(theirs).parameters) if theirs else ()
        cls.added = {n: p.default for n, p in known.parameters.items() if n not in cls.inherited}
        placed = [n for n, p in known.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        cls.shown = cls.shown or tuple(n for n in placed if n not in _NOT_SHOWN)
        cls.autocast_to_float32 |= cls.dims == 3
        notes = [f"Calls `poolgrad.{calls.__name__}`."]
        if theirs is not None:
            notes[0] += f" Subclass of `torch.nn.{theirs.__name__}`."
            SUBCLASSES[theirs] = cls
        notes += [cls.note, "" if function is calls else LEADING_AXES]
        notes += [] if LEARNED.isdisjoint(cls.names) else [_BUFFER]
        cls.__doc__ = of_module(calls.declared, calls.__name__, cls.dims, cls.names, object, notes)
        cls.__module__ = "poolgrad.torch"  # where users, and pickle, find it
        if cls.dims == 2 or function is calls:
            MODULES[calls.__name__] = cls

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = bind(type(self).__name__, self.init_signature, args, kwargs)
        bound.apply_defaults()
        given = self._checked(bound.arguments)
        super().__init__(**{name: given[name] for name in self.inherited})
        for name, value in given.items():
            # PyTorch would iterate over the letters of a string (padding).
            if name not in self.inherited or isinstance(value, str):
                setattr(self, name, value)

    def _checked(self, given: dict[str, Any]) -> dict[str, Any]:
        """Check the arguments. A tensor that is not learned becomes a buffer, a list plain numbers.

        Numbers are converted to the dtype of the sums in each call, so that they are exact there.

        Raises
        ------
        TypeError, ValueError
            If an argument is invalid for every input.
        """
        operator = operator_of(self.function, self.dims, given)
        if "generator" in given:
            known_generator(given["generator"])
        name = operator.operand.name
        if not operator.learned or name not in given:  # or the operand is an argument of each call
            return given
        value = _stored(name, given[name])
        operator.check_operand(_numbers(name, value))
        return {**given, name: value}

    def _arguments(self) -> dict[str, Any]:
        own = self.__dict__
        try:
            return {name: own[name] for name in self.names}
        except KeyError:  # parameters and buffers lie elsewhere
            return {name: getattr(self, name) for name in self.names}

    def _uses_pytorch(self, x: Any) -> bool:
        """Whether to use PyTorch's module, because poolgrad's kernels do not support this input."""
        if not pools(x):
            return self.converted or self._equals_pytorch()
        return self.converted and not (self._is_usual(x) and self._equals_pytorch())

    def _is_usual(self, x: Tensor) -> bool:
        """Whether poolgrad computes what PyTorch's class does for such an input."""
        autocast = self.autocast_to_float32 and torch.is_autocast_enabled("cpu")
        return is_usual(x, self.dims) and not autocast

    def _equals_pytorch(self) -> bool:
        """Whether PyTorch's class computes the same with these arguments and this padding."""
        changed = (n for n, v in self.added.items() if getattr(self, n) != v)
        if not self.inherited or {*changed} - {"routes"}:  # routes do not change results
            return False
        return not difference_from_pytorch(self) and self._has_pytorch_padding()

    def _has_pytorch_padding(self) -> bool:
        pads = each("padding", getattr(self, "padding", 0))
        if pads == [0]:
            return True
        plain = all(isinstance(pad, int) for pad in pads)
        return plain and pads_at_most_half(pads, each("kernel_size", self.kernel_size))

    def forward(self, input: Tensor) -> Any:
        """Call the public function with the arguments of the module.

        Parameters
        ----------
        input : Tensor, shape (N, C, ...) or (C, ...)
            The input, with the dtypes and numbers of axes that the function accepts; if the module
            was converted, those that PyTorch's module accepts.

        Returns
        -------
        Tensor or (Tensor, Tensor)
            The output; with ``return_indices=True``, also the indices of the winners.

        Raises
        ------
        TypeError, ValueError
            If the input does not suit the function or the windows.
        """
        arguments = self._arguments()
        watches_autocast = self.converted and self.autocast_to_float32
        lookup = None if watches_autocast else LOOKUPS.get(type(input))
        cache = self.checked if self.converted else self.call_cache
        y = lookup.call(cache, (input,), arguments) if lookup is not None else None
        if y is not None:
            return y
        if self._uses_pytorch(input):
            return super().forward(input)
        if torch.compiler.is_compiling():  # compilers accept no lists of numbers
            for name, value in arguments.items():
                if name in LEARNED and isinstance(value, tuple):
                    arguments[name] = torch.tensor(value, dtype=torch.float64, device="cpu")
        if not self.converted:
            return self.function(input, **arguments)
        y = called(self.function, input, arguments, partial(super().forward, input))
        if lookup is not None:
            key = lookup.key((input,), arguments)
            if key in self.call_cache:
                self.checked.keep(key, self.call_cache[key])
        return y

    def __prepare_scriptable__(self) -> nn.Module:
        """Return what TorchScript compiles instead: PyTorch's module, if it computes the same.

        Raises
        ------
        NotImplementedError
            If PyTorch has no such module.
        """
        if self.pytorch_class is None or not self._equals_pytorch():
            raise not_scriptable(self)
        module = copy(self)
        module.become_pytorch()
        return module

    def become_pytorch(self) -> None:
        """Become PyTorch's module, without the arguments that only poolgrad's has."""
        added = self.added
        # In this order, an interruption leaves a module that works.
        self.__class__ = self.pytorch_class  # type: ignore[assignment]
        for name in (*added, "converted"):
            vars(self).pop(name, None)

    def extra_repr(self) -> str:
        """Return the arguments that are printed."""
        words = [f"{name}={_brief(getattr(self, name))}" for name in self.shown]
        for name, parameter in self.init_signature.parameters.items():
            value = getattr(self, name)
            usual = not isinstance(value, Tensor) and value == parameter.default
            if not usual and name not in (*self.shown, *self.inherited):
                words.append(f"{name}={_brief(value)}")
        return ", ".join(words)


def is_usual(x: Tensor, dims: int) -> bool:
    """Whether PyTorch and poolgrad both pool such an input."""
    return x.is_floating_point() and x.numel() > 0 and x.dim() - dims in (1, 2)


def called(
    function: Callable[..., Any], x: Tensor, given: dict[str, Any], theirs: Callable[[], Any]
) -> Any:
    """Call a public function or, if it refuses the arguments, PyTorch's, for PyTorch's own error.

    An error that is not one of the arguments is raised: it would be a fault of poolgrad.
    """
    try:
        return function(x, **given)
    except (TypeError, ValueError):
        if not FRONT_END.refuses(function, x, given):
            raise
    return theirs()


def difference_from_pytorch(module: nn.Module) -> str:
    """Return why a module of PyTorch gives other results than poolgrad's; empty if it does not."""
    if isinstance(module, (nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d)):
        return (
            "PyTorch gives the gradient of an output to every value with its index, poolgrad only "
            "to the value that was kept"
        )
    if not isinstance(module, (nn.LPPool1d, nn.LPPool2d, nn.LPPool3d)):
        return ""
    power = module.norm_type
    if not isinstance(power, int | float) or power <= 0 or power % 2 != 0:
        return f"norm_type {power!r} is not even: poolgrad takes absolute values, PyTorch does not"
    if module.ceil_mode:
        return "with ceil_mode PyTorch scales the sum of a partial window, poolgrad does not"
    return ""


def not_scriptable(module: nn.Module) -> NotImplementedError:
    """Return the error of `torch.jit.script` for a module that PyTorch does not have."""
    return NotImplementedError(
        "torch.jit.script accepts poolgrad's modules only where PyTorch has a module that computes "
        f"the same, got {type(module).__name__}; use torch.jit.trace or torch.export"
    )


def each(name: str, values: Any) -> list[Any]:
    """Return the numbers of an argument that is one number, or one for each axis."""
    numbers: Any = to_python(name, values)
    return [numbers] if isinstance(numbers, int) else [to_python(name, n) for n in numbers]


def _stored(name: str, value: Any) -> Any:
    """Return a learned argument as a module stores it: a list as numbers, a tensor as a buffer.

    Raises
    ------
    TypeError, ValueError
        If it is not a number or one number for each channel.
    """
    if isinstance(value, Tensor):
        is_real = not (checked(name, value).is_complex() or value.dtype == torch.bool)
    elif isinstance(value, list | tuple | np.ndarray):
        value, is_real = real_numbers(name, value), True
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, a tensor or an nn.Parameter, got {brief(value)}")
    else:
        return value
    if value.ndim > 1 or not is_real:
        raise ValueError(
            f"{name} must be a number or one for each channel, "
            f"got {value.dtype} of shape {tuple(value.shape)}"
        )
    if isinstance(value, np.ndarray):
        numbers = value.astype(np.float64)
        return tuple(numbers.tolist()) if numbers.ndim else float(numbers)
    return value if isinstance(value, nn.Parameter) else nn.Buffer(value)


def _numbers(name: str, value: Any) -> list[float]:
    """Return the numbers in a learned argument; none for a tensor without data."""
    if isinstance(value, Tensor):
        value = value.detach().reshape(-1) if has_memory(name, value) else ()
    return [float(v) for v in (value if isinstance(value, Tensor | tuple) else (value,))]


def _brief(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    return repr(value) if isinstance(value, str) else str(value)
