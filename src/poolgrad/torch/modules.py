"""Makes the module classes, subclasses of PyTorch's where these exist, so ``isinstance`` holds.

A module stores the arguments of a public function and calls it. Its constructor takes the arguments
of the function, in the order of PyTorch's class, and shares its documentation. `family` makes the
classes for one, two and three pooled axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from inspect import Parameter, Signature, signature
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from poolgrad.arguments import below_one, real_numbers
from poolgrad.call_cache import LOOKUPS, CallCache
from poolgrad.functional import FUNCTIONS
from poolgrad.functional.docstrings import of_module
from poolgrad.functional.public import bind, described
from poolgrad.interface import Request
from poolgrad.operators import OPERATORS
from poolgrad.torch.arrays import checked, name_of, pads_at_most_half, pools
from poolgrad.torch.function import known_generator, refuses
from poolgrad.windows import Window, brief, has_memory, to_python

MODULES: dict[str, type[nn.Module]] = {}  # by public function; for a global one, the 2-D module
SUBCLASSES: dict[type[nn.Module], type[Pool]] = {}  # by PyTorch's class


class Pool(nn.Module):
    """Base class of the modules: a public function and its arguments.

    Attributes
    ----------
    function : callable
        The public function.
    dims : int
        Number of pooled axes.
    takes : Signature
        The signature of the constructor; each argument becomes an attribute.
    names : tuple of str
        The arguments of the constructor.
    inherited : tuple of str
        The arguments that the constructor of PyTorch's class stores.
    added : dict
        The arguments that PyTorch's class does not have, with their defaults. A plain dictionary,
        because compilers do not support a mapping proxy.
    shown : tuple of str
        The arguments that are always printed.
    at_call : tuple of str
        The arguments of the function that the constructor does not take.
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

    takes: ClassVar[Signature]
    function: ClassVar[Callable[..., Any]]
    dims: ClassVar[int]
    names: ClassVar[tuple[str, ...]]
    inherited: ClassVar[tuple[str, ...]]
    added: ClassVar[dict[str, Any]]
    shown: ClassVar[tuple[str, ...]]
    at_call: ClassVar[tuple[str, ...]] = ("x", "out")
    note: ClassVar[str] = ""
    autocast_to_float32: ClassVar[bool] = False
    call_cache: ClassVar[CallCache]
    checked: ClassVar[CallCache]
    converted: bool = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = bind(type(self).__name__, self.takes, args, kwargs)
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
        request = self._describe(_Input((2**31,) * (self.dims + 2)), given)
        operator = OPERATORS[request.operator]
        operator.check(Window(()), *request.options)
        if "generator" in given:
            known_generator(given["generator"])
        name = operator.operand.name
        if not operator.learned or name not in given:  # or the operand is an argument of each call
            return given
        value = given[name]
        if isinstance(value, list | tuple | np.ndarray):
            numbers = real_numbers(name, value)
            if numbers.ndim > 1:
                raise ValueError(
                    f"{name} must be a number or one for each channel, "
                    f"got {numbers.dtype} of shape {numbers.shape}"
                )
            numbers = numbers.astype(np.float64)
            operator.check_operand(numbers.ravel().tolist())
            return {**given, name: tuple(numbers.tolist()) if numbers.ndim else float(numbers)}
        operator.check_operand(_numbers(name, value))
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            value = nn.Buffer(value)
        return {**given, name: value}

    @classmethod
    def of_dims(cls, pool: Callable[..., Any], dims: int) -> Callable[..., Any]:
        """Return the public function `pool` for this number of pooled axes."""
        return pool

    def _describe(self, x: Any, given: dict[str, Any]) -> Request:
        request: Request = self.function.describe(x, **given)  # type: ignore[attr-defined]
        return request

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
        if not self.converted:
            return False
        return not self._is_usual(x) or not self._equals_pytorch()

    def _is_usual(self, x: Tensor) -> bool:
        """Whether poolgrad computes what PyTorch's class does for such an input."""
        usual = x.is_floating_point() and x.numel() > 0 and x.dim() - self.dims in (1, 2)
        return usual and not (self.autocast_to_float32 and torch.is_autocast_enabled("cpu"))

    def _equals_pytorch(self) -> bool:
        """Whether PyTorch's class computes the same with these arguments and this padding."""
        changed = (n for n, v in self.added.items() if getattr(self, n) != v)
        if not self.inherited or {*changed} - {"routes"}:  # routes do not change results
            return False
        return not difference_from_pytorch(self) and self._has_pytorch_padding()

    def _has_pytorch_padding(self) -> bool:
        pads = _each("padding", getattr(self, "padding", 0))
        if pads == [0]:
            return True
        plain = all(isinstance(pad, int) for pad in pads)
        return plain and pads_at_most_half(pads, _each("kernel_size", self.kernel_size))

    def forward(self, input: Tensor) -> Any:
        """Pool the input."""
        return self._pooled(input)

    def _pooled(self, x: Tensor, *more: Any, **given: Any) -> Any:
        """Pool `x`; `more` and `given` are further arguments of PyTorch's and of our function."""
        arguments = self._arguments()
        alone = not (more or given or (self.converted and self.autocast_to_float32))
        lookup = LOOKUPS.get(type(x)) if alone else None
        cache = self.checked if self.converted else self.call_cache
        y = lookup.call(cache, (x,), arguments) if lookup is not None else None
        if y is not None:
            return y
        if self._uses_pytorch(x):
            return super().forward(x, *more)
        if torch.compiler.is_compiling():  # compilers accept no lists of numbers
            for name, value in arguments.items():
                if name in _LEARNED and isinstance(value, tuple):
                    arguments[name] = torch.tensor(value, dtype=torch.float64, device="cpu")
        try:
            y = self.function(x, **given, **arguments)
        except (TypeError, ValueError):
            if not self.converted or not refuses(self.function, x, {**given, **arguments}):
                raise
            return super().forward(x, *more)  # PyTorch raises its own error
        if lookup is not None and self.converted:
            key = lookup.key((x,), arguments)
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
        theirs = next((t for t, ours in SUBCLASSES.items() if isinstance(self, ours)), None)
        if theirs is None or not self._equals_pytorch():
            raise not_scriptable(self)
        module = copy(self)
        module.convert_to(theirs)
        return module

    def convert_to(self, theirs: type[nn.Module]) -> None:
        """Become PyTorch's module, without the arguments that only poolgrad's has."""
        added = self.added
        # In this order, an interruption leaves a module that works.
        self.__class__ = theirs  # type: ignore[assignment]
        for name in (*added, "converted"):
            vars(self).pop(name, None)

    def extra_repr(self) -> str:
        """Return the arguments that are printed."""
        words = [f"{name}={_brief(getattr(self, name))}" for name in self.shown]
        for name, parameter in self.takes.parameters.items():
            value = getattr(self, name)
            usual = not isinstance(value, Tensor) and value == parameter.default
            if not usual and name not in (*self.shown, *self.inherited):
                words.append(f"{name}={_brief(value)}")
        return ", ".join(words)


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


