"""``torch.func.vmap`` over the operators: a batch is one more leading axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from poolgrad.interface import Operator


def lead(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Return the tensor with its batch axis, or a new one, first."""
    if dim is None:
        return tensor.unsqueeze(0).expand(size, *tensor.shape)
    return tensor.movedim(dim, 0)


def one_by_one(op: Any, size: int, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    """Apply the operator to each element of the batch and stack the results.

    `in_dims` are those of the tensors, which come first in `args`. The shapes of the results of an
    empty batch are those of an element on the device ``meta``.
    """
    given, rest = list(zip(args, in_dims, strict=False)), args[len(in_dims) :]
    if size:
        elements = [[t if d is None else t.select(d, n) for t, d in given] for n in range(size)]
    else:
        shapes = [[n for a, n in enumerate(t.shape) if a != d] for t, d in given]
        elements = [[t.new_empty(s, device="meta") for s, t in zip(shapes, args, strict=False)]]
    results = [op(*tensors, *rest) for tensors in elements]

    def stacked(parts: Any) -> Tensor:
        made = torch.stack(tuple(parts))
        return made if size else torch.empty_like(made[:0], device=args[0].device)

    if isinstance(results[0], tuple):
        return tuple(map(stacked, zip(*results, strict=True)))
    return stacked(results)


def rule(operator: Operator, suffix: str, tensors: int) -> Callable[..., Any]:
    """Return the batching rule of an operator, its vjp or its jvp.

    Parameters
    ----------
    operator : Operator
        An entry of the table.
    suffix : str
        The suffix of the name in PyTorch.
    tensors : int
        Number of arguments that are tensors; they come first.
    """
    operand = 1 + bool(operator.nonlinear and suffix)  # the index of the extra operand
    # The indices of the other arguments that depend on the number of axes
    shape, inner = {"_vjp": (1, 3), "_jvp": (-1, 2)}.get(suffix, (-1, -1))
    # The gradient of a learned parameter must not be summed over the batch.
    shared = operator.operand.is_shared
    apart = suffix == "_vjp" and operator.learned

    def batched(op: Any, info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        size, dims = info.batch_size, in_dims[:tensors]
        if apart or (shared and dims[operand] is not None):
            out = one_by_one(op, size, dims, args)
        else:
            moved = [
                t if shared and k == operand else lead(t, d, size)
                for k, (t, d) in enumerate(zip(args[:tensors], dims, strict=True))
            ]
            rest = list(args[tensors:])
            if shape >= 0:
                rest[shape] = [size, *rest[shape]]
            if inner >= 0 and rest[inner] >= 0:
                rest[inner] += 1
            out = op(*moved, *rest)
            if not suffix and operator.nonlinear:
                # An array of the residual that is not read is empty for each element of the batch.
                out = tuple(t.new_empty(size, 0) if t.shape == (0,) else t for t in out)
        return (out, (0,) * len(out)) if isinstance(out, tuple) else (out, 0)

    return batched
