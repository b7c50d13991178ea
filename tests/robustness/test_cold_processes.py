"""Every documented feature as the first thing that a fresh process does with poolgrad.

A process that has pooled before hides defects of the first call: what is imported, registered and
cached then. Each row is a program of its own, which checks a value or a gradient against the
textbook's: the gradient of the sum of squared maxima of 2x2 windows.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import assert_runs

# No two inputs are alike, so each window has one maximum; all are integers, so sums are exact.
SETUP = """
import numpy as np
X = np.random.default_rng(0).permutation(384).reshape(2, 3, 8, 8).astype(np.float32)
maxima = X.reshape(2, 3, 4, 2, 4, 2).max((3, 5))
gradients = 2 * X * (X == maxima.repeat(2, -1).repeat(2, -2))
def check(found, expected=gradients):
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(found), expected, 1e-6)
    print("checked")
"""
TORCH = """
import warnings  # PyTorch's own, on importing and running its compiler and its exporters
warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=FutureWarning)
import torch
from torch import nn
from torch.nn import functional as F
import poolgrad
x = torch.tensor(X)
def gradient(pool, x=x):
    leaf = x.clone().requires_grad_()
    pool(leaf).square().sum().backward()
    return leaf.grad
def function(x):
    return poolgrad.max_pool2d(x, 2)
def loss(x):
    return function(x).square().sum()
def converted(*modules, **how):
    from poolgrad.torch import convert
    network = nn.Sequential(*modules or (nn.ReLU(), nn.MaxPool2d(2)), nn.Identity())
    assert convert(network, **how).replaced
    return network
"""
JAX = """
import jax, jax.numpy as jnp, poolgrad
x = jnp.asarray(X)
def function(x):
    return poolgrad.max_pool2d(x, 2)
def loss(x):
    return (function(x) ** 2).sum()
"""

POOLS = {
    "function": "pool = function",
    "module": "import poolgrad.torch; pool = poolgrad.torch.MaxPool2d(2)",
    "converted": "pool = converted()",
    "accelerate": "from poolgrad.torch import accelerate; accelerate()\n"
    "pool = lambda x: F.max_pool2d(x, 2)",
}
COMPILED = {
    "default": "",
    "reduce-overhead": "mode='reduce-overhead'",
    "max-autotune": "mode='max-autotune'",
    "dynamic": "dynamic=True",
    "fullgraph": "fullgraph=True",
}

ROWS: dict[str, str] = {}
for _name, _how in COMPILED.items():
    for _pool, _code in POOLS.items():
        ROWS[f"torch compile {_name} {_pool}"] = (
            f"{_code}\ncheck(gradient(torch.compile(pool, {_how})))"
        )
ROWS |= {
    "torch compile default fused": "check(gradient(torch.compile(converted(fuse=True))))",
    "torch compile fullgraph, two converted pools": """
network = converted(nn.MaxPool2d(2), nn.MaxPool2d(2))
largest = X.reshape(2, 3, 2, 4, 2, 4).max((3, 5)).repeat(4, -1).repeat(4, -2)
check(gradient(torch.compile(network, fullgraph=True)), 2 * X * (X == largest))
""",
    # Exporters
    "torch export function": """
class Pool(nn.Module):
    def forward(self, x):
        return function(x)
check(torch.export.export(Pool(), (x,)).module()(x), maxima)
""",
    "torch export module": """
import poolgrad.torch
check(torch.export.export(poolgrad.torch.MaxPool2d(2), (x,)).module()(x), maxima)
""",
    "torch export module that only poolgrad has": """
import io, poolgrad.torch
pool = poolgrad.torch.MaxPool2d(2, ties="split")
torch.export.save(torch.export.export(pool, (x,)), file := io.BytesIO())
file.seek(0)
check(torch.export.load(file).module()(x), maxima)
""",
    "torch export converted": """
exported = torch.export.export(converted(), (x,))
assert "poolgrad" not in str(exported.graph)
check(exported.module()(x), maxima)
""",
    "torch export converted, batches of any size": """
shapes = {"input": {0: torch.export.Dim("n", min=1)}}
exported = torch.export.export(converted(), (x,), dynamic_shapes=shapes)
check(exported.module()(x[:1]), maxima[:1])
""",
    "torch export accelerate": """
from poolgrad.torch import accelerate
with accelerate():
    exported = torch.export.export(nn.MaxPool2d(2), (x,))
    check(exported.module()(x), maxima)
""",
    "torch AOTInductor converted": """
