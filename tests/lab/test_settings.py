from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from poolgrad.lab import LabError, Settings
from poolgrad.lab.settings import join_stored, steps_per_epoch


def test_defaults() -> None:
    settings = Settings.from_options({})
    assert settings.as_dict() == {
        "data": "digits",
        "size": None,
        "pool": "max",
        "head": "avg",
        "kernel": 2,
        "stride": 2,
        "epochs": 30,
        "batch_size": None,
        "lr": 0.01,
        "optimizer": "adam",
        "seed": 0,
        "threads": None,
    }
    assert settings.default_out() == Path("runs/digits-max-2x2-seed0")


def test_the_stride_is_the_kernel_unless_given() -> None:
    assert Settings.from_options({"kernel": 3}).stride == 3
    assert Settings.from_options({"kernel": 3, "stride": 2}).stride == 2


def test_every_optimizer_has_its_own_learning_rate_unless_given() -> None:
    optimizers = ("sgd", "adagrad", "rmsprop", "adam")
    rates = {o: Settings.from_options({"optimizer": o}).lr for o in optimizers}
    assert rates == {"sgd": 0.1, "adagrad": 0.03, "rmsprop": 0.005, "adam": 0.01}
    assert Settings.from_options({"optimizer": "sgd", "lr": 0.5}).lr == 0.5


@pytest.mark.parametrize(
    ("images", "batch_size"),
    [(2, 8), (126, 8), (255, 8), (256, 16), (1023, 32), (1024, 64), (1257, 64), (10**6, 64)],
)
def test_the_batch_size_suits_the_number_of_images(images: int, batch_size: int) -> None:
    settings = Settings.from_options({}).for_images(images)
    assert settings.batch_size == batch_size
    assert settings.as_dict() | {"batch_size": None} == Settings.from_options({}).as_dict()
    if images >= 8 * 16:
        assert steps_per_epoch(images, batch_size) >= 16


def test_a_given_batch_size_stays() -> None:
    assert Settings.from_options({"batch_size": 64}).for_images(20).batch_size == 64


@pytest.mark.parametrize(
    ("option", "value", "flag"),
    [
        ("kernel", 0, "--kernel"),
        ("kernel", -2, "--kernel"),
        ("stride", 0, "--stride"),
        ("epochs", 0, "--epochs"),
        ("batch_size", 1, "--batch-size"),
        ("lr", 0.0, "--lr"),
        ("lr", -1.0, "--lr"),
        ("lr", float("nan"), "--lr"),
        ("lr", float("inf"), "--lr"),
        ("seed", -1, "--seed"),
        ("seed", 2**32, "--seed"),
        ("threads", 0, "--threads"),
        ("threads", 1025, "--threads"),
        ("size", 1, "--size"),
        ("size", 16, "--size"),  # the digits are not resized
        ("kernel", 9, "--kernel"),  # and have 8 x 8 pixels
        ("stride", 9, "--stride"),
        ("pool", "maximum", "--pool"),
        ("head", "dense", "--head"),
        ("optimizer", "adamw", "--optimizer"),
    ],
)
def test_a_bad_value_names_its_option(option: str, value: Any, flag: str) -> None:
    with pytest.raises(LabError, match=f"^{flag} .*"):
        Settings.from_options({option: value})


def test_a_kernel_larger_than_the_resized_images_is_named_before_they_are_read() -> None:
    with pytest.raises(LabError, match=r"^--kernel 13 is too large: .* 12 x 12$"):
        Settings.from_options({"data": "nowhere", "size": 12, "kernel": 13})


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("some/where/Cats and dogs", "Cats-and-dogs"),
        ("digits.npz", "digits"),
        ("a.b/c.d", "c.d"),
        ("/", "data"),
    ],
)
def test_the_run_folder_is_named_after_the_data(data: str, name: str) -> None:
    settings = Settings.from_options({"data": data, "pool": "avg", "kernel": 3, "stride": 2})
    assert settings.default_out() == Path(f"runs/{name}-avg-3x2-seed0")
    headed = Settings.from_options({"data": data, "head": "gem"})
    assert headed.default_out() == Path(f"runs/{name}-max-gem-2x2-seed0")


def test_data_are_found_again_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.from_options({"data": "few.npz"}).data == str(tmp_path.resolve() / "few.npz")


def test_a_resumed_run_keeps_its_settings() -> None:
    stored = Settings.from_options({"kernel": 3, "lr": 0.5}).as_dict()
    joined = join_stored(stored, {"kernel": 3, "data": "digits"}, Path("run"))
    assert Settings.from_options(joined).as_dict() == stored


def test_a_resumed_run_takes_no_other_settings() -> None:
    stored = Settings.from_options({"batch_size": 64}).as_dict()
    with pytest.raises(LabError, match=r"^--batch-size: the run in run was started with 64, not 3"):
        join_stored(stored, {"batch_size": 32}, Path("run"))
