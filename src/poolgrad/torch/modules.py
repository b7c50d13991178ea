"""The modules: PyTorch's own where it has them, so that ``isinstance`` holds, with our forward.

Each takes what PyTorch's takes, every form of padding, and keyword-only extras (`ties`,
`channels_last`, for averages `dilation`). A class below says only which function it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from poolgrad import functional
from poolgrad.window import adaptive, fixed


class _Pool(nn.Module):
    """What all have in common: extras, shown where they differ from their defaults."""

    pool: ClassVar[Callable[..., Any]]
    dims: ClassVar[int]
    extras: dict[str, Any]

    def _keep_extras(self, **extras: Any) -> None:
        self.extras = extras

    def extra_repr(self) -> str:
        shown = [super().extra_repr()]
        defaults = {"ties": "first", "channels_last": False, "dilation": 1, "keepdims": False}
        shown += [f"{k}={v!r}" for k, v in self.extras.items() if v != defaults.get(k)]
        return ", ".join(s for s in shown if s)


class _Max(_Pool):
    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
        *,
        ties: str = "first",
        channels_last: bool = False,
    ) -> None:
        fixed(self.dims, kernel_size, stride, padding, dilation, ceil_mode)
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)
        self._keep_extras(ties=ties, channels_last=channels_last)

    def forward(self, x: Tensor) -> Any:
        return type(self).pool(
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
            **self.extras,
        )


class _Avg(_Pool):
    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        dilation: Any = 1,
        channels_last: bool = False,
    ) -> None:
        fixed(self.dims, kernel_size, stride, padding, dilation, ceil_mode)
        plain = isinstance(padding, int) or all(isinstance(p, int) for p in padding)
        super().__init__(kernel_size, stride, padding if plain else 0, ceil_mode, count_include_pad)
        if not plain:  # PyTorch would take a word for its letters
            self.padding = padding
        self.divisor_override = divisor_override
        self._keep_extras(dilation=dilation, channels_last=channels_last)

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = type(self).pool(
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
            **self.extras,
        )
        return pooled


class _AdaptiveMax(_Pool):
    def __init__(
        self,
        output_size: Any,
        return_indices: bool = False,
        *,
        ties: str = "first",
        channels_last: bool = False,
    ) -> None:
        adaptive(self.dims, output_size)
        super().__init__(output_size, return_indices)
        self._keep_extras(ties=ties, channels_last=channels_last)

    def forward(self, x: Tensor) -> Any:
        return type(self).pool(x, self.output_size, self.return_indices, **self.extras)


class _AdaptiveAvg(_Pool):
    def __init__(self, output_size: Any, *, channels_last: bool = False) -> None:
        adaptive(self.dims, output_size)
        super().__init__(output_size)
        self._keep_extras(channels_last=channels_last)

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = type(self).pool(x, self.output_size, **self.extras)
        return pooled


class _Global(_Pool):
    """One window over the last `dims` axes, or, channels last, those before the last."""

    def __init__(
        self, keepdims: bool = False, *, channels_last: bool = False, **extras: Any
    ) -> None:
        super().__init__()
        self.keepdims = keepdims
        self._keep_extras(channels_last=channels_last, **extras)

    def extra_repr(self) -> str:
        shown = [f"keepdims={self.keepdims}", super().extra_repr()]
        return ", ".join(s for s in shown if s)

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = type(self).pool(x, 1, **self.extras)
        if self.keepdims:
            return pooled
        first = x.dim() - self.dims - self.extras["channels_last"]
        return pooled.squeeze(tuple(range(first, first + self.dims)))


class _GlobalMax(_Global):
    def __init__(
        self, keepdims: bool = False, *, ties: str = "first", channels_last: bool = False
    ) -> None:
        super().__init__(keepdims, channels_last=channels_last, ties=ties)


class _GlobalAvg(_Global):
    pass


class MaxPool1d(_Max, nn.MaxPool1d):
    """Maximum of every window: `torch.nn.MaxPool1d` with `poolgrad.max_pool1d`."""

    dims = 1
    pool = staticmethod(functional.max_pool1d)


class MaxPool2d(_Max, nn.MaxPool2d):
    """Maximum of every window: `torch.nn.MaxPool2d` with `poolgrad.max_pool2d`."""

    dims = 2
    pool = staticmethod(functional.max_pool2d)


class MaxPool3d(_Max, nn.MaxPool3d):
    """Maximum of every window: `torch.nn.MaxPool3d` with `poolgrad.max_pool3d`."""

    dims = 3
    pool = staticmethod(functional.max_pool3d)


class AvgPool1d(_Avg, nn.AvgPool1d):
    """Mean of every window: `torch.nn.AvgPool1d` with `poolgrad.avg_pool1d`."""

    dims = 1
    pool = staticmethod(functional.avg_pool1d)


class AvgPool2d(_Avg, nn.AvgPool2d):
    """Mean of every window: `torch.nn.AvgPool2d` with `poolgrad.avg_pool2d`."""

    dims = 2
    pool = staticmethod(functional.avg_pool2d)


class AvgPool3d(_Avg, nn.AvgPool3d):
    """Mean of every window: `torch.nn.AvgPool3d` with `poolgrad.avg_pool3d`."""

    dims = 3
    pool = staticmethod(functional.avg_pool3d)


class AdaptiveMaxPool1d(_AdaptiveMax, nn.AdaptiveMaxPool1d):
    """Maximum of each bin: `torch.nn.AdaptiveMaxPool1d` with `poolgrad.adaptive_max_pool1d`."""

    dims = 1
    pool = staticmethod(functional.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMax, nn.AdaptiveMaxPool2d):
    """Maximum of each bin: `torch.nn.AdaptiveMaxPool2d` with `poolgrad.adaptive_max_pool2d`."""

    dims = 2
    pool = staticmethod(functional.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMax, nn.AdaptiveMaxPool3d):
    """Maximum of each bin: `torch.nn.AdaptiveMaxPool3d` with `poolgrad.adaptive_max_pool3d`."""

    dims = 3
    pool = staticmethod(functional.adaptive_max_pool3d)


class AdaptiveAvgPool1d(_AdaptiveAvg, nn.AdaptiveAvgPool1d):
    """Mean of each bin: `torch.nn.AdaptiveAvgPool1d` with `poolgrad.adaptive_avg_pool1d`."""

    dims = 1
    pool = staticmethod(functional.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvg, nn.AdaptiveAvgPool2d):
    """Mean of each bin: `torch.nn.AdaptiveAvgPool2d` with `poolgrad.adaptive_avg_pool2d`."""

    dims = 2
    pool = staticmethod(functional.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvg, nn.AdaptiveAvgPool3d):
    """Mean of each bin: `torch.nn.AdaptiveAvgPool3d` with `poolgrad.adaptive_avg_pool3d`."""

    dims = 3
    pool = staticmethod(functional.adaptive_avg_pool3d)


class GlobalMaxPool1d(_GlobalMax):
    """Maximum over the last axis: (N, C, L) becomes (N, C)."""

    dims = 1
    pool = staticmethod(functional.adaptive_max_pool1d)


class GlobalMaxPool2d(_GlobalMax):
    """Maximum over the last two axes: (N, C, H, W) becomes (N, C)."""

    dims = 2
    pool = staticmethod(functional.adaptive_max_pool2d)


class GlobalMaxPool3d(_GlobalMax):
    """Maximum over the last three axes: (N, C, D, H, W) becomes (N, C)."""

    dims = 3
    pool = staticmethod(functional.adaptive_max_pool3d)


class GlobalAvgPool1d(_GlobalAvg):
    """Mean over the last axis: (N, C, L) becomes (N, C)."""

    dims = 1
    pool = staticmethod(functional.adaptive_avg_pool1d)


class GlobalAvgPool2d(_GlobalAvg):
    """Mean over the last two axes: (N, C, H, W) becomes (N, C)."""

    dims = 2
    pool = staticmethod(functional.adaptive_avg_pool2d)


class GlobalAvgPool3d(_GlobalAvg):
    """Mean over the last three axes: (N, C, D, H, W) becomes (N, C)."""

    dims = 3
    pool = staticmethod(functional.adaptive_avg_pool3d)
