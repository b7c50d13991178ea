from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from poolgrad.lab import LabError, images
from poolgrad.lab.data import load
from poolgrad.lab.segment import data as masked
from poolgrad.lab.segment.canvas import scatter_digits
from poolgrad.lab.segment.scores import VOID

from .conftest import MakeMasks


def refused(folder: Path, *words: str, size: int | None = None) -> None:
    """The folder is refused in one line that has these words in this order."""
    with pytest.raises(LabError, match=".*".join(map(re.escape, words))) as caught:
        masked.load(str(folder), size)
    assert "\n" not in str(caught.value)


def save_mask(folder: Path, values: object, name: str = "03") -> None:
    Image.fromarray(np.asarray(values)).save(folder / "masks" / f"{name}.png")


class TestScatteredDigits:
    def test_all_of_them(self, scattered: masked.MaskedImages) -> None:
        data = scattered
        assert data.images.shape == (400, 1, 64, 64)
        assert data.masks.shape == (400, 64, 64)
        assert data.images.dtype == data.masks.dtype == np.uint8
        assert np.unique(data.masks).tolist() == [0, 1]
        assert data.masks.any((1, 2)).all()
        # Digits are brighter than what is behind them, but not than the distractors.
        inside = data.images[:, 0][data.masks == 1]
        outside = data.images[:, 0][data.masks == 0]
        assert inside.mean() > outside.mean() + 50
        assert (outside > np.median(inside)).mean() > 0.02

    def test_are_always_the_same(self) -> None:
        few = scatter_digits(5)
        for one, other in zip(few, scatter_digits(7), strict=True):
            assert np.array_equal(one, other[:5])

    def test_have_a_size(self) -> None:
        with pytest.raises(LabError, match="--size"):
            masked.load("scattered-digits", 32)


class TestFolder:
    def test_grey(self, make_masks: MakeMasks) -> None:
        folder = make_masks()
        data = masked.load(str(folder))
        assert data.images.shape == (12, 1, 20, 24)
        assert data.classes == ("0", "255")
        first = np.asarray(Image.open(folder / "images" / "00.png"))
        assert np.array_equal(data.images[0, 0], first)
        assert (data.masks.sum((1, 2)) == 64).all()
        bright = data.images[:, 0] >= 150
        assert np.array_equal(bright, data.masks == 1)

    @pytest.mark.parametrize("suffix", ["png", "bmp", "gif", "tiff", "webp"])
    def test_coloured_images_of_any_format(self, make_masks: MakeMasks, suffix: str) -> None:
        folder = make_masks(mode="RGB")
        for file in (folder / "images").iterdir():
            with Image.open(file) as image:
                image.save(file.with_suffix(f".{suffix}"))
            if suffix != "png":
                file.unlink()
        assert masked.load(str(folder)).images.shape == (12, 3, 20, 24)

    def test_resized(self, make_masks: MakeMasks) -> None:
        folder = make_masks()
        larger = np.zeros((40, 30), np.uint8)
        larger[:20] = 255
        Image.fromarray(larger).save(folder / "images" / "04.png")
        save_mask(folder, larger, "04")
        data = masked.load(str(folder), 32)
        assert data.images.shape == (12, 1, 32, 32)
        assert np.unique(data.masks).tolist() == [0, 1]  # nothing in between
        assert data.masks[4].sum() == 32 * 16

    @pytest.mark.parametrize("kind", ["L", "1", "RGB", "RGBA", "I;16", "palette"])
    def test_masks_of_any_mode(self, make_masks: MakeMasks, kind: str) -> None:
        folder = make_masks()
        expected = masked.load(str(folder)).masks
        for file in (folder / "masks").iterdir():
            values = np.asarray(Image.open(file))
            if kind == "palette":
                mask = Image.fromarray((values > 0).astype(np.uint8), "P")
                mask.putpalette([200, 0, 0, 0, 90, 0])  # colours that mean nothing
            elif kind == "I;16":
                mask = Image.fromarray(values.astype(np.uint16) * 100)
            else:
                mask = Image.fromarray(values).convert(kind)
            mask.save(file)
        assert np.array_equal(masked.load(str(folder)).masks, expected)

    def test_class_numbers(self, make_masks: MakeMasks) -> None:
        folder = make_masks(values=(2, 40))
        data = masked.load(str(folder))
        assert data.classes == ("2", "40")
        assert np.unique(data.masks).tolist() == [0, 1]

    def test_255_beside_others_is_void(self, make_masks: MakeMasks) -> None:
        folder = make_masks(values=(0, 7))
        mask = np.zeros((20, 24), np.uint8)
        mask[:5], mask[5:9] = 7, 255
        save_mask(folder, mask)
        data = masked.load(str(folder))
        assert data.classes == ("0", "7")
        assert np.unique(data.masks[3]).tolist() == [0, 1, VOID]

    def test_a_mask_may_be_all_background(self, make_masks: MakeMasks) -> None:
        folder = make_masks()
        save_mask(folder, np.zeros((20, 24), np.uint8))
        assert not masked.load(str(folder)).masks[3].any()


