"""A split for fit() whose groups have names; prune() takes it as well, and calls the groups by them."""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.reading import counted
from evenprune.recipe import Split


@dataclass(frozen=True)
class NamedSplit(Split):
    """A Split in every other respect: the names are no field, and change no experiment's identity.

    As an InitVar they are handed on by to() and dataclasses.replace().
    """

    names: InitVar[tuple[str, ...]] = ()  # of the groups 0, 1, …

    def __post_init__(self, names: Sequence[str]) -> None:
        object.__setattr__(self, "names", tuple(names))  # a frozen dataclass

    @staticmethod
    def of(split: Split, names: Sequence[str]) -> "NamedSplit":
        return NamedSplit(split.inputs, split.labels, split.groups, split.mean, split.std, tuple(names))

    def group_names(self) -> NDArray[Any]:
        """The group of each sample in words, None where it is not known; without names, its id."""
        ids = self.groups.cpu().numpy()
        given: tuple[str, ...] = vars(self)["names"]  # type checkers know no attribute of an InitVar
        count = len(given)
        if not given:
            return ids
        outside = np.flatnonzero((ids < -1) | (ids >= count))
        if outside.size:
            many = counted(outside.size, "group id", "group ids")
            raise ValueError(
                f"{many} outside −1 … {count - 1} ({count} names are given), the first "
                f"is {ids[outside[0]]} at sample {outside[0]}. Name them all: NamedSplit.of(split, names)"
            )
        names: NDArray[Any] = np.array([*given, None], dtype=object)
        return np.asarray(names[ids])
