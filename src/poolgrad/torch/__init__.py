"""The front end for PyTorch: modules, `convert` and `accelerate`.

The functions of `poolgrad` take tensors. An unmodified network pools with poolgrad's kernels after
`convert`, or inside `accelerate`.

A module takes the arguments of its function. An argument that has a gradient may be an
`nn.Parameter`, which is then learned with the rest of the network. Generalised-mean pooling (GeM):

    >>> import torch
    >>> from poolgrad.torch import GlobalLPPool2d
    >>> gem = GlobalLPPool2d(torch.nn.Parameter(torch.full((8,), 3.0)), mean=True)
    >>> gem
    GlobalLPPool2d(norm_type=Parameter of shape (8,), mean=True)
    >>> gem(torch.rand(2, 8, 5, 5)).shape
    torch.Size([2, 8])
"""

try:
    import torch as _torch  # noqa: F401 - to report what is missing
except ImportError as error:
    raise ModuleNotFoundError(
        'poolgrad.torch needs torch: pip install "poolgrad[torch]"', name="torch"
    ) from error

from typing import TYPE_CHECKING

from poolgrad.torch import function as function  # defines torch.ops.poolgrad
from poolgrad.torch import layers, pools
from poolgrad.torch import regions as regions  # defines operators, too
from poolgrad.torch.accelerate import accelerate as accelerate
from poolgrad.torch.base import MODULES as MODULES
from poolgrad.torch.convert import Report as Report
from poolgrad.torch.convert import convert as convert
from poolgrad.torch.convert import revert as revert
from poolgrad.torch.layers import *  # noqa: F403 - the names are listed there
from poolgrad.torch.pools import *  # noqa: F403 - the names are listed there

if not TYPE_CHECKING:  # type checkers find the names themselves
    __all__ = ["MODULES", "Report", "accelerate", "convert", "revert"]
    __all__ += layers.__all__
    __all__ += pools.__all__

    def __dir__() -> list[str]:
        return sorted(__all__)
