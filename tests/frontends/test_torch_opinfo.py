"""PyTorch's own sample inputs for its poolings, computed by our kernels."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import profiles
import pytest
from hypothesis import settings

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("expecttest", reason="what PyTorch's samples need is not installed")
with warnings.catch_warnings(action="ignore"):
    from torch.testing._internal import common_methods_invocations as methods
    from torch.testing._internal import common_modules
profiles.load()  # PyTorch has loaded a profile of its own, of few examples

from poolgrad.torch import accelerate, convert  # noqa: E402
from poolgrad.torch.base import SUBCLASSES  # noqa: E402

OPERATORS = [op for op in methods.op_db if "pool" in op.name and "unpool" not in op.name]
OPERATORS += [op for op in methods.op_db if op.name == "nn.functional.local_response_norm"]
MODULES = [info for info in common_modules.module_db if info.module_cls in SUBCLASSES]


def flat(y: Any) -> list[torch.Tensor]:
    return [y] if isinstance(y, torch.Tensor) else [t for part in y for t in flat(part)]


def all_of(call: Any, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs, gradients, second gradients and tangents."""
    torch.manual_seed(0)
    outputs = flat(call())
    real = [y for y in outputs if y.requires_grad]
    made = [y.detach() for y in outputs]
    if not real:
        return made
    gradients = torch.autograd.grad([(y * y).sum() for y in real], leaves, create_graph=True)
    made += [g.detach() for g in gradients]
    again = [g.sum() for g in gradients if g.requires_grad]
    if again:
        made += torch.autograd.grad(again, leaves, allow_unused=True, materialize_grads=True)
    return made


def close(a: torch.Tensor, b: torch.Tensor, name: str) -> None:
    """But for the order of sums, and PyTorch's powers of negative numbers, which are none."""
    near = 1e-4 if a.dtype == torch.float32 else 1e-10
    torch.testing.assert_close(
        a, b, rtol=near, atol=near, equal_nan=True, msg=lambda text: f"{name}: {text}"
    )


def test_properties_keep_their_number_of_examples() -> None:
    of_pytorch = {settings.get_profile(name).max_examples for name in ("dev", "pytorch_ci")}
    assert settings.default.max_examples not in of_pytorch


MANY = 50  # samples; PyTorch has hundreds for its maxima: all combinations of their arguments


def samples(
    op: Any, dtype: torch.dtype, every: int
) -> Iterator[tuple[str, Any, list[torch.Tensor]]]:
    made = list(enumerate(op.sample_inputs("cpu", dtype, requires_grad=True)))
    for number, sample in made if len(made) < MANY else made[::every]:
        x = sample.input
        call = lambda s=sample: op(s.input, *s.args, **s.kwargs)  # noqa: E731
        yield f"{op.name} {number}: {tuple(x.shape)}", call, [x]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
@pytest.mark.parametrize(
    ("dtype", "every"),
    [
        (torch.float32, 7),
        pytest.param(torch.float32, 1, marks=pytest.mark.nightly),
        pytest.param(torch.float64, 1, marks=pytest.mark.slow),
    ],
)
def test_functions_give_what_pytorchs_give(op: Any, dtype: torch.dtype, every: int) -> None:
    count = 0
    for name, call, leaves in samples(op, dtype, every):
        theirs = all_of(call, leaves)
        with accelerate():
            ours = all_of(call, leaves)
        assert len(ours) == len(theirs), name
        for a, b in zip(ours, theirs, strict=True):
            close(a, b, name)
        count += 1
    assert count > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "op", [op for op in OPERATORS if op.error_inputs_func], ids=lambda op: op.name
)
def test_functions_refuse_what_pytorchs_refuse(op: Any) -> None:
    count = 0
    for error in op.error_inputs("cpu"):
        sample = error.sample_input
        with accelerate(), pytest.raises(error.error_type, match=error.error_regex):
            op(sample.input, *sample.args, **sample.kwargs)
        count += 1
    assert count > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", MODULES, ids=lambda info: info.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_modules_give_what_pytorchs_give(info: Any, dtype: torch.dtype) -> None:
    inputs = info.module_inputs_func(info, "cpu", dtype, True, training=True)
    converted = 0
    for number, given in enumerate(inputs):
        if given.forward_input is None:
            continue
        made = given.constructor_input
        module = info.module_cls(*made.args, **made.kwargs)
        call = lambda m=module, g=given.forward_input: m(*g.args, **g.kwargs)  # noqa: E731
        leaves = [t for t in given.forward_input.args if getattr(t, "requires_grad", False)]
        try:
            theirs = all_of(call, leaves)
        except RuntimeError:  # samples that PyTorch has for other devices
            continue
        converted += len(convert(module).replaced)
        for a, b in zip(all_of(call, leaves), theirs, strict=True):
            close(a, b, f"{info.name} {number}")
    if not converted:
        pytest.skip("PyTorch has no samples for it that are of this dtype, or that we take")
