"""Layers that pool the positions of a map by multi-head attention."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import relu, scaled_dot_product_attention

from poolgrad.torch._compat import forward_level, is_transformed, tracing_state
from poolgrad.torch.layers import arguments, exportable
from poolgrad.torch.layers.arguments import Layer
from poolgrad.windows import Ints

_HEAD_WIDTH = 64  # channels of one head, as in CLIP


def _heads(channels: int, heads: int | None) -> int:
    """Return the number of heads; by default the largest whose heads have 64 channels or more."""
    if heads is None:
        most = max(1, channels // _HEAD_WIDTH)
        return next(h for h in range(most, 0, -1) if channels % h == 0)
    if channels % heads:
        raise ValueError(f"heads must divide the {channels} channels, got {heads}")
    return heads


@fx.wrap
def _attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute ``softmax(q k^T / sqrt(d)) v``.

    PyTorch's fused kernels have neither second derivatives nor forward mode, and a first backward
    pass may be differentiated later: they are called only where nothing is differentiated.
    """
    traced = tracing_state() is not None  # a graph is compared with one that has no gradients
    if not (traced or torch.is_grad_enabled() or is_transformed() or forward_level() >= 0):
        return scaled_dot_product_attention(q, k, v)
    weights = (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(-1)
    return weights @ v


def _normalised(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """Apply a layer normalisation.

    PyTorch's forward-mode derivative of it has a wrong derivative itself.
    """
    if forward_level() < 0:
        return norm(x)
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    return centred * scale * norm.weight + norm.bias


def _tokens(x: Tensor) -> Tensor:
    """Return the positions of a map (N, C, H, W) as a sequence, shape (N, H * W, C)."""
    return x.flatten(-2).transpose(-2, -1)


class MultiHeadAttention(Layer):
    """Multi-head attention of a few queries over a sequence of tokens.

    Computes ``softmax(q k^T / sqrt(d)) v`` for each head, with ``d = channels / heads``, and
    projects the concatenated heads.

    Parameters
    ----------
    channels : int
        The width of queries and tokens.
    heads : int
        The number of heads; it divides `channels`.
    out_channels : int
        The width of the output.

    Notes
    -----
    Vaswani et al., Attention is all you need, 2017. Without gradients the attention is
    `torch.nn.functional.scaled_dot_product_attention`.
    """

    def __init__(self, channels: int, heads: int, out_channels: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)
        self.output = nn.Linear(channels, out_channels)
        for projection in (self.query, self.key, self.value, self.output):
            nn.init.normal_(projection.weight, std=channels**-0.5)
            nn.init.zeros_(projection.bias)

    def forward(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """Attend from (N, Q, C) to (N, T, C); the result has shape (N, Q, out_channels)."""
        projected = self.query(queries), self.key(tokens), self.value(tokens)
        heads = [t.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for t in projected]
        return self.output(_attended(*heads).transpose(-3, -2).flatten(-2))


class _Attention(Layer):
    """Base class: multi-head attention to the positions of a map."""

    channels: int

    def extra_repr(self) -> str:
        """Return the arguments for `repr`."""
        return f"{self.channels}, {super().extra_repr()}"


class AttentionPool2d(_Attention):
    """Attention of the average token over all positions of a map, with positional embeddings.

    The positions of the map, and before them their average, are a sequence of ``H * W + 1`` tokens.
    A learned positional embedding is added to each; then the first token, the average, is the query
    of multi-head attention over all of them. The output is the projected result of this query.

    Parameters
    ----------
    channels : int
        The channels of the input.
    size : int or (int, int)
        The height and the width of the input, for which there are positional embeddings.
    heads : int, optional
        The number of attention heads; it must divide `channels`. Default: heads of 64 channels, as
        in CLIP, or wider ones where that does not divide `channels`.
    out_channels : int, optional
        The width of the output. Default: `channels`.

    Attributes
    ----------
    positions : nn.Parameter, shape (H * W + 1, C)
        The positional embeddings; that of the average comes first. The layer does not depend on
        the order of positions where these are all equal.

    Raises
    ------
    TypeError, ValueError
        In the constructor, for an invalid argument; in a call, for an input that is not a
        floating tensor of shape (N, C, H, W) or (C, H, W) with these channels, height and width.

    Notes
    -----
    Radford et al., Learning transferable visual models from natural language supervision, 2021
    (CLIP), whose ResNets end in this layer.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import AttentionPool2d
    >>> pool = AttentionPool2d(128, size=(7, 5), out_channels=10)
    >>> pool
    AttentionPool2d(
      128, size=(7, 5), heads=2, out_channels=10
      (attention): MultiHeadAttention(
        (query): Linear(in_features=128, out_features=128, bias=True)
        (key): Linear(in_features=128, out_features=128, bias=True)
        (value): Linear(in_features=128, out_features=128, bias=True)
        (output): Linear(in_features=128, out_features=10, bias=True)
      )
    )
    >>> pool(torch.rand(2, 128, 7, 5)).shape
    torch.Size([2, 10])
    """

    shown = ("size", "heads", "out_channels")

    size: Ints
    heads: int | None = None
    out_channels: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.heads = _heads(self.channels, self.heads)
        self.out_channels = self.out_channels or self.channels
        _, (height, width), *_ = self.arguments
        deviation = self.channels**-0.5
        self.positions = nn.Parameter(torch.randn(height * width + 1, self.channels) * deviation)
        self.attention = MultiHeadAttention(self.channels, self.heads, self.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Pool a tensor of shape (N, C, H, W) to (N, out_channels)."""
        x = arguments.check_maps(x, self.channels, self.size)
        mean = exportable.global_average(x)[..., None, :]
        tokens = torch.cat([mean, _tokens(x)], -2) + self.positions
        return self.attention(tokens[..., :1, :], tokens)[..., 0, :]


class AttentionPoolLatent(_Attention):
    """Attention of learned queries over all positions of a map of any size.

    With the positions of the map as tokens X and the learned queries S::

        H = LayerNorm(S + MultiHeadAttention(S, X))
        Z = LayerNorm(H + relu(Linear(H)))

    There are no positional embeddings: the output does not depend on the order of the positions.

    Parameters
    ----------
    channels : int
        The channels of the input.
    heads : int, optional
        The number of attention heads; it must divide `channels`. Default: heads of 64 channels, or
        wider ones where that does not divide `channels`.
    latents : int
        The number of learned queries. Default: 1.
    out_channels : int, optional
        The width of the output: a linear map of all rows of Z, one after the other. Default: no
        such map; the output is these rows, of width ``latents * channels``.

    Attributes
    ----------
    queries : nn.Parameter, shape (latents, C)
        The learned queries.

    Raises
    ------
    TypeError, ValueError
        In the constructor, for an invalid argument; in a call, for an input that is not a
        floating tensor of shape (N, C, H, W) or (C, H, W), or has another number of channels.

    Notes
    -----
    Lee et al., Set transformer, 2019: pooling by multi-head attention (PMA). As in the authors'
    code there is no feed-forward layer before the attention: the network before the layer is one.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import AttentionPoolLatent
    >>> pool = AttentionPoolLatent(128, latents=2, out_channels=10)
    >>> pool(torch.rand(2, 128, 7, 5)).shape, pool(torch.rand(2, 128, 9, 9)).shape
    (torch.Size([2, 10]), torch.Size([2, 10]))
    """

    shown = ("heads", "latents", "out_channels")

    heads: int | None = None
    latents: int = 1
    out_channels: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.latents * self.channels
        has_projection = self.out_channels is not None
        self.heads = _heads(self.channels, self.heads)
        self.out_channels = self.out_channels or rows
        self.queries = nn.Parameter(torch.empty(self.latents, self.channels))
        nn.init.xavier_uniform_(self.queries)
        self.attention = MultiHeadAttention(self.channels, self.heads, self.channels)
        self.norm = nn.LayerNorm(self.channels)
        self.feed_forward = nn.Linear(self.channels, self.channels)
        self.norm_out = nn.LayerNorm(self.channels)
        self.projection = nn.Linear(rows, self.out_channels) if has_projection else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Pool a tensor of shape (N, C, H, W) to (N, out_channels)."""
        batch = arguments.batched(arguments.check_maps(x, self.channels))
        queries = self.queries.expand(batch.shape[0], -1, -1)
        hidden = _normalised(self.norm, queries + self.attention(queries, _tokens(batch)))
        rows = _normalised(self.norm_out, hidden + relu(self.feed_forward(hidden)))
        return arguments.unbatched(self.projection(rows.flatten(-2)), x)
