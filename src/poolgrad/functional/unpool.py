"""Declares the functions of max unpooling."""

from __future__ import annotations

from typing import Any

from poolgrad.functional import families
from poolgrad.functional.declare import Function, functions
from poolgrad.functional.inputs import pooled_sizes, shape_of
from poolgrad.interface import NoOptions, Request
from poolgrad.windows import Ints, adaptive, axis_names, brief, fixed, flag, per_axis

__all__: list[str] = []


def _output_sizes(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None,
    padding: Ints,
    output_size: Any,
    channels_last: bool,
) -> tuple[int, ...]:
    """Return the sizes of the pooled axes of the output, as PyTorch computes them.

    Inputs of several sizes are pooled to the same size; `output_size` selects one of them.
    """
    pads = per_axis("padding", padding, dims)  # not every form that `fixed` takes
    spec = fixed(dims, kernel_size, stride, padding)
    strides = spec.stride
    sizes = pooled_sizes(x, dims, channels_last)
    numbers = zip(sizes, spec.kernel_size, strides, pads, strict=True)
    default = tuple((n - 1) * stride - 2 * pad + kernel for n, kernel, stride, pad in numbers)
    if output_size is None:
        if min(default) < 1:
            raise ValueError(
                f"kernel_size {brief(kernel_size)} with padding {brief(padding)} would give an "
                f"output of {default} from an input of {sizes}"
            )
        return default
    rank = len(shape_of(x))
    if isinstance(output_size, list | tuple) and len(output_size) == rank:  # of all axes
        first = rank - dims - channels_last
        wanted = per_axis("output_size", output_size[first : first + dims], dims)
    else:
        wanted = per_axis("output_size", output_size, dims)
    for name, n, step, out in zip(axis_names(dims), default, strides, wanted, strict=True):
        least = max(n - step + 1, 1)
        if not least <= out < n + step:
            raise ValueError(
                f"output_size along the {name} must be from {least} to {n + step - 1}, "
                f"got {brief(output_size)}"
            )
    return wanted


class _MaxUnpool(Function, families.UnpoolOutput, families.Unpool, families.Indices):
    """Write each value to the position of a maximum along {axes}; all other outputs are zero.

    {parameters}

    Returns
    -------
    {y}

    Raises
    ------
    {raises}
        Also if an index lies outside its plane, or `output_size` differs from the default by a
        stride or more.

    Notes
    -----
    The rules are those of ``torch.nn.functional.{name}``. Zeiler & Fergus, Visualizing and
    understanding convolutional networks, 2014.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array({open}1.0, 3.0, 2.0, 6.0{close})
    >>> y, indices = poolgrad.max_pool{dims}d(x, {two}, return_indices=True)
    >>> poolgrad.{name}(y, indices, {two})
    array({open}0., 3., 0., 6.{close})
    """

    operator = "max_unpool"

    def request(self, x: Any, dims: int) -> Request:
        """Return the request of a call."""
        last = flag("channels_last", self.channels_last)
        windows = self.kernel_size, self.stride, self.padding
        sizes = _output_sizes(dims, x, *windows, self.output_size, last)
        return self._request(x, adaptive(dims, sizes), NoOptions(), self.indices)


max_unpool1d, max_unpool2d, max_unpool3d = functions("max_unpool", _MaxUnpool)
__all__ += ["max_unpool1d", "max_unpool2d", "max_unpool3d"]
