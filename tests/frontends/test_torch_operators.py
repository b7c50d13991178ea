"""Every operator in PyTorch: derivatives of every order, transformations, graphs and dtypes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frontend_calls import as_tensor
from robustness.calls import LEARNED, example

import poolgrad
from poolgrad import reference
from poolgrad.functional import FUNCTIONS
from poolgrad.operators import OPERATORS
from poolgrad.windows import adaptive, fixed, flatten

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# PyTorch's forward mode still imports torch.jit.script, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

NAMES = [*FUNCTIONS, *(f"expected_pool{d}d" for d in (1, 2, 3))]
ARGUMENT = dict(LEARNED.values())  # of those that are learned
TWO = [n for n in NAMES if n.endswith("2d") or n.startswith("global")]
each_name = pytest.mark.parametrize("name", NAMES)
each_in_2d = pytest.mark.parametrize("name", TWO)
Call = tuple[Callable[..., Any], tuple[Any, ...]]


def call(name: str, channels_last: bool = False, *, each: bool = True, learn: bool = True) -> Call:
    """A function of tensors, and tensors: distinct numbers, and what is learned."""
    public = name.replace("expected", "stochastic")
    shape, kwargs = example(public, channels_last)
    if public != name:
        kwargs |= {"training": False}
    kwargs = {k: as_tensor(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    count = int(np.prod(shape))
    x = torch.from_numpy(np.random.default_rng(count).permutation(count).reshape(shape) / 10.0)
    x = (x - count / 20 - 0.03) * min(1, 60 / count)  # no zeros, no ties, from -3 to 3
    argument = next((k for k in kwargs if k in ARGUMENT), None)
    function = FUNCTIONS[public]
    if argument is None or not learn:
        return lambda x: function(x, **kwargs), (x,)
    theta = kwargs.pop(argument)
    theta = theta if each else theta[:1].reshape(())
    return lambda x, theta: function(x, **{argument: theta}, **kwargs), (x, theta)


LEARNING = [n for n in TWO if call(n)[1][1:]]


def tracked(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(t.detach().clone().requires_grad_() for t in inputs)


# Derivatives


@each_name
@pytest.mark.parametrize("channels_last", [False, True])
def test_derivatives_of_every_order(name: str, channels_last: bool) -> None:
    pool, inputs = call(name, channels_last)
    inputs = tracked(inputs)
    assert torch.autograd.gradcheck(
        pool, inputs, check_forward_ad=True, check_batched_grad=True, fast_mode=True
    )
    assert torch.autograd.gradgradcheck(
        pool, inputs, check_fwd_over_rev=True, check_rev_over_rev=True, fast_mode=True
    )


@pytest.mark.parametrize("name", [n for n in NAMES if n.endswith("1d")])
def test_every_number_of_the_jacobians(name: str) -> None:
    """Not a random product of them; slow, so in one dimension only."""
    pool, inputs = call(name)
    inputs = tracked(inputs)
    assert torch.autograd.gradcheck(
        pool,
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert torch.autograd.gradgradcheck(pool, inputs, check_batched_grad=True)


@pytest.mark.parametrize("name", LEARNING)
def test_one_learned_number(name: str) -> None:
    pool, inputs = call(name, each=False)
    inputs = tracked(inputs)
    assert torch.autograd.gradcheck(pool, inputs, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(pool, inputs, fast_mode=True)
    x, theta = inputs
    for given in ((x.detach(), theta), (x, theta.detach())):  # only one of the two
        assert torch.autograd.gradcheck(pool, given, check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(pool, given, fast_mode=True)


def test_the_third_derivative() -> None:
    """Of soft pooling by autograd; of the textbook's gradient, by second differences."""
    x = np.array([[0.7, -1.3, 2.2, 0.4, 1.9]])
    direction = np.array([[1.0, -2.0, 0.5, 1.5, -1.0]])
    leaf, t = as_tensor(x).requires_grad_(), as_tensor(direction)
    total = poolgrad.soft_pool1d(leaf, 3, 1).sum()
    for _ in range(2):
        (g,) = torch.autograd.grad(total, leaf, create_graph=True)
        total = (g * t).sum()
    (third,) = torch.autograd.grad(total, leaf)

    def gradient(z: np.ndarray) -> np.ndarray:
        y, pullback = reference.vjp(reference.soft_pool1d, z, 3, 1)
        return pullback(np.ones_like(y))

    step = 1e-4
    near = [gradient(x + s * step * direction) for s in (1, 0, -1)]
    expected = (near[0] - 2 * near[1] + near[2]) / step**2
    # rounding 1e-16 / step**2, and step**2 of the fifth derivative
    np.testing.assert_allclose(third.numpy(), expected, atol=2e-6)
    assert np.abs(expected).max() > 0.1


