"""Modules for Flax NNX, Equinox and plain JAX.

There is a class for each public function and number of pooled axes, with the arguments of the
function. Its objects are immutable dataclasses and pytrees.

Arrays are channels last, as in Flax: ``(..., H, W, C)`` with any number of leading axes.
``channels_last=False`` pools arrays of Equinox, ``(..., C, H, W)``. The stride is the kernel size
by default.

    >>> import jax, jax.numpy as jnp
    >>> from poolgrad.jax import nn
    >>> x = jnp.arange(16.0).reshape(1, 4, 4, 1)
    >>> pool = nn.MaxPool2d(2)
    >>> pool(x)[0, :, :, 0]
    Array([[ 5.,  7.],
           [13., 15.]], dtype=float32)

A learned argument is an array or an ``nnx.Param``. It is a leaf of the pytree, so that gradients
and optimisers find it. A number is a constant.

    >>> gem = nn.GlobalLPPool2d(norm_type=jnp.array(3.0), mean=True)
    >>> gradient = jax.grad(lambda gem: gem(x).sum())(gem)
    >>> round(float(gradient.norm_type), 3)
    0.715

Random poolings are called with a key.

    >>> nn.StochasticPool2d(2)(x, key=jax.random.key(0)).shape
    (1, 2, 2, 1)
"""

from poolgrad.jax.modules import modules

_CLASSES = dict(sorted((made.__name__, made) for made in modules()))
globals().update(_CLASSES)
__all__ = list(_CLASSES)
