"""Type stub of the compiled module, which csrc/python/bindings.cpp defines."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

# An array: an object with the buffer protocol, or a tensor (`data_ptr()`; `stride()`, in elements).
_Array = Any
# How a property of an array is read: an attribute name, or a function of the array.
_Getter = str | Callable[[Any], Any]

def instruction_set() -> str: ...
def instruction_sets() -> list[str]: ...
def algorithms() -> list[str]: ...
def force_algorithm(name: str) -> None: ...
def trace(call: Callable[[], Any], dry: bool) -> list[tuple[str, int, int]]: ...
def limit_cache(bytes: int) -> None: ...
def limit_nontemporal_stores(bytes: int) -> None: ...
def empty_cache() -> None: ...
def advise_huge_pages(address: int, size: int) -> None: ...
def share_threads(library: str) -> bool: ...
def xla_handler() -> Any: ...
def cache_use() -> tuple[int, int]: ...

class CachedBlock:
    def __init__(self, bytes: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class TensorSpec:
    def __init__(
        self,
        type: type,
        parts: tuple[_Getter, ...],
        required: tuple[tuple[_Getter, Any], ...],
        global_state: tuple[Callable[[], Any], ...],
        required_state: tuple[tuple[Callable[[], Any] | tuple[object, str], Any], ...],
        protocol: Literal["by exchange", "by attributes", "by buffer"],
    ) -> None: ...
    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None: ...
    def call(
        self,
        cache: dict[Hashable, Callable[[Any], Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any: ...
    def parts(self, array: Any) -> tuple[Any, ...] | None: ...
    def is_supported(self, array: Any) -> bool: ...
    def have_parts(
        self, arrays: tuple[Any, ...], parts: tuple[tuple[Any, ...] | None, ...]
    ) -> bool: ...
    def call_with(
        self,
        function: Callable[..., Any],
        arrays: tuple[Any, ...],
        parts: tuple[tuple[Any, ...] | None, ...],
    ) -> Any: ...

class BoundCalls:
    def __init__(
        self,
        calls: tuple[tuple[Callable[..., None], tuple[Any, ...]], ...],
        placeholders: tuple[object, ...],
        allocators: tuple[Callable[[], _Array], ...],
        threads: Callable[[], int],
        returned: int,
    ) -> None: ...
    def run(self, *arrays: _Array) -> Any: ...

class Plan:
    def __init__(
        self,
        axes: Sequence[tuple[int, ...]],
        shape: Sequence[int],
        pooled: Sequence[int],
        inner_axis: int,
        in_dtype: str,
        out_dtype: str,
        route_bits: int,
    ) -> None: ...
    def unpack_routes(self, packed: _Array, routes: _Array, threads: int) -> None: ...
    def select(
        self,
        which: str,
        x: _Array,
        y: _Array,
        routes: _Array | None,
        zero_ties: bool,
        samples: _Array | None,
        threads: int,
    ) -> None: ...
    def draw(
        self, x: _Array, y: _Array, routes: _Array | None, seed: int, threads: int
    ) -> None: ...
    def route_backward(
        self, gy: _Array, routes: _Array, gx: _Array, samples: _Array | None, threads: int
    ) -> None: ...
    def route_jvp(
        self, t: _Array, routes: _Array, y: _Array, samples: _Array | None, threads: int
    ) -> None: ...
    def route_indices(
        self, routes: _Array, indices: _Array, samples: _Array | None, threads: int
    ) -> None: ...
    def split_winners(
        self,
        which: str,
        x: _Array,
        y: _Array,
        winners: _Array,
        samples: _Array | None,
        threads: int,
    ) -> None: ...
    def split_backward(
        self, gy: _Array, winners: _Array, gx: _Array, samples: _Array | None, threads: int
    ) -> None: ...
    def split_jvp(
        self, t: _Array, winners: _Array, y: _Array, samples: _Array | None, threads: int
    ) -> None: ...
    def unpool(self, x: _Array, indices: _Array, y: _Array, threads: int) -> None: ...
    def unpool_backward(self, gy: _Array, indices: _Array, gx: _Array, threads: int) -> None: ...
    def average(
        self, x: _Array, y: _Array, count_padding: bool, divisor: float, threads: int
    ) -> None: ...
    def average_backward(
        self, gy: _Array, gx: _Array, count_padding: bool, divisor: float, threads: int
    ) -> None: ...
    def mixed(
        self,
        x: _Array,
        alpha: _Array,
        count: int,
        count_padding: bool,
        y: _Array,
        routes: _Array | None,
        sensitivity: _Array | None,
        threads: int,
    ) -> None: ...
    def mixed_backward(
        self,
        gy: _Array,
        alpha: _Array,
        count: int,
        count_padding: bool,
        routes: _Array,
        gx: _Array,
        threads: int,
    ) -> None: ...
    def nonlinear(
        self,
        which: str,
        x: _Array,
        theta: _Array,
        count: int,
        y: _Array,
        residuals: list[_Array],
        sensitivity: _Array | None,
        threads: int,
    ) -> None: ...
    def nonlinear_backward(
        self,
        which: str,
        gy: _Array,
        x: _Array,
        theta: _Array,
        count: int,
        residuals: list[_Array],
        gx: _Array,
        threads: int,
    ) -> None: ...
    def span(self, axis: int, output: int) -> tuple[int, int, int, int]: ...
    def covering(self, axis: int, input: int) -> tuple[int, int]: ...
    @property
    def taps(self) -> int: ...
    @property
    def route_bytes(self) -> int: ...

class Regions:
    def __init__(
        self,
        shape: Sequence[int],
        output_size: Sequence[int],
        dtype: str,
        boxes: _Array,
        spatial_scale: float,
    ) -> None: ...
    @property
    def count(self) -> int: ...
    def pool(self, x: _Array, y: _Array, indices: _Array, threads: int) -> None: ...
    def pool_backward(self, gy: _Array, indices: _Array, gx: _Array, threads: int) -> None: ...
    def pool_gather(self, x: _Array, indices: _Array, y: _Array, threads: int) -> None: ...
    def align(
        self, x: _Array, y: _Array, sampling_ratio: int, aligned: bool, threads: int
    ) -> None: ...
    def align_backward(
        self, gy: _Array, gx: _Array, sampling_ratio: int, aligned: bool, threads: int
    ) -> None: ...