# torch.func


def same(got: Any, expected: Any) -> None:
    """float64; several windows may be added up in another order."""
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def loss(pool: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: (pool(*inputs) ** 3).sum()


def scattered(name: str) -> bool:
    """Whether an argument beside the input belongs to every single plane."""
    return name.startswith(("fractional", "max_unpool", "lip"))


@each_in_2d
def test_vmap(name: str) -> None:
    pool, inputs = call(name)
    gradient = torch.func.grad(loss(pool), argnums=tuple(range(len(inputs))))
    batch = tuple(torch.stack([t, t * 1.25, t * 0.5]) for t in inputs)
    if name.startswith("stochastic"):  # the batch is one more axis of one draw
        same(torch.func.vmap(pool)(*batch), pool(*batch))
        same(torch.func.vmap(gradient)(*batch), gradient(*batch))
        return
    same(
        torch.func.vmap(pool)(*batch), torch.stack([pool(*one) for one in zip(*batch, strict=True)])
    )
    parts = [gradient(*one) for one in zip(*batch, strict=True)]
    same(torch.func.vmap(gradient)(*batch), tuple(map(torch.stack, zip(*parts, strict=True))))


@pytest.mark.parametrize("dims", [(0, None), (None, 0)])
@pytest.mark.parametrize("name", LEARNING)
def test_vmap_over_one_of_two(name: str, dims: tuple[int | None, ...]) -> None:
    """Many inputs for the same parameter, and many parameters for the same input."""
    pool, inputs = call(name)
    batch = [torch.stack([t, t * 1.25, t * 0.5]) for t in inputs]
    given = [t if d is None else b for t, b, d in zip(inputs, batch, dims, strict=True)]
    gradient = torch.func.grad(loss(pool), argnums=(0, 1))
    for fun in (pool, gradient):
        each = [[t] * 3 if d is None else t for t, d in zip(given, dims, strict=True)]
        alone = [fun(*one) for one in zip(*each, strict=True)]
        got = torch.func.vmap(fun, in_dims=dims)(*given)
        tree = torch.utils._pytree.tree_map(lambda *parts: torch.stack(parts), *alone)
        same(got, tree)


@each_in_2d
def test_jacobians(name: str) -> None:
    pool, inputs = call(name)
    if not scattered(name):
        inputs = (inputs[0][:1, :, :4, :4], *inputs[1:])
    numbers = tuple(range(len(inputs)))
    expected = torch.autograd.functional.jacobian(pool, inputs)  # row by row
    for method in (torch.func.jacrev, torch.func.jacfwd):
        got = method(pool, argnums=numbers)(*inputs)
        for g, e in zip(got, expected, strict=True):
            same(g, e)


@pytest.mark.parametrize("name", [n for n in TWO if not scattered(n)])
def test_hessians(name: str) -> None:
    pool, inputs = call(name)
    inputs = (inputs[0][:1, :, :3, :3], *inputs[1:])
    numbers = tuple(range(len(inputs)))
    expected = torch.autograd.functional.hessian(loss(pool), inputs)
    got = torch.func.hessian(loss(pool), argnums=numbers)(*inputs)
    for row, wanted in zip(got, expected, strict=True):
        for g, e in zip(row, wanted, strict=True):
            same(g, e)


# Graphs


def everything(x: Any, p: Any, samples: Any) -> Any:
    y, indices = poolgrad.min_pool2d(x, 3, 2, 1, return_indices=True)
    total = poolgrad.max_unpool2d(y, indices, 3, 2, 1, output_size=x.shape[-2:]).sum()
    for part in (
        poolgrad.median_pool2d(x, 3, 2, 1, ties="split"),
        poolgrad.lp_pool2d(x, p, 3, 2),
        poolgrad.log_mean_exp_pool2d(x, 3, r=p),
        poolgrad.soft_pool2d(x, 3, 1, 1),
        poolgrad.stochastic_pool2d(x, 2, training=False),
        poolgrad.mixed_pool2d(x, 3, 2, 1, alpha=p - 1),
        poolgrad.fractional_max_pool2d(x, 2, 3, _random_samples=samples),
        poolgrad.global_lp_pool(x, norm_type=p, mean=True),
        poolgrad.global_log_mean_exp_pool(x, r=p),
    ):
        total = total + (part * part).sum()
    return total


def test_compiled_without_a_break() -> None:
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    samples = torch.rand(2, 3, 2, generator=generator)
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    results = []
    for fun in (compiled, everything):
        x = torch.randn(2, 3, 7, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
        p = torch.tensor([1.5, 2.0, 3.25], requires_grad=True)
        y = fun(x, p, samples)
        results.append((y.detach(), *torch.autograd.grad(y, (x, p))))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)  # float32
    torch._dynamo.reset()


def test_a_draw_is_compiled_without_a_break() -> None:
    torch._dynamo.reset()
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for seed in (None, 5):
        draw = torch.compile(
            lambda x, seed=seed: poolgrad.stochastic_pool2d(x, 2, generator=seed),
            fullgraph=True,
            backend="aot_eager",
        )
        assert set(draw(x).flatten().tolist()) < set(x.flatten().tolist())
    assert torch.equal(draw(x), poolgrad.stochastic_pool2d(x, 2, generator=5))
    torch._dynamo.reset()


OPS = torch.ops.poolgrad
CHECKED = {  # what an operator takes beside the input, and its options
    "relu_max": ((), ("zero", "packed")),
    "min": ((), ("split", "bytes")),
    "median": ((), ("first", "packed")),
    "stochastic": ((torch.tensor(7),), ("bytes",)),
    "fractional_max": ((torch.tensor([0.25, 0.5] * 6),), ("zero", "bytes")),
    "max_unpool": ((torch.arange(120).reshape(2, 3, 4, 5) % 20,), ()),
    "lp": ((torch.tensor([1.5, 2.0, 3.0]),), (True,)),
    "log_mean_exp": ((torch.tensor(1.5),), ()),
    "soft": ((), ()),
    "expected": ((), ()),
    "mixed": ((torch.tensor(0.5),), (False,)),
}


@pytest.mark.parametrize("name", CHECKED)
def test_opcheck(name: str) -> None:
    poolgrad.max_pool2d(torch.ones(1, 2, 2), 2)  # the operators exist from the first tensor on
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(2)) + 0.01
    check_op(name, x, *CHECKED[name])


