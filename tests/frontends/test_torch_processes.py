"""Converted networks in several processes: data-parallel training and data loaders."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import assert_runs

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

STEPS = """
import os, torch, torch.distributed as dist
from torch import nn
from poolgrad.torch import convert
torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(4, 3, 1), nn.AvgPool2d(2),
    nn.Flatten(), nn.Linear(27, 1),
)
assert len(convert(net).replaced) == 2
x, own = torch.randn(4, 1, 16, 16), slice(None)
if {size} > 1:
    where = "file://{folder}/meet"
    dist.init_process_group("gloo", init_method=where, rank={rank}, world_size={size})
    net = nn.parallel.DistributedDataParallel(net)
    own = slice(2 * {rank}, 2 * {rank} + 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    net(x[own]).square().mean().backward()
    optimizer.step()
torch.save([p.detach() for p in net.parameters()], "{folder}/{size}-{rank}.pt")
if {size} > 1:
    del net, optimizer  # they hold the group, whose threads must end before Python does
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this PyTorch has no gloo")

    def run(rank: int, size: int) -> str:
        return assert_runs(STEPS.format(rank=rank, size=size, folder=tmp_path), timeout=120)

    with ThreadPoolExecutor(2) as together:
        list(together.map(run, (0, 1), (2, 2)))
    run(0, 1)
    one, first, second = (torch.load(tmp_path / f"{n}.pt") for n in ("1-0", "2-0", "2-1"))
    assert len(one) == 6
    for whole, a, b in zip(one, first, second, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, whole)


LOADER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from poolgrad.torch import accelerate, convert

pool = nn.MaxPool2d(2)
convert(pool)
large = torch.randn(4, 8, 128, 128)
pool(large)  # the threads of this process have worked before it forks

class Pooled(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        with accelerate():
            return pool(large[index]), nn.functional.avg_pool2d(large[index], 2)

loader = DataLoader(Pooled(), batch_size=2, num_workers=2, multiprocessing_context="fork")
maxima, means = (torch.cat(parts) for parts in zip(*loader))
assert torch.equal(maxima, pool(large))
torch.testing.assert_close(means, nn.functional.avg_pool2d(large, 2))
print("the same")
"""


def test_workers_of_a_loader_pool() -> None:
    assert assert_runs(LOADER, timeout=120).strip() == "the same"
