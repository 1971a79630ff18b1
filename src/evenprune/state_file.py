"""Files of weights: tensors by name. Nothing but tensors is ever loaded, and nothing in a file is run."""

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from evenprune.reading import listed, quoted
from evenprune.tally import InputProblems

PICKLED = (".pt", ".pth", ".bin", ".ckpt")  # what torch.save writes, as people call it
AGAIN = "Copy it here again, or save the weights anew: torch.save(model.state_dict(), 'weights.pt')"
SAVED = "save the state dict alone: torch.save(model.state_dict(), 'weights.pt')"


def read(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of one that torch.save wrote; told by the ending of its name."""
    shown = quoted(str(path), 300)
    pickled = Path(path).suffix.lower() in PICKLED
    kind = "a checkpoint of torch.save" if pickled else "safetensors"
    try:
        state = _unpickled(path) if pickled else load_file(path)
    except pickle.UnpicklingError:
        raise InputProblems(
            [f"{shown} holds Python objects, which are never loaded, or is no checkpoint; {SAVED}"]
        ) from None
    except (OSError, SafetensorError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).strip().split("\n")[0]
        endings = "" if pickled else f" (files that torch.save wrote end in {' or '.join(PICKLED[:2])})"
        raise InputProblems([f"{shown} cannot be read as {kind}: {reason}{endings}"]) from None
    except Exception as error:  # to read what was cut or damaged can end in any
        reason = f"{type(error).__name__} {error}".strip().split("\n")[0]
        raise InputProblems(
            [f"{shown} cannot be read as {kind} ({quoted(reason, 200)}): is it cut or damaged? {AGAIN}"]
        ) from None
    return _state(state, shown)


def _unpickled(path: str | Path) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected pickle protocol")
        return torch.load(path, map_location="cpu", weights_only=True)


def _state(state: Any, shown: str) -> dict[str, Tensor]:
    if isinstance(state, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items()
    ):
        return dict(state)
    held = f" with {listed(list(state), 5)}" if isinstance(state, Mapping) else ""
    raise InputProblems([f"{shown} holds {type(state).__name__}{held}, not tensors by name; {SAVED}"])
