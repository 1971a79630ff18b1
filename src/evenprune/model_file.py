"""The dense model of the command line: a function in the user's own file, and perhaps a file of weights."""

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from evenprune import architectures, state_file
from evenprune.tally import InputProblems


def load(spec: str, weights: str = "") -> nn.Module:
    """Call FILE.py:function (or package.module:function) for the model, then load its weights if named."""
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise InputProblems([_no_model(spec)])
    make = _function(_module(place), place, name)
    model: object = _guarded(make, f"{name}() of {place}")
    if not isinstance(model, nn.Module):
        raise InputProblems([f"{name}() of {place} returns {type(model).__name__}; give a torch.nn.Module"])
    if weights:
        load_weights(model, weights)
    return model


def _no_model(spec: str) -> str:
    names = list(architectures.BUILDERS)
    near = difflib.get_close_matches(spec, names, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return (
        f"model is {spec!r}{meant}: write FILE.py:function, such as model.py:build_model, or a built-in "
        f"architecture: {', '.join(names)}"
    )


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        module: ModuleType = _guarded(lambda: importlib.import_module(place), f"the module {place}")
        return module
    path = Path(place)
    if not path.is_file():
        raise InputProblems([f"model: there is no file {place}"])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputProblems([f"model: {place} is no Python file"])
    loader, module = spec.loader, importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # the file may import its neighbours, as when it is run
    sys.modules.setdefault(path.stem, module)  # dataclasses look their own module up
    _guarded(lambda: loader.exec_module(module), place)
    return module


def _function(module: ModuleType, place: str, name: str) -> Callable[[], Any]:
    make = getattr(module, name, None)
    if callable(make):
        return make  # type: ignore[no-any-return]  # it is the user's
    functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    raise InputProblems([f"{place} has no function {name!r}; it has {', '.join(functions) or 'none'}"])


def _guarded(call: Callable[[], Any], what: str) -> Any:
    """An error in the user's code, as one message that says where it happened."""
    try:
        return call()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}, line {last.lineno}"
        raise InputProblems([f"{what} raised {type(error).__name__}: {error} ({where})"]) from error


def load_weights(model: nn.Module, path: str) -> None:
    """Weights of a file (safetensors, or a state dict of torch.save) into a model that has exactly these."""
    try:
        model.load_state_dict(state_file.read(path))
    except InputProblems as error:
        raise InputProblems([f"weights {problem}" for problem in error.problems]) from error
    except RuntimeError as error:  # names or shapes that the model has not
        text = " ".join(str(error).split())
        raise InputProblems([f"weights {path!r} do not fit the model: {text[:400]}"]) from error
