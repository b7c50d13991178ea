"""`accelerate`: PyTorch's functions use our kernels, and PyTorch is unchanged afterwards."""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from processes import assert_runs

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad.torch import accelerate  # noqa: E402

SIZES = {1: (17,), 2: (17, 19), 3: (9, 8, 7)}


def samples(d: int) -> torch.Tensor:
    return torch.rand(2, 5, d, generator=torch.Generator().manual_seed(2))


def cases() -> dict[str, tuple[int, Callable[[torch.Tensor], Any]]]:
    """Functions of every kind, with how many axes they pool."""
    made: dict[str, tuple[int, Callable[[torch.Tensor], Any]]] = {
        "averages divided by five": (2, lambda x: F.avg_pool2d(x, 3, 2, 1, True, False, 5)),
        "local response norm": (2, lambda x: F.local_response_norm(x, 5)),
    }
    for d in (1, 2, 3):
        name = {n: getattr(F, f"{n}_pool{d}d") for n in ("max", "avg", "lp", "adaptive_max")}
        name["adaptive_avg"] = getattr(F, f"adaptive_avg_pool{d}d")
        made |= {
            f"max {d}": (d, lambda x, f=name["max"]: f(x, 3, 2, 1, ceil_mode=True)),
            f"max dilated {d}": (d, lambda x, f=name["max"]: f(x, [2], padding=1, dilation=2)),
            f"max indices {d}": (d, lambda x, f=name["max"]: f(x, 2, return_indices=True)),
            f"avg {d}": (d, lambda x, f=name["avg"]: f(x, 3, 1, 1)),
            f"avg real {d}": (d, lambda x, f=name["avg"]: f(x, 3, 2, 1, True, False)),
            f"adaptive max {d}": (d, lambda x, f=name["adaptive_max"]: f(x, 4)),
            f"adaptive avg {d}": (d, lambda x, f=name["adaptive_avg"]: f(x, 4)),
            f"adaptive avg one {d}": (d, lambda x, f=name["adaptive_avg"]: f(x, 1)),
            f"lp {d}": (d, lambda x, f=name["lp"]: f(x, 2.0, 3)),
        }
    for d in (2, 3):
        f = getattr(F, f"fractional_max_pool{d}d")
        made[f"fractional {d}"] = (
            d,
            lambda x, f=f, d=d: f(x, 2, 3, return_indices=True, _random_samples=samples(d)),
        )
    return made


CASES = cases()


def image(d: int, last: bool = False, dtype: Any = torch.float32) -> torch.Tensor:
    x = torch.randn(2, 5, *SIZES[d], generator=torch.Generator().manual_seed(1)).to(dtype)
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    if last and d > 1:
        x = x.contiguous(memory_format=formats[d])
    return x.requires_grad_()


