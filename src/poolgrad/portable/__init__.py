"""Computes every operator, forward and backward, in array-API operations, on any device.

The compiled kernels pool arrays in the memory of a CPU, and Triton kernels most tensors of PyTorch
on CUDA. This package pools all others: tensors on MPS and XPU, and on CUDA for operators without
Triton kernels, arrays of JAX on GPUs and TPUs, and arrays of CuPy. It uses the operations of the
`array API standard <https://data-apis.org/array-api>`_ of the array's own library, through
array-api-compat. Results are computed on the device of the input, with offsets of 64 bits where the
library supports them.

An operator is applied in steps: *unfold* gathers the taps of every window along a last axis, and
the operator reduces that axis. In the backward pass, *fold* gathers for each input the
contributions of the windows that contain it, in ascending order of outputs, and adds them. Nothing
is scattered, so equal calls give equal bits. The taps of all windows are in memory at once; the
memory is that of the input times the number of windows that contain an input.

Files
-----
geometry.py
    The taps of each window and the windows that contain each input; unfold and fold.
routes.py
    Routes: unpacked, packed, and one bit for each tap; the indices of winners.
derivative.py
    Reverse-mode differentiation of a function written in array-API operations.
engine.py
    `forward`, `vjp`, `jvp` and `indices` of any operator of the table.
regions.py
    RoIPool and RoIAlign, for all arrays without kernels.

`tests/exactness/test_portable.py` compares the results with `poolgrad.reference`, for arrays of
PyTorch, JAX and array-api-strict; ``poolgrad check`` includes the front end ``portable``.
"""

from poolgrad.portable.engine import formula, forward, indices, jvp, vjp, without_winner

__all__ = ["formula", "forward", "indices", "jvp", "vjp", "without_winner"]