exported = torch.export.export(converted(), (x,))
quick = {"aot_inductor.precompile_headers": False, "aot_inductor.compile_wrapper_opt_level": "O0"}
path = torch._inductor.aoti_compile_and_package(exported, inductor_configs=quick)
check(torch._inductor.aoti_load_package(path)(x), maxima)
""",
    "torch ONNX by TorchScript": """
import io, onnxruntime
torch.onnx.export(converted().eval(), (x,), file := io.BytesIO(), dynamo=False)
session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
check(session.run(None, {session.get_inputs()[0].name: X})[0], maxima)
""",
    "torch ONNX by torch.export": """
program = torch.onnx.export(converted().eval(), (x,), dynamo=True)
check(program(x)[0], maxima)
""",
    "torch jit.trace function": "check(gradient(torch.jit.trace(function, x)))",
    "torch jit.trace converted": "check(gradient(torch.jit.trace(converted(), x)))",
    "torch jit.script converted": "check(gradient(torch.jit.script(converted())))",
    "torch jit.script accelerate": """
from poolgrad.torch import accelerate
scripted = torch.jit.script(nn.MaxPool2d(2))
with accelerate():
    check(gradient(scripted))
""",
    "torch fx converted": "check(gradient(torch.fx.symbolic_trace(converted())))",
    # Transformations
    "torch func.grad": "check(torch.func.grad(loss)(x))",
    "torch func.vmap": "check(torch.func.vmap(function)(x[None])[0], maxima)",
    "torch func.vmap of grad": "check(torch.func.vmap(torch.func.grad(loss))(x))",
    "torch func.jvp": """
check(torch.func.jvp(function, (x,), (x,))[1], maxima)
""",
    "torch func.vjp": "check(torch.func.vjp(function, x)[1](2 * torch.tensor(maxima))[0])",
    "torch func.jacrev": """
check(torch.func.jacrev(function)(x[0, 0]).sum((0, 1)), gradients[0, 0] > 0)
""",
    "torch func.jacfwd": """
check(torch.func.jacfwd(function)(x[0, 0]).sum((0, 1)), gradients[0, 0] > 0)
""",
    "torch func.hessian": """
check(torch.func.hessian(loss)(x[0, 0]).sum((0, 1)), 2.0 * (gradients[0, 0] > 0))
""",
    "torch func.hessian, nonlinear": """
def cubes(x):
    return poolgrad.lp_pool2d(x, 3.0, 2).pow(3).sum()  # so the sum of cubes
check(torch.func.hessian(cubes)(x[0, 0] + 1).sum((0, 1)), 6 * (X[0, 0] + 1))
""",
    "torch func.functionalize converted": """
check(torch.func.functionalize(converted())(x), maxima)
""",
    "torch func.vmap converted": "check(torch.func.vmap(torch.func.grad("
    "lambda x, pool=converted(): pool(x).square().sum()))(x))",
    "torch func.grad accelerate": """
from poolgrad.torch import accelerate
with accelerate():
    check(torch.func.grad(lambda x: F.max_pool2d(x, 2).square().sum())(x))
""",
    "torch forward_ad": """
from torch.autograd import forward_ad
with forward_ad.dual_level():
    y = function(forward_ad.make_dual(x, x))
    check(forward_ad.unpack_dual(y).tangent, maxima)
""",
    "torch second derivatives": """
