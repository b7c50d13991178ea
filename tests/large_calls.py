"""Calls that are large enough for several threads; imported without PyTorch by child processes."""

from __future__ import annotations

from typing import Any

import numpy as np

import poolgrad

RATIO = {"output_ratio": 0.4, "generator": 3}
SPLIT, MEAN, CHANNELS_LAST = {"ties": "split"}, {"mean": True}, {"channels_last": True}
PLANES = (37, 8, 37, 37)
PLACES = np.random.default_rng(2).integers(0, 74 * 74, PLANES)  # some of them twice

# Large enough to be shared among five threads, each with a reason to be cut in another way.
CALLS = {
    "many planes": ("max_pool2d", (8, 16, 48, 48), (2,), {}),
    "one plane": ("max_pool2d", (600, 601), (3, 2, 1), {}),
    "fewer planes than threads": ("max_pool2d", (2, 400, 301), (3, 1, 1), {}),
    "rows that overlap": ("max_pool2d", (1, 1, 500, 400), ((7, 1), 1, (3, 0)), {}),
    "one row": ("max_pool1d", (400_000,), (5, 3), {}),
    "volume": ("max_pool3d", (1, 40, 80, 80), (3, 2, 1), {}),
    "large window": ("max_pool2d", (2, 300, 300), (41, 5, 20), {}),
    "channels last": ("max_pool2d", (2, 96, 96, 24), (3, 2, 1), {"channels_last": True}),
    "tall, narrow planes": ("max_pool2d", (2, 3, 9001, 7), (3, 2, 1), {}),
    "large window, narrow planes": ("max_pool2d", (11, 31, 20, 21), (9, 1, 4), {}),
    "large window, channels last": ("max_pool2d", (1, 96, 90, 40), (13, 1, 6), CHANNELS_LAST),
    "pixels": ("max_pool2d", (2, 96, 96, 64), (3, 1, 1), CHANNELS_LAST),
    "split": ("max_pool2d", (4, 250, 250), (3, 2), {"ties": "split"}),
    "zero": ("max_pool2d", (4, 250, 250), (3, 2), {"ties": "zero"}),
    "uneven bins": ("adaptive_max_pool2d", (4, 250, 251), ((13, 17),), {}),
    "global": ("global_max_pool", (8, 2, 200, 200), (), {}),
    "average": ("avg_pool2d", (4, 4, 120, 120), (3, 2, 1), {}),
    "average of one plane": ("avg_pool2d", (600, 601), (5, 1, 2), {"count_include_pad": False}),
    "average, channels last": ("avg_pool2d", (2, 96, 96, 24), (3, 1, 1), {"channels_last": True}),
    "average of volumes": ("avg_pool3d", (2, 40, 60, 60), (3, 1, 1), {}),
    "average of narrow volumes": ("avg_pool3d", (40, 30, 37, 7), (2, 1), {}),
    "average of deep windows": ("avg_pool3d", (60, 12, 37, 30), ((7, 3, 3), 1), {}),
    "average of bins": ("adaptive_avg_pool2d", (4, 250, 251), ((13, 17),), {}),
    "global average": ("global_avg_pool", (8, 2, 200, 200), (), {}),
    "with ReLU": ("relu_max_pool2d", (4, 4, 120, 120), (3, 2, 1), {}),
    "with ReLU, pixels": ("relu_max_pool2d", (2, 96, 96, 64), (3, 1, 1), CHANNELS_LAST),
    "with ReLU, large window": ("relu_max_pool2d", (2, 300, 300), (41, 5, 20), {}),
    "minimum": ("min_pool2d", (4, 4, 120, 120), (3, 2, 1), {}),
    "median": ("median_pool2d", (4, 2, 100, 100), (3, 2, 1), {}),
    "median, split": ("median_pool2d", (2, 60, 60, 8), (5, 2), SPLIT | CHANNELS_LAST),
    "norm": ("lp_pool2d", (4, 4, 120, 120), (3.0, 3, 2), {"padding": 1}),
    "mean norm, channels last": ("lp_pool2d", (2, 96, 96, 24), (2.0, 3), MEAN | CHANNELS_LAST),
    "largest size": ("lp_pool2d", (2, 2, 120, 120), (float("inf"), 3, 2), {}),
    "norm of everything": ("global_lp_pool", (8, 2, 200, 200), (), {"norm_type": [1.5, 4.0]}),
    "log-mean-exp": (
        "log_mean_exp_pool2d",
        (4, 4, 120, 120),
        (3, 2, 1),
        {"r": [0.5, 1.0, -2.0, 9.0]},
    ),
    "norms of 2x2": ("lp_pool2d", (4, 4, 120, 117), ([2.0, 3.0, 2.0, 3.0], 2), {}),
    "cubes of 2x2": ("lp_pool2d", (4, 4, 120, 117), (3.0, 2), {}),
    "squares of 2x2": ("lp_pool2d", (4, 4, 120, 117), (2.0, 2), {}),
    "log-mean-exp of 2x2": (
        "log_mean_exp_pool2d",
        (4, 4, 120, 117),
        (2,),
        {"r": [0.5, 1.0, -2.0, 9.0]},
    ),
    "soft, 2x2": ("soft_pool2d", (4, 4, 120, 117), (2,), {}),
    "log-mean-exp of everything": ("global_log_mean_exp_pool", (8, 2, 200, 200), (), {}),
    "soft": ("soft_pool2d", (600, 301), (3, 1, 1), {}),
    "soft, channels last": ("soft_pool2d", (2, 60, 60, 24), (3, 2, 1), CHANNELS_LAST),
    "soft volume": ("soft_pool3d", (2, 24, 40, 40), (3, 2, 1), {}),
    "draw": ("stochastic_pool2d", (4, 4, 120, 120), (3, 2, 1), {"generator": 3}),
    "mean of draws": ("stochastic_pool2d", (4, 4, 120, 120), (3, 2, 1), {"training": False}),
    "mixture": ("mixed_pool2d", (4, 4, 120, 120), (3, 2, 1), {"alpha": 0.3}),
    "mixture, channels last": ("mixed_pool2d", (2, 96, 96, 24), (3, 1, 1), CHANNELS_LAST),
    "fractional": ("fractional_max_pool2d", (4, 6, 100, 101), (3,), RATIO),
    "unpooling": ("max_unpool2d", PLANES, (PLACES, 2), {}),
}


def example(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Rounded where it is large, so that there are ties."""
    x = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return np.where(x > 1, np.round(x), x)


def activations(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """As after a rectifier: half of them zero; some windows have nothing else."""
    x = np.random.default_rng(3).standard_normal(shape)
    return np.maximum(np.where(np.arange(shape[-1]) < 4, -1, x), 0).astype(dtype)


def there_and_back(fun: str, x: np.ndarray, args: Any, kwargs: Any) -> tuple[bytes, bytes, Any]:
    y, pullback = poolgrad.vjp(getattr(poolgrad, fun), x, *args, **kwargs)
    gy = np.random.default_rng(1).standard_normal(y.shape, np.float32)
    return y.tobytes(), pullback(gy).tobytes(), [r.tobytes() for r in pullback._residual]
