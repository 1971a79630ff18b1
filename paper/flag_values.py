"""Values that no flag of a command line takes, told all at once, before anything is read or trained."""

from argparse import Namespace
from typing import Any

import torch

from evenprune.tally import InputProblems
from paper.cells import seeds_in
from paper.results_file import Rule
from paper.rules import COUNT, FOLDS, FRACTION, NOT_NEGATIVE, POSITIVE, SAMPLES, SPARSITY, whole


def names_seeds(text: Any) -> bool:
    try:
        return bool(seeds_in(text))
    except InputProblems:
        return False


SEEDS: Rule = ("seeds, as 0-4 or 0,1,2", names_seeds)
FLAGS: dict[str, Rule] = {  # whatever command has them; what is not told is not judged
    **dict.fromkeys(("tolerance", "pair_tolerance"), FRACTION),
    "loss_tolerance": NOT_NEGATIVE,
    **dict.fromkeys(("dual_lr", "el_dual_lr", "dro_dual_lr"), NOT_NEGATIVE),
    "sparsity": SPARSITY,
    **dict.fromkeys(("heldout", "heldout_used"), SAMPLES),
    **dict.fromkeys(("epochs", "batch", "image_size", "fleet", "save_every"), COUNT),
    **dict.fromkeys(("buffer", "refresh", "importance_batches"), COUNT),
    "folds": FOLDS,
    "seed": whole(0),
    "trials": whole(2),
    "tune_seeds": SEEDS,
    "lr": POSITIVE,
    **dict.fromkeys(("seconds_per_run", "seconds_per_fleet"), NOT_NEGATIVE),
}


def wrong_values(flags: Namespace) -> list[str]:
    """One line a value that is not what its flag takes."""
    wrong = [
        f"--{name.replace('_', '-')} is {_told(value)}: give {words}"
        for name, (words, holds) in FLAGS.items()
        for value in told_values(getattr(flags, name, None))
        if not holds(value)
    ]
    return wrong + _no_such_device(flags)


def told_values(told: Any) -> list[Any]:
    """Of a flag that takes several, each; None stands for what is usual, or for all."""
    return [value for value in (told if isinstance(told, list) else [told]) if value is not None]


def _told(value: Any) -> str:
    return repr(value) if isinstance(value, str) else f"{value:g}"


def _no_such_device(flags: Namespace) -> list[str]:
    device = getattr(flags, "device", None)
    if device is None or device.type != "cuda" or torch.cuda.is_available():
        return []
    return [f"--device is {device}, and torch finds no GPU here: leave it out, or give cpu"]


def refuse(flags: Namespace) -> None:
    found = wrong_values(flags)
    if found:
        raise InputProblems(found)
