"""A front end whose import is interrupted, by Ctrl-C or by a signal handler that pools.

A profile function is called at every call of a Python function, so it interrupts an import at
exact places, as a signal handler does at random ones.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import assert_runs

from poolgrad.private import Private

ARRAYS = {
    "torch": "import torch; x = torch.ones((1, 8, 8), requires_grad=True)",
    "jax": "import jax.numpy; x = jax.numpy.ones((1, 8, 8))",
    "dask": "import dask.array; x = dask.array.ones((1, 8, 8), chunks=4)",
    "xarray": "import xarray; x = xarray.DataArray(np.ones((1, 8, 8)))",
    "array_api_strict": "import array_api_strict; x = array_api_strict.ones((1, 8, 8))",
}
EACH = pytest.mark.parametrize("library", [name for name in ARRAYS if find_spec(name)])

# Interrupts the first pooling again and again, each time `step` calls of functions later.
INTERRUPTED = """
import sys
import numpy as np
import poolgrad
{array}
limit, calls = 1, 0

def profile(frame, event, arg):
    global calls
    name, spec = frame.f_globals.get("__name__") or "", frame.f_globals.get("__spec__")
    is_import = name.startswith("poolgrad.") and getattr(spec, "_initializing", False)
    if event == "call" and (is_import or name == "torch.library"):
        calls += 1
        if calls >= limit:
            sys.setprofile(None)
            interrupt()

def interrupt():
    {action}

interruptions = 0
while True:
    calls = 0
    sys.setprofile(profile)
    try:
        {first}
        if calls < limit:
            break
    except (KeyboardInterrupt, RuntimeError) as error:
        assert "Interrupt" in repr(error) or "this call interrupts the import" in str(error), error
        interruptions += 1
    finally:
        sys.setprofile(None)
    limit += {step}
y = poolgrad.max_pool2d(x, 2)
y = y.detach() if hasattr(y, "detach") else y
assert interruptions and np.asarray(y).tolist() == [[[1] * 4] * 4]
{after}
"""

AFTER = {
    "torch": "torch.func.vmap(torch.func.grad(lambda t: poolgrad.lp_pool2d(t, 2, 3).sum()))(x)\n"
    "poolgrad.roi_align(x[None], torch.tensor([[0, 0, 0, 4, 4.0]]), 2).sum().backward()\n"
    "import poolgrad.torch\n"
    "assert poolgrad.torch.MaxPool2d(2)(x).shape == (1, 4, 4)\n",
    "jax": "import jax\njax.jit(jax.grad(lambda a: poolgrad.lp_pool2d(a, 2, 3).sum()))(x)",
}


def interrupted(library: str, action: str, first: str = "poolgrad.max_pool2d(x, 2)") -> None:
    step = 250 if library == "torch" else 2
    code = {"array": ARRAYS[library], "after": AFTER.get(library, ""), "first": first}
    assert_runs(INTERRUPTED.format(**code, action=action, step=step))


@EACH
def test_ctrl_c(library: str) -> None:
    interrupted(library, "raise KeyboardInterrupt")


@EACH
def test_a_handler_that_pools(library: str) -> None:
    interrupted(library, "poolgrad.max_pool2d(x, 2)")


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_ctrl_c_in_an_import_statement() -> None:
    interrupted("torch", "raise KeyboardInterrupt", "import poolgrad.torch")


@EACH
def test_a_handler_that_catches_the_error(library: str) -> None:
    """The call that it interrupts goes on."""
    limit = {"xarray": 1, "dask": 4}.get(library, 8)  # small modules call few functions
    code = (
        INTERRUPTED.partition("interruptions = 0")[0]
        + f"limit = {limit}\nsys.setprofile(profile)\n"
        + "y = poolgrad.max_pool2d(x, 2)\nassert refused"
    )
    action = (
        "try: poolgrad.max_pool2d(x, 2)\n"
        "    except RuntimeError as error: globals().update(refused=str(error))"
    )
    assert_runs(code.format(array=ARRAYS[library], action=action))


@EACH
def test_threads_that_pool_first(library: str) -> None:
    code = (
        "import sys, numpy as np, poolgrad\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from threading import Barrier\n"
        f"{ARRAYS[library]}\n"
        "sys.setswitchinterval(1e-5)\n"
        "together = Barrier(4)\n"
        "def pool(_): together.wait(); return poolgrad.max_pool2d(x, 2).shape\n"
        "with ThreadPoolExecutor(4) as threads:\n"
        "    assert [*threads.map(pool, range(4))] == [(1, 4, 4)] * 4\n"
    )
    assert_runs(code)


@EACH
def test_an_import_by_the_garbage_collector(library: str) -> None:
    """As another thread's import, it changes `sys.modules` while that is read."""
    code = (
        "import gc, sys, types, numpy as np, poolgrad\n"
        "def load(*_): name = f'loaded{len(sys.modules)}'; sys.modules[name] = sys\n"
        f"{ARRAYS[library]}\n"
        "gc.callbacks.append(load)\n"
        "gc.set_threshold(1)\n"
        "try: poolgrad.front_ends._wait_for('poolgrad.portable')\n"
        "finally: gc.set_threshold(1000)\n"
        "assert poolgrad.max_pool2d(x, 2).shape == (1, 4, 4)\n"
    )
    assert_runs(code)


def test_a_symbol_of_a_module_that_is_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half.py").write_text(
        "from poolgrad.private import Private\nPrivate('numpy', '1').symbol('half.absent')\n"
    )
    (tmp_path / "failing.py").write_text("raise AttributeError('of a signal handler')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"^half has no absent yet, as it is being imported$"):
        Private("numpy", "1").symbol("half.absent")
    with pytest.raises(AttributeError, match="of a signal handler"):
        Private("numpy", "1").symbol("failing.absent")