def all_of(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> list[torch.Tensor]:
    """What it gives with a gradient, the gradient, and what it gives without."""
    made = []
    y = function(x)
    outputs = y if isinstance(y, tuple) else (y,)
    made += [*outputs, *torch.autograd.grad(outputs[0].square().sum(), x)]
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            y = function(x)
        made += y if isinstance(y, tuple) else (y,)
    return made


def kernels() -> str:
    """Who pools: the dispatcher's tables."""
    names = ("max_pool2d", "max_pool2d_with_indices", "avg_pool3d", "_adaptive_avg_pool2d")
    dump = torch._C._dispatch_dump_table
    return "".join(dump(f"aten::{name}") for name in names)


@pytest.fixture(autouse=True)
def nothing_stays() -> Any:
    before = kernels()
    yield
    assert kernels() == before


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_results_indices_and_gradients_are_pytorchs(name: str, last: bool) -> None:
    d, function = CASES[name]
    x = image(d, last)
    theirs = all_of(function, x)
    with accelerate():
        ours = all_of(function, x)
    exact = "max" in name or "fractional" in name
    for a, b in zip(theirs, ours, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int64", "uint8"])
def test_every_dtype_gives_the_same(dtype: str) -> None:
    x = torch.arange(2 * 8 * 8).reshape(1, 2, 8, 8).to(getattr(torch, dtype))
    functions = [lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)]
    if x.is_floating_point() or dtype == "int64":
        functions.append(lambda x: (F.avg_pool2d(x, 2),))
    for function in functions:
        theirs = function(x)
        with accelerate():
            ours = function(x)
        for a, b in zip(theirs, ours, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_without_a_batch(d: int) -> None:
    x = image(d)[0]
    for function in (getattr(F, f"max_pool{d}d"), getattr(F, f"avg_pool{d}d")):
        theirs = function(x, 2)
        with accelerate():
            torch.testing.assert_close(function(x, 2), theirs)


def test_modules_and_scripted_functions_pool_so_too() -> None:
    x = image(2)
    with warnings.catch_warnings(action="ignore"):
        scripted = torch.jit.script(nn.MaxPool2d(2))
    with accelerate():
        for pool in (nn.MaxPool2d(2), nn.AvgPool2d(2), scripted):
            assert "poolgrad" in type(pool(x).grad_fn).__name__ + pool(x).grad_fn.name()


def test_what_is_kept_for_backward_is_a_byte_an_output() -> None:
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    x = image(2)
    with accelerate(), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y = F.max_pool2d(x, 2)
    assert sum(t.nbytes for t in kept) == y.numel()


BAD: dict[str, Callable[[], Any]] = {
    "padding": lambda: F.max_pool2d(torch.ones(1, 1, 4, 4), 3, 1, 2),
    "padding of an average": lambda: F.avg_pool2d(torch.ones(1, 1, 4, 4), 3, 1, 2),
    "negative padding": lambda: F.max_pool2d(torch.ones(1, 1, 4, 4), 3, 1, -1),
    "kernel": lambda: F.max_pool2d(torch.ones(1, 1, 4, 4), 0),
    "three kernels": lambda: F.max_pool2d(torch.ones(1, 1, 4, 4), (1, 2, 3)),
    "stride": lambda: F.avg_pool2d(torch.ones(1, 1, 4, 4), 2, 0),
    "dilation": lambda: F.max_pool3d(torch.ones(1, 4, 4, 4), 2, dilation=0),
    "axes": lambda: F.max_pool2d(torch.ones(4, 4), 2),
    "more axes": lambda: F.avg_pool2d(torch.ones(1, 1, 1, 4, 4), 2),
    "too small": lambda: F.max_pool2d(torch.ones(1, 1, 4, 4), 9),
    "no channels' rows": lambda: F.max_pool2d(torch.ones(1, 1, 0, 4), 2),
    "divisor": lambda: F.avg_pool2d(torch.ones(1, 1, 4, 4), 2, divisor_override=0),
    "output": lambda: F.adaptive_max_pool2d(torch.ones(1, 4, 4), (-1, 2)),
    "one number of bins": lambda: torch._C._nn.adaptive_max_pool2d(torch.ones(1, 4, 4), [2]),
    "no tensor": lambda: F.max_pool2d([[1.0]], 2),
    "padding and dilation": lambda: F.max_pool2d(torch.ones(1, 1, 16, 16), 2, 1, 2, 9),
    "padding and dilation of one axis": lambda: F.max_pool1d(torch.ones(1, 1, 16), 3, 1, 2, 3),
    "smaller than a window": lambda: F.avg_pool3d(torch.ones(1, 1, 4, 4, 4), 5, 1, 2),
    "samples of float64": lambda: _fractional(torch.full((1, 1, 2), 0.5, dtype=torch.float64)),
    "samples of float16": lambda: _fractional(torch.full((1, 1, 2), 0.5, dtype=torch.float16)),
    "learned samples": lambda: _fractional(torch.full((1, 1, 2), 0.5, requires_grad=True)),
    "samples of another shape": lambda: _fractional(torch.ones(1, 2, 2)),
}


def _fractional(samples: torch.Tensor) -> Any:
    x = torch.ones(1, 1, 6, 6)
    return F.fractional_max_pool2d(x, 2, output_size=3, _random_samples=samples)


@pytest.mark.parametrize("name", BAD)
def test_errors_are_pytorchs(name: str) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        BAD[name]()
    with accelerate(), pytest.raises(type(theirs.value)) as ours:
        BAD[name]()
    assert type(ours.value) is type(theirs.value)
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own use of it
def test_what_is_transformed_or_compiled_is_pytorchs() -> None:
    x = image(2).detach()[:1, :2, :6, :6]

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(F.max_pool2d(x, 2), 2).square().sum()

    def everything() -> list[torch.Tensor]:
        func = torch.func
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        leaf = x.clone().requires_grad_()
        compiled(leaf).backward()
        return [
            func.grad(loss)(x), func.vmap(loss)(x[None]), func.jvp(loss, (x,), (x,))[1],
            func.hessian(loss)(x), leaf.grad, torch.autograd.functional.hessian(loss, x),
        ]  # fmt: skip

    theirs = everything()
    torch.compiler.reset()
    with accelerate():
        ours = everything()
    torch.compiler.reset()
    for a, b in zip(theirs, ours, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["max_pool2d", "adaptive_max_pool2d"])
def test_our_functions_do_not_read_indices_again(name: str) -> None:
    """The gradient stays right where indices are changed in place before the backward pass."""
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(getattr(F, name)(x, 2).sum(), x)
    for _ in range(2):
        y, indices = getattr(poolgrad, name)(x, 2, return_indices=True)
        indices.fill_(-1)
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], expected)


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "indices": lambda indices: indices.add_(1),
    "a part of them": lambda indices: indices[0].zero_(),
    "a detached view": lambda indices: indices.detach().view(-1).add_(1),
}


