"""Images with labels: the digits, a folder of class folders, or an `.npz` file; and their split."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad.lab.images import (
    MAX_PIXELS,
    ImageStack,
    header_size,
    hidden,
    image_files,
    read_image,
)
from poolgrad.lab.settings import (
    BUILTIN,
    DIGITS,
    SCATTERED_DIGITS,
    TRANSLATED_DIGITS,
    LabError,
    counted,
    first_line,
)

TEST_SHARE = 0.2
VALIDATION_SHARE = 0.1
# With at least this many, every class has an image in each of the three parts.
MIN_PER_CLASS = 10
_SPLIT_SEED = 0
_POSITIONS_SEED = 0  # of the translated digits


@dataclass(frozen=True)
class LabelledImages:
    """Images of one size, with class numbers.

    Attributes
    ----------
    images
        Shape (N, C, H, W), uint8 or float32.
    labels
        Shape (N,), int64, each below `len(classes)`.
    classes
        The names of the classes.
    """

    images: NDArray[Any]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.images.shape[2], self.images.shape[3]

    def fingerprint(self) -> str:
        """Return a hash of images and labels: equal if a training run reads the same."""
        digest = hashlib.sha256(repr((self.images.shape, self.images.dtype, self.classes)).encode())
        digest.update(self.images.tobytes())
        digest.update(self.labels.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Split:
    """Which images train, which validate, which test: indices, shape (n,), int64."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


def load(source: str, size: int | None = None) -> LabelledImages:
    """Read a data set.

    Parameters
    ----------
    source
        `"digits"` (scikit-learn's handwritten digits), `"translated-digits"` (the same, each at a
        random position on a canvas of 32 x 32 pixels), a folder that holds a folder of images
        for each class, or an `.npz` file with `images`, (N, H, W) or (N, H, W, C), and `labels`,
        (N,).
    size
        Resize the images of a folder to this side; None: they must have one size already.

    Raises
    ------
    LabError
        If the data cannot be used; the message names the file and the reason.
    """
    path = Path(source)
    try:
        if source == DIGITS:
            data = _load_digits()
        elif source == TRANSLATED_DIGITS:
            data = _translated(_load_digits(), BUILTIN[TRANSLATED_DIGITS])
        elif source == SCATTERED_DIGITS:
            raise LabError(f"--data {source} has masks: it is for poolgrad compare --task segment")
        elif path.is_dir():
            data = _load_folder(path, size)
        elif not path.exists():
            raise LabError(f"--data {path} does not exist")
        elif path.suffix != ".npz":
            raise LabError(f"--data {path} is neither a folder nor an .npz file")
        elif size is not None:
            raise LabError(f"--size resizes the images of a folder, not those of {path}")
        else:
            data = _load_npz(path)
    except OSError as error:
        raise LabError(f"--data {source} cannot be read: {error}") from error
    _check_classes(data, source)
    return data


def split(data: LabelledImages) -> Split:
    """Split every class into 70 % for training, 10 % for validation and 20 % for the test.

    The split is always the same for the same data, whatever the seed of a run.
    """
    return split_labels(data.labels)


def split_labels(labels: NDArray[np.int64]) -> Split:
    """Split images that have these labels as `split` does."""
    from sklearn.model_selection import train_test_split

    everything = np.arange(len(labels))
    rest, test = train_test_split(
        everything, test_size=TEST_SHARE, stratify=labels, random_state=_SPLIT_SEED
    )
    train, validation = train_test_split(
        rest,
        test_size=VALIDATION_SHARE / (1 - TEST_SHARE),
        stratify=labels[rest],
        random_state=_SPLIT_SEED,
    )
    return Split(train=train, validation=validation, test=test)


def describe(data: LabelledImages, parts: Split) -> dict[str, Any]:
    """What identifies the data and their split, as it is written to JSON."""
    return {
        "shape": list(data.images.shape),
        "classes": list(data.classes),
        "train": len(parts.train),
        "validation": len(parts.validation),
        "test": len(parts.test),
        "sha256": data.fingerprint(),
    }


def image_sizes(folder: Path) -> set[tuple[int, int]]:
    """Heights and widths of the images in the class folders of a folder; only headers are read.

    Files that cannot be read are left out; `load` raises the error for them.
    """
    class_folders = (p for p in folder.iterdir() if p.is_dir() and not hidden(p))
    files = (file for class_folder in class_folders for file in image_files(class_folder))
    return {size for file in files if (size := header_size(file)) is not None}