leaf = x.clone().requires_grad_()
(first,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
check(torch.autograd.grad(first.sum(), leaf)[0], 2 * (gradients > 0))
""",
    "torch compile of func.grad": "check(torch.compile(torch.func.grad(loss), fullgraph=True)(x))",
    # Modes
    "torch backward": "check(gradient(function))",
    "torch backward converted": "check(gradient(converted()))",
    "torch backward fused": "check(gradient(converted(fuse=True)))",
    "torch backward accelerate": """
from poolgrad.torch import accelerate
with accelerate():
    check(gradient(lambda x: F.max_pool2d(x, 2)))
""",
    "torch inference_mode": """
with torch.inference_mode():
    y = function(x)
check(y, maxima)
""",
    "torch autocast converted": """
network = converted(nn.Conv2d(3, 3, 1, groups=3, bias=False), nn.MaxPool2d(2))
nn.init.ones_(network[0].weight)
with torch.autocast("cpu", torch.bfloat16):
    y = network(x)
check(y.detach().float(), torch.tensor(maxima).bfloat16().float())
""",
    "torch checkpoint": """
from torch.utils.checkpoint import checkpoint
check(gradient(lambda x: checkpoint(function, x, use_reentrant=False)))
""",
    "torch channels_last": """
check(gradient(function, x.contiguous(memory_format=torch.channels_last)))
""",
    "torch meta": "check(function(x.to('meta')).shape, maxima.shape)",
    "torch fake": """
from torch._subclasses import FakeTensorMode
with FakeTensorMode() as mode:
    check(function(mode.from_tensor(x)).shape, maxima.shape)
""",
    "torch gradcheck": """
p = torch.rand(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
check(torch.autograd.gradcheck(function, p), True)
""",
    "torch learned argument": """
p = torch.tensor(3.0, requires_grad=True)
(poolgrad.lp_pool2d(torch.ones(1, 1, 2, 2), p, 2)).backward()  # 4 ** (1 / p)
check(p.grad, -np.log(4) / 9 * 4 ** (1 / 3))
""",
    # Copies and processes
    "torch deepcopy converted": "import copy; check(gradient(copy.deepcopy(converted())))",
    "torch pickle converted": """
import pickle
check(gradient(pickle.loads(pickle.dumps(converted()))))
""",
    "torch load converted": """
import io
torch.save(converted(), file := io.BytesIO())
file.seek(0)
check(gradient(torch.load(file, weights_only=False)))
""",
    "torch revert": """
from poolgrad.torch import revert
network = converted()
assert revert(network).replaced
check(gradient(network))
""",
    **{
        f"torch DataLoader, workers by {how}": f"""
from torch.utils.data import DataLoader
loader = DataLoader(
    x, batch_size=None, collate_fn=converted(), num_workers=2, multiprocessing_context="{how}"
)
if __name__ == "__main__":
    check(torch.stack(list(loader)), maxima)
"""
        for how in ("fork", "spawn")
    },
    **{
        f"torch multiprocessing by {how}": f"""
import torch.multiprocessing as mp
if __name__ == "__main__":
    with mp.get_context("{how}").Pool(1) as workers:
        check(workers.map(converted(), [x])[0], maxima)
"""
        for how in ("fork", "spawn")
    },
    "torch eight threads at once": """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
together = Barrier(8)
def work(_):
    together.wait()
    return gradient(function)
with ThreadPoolExecutor(8) as threads:
    check(torch.stack(list(threads.map(work, range(8)))), np.stack([gradients] * 8))
""",
    # JAX
    "jax eager": "check(function(x), maxima)",
    "jax grad": "check(jax.grad(loss)(x))",
    "jax jit": "check(jax.jit(function)(x), maxima)",
    "jax jit of grad": "check(jax.jit(jax.grad(loss))(x))",
    "jax jit, lowered and compiled": """
check(jax.jit(jax.grad(loss)).lower(x).compile()(x))
""",
    "jax jit, donated": """
y = jax.jit(lambda x: jax.grad(loss)(x), donate_argnums=0)(x)
check(y)
assert x.is_deleted()
""",
    "jax 64 bits": """
jax.config.update("jax_enable_x64", True)
y, indices = jax.jit(lambda x: poolgrad.max_pool2d(x, 2, return_indices=True))(x.astype("float64"))
assert (y.dtype, indices.dtype) == ("float64", "int64")
check(np.take_along_axis(X.reshape(2, 3, 64), np.reshape(indices, (2, 3, 16)), -1),
      maxima.reshape(2, 3, 16))
""",
    "jax bfloat16": """
check(jax.grad(lambda x: loss(x).astype("float32"))(x[:1, :, :2, :2].astype("bfloat16") * 0 + 1)
      .astype("float32").sum((0, 1)), [[6, 0], [0, 0]])
""",
    "jax vmap": "check(jax.vmap(function)(x), maxima)",
    "jax vmap of grad": "check(jax.vmap(jax.grad(loss))(x))",
    "jax jvp": "check(jax.jvp(function, (x,), (x,))[1], maxima)",
    "jax vjp": "check(jax.vjp(function, x)[1](2 * jnp.asarray(maxima))[0])",
    "jax linearize": "check(jax.linearize(function, x)[1](x), maxima)",
    "jax linear_transpose": """
(y,) = jax.linear_transpose(lambda x: poolgrad.avg_pool2d(x, 2), x)(jnp.asarray(maxima))
check(y, maxima.repeat(2, -1).repeat(2, -2) / 4)
""",
    "jax hessian": """
check(jax.hessian(loss)(x[0, 0]).sum((0, 1)), 2.0 * (gradients[0, 0] > 0))
""",
    "jax checkpoint": "check(jax.grad(jax.checkpoint(loss))(x))",
    "jax lax.scan": "check(jax.grad(lambda x: jax.lax.scan("
    "lambda c, x: (c + loss(x), None), 0.0, x)[0])(x))",
    "jax lax.while_loop": """
def body(state):
    step, x = state
    return step + 1, x.at[:, :, :4, :4].set(function(x))
check(jax.lax.while_loop(lambda s: s[0] < 1, body, (0, x))[1][:, :, :4, :4], maxima)
""",
    "jax lax.map": "check(jax.lax.map(jax.grad(loss), x))",
    "jax lax.cond": "check(jax.grad(lambda x: jax.lax.cond(True, loss, jnp.sum, x))(x))",
    "jax checkify": """
from jax.experimental import checkify
error, y = checkify.checkify(jax.jit(jax.grad(loss)), errors=checkify.all_checks)(x)
error.throw()
check(y)
""",
    "jax debug_nans": """
jax.config.update("jax_debug_nans", True)
check(jax.jit(jax.grad(loss))(x))
""",
    "jax without jit": """
jax.config.update("jax_disable_jit", True)
check(jax.grad(loss)(x))
""",
    "jax reuse_memory": """
poolgrad.jax.reuse_memory()
check(jax.jit(jax.grad(loss))(x))
""",
    "jax flax": """
from poolgrad.jax import max_pool
y = jax.jit(lambda x: max_pool(x, (2, 2), (2, 2)))(x.transpose(0, 2, 3, 1))
check(y.transpose(0, 3, 1, 2), maxima)
""",
    "jax key": """
def draw(x, key):
    return poolgrad.stochastic_pool2d(x, 2, generator=key)
check(jax.jit(draw)(x * 0 + 1, jax.random.key(0)), np.ones_like(maxima))
""",
    "jax export": """
known = [jax.export.DisabledSafetyCheck.custom_call("poolgrad")]
exported = jax.export.export(jax.jit(jax.grad(loss)), disabled_checks=known)(x)
check(jax.export.deserialize(exported.serialize()).call(x))
""",
    "jax export for CPUs and GPUs": """
known = [jax.export.DisabledSafetyCheck.custom_call("poolgrad")]
program = jax.jit(jax.grad(loss))
exported = jax.export.export(program, platforms=["cpu", "cuda"], disabled_checks=known)(x)
check(exported.call(x))
""",
    "jax export, batches of any size": """
known = [jax.export.DisabledSafetyCheck.custom_call("poolgrad")]
shape = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("n"), 3, 8, 8), jnp.float32)
exported = jax.export.export(jax.jit(jax.grad(loss)), disabled_checks=known)(shape)
check(exported.call(x))
""",
    "jax eight threads at once": """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
