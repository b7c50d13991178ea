"""Lists variants of the Triton kernels, and models the bytes that they move, without a GPU.

``poolgrad bench --device cuda --dry-run`` prints the model. `tests/gpu/compile_offline.py` compiles
the variants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from poolgrad.dtypes import name_of
from poolgrad.operators import OPERATORS, Prepared, prepare
from poolgrad.torch import triton
from poolgrad.torch.arrays import empty, inner_of
from poolgrad.torch.triton.launch import Launch, recorded
from poolgrad.windows import WindowSpec, adaptive, fixed, whole

# Bytes a second of memory, from the makers' data sheets (A100 SXM 80 GB, H100 SXM, MI300X).
BANDWIDTH = {"cuda:80": 2.039e12, "cuda:90": 3.35e12, "hip:gfx942": 5.3e12}


class Variant(NamedTuple):
    """One pooling in one direction.

    Attributes
    ----------
    name : str
        Operator, windows, dtype, memory format and direction.
    main : bool
        Whether it may not spill, and its loads and stores must be 128 bits wide.
    launches : list of Launch
        The recorded launches.
    least : int
        Bytes of all inputs and outputs.
    """

    name: str
    main: bool
    launches: list[Launch]
    least: int

    @property
    def moved(self) -> int:
        """Bytes that the launches move if each reads and writes its arrays once."""
        return sum(_bytes(*(a for a in one.args if torch.is_tensor(a))) for one in self.launches)


class _Row(NamedTuple):
    operator: str
    windows: str
    spec: WindowSpec
    shape: tuple[int, ...] = (32, 64, 112, 112)
    options: tuple[Any, ...] = ("first", "bytes")
    main: bool = False


_AVG = (True, 0)
_ROWS = [
    _Row("max", "2x2 stride 2", fixed(2, 2), main=True),
    _Row("max", "3x3 stride 2", fixed(2, 3, 2, 1), main=True),
    _Row("max", "3x3 stride 1", fixed(2, 3, 1, 1)),
    _Row("max", "13x13 stride 1", fixed(2, 13, 1, 6), (32, 64, 28, 28)),
    _Row("max", "2x2 stride 2, packed", fixed(2, 2), options=("first", "packed")),
    _Row("max", "2x2 stride 2, ties zero", fixed(2, 2), options=("zero", "bytes")),
    _Row("max", "3x3 dilation 2", fixed(2, 3, 1, 2, 2)),
    _Row("max", "adaptive 7x7", adaptive(2, 7), (32, 64, 50, 50)),
    _Row("max", "global", whole(2), (32, 64, 56, 56)),
    _Row("max", "2 stride 2, 1-D", fixed(1, 2), (32, 64, 4096)),
    _Row("max", "2x2x2 stride 2, 3-D", fixed(3, 2), (2, 64, 32, 64, 64), main=True),
    _Row("min", "2x2 stride 2", fixed(2, 2)),
    _Row("relu_max", "2x2 stride 2", fixed(2, 2), main=True),
    _Row("avg", "2x2 stride 2", fixed(2, 2), options=_AVG),
    _Row("avg", "3x3 stride 1", fixed(2, 3, 1, 1), options=_AVG),
    _Row("avg", "13x13 stride 1", fixed(2, 13, 1, 6), (32, 64, 28, 28), _AVG),
    _Row("avg", "adaptive 7x7", adaptive(2, 7), (32, 64, 50, 50), _AVG),
    _Row("avg", "global", whole(2), (32, 64, 56, 56), _AVG),
    _Row("lp", "2x2 stride 2", fixed(2, 2), options=(True,)),
    _Row("log_mean_exp", "2x2 stride 2", fixed(2, 2), options=()),
    _Row("soft", "2x2 stride 2", fixed(2, 2), options=()),
    _Row("expected", "2x2 stride 2", fixed(2, 2), options=()),
    _Row("mixed", "2x2 stride 2", fixed(2, 2), options=(True,)),
]


def _bytes(*tensors: torch.Tensor) -> int:
    return sum(t.nbytes for t in {id(t): t for t in tensors}.values())


def _operand(ready: Prepared, device: str) -> Any:
    if not ready.operator.learned:
        return None
    return torch.empty(1, dtype=torch.float32, device=device), 1


def _variants_of(row: _Row, dtype: torch.dtype, last: bool) -> Iterator[Variant]:
    x = torch.empty(row.shape, dtype=dtype, device="meta")
    if last:
        axes = [0, *range(2, x.dim()), 1]
        x = x.permute(axes).contiguous().permute(0, x.dim() - 1, *range(1, x.dim() - 1))
    options = OPERATORS[row.operator].options(*row.options)
    where = (row.shape, False, inner_of(x, row.spec, False), name_of(dtype))
    ready = triton.on_device(prepare(row.operator, row.spec, options, *where))
    operand = _operand(ready, "meta")
    y, gx = empty(ready.output, x), empty(ready.input, x)
    residual = tuple(empty(buffer, x) for buffer in ready.residual)
    name = f"{row.operator} {row.windows}, {name_of(dtype)}, {'NHWC' if last else 'NCHW'}"
    with recorded() as launches:
        ready.operator.forward(ready.call(x, y, residual=residual, operand=operand))
    yield Variant(f"{name}, forward", row.main, launches, _bytes(x, y, *residual))
    beside = (x,) if ready.operator.nonlinear else ()
    if ready.operator.learned:  # the slope of the parameter is read outside the kernels
        residual = residual[:-1]
    with recorded() as launches:
        ready.operator.vjp(ready.call(y, gx, residual=residual, operand=operand, x=x))
    main = row.main and (last or row.operator != "avg")
    yield Variant(f"{name}, backward", main, launches, _bytes(y, *beside, *residual, gx))


def variants() -> Iterator[Variant]:
    """Every variant, with the launches of a typical shape."""
    for row in _ROWS:
        for dtype in (torch.bfloat16, torch.float32):
            for last in (False, True):
                yield from _variants_of(row, dtype, last)
    for dtype in (torch.float16, torch.float64):
        yield from _variants_of(_ROWS[0], dtype, False)
    for dtype in (torch.uint8, torch.int64):
        yield next(_variants_of(_ROWS[0]._replace(main=False), dtype, False))


def print_model() -> None:
    """Print bytes and the time that memory alone takes, by data sheets; nothing is measured."""
    print("A model, not a measurement: bytes moved; microseconds at the data sheets' bandwidth.")
    print(f"{'variant':58} {'MiB':>8} {'/ minimum':>9}" + "".join(f"{t:>12}" for t in BANDWIDTH))
    for v in variants():
        times = "".join(f"{v.moved / b * 1e6:12.1f}" for b in BANDWIDTH.values())
        print(f"{v.name:58} {v.moved / 2**20:8.1f} {v.moved / v.least:9.2f}{times}")
