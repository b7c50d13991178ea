"""Images with labels: the digits, a folder of class folders, or an `.npz` file; and their split."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from poolgrad.lab.settings import BUILTIN, DIGITS, TRANSLATED_DIGITS, LabError, counted

TEST_SHARE = 0.2
VALIDATION_SHARE = 0.1
# From this many on, every class has an image in each of the three parts.
MIN_PER_CLASS = 10
_SPLIT_SEED = 0
_PLACES_SEED = 0  # of the translated digits
# Of one image, and of all images of a data set together, after they were resized.
MAX_PIXELS = 64_000_000
MAX_ALL_PIXELS = 1_000_000_000


@dataclass(frozen=True)
class LabelledImages:
    """Images of one size, each with the number of its class.

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
        """A hash of all there is: equal exactly where a training run would see the same."""
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
        random place on an empty canvas of 32 x 32 pixels), a folder that holds a folder of images
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
    """Split into 70 % to train, 10 % to validate and 20 % to test, each class in these shares.

    The split is always the same for the same data, whatever the seed of a run.
    """
    from sklearn.model_selection import train_test_split

    everything = np.arange(len(data.labels))
    rest, test = train_test_split(
        everything, test_size=TEST_SHARE, stratify=data.labels, random_state=_SPLIT_SEED
    )
    train, validation = train_test_split(
        rest,
        test_size=VALIDATION_SHARE / (1 - TEST_SHARE),
        stratify=data.labels[rest],
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

    What cannot be read is left out: `load` says what is wrong with it.
    """
    sizes = set()
    for class_folder in (p for p in folder.iterdir() if p.is_dir() and not _hidden(p)):
        for file in _image_files(class_folder):
            try:
                with warnings.catch_warnings(), Image.open(file) as opened:
                    warnings.simplefilter("ignore")
                    turned = opened.getexif().get(ExifTags.Base.Orientation, 1) >= 5
                    sizes.add(opened.size if turned else opened.size[::-1])
            except Exception:
                continue
    return sizes


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
    """Each image at a place of its own on an empty canvas, which holds the whole image."""
    height, width = data.size
    places = np.random.default_rng(_PLACES_SEED).integers(
        0, (side - height + 1, side - width + 1), (len(data.images), 2)
    )
    images = np.zeros((len(data.images), data.images.shape[1], side, side), data.images.dtype)
    for canvas, image, (row, column) in zip(images, data.images, places, strict=True):
        canvas[:, row : row + height, column : column + width] = image
    return LabelledImages(images, data.labels, data.classes)


def _load_folder(folder: Path, size: int | None) -> LabelledImages:
    class_folders = sorted(p for p in folder.iterdir() if p.is_dir() and not _hidden(p))
    if not class_folders:
        raise LabError(f"--data {folder} has no class folders; expected {folder}/<class>/<image>")
    pictures: list[Image.Image] = []
    labels: list[int] = []
    first: Path | None = None
    pixels = 0
    for label, class_folder in enumerate(class_folders):
        files = _image_files(class_folder)
        if not files:
            raise LabError(f"{class_folder} holds no images")
        for file in files:
            picture = _read_image(file, size)
            if pictures and picture.size != pictures[0].size:
                raise LabError(
                    f"{file} has {_extent(picture)} pixels, {first} has {_extent(pictures[0])};"
                    " give --size to resize all images"
                )
            first = first or file
            pixels += picture.width * picture.height
            if pixels > MAX_ALL_PIXELS:
                raise LabError(
                    f"--data {folder}: the images have more than {MAX_ALL_PIXELS:,} pixels together"
                    f" (at {file}); give --size to resize them"
                )
            pictures.append(picture)
            labels.append(label)
    # One colour picture makes the whole set coloured.
    mode = "L" if all(picture.mode == "L" for picture in pictures) else "RGB"
    height, width = pictures[0].height, pictures[0].width
    images = np.empty((len(pictures), height, width, len(mode)), np.uint8)
    for i, picture in enumerate(pictures):
        images[i] = np.asarray(picture.convert(mode)).reshape(images.shape[1:])
    return LabelledImages(
        np.ascontiguousarray(np.moveaxis(images, -1, 1)),
        np.array(labels, np.int64),
        tuple(class_folder.name for class_folder in class_folders),
    )


def _image_files(class_folder: Path) -> list[Path]:
    Image.init()
    known = Image.registered_extensions()
    return sorted(
        file
        for file in class_folder.rglob("*")
        if file.suffix.lower() in known and file.is_file() and not _hidden(file)
    )


def _read_image(file: Path, size: int | None) -> Image.Image:
    """One image as 8-bit greyscale (mode L) or colour (RGB)."""
    try:
        with warnings.catch_warnings(), Image.open(file) as opened:
            # Half-understood metadata and very large pictures make Pillow warn; both are readable.
            warnings.simplefilter("ignore")
            if opened.width * opened.height > MAX_PIXELS:
                raise LabError(
                    f"{file} has {_extent(opened)} = {opened.width * opened.height:,} pixels; at"
                    f" most {MAX_PIXELS:,} are read"
                )
            opened.load()
            picture = ImageOps.exif_transpose(opened)
    except LabError:
        raise
    except UnidentifiedImageError as error:
        raise LabError(f"{file} is not an image, or a broken one") from error
    except Exception as error:  # every format's decoder has its own
        raise LabError(f"{file} cannot be read: {_first_line(error)}") from error
    if picture.mode.startswith("I;16"):  # convert("L") would clip these, not scale them
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    elif picture.mode in ("I", "F"):
        raise LabError(f"{file} has 32-bit pixels, whose range is unknown; save it with 8 or 16")
    picture = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
    return picture if size is None else picture.resize((size, size), Image.Resampling.LANCZOS)


def _extent(picture: Image.Image) -> str:
    return f"{picture.width} x {picture.height}"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")


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
                if not isinstance(arrays[name], np.ndarray):  # np.load gives what is none as bytes
                    raise LabError(f"{path}: {name} is no array")
    except LabError:
        raise
    except Exception as error:  # zip, zlib, npy headers, pickles: each has its own exceptions
        raise LabError(f"{path} cannot be read: {_first_line(error)}") from error
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
        # After the cast, which turns what float32 cannot hold into infinity.
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