class TestRefused:
    def test_mask_of_another_size(self, make_masks: MakeMasks) -> None:
        folder = make_masks()
        save_mask(folder, np.zeros((24, 20), np.uint8))
        refused(folder, "masks", "03.png has 20 x 24 pixels", "its image", "03.png has 24 x 20")
        refused(folder, "03.png has 20 x 24 pixels", size=32)

    def test_mask_or_image_missing(self, make_masks: MakeMasks) -> None:
        folder = make_masks()
        (folder / "masks" / "05.png").unlink()
        refused(folder, "images", "05.png has no mask; expected", "05.png")
        (folder / "images" / "05.png").unlink()
        (folder / "images" / "06.png").unlink()
        refused(folder, "masks", "06.png has no image")

    def test_two_files_of_one_name(self, make_masks: MakeMasks) -> None:
        folder = make_masks()
        Image.new("L", (24, 20)).save(folder / "images" / "05.bmp")
        refused(folder, "05.png has the same name as", "05.bmp")

    def test_empty_folders(self, make_masks: MakeMasks, tmp_path: Path) -> None:
        refused(tmp_path / "nothing", "does not exist")
        (tmp_path / "empty").mkdir()
        refused(tmp_path / "empty", "has no folder images; expected")
        folder = make_masks()
        for file in (folder / "masks").iterdir():
            file.unlink()
        refused(folder, "masks holds no images")

    def test_data_of_the_other_task(self) -> None:
        refused(Path("digits"), "--data digits has no masks; --task segment has scattered-digits")
        with pytest.raises(LabError, match="--data scattered-digits has masks"):
            load("scattered-digits")

    def test_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file.npz").write_bytes(b"x")
        refused(tmp_path / "file.npz", "is not a folder")

    @pytest.mark.parametrize("part", ["images", "masks"])
    def test_broken(self, make_masks: MakeMasks, part: str) -> None:
        folder = make_masks()
        file = folder / part / "03.png"
        content = file.read_bytes()
        file.write_bytes(b"none")
        refused(folder, f"{part}/03.png is not an image, or a broken one")
        file.write_bytes(content[: len(content) // 2])
        refused(folder, f"{part}/03.png cannot be read")

    @pytest.mark.parametrize("part", ["images", "masks"])
    def test_huge(self, make_masks: MakeMasks, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
        folder = make_masks()
        Image.new("L", (50, 60)).save(folder / part / "03.png")
        monkeypatch.setattr(images, "MAX_PIXELS", 1000)
        refused(folder, f"{part}/03.png has 50 x 60 = 3,000 pixels; at most 1,000")

    def test_too_large_or_small_to_train_on(
        self, make_masks: MakeMasks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = make_masks(size=(20, 24))
        monkeypatch.setattr(masked, "MOST_MAP_PIXELS", 400)
        refused(folder, "00.png has 24 x 20 pixels; at most 400 are trained on: give --size")
        assert masked.load(str(folder), 20).size == (20, 20)
        monkeypatch.setattr(masked, "SMALLEST_SIDE", 21)
        refused(folder, "00.png has 24 x 20 pixels; at least 21 x 21 are needed")

    def test_images_of_several_sizes(self, make_masks: MakeMasks) -> None:
        folder = make_masks()
        for part in ("images", "masks"):
            Image.new("L", (30, 30)).save(folder / part / "03.png")
        refused(folder, "03.png has 30 x 30 pixels", "00.png has 24 x 20; give --size")

    def test_one_class_only(self, make_masks: MakeMasks) -> None:
        refused(make_masks(values=(4, 4)), "masks/00.png", "only the class 4; at least 2")

    def test_too_many_classes(self, make_masks: MakeMasks) -> None:
        folder = make_masks()
        noise = np.random.default_rng(0).integers(0, 256, (20, 24), np.uint8)
        save_mask(folder, noise)
        refused(folder, "masks has masks of", "classes; at most 64 are accepted. 03.png has")

    def test_coloured_mask(self, make_masks: MakeMasks) -> None:
        folder = make_masks()
        Image.new("RGB", (24, 20), (200, 0, 0)).save(folder / "masks" / "03.png")
        refused(folder, "masks/03.png is coloured; a mask must be grey or have a palette")

    def test_mask_of_fractions(self, make_masks: MakeMasks) -> None:
        folder = make_masks()
        Image.fromarray(np.full((20, 24), 0.5, np.float32)).save(folder / "masks" / "03.tiff")
        (folder / "masks" / "03.png").unlink()
        refused(folder, "masks/03.tiff has pixels of mode F")

    def test_class_in_few_masks(self, make_masks: MakeMasks) -> None:
        folder = make_masks()
        mask = np.zeros((20, 24), np.uint8)
        mask[:4] = 9
        save_mask(folder, mask)
        refused(folder, "class 9 is in 1 mask; at least 10 are needed")


class TestSplit:
    def test_shares_and_always_the_same(self, scattered: masked.MaskedImages) -> None:
        parts, again = masked.split(scattered), masked.split(scattered)
        assert [len(p) for p in (parts.train, parts.validation, parts.test)] == [280, 40, 80]
        together = np.concatenate([parts.train, parts.validation, parts.test])
        assert sorted(together) == list(range(400))
        assert np.array_equal(parts.test, again.test)

    def test_rare_classes_are_in_every_part(self) -> None:
        masks = np.zeros((100, 16, 16), np.uint8)
        masks[:, :4] = 1
        masks[40:52, 5:7] = 2
        masks[50:62, 8:9] = 3
        data = masked.MaskedImages(np.zeros((100, 1, 16, 16), np.uint8), masks, tuple("0123"))
        parts = masked.split(data)
        for indices in (parts.train, parts.validation, parts.test):
            assert np.unique(masks[indices]).tolist() == [0, 1, 2, 3]

    def test_fingerprint_sees_images_masks_and_classes(self) -> None:
        images, masks = scatter_digits(3)
        first = masked.MaskedImages(images, masks, ("a", "b")).fingerprint()
        assert first == masked.MaskedImages(images.copy(), masks.copy(), ("a", "b")).fingerprint()
        other = masks.copy()
        other[1, 2, 3] ^= 1
        assert masked.MaskedImages(images, other, ("a", "b")).fingerprint() != first
        assert masked.MaskedImages(images, masks, ("a", "c")).fingerprint() != first
