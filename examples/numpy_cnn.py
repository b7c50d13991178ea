"""A convolutional network from scratch in NumPy, trained on scikit-learn's handwritten digits.

    pip install poolgrad scikit-learn
    python examples/numpy_cnn.py                                 # train, print the test accuracy
    python examples/numpy_cnn.py --optimiser adagrad --pool avg
    python examples/numpy_cnn.py --check                         # gradients against differences

Each layer has two methods. `forward` computes its output y from its input x. `backward` takes gy,
the gradient of the loss with respect to y, and computes gx, the gradient with respect to x.

Every example n of a batch has its own loss, and its gradient passes all layers on its own: gx[n]
follows from gy[n]. Only the parameters (weights and biases) are shared by the examples, so only
their gradients are averaged over the batch: in `Convolution.backward` and `Dense.backward`.
`numpy_cnn.ipynb` is the same network step by step, with pictures.
"""

import argparse

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import poolgrad


class Convolution:
    """K filters w of shape (C, size, size), a bias b for each; stride 1, no padding."""

    def __init__(self, channels, filters, size, random):
        scale = np.sqrt(2 / (channels * size**2))  # ReLU layers keep the variance (He et al. 2015)
        self.w = scale * random.standard_normal((filters, channels, size, size))
        self.b = np.zeros(filters)

    def forward(self, x):
        """y[n, k, i, j] = b[k] + sum over c, u, v of w[k, c, u, v] x[n, c, i + u, j + v]."""
        self.windows = sliding_window_view(x, self.w.shape[2:], axis=(2, 3))  # [n, c, i, j, u, v]
        y = np.einsum("kcuv,ncijuv->nkij", self.w, self.windows, optimize=True)
        return y + self.b[:, None, None]

    def backward(self, gy):
        """gx[n, c, i, j] = sum over k, u, v of w[k, c, u, v] gy[n, k, i - u, j - v]."""
        # Example n: gw[k, c, u, v] = sum over i, j of gy[n, k, i, j] x[n, c, i + u, j + v] and
        # gb[k] = sum over i, j of gy[n, k, i, j]. Here they are averaged over the batch.
        gw = np.einsum("nkij,ncijuv->kcuv", gy, self.windows, optimize=True) / len(gy)
        self.gradients = [gw, gy.sum(axis=(2, 3)).mean(axis=0)]
        size = self.w.shape[2]
        edge = (size - 1, size - 1)  # gy is zero outside the output
        padded = np.pad(gy, [(0, 0), (0, 0), edge, edge])
        windows = sliding_window_view(padded, (size, size), axis=(2, 3))
        flipped = self.w[:, :, ::-1, ::-1]
        return np.einsum("kcuv,nkijuv->ncij", flipped, windows, optimize=True)


class ReLU:
    """Rectified linear unit."""

    def forward(self, x):
        """y = max(x, 0)."""
        self.positive = x > 0
        return x * self.positive

    def backward(self, gy):
        """gx = gy where x > 0, else 0."""
        return gy * self.positive


class Pooling:
    """One of poolgrad's 2-D poolings, of windows of size x size without overlap."""

    def __init__(self, name, size):
        self.function, self.size = getattr(poolgrad, f"{name}_pool2d"), size

    def forward(self, x):
        """y[o] = the maximum (or average, ...) of window o."""
        y, self.pullback = poolgrad.vjp(self.function, x, self.size)
        return y

    def backward(self, gy):
        """gx[i] = sum over the windows o that contain input i of (dy[o] / dx[i]) gy[o]."""
        return self.pullback(gy)  # no parameters, so nothing is averaged


class Dense:
    """Linear layer; every example is flattened first."""

    def __init__(self, inputs, outputs, random):
        self.w = np.sqrt(1 / inputs) * random.standard_normal((inputs, outputs))
        self.b = np.zeros(outputs)

    def forward(self, x):
        """y[n, k] = b[k] + sum over i of x[n, i] w[i, k]."""
        self.shape, self.x = x.shape, x.reshape(len(x), -1)
        return self.x @ self.w + self.b

    def backward(self, gy):
        """gx[n, i] = sum over k of w[i, k] gy[n, k]."""
        # Example n: gw[i, k] = x[n, i] gy[n, k] and gb[k] = gy[n, k]. Averaged over the batch:
        self.gradients = [self.x.T @ gy / len(gy), gy.mean(axis=0)]
        return (gy @ self.w.T).reshape(self.shape)


class SoftmaxCrossEntropy:
    """Loss of each example; p[n, k] = exp(x[n, k]) / sum over j of exp(x[n, j])."""

    def forward(self, x, labels):
        """loss[n] = -log p[n, labels[n]]."""
        x = x - x.max(axis=1, keepdims=True)  # leaves p unchanged and avoids overflow
        log_p = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
        self.p, self.labels = np.exp(log_p), labels
        return -log_p[np.arange(len(x)), labels]

    def backward(self):
        """gx[n, k] = p[n, k] - (1 if k == labels[n] else 0)."""
        return self.p - np.eye(self.p.shape[1])[self.labels]


