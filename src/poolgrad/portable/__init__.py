"""Every operator, forward and backward, in array-API operations: for any device and array library.

The kernels serve arrays in the memory of a CPU. This package serves all others: tensors of PyTorch
on CUDA, MPS and XPU, arrays of JAX on GPUs and TPUs, arrays of CuPy. The operations are those of
the `array API standard <https://data-apis.org/array-api>`_, taken from an array's own library
through array-api-compat, so every result is computed on the device of the input, with offsets of
64 bits where the library has them.

An operator is applied in steps: *unfold* gathers the taps of every window along a last axis, and
the entry of the operator table reduces that axis. In the backward pass, *fold* gathers for each
input the contributions of the windows that hold it, in ascending order of outputs, and adds them.
Nothing is scattered: no two threads add to the same number, so equal calls give equal bits. The
taps of all windows lie in memory at once, which takes as many times the input as windows overlap.

Files
-----
geometry.py
    The taps of each window and the windows that hold each input; unfold and fold.
routes.py
    Routes: whole, packed, and one bit for each tap; the indices of winners.
derivative.py
    Reverse-mode differentiation of a function written in array-API operations.
engine.py
    `forward`, `pull`, `push` and `indices` of any entry of the table.
front.py
    The front end for libraries that have none of their own: values, `vjp`.

`tests/exactness/test_portable.py` compares it with `poolgrad.reference`, by arrays of PyTorch, JAX
and array-api-strict; ``poolgrad check`` has it as the front end ``portable``.
"""

from poolgrad.portable.engine import compose, differentiable, forward, indices, pull, push

__all__ = ["compose", "differentiable", "forward", "indices", "pull", "push"]
