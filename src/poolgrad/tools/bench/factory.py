"""Imports and calls the factory of `poolgrad profile`, with clear errors."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn

_FORM = "MODEL must be package.module:function or file.py:function"


class Factory(NamedTuple):
    """The module or file, and the name of the function in it."""

    where: str
    name: str

    @property
    def in_file(self) -> bool:
        """Whether `where` is the path of a file, not the name of a module."""
        return self.where.endswith(".py")

    def __str__(self) -> str:
        return f"{self.where}:{self.name}"


def parse(model: str) -> Factory:
    """Split ``package.module:factory`` or ``file.py:factory``, without importing anything.

    Raises
    ------
    ValueError
        If `model` has another form, or there is no such file or package.
    """
    where, colon, name = model.rpartition(":")
    if not colon or not where or not name:
        raise ValueError(f"{_FORM}, got {model!r}")
    factory = Factory(where, name)
    if factory.in_file:
        if not Path(where).is_file():
            raise ValueError(f"there is no file {where}")
    elif Path(where).is_file() or not all(map(str.isidentifier, where.split("."))):
        raise ValueError(f"{_FORM}, got {model!r}; the name of a file must end in .py")
    else:
        with _first_on_path(os.getcwd()):
            if importlib.util.find_spec(where.partition(".")[0]) is None:
                raise ValueError(f"there is no module {where} in this folder or installed")
    return factory


def load(factory: Factory) -> nn.Module:
    """Import the factory and call it.

    Raises
    ------
    ValueError
        If that fails or gives no network. The message is one sentence; where the user's own code
        raised, the user's part of the traceback follows.
    """
    from torch import nn

    module = _imported(factory)
    missing = object()
    found = getattr(module, factory.name, missing)
    if found is missing:
        near = get_close_matches(factory.name, vars(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{factory.where} has no {factory.name}{hint}")
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise ValueError(f"{factory} must be a function or a torch.nn.Module, got {_kind(found)}")
    _check_arguments(factory, found)
    with _user_code(f"{factory} raised an error"):
        network = found()
    if not isinstance(network, nn.Module):
        raise ValueError(f"{factory} must return a torch.nn.Module, got {_kind(network)}")
    return network


def _kind(thing: object) -> str:
    return "None" if thing is None else f"an object of type {type(thing).__qualname__}"


def _check_arguments(factory: Factory, function: Callable[..., Any]) -> None:
    """Raise an error if the factory has arguments without default values."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some compiled functions have no signature
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    if needed:
        arguments = f"argument{'s' * (len(needed) > 1)} {', '.join(map(repr, needed))}"
        raise ValueError(
            f"{factory} cannot be called without the {arguments}; give a default value, or name"
            " a function that needs no arguments and returns the network"
        )


def _imported(factory: Factory) -> ModuleType:
    failed = f"{factory.where} cannot be imported"
    if not factory.in_file:
        with _first_on_path(os.getcwd()), _user_code(failed):
            return import_module(factory.where)
    path = Path(factory.where).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickle need it there
    # The modules beside the file can be imported from it, as if Python ran it.
    with _first_on_path(str(path.parent)), _user_code(failed):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # the imported module may have changed the list
            sys.path.remove(folder)


@contextmanager
def _user_code(failed: str) -> Iterator[None]:
    """Turn an error of the user's code into a ValueError with the user's part of the traceback."""
    try:
        yield
    except (Exception, SystemExit) as error:  # a script may end with sys.exit()
        frames = error.__traceback__
        while frames is not None and not _is_users(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        *position, what = traceback.format_exception_only(error)
        # The position of a syntax error is part of the exception, not of the traceback.
        details = "".join([*traceback.format_tb(frames), *position]).rstrip()
        raise ValueError(f"{failed}: {what.strip()}" + (details and f"\n{details}")) from error


def _is_users(file: str) -> bool:
    return file != __file__ and "importlib" not in file
