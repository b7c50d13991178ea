"""The result of a row, and whether it meets the targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from poolgrad.tools.bench.targets import Limits

EAGER, OWN = "PyTorch", "JAX's own"
TIME, FLOOR, TO_FLOOR = "time, ms", "floor, ms", "time / floor"
TO_OTHER, KEPT, DIFFERENCE = "time / other row", "memory / PyTorch's", "relative difference"


class Figure(NamedTuple):
    """A number of a row, and its limit."""

    value: float
    limit: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the limit is met; True if there is none."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True)
class Result:
    """The result of a row; times in seconds.

    Attributes
    ----------
    name, dtype, shape : str
        Name, dtype and shape of the row.
    isa : str
        The instruction set of the kernels, as `core.instruction_set` returns it.
    seconds, spread : float
        The median of poolgrad, and the interquartile range divided by it.
    floor : float or None
        The time that the copy needs for as many bytes as the row must move.
    beside : float or None
        The median of poolgrad for the reference row.
    peers : dict of str to float
        The median of each peer that has the function.
    kept, apart : float or None
        Of a network: the kept bytes over PyTorch's; the relative difference of results.
    failed : dict of str to str
        The error messages of peers that could not be timed.
    limits : Limits
        The targets of the row.
    """

    name: str
    dtype: str
    shape: str
    isa: str
    seconds: float
    spread: float
    floor: float | None
    beside: float | None
    peers: Mapping[str, float]
    kept: float | None = None
    apart: float | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    @property
    def figures(self) -> dict[str, Figure]:
        """The numbers of the tables by column: those above, and the speedup over each peer."""
        most = self.limits.seconds
        figures = {TIME: Figure(self.seconds * 1e3, most and most * 1e3)}
        if self.floor is not None:
            figures[FLOOR] = Figure(self.floor * 1e3)
            figures[TO_FLOOR] = Figure(self.seconds / self.floor, self.limits.floor)
        if self.beside is not None:
            figures[TO_OTHER] = Figure(self.seconds / self.beside, self.limits.share)
        if self.kept is not None:
            figures[KEPT] = Figure(self.kept, self.limits.kept)
        if self.apart is not None:
            figures[DIFFERENCE] = Figure(self.apart, self.limits.apart)
        for peer, seconds in self.peers.items():
            least = self.limits.faster if peer in (EAGER, OWN) else None
            figures[peer] = Figure(
                seconds / self.seconds, 1.0 if least is None else least, at_least=True
            )
        return figures

    @property
    def fastest(self) -> Figure | None:
        """The speedup over the fastest peer."""
        return min((self.figures[peer] for peer in self.peers), default=None)

    @property
    def met(self) -> bool:
        """Whether every limit is met."""
        return all(figure.met for figure in self.figures.values())
