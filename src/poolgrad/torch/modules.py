"""Modules that do more than call a public function with their arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from poolgrad.arguments import below_one
from poolgrad.dtypes import name_of
from poolgrad.functional import FUNCTIONS, families
from poolgrad.torch.arrays import checked, pools
from poolgrad.torch.base import Pool, called, constructor, each


class Plain(Pool):
    """Windows without further arguments."""

    @constructor(families.Windows)
    def __init__(self) -> None: ...


class Selecting(Pool):
    """One input of each window wins."""

    @constructor(families.Selecting)
    def __init__(self) -> None: ...


class Maximum(Pool):
    """The maximum, which can be fused with a ReLU."""

    @constructor(families.MaxModule)
    def __init__(self) -> None: ...

    def rectified(self, x: Tensor) -> Any:
        """Compute the maximum of ``relu(x)`` in one pass; only if it `may_be_fused`."""
        function, arguments = FUNCTIONS[f"relu_max_pool{self.dims}d"], self._arguments()

        def in_two() -> Any:
            return super(Maximum, self).forward(x.relu())

        return called(function, x, arguments, in_two) if self._is_usual(x) else in_two()

    def may_be_fused(self) -> bool:
        """Whether `rectified` gives the values of PyTorch's class, with no empty window."""
        undilated = {*each("dilation", self.dilation)} == {1}
        return undilated and not self.return_indices and self._equals_pytorch()


class _Exported(Pool):
    """Base class: exported programs compute the operator by PyTorch's maxima and averages."""

    def _has_pytorch_windows(self) -> bool:
        """Whether PyTorch's poolings support these windows."""
        undilated = {*each("dilation", self.dilation)} == {1}
        return undilated and not self.channels_last and self._has_pytorch_padding()

    def _is_exported(self) -> bool:
        return torch.onnx.is_in_onnx_export() and self._has_pytorch_windows()

    def _by_pytorch(self, kind: str, x: Tensor, **options: bool) -> Any:
        """Call PyTorch's ``max_pool`` or ``avg_pool``."""
        pool = getattr(nn.functional, f"{kind}_pool{self.dims}d")
        windows = self.kernel_size, self.stride, self.padding
        return pool(x, *windows, ceil_mode=self.ceil_mode, **options)

    def _average(self, x: Tensor, count_include_pad: Any = False) -> Any:
        return self._by_pytorch("avg", x, count_include_pad=count_include_pad)


class ReLUMaximum(_Exported, Selecting):
    """The maximum of the ReLU."""

    note = "It is exported as PyTorch's ReLU and maximum if these compute the same."

    def forward(self, input: Tensor) -> Any:
        """Compute the maximum of ``relu(input)``; see `MaxPool2d.forward`."""
        values_only = self.ties == "first" and not self.return_indices
        if pools(input) or not (values_only and self._has_pytorch_windows()):
            return super().forward(input)
        return self._by_pytorch("max", input.relu())


class Mixed(_Exported):
    """The mixture of maximum and average."""

    @constructor(families.Mixed)
    def __init__(self) -> None: ...

    def forward(self, x: Tensor) -> Any:
        """Compute the mixture; see `MaxPool2d.forward`."""
        if not self._is_exported():
            return super().forward(x)
        alpha = torch.as_tensor(self.alpha, dtype=x.dtype, device=x.device)
        alpha = alpha.reshape(-1, *[1] * self.dims) if alpha.dim() else alpha
        most = alpha * self._by_pytorch("max", x)
        return most + (1 - alpha) * self._average(x, self.count_include_pad)


class _StochasticArguments(families.Drawn, families.Routed, families.Windows):
    """Those of the function without `training`, which is the mode of the module."""


class Stochastic(_Exported):
    """A random input in training mode, its expected value in evaluation mode."""

    @constructor(_StochasticArguments)
    def __init__(self) -> None: ...

    note = "It draws in training mode; in evaluation mode it gives the mean, without indices."

    def forward(self, x: Tensor) -> Any:
        """Draw an input, or compute the expected value; see `MaxPool2d.forward`."""
        given = self._arguments()
        given["return_indices"] &= self.training  # the expected value has no winners
        if not self.training and self._is_exported():
            return self._mean(x)
        return self.function(x, training=self.training, **given)

    def _mean(self, x: Tensor) -> Tensor:
        """Compute the expected value as a quotient of averages, which are operators of ONNX.

        The weights are divided by the largest of their plane, so that no product overflows.
        """
        positive = x.relu()
        largest = positive.amax(tuple(range(-self.dims, 0)), keepdim=True)
        weights = positive / torch.where(largest > 0, largest, 1.0)
        total = self._average(weights)
        some = total > 0
        mean = self._average(weights * positive) / torch.where(some, total, 1.0)
        return torch.where(some, mean, self._average(x))


class _FractionalArguments(families.RandomSamples, families.Fractional):
    """Those of the function."""


class Fractional(Pool):
    """Fractional windows; their samples, a buffer, are cast with the module."""

    @constructor(_FractionalArguments)
    def __init__(self) -> None: ...

    autocast_to_float32 = True

    def _arguments(self) -> dict[str, Any]:
        given = super()._arguments()
        samples = given["_random_samples"]
        if isinstance(samples, Tensor) and samples.is_floating_point():
            checked("_random_samples", samples)
            most = below_one(name_of(samples.dtype))
            given["_random_samples"] = samples.masked_fill(samples == 1, most)  # a cast rounds to 1
        return given


class Unpool(Pool):
    """Unpooling, which takes indices with every call."""

    @constructor(families.Unpool)
    def __init__(self) -> None: ...

    note = "It is called with values, their `indices` and, unless it is the default, `output_size`."

    def forward(  # type: ignore[override]
        self, input: Tensor, indices: Tensor, output_size: Any = None
    ) -> Any:
        """Write the values to their indices, among zeros.

        Parameters
        ----------
        input, indices : Tensor
            The values and their int64 indices, as a maximum returns them.
        output_size : sequence of int, optional
            The shape of the output, or the sizes of its pooled axes; default: as for
            `torch.nn.MaxUnpool2d`.

        Returns
        -------
        Tensor

        Raises
        ------
        TypeError, ValueError
            If an argument does not suit the windows.
        """
        return self.function(input, indices, output_size=output_size, **self._arguments())


class Lip(Plain):
    """Local importance pooling, which takes logits with every call."""

    note = "It is called with values and their `logits`."

    def forward(self, x: Tensor, logits: Tensor) -> Any:  # type: ignore[override]
        """Average each window, weighted with the softmax of its logits.

        Parameters
        ----------
        x, logits : Tensor
            The values and the logarithms of their weights, of the same shape.

        Returns
        -------
        Tensor

        Raises
        ------
        TypeError, ValueError
            If an argument does not suit the windows.
        """
        return self.function(x, logits, **self._arguments())
