"""`WindowSpec`: immutable, hashable, and carried as integers without loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolgrad.windows import (
    WindowKind,
    WindowSpec,
    adaptive,
    fixed,
    flatten,
    fractional,
    resolve,
    unflatten,
    whole,
)

dims = st.integers(1, 3)


@st.composite
def specs(draw: st.DrawFn) -> WindowSpec:
    """Windows of every kind."""
    n = draw(dims)

    def numbers(least: int) -> list[int]:
        return draw(st.lists(st.integers(least, 2**61 - 1), min_size=n, max_size=n))

    kind = draw(st.sampled_from(WindowKind))
    if kind is WindowKind.ADAPTIVE:
        return adaptive(n, [draw(st.none() | st.just(k)) for k in numbers(1)])
    if kind is WindowKind.FRACTIONAL:
        return fractional(n, numbers(1), numbers(1))
    pairs = list(zip(numbers(0), numbers(0), strict=True))
    padding = draw(st.sampled_from(["same", "valid", pairs]))
    return fixed(n, numbers(1), numbers(1), padding, numbers(1), draw(st.booleans()))


@given(specs())
def test_integers_carry_a_spec_without_loss(spec: WindowSpec) -> None:
    numbers = flatten(spec)
    assert all(type(number) is int for number in numbers)
    rebuilt = unflatten(numbers)
    assert rebuilt == spec
    assert hash(rebuilt) == hash(spec)
    assert rebuilt.kind is spec.kind
    assert rebuilt.ceil_mode is spec.ceil_mode


@given(specs(), specs())
def test_different_specs_have_different_integers(one: WindowSpec, other: WindowSpec) -> None:
    assert (flatten(one) == flatten(other)) == (one == other)


def test_the_fast_path_gives_what_the_checks_give() -> None:
    plain = fixed(2, 3, 2, 1, 2, True)
    assert plain == fixed(2, [3, 3], (2, 2), [(1, 1), (1, 1)], [2], True)
    assert plain.dims == 2
    assert fixed(2, 3) == fixed(2, 3, ()) == fixed(2, (3, 3), (3, 3), "valid")


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        whole(2).ceil_mode = True  # type: ignore[misc]


def test_one_window_over_everything_has_one_output_along_each_axis() -> None:
    window = resolve(whole(2), (5, 7))
    assert window.out == (1, 1)
    assert window.kernel == (5, 7)
    assert window == resolve(adaptive(2, 1), (5, 7))


def test_slices_lie_where_the_whole_axis_has_them() -> None:
    whole_axis = resolve(fixed(1, 3, 2, 1), (10,)).axes[0]
    axis = whole_axis.sliced((2, 4), (3, 8))
    assert axis.out == 2
    for output in range(2):
        moved = [(tap, i - 3) for tap, i in whole_axis.taps(2 + output)]
        assert axis.taps(output) == moved
