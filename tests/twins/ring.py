"""The replay buffer as the paper tells it: one deque per group, filled sample by sample."""

from collections import deque
from collections.abc import Sequence


class Rings:
    """k latest outcomes of each group; group -1 (missing) has a deque like any other."""

    def __init__(self, groups: int, k: int) -> None:
        self.k = k
        self.deques: dict[int, deque[float]] = {group: deque(maxlen=k) for group in range(-1, groups)}

    def push(self, outcomes: Sequence[float], groups: Sequence[int]) -> None:
        for outcome, group in zip(outcomes, groups, strict=True):
            self.deques[group].append(float(outcome))

    def means(self) -> dict[int, float]:
        """Of the full deques only."""
        return {group: sum(held) / self.k for group, held in self.deques.items() if len(held) == self.k}


class Table:
    """The latest outcome of every training sample; a group counts once half of its samples have been seen."""

    def __init__(self, samples_of: dict[int, int]) -> None:
        self.samples_of = samples_of
        self.latest: dict[int, tuple[int, float]] = {}

    def push(self, outcomes: Sequence[float], groups: Sequence[int], index: Sequence[int]) -> None:
        for outcome, group, sample in zip(outcomes, groups, index, strict=True):
            self.latest[sample] = (group, float(outcome))

    def means(self) -> dict[int, float]:
        held: dict[int, list[float]] = {}
        for group, outcome in self.latest.values():
            held.setdefault(group, []).append(outcome)
        return {
            group: sum(values) / len(values)
            for group, values in held.items()
            if 2 * len(values) >= self.samples_of[group]
        }


class Batch:
    """No memory: the outcomes of the batch alone."""

    def __init__(self) -> None:
        self.held: dict[int, list[float]] = {}

    def push(self, outcomes: Sequence[float], groups: Sequence[int]) -> None:
        self.held = {}
        for outcome, group in zip(outcomes, groups, strict=True):
            self.held.setdefault(group, []).append(float(outcome))

    def means(self) -> dict[int, float]:
        return {group: sum(values) / len(values) for group, values in self.held.items()}
