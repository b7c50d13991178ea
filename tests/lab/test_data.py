from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from poolgrad.lab import LabError
from poolgrad.lab.data import load, split

from .conftest import MakeFolder


def save_npz(tmp_path: Path, **arrays: Any) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    return path


def labels(count: int = 20) -> np.ndarray[Any, Any]:
    return np.arange(count) % 2


def images(count: int = 20, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).random((count, *(shape or (8, 8))), np.float32)


class TestDigits:
    def test_all_of_them(self) -> None:
        digits = load("digits")
        assert digits.images.shape == (1797, 1, 8, 8)
        assert digits.images.dtype == np.uint8
        assert digits.images.max() == 16
        assert digits.classes == tuple("0123456789")
        assert digits.size == (8, 8)

    def test_split_is_stratified_disjoint_and_fixed(self) -> None:
        digits = load("digits")
        parts, again = split(digits), split(digits)
        everything = np.concatenate([parts.train, parts.validation, parts.test])
        assert sorted(everything) == list(range(1797))
        assert (len(parts.train), len(parts.validation), len(parts.test)) == (1257, 180, 360)
        for indices, share in ((parts.train, 0.7), (parts.validation, 0.1), (parts.test, 0.2)):
            counts = np.bincount(digits.labels[indices], minlength=10)
            expected = np.bincount(digits.labels) * share
            assert abs(counts - expected).max() <= 1
        assert np.array_equal(parts.test, again.test)
        assert np.array_equal(parts.train, again.train)

    def test_fingerprint_sees_every_pixel_and_label(self) -> None:
        one, other = load("digits"), load("digits")
        assert one.fingerprint() == other.fingerprint()
        other.images[5, 0, 3, 3] += 1
        assert one.fingerprint() != other.fingerprint()
        other = load("digits")
        other.labels[5] += 1
        assert one.fingerprint() != other.fingerprint()


