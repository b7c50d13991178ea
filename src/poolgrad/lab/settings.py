"""The settings of a training run: their defaults, their rules, and those of a resumed run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from poolgrad.lab.pools import HEADS, NAMES, Head, Pool

Optimizer = Literal["sgd", "adagrad", "rmsprop", "adam"]

DIGITS, TRANSLATED_DIGITS = "digits", "translated-digits"
SCATTERED_DIGITS = "scattered-digits"  # with masks
# Data sets that come with scikit-learn, and the side of their images in pixels.
BUILTIN = {DIGITS: 8, TRANSLATED_DIGITS: 32, SCATTERED_DIGITS: 64}
_BATCH_SIZES = (8, 64)
MOST_THREADS = 1024
MAX_SIDE = 8000  # of an image, in pixels
# With fewer steps per epoch, 30 epochs are too few for batch normalisation and the optimizer.
_FEWEST_STEPS = 16

# Found with the digits on splits other than the one the lab tests on.
_LEARNING_RATES: dict[Optimizer, float] = {
    "sgd": 0.1,
    "adagrad": 0.03,
    "rmsprop": 0.005,
    "adam": 0.01,
}


# JSON's names of types, and the types of the settings in settings.json.
_TYPES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    int: "an integer",
    float: "a number",
    type(None): "null",
}
_STORED: dict[str, tuple[type, ...]] = {
    "data": (str,),
    "size": (int, type(None)),
    "pool": (str,),
    "head": (str,),
    "kernel": (int,),
    "stride": (int,),
    "epochs": (int,),
    "batch_size": (int,),
    "lr": (float, int),
    "optimizer": (str,),
    "seed": (int,),
    "threads": (int, type(None)),
}


class LabError(Exception):
    """An error that the user can fix: a bad option, broken data, an existing folder.

    The message is one line that names what is wrong and where.
    """


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result of a run.

    The types in `_STORED` are those of the attributes, once the batch size is chosen.

    Attributes
    ----------
    data
        `"digits"`, `"translated-digits"`, or the path of a folder of class folders or of an `.npz`
        file.
    size
        Side to which the images of a folder are resized; None: they keep theirs.
    pool
        How feature maps are made smaller: one of `poolgrad.lab.pools.NAMES`.
    head
        How the last map becomes scores of classes: one of `poolgrad.lab.pools.HEADS`.
    kernel, stride
        Kernel and stride of the pooling windows, in both directions.
    epochs, lr, optimizer
        Epochs, learning rate (the highest of the schedule) and optimizer of the training.
    batch_size
        Images in a step; None: chosen by `for_images`.
    seed
        Of weights, shuffling and augmentation. The split of the data does not depend on it, so
        that runs with different seeds are tested on the same images.
    threads
        Number of threads; None: one where the images are so small that more would not help,
        otherwise PyTorch's own number. It changes the last bits, since sums are split otherwise.
    """

    data: str
    size: int | None
    pool: Pool
    head: Head
    kernel: int
    stride: int
    epochs: int
    batch_size: int | None
    lr: float
    optimizer: Optimizer
    seed: int
    threads: int | None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Settings:
        """Fill in defaults for the options that are absent, and check the values.

        Parameters
        ----------
        options
            Values by attribute name. The stride defaults to the kernel (windows side by side),
            the learning rate to one that suits the optimizer.

        Raises
        ------
        LabError
            If a value makes no sense; the message names the option.
        """
        check_choice(options, "pool", NAMES)
        check_choice(options, "head", HEADS)
        check_choice(options, "optimizer", get_args(Optimizer))
        kernel = options.get("kernel", 2)
        optimizer: Optimizer = options.get("optimizer", "adam")
        settings = cls(
            data=absolute(str(options.get("data", DIGITS))),
            size=options.get("size"),
            pool=options.get("pool", "max"),
            head=options.get("head", "avg"),
            kernel=kernel,
            stride=options.get("stride", kernel),
            epochs=options.get("epochs", 30),
            batch_size=options.get("batch_size"),
            lr=options.get("lr", _LEARNING_RATES[optimizer]),
            optimizer=optimizer,
            seed=options.get("seed", 0),
            threads=options.get("threads"),
        )
        settings._check()
        return settings

    @classmethod
    def from_stored(cls, stored: object, path: Path) -> Settings:
        """Check the settings that were read from `path`, as `as_dict` returned them.

        Raises
        ------
        LabError
            If a setting is absent, unknown, of a wrong type or out of range; the message names the
            file and the setting.
        """
        options = check_entries(stored, _STORED, path, "settings")
        try:
            return cls.from_options({k: v for k, v in options.items() if v is not None})
        except LabError as error:
            raise LabError(f"{path}: {error}") from error

    def _check(self) -> None:
        # Batch normalisation needs two images per batch.
        at_least = {"size": 2, "kernel": 1, "stride": 1, "epochs": 1, "batch_size": 2, "seed": 0}
        for name, least in {**at_least, "threads": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise LabError(f"{flag(name)} must be at least {least}, got {value}")
        if self.threads is not None and self.threads > MOST_THREADS:
            raise LabError(f"--threads must be at most {MOST_THREADS}, got {self.threads}")
        if self.seed >= 2**32:
            raise LabError(f"--seed must be below 2**32, got {self.seed}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise LabError(f"--lr must be a positive number, got {self.lr}")
        check_size(self.data, self.size)
        side = BUILTIN.get(self.data, self.size)
        if side is not None:  # otherwise the images have to be read first
            check_windows(self.kernel, self.stride, (side, side))

    def for_images(self, count: int) -> Settings:
        """The same settings with a batch size that suits this number of training images.

        A power of two from 8 to 64, the largest that leaves 16 steps in an epoch. A given batch
        size stays.
        """
        if self.batch_size is not None:
            return self
        largest = max(count // _FEWEST_STEPS, 1)
        power = 2 ** (largest.bit_length() - 1)
        return replace(self, batch_size=min(max(power, _BATCH_SIZES[0]), _BATCH_SIZES[1]))

    @property
    def data_name(self) -> str:
        """A short name of the data, fit for a folder name."""
        return short_name(self.data)

    def default_out(self) -> Path:
        """The run folder where the user names none."""
        windows = f"{self.kernel}x{self.stride}"
        head = "" if self.head == "avg" else f"-{self.head}"
        return Path("runs") / f"{self.data_name}-{self.pool}{head}-{windows}-seed{self.seed}"

    def as_dict(self) -> dict[str, Any]:
        """The settings by name, as they are written to JSON."""
        return asdict(self)


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Return the number of batches of an epoch, none of which is a single image.

    Three images make one batch where the size is 2: batch normalisation needs two.
    """
    return max(1, min(math.ceil(images / batch_size), images // 2))


def check_windows(kernel: int, stride: int, size: tuple[int, int]) -> None:
    """Check that images of this height and width hold one window and one stride.

    Raises
    ------
    LabError
        If they do not; the message names the option.
    """
    for name, value in (("kernel", kernel), ("stride", stride)):
        if value > min(size):
            raise LabError(
                f"--{name} {value} is too large: the feature map to be pooled is only"
                f" {size[0]} x {size[1]}"
            )


def counted(number: int, noun: str) -> str:
    """A number and its noun, such as ``1 epoch`` or ``2 epochs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def flag(name: str) -> str:
    """The command-line option that sets the setting `name`."""
    return "--" + name.replace("_", "-")


def join_stored(
    stored: Mapping[str, Any], options: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """Return the options of a resumed run; those that are passed must equal the stored ones.

    `data` is left to the caller, who compares the images themselves: they may have moved.

    Raises
    ------
    LabError
        If a given option differs from the stored one; the message names the option.
    """
    for name, value in options.items():
        if name != "data" and stored.get(name) != value:
            raise LabError(
                f"{flag(name)}: the run in {folder} was started with {stored.get(name)}, not"
                f" {value}; leave the option out to resume, or choose another --out"
            )
    return {name: value for name, value in {**stored, **options}.items() if value is not None}


def check_entries(
    content: object,
    types: Mapping[str, tuple[type, ...]],
    path: Path,
    entry: str | None = None,
    others: bool = False,
) -> dict[str, Any]:
    """Check that a JSON object has the entries that are needed, each of an accepted type.

    Parameters
    ----------
    content
        What was read.
    types
        The accepted types by name; a bool is no int.
    path, entry
        The file, and the name of the object in it; None: the object is the whole file.
    others
        Whether entries that `types` does not name are accepted.

    Returns
    -------
    dict
        `content`.

    Raises
    ------
    LabError
        If it does not; the message names the file and the entry.
    """
    where = f"`{entry}` in {path}" if entry else f"{path}"
    if not isinstance(content, dict):
        raise LabError(f"{where} must be {_TYPES[dict]}, got {shorten(content)}")
    for name, accepted in types.items():
        if name not in content:
            raise LabError(f"{where} has no `{name}`")
        value = content[name]
        if not isinstance(value, accepted) or isinstance(value, bool):
            expected = " or ".join(_TYPES[each] for each in accepted)
            raise LabError(f"`{name}` in {path} must be {expected}, got {shorten(value)}")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise LabError(f"`{name}` in {path} must be below 2**63, got {shorten(value)}")
    unknown = [name for name in content if name not in types]
    if unknown and not others:
        raise LabError(f"{where} has an unknown entry {shorten(unknown[0])}")
    return content


def shorten(value: object) -> str:
    """The `repr` of a value, in one line of at most 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the error's type if it has none."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def check_size(data: str, size: int | None) -> None:
    """Check a size to which images are resized; only the images of a folder can be.

    Raises
    ------
    LabError
        If it is given for the digits, whose size is fixed, or is above `MAX_SIDE`.
    """
    if size is not None and size > MAX_SIDE:
        raise LabError(f"--size must be at most {MAX_SIDE}, got {size}")
    if size is not None and data in BUILTIN:
        side = BUILTIN[data]
        raise LabError(
            f"--size resizes the images of a --data folder; the digits have {side} x {side}"
        )


def short_name(data: str) -> str:
    """A short name of the data, fit for a folder name."""
    if data in BUILTIN:
        return data
    name = Path(data).name.removesuffix(".npz")
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "data"


def absolute(data: str) -> str:
    """The absolute path of data; the name of a data set that comes with scikit-learn stays.

    Raises
    ------
    LabError
        If it is not a path.
    """
    if data in BUILTIN:
        return data
    try:
        return str(Path(data).expanduser().resolve())
    except (RuntimeError, ValueError) as error:  # of an unknown user's home; of a null character
        raise LabError(f"--data {data!r} is not a path: {error}") from error


def check_choice(options: Mapping[str, Any], name: str, accepted: tuple[str, ...]) -> None:
    """Check that an option, if given, is one of some names.

    Raises
    ------
    LabError
        If it is not; the message names the option.
    """
    if name in options and options[name] not in accepted:
        raise LabError(f"{flag(name)} must be one of {', '.join(accepted)}; got {options[name]!r}")
