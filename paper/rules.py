"""What settings may be: one set of rules for command lines and for the rows of the study's results."""

import math
from collections.abc import Mapping
from typing import Any

from paper.results_file import Rule


def _plain(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and _plain(value) and value >= least


def whole(least: int) -> Rule:
    return f"a whole number of at least {least}", lambda value: _whole(value, least)


def or_null(rule: Rule) -> Rule:
    words, holds = rule
    return f"{words}, or null", lambda value: value is None or holds(value)


COUNT = whole(1)
FOLDS = whole(2)
NOT_NEGATIVE: Rule = ("a number of at least 0", lambda value: _plain(value) and value >= 0)
POSITIVE: Rule = ("a number above 0", lambda value: _plain(value) and value > 0)
FRACTION: Rule = ("a fraction from 0 to 1, as 0.01", lambda value: _plain(value) and 0 <= value <= 1)
SPARSITY: Rule = (
    "a share of at least 0 and below 1, as 0.95",
    lambda value: _plain(value) and 0 <= value < 1,
)
SAMPLES: Rule = (
    "a number of samples, such as 50, or a share between 0 and 1, as 0.2",
    lambda value: _whole(value, 1) or (_plain(value) and 0 < value < 1),
)

# Of a row of the study, beside the tolerance, which depends on the method.
SETTINGS: dict[str, Rule] = {
    "sparsity": SPARSITY,
    "augment": ("true or false", lambda value: isinstance(value, bool)),
    "tolerance": or_null(NOT_NEGATIVE),
    "dual_lr": or_null(NOT_NEGATIVE),
    "buffer": or_null(COUNT),
    "refresh": or_null(COUNT),
    "heldout_per_class": SAMPLES,
    "heldout_used": or_null(SAMPLES),
    "epochs": COUNT,
    "folds": or_null(FOLDS),
    "importance_batches": or_null(COUNT),
}
# By kind of tolerance: that of max ψ is what runs are audited with; those of CELG are of a loss.
TOLERANCES: Mapping[str, Rule] = {
    **dict.fromkeys(("usual", "after"), FRACTION),
    "pairs": or_null(FRACTION),
    **dict.fromkeys(("loss", "none"), or_null(NOT_NEGATIVE)),
}
