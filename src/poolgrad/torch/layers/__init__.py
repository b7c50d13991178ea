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

from poolgrad.torch.layers.attention import AttentionPool2d, AttentionPoolLatent
from poolgrad.torch.layers.blur import BlurConv2d, BlurPool2d, MaxBlurPool2d
from poolgrad.torch.layers.gated import GatedPool2d, TreePool2d
from poolgrad.torch.layers.heads import HEADS, Head, make_head
from poolgrad.torch.layers.lip import LIP2d
from poolgrad.torch.layers.polyphase import AdaptivePolyphasePool2d
from poolgrad.torch.layers.power import GeM2d, LogSumExp2d
from poolgrad.torch.layers.pyramid import SpatialPyramidPool2d
from poolgrad.torch.layers.regions import RoIAlign2d, RoIPool2d
from poolgrad.torch.layers.stochastic import S3Pool2d

__all__ = [
    "HEADS",
    "AdaptivePolyphasePool2d",
    "AttentionPool2d",
    "AttentionPoolLatent",
    "BlurConv2d",
    "BlurPool2d",
    "GatedPool2d",
    "GeM2d",
    "Head",
    "LIP2d",
    "LogSumExp2d",
    "MaxBlurPool2d",
    "RoIAlign2d",
    "RoIPool2d",
    "S3Pool2d",
    "SpatialPyramidPool2d",
    "TreePool2d",
    "make_head",
]
