"""Pooling layers with exact gradients, at memory speed, the same for every array library."""

from poolgrad import functional, reference
from poolgrad.core import empty_cache, get_num_threads, set_num_threads
from poolgrad.functional import *  # noqa: F403 - its names stand there alone
from poolgrad.pullback import Pullback, vjp

__version__ = "0.1.0"

__all__ = ["Pullback", "empty_cache", "get_num_threads", "reference", "set_num_threads", "vjp"]
__all__ += functional.__all__
