"""The public functions: any array in, the same kind of array out.

Each module here only *describes* poolings, one topic each; `public` makes functions of these.
"""

# Imported in the order in which `FUNCTIONS` lists them, and `poolgrad check` checks them.
# isort: off
from poolgrad.functional.public import FUNCTIONS as FUNCTIONS
from poolgrad.functional.selecting import (
    max_pool1d,
    max_pool2d,
    max_pool3d,
    median_pool1d,
    median_pool2d,
    median_pool3d,
    min_pool1d,
    min_pool2d,
    min_pool3d,
    stochastic_pool1d,
    stochastic_pool2d,
    stochastic_pool3d,
)
from poolgrad.functional.blending import (
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    lse_pool1d,
    lse_pool2d,
    lse_pool3d,
    mixed_pool1d,
    mixed_pool2d,
    mixed_pool3d,
    soft_pool1d,
    soft_pool2d,
    soft_pool3d,
)
from poolgrad.functional.bins import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    fractional_max_pool2d,
    fractional_max_pool3d,
    global_avg_pool,
    global_lp_pool,
    global_lse_pool,
    global_max_pool,
)
from poolgrad.functional.unpool import (
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
)
# isort: on

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "global_avg_pool",
    "global_lp_pool",
    "global_lse_pool",
    "global_max_pool",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "lse_pool1d",
    "lse_pool2d",
    "lse_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "median_pool1d",
    "median_pool2d",
    "median_pool3d",
    "min_pool1d",
    "min_pool2d",
    "min_pool3d",
    "mixed_pool1d",
    "mixed_pool2d",
    "mixed_pool3d",
    "soft_pool1d",
    "soft_pool2d",
    "soft_pool3d",
    "stochastic_pool1d",
    "stochastic_pool2d",
    "stochastic_pool3d",
]
