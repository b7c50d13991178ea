"""Compares ways of downsampling in a small segmentation network: `poolgrad compare --task segment`.

| file | content |
|---|---|
| `variants.py` | names of the ways to downsample and to upsample again |
| `unet.py` | the U-Net in which they are exchanged |
| `data.py`, `canvas.py` | images with masks: folders of them, or digits on a canvas |
| `scores.py` | intersection over union of classes and of their boundaries |
| `learner.py` | loss and augmentation |
| `protocol.py`, `run.py` | the protocol of the comparison; one run of it |
| `pictures.py` | test images with true and predicted masks |
| `trace.py` | one image and its gradient through the first downsampling |

Tests: ``tests/lab/segment``.

Importing this package is quick: PyTorch and Lightning are imported by the modules that need them.
"""
