"""A record of the PyTorch operators that run."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# These add in an arbitrary order on GPUs, or make the host wait for a value.
_REFUSED = {
    "index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce", "index_reduce",
    "reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward",
    "replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward",
    "_local_scalar_dense", "nonzero", "masked_select", "_unique2",
}  # fmt: skip
_INDEXED = ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")


class Watching(TorchDispatchMode):
    """Collects the names of operators, and of those that scatter or read.

    Attributes
    ----------
    names : set of str
        All operators.
    refused : set of str
        Operators that add by scatter, or whose result on the host depends on values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.refused: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.names.add(name)
        adds = name in _INDEXED and (args[3:4] == (True,) or (kwargs or {}).get("accumulate"))
        if name in _REFUSED or adds:
            self.refused.add(name)
        return func(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    """Collects the functions that copy numbers of the host to another device.

    A CUDA graph cannot capture such a copy, and outside of graphs the host waits for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.asarray, torch.as_tensor) and not isinstance(
            args[0], torch.Tensor
        ):
            self.names.append(func.__name__)
        return result
