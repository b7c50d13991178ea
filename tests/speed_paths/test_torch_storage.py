"""Large results lie in reused memory, whose storage cannot be resized: PyTorch raises."""

from __future__ import annotations

import pytest

import poolgrad

torch = pytest.importorskip("torch")


def test_storage_of_large_results_is_not_resized_in_silence() -> None:
    y = poolgrad.max_pool2d(torch.rand(1, 3, 800, 800), 2)
    copy, size = y.clone(), y.untyped_storage().nbytes()
    for resize in (
        lambda: y.untyped_storage().resize_(0),
        lambda: y.untyped_storage().resize_(2 * size),
        lambda: y.resize_(3, 800, 1600),
    ):
        with pytest.raises(RuntimeError, match="resiz"):
            resize()
    copy.untyped_storage().resize_(2 * size)  # a clone is PyTorch's
