"""Train and compare small networks whose pooling is poolgrad's: the work behind `poolgrad train`.

| file | content |
|---|---|
| `settings.py`, `train.py`, `fit.py` | options of a run; the run; its loop over epochs |
| `data.py`, `images.py`, `batches.py` | images with labels |
| `pools.py`, `model.py`, `learner.py` | the table of downsamplings; networks; loss and optimizer |
| `callbacks.py`, `checkpoint.py`, `folder.py`, `versions.py` | what a run writes, and reads again |
| `trace.py`, `routes.py`, `curves.py`, `plotting.py` | pictures of gradients and learning curves |
| `compare/`, `segment/` | `poolgrad compare`; its segmentation task |

Tests: ``tests/lab``.

Importing this package is quick: PyTorch and Lightning are imported by the modules that need them.
"""

from poolgrad.lab.settings import LabError, Settings

__all__ = ["LabError", "Settings"]