class TestFolder:
    def test_greyscale(self, make_folder: MakeFolder) -> None:
        folder = make_folder(("b", "a", "c"), size=(6, 9))
        data = load(str(folder))
        assert data.classes == ("a", "b", "c")
        assert data.images.shape == (36, 1, 6, 9)
        assert data.images.dtype == np.uint8
        assert data.labels.tolist() == [0] * 12 + [1] * 12 + [2] * 12
        first = np.asarray(Image.open(folder / "a" / "00.png"))
        assert np.array_equal(data.images[0, 0], first)

    @pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "tiff", "webp", "PNG"])
    def test_formats(self, make_folder: MakeFolder, suffix: str) -> None:
        folder = make_folder(mode="RGB", suffix=suffix)
        assert load(str(folder)).images.shape == (24, 3, 8, 8)

    def test_one_colour_picture_makes_all_coloured(self, make_folder: MakeFolder) -> None:
        folder = make_folder()
        Image.new("RGB", (8, 8), (1, 2, 3)).save(folder / "cat" / "00.png")
        data = load(str(folder))
        assert data.images.shape == (24, 3, 8, 8)
        assert data.images[0, :, 0, 0].tolist() == [1, 2, 3]
        assert np.array_equal(data.images[1, 0], data.images[1, 2])

    def test_16_bits_are_scaled(self, make_folder: MakeFolder) -> None:
        folder = make_folder()
        deep = np.full((8, 8), 200 * 256 + 17, np.uint16)
        Image.fromarray(deep).save(folder / "cat" / "00.png")
        data = load(str(folder))
        assert data.images.shape[1] == 1
        assert (data.images[0] == 200).all()

    def test_32_bits_are_refused(self, make_folder: MakeFolder) -> None:
        folder = make_folder()
        Image.fromarray(np.zeros((8, 8), np.float32)).save(folder / "cat" / "00.tiff")
        with pytest.raises(LabError, match=r"cat.00\.tiff has 32-bit pixels"):
            load(str(folder))

    def test_the_camera_was_turned(self, make_folder: MakeFolder) -> None:
        folder = make_folder(size=(6, 8), suffix="jpg")
        turned = Image.new("L", (6, 8))
        exif = turned.getexif()
        exif[0x0112] = 6  # orientation: show it turned by a quarter
        turned.save(folder / "cat" / "00.jpg", exif=exif)
        assert load(str(folder)).size == (6, 8)

    def test_other_files_are_left_alone(self, make_folder: MakeFolder) -> None:
        folder = make_folder()
        (folder / "README.txt").write_text("cats and dogs")
        (folder / "cat" / "notes.txt").write_text("purr")
        (folder / "cat" / ".hidden.png").write_text("no image")
        (folder / ".git").mkdir()
        data = load(str(folder))
        assert data.classes == ("cat", "dog")
        assert len(data.labels) == 24

    def test_images_in_deeper_folders_belong_to_the_class(self, make_folder: MakeFolder) -> None:
        folder = make_folder()
        (folder / "cat" / "old").mkdir()
        Image.new("L", (8, 8)).save(folder / "cat" / "old" / "x.png")
        assert np.bincount(load(str(folder)).labels).tolist() == [13, 12]

    def test_another_size_names_the_first_that_differs(self, make_folder: MakeFolder) -> None:
        folder = make_folder()
        for name in ("03.png", "07.png"):
            Image.new("L", (9, 8)).save(folder / "cat" / name)
        with pytest.raises(
            LabError, match=r"cat.03\.png has 9 x 8 pixels, .*00\.png has 8 x 8.*--size"
        ):
            load(str(folder))
        assert load(str(folder), size=12).images.shape == (24, 1, 12, 12)

    @pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n broken"])
    def test_a_broken_image_is_named(self, make_folder: MakeFolder, content: bytes) -> None:
        folder = make_folder()
        (folder / "dog" / "05.png").write_bytes(content)
        with pytest.raises(LabError, match=r"dog.05\.png .*(not an image|cannot be read)"):
            load(str(folder))

    @pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "webp", "bmp"])
    def test_an_image_cut_short_is_named(self, make_folder: MakeFolder, suffix: str) -> None:
        folder = make_folder(size=(64, 64), mode="RGB", suffix=suffix)
        broken = folder / "dog" / f"05.{suffix}"
        broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
        with pytest.raises(LabError, match=rf"dog.05\.{suffix} "):
            load(str(folder))

    def test_an_image_above_the_limit_of_pillow_is_refused_with_ours(
        self, make_folder: MakeFolder
    ) -> None:
        folder = make_folder()
        path = folder / "dog" / "05.png"
        content = bytearray(path.read_bytes())
        content[16:24] = struct.pack(">II", 60000, 60000)  # width and height
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
        path.write_bytes(content)
        with pytest.raises(LabError, match=r"dog.05\.png is too large: at most 64,000,000 pixels"):
            load(str(folder))

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(LabError, match=r"--data .*nowhere does not exist"):
            load(str(tmp_path / "nowhere"))

    def test_empty(self, tmp_path: Path) -> None:
        with pytest.raises(LabError, match="has no class folders"):
            load(str(tmp_path))

    def test_images_without_class_folders(self, tmp_path: Path) -> None:
        Image.new("L", (8, 8)).save(tmp_path / "x.png")
        with pytest.raises(LabError, match="has no class folders"):
            load(str(tmp_path))

    def test_a_class_without_images(self, make_folder: MakeFolder) -> None:
        folder = make_folder()
        (folder / "mouse").mkdir()
        with pytest.raises(LabError, match="mouse holds no images"):
            load(str(folder))

    def test_too_few_images(self, make_folder: MakeFolder) -> None:
        folder = make_folder()
        for name in ("00.png", "01.png", "02.png"):
            (folder / "dog" / name).unlink()
        with pytest.raises(LabError, match="class dog has 9 images; at least 10 are needed"):
            load(str(folder))

    def test_one_class(self, make_folder: MakeFolder) -> None:
        with pytest.raises(LabError, match=r"one class only \(cat\)"):
            load(str(make_folder(("cat",))))

    def test_a_file_of_another_kind(self, tmp_path: Path) -> None:
        (tmp_path / "data.csv").write_text("1,2")
        with pytest.raises(LabError, match=r"neither a folder nor an \.npz file"):
            load(str(tmp_path / "data.csv"))

    def test_the_smallest_classes_are_in_every_part(self, make_folder: MakeFolder) -> None:
        folder = make_folder(tuple("abcdefg"), count=10)
        for i in range(23):
            Image.new("L", (8, 8)).save(folder / "g" / f"more{i}.png")
        data = load(str(folder))
        parts = split(data)
        for indices in (parts.train, parts.validation, parts.test):
            assert set(data.labels[indices]) == set(range(7))