def _each(name: str, values: Any) -> list[Any]:
    numbers: Any = to_python(name, values)
    return [numbers] if isinstance(numbers, int) else [to_python(name, n) for n in numbers]


class _Input(NamedTuple):
    """A placeholder for an input while arguments are checked: only its shape is read."""

    shape: tuple[int, ...]


def _numbers(name: str, value: object) -> list[float]:
    """Return the numbers in a learned argument; none for a tensor without data."""
    if isinstance(value, Tensor):
        checked(name, value)
        if value.dim() > 1 or value.is_complex() or value.dtype == torch.bool:
            raise ValueError(
                f"{name} must be a number or one for each channel, "
                f"got {value.dtype} of shape {tuple(value.shape)}"
            )
        return [] if not has_memory(name, value) else [float(v) for v in value.detach().reshape(-1)]
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, a tensor or an nn.Parameter, got {brief(value)}")
    return [float(value)]


def _brief(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    return repr(value) if isinstance(value, str) else str(value)


class Maximum(Pool):
    """The maximum, which can be fused with a ReLU."""

    def rectified(self, x: Tensor) -> Any:
        """Compute the maximum of ``relu(x)`` in one pass; only if it `may_be_fused`."""
        function, arguments = FUNCTIONS[f"relu_max_pool{self.dims}d"], self._arguments()
        if self._is_usual(x):
            try:
                return function(x, **arguments)
            except (TypeError, ValueError):
                if not self.converted or not refuses(function, x, arguments):
                    raise
        return super().forward(x.relu())

    def may_be_fused(self) -> bool:
        """Whether `rectified` gives the values of PyTorch's class, with no empty window."""
        undilated = {*_each("dilation", self.dilation)} == {1}
        return undilated and not self.return_indices and self._equals_pytorch()


class ReLUMaximum(Pool):
    """The maximum of the ReLU."""

    note = "It is exported as PyTorch's ReLU and maximum if these compute the same."

    def forward(self, input: Tensor) -> Any:
        """Compute the maximum of ``relu(input)``."""
        usual = self.ties == "first" and not (self.return_indices or self.channels_last)
        if pools(input) or not usual or {*_each("dilation", self.dilation)} != {1}:
            return self._pooled(input)
        if not self._has_pytorch_padding():
            return self._pooled(input)
        pool = getattr(nn.functional, f"max_pool{self.dims}d")
        windows = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        return pool(input.relu(), *windows)


class _ExportedToOnnx(Pool):
    """An operator that is exported to ONNX as poolings of PyTorch, which ONNX supports."""

    def _is_exported(self) -> bool:
        """Whether the module is being exported, and PyTorch's poolings support these windows."""
        if not torch.onnx.is_in_onnx_export() or {*_each("dilation", self.dilation)} != {1}:
            return False
        return not self.channels_last and self._has_pytorch_padding()

    def _windows(self) -> tuple[Any, ...]:
        """Return the arguments of PyTorch's averages."""
        return self.kernel_size, self.stride, self.padding, self.ceil_mode


class Mixed(_ExportedToOnnx):
    """The mixture of maximum and average."""

    def forward(self, x: Tensor) -> Any:
        """Compute the mixture."""
        if not self._is_exported():
            return self._pooled(x)
        largest = getattr(nn.functional, f"max_pool{self.dims}d")
        mean = getattr(nn.functional, f"avg_pool{self.dims}d")
        size, stride, padding, ceil_mode = self._windows()
        alpha = torch.as_tensor(self.alpha, dtype=x.dtype, device=x.device)
        alpha = alpha.reshape(-1, *[1] * self.dims) if alpha.dim() else alpha
        return alpha * largest(x, size, stride, padding, 1, ceil_mode) + (1 - alpha) * mean(
            x, size, stride, padding, ceil_mode, self.count_include_pad
        )


class Stochastic(_ExportedToOnnx):
    """A random input in training mode, its expected value in evaluation mode."""

    at_call = (*Pool.at_call, "training")
    note = "It draws in training mode; in evaluation mode it gives the mean, without indices."

    def forward(self, x: Tensor) -> Any:
        """Draw an input, or compute the expected value."""
        given = self._arguments()
        given["return_indices"] &= self.training  # the expected value has no winners
        if not self.training and self._is_exported():
            return self._mean(x)
        return self.function(x, training=self.training, **given)

    def _mean(self, x: Tensor) -> Tensor:
        """Compute the expected value as a quotient of averages, which are operators of ONNX.

        The weights are divided by the largest of their plane, so that no product overflows.
        """
        axes = tuple(range(-self.dims, 0))
        pool = getattr(nn.functional, f"avg_pool{self.dims}d")

        def average(values: Tensor) -> Tensor:
            y: Tensor = pool(values, *self._windows(), count_include_pad=False)
            return y

        positive = x.relu()
        largest = positive.amax(axes, keepdim=True)
        weights = positive / torch.where(largest > 0, largest, 1.0)
        total = average(weights)
        some = total > 0
        mean = average(weights * positive) / torch.where(some, total, 1.0)
        return torch.where(some, mean, average(x))


class Fractional(Pool):
    """Fractional windows; their samples, a buffer, are cast with the module."""

    def _arguments(self) -> dict[str, Any]:
        given = super()._arguments()
        samples = given["_random_samples"]
        if isinstance(samples, Tensor) and samples.is_floating_point():
            checked("_random_samples", samples)
            most = below_one(name_of(samples.dtype))
            given["_random_samples"] = samples.masked_fill(samples == 1, most)  # a cast rounds to 1
        return given


class Unpool(Pool):
    """Unpooling, which takes indices with every call."""

    at_call = (*Pool.at_call, "indices", "output_size")
    note = "It is called with values, their `indices` and, unless it is the default, `output_size`."

    def _describe(self, x: Any, given: dict[str, Any]) -> Request:
        return super()._describe(x, {"indices": None, **given})

    def forward(  # type: ignore[override]
        self, input: Tensor, indices: Tensor, output_size: Any = None
    ) -> Any:
        """Write the values to their indices, among zeros."""
        return self._pooled(input, indices, output_size, indices=indices, output_size=output_size)


class Lip(Pool):
    """Local importance pooling, which takes logits with every call."""

    at_call = (*Pool.at_call, "logits")
    note = "It is called with values and their `logits`."

    def _describe(self, x: Any, given: dict[str, Any]) -> Request:
        return super()._describe(x, {"logits": None, **given})

    def forward(self, x: Tensor, logits: Tensor) -> Any:  # type: ignore[override]
        """Pool, weighted with the softmax of the logits in each window."""
        return self.function(x, logits, **self._arguments())


class Global(Pool):
    """Pooling over all axes but batch and channels."""

    note = "There may be any number of leading axes."

    @classmethod
    def of_dims(cls, pool: Callable[..., Any], dims: int) -> Callable[..., Any]:
        """Return the function, limited to inputs with this number of axes: it accepts others."""

        def describe(x: Any, **given: Any) -> Request:
            request: Request = pool.describe(_Input((1,) * (dims + 2)), **given)  # type: ignore[attr-defined]
            return replace(request, x=x)

        name = f"{pool.__name__}{dims}d"
        limited = globals()[name] = described(describe, name, __name__)
        return limited


# The classes

_LEARNED = {o.operand.name for o in OPERATORS.values() if o.learned}
_NOT_SHOWN = ("return_indices", "count_include_pad", "_random_samples")


def family(
    name: str,
    function: str,
    base: type[Pool] = Pool,
    *,
    subclass: bool = False,
    first: Iterable[str] = (),
    shown: Iterable[str] = (),
    dims: tuple[int, ...] = (1, 2, 3),
) -> tuple[type[Pool], ...]:
    """Make the classes for one, two and three pooled axes.

    Parameters
    ----------
    name, function : str
        Names of the classes and of their functions, without the number of axes.
    base : type
        Common base class.
    subclass : bool
        Whether the classes also derive from PyTorch's classes of that name.
    first : iterable of str
        Arguments that come first, after those of PyTorch's class.
    shown : iterable of str
        Arguments that are always printed; default: most positional arguments.
    dims : tuple of int
        Numbers of pooled axes for which a class is made.
    """

    def of(d: int) -> type[Pool]:
        fast = FUNCTIONS.get(f"{function}{d}d") or FUNCTIONS[function]
        function_of_dims = base.of_dims(fast, d)
        theirs = (getattr(nn, f"{name}{d}d"),) if subclass else ()
        inherited = tuple(n for c in theirs for n in signature(c).parameters)
        takes = _reordered(signature(fast), (*inherited, *first), base.at_call)
        placed = [n for n, p in takes.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        members = {
            "__module__": "poolgrad.torch",  # where users, and pickle, find it
            "__doc__": _documentation(fast, d, takes, theirs, base.note),
            "__signature__": takes,
            "takes": takes,
            "function": staticmethod(function_of_dims),
            "dims": d,
            "call_cache": function_of_dims.cache,  # type: ignore[attr-defined]
            "checked": CallCache(),
            "names": tuple(takes.parameters),
            "inherited": inherited,
            "added": {n: p.default for n, p in takes.parameters.items() if n not in inherited},
            "autocast_to_float32": d == 3 or name in ("FractionalMaxPool", "MaxUnpool"),
            "shown": tuple(shown or (n for n in placed if n not in _NOT_SHOWN)),
        }
        made: type[Pool] = type(f"{name}{d}d", (base, *theirs), members)
        SUBCLASSES.update(dict.fromkeys(theirs, made))
        if d == 2 or fast.__name__ != function:
            MODULES[fast.__name__] = made
        return made

    return tuple(map(of, dims))


def _reordered(given: Signature, first: Iterable[str], left_out: Iterable[str]) -> Signature:
    """Return a signature with the parameters `first` in front and without those in `left_out`."""
    named = {n: p for n, p in given.parameters.items() if n not in left_out}
    before = [named.pop(n).replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for n in first]
    return Signature([*before, *named.values()])


def _documentation(
    function: Callable[..., Any], dims: int, takes: Signature, theirs: tuple[type, ...], note: str
) -> str:
    """Return the docstring of a module, made from that of its function."""
    kinds = "".join(f" Subclass of `torch.nn.{c.__name__}`." for c in theirs)
    notes = [f"Calls `poolgrad.{function.__name__}`.{kinds}", note]
    if not takes.parameters.keys().isdisjoint(_LEARNED):
        notes.append(
            "A tensor is a buffer, unless it is an `nn.Parameter`: then it is learned. A list or "
            "an array is kept as plain numbers."
        )
    return of_module(function, dims, takes.parameters, notes)
