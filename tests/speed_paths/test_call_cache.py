"""Repeated calls use the call cache and give the same results as first calls."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.autograd import forward_ad  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad import call_cache  # noqa: E402
from poolgrad.core import BoundCalls, TensorSpec  # noqa: E402
from poolgrad.torch.arrays import kind  # noqa: E402

X = np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype(np.float32)
NAMES = ("max_pool2d", "min_pool2d", "median_pool2d", "avg_pool2d", "adaptive_avg_pool2d")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [3, (3, 2)])
def test_the_second_call_gives_the_same(name: str, size: int | tuple[int, int]) -> None:
    pool = getattr(poolgrad, name)
    for x in (X, X.transpose(0, 1, 3, 2), np.asfortranarray(X), X.astype(">f4"), torch.tensor(X)):
        expected = getattr(poolgrad.reference, name)(np.asarray(x, np.float32), size)
        for _ in range(3):
            np.testing.assert_allclose(pool(x, size), expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(
                pool(x, size, channels_last=False), expected, rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize(
    ("name", "number"),
    [("lp_pool2d", {"norm_type": 3}), ("lp_pool2d", {"norm_type": 2.5}),
     ("log_mean_exp_pool2d", {"r": -2}), ("mixed_pool2d", {"alpha": 0.3})],
)  # fmt: skip
def test_a_number_beside_the_input_gives_what_a_tensor_gives(
    name: str, number: dict[str, float]
) -> None:
    pool, x = getattr(poolgrad, name), torch.tensor(X, dtype=torch.float64)
    whole = x.clone().requires_grad_()
    tensors = {k: torch.tensor(v, dtype=torch.float64) for k, v in number.items()}
    expected = pool(whole, kernel_size=3, **tensors)  # is not in the cache
    (gradient,) = torch.autograd.grad(expected.square().sum(), whole)
    for _ in range(3):
        again = x.clone().requires_grad_()
        y = pool(again, kernel_size=3, **number)
        assert torch.equal(y, expected)
        assert torch.equal(torch.autograd.grad(y.square().sum(), again)[0], gradient)
        assert torch.equal(pool(x, kernel_size=3, **number), expected)
        np.testing.assert_array_equal(pool(x.numpy(), kernel_size=3, **number), expected.detach())
    few = x[:1, :1, :6, :6].clone().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: pool(x, kernel_size=3, **number), (few,))


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_equal_seeds_draw_the_same_and_inputs_are_still_looked_at(kind: object) -> None:
    x, wrong = kind(abs(X)), kind(X)  # type: ignore[operator]
    first, *others = (poolgrad.stochastic_pool2d(x, 2, generator=3) for _ in range(3))
    for y in others:
        np.testing.assert_array_equal(y, first)
    for _ in range(2):
        with pytest.raises(ValueError, match="x must be finite"):
            poolgrad.stochastic_pool2d(wrong * np.nan, 2, generator=3)


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_calls_with_seeds_are_not_kept(kind: object, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []
    monkeypatch.setattr(call_cache.CallCache, "keep", lambda *entry: kept.append(entry))
    x = kind(abs(X[:, :, :7, :5]).copy())  # type: ignore[operator]
    for seed in range(3):
        poolgrad.stochastic_pool2d(x, 2, generator=seed)
    assert not kept
    poolgrad.lp_pool2d(x, 2.0, 2)
    assert len(kept) == 1


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_equal_arguments_of_another_type_are_still_refused(kind: object) -> None:
    x = kind(X)  # type: ignore[operator]
    for _ in range(2):
        poolgrad.max_pool2d(x, 1, 1, 0)
        poolgrad.max_pool2d(x, (1, 1), stride=(1, 1), padding=((0, 0), (0, 0)))
        for wrong in (1.0, True, (1.0, 1), (True, 1), ((1, 1), 1)):
            with pytest.raises(TypeError, match="kernel_size"):
                poolgrad.max_pool2d(x, wrong, 1, 0)
        with pytest.raises(TypeError, match="ceil_mode"):
            poolgrad.max_pool2d(x, 1, 1, 0, 1, 0)
        with pytest.raises(TypeError, match="ties"):
            poolgrad.max_pool2d(x, 1, ties=None)
        with pytest.raises((TypeError, ValueError), match="padding"):
            poolgrad.max_pool2d(x, 1, padding=((0.0, 0), (0, 0)))


def key_of(*args: object, **kwargs: object) -> object:
    return call_cache.LOOKUPS[type(args[0])].key(args, kwargs)


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_keys_tell_calls_apart(kind: object) -> None:
    x, double = kind(X), kind(X.astype(np.float64))  # type: ignore[operator]
    calls = [
        ((x, 2), {}), ((x, 2, 2), {}), ((x, 2), {"stride": 2}), ((x, 2), {"padding": 2}),
        ((x, True), {}), ((x, (2, 2)), {}), ((x, (2, True)), {}), ((x, 1), {}), ((x, (1, 2)), {}),
        ((x[:1], 2), {}), ((double, 2), {}), ((x[..., :5], 2), {}), ((x, None), {}),
        ((x[:, :, ::2], 2), {}), ((x[:, :, :, ::2], 2), {}), ((x, ()), {}), ((x,), {}),
        ((x, 2, None), {}), ((x, 2, "stride", 2), {}), ((x, "stride", 2), {}),
        ((x, ((1, 2), (1, 2))), {}), ((x, ((1, True), (1, 2))), {}), ((x, (1, 2, 1, 2)), {}),
        ((x, 2), {"stride": 2, "padding": 2}), ((x, 2, 2), {"padding": 2}),
        ((x, [2, 2]), {}), ((x, [2, True]), {}), ((x, [1, 2]), {}), ((x, []), {}), ((x, [[]]), {}),
        ((x, [(1, 2), (1, 2)]), {}), ((x, [[1, 2], [1, 2]]), {}), ((x, [1, 2, 1, 2]), {}),
        ((x, [[1, 2, 1, 2]]), {}), ((x, 2.0), {}), ((x, -2.0), {}), ((x, 0.0), {}), ((x, -0.0), {}),
        ((x, [2.0, 2]), {}),
    ]  # fmt: skip
    keys = [key_of(*args, **kwargs) for args, kwargs in calls]
    for (k, one), (m, other) in itertools.combinations(enumerate(keys), 2):
        assert one is not None
        assert one != other, (calls[k], calls[m])
    assert keys == [key_of(*args, **kwargs) for args, kwargs in calls]


def test_a_name_among_the_values_is_still_refused() -> None:
    poolgrad.max_pool2d(X, 2, padding=1)
    with pytest.raises(TypeError, match="stride"):
        poolgrad.max_pool2d(X, 2, "padding", 1)  # type: ignore[arg-type]


def test_other_objects_than_pythons_own_have_no_key() -> None:
    class Name(str):
        pass

    endless: list[object] = []
    endless.append(endless)
    for odd in (np.int64(2), [np.int64(2)], ((1, 2), {1, 2}), X, Name(), endless):
        assert key_of(X, odd) is None
    assert key_of(X, **{Name("stride"): 2}) is None
    assert key_of(X, *range(1000)) is None
    for odd in (X.view(type("Own", (np.ndarray,), {})), [1.0]):
        assert type(odd) not in call_cache.LOOKUPS
        assert call_cache.LOOKUPS[np.ndarray].key((odd, 2), {}) is None
    assert call_cache.LOOKUPS[np.ndarray].key((), {}) is None
    record = np.zeros(4, np.dtype([("a", "u1"), ("x", "f4")]))["x"]
    assert key_of(record, 2) is None


def test_the_number_of_threads_is_asked_for_each_time() -> None:
    before = poolgrad.get_num_threads()
    x = np.random.default_rng(1).standard_normal((8, 300, 300)).astype(np.float32)
    expected = poolgrad.max_pool2d(x, 3)
    try:
        for threads in (1, 3):
            poolgrad.set_num_threads(threads)
            np.testing.assert_array_equal(poolgrad.max_pool2d(x, 3), expected)
    finally:
        poolgrad.set_num_threads(before)


def test_no_more_than_so_many_are_kept() -> None:
    kept = call_cache.CallCache()
    for k in range(3 * call_cache._MAX_CALLS):
        kept.keep(k, str)
        assert len(kept) <= call_cache._MAX_CALLS


def test_out_is_written() -> None:
    out = np.zeros((2, 3, 3, 3), np.float32)
    for _ in range(2):
        expected = poolgrad.max_pool2d(X, 3)
        out[:] = 0
        assert poolgrad.max_pool2d(X, 3, out=out) is out
        np.testing.assert_array_equal(out, expected)


# The specs of tensors of this PyTorch, and of those before 2.10, which have no exchange functions.
KINDS = [kind(told) for told in {False, hasattr(torch.Tensor, "__dlpack_c_exchange_api__")}]


def odd_tensors() -> dict[str, torch.Tensor]:
    x = torch.tensor(X)
    escaped = []
    torch.func.grad(lambda a: (escaped.append(a), a.sum())[1])(x)
    return {
        "meta": x.to("meta"),
        "sparse": x.to_sparse(),
        "negative": torch._neg_view(x),
        "zero": torch._efficientzerotensor(2, 2),
        "quantized": torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        "nested": torch.nested.nested_tensor([x[0], x[1]]),
        "functional": torch._to_functional_tensor(x),
        "escaped": escaped[0],
        "parameter": torch.nn.Parameter(x),
        "subclass": x.as_subclass(type("Own", (torch.Tensor,), {})),
    }


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_odd_tensors_have_no_key(kind: TensorSpec, grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        for name, odd in odd_tensors().items():
            assert kind.key((odd, 2), {}) is None, name
            assert kind.parts(odd) is None, name
            assert not kind.have_parts((odd,), (None,)), name
            assert not kind.is_supported(odd), name


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors(kind: TensorSpec) -> None:
    x = torch.tensor(X)
    same = torch.zeros_like(x)
    leaf = x.clone().requires_grad_()
    others = [x.mT, x[1:], x[..., 1:], x.double(), x.int(), x.half(), x.bfloat16(), leaf]
    others += [torch.tensor(0.0), x.to(memory_format=torch.channels_last), x[None]]
    parts = [kind.parts(t) for t in (x, *others)]
    assert None not in parts
    assert len(set(parts)) == len(parts)
    assert kind.parts(same) == parts[0]
    assert kind.have_parts((same, x.mT), (parts[0], None))
    assert not any(kind.have_parts((t,), (parts[0],)) for t in others)
    assert not kind.have_parts((x,), ())
    assert all(kind.is_supported(t) for t in (x, *others))


def test_bound_calls_replace_their_placeholders() -> None:
    seen = []
    x, y, threads = object(), object(), object()
    call = (lambda *args: seen.append(args), (1, x, y, 2, x, threads))
    made = [(int, (number,), {}) for number in (1, 2, 3)]
    calls = BoundCalls((call, call), (x, y, threads), ((dict, (), {"made": 1}),), lambda: 3, 1)
    assert calls.run("given") == {"made": 1}
    assert seen == [(1, "given", {"made": 1}, 2, "given", 3)] * 2
    with pytest.raises(ValueError, match="number of arrays"):
        calls.run()
    with pytest.raises(ValueError, match="number of placeholders"):
        BoundCalls((), (threads,), made[:1], int, 1)
    for wrong in (0, 2):
        with pytest.raises(ValueError, match="number of results"):
            BoundCalls((), (y, threads), made[:1], int, wrong)
    assert BoundCalls((), (object(), x, y, threads), made, int, 2).run() == (1, 2)
    assert BoundCalls((), (object(), x, y, threads), made, int, 1).run() == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
def test_what_pytorch_watches_goes_the_long_way() -> None:
    x = torch.tensor(X)
    leaf = x.clone().requires_grad_()
    plain = key_of(x, 2)
    assert plain is not None
    with torch.no_grad():
        assert key_of(leaf, 2) not in (None, plain, key_of(x, 2))
    assert key_of(leaf, 2) not in (None, plain)
    seen = []
    torch.func.vmap(lambda a: seen.append(key_of(a, 2)) or a)(x)
    torch.func.grad(lambda a: seen.append(key_of(a, 2)) or a.sum())(x)
    torch.func.grad(lambda a: seen.append(key_of(x, 2)) or a.sum())(x)
    torch.func.functionalize(lambda a: seen.append(key_of(a, 2)) or a)(x)
    torch.jit.trace(lambda a: seen.append(key_of(a, 2)) or a, x, check_trace=False)
    with forward_ad.dual_level():
        seen.append(key_of(x, 2))
    with torch.utils._python_dispatch._disable_current_modes(), torch.device("cpu"):
        seen.append(key_of(x, 2))  # a mode of functions
    with FlopCounterMode(display=False):
        seen.append(key_of(x, 2))  # one of the dispatcher
    assert seen == [None] * 8


def test_gradients_after_a_cached_call() -> None:
    x = torch.tensor(X, requires_grad=True)
    with torch.no_grad():
        poolgrad.max_pool2d(x, 3)
    for _ in range(2):
        y = poolgrad.max_pool2d(x, 3)
        assert y.requires_grad
        (gx,) = torch.autograd.grad(y.sum(), x)
        assert int((gx != 0).sum()) == y.numel()


# One operator of each sort: routes, shares of ties, no residual, a nonlinear one; its arguments.
SORTS = {
    "max_pool2d": {"kernel_size": 3, "stride": 2},
    "min_pool2d": {"kernel_size": 2, "ties": "split"},
    "avg_pool2d": {"kernel_size": 3, "padding": 1},
    "soft_pool2d": {"kernel_size": 3},
    "global_max_pool": {},
}
by_sort = pytest.mark.parametrize("name", SORTS)


def twice(name: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same call without and with a bound call, which NumPy's bool prevents."""
    pool = getattr(poolgrad, name)
    last = np.False_
    return pool(x, **SORTS[name], channels_last=last), pool(x, **SORTS[name])


