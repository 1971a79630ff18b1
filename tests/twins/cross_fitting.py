"""Cross-fitting as one would write it on a blackboard: separate models, Python loops, one dictionary of λ."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tests.twins.plain_loop import Plain


class Follower(Plain):
    """One run that weighs by multipliers which somebody else moves."""

    def ascend(self, correct: list[bool], groups: list[int]) -> None:
        pass


class Family:
    """members[0] trains on everything, members[1 + k] without fold k."""

    def __init__(
        self, members: Sequence[Follower], dense: Sequence[nn.Module], of: Sequence[int], *, refresh: int
    ) -> None:
        self.members, self.of, self.refresh = members, of, refresh
        main = members[0]
        self.groups = main.groups.tolist()
        self.multipliers = dict.fromkeys(sorted(set(self.groups)), 0.0)
        for member in members:
            member.multipliers = self.multipliers
        self.dense_right = [right(dense[of[n]], main, n) for n in range(len(of))]

    def train(self, orders: Sequence[Tensor]) -> None:
        """orders[epoch]: in which order the run with all samples sees them."""
        main, steps = self.members[0], 0
        last = max(main.pruning_epochs - 1, 0)
        for epoch, order in enumerate(orders):
            if epoch <= last:
                done = 1.0 if last == 0 else epoch / last
                for member in self.members:
                    member.prune(main.sparsity - main.sparsity * (1 - done) ** 3)
            seen = [self.order_of(order.tolist(), fold) for fold in range(-1, len(self.members) - 1)]
            for start in range(0, len(self.of) - main.batch + 1, main.batch):
                active = epoch >= main.pruning_epochs
                if active and steps % self.refresh == 0:
                    self.follow()
                steps += active
                for member, own in zip(self.members, seen, strict=True):
                    member.step(torch.tensor(own[start : start + main.batch]), active=active)

    def order_of(self, order: Sequence[int], fold: int) -> list[int]:
        kept = [sample for sample in order if self.of[sample] != fold]
        return list(itertools.islice(itertools.cycle(kept), len(order)))

    def excess_gaps(self) -> dict[int, float]:
        """ψ_g of answers by models that never saw the sample."""
        main = self.members[0]
        sparse_right = [right(self.members[1 + fold].model, main, n) for n, fold in enumerate(self.of)]
        lost = [before - after for before, after in zip(self.dense_right, sparse_right, strict=True)]
        overall = sum(lost) / len(lost)
        return {
            g: sum(own := [x for x, h in zip(lost, self.groups, strict=True) if h == g]) / len(own) - overall
            for g in self.multipliers
        }

    def follow(self) -> None:
        main = self.members[0]
        for group, psi in self.excess_gaps().items():
            moved = self.multipliers[group] + main.dual_lr * self.refresh * (psi - main.tolerance)
            self.multipliers[group] = max(0.0, moved)


@torch.no_grad()
def right(model: nn.Module, main: Plain, sample: int) -> float:
    model.eval()
    answer = int(model(main.inputs[sample : sample + 1]).argmax())
    return float(answer == int(main.labels[sample]))