together = Barrier(8)
def work(_):
    together.wait()
    return jax.grad(loss)(x)
with ThreadPoolExecutor(8) as threads:
    check(np.stack(list(threads.map(work, range(8)))), np.stack([gradients] * 8))
""",
    # Each device pools one image of four.
    "jax pmap on four devices": """
check(jax.pmap(jax.grad(loss))(jnp.concatenate([x, x])), np.concatenate([gradients, gradients]))
""",
    "jax jit on four devices": """
spread = jax.NamedSharding(jax.make_mesh((4,), ("batch",)), jax.P("batch"))
y = jax.jit(jax.grad(loss))(jax.device_put(np.concatenate([X, X]), spread))
assert len(y.sharding.device_set) == 4
check(y, np.concatenate([gradients, gradients]))
""",
    "jax shard_map on four devices": """
mesh, P = jax.make_mesh((4,), ("batch",)), jax.P
split = jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=P("batch"), out_specs=P("batch"))
y = jax.jit(split)(jax.device_put(np.concatenate([X, X]), jax.NamedSharding(mesh, P("batch"))))
check(y, np.concatenate([gradients, gradients]))
""",
    # NumPy and Dask
    "numpy vjp": """
import poolgrad
y, pullback = poolgrad.vjp(poolgrad.max_pool2d, X, 2)
check(pullback(2 * y))
""",
    "numpy indices": """
import poolgrad
y, indices = poolgrad.max_pool2d(X, 2, return_indices=True)
check(np.take_along_axis(X.reshape(2, 3, 64), indices.reshape(2, 3, 16), -1), y.reshape(2, 3, 16))
""",
    "numpy torch afterwards": """
import poolgrad
y = poolgrad.max_pool2d(X, 2)
import torch
leaf = torch.tensor(X, requires_grad=True)
poolgrad.max_pool2d(leaf, 2).square().sum().backward()
check(leaf.grad)
""",
    **{
        f"numpy multiprocessing by {how}": f"""