WITH_INDICES = [(f, d) for f in ("max", "adaptive_max", "fractional_max") for d in (1, 2, 3)]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("fun", "d"), [c for c in WITH_INDICES if c != ("fractional_max", 1)])
def test_indices_that_were_changed_are_pytorchs_error(fun: str, d: int, change: str) -> None:
    """Ours does not read them; but what raises without `accelerate` raises under it."""
    size = {"output_size": 2} if fun == "fractional_max" else {}

    def said() -> str:
        x = torch.randn(2, 3, *[8] * d, requires_grad=True)
        y, indices = getattr(F, f"{fun}_pool{d}d")(x, 2, return_indices=True, **size)
        torch.autograd.grad(y.sum(), x, retain_graph=True)  # nothing is changed yet
        CHANGES[change](indices)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            torch.autograd.grad(y.sum(), x)
        return str(error.value).partition(" Hint:")[0]

    theirs = said()
    with accelerate():
        assert said() == theirs


def test_indices_that_nobody_keeps_are_freed() -> None:
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    with accelerate():
        y, indices = F.max_pool2d(x, 2, return_indices=True)
    left = weakref.ref(indices)
    del indices
    assert left() is None
    y.sum().backward()


def test_derivatives_of_any_order() -> None:
    x = image(2, dtype=torch.float64).detach()[:1, :1, :6, :6].requires_grad_()
    with accelerate():
        for function in (F.max_pool2d, F.avg_pool2d):
            assert torch.autograd.gradcheck(lambda x, f=function: f(x, 3, 2, 1), (x,))
            assert torch.autograd.gradgradcheck(lambda x, f=function: f(x, 3, 2, 1), (x,))


# On and off


def ours() -> bool:
    x = torch.ones(1, 1, 2, 2, requires_grad=True)
    return "poolgrad" in F.max_pool2d(x, 2).grad_fn.name()


def test_blocks_may_be_nested() -> None:
    with accelerate():
        with accelerate():
            assert ours()
        assert ours()
    assert not ours()


def test_called_it_holds_until_it_is_stopped() -> None:
    held = accelerate()
    assert ours()
    with accelerate():
        held.stop()
        held.stop()
        assert ours()
    assert not ours()


def test_a_function_may_be_decorated() -> None:
    @accelerate()
    def pool() -> bool:
        """Pool."""
        return ours()

    assert pool.__doc__ == "Pool."
    assert not ours()
    assert pool()
    assert not ours()


def test_an_exception_leaves_pytorch_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError), accelerate():
        raise ZeroDivisionError
    assert not ours()


