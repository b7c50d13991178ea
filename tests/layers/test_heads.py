"""The heads of classifiers: what they compute, and exactly how many parameters they have."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from layer_checks import (  # noqa: E402
    check_compiled,
    check_copies,
    check_exported,
    check_gradients,
    check_unbatched,
    distinct,
)

from poolgrad.torch.layers.heads import HEADS, make_head  # noqa: E402

each_head = pytest.mark.parametrize("name", HEADS)
COUNTS = {  # channels 64, map of 4 x 3, 10 classes
    "flatten": 64 * 4 * 3 * 10 + 10,
    "avg": 64 * 10 + 10,
    "max": 64 * 10 + 10,
    "gem": 64 * 10 + 10 + 1,
    "attention": (4 * 3 + 1) * 64 + 3 * (64 * 64 + 64) + 64 * 10 + 10,
}


def image() -> torch.Tensor:
    return distinct(2, 4, 3, 2)


@each_head
def test_parameter_counts(name: str) -> None:
    head = make_head(name, 64, (4, 3), 10)
    assert sum(p.numel() for p in head.parameters()) == COUNTS[name]
    assert head.parameter_count == COUNTS[name]
    assert f"'{name}', channels=64, size=(4, 3), classes=10" in repr(head)
    assert f"parameters={COUNTS[name]}" in repr(head)
    assert head(torch.rand(5, 64, 4, 3)).shape == (5, 10)


REDUCED: dict[str, Any] = {
    "flatten": lambda x: x.flatten(1),
    "avg": lambda x: x.mean((2, 3)),
    "max": lambda x: x.amax((2, 3)),
    "gem": lambda x: x.pow(3).mean((2, 3)).pow(1 / 3),
}


@pytest.mark.parametrize("name", REDUCED)
def test_definitions(name: str) -> None:
    head, x = make_head(name, 4, (3, 2), 5).double(), image()
    linear = head.classify
    expected = REDUCED[name](x) @ linear.weight.T + linear.bias
    torch.testing.assert_close(head(x), expected)


@each_head
def test_gradients(name: str) -> None:
    check_gradients(make_head(name, 4, (3, 2), 3), image())


@each_head
def test_copies_compiler_and_unbatched_maps(name: str) -> None:
    x = image().float()
    check_copies(lambda: make_head(name, 4, (3, 2), 3), x)
    check_compiled(make_head(name, 4, (3, 2), 3), x)
    check_unbatched(make_head(name, 4, (3, 2), 3), x)


@each_head
def test_exported(name: str) -> None:
    check_exported(make_head(name, 4, (3, 2), 3), image().float())


@each_head
def test_other_sizes(name: str) -> None:
    head, x = make_head(name, 4, (3, 2), 3), distinct(2, 4, 5, 5).float()
    if name in ("flatten", "attention"):
        with pytest.raises(ValueError, match=r"^x must have height and width \(3, 2\)"):
            head(x)
    else:
        assert head(x).shape == (2, 3)
    with pytest.raises(ValueError, match=r"^x must have 4 channels"):
        head(torch.ones(2, 5, 3, 2))


def test_one_number_is_a_square() -> None:
    assert make_head("flatten", 4, 3, 2).size == (3, 3)


def test_bad_arguments() -> None:
    for value in ("average", None, 3, ""):
        with pytest.raises(
            ValueError,
            match=r"^name must be one of 'flatten', 'avg', 'max', 'gem', 'attention', got",
        ):
            make_head(value, 4, (3, 2), 5)
    for place, argument in ((0, "channels"), (2, "classes")):
        for value in ("two", 1.5, True, None):
            given: list[Any] = [4, (3, 2), 5]
            given[place] = value
            with pytest.raises(TypeError, match=f"^{argument} must be an integer, got"):
                make_head("avg", *given)
        given[place] = 0
        with pytest.raises(ValueError, match=f"^{argument} must be positive, got 0"):
            make_head("avg", *given)
    with pytest.raises(ValueError, match=r"^size must be positive"):
        make_head("avg", 4, (3, 0), 5)
