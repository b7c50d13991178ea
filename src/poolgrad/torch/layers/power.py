"""Global pooling with a learned argument: the generalised mean and log-mean-exp."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from array_api_compat import torch as namespace
from torch import Tensor, fx, nn

from poolgrad.functional import FUNCTIONS
from poolgrad.functional.modules import limited
from poolgrad.interface import UnfoldedWindows
from poolgrad.operators import OPERATORS
from poolgrad.torch._compat import mode_of
from poolgrad.torch.arrays import pools
from poolgrad.torch.base import Pool
from poolgrad.torch.layers import arguments
from poolgrad.torch.layers.arguments import number, one_positive, sum_dtype
from poolgrad.torch.pools import GlobalLogMeanExpPool2d, GlobalLPPool2d
from poolgrad.windows import brief

_POOLS = {n: limited(FUNCTIONS[n], 2) for n in ("global_lp_pool", "global_log_mean_exp_pool")}


@fx.wrap
def _pooled(x: Tensor, function: str, given: dict[str, Any]) -> Tensor:
    """Call a global function; exported programs get the formula of its operator."""
    pool = _POOLS[function]
    if pools(x):
        return pool(x, **given)
    request = pool.describe(x, **given)
    values = x.to(sum_dtype(x)).flatten(-2)
    valid = values.new_ones(values.shape[-1:], dtype=torch.bool)
    windows = UnfoldedWindows(values, valid, None, None)
    argument = request.operands[0].to(values.dtype)
    with mode_of(values):
        y = OPERATORS[request.operator].formula(namespace, windows, argument, request.options)
    y = y.to(x.dtype)
    return y[..., None, None] if request.keepdims else y


class _Learned(Pool):
    """Base class: a module for global pooling with a learned argument.

    Parameters
    ----------
    channels : int or None
        The number of channels, for one number per channel; None: one number for all.
    initial : float
        The initial value of the argument.
    **kwargs
        The other arguments of the module.

    Attributes
    ----------
    public : str
        The name of the public function.
    learned : str
        The name of the learned argument.
    eps : float
        Inputs below it count as this number; 0 stands for no limit.
    """

    __signature__ = None  # that of `__init__`
    public: ClassVar[str]
    learned: ClassVar[str]
    eps: float = 0.0

    def __init__(self, channels: int | None, initial: float, **kwargs: Any) -> None:
        shape = () if channels is None else (one_positive("channels", channels),)
        initial = number(self.learned, initial)
        parameter = nn.Parameter(torch.full(shape, initial))
        super().__init__(**{self.learned: parameter}, **kwargs)
        self.channels, self.initial = (shape or None) and shape[0], initial

    def forward(self, x: Tensor) -> Tensor:
        """Pool a tensor of shape (N, C, H, W) to (N, C), with `keepdims` to (N, C, 1, 1)."""
        x = arguments.check_maps(x, self.channels)
        x = x.clamp(min=self.eps) if self.eps else x
        return _pooled(x, self.public, self._arguments())

    def extra_repr(self) -> str:
        """Return the arguments for `repr`."""
        channels = "" if self.channels is None else f"{self.channels}, "
        kept = ", keepdims=True" if self.keepdims else ""
        return f"{channels}{self.learned}={self.initial}{kept}"


class GeM2d(_Learned, GlobalLPPool2d):
    """Generalised mean over height and width, with a learned power (GeM).

    Computes ``mean(max(x, eps) ** p) ** (1 / p)`` of every channel, with the power p `norm_type`.
    With ``p = 1`` that is the average of a map that is nowhere below `eps`; with a large p it comes
    close to the maximum. It is `GlobalLPPool2d` with ``mean=True`` and a parameter as `norm_type`,
    of inputs that are clamped from below.

    Parameters
    ----------
    channels : int, optional
        The number of channels, for one power per channel. None (default): one power for all.
    norm_type : float
        The initial power, above 0. Default: 3.
    keepdims : bool
        If True, height and width stay, with length one. Default: False.
    eps : float
        Inputs below `eps` count as `eps` and get no gradient, as in the authors' code; default:
        1e-6. With 0, nothing is clamped, and powers are taken of ``|x|``.

    Attributes
    ----------
    norm_type : nn.Parameter, shape () or (C,)
        The learned power. It must stay above 0: on the CPU, a call with another one raises
        ValueError; on other devices the value is not read.

    Raises
    ------
    TypeError, ValueError
        In the constructor, for an invalid argument; in a call, for an input that is not a
        floating tensor of shape (N, C, H, W) or (C, H, W), or has another number of channels.

    Notes
    -----
    Radenovic, Tolias & Chum, Fine-tuning CNN image retrieval with no human annotation, 2018. The
    layer calls `poolgrad.global_lp_pool`; where a network is exported, and on devices that the
    compiled kernels do not reach, it computes the same with PyTorch's operations.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import GeM2d
    >>> gem = GeM2d(8)
    >>> gem
    GeM2d(8, norm_type=3.0, eps=1e-06)
    >>> gem(torch.rand(2, 8, 5, 7)).shape
    torch.Size([2, 8])
    """

    public, learned = "global_lp_pool", "norm_type"

    def __init__(
        self,
        channels: int | None = None,
        norm_type: float = 3.0,
        keepdims: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(channels, norm_type, keepdims=keepdims, mean=True)
        self.eps = number("eps", eps)
        if self.eps < 0:
            raise ValueError(f"eps must not be negative, got {brief(eps)}")

    def extra_repr(self) -> str:
        """Return the arguments for `repr`."""
        return f"{super().extra_repr()}, eps={self.eps}"


class LogSumExp2d(_Learned, GlobalLogMeanExpPool2d):
    """Log-mean-exp over height and width, with a learned sharpness.

    Computes ``log(mean(exp(r * x))) / r`` of every channel. With a small r that comes close to the
    average, with a large r to the maximum. It is `GlobalLogMeanExpPool2d` with a parameter as `r`.

    Parameters
    ----------
    channels : int, optional
        The number of channels, for one sharpness per channel. None (default): one for all.
    r : float
        The initial sharpness, not 0. Default: 1.
    keepdims : bool
        If True, height and width stay, with length one. Default: False.

    Attributes
    ----------
    r : nn.Parameter, shape () or (C,)
        The learned sharpness. A call with an r of exactly 0 raises ValueError on the
        CPU; on other devices the value is not read.

    Raises
    ------
    TypeError, ValueError
        In the constructor, for an invalid argument; in a call, for an input that is not a
        floating tensor of shape (N, C, H, W) or (C, H, W), or has another number of channels.

    Notes
    -----
    Pinheiro & Collobert, From image-level to pixel-level labeling with convolutional networks,
    2015; they keep r fixed. The layer calls `poolgrad.global_log_mean_exp_pool`; where a network is
    exported, and on devices that the compiled kernels do not reach, it computes the same with
    PyTorch's operations.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import LogSumExp2d
    >>> pool = LogSumExp2d(r=2.0)
    >>> pool
    LogSumExp2d(r=2.0)
    >>> pool(torch.rand(2, 8, 5, 7)).shape
    torch.Size([2, 8])
    """

    public, learned = "global_log_mean_exp_pool", "r"

    def __init__(self, channels: int | None = None, r: float = 1.0, keepdims: bool = False) -> None:
        super().__init__(channels, r, keepdims=keepdims)
