"""Reads and checks the checkpoint of a run that is to be resumed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from poolgrad.lab.callbacks import METRICS, History
from poolgrad.lab.folder import RunFolder
from poolgrad.lab.settings import LabError, Settings, check_entries, shorten

# The entries from which Lightning restores a run.
_ENTRIES: dict[str, tuple[type, ...]] = {
    "state_dict": (dict,),
    "optimizer_states": (list,),
    "lr_schedulers": (list,),
    "loops": (dict,),
    "callbacks": (dict,),
    "epoch": (int,),
    "global_step": (int,),
    "pytorch-lightning_version": (str,),
}


def finished_epochs(folder: RunFolder, network: nn.Module, settings: Settings) -> int:
    """Count the epochs of the checkpoint in a run folder; 0 if the first epoch has not finished.

    Parameters
    ----------
    folder
        Folder of the run.
    network
        The network that the checkpoint must hold weights and optimizer states of.
    settings
        Settings of the run, which must be those that the checkpoint was written with.

    Raises
    ------
    LabError
        If the checkpoint is missing though later epochs have begun, cannot be read, or belongs to
        another network or to other settings; the message names the file and what is wrong in it.
    """
    path = folder.checkpoint
    if not path.exists():
        # The metrics of an epoch are written before its checkpoint.
        if folder.metrics.is_file() and len(folder.metrics.read_bytes().splitlines()) > 2:
            raise LabError(
                f"{path} is missing, but {folder.metrics} has more than one epoch; choose another"
                " --out to begin again"
            )
        return 0
    try:
        content = torch.load(path, weights_only=True)
    except Exception as error:  # another kind of file can fail in any way
        raise LabError(
            f"{path} cannot be read ({type(error).__name__}): it is damaged, or not a checkpoint"
            " of poolgrad"
        ) from error
    try:
        check_entries(content, _ENTRIES, path, others=True)
        kept = content["callbacks"].get(History.__qualname__)
        kept = kept if isinstance(kept, dict) else {}
        done = _check_rows(kept.get("rows"), content["epoch"] + 1, settings.epochs)
        _check_settings(kept.get("settings"), settings)
        weights = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
        _check_weights(content["state_dict"], weights)
        for name in ("optimizer_states", "lr_schedulers"):
            if len(content[name]) != 1:
                raise _Damage(f"is damaged: `{name}` must have one item, got {len(content[name])}")
        _check_optimizer(content["optimizer_states"][0], [*network.parameters()])
    except _Damage as error:
        raise LabError(f"{path} {error}") from error
    return done


class _Damage(Exception):
    """What is wrong in a checkpoint, as the end of a sentence that begins with its path."""


def _check_rows(rows: object, count: int, epochs: int) -> int:
    """Check the history, and return the number of its epochs."""
    names = ("epoch", *METRICS)
    if not isinstance(rows, list) or len(rows) != count or not 1 <= count <= epochs:
        got = f"{len(rows)} rows" if isinstance(rows, list) else shorten(rows)
        raise _Damage(
            f"is damaged: the history must have a row for each of {count} finished epochs (of"
            f" {epochs}), got {got}"
        )
    for k, row in enumerate(rows):
        numbers = isinstance(row, dict) and all(
            type(row.get(name)) in (int, float) for name in names
        )
        if not numbers or row["epoch"] != k + 1:
            raise _Damage(
                f"is damaged: row {k + 1} of the history must have the numbers {', '.join(names)},"
                f" got {shorten(row)}"
            )
    return count


def _check_settings(stored: object, settings: Settings) -> None:
    known = stored if isinstance(stored, dict) else {}
    for name, value in settings.as_dict().items():
        if name != "data" and (name not in known or known[name] != value):  # data may have moved
            raise _Damage(
                f"was written with the setting {name} {shorten(known.get(name))}, but the run has"
                f" {value}"
            )


def _check_weights(stored: Mapping[str, object], expected: Mapping[str, Tensor]) -> None:
    for name in [*expected, *stored]:
        wanted, got = (_described(state.get(name)) for state in (expected, stored))
        if wanted != got:
            raise _Damage(
                f"does not fit the network: the weight {name} is {got}, expected {wanted}"
            )


def _described(tensor: object) -> str:
    if isinstance(tensor, Tensor):
        shape = " x ".join(map(str, tensor.shape))
        return f"{str(tensor.dtype).removeprefix('torch.')}, shape ({shape})"
    return "absent" if tensor is None else shorten(tensor)


def _check_optimizer(stored: object, parameters: list[nn.Parameter]) -> None:
    """Check the states, whose shapes PyTorch would only notice in the first step."""
    states = stored.get("state") if isinstance(stored, dict) else None
    if (
        not isinstance(states, dict)
        or set(states) != set(range(len(parameters)))
        or not all(isinstance(state, dict) for state in states.values())
    ):
        raise _Damage(
            f"is damaged: the optimizer's states must be those of {len(parameters)} parameters, got"
            f" {shorten(stored)}"
        )
    for index, parameter in enumerate(parameters):
        for name, value in states[index].items():
            shape = tuple(getattr(value, "shape", ()))
            if shape not in ((), tuple(parameter.shape)):
                raise _Damage(
                    f"does not fit the network: {name} of the optimizer's parameter {index} has"
                    f" shape {shape}, expected {tuple(parameter.shape)}"
                )
