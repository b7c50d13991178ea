"""Declares the functions of max unpooling."""

from __future__ import annotations

from typing import Any

from poolgrad.functional import families
from poolgrad.functional.declare import Function, functions
from poolgrad.functional.inputs import pooled_sizes, shape_of
from poolgrad.windows import WindowSpec, adaptive, axis_names, brief, fixed, per_axis


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

    def windows(self, x: Any, dims: int, channels_last: bool) -> WindowSpec:
        """Return one bin for each output, whose sizes are computed as PyTorch computes them.

        Inputs of several sizes are pooled to the same size; `output_size` selects one of them.
        """
        padding, given = self.padding, self.output_size
        pads = per_axis("padding", padding, dims)  # not every form that `fixed` takes
        spec = fixed(dims, self.kernel_size, self.stride, padding)
        sizes = pooled_sizes(x, dims, channels_last)
        numbers = zip(sizes, spec.kernel_size, spec.stride, pads, strict=True)
        default = tuple((n - 1) * step - 2 * pad + kernel for n, kernel, step, pad in numbers)
        if given is None:
            if min(default) < 1:
                raise ValueError(
                    f"kernel_size {brief(self.kernel_size)} with padding {brief(padding)} would "
                    f"give an output of {default} from an input of {sizes}"
                )
            return adaptive(dims, default)
        rank = len(shape_of(x))
        if isinstance(given, list | tuple) and len(given) == rank:  # of all axes
            first = rank - dims - channels_last
            given = given[first : first + dims]
        wanted = per_axis("output_size", given, dims)
        for name, n, step, out in zip(axis_names(dims), default, spec.stride, wanted, strict=True):
            least = max(n - step + 1, 1)
            if not least <= out < n + step:
                raise ValueError(
                    f"output_size along the {name} must be from {least} to {n + step - 1}, "
                    f"got {brief(self.output_size)}"
                )
        return adaptive(dims, wanted)


max_unpool1d, max_unpool2d, max_unpool3d = functions("max_unpool", _MaxUnpool)
__all__ = ["max_unpool1d", "max_unpool2d", "max_unpool3d"]
