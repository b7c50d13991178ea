"""Builds the kernels in a new folder and prints the cost of each translation unit.

Processor seconds do not depend on what else runs, unlike those of a clock. As the compiler's
launcher, this script measures one compilation: ``measure_build.py --log FILE COMPILER ARGUMENTS``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETS = ("avx512", "avx2", "x86_64_v2", "neon", "baseline")


def compile_one(log: str, command: list[str]) -> int:
    """Run a compiler and append its processor time to the log."""
    code = subprocess.run(command, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if "-o" in command:
        target = command[command.index("-o") + 1]
        with open(log, "a") as file:
            file.write(json.dumps([os.path.abspath(target), used.ru_utime + used.ru_stime]) + "\n")
    return code


def code_bytes(target: Path) -> int:
    """Machine code and constants of an object file: binutils' "text"."""
    lines = subprocess.run(["size", target], check=True, capture_output=True, text=True).stdout
    return int(lines.splitlines()[1].split()[0])


def build(folder: Path, log: Path, isa: str) -> float:
    """Configure and compile; return the seconds of the compile step."""
    launcher = [sys.executable, str(Path(__file__).resolve()), "--log", str(log)]
    nanobind = [sys.executable, "-m", "nanobind", "--cmake_dir"]
    found = subprocess.run(nanobind, check=True, capture_output=True, text=True).stdout.strip()
    options = [
        f"-DPOOLGRAD_ISA={isa}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dnanobind_DIR={found}",
        f"-DCMAKE_CXX_COMPILER_LAUNCHER={';'.join(launcher)}",
    ]
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(folder), *options]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    log.unlink(missing_ok=True)  # what CMake compiled to look at the compiler
    start = time.perf_counter()
    subprocess.run(["ninja", "-C", str(folder)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def table(log: Path, folder: Path) -> Iterator[str]:
    """Rows in Markdown, the slowest unit first, and the sum."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    units = sorted(((seconds, Path(target)) for target, seconds in lines), reverse=True)
    yield "| unit | instruction set | processor seconds | code, kB |"
    yield "|---|---|---:|---:|"
    total, code = 0.0, 0
    for seconds, target in units:
        parts = target.relative_to(folder).parts
        library = parts[1].removesuffix(".dir")  # kernels_avx512, kernels_avx512_fast, _kernels
        name = "/".join(parts[2:]).removesuffix(".o")
        if parts[2] == "Unity":
            name = f"{library}, united sources"
        size = code_bytes(target)
        total, code = total + seconds, code + size
        isa = next((name for name in SETS if library.startswith(f"kernels_{name}")), "any")
        yield f"| `{name}` | {isa} | {seconds:.1f} | {size / 1000:.0f} |"
    yield f"| all | | {total:.0f} | {code / 1000:.0f} |"


def main() -> int:
    """Measure a build, or one compilation of it."""
    if sys.argv[1:2] == ["--log"]:
        return compile_one(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", default="host", help="POOLGRAD_ISA: host, all or one set")
    isa = parser.parse_args().isa
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name).resolve() / "build", Path(name).resolve() / "log"
        seconds = build(folder, log, isa)
        print(*table(log, folder), sep="\n")
        print(f"\nThe compile step took {seconds:.0f} s on {os.cpu_count()} cores.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
