"""Random calls of the PyTorch front end with tensors that other code may pass.

A call is made twice: with the tensors as drawn (zero tensors, negative views, other strides and
addresses, inside a device context, changed in place after they were read), and with contiguous
copies. Both must give the same bits. A call whose tensors were changed may raise PyTorch's
`RuntimeError` instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from adversarial_arrays import FINITE
from robustness.calls import KINDS, Case, Draw, Limits, Seeded, case
from torch import Tensor

import poolgrad

SMALL = Limits((9, 6, 4), 3, 3, 2, 2, 4, edges=False)
_OF_REGIONS = ("roi_pool", "roi_align")
_DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
_ERRORS = (TypeError, ValueError, RuntimeError, NotImplementedError)

torch.set_num_threads(1)  # one process for each core


# Forms of a tensor. The values of a form may differ from those of the tensor it is made from.


def _zero(x: Tensor) -> Tensor:
    return torch._efficientzerotensor(x.shape, dtype=x.dtype)


def _zero_slice(x: Tensor) -> Tensor:
    larger = [n + 1 for n in x.shape]
    zero = torch._efficientzerotensor(larger, dtype=x.dtype)
    return zero[tuple(slice(1, None) for _ in x.shape)]


def _misaligned(x: Tensor) -> Tensor:
    if not x.numel():
        return x.clone()
    size = x.element_size()
    bytes_ = bytearray(1) + bytearray(x.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    flat = torch.frombuffer(bytes_, dtype=x.dtype, offset=1, count=x.numel())
    assert flat.data_ptr() % size or size == 1
    return flat.view(x.shape)


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.ndim > 1 else x.clone()


def _channels_last(x: Tensor) -> Tensor:
    axis = max(0, min(1, x.ndim - 1))
    return x.movedim(axis, -1).contiguous().movedim(-1, axis) if x.ndim else x.clone()


def _every_other(x: Tensor) -> Tensor:
    whole = x.new_full([2 * n for n in x.shape], 6e4)
    part = whole[tuple(slice(1, None, 2) for _ in x.shape)]
    part.copy_(x)
    return part


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.clone(),
    "zero": _zero,
    "zero-slice": _zero_slice,
    "negative": lambda x: torch._neg_view(-x),
    "negative-slice": lambda x: torch._neg_view(_every_other(-x)),
    "misaligned": _misaligned,
    "expanded": lambda x: x[..., :1].clone().expand(x.shape) if x.ndim else x.clone(),
    "expanded-batch": lambda x: x[:1].clone().expand(x.shape) if x.ndim else x.clone(),
    "transposed": _transposed,
    "channels-last": _channels_last,
    "every-other": _every_other,
}
_WRITABLE = ("contiguous", "negative", "misaligned", "transposed", "channels-last", "every-other")


def plain(x: Tensor) -> Tensor:
    """A contiguous copy of a tensor, with memory and without a negative bit."""
    if x._is_zerotensor():
        return torch.zeros(x.shape, dtype=x.dtype)
    return x.detach().resolve_neg().clone(memory_format=torch.contiguous_format)


# Transformations. Each takes the function, the input, a cotangent and a tangent.

_Pool = Callable[[Tensor], Tensor]
_Change = Callable[[str, Tensor], None]


def _first(found: Any) -> Tensor:
    return found[0] if isinstance(found, tuple) else found


def _forward(pool: _Pool, x: Tensor, gy: Tensor, v: Tensor, change: _Change) -> list[Any]:
    with torch.no_grad():
        return [pool(x)]


def _backward(pool: _Pool, x: Tensor, gy: Tensor, v: Tensor, change: _Change) -> list[Any]:
    x.requires_grad_()
    y = pool(x)
    found = plain(y)
    change("x", x)
    change("y", y)
    (gx,) = torch.autograd.grad(y, x, gy)
    return [found, gx]


def _twice(pool: _Pool, x: Tensor, gy: Tensor, v: Tensor, change: _Change) -> list[Any]:
    x.requires_grad_()
    given = gy.requires_grad_()
    y = pool(x)
    (gx,) = torch.autograd.grad(y, x, given, create_graph=True)
    found = plain(gx)
    change("x", x)
    change("gy", given)
    return [found, *torch.autograd.grad(gx, (given, x), v, allow_unused=True)]


def _vjp(pool: _Pool, x: Tensor, gy: Tensor, v: Tensor, change: _Change) -> list[Any]:
    y, back = torch.func.vjp(pool, x)
    return [y, *back(gy)]


def _grad(pool: _Pool, x: Tensor, gy: Tensor, v: Tensor, change: _Change) -> list[Any]:
    return [torch.func.grad(lambda a: (pool(a) * gy).sum())(x)]


def _jvp(pool: _Pool, x: Tensor, gy: Tensor, v: Tensor, change: _Change) -> list[Any]:
    return [*torch.func.jvp(pool, (x,), (v,))]


def _hessian(pool: _Pool, x: Tensor, gy: Tensor, v: Tensor, change: _Change) -> list[Any]:
    return [torch.func.grad(lambda a: torch.func.jvp(pool, (a,), (v,))[1].sum())(x)]


def _vmap(pool: _Pool, x: Tensor, gy: Tensor, v: Tensor, change: _Change) -> list[Any]:
    return [torch.func.vmap(pool)(x.unsqueeze(0).expand(2, *x.shape))]


MODES = {
    "forward": _forward, "backward": _backward, "twice": _twice, "vjp": _vjp, "grad": _grad,
    "jvp": _jvp, "hessian": _hessian, "vmap": _vmap,
}  # fmt: skip
_CHANGED = {"backward": ("x", "y"), "twice": ("x", "gy")}


# Contexts


@contextmanager
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


CONTEXTS: dict[str, Callable[[], Any]] = {
    "none": nullcontext,
    "meta": lambda: torch.device("meta"),
    "float64": _float64,
}


class TensorCall(NamedTuple):
    """A call of a public function with tensors.

    Attributes
    ----------
    case : Case
        The call, with NumPy arrays.
    dtype : torch.dtype
        The dtype of the input.
    forms : tuple of str
        The forms of the input, the cotangent, the tangent and the tensors among the arguments.
    mode, context : str
        The transformation and the context of the call.
    changed : str
        The tensor that is changed in place after it was read, or an empty string.
    """

    case: Case
    dtype: torch.dtype
    forms: tuple[str, str, str, str]
    mode: str
    context: str
    changed: str


def _of_regions(draw: Draw, name: str) -> Case:
    sizes = draw.integer(1, 2), draw.integer(1, 3), draw.integer(1, 8), draw.integer(1, 8)
    source = np.random.default_rng(draw.integer(0, 2**32))
    x = source.standard_normal(sizes).astype(np.float32)
    boxes = np.zeros((draw.integer(1, 3), 5), np.float32)
    boxes[:, 1:3] = source.random((len(boxes), 2)) * 4
    boxes[:, 3:] = boxes[:, 1:3] + source.random((len(boxes), 2)) * 5
    return Case(name, x, (), {"boxes": boxes, "output_size": draw.integer(1, 3)}, f"{x.shape}")


def drawn(seed: int) -> TensorCall:
    """The call of a seed."""
    draw = Seeded(seed)
    kind = draw.choice([*KINDS, *_OF_REGIONS])
    if kind in _OF_REGIONS:
        made = _of_regions(draw, kind)
    else:
        made = case(draw, kind, SMALL, values=FINITE[:6], dtypes=(np.float32,))
    mode, names = draw.choice([*MODES]), [*FORMS]
    changed = draw.choice(["", *_CHANGED.get(mode, ())])
    forms = [draw.choice(names) if draw.integer(0, 2) else "contiguous" for _ in range(4)]
    if changed:  # a tensor that may be written
        forms[changed == "gy"] = draw.choice(_WRITABLE)
    if mode in ("jvp", "hessian") and forms[0].startswith(("expanded", "zero")):
        forms[0] = "contiguous"  # PyTorch itself refuses strides of 0 in forward mode
    context = draw.choice(["none", "none", *CONTEXTS])
    return TensorCall(made, draw.choice(_DTYPES), tuple(forms), mode, context, changed)


def described(seed: int) -> str:
    """The call of a seed in one line."""
    made = drawn(seed)
    kwargs = {k: v.shape if isinstance(v, np.ndarray) else v for k, v in made.case.kwargs.items()}
    return (
        f"{made.mode} of {made.case.fun}(x, *{made.case.args}, **{kwargs}), x: {made.case.made} "
        f"{made.dtype}, forms of x, gy, tangent, arguments: {made.forms}, context: {made.context}, "
        f"changed: {made.changed or 'nothing'}"
    )


def _tensors(made: TensorCall) -> tuple[Tensor, dict[str, Tensor]]:
    """The input, and the tensors among the arguments."""
    x = torch.from_numpy(np.array(made.case.x, np.float32)).to(made.dtype)
    more = {
        k: torch.from_numpy(np.array(v))
        for k, v in made.case.kwargs.items()
        if isinstance(v, np.ndarray)
    }
    for name in ("_random_samples", "logits", "boxes"):
        if name in more:
            more[name] = more[name].to(made.dtype)
    return x, more


def _numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    source = np.random.default_rng(list(shape))
    return torch.from_numpy(source.integers(-4, 5, shape).astype(np.float32)).to(dtype)


def bits(found: Tensor | None) -> bytes:
    """Shape, dtype and elements of a result, all NaN alike; None is a gradient that is absent."""
    if found is None:
        return b"None"
    wide = plain(found)
    missing = torch.isnan(wide) if wide.is_floating_point() else None
    if missing is not None and missing.any():
        wide = wide.masked_fill(missing, torch.nan)
    whole = wide.view(-1).view(torch.uint8).numpy().tobytes() if wide.numel() else b""
    return f"{found.dtype}{tuple(found.shape)}".encode() + whole


def check(seed: int) -> bytes:
    """Make the call of a seed with the tensors as drawn, and with copies; what it results in.

    Raises
    ------
    AssertionError
        If the results differ, or a changed tensor has another result without an error.
    """
    made = drawn(seed)
    function, run = getattr(poolgrad, made.case.fun), MODES[made.mode]
    other = {k: v for k, v in made.case.kwargs.items() if not isinstance(v, np.ndarray)}
    x, more = _tensors(made)
    form_x, form_gy, form_v, form_more = (FORMS[name] for name in made.forms)
    x, more = form_x(x), {k: form_more(v) for k, v in more.items()}
    copies = {k: plain(v) for k, v in more.items()}

    def outcome(x: Tensor, more: dict[str, Tensor], held: bool) -> list[bytes]:
        def pool(a: Tensor) -> Tensor:
            return _first(function(a, *made.case.args, **more, **other))

        def change(name: str, tensor: Tensor) -> None:
            if held and name == made.changed:
                tensor.detach().fill_(3)

        try:
            with CONTEXTS[made.context]() if held else nullcontext():
                found = run(pool, x, gy if held else plain(gy), v if held else plain(v), change)
        except _ERRORS as error:
            return [type(error).__name__.encode()]
        return [*map(bits, found)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.no_grad():
                shape = function(plain(x), *made.case.args, **copies, **other).shape
        except _ERRORS:
            shape = torch.Size()
        gy, v = form_gy(_numbers(shape, made.dtype)), form_v(_numbers(x.shape, made.dtype))
        # Averages in another memory format may be rounded in another way.
        copy = plain(x) if x._is_zerotensor() else x.resolve_neg().clone()
        expected = outcome(copy, copies, held=False)
        found = outcome(x, more, held=True)
    if made.changed and found == [b"RuntimeError"]:
        return b"refused"
    assert found == expected, f"{found[-1][:60]!r} against {expected[-1][:60]!r}"
    return b"".join(found)
