"""``torch.func.vmap`` over the operators: a batch is one more leading axis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poolgrad.interface import Operator


def _lead(tensor: Tensor, dim: int | None, size: int) -> Tensor:
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


def batch(operator: Operator, ops: dict[str, Any], kept: int, library: Any) -> None:
    """Register the batching rules of an operator, its vjp and its jvp.

    Parameters
    ----------
    operator : Operator
        An entry of the table.
    ops : dict
        Its operators in PyTorch, by the suffixes of their names.
    kept : int
        Number of tensors of the residual.
    library : torch.library.Library
        The library that defines the operators.
    """
    operands, nonlinear = operator.operand.count, int(operator.nonlinear)
    held = 1 + nonlinear + operands + kept
    _batch_one(operator, ops, "", 1 + operands, 1, {}, library)
    where = {"shape": 1, "inner": 3}
    _batch_one(operator, ops, "_vjp", held, 1 + nonlinear, where, library)
    if "_jvp" in ops:
        _batch_one(operator, ops, "_jvp", held, 1, {"inner": 2}, library)


def _batch_one(
    operator: Operator,
    ops: dict[str, Any],
    suffix: str,
    tensors: int,
    operand: int,
    at: dict[str, int],
    library: Any,
) -> None:
    """Register the batching rule of one of these operators.

    The first `tensors` arguments are tensors, the extra operand has index `operand`, and `at` lists
    the other arguments that depend on the number of axes.
    """
    op = ops[suffix]
    # The gradient of a learned parameter must not be summed over the batch.
    shared = operator.operand.is_shared
    apart = suffix == "_vjp" and operator.learned

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        size, dims = info.batch_size, in_dims[:tensors]
        if apart or (shared and dims[operand] is not None):
            out = one_by_one(op, size, dims, args)
        else:
            moved = [
                t if shared and k == operand else _lead(t, d, size)
                for k, (t, d) in enumerate(zip(args[:tensors], dims, strict=True))
            ]
            rest = list(args[tensors:])
            if "shape" in at:
                rest[at["shape"]] = [size, *rest[at["shape"]]]
            if "inner" in at and rest[at["inner"]] >= 0:
                rest[at["inner"]] += 1
            out = op(*moved, *rest)
            if not suffix and operator.nonlinear:
                # An array of the residual that is not read is empty for each element of the batch.
                out = tuple(t.new_empty(size, 0) if t.shape == (0,) else t for t in out)
        return (out, (0,) * len(out)) if isinstance(out, tuple) else (out, 0)

    torch.library.register_vmap(op, rule, lib=library)
