"""What an audit needs to know of the data, and nothing more: counts per cell, or per-sample scores."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.floating[Any]]
Measure = Literal["accuracy", "score", "loss"]

# One cell is one combination of attribute values that occurs in the data; None is a missing value.
Cell = tuple[str | None, ...]

MOST_MODELS = 30  # a pattern of right and wrong is one bit a model


class InputProblems(ValueError):
    """Everything that is wrong with the input, in one error."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = list(problems)
        many = f"{len(problems)} problems:\n" if len(problems) > 1 else ""
        super().__init__(many + "\n".join(f"- {p}" if many else p for p in problems))


@dataclass(frozen=True)
class Tally:
    """How often each pattern of right and wrong occurs in each cell: enough for any audit of accuracy.

    Bit 0 of a pattern says that the dense model was right, bit m that pruned model m (from 1) was right.
    The rows are the (cell, pattern) pairs that occur; ten million samples become a few thousand rows.
    """

    attributes: tuple[str, ...]  # the user's column names
    cells: tuple[Cell, ...]  # distinct; one value per attribute
    models: tuple[str, ...]  # names of the pruned models
    cell: IntArray  # [rows] index into cells
    pattern: IntArray  # [rows]
    count: IntArray  # [rows] samples

    @property
    def samples(self) -> int:
        return int(self.count.sum())


@dataclass(frozen=True)
class Scores:
    """Per-sample scores or losses of the dense model and of each pruned one."""

    measure: Measure  # "score" (higher is better, in [0, 1]) or "loss" (lower is better)
    attributes: tuple[str, ...]
    cells: tuple[Cell, ...]
    models: tuple[str, ...]
    cell: IntArray  # [samples] index into cells
    dense: FloatArray  # [samples]
    pruned: FloatArray  # [models, samples]

    @property
    def samples(self) -> int:
        return int(self.cell.size)