import multiprocessing, poolgrad
from functools import partial
if __name__ == "__main__":
    with multiprocessing.get_context("{how}").Pool(2) as workers:
        check(workers.map(partial(poolgrad.max_pool2d, kernel_size=2), X), maxima)
"""
        for how in ("fork", "spawn", "forkserver")
    },
    "numpy eight threads at once": """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import poolgrad
together = Barrier(8)
def work(_):
    together.wait()
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, X, 2)
    return pullback(2 * y)
with ThreadPoolExecutor(8) as threads:
    check(list(threads.map(work, range(8))), np.stack([gradients] * 8))
""",
    **{
        f"dask {how}": f"""
import dask, dask.array as da, poolgrad
if __name__ == "__main__":
    dask.config.set(scheduler="{how}")
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, da.from_array(X, chunks=(1, 3, 3, 8)), 2)
    check(pullback(2 * y).compute())
"""
        for how in ("threads", "processes", "synchronous")
    },
    **{
        f"dask distributed, {name}": f"""
import dask.array as da, poolgrad
from distributed import Client, LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, {how}, dashboard_address=":0") as cluster, Client(cluster):
        y, pullback = poolgrad.vjp(poolgrad.max_pool2d, da.from_array(X, chunks=(1, 3, 3, 8)), 2)
        check(pullback(2 * y).compute())
"""
        for name, how in (("threads", "processes=False"), ("processes", "threads_per_worker=1"))
    },
}

# The others take seconds each.
CHEAP = ("torch backward", "jax jit of grad", "numpy vjp", "dask threads")
PACKAGES = {"torch": TORCH, "jax": JAX, "numpy": "", "dask": ""}


def program(name: str) -> str:
    return SETUP + PACKAGES[name.split(maxsplit=1)[0]] + ROWS[name]


def needed(name: str) -> list[str]:
    """Packages without which a row cannot run."""
    packages = [name.split(maxsplit=1)[0]]
    if "ONNX" in name:
        packages += ["onnx", "onnxruntime"]
    if name.endswith("by torch.export"):
        packages.append("onnxscript")
    if "distributed" in name:
        packages.append("distributed")
    return packages


# One of each kind; what they use is also tested in processes that have pooled before.
EACH_TIME = (
    "torch compile default converted", "torch export converted", "torch ONNX by TorchScript",
    "torch jit.trace converted", "torch func.hessian", "torch second derivatives",
    "torch pickle converted", "torch DataLoader, workers by spawn", "torch eight threads at once",
    "jax jit", "jax vmap of grad", "jax export", "jax eight threads at once", "dask processes",
    "dask distributed, processes", "numpy multiprocessing by spawn", "numpy torch afterwards",
)  # fmt: skip


def _how_often(name: str) -> str:
    return "slow" if name in EACH_TIME else "nightly"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in CHEAP else getattr(pytest.mark, _how_often(n)))
        for n in ROWS
    ],
)
def test_first_use(name: str, tmp_path: Path) -> None:
    for package in needed(name):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if ("compile" in name or "AOTInductor" in name) and not any(
        map(shutil.which, ("g++", "clang++", "c++"))
    ):
        pytest.skip("no C++ compiler for inductor")
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}  # else compiled code of another run is used
    if "four devices" in name:
        env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    assert "checked" in assert_runs(program(name), timeout=240, **env)


STORED = """
known = [jax.export.DisabledSafetyCheck.custom_call("poolgrad")]
exported = jax.export.export(jax.jit(jax.grad(loss)), disabled_checks=known)(x)
print(exported.serialize().hex())
"""


@pytest.mark.slow
def test_a_stored_program_of_jax_is_the_first_thing_that_pools() -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    stored = assert_runs(SETUP + JAX + STORED).strip()
    run = f"import poolgrad.jax\ncheck(jax.export.deserialize(bytes.fromhex('{stored}')).call(x))"
    assert "checked" in assert_runs(SETUP + JAX + run)


@pytest.mark.slow
def test_a_pickled_network_is_the_first_thing_that_pools(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    file = str(tmp_path / "network.pt")
    assert_runs(SETUP + TORCH + f"torch.save(converted(), {file!r})")
    load = f"check(gradient(torch.load({file!r}, weights_only=False)))"
    assert "checked" in assert_runs(SETUP + TORCH.replace("import poolgrad\n", "") + load)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"), [("info", "front ends: numpy"), ("check --help", "gradients")]
)
def test_the_command_line(arguments: str, said: str) -> None:
    pytest.importorskip("typer", reason="the lab extra is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "poolgrad", *arguments.split()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert said in " ".join(done.stdout.split())