def leaf(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(X, dtype=dtype, requires_grad=True)


def test_a_recipe_takes_another_way() -> None:
    long, short = (y.grad_fn for y in twice("max_pool2d", torch.zeros(1, 5, 5, requires_grad=True)))
    assert long is not None
    assert short is not None
    assert long.name() == short.name()
    assert (hasattr(long, "steps"), hasattr(short, "steps")) == (False, True)


@by_sort
def test_gradients_of_a_cached_call(name: str) -> None:
    x = leaf()
    long, short = twice(name, x)
    assert torch.equal(long, short)
    some = torch.randn_like(long)
    wide = some.new_ones(()).expand_as(some)  # as the gradient of a sum is
    for gy in (some, wide, some.mT.contiguous().mT, torch._neg_view(-some)):
        expected, gx = (torch.autograd.grad(y, x, gy, retain_graph=True)[0] for y in (long, short))
        assert torch.equal(expected, gx)
        assert gx.stride() == expected.stride()


@by_sort
def test_further_derivatives_of_a_cached_call(name: str) -> None:
    x = leaf()
    long, short = twice(name, x)
    gy = torch.randn_like(long, requires_grad=True)
    found = []
    for y in (long, short):
        (gx,) = torch.autograd.grad(y, x, gy, create_graph=True)
        found.append(torch.autograd.grad(gx.square().sum(), (x, gy), allow_unused=True))
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@by_sort
def test_many_gradients_of_a_cached_call_at_once(name: str) -> None:
    x = leaf()
    long, short = twice(name, x)
    gys = torch.randn(4, *long.shape, dtype=long.dtype)
    expected, found = (
        torch.autograd.grad(y, x, gys, is_grads_batched=True, retain_graph=True)[0]
        for y in (long, short)
    )
    torch.testing.assert_close(found, expected)


@by_sort
def test_what_a_cached_call_saves_may_come_back_lying_otherwise(name: str) -> None:
    x = leaf()
    (expected,) = torch.autograd.grad(twice(name, x)[1].square().sum(), x)

    def moved(t: torch.Tensor) -> torch.Tensor:
        room = t.new_empty([2 * s for s in t.shape])
        return room[tuple(slice(None, None, 2) for _ in t.shape)].copy_(t)

    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, moved):
        y = twice(name, x)[1]
    assert bool(packed) == (name != "avg_pool2d")
    assert torch.equal(torch.autograd.grad(y.square().sum(), x)[0], expected)


def test_what_was_saved_and_then_changed_is_refused() -> None:
    x = leaf()
    y = twice("soft_pool2d", x * 1)[1]
    torch.autograd.grad(y.sum(), x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), x)
    moved = x * 1
    y = twice("soft_pool2d", moved)[1]
    moved.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), x)


def test_a_cached_call_keeps_no_input() -> None:
    x = leaf(torch.float32)
    pointer = torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage())
    twice("soft_pool2d", x)
    twice("max_pool2d", x)
    del x
    assert pointer.expired()
