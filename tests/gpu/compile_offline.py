"""Compiles recorded launches for GPUs that are not present, and reads the compiler's statistics.

`triton.compile` needs no device. From the binary come registers, spills and shared memory, from the
PTX (of AMD's GPUs from the assembly) the widest load and store, and atomics.
``python tests/gpu/compile_offline.py cuda:90`` compiles every variant for a target and fails if one
has an atomic, or if a main one spills registers or has no 128-bit load and store.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from poolgrad.tools.bench.gpu_model import variants
from poolgrad.torch.triton.launch import CONTRACTION, Launch

TARGETS = {
    "cuda:80": GPUTarget("cuda", 80, 32),
    "cuda:90": GPUTarget("cuda", 90, 32),
    "hip:gfx942": GPUTarget("hip", "gfx942", 64),
}
_POINTERS = {
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32",
    torch.float64: "*fp64", torch.int8: "*i8", torch.uint8: "*u8", torch.int16: "*i16",
    torch.uint16: "*u16", torch.int32: "*i32", torch.uint32: "*u32", torch.int64: "*i64",
}  # fmt: skip


class Compiled(NamedTuple):
    """The compiler's statistics of a kernel; -1 if the target does not report a number."""

    registers: int
    spilled: int  # bytes
    shared: int  # bytes of shared memory
    load_bits: int
    store_bits: int
    atomics: int  # instructions that change memory atomically


def source_of(launched: Launch) -> ASTSource:
    """The kernel with the types of a launch, specialised as Triton does when it runs it."""
    names = launched.kernel.arg_names
    signature, constants, attributes = {}, dict(launched.constants), {}
    for number, (name, value) in enumerate(zip(names, launched.args, strict=False)):
        if isinstance(value, torch.Tensor):
            signature[name] = _POINTERS[value.dtype]
            attributes[(number,)] = [["tt.divisibility", 16]]
        elif value == 1:
            constants[name] = 1
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                attributes[(number,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(constants, "constexpr")
    ordered = {name: signature[name] for name in names}
    return ASTSource(launched.kernel, ordered, constants, attributes)


def compiled(launched: Launch, target: str) -> Compiled:
    """Compile the kernel of a launch for one of `TARGETS`."""
    gpu = TARGETS[target]
    options = {"num_warps": launched.threads // gpu.warp_size} | CONTRACTION
    made = triton.compile(source_of(launched), target=gpu, options=options)
    shared = made.metadata.shared
    if target.startswith("hip"):
        text = made.asm["amdgcn"]
        registers = int(_found(r"\.vgpr_count:\s+(\d+)", text))
        spilled = int(_found(r"\.private_segment_fixed_size:\s+(\d+)", text))
        loads, stores = (_widest_of_words(what, text) for what in ("load", "store"))
        atomics = len(re.findall(r"\w+_atomic_\w+", text))
        return Compiled(registers, spilled, shared, loads, stores, atomics)
    ptx = made.asm["ptx"]
    registers, spilled = _resources(made.asm["cubin"])
    loads, stores = (_widest(what, ptx) for what in ("ld", "st"))
    atomics = len(re.findall(r"^\s*(?:@!?%p\d+\s+)?(?:atom|red)\.", ptx, re.MULTILINE))
    return Compiled(registers, spilled, shared, loads, stores, atomics)


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else "-1"


def _widest_of_words(what: str, text: str) -> int:
    """The bits of the widest access of global memory in AMD's assembly."""
    found = re.findall(rf"(?:global|buffer)_{what}_dword(?:x(\d))?", text)
    return max((32 * int(n or 1) for n in found), default=0)


def _widest(what: str, ptx: str) -> int:
    """The bits of the widest access of global memory."""
    pattern = rf"{what}\.global[\w.:]*?(?:\.v(\d))?\.[bfus](\d+)"
    return max((int(n or 1) * int(bits) for n, bits in re.findall(pattern, ptx)), default=0)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack, where registers are spilled."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command: list[Any] = [tool, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(_found(r"REG:(\d+)", text)), int(_found(r"STACK:(\d+)", text))


def check(target: str) -> int:
    """Compile every variant for a target and print what came out; the number of failures."""
    failures = 0
    print(f"{'variant':58} {'kernel':18} registers spilled shared load store ({target})")
    for v in variants():
        wide = False
        for one in v.launches:
            c = compiled(one, target)
            wide |= c.load_bits >= 128 and c.store_bits >= 128
            spills, atomics = c.spilled > 0, c.atomics > 0
            failures += (spills and v.main) + atomics
            print(
                f"{v.name:58} {one.kernel.__name__:18} {c.registers:9} {c.spilled:7} {c.shared:6} "
                f"{c.load_bits:4} {c.store_bits:5}{' SPILLS' * spills}{' ATOMICS' * atomics}"
            )
        if v.main and not wide:
            failures += 1
            print(f"{v.name:58} HAS NO 128-BIT LOAD AND STORE")
    return failures


if __name__ == "__main__":
    sys.exit(check(sys.argv[1]) > 0)
