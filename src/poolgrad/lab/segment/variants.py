"""Names of the ways to downsample in the U-Net, each with its upsampling.

Needs neither NumPy nor PyTorch, so that the command line answers at once.
"""

from __future__ import annotations

from poolgrad.lab.pools import DOWNSAMPLINGS
from poolgrad.lab.settings import LabError

REFERENCE = "max_upsample"  # the others get about as many weights

_OWN = {
    "max_unpool": "max pooling, max unpooling",
    "max_upsample": "max pooling, interpolation",
    "strided": "strided convolution, transposed convolution",
    "dilated": "no downsampling, dilated convolutions",
}
_REPLACED = ("max", "strided", "none")  # of the lab's table, by those above

# Names and titles.
VARIANTS: dict[str, str] = {
    **_OWN,
    **{
        name: f"{pool.title}, interpolation"
        for name, pool in DOWNSAMPLINGS.items()
        if name not in _REPLACED
    },
}
DEFAULT_VARIANTS = tuple(_OWN)


def check_variant(name: str) -> None:
    """Check that a variant exists.

    Raises
    ------
    LabError
        If it does not; the message names those that do.
    """
    if name not in VARIANTS:
        raise LabError(
            f"--pool for --task segment must be one of {', '.join(VARIANTS)}; got {name!r}"
        )
