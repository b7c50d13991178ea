"""The options of a comparison: defaults, checks, and which of them affect the results.

Needs neither PyTorch nor the data: a wrong option is refused at once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from poolgrad.lab.compare.tasks import TASKS, Job, Task
from poolgrad.lab.pools import CONV_PADDINGS, HEADS, NAMES, ConvPadding, Head, Pool
from poolgrad.lab.settings import (
    BUILTIN,
    LabError,
    Settings,
    absolute,
    check_choice,
    check_size,
    check_windows,
    counted,
    flag,
    short_name,
    shorten,
    steps_per_epoch,
)

TaskName = Literal["classify", "segment"]

EXAMPLES = 3  # images that are traced through the first downsampling
STRIDE = 2  # of every downsampling
MOST_SEEDS, MOST_JOBS, MOST_DEVICES = 1000, 1024, 64
# `none` computes maps of full size; above this side it would take most of the time.
LARGEST_FOR_NONE = 48
# Folders of images of several or larger sizes are resized to this side.
DEFAULT_SIDE = 64
_LEARNING_RATE = 0.01
_LARGEST_BATCH = 32  # larger batches take more epochs and the same time
# Limits of the epochs of an ordinary and of a quick run.
_EPOCHS, _QUICK_EPOCHS = (8, 60), (4, 40)


@dataclass(frozen=True)
class Plan:
    """The options of a comparison.

    Attributes
    ----------
    task
        `"classify"` or `"segment"`.
    data
        Name of a data set, or an absolute path.
    size
        Side to which the images of a folder are resized; None: chosen by the data.
    methods, heads
        The downsamplings and the heads: every pair is trained with every seed.
    seeds
        Number of seeds.
    epochs, batch_size
        Epochs and batch size of each run; None: chosen by the number of images.
    lr
        Highest learning rate of the schedule.
    kernel
        Size of the windows; the stride is 2.
    conv_padding
        Padding of the convolutions: `"zeros"` or `"circular"`.
    shifts
        Longest shift of the test images in pixels; None: an eighth of their shorter side.
    quick
        Fewer methods, seeds and epochs.
    devices
        Processes among which the batches of one run are divided.
    jobs
        Runs at a time.
    cluster
        Address of a Dask scheduler; None: the runs are made on this machine.
    """

    task: TaskName
    data: str
    size: int | None
    methods: tuple[str, ...]
    heads: tuple[Head, ...]
    seeds: int
    epochs: int | None
    batch_size: int | None
    lr: float
    kernel: int
    conv_padding: ConvPadding
    shifts: int | None
    quick: bool
    devices: int
    jobs: int
    cluster: str | None
    chosen: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Plan:
        """Fill in defaults for the options that are absent, and check the values.

        Parameters
        ----------
        options
            Values by attribute name; `pool` and `head` are texts such as `"max,avg"`.

        Raises
        ------
        LabError
            If a value makes no sense; the message names the option.
        """
        check_choice(options, "task", tuple(TASKS))
        check_choice(options, "conv_padding", CONV_PADDINGS)
        task = TASKS[options.get("task", "classify")]
        quick = bool(options.get("quick", False))
        pools = options.get("pool")
        methods = task.quick_methods if quick else task.methods
        if pools is not None:
            methods = names("pool", pools, task.accepted)
        heads: tuple[Any, ...] = ("avg",)
        if options.get("shifts") is not None and not task.shifts:
            raise LabError(
                f"--shifts moves the images of a classifier; --task {task.name} has none"
            )
        if options.get("head") is not None:
            if not task.heads:
                raise LabError(
                    f"--head chooses the end of a classifier; --task {task.name} has none"
                )
            heads = names("head", options["head"], HEADS)
        devices = options.get("devices", 1)
        plan = cls(
            task=task.name,
            data=absolute(str(options.get("data", task.data))),
            size=options.get("size"),
            methods=methods,
            heads=heads,
            seeds=options.get("seeds", 3 if quick else 5),
            epochs=options.get("epochs"),
            batch_size=options.get("batch_size"),
            lr=options.get("lr", _LEARNING_RATE),
            kernel=options.get("kernel", 2),
            conv_padding=options.get("conv_padding", "zeros"),
            shifts=options.get("shifts"),
            quick=quick,
            devices=devices,
            jobs=options.get("jobs", 0) or max(1, processors() // max(1, devices)),
            cluster=options.get("cluster"),
            chosen=pools is not None,
        )
        plan._check(options)
        return plan

    def _check(self, options: Mapping[str, Any]) -> None:
        limits: dict[str, tuple[int, int | None]] = {
            "size": (8, None),
            "seeds": (1, MOST_SEEDS),
            "epochs": (1, None),
            "batch_size": (2, None),
            "kernel": (1, None),
            "shifts": (1, None),
            "devices": (1, MOST_DEVICES),
        }
        for name, (least, most) in limits.items():
            _check_limits(name, getattr(self, name), least, most)
        _check_limits("jobs", options.get("jobs"), 1, MOST_JOBS)
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise LabError(f"--lr must be a positive number, got {self.lr}")
        if self.cluster is not None and self.devices > 1:
            raise LabError("--devices and --cluster divide the work in two ways; give one of them")
        if self.batch_size is not None and self.batch_size < self.devices:
            raise LabError(
                f"--devices {self.devices} needs as many images in a batch, got --batch-size"
                f" {self.batch_size}"
            )
        check_size(self.data, self.size)
        side = BUILTIN.get(self.data, self.size)
        if side is not None:  # otherwise the images have to be read first
            self.check_image(side, side)

    def check_image(self, height: int, width: int) -> None:
        """Check that windows and shifts fit into images of this size.

        Raises
        ------
        LabError
            If they do not; the message names the option.
        """
        check_windows(self.kernel, STRIDE, (height, width))
        if self.shifts is not None and self.shifts >= min(height, width):
            raise LabError(
                f"--shifts {self.shifts} is too large: the images have {height} x {width} pixels"
            )

    def for_data(self, images: int, size: tuple[int, int]) -> Plan:
        """The same plan with the values that depend on the data.

        Parameters
        ----------
        images
            For training.
        size
            Height and width of the images.
        """
        self.check_image(*size)
        least, most = _QUICK_EPOCHS if self.quick else _EPOCHS
        passes = self.task_entry.quick_passes if self.quick else self.task_entry.passes
        epochs = min(max(round(passes / images), least), most)
        suiting = self.settings(self.methods[0], self.heads[0], 0).for_images(images).batch_size
        assert suiting is not None
        batch_size = self.batch_size or min(suiting, _LARGEST_BATCH)
        smallest = images // steps_per_epoch(images, batch_size)
        if self.devices > smallest:
            raise LabError(
                f"--devices {self.devices} needs as many images in a batch; there are"
                f" {counted(smallest, 'image')} in the smallest"
            )
        methods = self.methods
        if not self.chosen and min(size) > LARGEST_FOR_NONE:
            methods = tuple(method for method in methods if method != "none")
        return replace(
            self,
            methods=methods,
            epochs=self.epochs or epochs,
            batch_size=batch_size,
            shifts=self.shifts or max(1, min(size) // 8),
        )

    def settings(self, method: str, head: Head, seed: int) -> Settings:
        """The settings of one run."""
        pool: Pool = next((name for name in NAMES if name == method), "max")
        return Settings(
            data=self.data,
            size=self.size,
            pool=pool,
            head=head,
            kernel=self.kernel,
            stride=STRIDE,
            epochs=self.epochs or 1,
            batch_size=self.batch_size,
            lr=self.lr,
            optimizer="adam",
            seed=seed,
            threads=None,
        )

    @property
    def task_entry(self) -> Task:
        """The task."""
        return TASKS[self.task]

    @property
    def baseline(self) -> str:
        """The method that the others are compared with: max pooling, or else the first."""
        usual = self.task_entry.baseline
        return usual if usual in self.methods else self.methods[0]

    @property
    def data_name(self) -> str:
        """A short name of the data, fit for a folder name."""
        return short_name(self.data)

    def default_out(self) -> Path:
        """The folder where the user names none."""
        task = "" if self.task == "classify" else f"-{self.task}"
        quick = "-quick" if self.quick else ""
        return Path("runs") / f"compare{task}-{self.data_name}{quick}"

    def deciding(self) -> dict[str, Any]:
        """Return the options that affect the results; a resumed comparison must have the same.

        Methods, heads and seeds may be added; jobs, devices and the cluster only change how the
        work is divided.
        """
        names = ("task", "data", "size", "epochs", "batch_size", "lr", "kernel", "conv_padding",
                 "shifts")  # fmt: skip
        return {name: getattr(self, name) for name in names}

    @property
    def threads(self) -> int:
        """Threads of each process: one, unless there are fewer processes than processors."""
        return max(1, processors() // (self.jobs * self.devices)) if self.jobs == 1 else 1

    def job(self, method: str, head: Head, seed: int) -> Job:
        """One run."""
        assert self.shifts is not None, "chosen for the data"
        return Job(
            task=self.task,
            method=method,
            head=head,
            seed=seed,
            settings=self.settings(method, head, seed),
            conv_padding=self.conv_padding,
            shifts=self.shifts,
            examples=EXAMPLES if seed == 0 and head == self.heads[0] else 0,
            devices=self.devices,
            threads=self.threads,
        )

    def grid(self) -> list[Job]:
        """All runs: every method with the first seed, then with the second, ..."""
        return [
            self.job(method, head, seed)
            for seed in range(self.seeds)
            for method, head in self.pairs()
        ]

    def pairs(self) -> list[tuple[str, Head]]:
        """Methods and heads, in the order of the report."""
        return [(method, head) for head in self.heads for method in self.methods]


def names(option: str, text: str, accepted: Sequence[str]) -> tuple[str, ...]:
    """Split a text such as `max,avg` into names, each once.

    Raises
    ------
    LabError
        If one is unknown, or there is none; the message names the option and what is accepted.
    """
    given = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in given if name not in accepted]
    if unknown or not given:
        got = shorten(unknown[0] if unknown else text)
        raise LabError(
            f"{flag(option)} must be names of {', '.join(accepted)}, separated by commas; got {got}"
        )
    return tuple(dict.fromkeys(given))


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check_limits(name: str, value: int | None, least: int, most: int | None) -> None:
    if value is None:
        return
    if value < least:
        raise LabError(f"{flag(name)} must be at least {least}, got {value}")
    if most is not None and value > most:
        raise LabError(f"{flag(name)} must be at most {most}, got {value}")
