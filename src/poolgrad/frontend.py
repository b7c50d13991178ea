"""`FrontEnd`: makes the arrays of one framework differentiable with the engines.

There is one subclass for each framework, for all operators. A front end converts the arguments of a
`Request` to a `Call`, computes it with the engine of the operator and the device, and ties the
result to the framework's differentiation or returns a `Pullback`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar

from poolgrad import arguments, composition, dtypes, front_ends
from poolgrad.composition import Functions
from poolgrad.dtypes import FLOATS
from poolgrad.interface import Buffer, Request, indexed, unpacked, without_split_ties
from poolgrad.operands import Parameter, Samples, WindowSamples
from poolgrad.operators import OPERATORS, Prepared, prepare
from poolgrad.pullback import Call, Pullback
from poolgrad.windows import Layout, brief

# First part of the name of an array's module -> name of the front end.
_LIBRARIES = {name: name for name in ("numpy", "torch", "jax", "dask", "xarray")}
_LIBRARIES |= {"jaxlib": "jax", "cupy": "portable"}

_found: dict[type, FrontEnd] = {}


def front_end(x: object) -> FrontEnd:
    """Return the front end for arrays of this type, which is imported on first use.

    Arrays of CuPy, and of any other library that follows the array API standard
    (``__array_namespace__``), are pooled by `poolgrad.portable`; the array inside a DataArray of
    xarray by its own front end. Lists, and objects that can only be converted to a NumPy array
    (``__array__``, ``__array_interface__``), are pooled as NumPy arrays.

    Raises
    ------
    TypeError
        If no front end takes this type.
    RuntimeError
        If this call interrupts the import of the front end, as in a signal handler.
    """
    if hasattr(x, "__torch_function__"):  # without a table, whose keys a compiler cannot guard
        return front_ends.torch
    kind = type(x)
    if kind not in _found:
        known = name_of(x)
        if not known:
            raise TypeError(
                "x must be an array of NumPy, PyTorch, JAX, Dask or an array-API library, "
                f"got {_refused(x)}"
            )
        _found[kind] = getattr(front_ends, known)
    return _found[kind]


def name_of(x: object) -> str:
    """Return the name of the front end for arrays of this type, or an empty string."""
    kind = type(x)
    if kind is list or kind is tuple:
        return "numpy"
    if hasattr(x, "__torch_function__"):  # a check that tracing compilers support, too
        return "torch"
    # A subclass of another module is pooled as an array of its base class's library.
    origins = [c.__module__.partition(".")[0] for c in (kind, *kind.__mro__)]
    origin = next((o for o in origins if o in _LIBRARIES), "")
    if origin and hasattr(x, "shape"):  # these libraries define more than arrays
        return _LIBRARIES[origin]
    if hasattr(kind, "__array_namespace__"):
        return "portable"
    if hasattr(kind, "__array__") or hasattr(kind, "__array_interface__"):
        return "numpy"
    return ""


def _refused(x: object) -> str:
    """Describe an object that is not accepted as an input."""
    if isinstance(x, type):
        return f"the class {x.__qualname__} itself"
    if isinstance(x, ModuleType):
        return f"the module {x.__name__}"
    if callable(x) and hasattr(x, "__name__"):
        return f"the function {x.__name__} itself"
    return "None" if x is None else f"{brief(x)} ({type(x).__qualname__})"


def _named(name: str) -> FrontEnd:
    return getattr(front_ends, name)


class FrontEnd(ABC):
    """The front end of one framework; also converts extra operands (see `operands`).

    Calls are computed by `poolgrad.portable` unless the subclass has another engine.

    Attributes
    ----------
    name : str
        The attribute of `front_ends` that holds it.
    noun : str
        What an input is, in errors: ``"a tensor"``.
    differentiation : str
        How a framework differentiates its own arrays, for the error of `vjp`; empty if `vjp`
        returns pullbacks.
    call_type : type
        The class of its calls.
    """

    name: ClassVar[str]
    noun: ClassVar[str]
    differentiation: ClassVar[str] = ""
    call_type: ClassVar[type[Call]] = Call

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.name,)

    # What a framework defines. A front end that passes calls on to another defines `asarray` only;
    # only those with pullbacks define `copied` and `cotangent`.

    @abstractmethod
    def asarray(self, name: str, value: Any) -> Any:
        """Return the argument `name` as an array of the framework, checked.

        Raises
        ------
        TypeError
            If it is none, or not readable.
        """

    def dtype_name(self, x: Any) -> str:
        """Return the name of the dtype of an array."""
        return dtypes.name_of(x.dtype)

    def functions(self, x: Any) -> Functions:
        """Return the functions that a composed operator may call."""
        raise NotImplementedError

    def shape_of(self, x: Any) -> tuple[int, ...]:
        """Return the shape of an array."""
        return tuple(x.shape)

    def inner(self, request: Request, x: Any) -> int:
        """Return the axis that lies innermost in memory, if it is not pooled (`inner_axis`); or -1.

        Libraries without memory formats have none.
        """
        return -1

    def prepared(self, request: Request, x: Any) -> Any:
        """Prepare the operator for this input: return a `Prepared`."""
        where = self.shape_of(x), request.channels_last, self.inner(request, x), self.dtype_name(x)
        return prepare(request.operator, request.spec, request.options, *where)

    def forward(self, call: Call, keep: bool = False) -> tuple[Any, tuple[Any, ...]]:
        """Compute the output and, if it is kept, the residual."""
        return front_ends.engine.forward(call.ready, call.x, call.operand, keep)

    def indices_of(self, call: Call, routes: Any) -> Any:
        """Convert routes to flat positions in their plane."""
        return front_ends.engine.indices(call.ready.layout, routes, call.operand)

    def squeezed(self, y: Any, axes: tuple[int, ...]) -> Any:
        """Remove axes of size 1."""
        return y.squeeze(axes)

    def copied(self, x: Any) -> Any:
        """Return a private copy of an array."""
        raise NotImplementedError

    def gradient(self, call: Call, gy: Any, x: Any, residual: Any) -> Any:
        """Compute the gradient of the input of a call."""
        return front_ends.engine.vjp(call.ready, gy, x, call.operand, residual)[0]

    def parameter_gradient(self, call: Call, gy: Any, x: Any, residual: Any) -> Any:
        """Compute the gradient of the learned parameter of a call."""
        return front_ends.engine.vjp(call.ready, gy, x, call.operand, residual)[1]

    def cotangent(self, gy: Any, dtype: str, shape: tuple[int, ...], full: tuple[int, ...]) -> Any:
        """Check a cotangent for an output of this shape; convert it to this dtype and to `full`."""
        raise NotImplementedError

    def routes(self, call: Call, routes: Any) -> Any:
        """Unpack routes to one number for each output; read-only. NumPy's front end only."""
        raise NotImplementedError

    def laid_out(self, residual: Any, buffers: tuple[Buffer, ...]) -> Any:
        """Restore the memory formats of a residual from a pickle."""
        return residual

    def bound_call(self, request: Request) -> Callable[[Any], Any] | None:
        """Bind a call, or return None if it cannot be cached; see `call_cache`."""
        return None

    def bound_vjp(self, request: Request) -> Callable[[Any], tuple[Any, Pullback]] | None:
        """Bind a call of `vjp`, or return None if it cannot be cached; see `call_cache`."""
        return None

    # Calls

    def checked_input(self, request: Request) -> Any:
        """Return the input as an array of a dtype that the operator accepts."""
        x, operator = self.asarray("x", request.x), OPERATORS[request.operator]
        if not operator.accepts(self.dtype_name(x)):
            raise operator.refuse_dtype(dtypes.name_of(x.dtype))
        return x

    def call(self, request: Request) -> Call:
        """Validate a call and convert its arrays."""
        x = self.checked_input(request)
        options = request.options
        if self.dtype_name(x) not in FLOATS:
            options = without_split_ties(options)
        if request.return_indices:
            options = unpacked(options)
        if options != request.options:
            request = replace(request, options=options)
        ready, operand = self.prepared(request, x), OPERATORS[request.operator].operand
        operands = [operand.convert(self, value, x, ready) for value in request.operands]
        return self.call_type(self, request, ready, x, operands[0] if operands else None)

    def perform(self, request: Request) -> Any:
        """Compute the call of a public function."""
        if request.out is not None:
            self.check_out(request.out)
        if OPERATORS[request.operator].composed:
            return composition.perform(FrontEnd.call(self, request))
        call = self.call(request)
        if not request.return_indices:
            y, _ = self.forward(call)
            # Returned from here, because after a graph break PyTorch's compiler compiles functions
            # of `y` by themselves, with a warning.
            return y if request.keepdims and request.out is None else self.finished(call, y)
        plain = replace(call.request, options=indexed(call.request.options))
        routed = replace(call, request=plain, ready=self.prepared(plain, call.x))
        y, residual = self.forward(routed, keep=True)
        if self.differentiation and plain.options != call.request.options:
            y, _ = self.forward(call)  # the gradient depends on `ties`, the indices do not
        return self.finished(call, y), call.shaped(self.indices_of(routed, residual[0]))

    def vjp(self, request: Request) -> tuple[Any, Pullback]:
        """Compute the output of the call of a public function, and its pullback."""
        if self.differentiation:
            raise TypeError(f"vjp supports NumPy and Dask arrays; {self.differentiation}")
        if OPERATORS[request.operator].composed:
            return composition.vjp(FrontEnd.call(self, request))
        call = self.call(request)
        kept = self.kept(call)
        y, residual = self.forward(call, keep=True)
        return call.shaped(y), Pullback(kept, call.x, residual)

    def kept(self, call: Call) -> Call:
        """Return the call for a pullback: without the input, with a private extra operand."""
        self.require_gradient(call.x)
        operand, operands = call.operand, call.request.operands
        if operand is not None:
            operand = self.copied(operand)
            operands = (operand,)
        return replace(
            call, request=replace(call.request, x=None, operands=operands), x=None, operand=operand
        )

    def require_gradient(self, x: Any) -> None:
        """Raise an error unless an array of this dtype has a gradient."""
        if self.dtype_name(x) not in FLOATS:
            came = dtypes.name_of(x.dtype)
            raise TypeError(f"x must be of a floating dtype to have a gradient, got {came}")

    def check_out(self, out: Any) -> None:
        """Raise an error if the framework's functions do not write to `out`."""
        raise TypeError(f"out is accepted only if x is a NumPy array, got {self.noun} x")

    def finished(self, call: Call, y: Any) -> Any:
        """Return the output of a call, without the pooled axes unless the request keeps them."""
        return call.shaped(y)

    # Extra operands

    def is_own(self, value: Any) -> bool:
        """Whether a value is an array of the framework, whose numbers are not read."""
        return False

    def from_numpy(self, array: Any, x: Any) -> Any:
        """Convert a NumPy array to an array on the device of `x`."""
        raise NotImplementedError

    def drawn(self, generator: Any, shape: tuple[int, ...], x: Any) -> Any:
        """Draw samples in [0, 1)."""
        return self.from_numpy(arguments.numpy_generator(generator).random(shape), x)

    def narrowed(self, value: Any, dtype: str) -> Any:
        """Convert an own array of real numbers to the dtype of sums."""
        arrays = front_ends.engine.arrays
        return arrays.narrowed(arrays.namespace(value), value, dtype)

    def parameter(self, operand: Parameter, value: Any, x: Any, ready: Prepared) -> Any:
        """Convert a number, or one for each channel, to the dtype of sums."""
        if not self.is_own(value):
            return self.from_numpy(operand.checked(value, ready), x)
        value = self.asarray(operand.name, value)
        dtype = self.dtype_name(value)
        if dtype not in arguments.REALS:
            raise arguments.refuse_numbers(operand.name, dtype)
        arguments.check_length(operand.name, self.shape_of(value), ready.layout.channels)
        return self.narrowed(value, ready.layout.sum_dtype)

    def seed(self, value: Any, x: Any) -> Any:
        """Return a seed, or draw one from a generator."""
        seed = arguments.seed(value)
        return int(arguments.numpy_generator(value).integers(2**63)) if seed is None else seed

    def samples(self, operand: WindowSamples, value: Samples, x: Any, ready: Prepared) -> Any:
        """Return samples in [0, 1), in the dtype of the input."""
        layout, given = ready.layout, value.values
        if given is None:
            given = self.drawn(value.generator, arguments.samples_shape(layout), x)
        elif self.is_own(given):
            given = self.asarray(operand.name, given)
            arguments.check_samples_dtype(self.dtype_name(given))
            arguments.check_samples_shape(self.shape_of(given), layout)
        else:
            given = self.from_numpy(operand.checked(given, layout), x)
        return self.samples_below_one(given, operand.accepted(layout)[0], x, layout)

    def samples_below_one(self, samples: Any, dtype: str, x: Any, layout: Layout) -> Any:
        """Round samples to a dtype, below 1, in the shape that the kernels take."""
        raise NotImplementedError

    def indices(self, value: Any, x: Any) -> Any:
        """Return indices of the shape of the input."""
        given = self.asarray("indices", value)
        arguments.check_indices(self.dtype_name(given), self.shape_of(given), self.shape_of(x))
        return given
