"""A split for fit() whose groups have names; prune() takes it as well, and calls the groups by them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.recipe import Split


class NamedSplit(Split):
    """A Split in every other respect: the names are no field, and change no experiment's identity."""

    names: tuple[str, ...] = ()  # of the groups 0, 1, …

    @staticmethod
    def of(split: Split, names: Sequence[str]) -> "NamedSplit":
        named = NamedSplit(split.inputs, split.labels, split.groups, split.mean, split.std)
        object.__setattr__(named, "names", tuple(names))  # a frozen dataclass
        return named

    def group_names(self) -> NDArray[Any]:
        """The group of each sample in words; None where it is not known."""
        names: NDArray[Any] = np.array([*self.names, None], dtype=object)
        return np.asarray(names[self.groups.cpu().numpy()])
