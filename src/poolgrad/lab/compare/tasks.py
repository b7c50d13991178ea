"""The tasks of a comparison, and the modules that implement each.

Reading this file needs nothing but Python: the modules are imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from poolgrad.lab import pools
from poolgrad.lab.compare.results import run_name, run_title
from poolgrad.lab.segment.variants import DEFAULT_VARIANTS, REFERENCE, VARIANTS
from poolgrad.lab.settings import SCATTERED_DIGITS

if TYPE_CHECKING:
    import torch

    from poolgrad.lab.compare.options import Plan
    from poolgrad.lab.compare.results import Example, RunResult
    from poolgrad.lab.settings import Settings


@dataclass(frozen=True)
class Job:
    """One run of a comparison.

    Attributes
    ----------
    task, method, head, seed
        Which run it is.
    settings
        Settings of its training.
    conv_padding, shifts
        As in the plan.
    examples
        How many test images are followed through the first downsampling.
    devices
        Processes among which its batches are divided.
    threads
        Of PyTorch, in each process.
    """

    task: str
    method: str
    head: str
    seed: int
    settings: Settings
    conv_padding: pools.ConvPadding
    shifts: int
    examples: int
    devices: int
    threads: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return run_name(self.method, self.head, self.seed)

    @property
    def title(self) -> str:
        """Its name in the progress display."""
        return run_title(self.method, self.head, self.seed)


@dataclass(frozen=True)
class Case:
    """The inputs for measuring the costs of a method.

    Attributes
    ----------
    network
        With its first weights.
    images
        One batch.
    step
        Computes the loss of the batch, in training mode.
    """

    network: torch.nn.Module
    images: torch.Tensor
    step: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Described:
    """Facts about the data.

    Attributes
    ----------
    facts
        Sentences for the protocol, by topic.
    identity
        Facts that must not change when a comparison is resumed, in JSON types.
    training, tested
        Number of images.
    size
        Height and width of the images.
    """

    facts: dict[str, str]
    identity: dict[str, Any]
    training: int
    tested: int
    size: tuple[int, int]


class TaskData(Protocol):
    """The module of a task that reads its data; imports no PyTorch."""

    def load(self, plan: Plan) -> Any:
        """Read and check the data: anything that can be pickled."""

    def describe(self, plan: Plan, data: Any) -> Described:
        """Facts about the data and their split."""

    def protocol(self, plan: Plan, described: Described) -> dict[str, str]:
        """Facts about networks, training and what is measured, by topic."""


class TaskTraining(Protocol):
    """The module of a task that trains; imported by workers only."""

    def run_one(self, job: Job, data: Any, folder: Path) -> tuple[RunResult, list[Example]]:
        """Train, from the last checkpoint in `folder` on, and test."""

    def case(self, job: Job, data: Any) -> Case:
        """The network and a batch, to measure its costs."""


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes
    ----------
    name
        Value of `--task`.
    metric, score
        Name of the main score for people, and in `RunResult.scores`.
    data
        The default data.
    methods, quick_methods, accepted
        Default methods, those of `--quick`, and all.
    baseline
        The method that the others are compared with, if it is among them.
    titles
        Names of all methods for people.
    heads, shifts
        Whether `--head` makes sense, and whether test images are shifted.
    passes, quick_passes
        Training images that a run sees by default, over all its epochs.
    data_module, training_module
        Names of the modules `TaskData` and `TaskTraining`.
    """

    name: Literal["classify", "segment"]
    metric: str
    score: str
    data: str
    methods: tuple[str, ...]
    quick_methods: tuple[str, ...]
    accepted: tuple[str, ...]
    baseline: str
    titles: Mapping[str, str]
    heads: bool
    shifts: bool
    passes: int
    quick_passes: int
    data_module: str
    training_module: str

    def data_functions(self) -> TaskData:
        """The module that reads the data."""
        module: Any = import_module(self.data_module)
        return module

    def training_functions(self) -> TaskTraining:
        """The module that trains; imports PyTorch."""
        module: Any = import_module(self.training_module)
        return module


TASKS: dict[str, Task] = {
    "classify": Task(
        name="classify",
        metric="accuracy",
        score="correct",
        data="translated-digits",
        methods=("max", "avg", "strided", "blur", "aps", "lip", "soft", "none"),
        quick_methods=("max", "avg", "strided", "blur", "aps"),
        accepted=pools.NAMES,
        baseline="max",
        titles={name: found.title for name, found in pools.DOWNSAMPLINGS.items()},
        heads=True,
        shifts=True,
        passes=20_000,
        quick_passes=10_000,
        data_module="poolgrad.lab.compare.classify",
        training_module="poolgrad.lab.compare.run",
    ),
    "segment": Task(
        name="segment",
        metric="IoU",
        score="iou",
        data=SCATTERED_DIGITS,
        methods=DEFAULT_VARIANTS,
        quick_methods=DEFAULT_VARIANTS,
        accepted=tuple(VARIANTS),
        baseline=REFERENCE,
        titles=VARIANTS,
        heads=False,
        shifts=False,
        passes=6_000,
        quick_passes=2_000,
        data_module="poolgrad.lab.segment.protocol",
        training_module="poolgrad.lab.segment.run",
    ),
}
