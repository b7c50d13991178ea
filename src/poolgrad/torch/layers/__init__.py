"""Layers of the literature that pool, built of the operators: one file for each family.

docs/layers.md has a row for each layer, with its formula and source.

| file | content |
|---|---|
| `blur.py`, `polyphase.py`, `stochastic.py` | downsampling: low-pass filters, phases, random rows |
| `gated.py`, `lip.py` | learned combinations of poolings, learned weights |
| `power.py`, `pyramid.py`, `attention.py`, `heads.py` | maps to vectors, or to class scores |
| `regions.py` | regions of interest |
| `arguments.py`, `exportable.py` | checks of arguments; maximum and average of exported programs |

Each family is tested by a file of ``tests/layers``, and all of them by
``tests/layers/test_common.py``.
"""

from typing import TYPE_CHECKING

from poolgrad.torch.layers.attention import AttentionPool2d as AttentionPool2d
from poolgrad.torch.layers.attention import AttentionPoolLatent as AttentionPoolLatent
from poolgrad.torch.layers.blur import BlurConv2d as BlurConv2d
from poolgrad.torch.layers.blur import BlurPool2d as BlurPool2d
from poolgrad.torch.layers.blur import MaxBlurPool2d as MaxBlurPool2d
from poolgrad.torch.layers.gated import GatedPool2d as GatedPool2d
from poolgrad.torch.layers.gated import TreePool2d as TreePool2d
from poolgrad.torch.layers.heads import HEADS as HEADS
from poolgrad.torch.layers.heads import Head as Head
from poolgrad.torch.layers.heads import make_head as make_head
from poolgrad.torch.layers.lip import LIP2d as LIP2d
from poolgrad.torch.layers.polyphase import AdaptivePolyphasePool2d as AdaptivePolyphasePool2d
from poolgrad.torch.layers.power import GeM2d as GeM2d
from poolgrad.torch.layers.power import LogSumExp2d as LogSumExp2d
from poolgrad.torch.layers.pyramid import SpatialPyramidPool2d as SpatialPyramidPool2d
from poolgrad.torch.layers.regions import RoIAlign2d as RoIAlign2d
from poolgrad.torch.layers.regions import RoIPool2d as RoIPool2d
from poolgrad.torch.layers.stochastic import S3Pool2d as S3Pool2d

if not TYPE_CHECKING:  # type checkers find the names themselves
    __all__ = ["HEADS", "AttentionPoolLatent", "Head", "make_head"]
    __all__ += [name for name in globals() if name.endswith("2d")]
