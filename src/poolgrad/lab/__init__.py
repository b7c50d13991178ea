"""Train and compare small networks whose pooling is poolgrad's: the work behind `poolgrad train`.

Importing this package is quick: PyTorch and Lightning are imported by the modules that need them.
"""

from poolgrad.lab.settings import LabError, Settings

__all__ = ["LabError", "Settings"]
