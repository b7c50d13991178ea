"""Images with masks: digits scattered on a canvas, or a folder of images and masks; their split."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from poolgrad.lab.data import MIN_PER_CLASS, Split, split_labels
from poolgrad.lab.images import ImageStack, extent, image_files, open_image, read_image
from poolgrad.lab.segment.canvas import scatter_digits
from poolgrad.lab.segment.scores import VOID
from poolgrad.lab.settings import BUILTIN, SCATTERED_DIGITS, LabError, counted

MOST_CLASSES = 64
MOST_MAP_PIXELS = 1024 * 1024  # of the images that are trained on
SMALLEST_SIDE = 16
_GREY_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L", "I;16N")


@dataclass(frozen=True)
class MaskedImages:
    """Images of one size, with the class of every pixel.

    Attributes
    ----------
    images
        Shape (N, C, H, W), uint8.
    masks
        Shape (N, H, W), uint8: class numbers below `len(classes)`, or `VOID` for pixels that do not
        count. Class 0 is the background.
    classes
        The names of the classes: the values in the mask files.
    """

    images: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    classes: tuple[str, ...]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.images.shape[2], self.images.shape[3]

    def fingerprint(self) -> str:
        """Return a hash of images, masks and classes: equal if a training run reads the same."""
        digest = hashlib.sha256(repr((self.images.shape, self.classes)).encode())
        digest.update(self.images.tobytes())
        digest.update(self.masks.tobytes())
        return digest.hexdigest()


def load(source: str, size: int | None = None) -> MaskedImages:
    """Read a data set for segmentation.

    Parameters
    ----------
    source
        `"scattered-digits"` (scikit-learn's digits on canvases of 64 x 64 among distractors), or a
        folder with the folders `images` and `masks`, whose files have equal names up to the suffix.
        Images may be grey or coloured. Masks are grey or palette images of class numbers, or of 0
        and 255. Beside at least two other values, 255 marks pixels that do not count, as in Pascal
        VOC. Masks of single images may be all background.
    size
        Resize images (Lanczos) and masks (nearest neighbour) to this height and width; None: the
        images must have one size already.

    Raises
    ------
    LabError
        If the data cannot be used; the message names the file and the reason.
    """
    if source == SCATTERED_DIGITS:
        if size is not None:
            raise LabError(f"--size resizes the images of a --data folder, not {SCATTERED_DIGITS}")
        images, masks = scatter_digits()
        return MaskedImages(images, masks, ("background", "digit"))
    if source in BUILTIN:
        raise LabError(f"--data {source} has no masks; --task segment has {SCATTERED_DIGITS}")
    folder = Path(source)
    try:
        if not folder.exists():
            raise LabError(f"--data {folder} does not exist")
        if not folder.is_dir():
            raise LabError(f"--data {folder} is not a folder; masks need one with images and masks")
        return _load_folder(folder, size)
    except OSError as error:
        raise LabError(f"--data {folder} cannot be read: {error}") from error


def split(data: MaskedImages) -> Split:
    """Split by image into 70 % to train, 10 % to validate and 20 % to test.

    Images are stratified by the rarest of the classes that they contain, so that each class is
    found in every part in about the same share. The split is always the same for the same data.
    """
    return split_labels(_rarest_class(data))


def _rarest_class(data: MaskedImages) -> NDArray[np.int64]:
    """For each image the rarest class that it contains; classes of too few images are merged."""
    contains = _contained(data)
    order = contains.sum(0).argsort(kind="stable")
    rarest: NDArray[np.int64] = order[contains[:, order].argmax(1)]
    rarest[~contains.any(1)] = order[-1]  # VOID only
    counts = np.bincount(rarest, minlength=len(data.classes))
    rarest[counts[rarest] < MIN_PER_CLASS] = counts.argmax()
    return rarest


def _contained(data: MaskedImages) -> NDArray[np.bool_]:
    """Whether an image contains a class, shape (N, classes)."""
    return np.stack([(data.masks == k).any((1, 2)) for k in range(len(data.classes))], axis=1)


def _load_folder(folder: Path, size: int | None) -> MaskedImages:
    image_paths, mask_paths = _pairs(folder)
    images = ImageStack(folder)
    masks: list[NDArray[np.int32]] = []
    for image_path, mask_path in zip(image_paths, mask_paths, strict=True):
        whole = read_image(image_path, None)
        mask = _read_mask(mask_path)
        if whole.size != mask.size:
            raise LabError(
                f"{mask_path} has {extent(mask)} pixels, but its image {image_path} has"
                f" {extent(whole)}"
            )
        if size is not None:
            whole = whole.resize((size, size), Image.Resampling.LANCZOS)
            mask = mask.resize((size, size), Image.Resampling.NEAREST)
        if not masks:
            _check_size(image_path, whole)
        images.append(whole, image_path)
        masks.append(np.asarray(mask).astype(np.int32))
    numbers, classes = _number_classes(np.stack(masks), mask_paths)
    data = MaskedImages(images.array(), numbers, classes)
    _check_counts(data, folder)
    return data


def _check_size(file: Path, picture: Image.Image) -> None:
    if min(picture.size) < SMALLEST_SIDE:
        raise LabError(
            f"{file} has {extent(picture)} pixels; at least {SMALLEST_SIDE} x {SMALLEST_SIDE} are"
            " needed"
        )
    if picture.width * picture.height > MOST_MAP_PIXELS:
        raise LabError(
            f"{file} has {extent(picture)} pixels; at most {MOST_MAP_PIXELS:,} are trained on: give"
            " --size to resize all images"
        )


def _pairs(folder: Path) -> tuple[list[Path], list[Path]]:
    """The image files and, in the same order, their masks."""
    found: dict[str, dict[str, Path]] = {}
    for part in ("images", "masks"):
        path = folder / part
        if not path.is_dir():
            raise LabError(
                f"--data {folder} has no folder {part}; expected {folder}/images and"
                f" {folder}/masks with equally named files"
            )
        names: dict[str, Path] = {}
        for file in image_files(path):
            name = str(file.relative_to(path).with_suffix(""))
            if name in names:
                raise LabError(f"{file} has the same name as {names[name]}; rename one of them")
            names[name] = file
        if not names:
            raise LabError(f"{path} holds no images")
        found[part] = names
    images, masks = found["images"], found["masks"]
    for name, file in images.items():
        if name not in masks:
            raise LabError(f"{file} has no mask; expected {folder / 'masks' / name}.png")
    for name, file in masks.items():
        if name not in images:
            raise LabError(f"{file} has no image in {folder / 'images'}")
    return list(images.values()), [masks[name] for name in images]


def _read_mask(file: Path) -> Image.Image:
    """A mask whose pixels are the values in the file: palette indices, not colours."""
    mask = open_image(file)
    if mask.mode in ("LA", "RGB", "RGBA"):
        channels = np.asarray(mask.convert("RGB"))
        if (channels != channels[..., :1]).any():
            raise LabError(
                f"{file} is coloured; a mask must be grey or have a palette, with class numbers or"
                " 0 and 255 as values"
            )
        mask = Image.fromarray(np.ascontiguousarray(channels[..., 0]))
    if mask.mode not in _GREY_MODES:
        raise LabError(f"{file} has pixels of mode {mask.mode}; a mask must have integer ones")
    values = np.asarray(mask)
    if mask.mode == "1":
        values = values.astype(np.uint8)
    return Image.fromarray(values.astype(np.int32))


def _number_classes(
    masks: NDArray[np.int32], files: Sequence[Path]
) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """Number the values in all masks from 0 on, in ascending order; 255 may be `VOID`."""
    values = np.unique(masks)
    if len(values) > 2:
        values = values[values != VOID]
    if len(values) == 1:
        raise LabError(
            f"{files[0]} and all other masks have only the class {values[0]}; at least 2 are needed"
        )
    if len(values) > MOST_CLASSES:
        # Names the first file with too many values, which may have lossy compression.
        most = max(range(len(files)), key=lambda i: len(np.unique(masks[i])))
        raise LabError(
            f"{files[most].parent} has masks of {len(values)} classes; at most {MOST_CLASSES} are"
            f" accepted. {files[most].name} has {len(np.unique(masks[most]))} of them: is it a"
            " photograph, or compressed with loss?"
        )
    numbers = np.searchsorted(values, masks)
    numbers[~np.isin(masks, values)] = VOID
    return numbers.astype(np.uint8), tuple(str(value) for value in values)


def _check_counts(data: MaskedImages, folder: Path) -> None:
    counts = _contained(data).sum(0)
    fewest = int(counts.argmin())
    if counts[fewest] < MIN_PER_CLASS:
        raise LabError(
            f"{folder / 'masks'}: class {data.classes[fewest]} is in"
            f" {counted(int(counts[fewest]), 'mask')}; at least {MIN_PER_CLASS} are"
            " needed to train, validate and test"
        )


def describe(data: MaskedImages, parts: Split) -> dict[str, Any]:
    """What identifies the data and their split, as it is written to JSON."""
    return {
        "shape": list(data.images.shape),
        "classes": list(data.classes),
        "train": len(parts.train),
        "validation": len(parts.validation),
        "test": len(parts.test),
        "sha256": data.fingerprint(),
    }
