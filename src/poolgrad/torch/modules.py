"""Makes the module classes, subclasses of PyTorch's where these exist, so ``isinstance`` holds.

A module stores the arguments of a public function and calls it. Its constructor takes the arguments
of the function, in the order of PyTorch's class, and shares its documentation. `family` makes the
classes for one, two and three pooled axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from inspect import Parameter, Signature, signature
from typing import Any

import torch
from torch import Tensor, nn

from poolgrad.arguments import below_one
from poolgrad.call_cache import CallCache
from poolgrad.functional import FUNCTIONS
from poolgrad.functional.docstrings import of_module
from poolgrad.functional.modules import LEARNED, Placeholder
from poolgrad.functional.public import described
from poolgrad.interface import Request
from poolgrad.torch.arrays import checked, name_of, pools
from poolgrad.torch.base import Pool, each
from poolgrad.torch.function import FRONT_END

MODULES: dict[str, type[nn.Module]] = {}  # by public function; for a global one, the 2-D module
SUBCLASSES: dict[type[nn.Module], type[Pool]] = {}  # by PyTorch's class


class Maximum(Pool):
    """The maximum, which can be fused with a ReLU."""

    def rectified(self, x: Tensor) -> Any:
        """Compute the maximum of ``relu(x)`` in one pass; only if it `may_be_fused`."""
        function, arguments = FUNCTIONS[f"relu_max_pool{self.dims}d"], self._arguments()
        if self._is_usual(x):
            try:
                return function(x, **arguments)
            except (TypeError, ValueError):
                if not self.converted or not FRONT_END.refuses(function, x, arguments):
                    raise
        return super().forward(x.relu())

    def may_be_fused(self) -> bool:
        """Whether `rectified` gives the values of PyTorch's class, with no empty window."""
        undilated = {*each("dilation", self.dilation)} == {1}
        return undilated and not self.return_indices and self._equals_pytorch()


class _Exported(Pool):
    """Base class: exported programs compute the operator by PyTorch's maxima and averages."""

    def _has_pytorch_windows(self) -> bool:
        """Whether PyTorch's poolings support these windows."""
        undilated = {*each("dilation", self.dilation)} == {1}
        return undilated and not self.channels_last and self._has_pytorch_padding()

    def _is_exported(self) -> bool:
        return torch.onnx.is_in_onnx_export() and self._has_pytorch_windows()

    def _maximum(self, x: Tensor) -> Tensor:
        pool = getattr(nn.functional, f"max_pool{self.dims}d")
        y: Tensor = pool(x, self.kernel_size, self.stride, self.padding, 1, self.ceil_mode)
        return y

    def _average(self, x: Tensor, count_include_pad: Any = False) -> Tensor:
        pool, windows = (
            getattr(nn.functional, f"avg_pool{self.dims}d"),
            (self.kernel_size, self.stride),
        )
        y: Tensor = pool(x, *windows, self.padding, self.ceil_mode, count_include_pad)
        return y


class ReLUMaximum(_Exported):
    """The maximum of the ReLU."""

    note = "It is exported as PyTorch's ReLU and maximum if these compute the same."

    def forward(self, input: Tensor) -> Any:
        """Compute the maximum of ``relu(input)``; see `MaxPool2d.forward`."""
        if pools(input) or self.ties != "first" or self.return_indices:
            return self._pooled(input)
        return self._maximum(input.relu()) if self._has_pytorch_windows() else self._pooled(input)


class Mixed(_Exported):
    """The mixture of maximum and average."""

    def forward(self, x: Tensor) -> Any:
        """Compute the mixture; see `MaxPool2d.forward`."""
        if not self._is_exported():
            return self._pooled(x)
        alpha = torch.as_tensor(self.alpha, dtype=x.dtype, device=x.device)
        alpha = alpha.reshape(-1, *[1] * self.dims) if alpha.dim() else alpha
        most = alpha * self._maximum(x)
        return most + (1 - alpha) * self._average(x, self.count_include_pad)


class Stochastic(_Exported):
    """A random input in training mode, its expected value in evaluation mode."""

    at_call = (*Pool.at_call, "training")
    note = "It draws in training mode; in evaluation mode it gives the mean, without indices."

    def forward(self, x: Tensor) -> Any:
        """Draw an input, or compute the expected value; see `MaxPool2d.forward`."""
        given = self._arguments()
        given["return_indices"] &= self.training  # the expected value has no winners
        if not self.training and self._is_exported():
            return self._mean(x)
        return self.function(x, training=self.training, **given)

    def _mean(self, x: Tensor) -> Tensor:
        """Compute the expected value as a quotient of averages, which are operators of ONNX.

        The weights are divided by the largest of their plane, so that no product overflows.
        """
        positive = x.relu()
        largest = positive.amax(tuple(range(-self.dims, 0)), keepdim=True)
        weights = positive / torch.where(largest > 0, largest, 1.0)
        total = self._average(weights)
        some = total > 0
        mean = self._average(weights * positive) / torch.where(some, total, 1.0)
        return torch.where(some, mean, self._average(x))


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
    required = ("indices",)
    note = "It is called with values, their `indices` and, unless it is the default, `output_size`."

    def forward(  # type: ignore[override]
        self, input: Tensor, indices: Tensor, output_size: Any = None
    ) -> Any:
        """Write the values to their indices, among zeros.

        Parameters
        ----------
        input, indices : Tensor
            The values and their int64 indices, as a maximum returns them.
        output_size : sequence of int, optional
            The shape of the output, or the sizes of its pooled axes; default: as for
            `torch.nn.MaxUnpool2d`.

        Returns
        -------
        Tensor

        Raises
        ------
        TypeError, ValueError
            If an argument does not suit the windows.
        """
        return self._pooled(input, indices, output_size, indices=indices, output_size=output_size)


class Lip(Pool):
    """Local importance pooling, which takes logits with every call."""

    at_call = (*Pool.at_call, "logits")
    required = ("logits",)
    note = "It is called with values and their `logits`."

    def forward(self, x: Tensor, logits: Tensor) -> Any:  # type: ignore[override]
        """Average each window, weighted with the softmax of its logits.

        Parameters
        ----------
        x, logits : Tensor
            The values and the logarithms of their weights, of the same shape.

        Returns
        -------
        Tensor

        Raises
        ------
        TypeError, ValueError
            If an argument does not suit the windows.
        """
        return self.function(x, logits, **self._arguments())


class Global(Pool):
    """Pooling over all axes but batch and channels."""

    note = "There may be any number of leading axes."

    @classmethod
    def of_dims(cls, pool: Callable[..., Any], dims: int) -> Callable[..., Any]:
        """Return the function, limited to inputs with this number of axes: it accepts others."""

        def describe(x: Any, **given: Any) -> Request:
            request: Request = pool.describe(Placeholder((1,) * (dims + 2)), **given)  # type: ignore[attr-defined]
            return replace(request, x=x)

        name = f"{pool.__name__}{dims}d"
        limited = globals()[name] = described(describe, name, __name__)
        return limited


# The classes

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
            "init_signature": takes,
            "function": staticmethod(function_of_dims),
            "dims": d,
            "call_cache": function_of_dims.cache,  # type: ignore[attr-defined]
            "checked": CallCache(),
            "names": tuple(takes.parameters),
            "pytorch_class": theirs[0] if theirs else None,
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
    if not takes.parameters.keys().isdisjoint(LEARNED):
        notes.append(
            "A tensor is a buffer, unless it is an `nn.Parameter`: then it is learned. A list or "
            "an array is kept as plain numbers."
        )
    return of_module(function, dims, takes.parameters, notes)
