"""Counts the instructions of the aarch64 kernels per output and prints a table in Markdown.

Time cannot be measured under emulation, but QEMU logs the blocks of instructions that it executes.
``tests/robustness/neon docs/count_instructions.py`` builds the kernels and runs this script under
emulation. The script starts itself again, with a log of the blocks of the kernels only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import poolgrad
from poolgrad import core

MAX, AVG = poolgrad.max_pool2d, poolgrad.avg_pool2d
ROWS: list[tuple[str, Callable[..., Any], dict[str, int]]] = [
    ("maximum 3x3 s1", MAX, {"kernel_size": 3, "stride": 1, "padding": 1}),
    ("maximum 3x3 s2", MAX, {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("maximum 2x2 s2", MAX, {"kernel_size": 2}),
    ("average 3x3 s1", AVG, {"kernel_size": 3, "stride": 1, "padding": 1}),
    ("average 3x3 s2", AVG, {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("maximum 3x3 s2, gradient", MAX, {"kernel_size": 3, "stride": 2, "padding": 1}),
]
DTYPES = ("float32", "float16")
SIZE = 56  # height and width of a plane
PLANES = (4, 8)  # of two calls: their difference is without the cost of a call
MARK = "begin or end of a call"


def code_range() -> str:
    """Return the addresses of the code of the kernels, as QEMU takes them."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    (code,) = (m.split()[0] for m in maps if "_kernels" in m and "r-xp" in m)
    begin, end = (int(address, 16) for address in code.split("-"))
    return f"{begin:#x}..{end - 1:#x}"


def run_calls() -> None:
    """Make the calls of all rows, and write a line before and after each to the log."""
    core.set_num_threads(1)
    for name, function, arguments in ROWS:
        for dtype in DTYPES:
            for planes in PLANES:
                x = np.random.default_rng(0).standard_normal((planes, SIZE, SIZE)).astype(dtype)
                y, pullback = poolgrad.vjp(function, x, **arguments)
                os.write(2, f"{MARK}\n".encode())
                if "gradient" in name:
                    pullback(y)
                else:
                    function(x, **arguments)
                os.write(2, f"{MARK}\n".encode())


def executed() -> list[int]:
    """Return the number of instructions of each call of `run_calls`."""
    log = {"QEMU_LOG": "in_asm,exec,nochain", "QEMU_DFILTER": code_range()}
    command = [sys.executable, __file__, "--run"]
    counts = [0]  # of the calls, and of the code before, between and after them
    lengths: dict[str, int] = {}  # instructions of the block that begins at an address
    block = ""
    with subprocess.Popen(command, env=os.environ | log, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith("IN:"):
                block = ""
            elif line.startswith("0x"):
                address = line[2 : line.index(":")].lstrip("0")
                block = block or address
                lengths[block] = lengths[block] + 1 if address != block else 1
            elif line.startswith("Trace"):
                counts[-1] += lengths[line.split("/")[1].lstrip("0")]
            elif line.startswith(MARK):
                counts.append(0)
    return counts[1::2]


def main() -> None:
    """Print the table."""
    counts = iter(executed())
    print(f"| main loop | {' | '.join(DTYPES)} |\n| --- |{' ---: |' * len(DTYPES)}")
    for name, function, arguments in ROWS:
        outputs = function(np.zeros((PLANES[1] - PLANES[0], SIZE, SIZE)), **arguments).size
        each = [f"{(-next(counts) + next(counts)) / outputs:.2f}" for _ in DTYPES]
        print(f"| {name} | {' | '.join(each)} |")


if __name__ == "__main__":
    run_calls() if sys.argv[1:] else main()
