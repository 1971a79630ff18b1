"""evenprune: prune a network, and prove that no group paid for it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evenprune.audit import audit
from evenprune.limits import sample_size
from evenprune.tally import InputProblems
from evenprune.verdict import Audit, GroupHarmed

if TYPE_CHECKING:
    from evenprune import methods
    from evenprune.gap_constraint import GapConstraint
    from evenprune.masks import Masks
    from evenprune.pruning import prune
    from evenprune.recipe import Data, Recipe, Run, Split
    from evenprune.reference import DenseReference
    from evenprune.result import Result
    from evenprune.training import fit

__version__ = "0.1.0"
__all__ = [
    "Audit",
    "Data",
    "DenseReference",
    "GapConstraint",
    "GroupHarmed",
    "InputProblems",
    "Masks",
    "Recipe",
    "Result",
    "Run",
    "Split",
    "audit",
    "fit",
    "methods",
    "prune",
    "sample_size",
]

# What needs torch is imported when it is asked for: an audit works without.
_WITH_TORCH = {
    "Data": "recipe",
    "DenseReference": "reference",
    "GapConstraint": "gap_constraint",
    "Masks": "masks",
    "Recipe": "recipe",
    "Result": "result",
    "Run": "recipe",
    "Split": "recipe",
    "fit": "training",
    "methods": "methods",
    "prune": "pruning",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module 'evenprune' has no attribute {name!r}")
    try:
        module = import_module(f"evenprune.{_WITH_TORCH[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "safetensors"):
            raise
        raise ImportError(
            f"evenprune.{name} needs {error.name}: pip install 'evenprune[torch]'", name=error.name
        ) from error
    return module if name == "methods" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
