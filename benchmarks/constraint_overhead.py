"""What a constraint costs on the CPU: CEAG against plain fine-tuning and against the published form.

constraint_ms   the constraint step alone (k = 40, batch 128), for 10 to 100,000 groups
published_ms    the same work with a deque per group and a loop over the groups
ratio           a training step of CifarResNet-56 (batch 128, float32) with CEAG over one without:
                plain and constrained steps take turns, and medians are compared
ratio_of_parts  1 + (constraint step - plain mean) / plain training step: the same without the noise of
                two long measurements

Times are CPU time of one thread, so that other programs on the machine disturb little; on a busy one the
interleaved ratio still wavers by a few per cent, the ratio of parts does not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenprune import methods
from evenprune.gap_constraint import GapConstraint
from evenprune.reference import DenseReference
from tests.twins.published import Published

GROUPS = (10, 100, 1_000, 100_000)
BATCH, K, CLASSES = 128, 40, 100


def reference(groups: int) -> DenseReference:
    """A dense model that is always right, on `K` samples of every group."""
    each = torch.full((groups,), float(K), dtype=torch.float64)
    total = float(groups * K)
    names = tuple(str(group) for group in range(groups))
    return DenseReference(names, each, each, 0 * each, total, total, 0.0)


def outcomes(groups: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.rand(BATCH), torch.rand(BATCH) < 0.9, torch.randint(groups, (BATCH,))


def seconds(action: Callable[[], Any]) -> float:
    """CPU time of this process: what other programs do meanwhile does not count."""
    start = time.process_time()
    action()
    return time.process_time() - start


def median_ms(action: Callable[[], Any], repeats: int) -> float:
    action()
    return 1000 * statistics.median(seconds(action) for _ in range(repeats))


def constraint_ms(groups: int, repeats: int = 200) -> float:
    guard = GapConstraint(reference(groups), methods.ceag(tolerance=0.01, k=K))
    losses, correct, ids = outcomes(groups)
    return median_ms(lambda: (guard.weights(losses, correct, ids) * losses).sum(), repeats)


def published_ms(groups: int) -> float:
    """With rings already full, as in all but the first steps."""
    twin = Published([1.0] * groups, 1.0, tolerance=0.01, dual_lr=0.002, k=K)
    for buffer in twin.buffers:
        buffer.extend([1.0] * K)
    losses, correct, ids = outcomes(groups)
    return median_ms(lambda: twin.loss(losses, correct, ids), repeats=max(1, min(30, 5_000 // groups)))


def training_step(
    model: nn.Module, loss_of: Callable[[Tensor], Tensor], images: Tensor
) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(model(images)))
        optimizer.step()

    return step


def ratios(groups: tuple[int, ...], pairs: int) -> dict[int, dict[str, float]]:
    """Plain and constrained training steps in turns: plain, 10 groups, 100 groups, …, plain, 10 groups, …"""
    from evenprune.models.cifar_resnet import cifar_resnet56

    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(CLASSES, (BATCH,))
    model = cifar_resnet56(CLASSES)
    plain = training_step(model, lambda logits: functional.cross_entropy(logits, labels), images)
    constrained = {}
    for number in groups:
        guard, ids = (
            GapConstraint(reference(number), methods.ceag(tolerance=0.01, k=K)),
            torch.randint(number, (BATCH,)),
        )
        loss = _bound(guard, labels, ids)
        constrained[number] = training_step(model, loss, images)
    for step in (plain, *constrained.values()):
        step()
    times: dict[int, list[float]] = {number: [] for number in (0, *groups)}
    for _ in range(pairs):
        times[0].append(seconds(plain))
        for number, step in constrained.items():
            times[number].append(seconds(step))
    middle = {number: statistics.median(values) for number, values in times.items()}
    return {number: {"plain_ms": 1000 * middle[0], "ratio": middle[number] / middle[0]} for number in groups}


def _bound(guard: GapConstraint, labels: Tensor, ids: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda logits: guard(logits, labels, ids)


def run(pairs: int = 9) -> dict[str, Any]:
    """Everything above as one table."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    losses = torch.rand(BATCH)
    plain_mean_ms = median_ms(losses.mean, 200)
    measured = ratios(GROUPS, pairs)
    rows = []
    for groups in GROUPS:
        ours, theirs = constraint_ms(groups), published_ms(groups)
        plain_ms = measured[groups]["plain_ms"]
        rows.append(
            {
                "groups": groups,
                "constraint_ms": ours,
                "published_ms": theirs,
                "times_faster": theirs / ours,
                "ratio": measured[groups]["ratio"],
                "ratio_of_parts": 1 + (ours - plain_mean_ms) / plain_ms,
            }
        )
    return {
        "benchmark": "constraint_overhead",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "batch": BATCH,
        "k": K,
        "pairs": pairs,
        "plain_training_step_ms": measured[GROUPS[0]]["plain_ms"],
        "rows": rows,
    }


def table(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What was measured, the figure, and the aim."""
    rows = []
    for row in figures["rows"]:
        groups = f"{row['groups']:,} groups"
        aim = "≤ 1.02" if row["groups"] == 100 else ""
        rows.append((f"CEAG step / NFT step, CifarResNet-56, {groups}", f"{row['ratio']:.4f}", aim))
        rows.append((f"  the constraint alone, {groups}", f"{row['constraint_ms']:.2f} ms", ""))
        rows.append((f"  the published form / ours, {groups}", f"{row['times_faster']:.1f}", ""))
    return rows
