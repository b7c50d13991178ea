"""Compares ways of downsampling in a small segmentation network: `poolgrad compare --task segment`.

| file | content |
|---|---|
| `variants.py` | names of the ways to downsample and to upsample again |
| `unet.py` | the U-Net in which they are exchanged |
| `data.py` | images with masks: digits on a canvas, or folders of images and masks |
| `scores.py` | intersection over union of classes and of their boundaries |
| `learner.py` | loss and augmentation |
| `train.py` | one training run in its folder |
| `pictures.py` | test images with true and predicted masks |

Importing this package is quick: PyTorch and Lightning are imported by the modules that need them.
"""
