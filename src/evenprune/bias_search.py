"""The search behind `class_bias`: one number per class that makes the largest excess gap smallest.

    F(b) = max_g (ψ_g − allowed_g)₊ + Δ

is piecewise constant: the answer to a sample changes where two biased logits meet. So b moves one class at a
time (others fixed) to the best of all intervals between these points. The p-norm over the groups stands for
the maximum, p = 2, 8, 32 in turn, since a maximum alone stalls where two groups are equally badly off.
Nothing is drawn at random, and the order of the samples does not matter.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from evenprune.tally import FloatArray, IntArray

POWERS = (2, 8, 32)  # of the norm that stands for the maximum, one after another
MOST_SWEEPS = 20  # over all units, for each power
MOST_CELLS = 30_000  # edges × groups that one move looks at, to either side
SMALLEST = 1e-12  # a gain below is rounding


@dataclass(frozen=True)
class Task:
    """A held-out split as the search sees it. A unit is a class, or several that share one bias."""

    scores: FloatArray  # [N, units] the largest logit of each unit
    right: NDArray[np.bool_]  # [N, units] whether the class of that logit is the label
    movable: IntArray  # units whose bias may change
    group: IntArray  # [N]; the number `groups` stands for: not known
    groups: int  # each of them has samples
    dense_right: NDArray[np.bool_]  # [N]

    @cached_property
    def samples(self) -> FloatArray:
        return self.per_group(np.ones(len(self.group)))

    @cached_property
    def dense(self) -> FloatArray:
        """[groups] answers of the dense model that are right."""
        return self.per_group(self.dense_right)

    @cached_property
    def narrowest(self) -> float:
        """Intervals of the bias that are no wider could be missed in float32."""
        return 8 * float(np.finfo(np.float32).eps) * float(np.abs(self.scores).max())

    @cached_property
    def dense_total(self) -> float:
        return float(self.dense_right.sum())

    def per_group(self, values: NDArray[np.generic]) -> FloatArray:
        """Sums [groups] of values [N]."""
        return np.bincount(self.group, values.astype(np.float64), self.groups + 1)[:-1].astype(np.float64)

    def answers(self, scored: FloatArray) -> NDArray[np.bool_]:
        """[N]: whether the answer that biased scores [N, units] give is right."""
        return np.asarray(self.right[np.arange(len(scored)), scored.argmax(1)])

    def excess(self, right: FloatArray, total: FloatArray) -> FloatArray:
        """ψ_g = Δ_g − Δ of right answers per group [..., groups] and in all [...]."""
        return np.asarray((self.dense - right) / self.samples - np.expand_dims(self.loss(total), -1))

    def loss(self, total: FloatArray) -> FloatArray:
        """Δ = A(dense) − A(pruned) of right answers in all [...]."""
        return np.asarray((self.dense_total - total) / len(self.group))


@dataclass(frozen=True)
class Found:
    bias: FloatArray  # [units]
    moves: int  # of one unit each, until the search ended


@dataclass(frozen=True)
class Line:
    """The right answers along the bias of one unit, others fixed: a row for each interval between edges."""

    edges: FloatArray  # [edges] sorted: how far the bias must move for an answer to become right or wrong
    right: FloatArray  # [edges + 1, groups]
    total: FloatArray  # [edges + 1]
    here: int  # the interval that holds the present bias

    def distance(self, interval: int, *, narrowest: float) -> float:
        """To the middle of an interval; of one without end, to a little beyond its edge."""
        if 0 < interval < len(self.edges):
            return float(self.edges[interval - 1] + self.edges[interval]) / 2
        widths = np.diff(self.edges)
        step = max(10 * narrowest, float(np.median(widths)) if widths.size else 0.0)
        return float(self.edges[0] - step if interval == 0 else self.edges[-1] + step)


@dataclass
class _State:
    """Where the search stands, and the best it has seen."""

    scored: FloatArray  # [N, units] scores + bias
    bias: FloatArray  # [units]
    right: FloatArray  # [groups]
    total: FloatArray  # []
    best: float  # F of `kept`
    kept: FloatArray
    moves: int = 0


def search(task: Task, *, allowed: FloatArray, tolerance: float) -> Found:
    """The bias with the smallest F that was found, of those whose largest ψ_g is not above that of 0.

    allowed [groups] is the tolerance and what else a group is allowed; where every ψ_g is within the
    tolerance, the bias is 0.
    """
    right = task.answers(task.scores)
    state = _State(
        scored=task.scores.copy(),
        bias=np.zeros(task.scores.shape[1]),
        right=task.per_group(right),
        total=np.asarray(float(right.sum())),
        best=np.inf,
        kept=np.zeros(task.scores.shape[1]),
    )
    limit = float(task.excess(state.right, state.total).max()) + SMALLEST
    if limit <= tolerance:
        return Found(state.kept, 0)
    _remember(task, state, allowed, limit)
    for power in POWERS:
        for _ in range(MOST_SWEEPS):
            before = state.moves
            for unit in task.movable.tolist():
                if bool((task.excess(state.right, state.total) <= allowed).all()):
                    return Found(state.kept, state.moves)  # no move lowers the excess further
                if _move(task, state, unit, allowed, power):
                    _remember(task, state, allowed, limit)
            if state.moves == before:
                break
    return Found(state.kept, state.moves)


def _remember(task: Task, state: _State, allowed: FloatArray, limit: float) -> None:
    """Keep the bias if it is the best so far, and no worse than none."""
    excess = task.excess(state.right, state.total)
    value = max(float((excess - allowed).max()), 0.0) + float(task.loss(state.total))  # F
    if value < state.best - SMALLEST and float(excess.max()) <= limit:
        state.best, state.kept = value, state.bias.copy()


def _move(task: Task, state: _State, unit: int, allowed: FloatArray, power: int) -> bool:
    """Move the bias of one unit to its best interval; False if it is there already."""
    line = _line(task, state, unit)
    chosen = _best_interval(task, line, allowed, power)
    if chosen == line.here:
        return False
    distance = line.distance(chosen, narrowest=task.narrowest)
    state.bias[unit] += distance
    state.scored[:, unit] += distance
    state.right, state.total = line.right[chosen], line.total[chosen]
    state.moves += 1
    return True


def _line(task: Task, state: _State, unit: int) -> Line:
    needed, change = _edges(task, state.scored, unit)
    telling = np.flatnonzero(change)
    telling = telling[np.argsort(needed[telling], kind="stable")]
    here = int(np.searchsorted(needed[telling], 0.0))
    reach = max(256, MOST_CELLS // task.groups)
    telling, here = telling[max(here - reach, 0) : here + reach], min(here, reach)
    right = np.zeros((telling.size + 1, task.groups + 1))
    right[np.arange(1, telling.size + 1), task.group[telling]] = change[telling]
    np.cumsum(right, axis=0, out=right)
    total = right.sum(axis=1)  # samples of unknown groups are among them
    return Line(
        edges=needed[telling],
        right=state.right + (right - right[here])[:, :-1],
        total=state.total + total - total[here],
        here=here,
    )


def _edges(task: Task, scored: FloatArray, unit: int) -> tuple[FloatArray, NDArray[np.int8]]:
    """How far [N] the unit must move to give the answer, and what that changes [N]: 1 right, −1 wrong."""
    own, rows = scored[:, unit].copy(), np.arange(len(scored))
    scored[:, unit] = -np.inf
    rival = scored.argmax(1)  # who answers where the unit does not
    needed = scored[rows, rival] - own
    scored[:, unit] = own
    return needed, task.right[:, unit].astype(np.int8) - task.right[rows, rival].astype(np.int8)


def _best_interval(task: Task, line: Line, allowed: FloatArray, power: int) -> int:
    """The interval with the smallest ‖(ψ − allowed)₊‖_p + Δ of those that lower its first term."""
    beyond = _norms(task.excess(line.right, line.total) - allowed, power)
    value = beyond + task.loss(line.total)
    present = float(value[line.here]) - SMALLEST
    closed = beyond >= beyond[line.here] - SMALLEST
    closed[1:-1] |= np.diff(line.edges) <= task.narrowest
    value[closed] = np.inf
    lowest = float(value.min())
    if not lowest < present:
        return line.here
    equal = np.flatnonzero(value <= lowest + SMALLEST)
    return int(equal[np.abs(equal - line.here).argmin()])  # of equals the nearest


def _norms(excess: FloatArray, power: int) -> FloatArray:
    """(Σ_g (e_g)₊^p)^(1/p) of every row [rows, groups]; p is a power of two."""
    positive = np.maximum(excess, 0.0)
    largest = positive.max(axis=1)
    ratio = positive / np.where(largest > 0, largest, 1.0)[:, None]
    for _ in range(power.bit_length() - 1):
        ratio *= ratio
    return np.asarray(largest * ratio.sum(axis=1) ** (1 / power))
