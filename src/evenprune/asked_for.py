"""What a call of prune() asks for, as plain values of the right kind: nothing else can be checked before."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from torch import Tensor

from evenprune.folds import Folds
from evenprune.method import Method
from evenprune.recipe import Recipe
from evenprune.tally import InputProblems

KINDS: Mapping[str, tuple[Any, str]] = {
    "method": (Method, "one of evenprune.methods, or several, such as methods.ceag(tolerance=0.02)"),
    "sparsity": (Real, "a number, or several, such as 0.9"),
    "seeds": (Integral, "how many, or whole numbers, such as range(5)"),
    "select": (str, "the name of one split, 'heldout'"),
    "recipe": (Recipe, "a Recipe, such as Recipe(epochs=60)"),
    "folds": (Folds, "Folds(of, models)"),
    "folds.of": (Tensor, "what folds.assign gives"),
}


def checked(
    method: Any, sparsity: Any, seeds: Any, *, recipe: Any, select: Any, folds: Any
) -> tuple[list[Method], list[float], list[int]]:
    """Methods, sparsities and seeds, each as a list; or one error that names every value of another kind."""
    given: dict[str, Sequence[Any]] = {
        "method": several(method),
        "sparsity": several(sparsity),
        "seeds": range(int(seeds)) if isinstance(seeds, Integral) else several(seeds),
        "select": [] if select is None else [select],
        "recipe": [] if recipe is None else [recipe],
        "folds": [] if folds is None else [folds],
        "folds.of": [folds.of] if isinstance(folds, Folds) else [],
    }
    problems = [
        f"{name} is {value!r:.80}, a {type(value).__name__}: give {what}"
        for name, (kind, what) in KINDS.items()
        for value in given[name]
        if not isinstance(value, kind)
    ]
    if problems:
        raise InputProblems(problems)
    return list(given["method"]), [float(s) for s in given["sparsity"]], [int(i) for i in given["seeds"]]


def several(value: Any) -> list[Any]:
    """The values of a list, an array or the like, numbers as Python has them; a word is one value."""
    listed = value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value
    one = isinstance(listed, str | Mapping) or not isinstance(listed, Iterable)
    return [listed] if one else [v.item() if isinstance(v, Tensor | np.generic) else v for v in listed]