@pytest.mark.parametrize("name", ["lp", "log_mean_exp", "mixed"])
def test_opcheck_of_one_number_in_a_vector(name: str) -> None:
    x = torch.ones(2, 3, 4, 5)
    check_op(name, x, (torch.tensor([1.5]),), CHECKED[name][1])


def check_op(name: str, x: Any, given: tuple[Any, ...], options: tuple[Any, ...]) -> None:
    """Forward and vjp, by all that PyTorch can check."""
    operator = OPERATORS[name]
    window = {"fractional_max": FRACTIONAL, "max_unpool": flatten(adaptive(2, (4, 5)))}.get(
        name, flatten(fixed(2, 2))
    )
    op = getattr(OPS, name)
    leaves = [t.clone().requires_grad_() if t.is_floating_point() else t for t in given]
    tracking = (True,) * operator.learned
    args = (x.clone().requires_grad_(), *leaves, window, False, *options, *tracking)
    assert set(torch.library.opcheck(op.default, args).values()) == {"SUCCESS"}
    made = op(x, *given, window, False, *options, *tracking)
    y, *residual = made if isinstance(made, list | tuple) else (made,)
    held = (*((x,) * operator.nonlinear), *given, *residual)
    where = (window, list(x.shape), False, -1, *options)
    vjp = getattr(OPS, f"{name}_vjp").default
    checked = torch.library.opcheck(vjp, (torch.ones_like(y), *held, *where))
    assert set(checked.values()) == {"SUCCESS"}


def _fractional_window() -> list[int]:
    describe = poolgrad.fractional_max_pool2d.describe
    request = describe(torch.ones(2, 3, 4, 5), 2, 2)
    return flatten(request.spec)


FRACTIONAL = _fractional_window()


def test_every_new_operator_is_checked() -> None:
    """max and avg: see test_torch_ops; composed operators have no operator of PyTorch."""
    own = {name for name, operator in OPERATORS.items() if not operator.composed}
    assert CHECKED.keys() | {"max", "avg"} == own