class Network:
    """Convolution, ReLU, pooling and a dense layer, and the loss of the result."""

    def __init__(self, pool="max", seed=0):
        random = np.random.default_rng(seed)
        convolution = Convolution(1, 12, 3, random)  # (1, 8, 8) to (12, 6, 6); pooled: (12, 3, 3)
        dense = Dense(12 * 3 * 3, 10, random)
        self.layers = [convolution, ReLU(), Pooling(pool, 2), dense]
        self.parameters = [convolution.w, convolution.b, dense.w, dense.b]
        self.loss = SoftmaxCrossEntropy()

    def forward(self, x):
        """y = dense(pooling(relu(convolution(x)))), a score for each class."""
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def losses(self, x, labels):
        """loss[n] = softmax cross-entropy of forward(x)[n] and labels[n]."""
        return self.loss.forward(self.forward(x), labels)

    def backward(self):
        """gx and the gradients of the parameters, by the chain rule: from the last layer to x."""
        gx = self.loss.backward()
        for layer in reversed(self.layers):
            gx = layer.backward(gx)
        return gx, self.layers[0].gradients + self.layers[-1].gradients


def sgd(w, g, s, rate=0.3):
    """w <- w - rate g."""
    w -= rate * g


def adagrad(w, g, s, rate=0.05):
    """s <- s + g^2, w <- w - rate g / (sqrt(s) + 1e-8)."""
    s += g**2
    w -= rate * g / (np.sqrt(s) + 1e-8)


def rmsprop(w, g, s, rate=0.005):
    """s <- 0.9 s + 0.1 g^2, w <- w - rate g / (sqrt(s) + 1e-8)."""
    s += 0.1 * (g**2 - s)
    w -= rate * g / (np.sqrt(s) + 1e-8)


def train(network, x, labels, optimiser, epochs=10, seed=0):
    """Run through all images once an epoch, in batches of 32; the mean loss of each epoch."""
    random = np.random.default_rng(seed)
    states = [np.zeros_like(w) for w in network.parameters]
    history = []
    for _ in range(epochs):
        losses = []
        for batch in np.array_split(random.permutation(len(x)), len(x) // 32):
            losses.extend(network.losses(x[batch], labels[batch]))
            _, gradients = network.backward()
            for w, g, s in zip(network.parameters, gradients, states, strict=True):
                optimiser(w, g, s)
        history.append(np.mean(losses))
    return history


def check(network, x, labels, h=1e-6):
    """Largest relative error of a gradient beside (L(a + h) - L(a - h)) / (2 h)."""
    network.losses(x, labels)
    gx, gradients = network.backward()
    # A parameter changes the mean loss of the batch, an image only its own loss.
    cases = [(w, g, np.mean) for w, g in zip(network.parameters, gradients, strict=True)]
    errors = []
    for a, g, total in [*cases, (x, gx, np.sum)]:
        differences = np.empty_like(a)
        for i in np.ndindex(a.shape):
            value = a[i]
            a[i] = value + h
            above = total(network.losses(x, labels))
            a[i] = value - h
            below = total(network.losses(x, labels))
            a[i] = value
            differences[i] = (above - below) / (2 * h)
        errors.append(np.abs(g - differences).max() / np.abs(differences).max())
    return max(errors)


def load():
    """Images of shape (N, 1, 8, 8) from 0 to 1, to train and to test, then their labels."""
    data = load_digits()
    images, labels = data.images[:, None] / 16, data.target
    return train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)


def main():
    """Train and print the accuracy, or check the gradients."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    optimisers = {"sgd": sgd, "adagrad": adagrad, "rmsprop": rmsprop}
    parser.add_argument("--optimiser", choices=optimisers, default="sgd")
    parser.add_argument(
        "--pool", choices=["max", "avg", "log_mean_exp", "soft", "median"], default="max"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the batches")
    parser.add_argument("--check", action="store_true", help="check gradients by differences")
    given = parser.parse_args()
    network = Network(given.pool, given.seed)
    if given.check:
        # Random images: a maximum has no derivative where inputs of a window are equal, as in the
        # background of a digit.
        x = np.random.default_rng(1).standard_normal((4, 1, 8, 8))
        error = check(network, x, labels=np.arange(4))
        print(f"largest relative error of a gradient: {error:.1e}")
        raise SystemExit(bool(error > 1e-6))
    x, x_test, labels, labels_test = load()
    history = train(network, x, labels, optimisers[given.optimiser], given.epochs, given.seed)
    for epoch, loss in enumerate(history, start=1):
        print(f"epoch {epoch:2}: mean loss {loss:.4f}")
    accuracy = (network.forward(x_test).argmax(axis=1) == labels_test).mean()
    print(f"test accuracy: {accuracy:.3f}")


if __name__ == "__main__":
    main()
