"""Parametrization over every instruction set of this processor's family, compiled or not."""

from __future__ import annotations

import platform
from collections.abc import Iterable

import pytest

from poolgrad import core

_FAMILIES = {
    "x86_64": ("avx512", "avx2", "x86_64_v2"),
    "AMD64": ("avx512", "avx2", "x86_64_v2"),
    "aarch64": ("neon",),
    "arm64": ("neon",),
}
_NAMES = _FAMILIES.get(platform.machine(), ("baseline",))
_REASON = (
    "{} is not compiled, or this processor lacks it; "
    "all are compiled by: pip install -C cmake.define.POOLGRAD_ISA=all ."
)
BEST = core.instruction_sets()[0]


def _each(names: Iterable[str]) -> pytest.MarkDecorator:
    """A parameter `isa`; sets that cannot run are skipped, with the reason."""
    absent = {isa: isa not in core.instruction_sets() for isa in names}
    return pytest.mark.parametrize(
        "isa",
        [
            pytest.param(isa, marks=pytest.mark.skipif(absent[isa], reason=_REASON.format(isa)))
            for isa in absent
        ],
    )


each_instruction_set = _each(_NAMES)
each_but_the_best = _each(isa for isa in _NAMES if isa != BEST)
