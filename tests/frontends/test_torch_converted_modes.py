"""Converted modules in PyTorch's special modes: tracing, scripting, export, quantisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from poolgrad.torch import accelerate, convert  # noqa: E402

X = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0))


def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, backend="eager", **how)


def dual(pool: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(pool(forward_ad.make_dual(x, x))).tangent


func = torch.func
MODES: dict[str, Callable[[nn.Module], Any]] = {
    "compiled jvp": lambda m: compiled(lambda t: func.jvp(m, (t,), (t,))[1], fullgraph=True)(X),
    "compiled dual": lambda m: compiled(lambda t: dual(m, t))(X),
    "compiled grad": lambda m: compiled(func.grad(lambda t: m(t).square().sum()))(X),
    "compiled vmap": lambda m: compiled(func.vmap(m), fullgraph=True)(X[None]),
    "functionalize": lambda m: func.functionalize(m)(X),
    "jvp of jvp": lambda m: func.jvp(
        lambda t: func.jvp(m, (t,), (torch.ones_like(t),))[1], (X,), (X,)
    )[1],
    "jacfwd of jacfwd": lambda m: func.jacfwd(func.jacfwd(lambda t: m(t).pow(3).sum()))(X),
    "by its name": lambda m: m(input=X),
    "exported by its name": lambda m: torch.export.export(
        m, (X,), dynamic_shapes={"input": {1: torch.export.Dim("c", min=2)}}
    ).module()(X[:, :2]),
}
POOLS: dict[str, Callable[[], nn.Module]] = {
    "max": lambda: nn.MaxPool2d(3, 2, 1),
    "avg": lambda: nn.AvgPool2d(2),
    "lp": lambda: nn.LPPool2d(2, 2),
    "adaptive": lambda: nn.AdaptiveMaxPool2d(2),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", POOLS)
def test_transformations_nested_and_compiled(name: str, mode: str) -> None:
    pool = POOLS[name]()
    theirs = MODES[mode](pool)
    convert(pool)
    torch.testing.assert_close(MODES[mode](pool), theirs)


def test_our_own_modules_refuse_what_they_would_get_wrong() -> None:
    import poolgrad

    def once(t: torch.Tensor) -> torch.Tensor:
        return func.jvp(lambda s: poolgrad.lp_pool2d(s, 2.0, 2), (t,), (t,))[1]

    with pytest.raises(NotImplementedError, match="does not support nested forward mode"):
        func.jvp(once, (X,), (X,))


CAST: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "MaxPool2d": (lambda: nn.MaxPool2d(2), 2),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), 3),
    "AvgPool3d": (lambda: nn.AvgPool3d(2), 3),
    "AdaptiveAvgPool3d": (lambda: nn.AdaptiveAvgPool3d(2), 3),
    "AdaptiveMaxPool3d": (lambda: nn.AdaptiveMaxPool3d(2), 3),
    "LPPool3d": (lambda: nn.LPPool3d(2, 2), 3),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, 2), 2),
    "FractionalMaxPool3d": (lambda: nn.FractionalMaxPool3d(2, 2), 3),
}


@pytest.mark.parametrize("name", CAST)
def test_autocast_gives_the_dtype_that_pytorch_gives(name: str) -> None:
    make, dims = CAST[name]
    pool, x = make(), torch.randn(1, 1, *[5] * dims).bfloat16()

    def cast() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return pool(x).dtype

    theirs = cast()
    convert(pool)
    assert cast() == theirs
    with accelerate():
        assert cast() == theirs


REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "padding": (lambda: nn.MaxPool2d(3, 1, 2), (X,)),
    "padding of an average": (lambda: nn.AvgPool2d(1, 1, 1), (X,)),
    "too few axes": (lambda: nn.MaxPool2d(2), (X[0, 0],)),
    "too many axes": (lambda: nn.AvgPool2d(2), (X[None],)),
    "no channels": (lambda: nn.MaxPool2d(2), (torch.ones(2, 0, 9, 11),)),
    "too small": (lambda: nn.MaxPool2d(9), (X,)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_refuses_is_refused_in_its_words(name: str) -> None:
    make, given = REFUSED[name]
    pool = make()
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        pool(*given)
    convert(pool)
    with pytest.raises(type(theirs.value)) as ours:
        pool(*given)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_draws_are_compiled(dynamic: bool) -> None:
    pool = nn.FractionalMaxPool2d(2, output_size=3)
    convert(pool)
    assert compiled(pool, dynamic=dynamic)(X).shape == (1, 2, 3, 3)


def test_arguments_that_change_afterwards() -> None:
    pool = nn.LPPool2d(2, 2)
    convert(pool)
    pool.norm_type = 3
    torch.testing.assert_close(pool(X), nn.LPPool2d(3, 2)(X), equal_nan=True)
    pool.norm_type, pool.ceil_mode, pool.kernel_size = 2, True, 4
    pool.stride = 4
    torch.testing.assert_close(pool(X), nn.LPPool2d(2, 4, ceil_mode=True)(X))


def test_odd_modules_are_left() -> None:
    own = nn.MaxPool2d(2)
    own.ties = "mine"
    for pool in (own, nn.LPPool2d("2", 3)):  # type: ignore[arg-type]
        before = dict(vars(pool))
        report = convert(pool)
        assert not report.replaced
        assert len(report.left) == 1
        assert vars(pool) == before


def test_reports_name_decorated_calls_and_nothing_else() -> None:
    class Net(nn.Module):
        @torch.no_grad()
        def forward(self, x: torch.Tensor) -> Any:
            return F.max_pool2d_with_indices(x, 2)

        @staticmethod
        def more(x: torch.Tensor) -> torch.Tensor:
            return F.avg_pool2d(x, 2)

    assert convert(Net()).calls[0].reason == "avg_pool2d, max_pool2d_with_indices"
    assert str(convert(nn.ReLU())) == "0 replaced"


def test_accelerate_objects_may_be_used_again() -> None:
    x = X.clone().requires_grad_()
    held = accelerate()
    for _ in range(2):
        with held:
            assert "poolgrad" in F.max_pool2d(x, 2).grad_fn.name()
        assert "poolgrad" not in F.max_pool2d(x, 2).grad_fn.name()


def test_accelerate_decorates_no_generators() -> None:
    def generator() -> Any:
        yield 1

    async def coroutine() -> None:
        pass

    for function in (generator, coroutine, 3):
        with pytest.raises(TypeError, match="accelerate\\(\\) cannot decorate"):
            accelerate()(function)  # type: ignore[arg-type]
    assert "poolgrad" not in F.max_pool2d(X.clone().requires_grad_(), 2).grad_fn.name()