def test_it_can_be_turned_on_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        # The function `accelerate` has the name of its module.
        patch.setattr(sys.modules["poolgrad.torch.accelerate"], "_registered", interrupted)
        with pytest.raises(KeyboardInterrupt):
            accelerate()
    with accelerate():
        assert ours()
    assert not ours()


def test_threads_may_turn_it_on_and_off() -> None:
    wrong: list[object] = []
    everybody = threading.Barrier(4)

    def work() -> None:
        for _ in range(10):
            everybody.wait()
            with accelerate():
                if not ours():
                    wrong.append("PyTorch's")
            everybody.wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not ours()


def test_a_signal_handler_may_turn_it_on_while_it_is_turned_on() -> None:
    assert_runs("""
import faulthandler, signal, sys, torch
from torch.nn import functional as F
from poolgrad.torch import accelerate

faulthandler.dump_traceback_later(30, exit=True)
module, handled = sys.modules["poolgrad.torch.accelerate"], []
registered, x = module._registered, torch.rand(1, 1, 4, 4, requires_grad=True)

def handler(*_):
    with accelerate():
        handled.append(F.max_pool2d(x, 2))

def interrupted():
    signal.raise_signal(signal.SIGINT)
    return registered()

signal.signal(signal.SIGINT, handler)
module._registered = interrupted
theirs = F.max_pool2d(x, 2).grad_fn.name()
with accelerate():
    assert F.max_pool2d(x, 2).grad_fn.name() != theirs
assert handled and F.max_pool2d(x, 2).grad_fn.name() == theirs
""")


@pytest.mark.parametrize("error", [TypeError, ValueError])
def test_a_fault_of_a_kernel_is_shown(error: type[Exception], monkeypatch: Any) -> None:
    def fails(*args: Any) -> None:
        raise error("a fault")

    from poolgrad.torch.function import FRONT_END

    x = torch.rand(1, 2, 6, 6)
    monkeypatch.setattr(FRONT_END, "forward", fails)
    monkeypatch.setattr(FRONT_END, "bound_call", lambda request: None)
    with accelerate(), pytest.raises(error, match="a fault"):
        F.max_pool2d(x, (2, 3), 4)  # arguments of no other test, which might have cached the call
    with accelerate(), pytest.raises(RuntimeError, match="zero"):  # PyTorch's own error
        F.max_pool2d(x, 0)


def test_it_says_nothing_and_a_new_process_knows_nothing_of_it() -> None:
    code = """
import torch, os
from torch.nn import functional as F
from poolgrad.torch import accelerate
x = torch.ones(1, 1, 2, 2, requires_grad=True)
print(F.max_pool2d(x, 2).grad_fn.name())
accelerate()
print(F.max_pool2d(x, 2).grad_fn.name(), flush=True)
os.kill(os.getpid(), 9) if os.environ.get("KILLED") else None
"""
    said = "MaxPool2DWithIndicesBackward0\npoolgrad::maxBackward\n"
    with pytest.raises(AssertionError, match="ended with -9"):
        assert_runs(code, KILLED="1")
    assert assert_runs(code) == said


def test_an_interrupted_start_leaves_pytorchs_kernels(monkeypatch: Any) -> None:
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    theirs = F.max_pool2d(x, 2).grad_fn.name()
    look_up, calls = torch.library.get_kernel, []

    def interrupted(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == most:
            raise KeyboardInterrupt
        return look_up(*args)

    most = 0
    with monkeypatch.context() as patched:
        patched.setattr(torch.library, "get_kernel", interrupted)
        accelerate().stop()
    most = len(calls)  # the last of them is interrupted
    for start in (accelerate, accelerate()(lambda: None)):
        calls.clear()
        with monkeypatch.context() as patched:
            patched.setattr(torch.library, "get_kernel", interrupted)
            with pytest.raises(KeyboardInterrupt) as held:
                start()
        assert held  # the traceback is alive
        assert F.max_pool2d(x, 2).grad_fn.name() == theirs
        with accelerate():
            assert F.max_pool2d(x, 2).grad_fn.name() != theirs
            assert F.max_pool2d(torch.ones(1, 1, 4, 4, dtype=torch.int32), 2).sum() == 4
        assert F.max_pool2d(x, 2).grad_fn.name() == theirs
