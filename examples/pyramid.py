"""An image larger than memory, pooled to a pyramid of halves on a cluster of two workers.

    pip install "poolgrad[dask]" distributed zarr
    python examples/pyramid.py

An image of 20,000 x 20,000 pixels is made and kept in a Zarr group; each level of the pyramid is
the mean of 2 x 2 pixels of the one before, read from the group and written back to it. Printed are
the levels and the most memory that any process ever had. With `--kill` one of the workers is killed
half way: the cluster starts another one, and goes on.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import tempfile
import threading
from pathlib import Path

import dask.array as da
import numpy as np
import zarr
from distributed import Client, LocalCluster, progress

import poolgrad

CHUNK = 2000


def make(path: Path, side: int) -> None:
    """Keep an image in a new Zarr group: waves, so that every part of it differs."""

    def waves(block_info: dict) -> np.ndarray:
        (y0, y1), (x0, x1) = block_info[None]["array-location"]
        y, x = np.ogrid[y0:y1, x0:x1]
        return (127.5 + 60 * np.sin(y / 97) + 60 * np.sin(x / 61 + y / 503)).astype("uint8")

    chunks = da.core.normalize_chunks(CHUNK, (side, side))
    image = da.map_blocks(waves, chunks=chunks, dtype="uint8", meta=np.empty((0, 0), "uint8"))
    image.to_zarr(str(path), component="0", overwrite=True)


def halve(path: Path, level: int) -> da.Array:
    """The next level, not computed yet."""
    image = da.from_zarr(str(path), component=str(level))
    mean = poolgrad.avg_pool2d(image, 2, ceil_mode=True)
    return da.round(mean).astype("uint8").rechunk(CHUNK)


def peak_bytes() -> int:
    """The most memory that this process ever had."""
    status = Path("/proc/self/status")
    if status.exists():  # the other way counts what a process had that started this one, too
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def kill_one(client: Client) -> None:
    """Kill a worker's process."""
    pids = client.run(os.getpid)
    os.kill(next(iter(pids.values())), signal.SIGKILL)


def pyramid(path: Path, side: int, kill: bool) -> list[int]:
    """Make an image and all its levels; the most memory of each process, this one first."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        make(path, side)
        level = 0
        while zarr.open(path, mode="r")[str(level)].shape[0] > 256:
            stored = halve(path, level).to_zarr(
                str(path), component=str(level + 1), overwrite=True, compute=False
            )
            future = client.compute(stored)
            if kill and level == 0:
                threading.Timer(0.5, kill_one, [client]).start()
            progress(future, notebook=False)
            future.result()
            level += 1
            print(f"\nlevel {level}: {zarr.open(path, mode='r')[str(level)].shape}")
        return [peak_bytes(), *client.run(peak_bytes).values()]


def main() -> None:
    """Run it in a folder that is removed afterwards, unless one is given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--side", type=int, default=20_000, help="pixels along each axis")
    parser.add_argument("--kill", action="store_true", help="kill a worker half way")
    parser.add_argument("--out", type=Path, help="where to keep the Zarr group")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peaks = pyramid(given.out or Path(folder) / "image.zarr", given.side, given.kill)
    print("most memory, in MiB:", *(peak >> 20 for peak in peaks))


if __name__ == "__main__":
    main()