# Dtypes, and what learned arguments may be


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name", ["lp_pool2d", "log_mean_exp_pool2d", "mixed_pool2d", "soft_pool2d"]
)
def test_autocast(name: str, dtype: torch.dtype) -> None:
    """Pooling keeps what comes in: the small dtype after a convolution, float32 elsewhere."""
    pool, inputs = call(name)
    x, *theta = (t.float().requires_grad_() for t in inputs)
    with torch.autocast("cpu", dtype=dtype):
        small = torch.nn.functional.conv2d(x, torch.eye(3)[:, :, None, None])
        assert small.dtype == dtype
        y, plain = pool(small, *theta), pool(x, *theta)
    assert (y.dtype, plain.dtype) == (dtype, torch.float32)
    assert torch.equal(y, pool(small.detach(), *theta))
    gradients = torch.autograd.grad(y.float().sum(), (x, *theta))
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)
    exact = torch.autograd.grad(plain.sum(), (x, *theta))
    for got, expected in zip(gradients, exact, strict=True):
        scale = float(expected.abs().max())  # x was rounded, and so was the gradient
        torch.testing.assert_close(got, expected, rtol=0.1, atol=0.1 * scale)


WHOLE = (
    torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
    torch.bool,
)  # fmt: skip


@pytest.mark.parametrize("dtype", WHOLE)
@each_in_2d
def test_whole_numbers(name: str, dtype: torch.dtype) -> None:
    pool, (x, *theta) = call(name)
    whole = (x * 10).abs().to(dtype)
    operator = re.sub(r"^(adaptive|global)_|_pool(\dd)?$|\dd$", "", name)
    if not OPERATORS[operator].integers:
        with pytest.raises(
            TypeError, match=f"^x must be of dtype .* for the operator {operator}, got"
        ):
            pool(whole, *theta)
        return
    y = pool(whole, *theta)
    assert not y.requires_grad
    expected = pool(whole.double(), *theta)
    if not operator.startswith("fractional"):  # its windows are placed in float32 and in float64
        torch.testing.assert_close(y.double(), expected, rtol=1e-6, atol=0)  # float32


@pytest.mark.parametrize(
    "name", ["lp_pool2d", "log_mean_exp_pool2d", "mixed_pool2d", "global_lp_pool"]
)
def test_forms_of_a_learned_argument(name: str) -> None:
    pool, (x, _) = call(name)
    forms = [
        0.75,
        [0.75] * 3,
        torch.tensor(0.75),
        torch.tensor([0.75] * 3),
        torch.nn.Parameter(torch.tensor(0.75)),
        torch.tensor(0.75, dtype=torch.float64),
        torch.tensor(0.75, dtype=torch.float16),
        torch.tensor([0.75], dtype=torch.bfloat16).expand(3),
    ]
    expected = pool(x, 0.75)
    for form in forms:
        leaf = x.clone().requires_grad_()
        y = pool(leaf, form)
        same(y.detach(), expected)
        y.sum().backward()
        assert leaf.grad.isfinite().all()
        if isinstance(form, torch.nn.Parameter):
            assert (form.grad.shape, form.grad.dtype) == (form.shape, form.dtype)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        theta = torch.tensor([0.75] * 3, dtype=dtype, requires_grad=True)
        (gradient,) = torch.autograd.grad(pool(x, theta).sum(), theta)
        assert (gradient.dtype, gradient.shape) == (dtype, (3,))
        wanted = torch.tensor([0.75] * 3, dtype=torch.float64, requires_grad=True)
        (exact,) = torch.autograd.grad(pool(x, wanted).sum(), wanted)
        ulp = torch.finfo(dtype).eps
        torch.testing.assert_close(gradient.double(), exact, rtol=2 * ulp, atol=1e-12)


@pytest.mark.parametrize("name", ["lp_pool2d", "log_mean_exp_pool2d", "mixed_pool2d"])
def test_integers_as_learned_arguments(name: str) -> None:
    pool, (x, _) = call(name)
    same(pool(x, torch.tensor(2)), pool(x, 2.0))
    same(pool(x, 2), pool(x, 2.0))


def test_a_generator_of_the_cpu_draws_for_other_devices() -> None:
    x = torch.empty(1, 2, 8, 8, device="meta")
    for pool in (
        lambda g: poolgrad.fractional_max_pool2d(x, 2, 4, generator=g),
        lambda g: poolgrad.stochastic_pool2d(x, 2, generator=g),
    ):
        generator = torch.Generator().manual_seed(1)
        before = generator.get_state()
        assert pool(generator).shape == (1, 2, 4, 4)
        assert not torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("name", ["lp", "log_mean_exp", "soft", "mixed"])
def test_nested_forward_mode_is_an_error_for_nonlinear_poolings(name: str) -> None:
    args = (2.0, 2) if name == "lp" else (2,)
    x = torch.rand(1, 1, 4, 4)

    def pool(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = getattr(poolgrad, f"{name}_pool2d")(x, *args)
        return y

    with pytest.raises(NotImplementedError, match="use reverse mode for one of them"):
        torch.func.jacfwd(torch.func.jacfwd(pool))(x)
