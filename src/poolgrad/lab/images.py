"""Reads image files for the lab's data sets, with errors that name the file and the reason."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from poolgrad.lab.settings import MAX_SIDE, LabError, first_line

# Limits of one image, and of all images of a data set after resizing.
MAX_PIXELS = MAX_SIDE**2
MAX_ALL_PIXELS = 1_000_000_000


def image_files(folder: Path) -> list[Path]:
    """All image files in a folder and in the folders in it, in the order of their paths."""
    Image.init()
    known = Image.registered_extensions()
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in known and file.is_file() and not hidden(file)
    )


def header_size(file: Path) -> tuple[int, int] | None:
    """Height and width by the header of an image file; None if it cannot be read."""
    try:
        with warnings.catch_warnings(), Image.open(file) as opened:
            warnings.simplefilter("ignore")
            turned = opened.getexif().get(ExifTags.Base.Orientation, 1) >= 5
            return opened.size if turned else opened.size[::-1]
    except Exception:
        return None


def open_image(file: Path) -> Image.Image:
    """Decode an image of any mode, and rotate it as its metadata require.

    Raises
    ------
    LabError
        If the file is no image, is broken, or has more than `MAX_PIXELS` pixels.
    """
    try:
        with warnings.catch_warnings(), Image.open(file) as opened:
            # Half-understood metadata and very large pictures make Pillow warn; both are readable.
            warnings.simplefilter("ignore")
            if opened.width * opened.height > MAX_PIXELS:
                raise LabError(
                    f"{file} has {extent(opened)} = {opened.width * opened.height:,} pixels; at"
                    f" most {MAX_PIXELS:,} are read"
                )
            opened.load()
            return ImageOps.exif_transpose(opened)
    except LabError:
        raise
    except Image.DecompressionBombError as error:  # Pillow's own limit is above ours
        raise LabError(f"{file} is too large: at most {MAX_PIXELS:,} pixels are read") from error
    except UnidentifiedImageError as error:
        raise LabError(f"{file} is not an image, or a broken one") from error
    except Exception as error:  # every decoder has its own exceptions
        raise LabError(f"{file} cannot be read: {first_line(error)}") from error


def read_image(file: Path, size: int | None) -> Image.Image:
    """One image as 8-bit greyscale (mode L) or colour (RGB).

    Parameters
    ----------
    file
        The image.
    size
        Resize to this width and height; None: the image keeps its own.

    Raises
    ------
    LabError
        If the file cannot be read, is too large, or has 32-bit pixels.
    """
    picture = open_image(file)
    if picture.mode.startswith("I;16"):  # convert("L") would clip these, not scale them
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    elif picture.mode in ("I", "F"):
        raise LabError(f"{file} has 32-bit pixels, whose range is unknown; save it with 8 or 16")
    picture = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
    return picture if size is None else picture.resize((size, size), Image.Resampling.LANCZOS)


class ImageStack:
    """Collects pictures of one size into one array.

    Parameters
    ----------
    folder
        Folder of the data set, for errors.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first = folder
        self._pictures: list[Image.Image] = []
        self._pixels = 0

    def append(self, picture: Image.Image, file: Path) -> None:
        """Add a picture of mode L or RGB that was read from a file.

        Raises
        ------
        LabError
            If its size is not that of the others, or all of them have too many pixels together.
        """
        if not self._pictures:
            self._first = file
        elif picture.size != self._pictures[0].size:
            raise LabError(
                f"{file} has {extent(picture)} pixels, {self._first} has"
                f" {extent(self._pictures[0])}; give --size to resize all images"
            )
        self._pixels += picture.width * picture.height
        if self._pixels > MAX_ALL_PIXELS:
            raise LabError(
                f"--data {self._folder}: the images have more than {MAX_ALL_PIXELS:,} pixels"
                f" together (at {file}); give --size to resize them"
            )
        self._pictures.append(picture)

    def array(self) -> NDArray[np.uint8]:
        """All pictures, shape (N, C, H, W); one coloured picture makes all of them coloured."""
        mode = "L" if all(picture.mode == "L" for picture in self._pictures) else "RGB"
        height, width = self._pictures[0].height, self._pictures[0].width
        images = np.empty((len(self._pictures), height, width, len(mode)), np.uint8)
        for i, picture in enumerate(self._pictures):
            images[i] = np.asarray(picture.convert(mode)).reshape(images.shape[1:])
        return np.ascontiguousarray(np.moveaxis(images, -1, 1))


def extent(picture: Image.Image) -> str:
    """Width and height, such as ``640 x 480``."""
    return f"{picture.width} x {picture.height}"


def hidden(path: Path) -> bool:
    """Whether the name begins with a dot."""
    return path.name.startswith(".")