class TestNpz:
    @pytest.mark.parametrize("shape", [(8, 9), (8, 9, 1), (8, 9, 3)])
    def test_shapes(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        original = images(20, *shape)
        data = load(str(save_npz(tmp_path, images=original, labels=labels())))
        channels = shape[2] if len(shape) == 3 else 1
        assert data.images.shape == (20, channels, 8, 9)
        assert data.images.dtype == np.float32
        assert np.array_equal(data.images[:, 0], original.reshape(20, 8, 9, channels)[..., 0])

    def test_names_as_labels(self, tmp_path: Path) -> None:
        names = np.array(["zebra", "ant"])[labels()]
        data = load(str(save_npz(tmp_path, images=images(), labels=names)))
        assert data.classes == ("ant", "zebra")
        assert data.labels[:2].tolist() == [1, 0]

    def test_any_numbers_as_labels(self, tmp_path: Path) -> None:
        data = load(str(save_npz(tmp_path, images=images(), labels=labels() * 7 - 3)))
        assert data.classes == ("-3", "4")
        assert set(data.labels) == {0, 1}

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"images": images()}, "has no array 'labels'; it has images"),
            ({"labels": labels()}, "has no array 'images'"),
            ({}, "has no array 'images'; it has nothing"),
            ({"images": images(20, 64), "labels": labels()}, r"must have shape .* got \(20, 64\)"),
            ({"images": images(20, 2, 2, 2, 2), "labels": labels()}, "must have shape"),
            ({"images": images(20, 0, 8), "labels": labels()}, "must have shape"),
            ({"images": images(0, 8, 8), "labels": labels(0)}, "must have shape"),
            ({"images": images(19), "labels": labels()}, r"shape \(19,\) .* got \(20,\)"),
            ({"images": images(), "labels": labels()[:, None]}, r"got \(20, 1\)"),
            ({"images": images().astype("complex64"), "labels": labels()}, "dtype complex64"),
            ({"images": images().astype("U4"), "labels": labels()}, "dtype <U4"),
            ({"images": images(), "labels": labels() * 1.0}, "dtype float64"),
            ({"images": images(), "labels": labels() * 0}, r"one class only \(0\)"),
            ({"images": images(19), "labels": labels(19)}, "class 1 has 9 images"),
        ],
    )
    def test_bad_arrays(self, tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
        path = save_npz(tmp_path, **arrays)
        with pytest.raises(LabError, match=message) as caught:
            load(str(path))
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
    def test_what_is_no_pixel(self, tmp_path: Path, value: float) -> None:
        broken = images().astype(np.float64)
        broken[7, 3, 3] = value
        with pytest.raises(LabError, match="image 7 has NaN or infinite values"):
            load(str(save_npz(tmp_path, images=broken, labels=labels())))

    @pytest.mark.parametrize("name", ["images", "labels"])
    def test_objects_are_never_unpickled(self, tmp_path: Path, name: str) -> None:
        arrays = {"images": images(), "labels": labels()}
        arrays[name] = arrays[name].astype(object)
        with pytest.raises(LabError, match=r"data\.npz cannot be read: .*allow_pickle"):
            load(str(save_npz(tmp_path, **arrays)))

    def test_no_zip_file(self, tmp_path: Path) -> None:
        path = tmp_path / "data.npz"
        path.write_bytes(b"PK\x03\x04 and then nonsense")
        with pytest.raises(LabError, match=r"data\.npz cannot be read"):
            load(str(path))

    def test_a_single_array(self, tmp_path: Path) -> None:
        path = tmp_path / "data.npz"
        with open(path, "wb") as file:
            np.save(file, images())
        with pytest.raises(LabError, match="holds one array"):
            load(str(path))

    def test_a_flipped_bit(self, tmp_path: Path) -> None:
        path = save_npz(tmp_path, images=images(), labels=labels())
        content = bytearray(path.read_bytes())
        content[1000] ^= 1
        path.write_bytes(content)
        with pytest.raises(LabError, match=r"data\.npz cannot be read: Bad CRC"):
            load(str(path))

    def test_something_else_in_the_zip(self, tmp_path: Path) -> None:
        path = tmp_path / "data.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("images.npy", b"no array")
            buffer = io.BytesIO()
            np.save(buffer, labels())
            archive.writestr("labels.npy", buffer.getvalue())
        with pytest.raises(LabError, match=r"data\.npz"):
            load(str(path))

    def test_it_is_not_resized(self, tmp_path: Path) -> None:
        path = save_npz(tmp_path, images=images(), labels=labels())
        with pytest.raises(LabError, match="--size"):
            load(str(path), size=12)
