"""Arrays that are changed between forward and backward: the same gradient, or an error.

A pullback of arrays is private. PyTorch's autograd raises an error if a tensor was changed
that a backward pass reads; a tensor that it does not read may be changed.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import poolgrad

SHAPE = (1, 2, 6, 6)
RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal(SHAPE)
INDICES = np.arange(72).reshape(SHAPE) % 144
BOXES = np.array([[0, 0.5, 0.5, 4, 5], [0, 1, 1, 3, 5]])
CALLS: dict[str, tuple[Any, ...]] = {
    "max_pool2d": (2,), "min_pool2d": (2,), "relu_max_pool2d": (2,), "median_pool2d": (3, 2),
    "avg_pool2d": (3, 2), "adaptive_max_pool2d": (4,), "adaptive_avg_pool2d": (4,),
    "global_max_pool": (), "global_avg_pool": (), "range_pool2d": (2,),
    "lp_pool2d": (3.0, 2), "log_mean_exp_pool2d": (2,), "soft_pool2d": (2,), "global_lp_pool": (),
    "stochastic_pool2d": (2,), "fractional_max_pool2d": (2, 3),
    "lip_pool2d": (LOGITS, 2), "max_unpool2d": (INDICES, 2),
    "roi_pool": (BOXES, 2), "roi_align": (BOXES, 2),
}  # fmt: skip
RANDOM = {"stochastic_pool2d": {"generator": 3}, "fractional_max_pool2d": {"generator": 3}}
LEARNED = [("lp_pool2d", (np.array([2.0, 3.0]), 2)), ("lp_pool2d", ([2.0, 3.0], 2))]
CASES = [*CALLS.items(), *LEARNED]
IDS = [f"{name}-{max(k + 1 - len(CALLS), 0)}" for k, (name, _) in enumerate(CASES)]


def _parameters(pullback: Any, g: Any) -> dict[str, Any]:
    """Gradients of learned arguments; regions of interest have none."""
    parameters = getattr(pullback, "parameters", lambda g: {})(g)
    return {name: np.asarray(value) for name, value in parameters.items()}


@pytest.mark.parametrize(("name", "args"), CASES, ids=IDS)
def test_pullbacks_of_numpy_are_private(name: str, args: tuple[Any, ...]) -> None:
    function: Any = getattr(poolgrad, name)
    for _ in range(2):  # the second call is cached
        x, *own = map(copy.copy, (LOGITS + 0.5, *args))
        y, pullback = poolgrad.vjp(function, x, *own, **RANDOM.get(name, {}))
        g = RNG.random(y.shape)
        expected, slopes = pullback(g), _parameters(pullback, g)
        for array in (x, y, *own):
            if isinstance(array, np.ndarray):
                array[...] = np.flip(array).copy()
            elif isinstance(array, list):
                array[:] = [1.0]
        for again in (pullback, pickle.loads(pickle.dumps(pullback))):
            np.testing.assert_array_equal(again(g), expected)
            for learned, value in _parameters(again, g).items():
                np.testing.assert_array_equal(value, slopes[learned], strict=True)


@pytest.mark.parametrize("library", ["numpy", "array_api_strict"])
@pytest.mark.parametrize(("name", "args"), CASES, ids=IDS)
def test_pullbacks_keep_no_array_of_the_caller(
    name: str, args: tuple[Any, ...], library: str
) -> None:
    xp = pytest.importorskip(library)
    arrays = [xp.asarray(a, copy=True) if isinstance(a, np.ndarray) else a
              for a in (LOGITS + 0.5, *args)]  # fmt: skip
    kept = [weakref.ref(a) for a in arrays if not isinstance(a, int | float | list)]
    y, pullback = poolgrad.vjp(getattr(poolgrad, name), *arrays, **RANDOM.get(name, {}))
    del arrays, y
    gc.collect()
    assert not [ref() for ref in kept if ref() is not None], pullback


def test_pullbacks_are_pickled_without_the_arguments_of_the_caller() -> None:
    class Unpicklable(np.random.Generator):
        def __reduce__(self) -> Any:
            raise TypeError

    for name in RANDOM:
        generator = Unpicklable(np.random.PCG64())
        _, pullback = poolgrad.vjp(
            getattr(poolgrad, name), LOGITS, *CALLS[name], generator=generator
        )
        pickle.dumps(pullback)
    x = np.ones((64, 64))
    indices = np.arange(x.size).reshape(x.shape)
    _, pullback = poolgrad.vjp(poolgrad.max_unpool2d, x, indices, 2)
    assert len(pickle.dumps(pullback)) < 1.5 * indices.nbytes


def test_routes_and_indices_cannot_be_made_writeable() -> None:
    for name in ("max_pool2d", "roi_pool"):
        for routes in ("bytes", "packed"):
            options = {"routes": routes} if name == "max_pool2d" else {}
            _, pullback = poolgrad.vjp(getattr(poolgrad, name), LOGITS, *CALLS[name], **options)
            found: Any = pullback.indices if name == "roi_pool" else pullback.routes
            with pytest.raises(ValueError, match="WRITEABLE"):
                found.flags.writeable = True


@pytest.mark.parametrize(("name", "args"), CASES, ids=IDS)
def test_pullbacks_of_other_libraries_are_private(name: str, args: tuple[Any, ...]) -> None:
    xp = pytest.importorskip("array_api_strict")
    given = (LOGITS + 0.5, *args)
    x, *own = (
        xp.asarray(a, copy=True) if isinstance(a, np.ndarray) else copy.copy(a) for a in given
    )
    y, pullback = poolgrad.vjp(getattr(poolgrad, name), x, *own, **RANDOM.get(name, {}))
    g = xp.asarray(RNG.random(y.shape))
    expected, slopes = np.asarray(pullback(g)), _parameters(pullback, g)
    for array in (x, y, *own):
        if isinstance(array, list):
            array[:] = [1.0]
        elif not isinstance(array, int | float):
            array[...] = xp.flip(array)
    np.testing.assert_array_equal(np.asarray(pullback(g)), expected)
    for learned, value in _parameters(pullback, g).items():
        np.testing.assert_array_equal(value, slopes[learned])


@pytest.mark.parametrize("kind", ["Dask", "xarray", "NumPy arguments"])
@pytest.mark.parametrize(("name", "args"), CASES, ids=IDS)
def test_lazy_results_are_private(name: str, args: tuple[Any, ...], kind: str) -> None:
    """``x[...] = value`` replaces the graph of a Dask array, and may change its chunks."""
    da = pytest.importorskip("dask.array", reason="Dask is not installed")
    if name.startswith(("stochastic", "fractional", "roi")):
        pytest.skip("not for Dask arrays")

    def lazy(a: Any) -> Any:
        chunked = da.from_array(a, chunks=(1, 2, 4, 4))
        xarray = pytest.importorskip("xarray") if kind == "xarray" else None
        return chunked if xarray is None else xarray.DataArray(chunked)

    def own(a: Any) -> Any:
        if not isinstance(a, np.ndarray):
            return copy.copy(a)
        return np.array(a) if a.ndim == 1 or kind == "NumPy arguments" else lazy(a)

    function: Any = getattr(poolgrad, name)
    given = [lazy(LOGITS + 0.5), *map(own, args)]
    y, pullback = poolgrad.vjp(function, *given)
    g = RNG.random(y.shape)
    lazy_results = [function(*given), pullback(g), *pullback.parameters(g).values()]
    expected = [np.asarray(a) for a in lazy_results]
    for array in (y, *given):
        if isinstance(array, np.ndarray):
            array[...] = 1
        elif isinstance(array, list):
            array[:] = [1.0]
        elif hasattr(array, "shape"):
            inside = getattr(array, "data", array) if kind == "xarray" else array
            inside[da.ones(array.shape, chunks=3, dtype=bool)] = 1
    for again in (pullback, pickle.loads(pickle.dumps(pullback))):
        lazy_results[1:] = [again(g), *again.parameters(g).values()]
        for found, value in zip(lazy_results, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(found), value)


torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn import functional as F  # noqa: E402

from poolgrad.tools.check.layers import LAYERS, LayerCase, _seeded, prepared  # noqa: E402
from poolgrad.torch import accelerate, convert  # noqa: E402


def _tensors(args: tuple[Any, ...]) -> list[Any]:
    return [torch.tensor(a) if isinstance(a, np.ndarray) else a for a in args]


def _accelerated(x: Any) -> Any:
    with accelerate():
        return F.max_pool2d(x, 2)


def _fused(x: Any) -> Any:
    net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    assert convert(net, fuse=True).fused
    return net(x)


PATHS: dict[str, Callable[..., Any]] = {"accelerated": _accelerated, "fused": _fused}
TORCH = {f"{name}-{k}": (getattr(poolgrad, name), args, RANDOM.get(name, {}))
         for k, (name, args) in enumerate(CASES)}  # fmt: skip
TORCH |= {name: (call, (), {}) for name, call in PATHS.items()}


def _gradient(call: Any, args: Any, options: Any, changed: int | None) -> Any:
    leaf = torch.tensor(LOGITS + 0.5, requires_grad=True)
    x = leaf * 1
    given = [x, *_tensors(args)]
    y = call(*given, **options)
    seed = torch.linspace(1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    arrays = [*(t for t in given if isinstance(t, torch.Tensor)), y]
    z = (y * 1 * seed).sum()
    if changed is not None:
        if changed >= len(arrays):
            return None
        with torch.no_grad():
            arrays[changed].copy_(arrays[changed].flip(-1))
    return torch.autograd.grad(z, leaf)[0]


@pytest.mark.parametrize("case", TORCH)
def test_autograd_notices_changes_of_what_it_reads(case: str) -> None:
    call, args, options = TORCH[case]
    expected = _gradient(call, args, options, None)
    for _ in range(2):  # the second call is cached
        for changed in range(3):
            try:
                gradient = _gradient(call, args, options, changed)
            except RuntimeError as error:
                if "modified by an inplace operation" not in str(error):
                    raise
                continue
            if gradient is not None:
                torch.testing.assert_close(gradient, expected, rtol=0, atol=0)
    if "lazy" in case or case == "max_pool2d-0":  # as in PyTorch, whose ReLU reads its output
        assert torch.equal(_gradient(call, args, options, 0), expected)


def _layer_gradients(
    case: LayerCase, compiled: bool, changed: int | None
) -> tuple[int, list[Any] | None]:
    """Return the number of tensors of a call, and its gradients; None if autograd raises an error.

    The tensors are the input, the output, the parameters and the other arguments. The one of number
    `changed` is changed in place before the backward pass.
    """
    layer, numbers = prepared(case)
    leaf = torch.tensor(numbers, requires_grad=True)
    x, others = leaf * 1, case.others()
    with _seeded():
        y = (torch.compile(layer, backend="aot_eager") if compiled else layer)(x, *others)
    seed = torch.linspace(1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    z, parameters = (y * 1 * seed).sum(), [p for p in layer.parameters() if p.requires_grad]
    tensors = [x, y, *parameters, *(t for t in others if isinstance(t, torch.Tensor))]
    if changed is not None:
        with torch.no_grad():
            tensors[changed].mul_(-2).sub_(1)
    try:
        gradients = torch.autograd.grad(z, [leaf, *parameters], allow_unused=True)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return len(tensors), None
    return len(tensors), [g for g in gradients if g is not None]


# PyTorch's compiler reads `grad` of every input, and warns where it is no leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_notice_changes_of_what_they_read(name: str, compiled: bool) -> None:
    for case in LAYERS[name][: 1 if compiled else None]:
        torch.compiler.reset()
        count, expected = _layer_gradients(case, compiled, None)
        assert expected is not None
        for changed in range(count):
            _, gradients = _layer_gradients(case, compiled, changed)
            if gradients is not None:
                torch.testing.assert_close(gradients, expected, rtol=0, atol=0)
