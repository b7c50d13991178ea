"""The learning curves of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from poolgrad.lab.plotting import BLUE, GREY, ORANGE, to_png


def draw_curves(rows: Sequence[Mapping[str, float]], test_accuracy: float) -> bytes:
    """Loss and accuracy over the epochs.

    Parameters
    ----------
    rows
        One for each epoch, with `epoch`, `train_loss`, `val_loss`, `train_accuracy` and
        `val_accuracy`.
    test_accuracy
        Drawn as a line beside the accuracies.

    Returns
    -------
    bytes
        A PNG.
    """
    epochs = [row["epoch"] for row in rows]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, what in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for part, name, colour, marker in (
            ("train", "training, on augmented images", ORANGE, "o"),
            ("val", "validation", BLUE, "s"),
        ):
            values = [row[f"{part}_{what}"] for row in rows]
            axes.plot(epochs, values, color=colour, marker=marker, markersize=4, label=name)
        axes.set_title("Cross entropy" if what == "loss" else "Accuracy", fontsize=14)
        axes.set_xlabel("epoch", fontsize=12)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.tick_params(labelsize=11)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if what == "loss":
            axes.set_yscale("log")
        else:
            label = f"test, once at the end: {test_accuracy:.4f}"
            axes.axhline(test_accuracy, color=GREY, linestyle="--", label=label)
        axes.legend(fontsize=11, frameon=False)
    return to_png(figure)
