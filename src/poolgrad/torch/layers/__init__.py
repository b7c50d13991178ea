"""Layers of the literature that pool, built of the operators: one file for each family."""

from poolgrad.torch.layers.blur import BlurConv2d, BlurPool2d, MaxBlurPool2d
from poolgrad.torch.layers.gated import GatedPool2d, TreePool2d
from poolgrad.torch.layers.lip import LIP2d, lip_pool2d
from poolgrad.torch.layers.polyphase import AdaptivePolyphasePool2d

__all__ = [
    "AdaptivePolyphasePool2d",
    "BlurConv2d",
    "BlurPool2d",
    "GatedPool2d",
    "LIP2d",
    "MaxBlurPool2d",
    "TreePool2d",
    "lip_pool2d",
]