def _check_classes(data: LabelledImages, source: str) -> None:
    if len(data.classes) < 2:
        raise LabError(f"{source} has one class only ({data.classes[0]}); at least 2 are needed")
    counts = np.bincount(data.labels, minlength=len(data.classes))
    fewest = int(counts.argmin())
    if counts[fewest] < MIN_PER_CLASS:
        raise LabError(
            f"{source}: class {data.classes[fewest]} has {counted(int(counts[fewest]), 'image')};"
            f" at least {MIN_PER_CLASS} are needed to train, validate and test"
        )


def _load_digits() -> LabelledImages:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = digits.images.astype(np.uint8)[:, None]  # whole numbers from 0 to 16
    labels = digits.target.astype(np.int64)
    return LabelledImages(images, labels, tuple(str(name) for name in digits.target_names))


def _translated(data: LabelledImages, side: int) -> LabelledImages:
    """Place each image at a random position on an empty canvas that contains the whole image."""
    height, width = data.size
    positions = np.random.default_rng(_POSITIONS_SEED).integers(
        0, (side - height + 1, side - width + 1), (len(data.images), 2)
    )
    images = np.zeros((len(data.images), data.images.shape[1], side, side), data.images.dtype)
    for canvas, image, (row, column) in zip(images, data.images, positions, strict=True):
        canvas[:, row : row + height, column : column + width] = image
    return LabelledImages(images, data.labels, data.classes)


def _load_folder(folder: Path, size: int | None) -> LabelledImages:
    class_folders = sorted(p for p in folder.iterdir() if p.is_dir() and not hidden(p))
    if not class_folders:
        raise LabError(f"--data {folder} has no class folders; expected {folder}/<class>/<image>")
    images = ImageStack(folder)
    labels: list[int] = []
    for label, class_folder in enumerate(class_folders):
        files = image_files(class_folder)
        if not files:
            raise LabError(f"{class_folder} holds no images")
        for file in files:
            images.append(read_image(file, size), file)
            labels.append(label)
    return LabelledImages(
        images.array(),
        np.array(labels, np.int64),
        tuple(class_folder.name for class_folder in class_folders),
    )


def _load_npz(path: Path) -> LabelledImages:
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with open(path, "rb") as stream:  # np.load itself leaves a broken file open
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise LabError(f"{path} holds one array, not `images` and `labels`")
            for name in ("images", "labels"):
                if name not in file:
                    found = ", ".join(sorted(file.files)) or "nothing"
                    raise LabError(f"{path} has no array {name!r}; it has {found}")
                arrays[name] = file[name]
                if not isinstance(arrays[name], np.ndarray):  # np.load returns other files as bytes
                    raise LabError(f"{path}: {name} is not an array")
    except LabError:
        raise
    except Exception as error:  # zip, zlib, npy headers, pickles: each has its own exceptions
        raise LabError(f"{path} cannot be read: {first_line(error)}") from error
    images, labels = arrays["images"], arrays["labels"]
    return LabelledImages(_npz_images(path, images, labels), *_npz_labels(path, labels))


def _npz_images(path: Path, images: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise LabError(
            f"{path}: images must have shape (N, H, W) or (N, H, W, C), got {images.shape}"
        )
    if images[0].size > MAX_PIXELS:
        raise LabError(
            f"{path}: an image has {images[0].size:,} values; at most {MAX_PIXELS:,} are read"
        )
    if labels.shape != images.shape[:1]:
        raise LabError(
            f"{path}: labels must have shape ({len(images)},) for {len(images)} images,"
            f" got {labels.shape}"
        )
    if images.dtype.kind not in "buif":
        raise LabError(f"{path}: images must be numbers, got dtype {images.dtype}")
    if images.dtype != np.uint8:
        with np.errstate(over="ignore"):
            images = images.astype(np.float32)
        # After the cast, which converts numbers beyond float32 to infinity.
        broken = ~np.isfinite(images).reshape(len(images), -1).all(axis=1)
        if broken.any():
            raise LabError(f"{path}: image {int(broken.argmax())} has NaN or infinite values")
    if images.ndim == 3:
        images = images[..., None]
    return np.ascontiguousarray(np.moveaxis(images, -1, 1))


def _npz_labels(path: Path, labels: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if labels.dtype.kind not in "buiUS":
        raise LabError(f"{path}: labels must be integers or strings, got dtype {labels.dtype}")
    names, numbers = np.unique(labels, return_inverse=True)
    classes = (name.decode(errors="replace") if isinstance(name, bytes) else name for name in names)
    return numbers.astype(np.int64), tuple(str(name) for name in classes)
