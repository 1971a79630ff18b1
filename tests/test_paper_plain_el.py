"""EL in a plain loop: it is what the fleets train, and its forms are what they say they are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from evenprune import methods
from evenprune.augment import Flip
from evenprune.recipe import Recipe, Run
from evenprune.tally import InputProblems
from evenprune.training import fit
from paper import cells, cifar100, plain_el
from paper.plain_el import FORMS, Form, lagrangian
from paper.runner import Start, Where
from tests.training_cases import data_for, images, network, recipe, trained

CPU = torch.device("cpu")
DECAY = 0.3


def settings(weight_decay: float = 0.01) -> Recipe:
    return recipe(weight_decay=weight_decay, decay_everything=True).on(CPU)


def cell_of(dual_lr: float) -> cells.Cell:
    (cell,) = cells.table_cells(cifar100.TASK, sparsities=[0.8], methods=["EL"], seeds=[7])
    return replace(cell, dual_lr=dual_lr)


@pytest.mark.parametrize("dual_lr", [0.0, 0.05])
def test_the_plain_loop_trains_what_a_fleet_trains(dual_lr: float) -> None:
    split = images(missing=False, dtype=torch.float64)
    model = trained(network(dtype=torch.float64), split)
    method = methods.el(dual_lr=dual_lr, negative="keep")
    run = Run(method=method, sparsity=0.8, seed=7)
    (fitted,) = fit(model, data_for(model, split, train=split), runs=[run], recipe=settings())
    *_, plain = plain_el.train(model, split, cell_of(dual_lr), Form(), settings(), CPU)
    for mine, theirs in zip(plain.model.parameters(), fitted.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    assert plain.multiplier_sum == pytest.approx(fitted.history[-1]["multiplier_sum"], rel=1e-6)
    assert plain.negative == sum(row["negative_weights"] for row in fitted.history)
    assert (plain.negative > 0) == (dual_lr > 0)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits' weights, labels, groups and multipliers of one batch; not all groups are there."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    size, count = draw(st.integers(2, 12)), draw(st.integers(2, 6))
    groups = torch.randint(0, count, (size,), generator=generator)
    weight = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (size,), generator=generator)
    return weight, labels, groups, torch.rand(count, generator=generator, dtype=torch.float64)


@given(batches(), st.booleans(), st.floats(0, 2))
def test_the_penalty_leaks_as_it_does_when_it_is_added_in_place(
    batch: tuple[Tensor, Tensor, Tensor, Tensor], leaks: bool, dual_lr: float
) -> None:
    logits, labels, groups, multipliers = batch
    weight = logits.clone().requires_grad_()
    losses = functional.cross_entropy(weight, labels, reduction="none")
    penalty = DECAY / 2 * weight.square().sum()
    mean = losses.mean()
    objective = mean + penalty
    if leaks:
        mean = objective  # as after `loss += penalty`, where the constraints hold the same tensor
    after = multipliers.clone()
    for group in groups.unique().tolist():
        violation = (losses[groups == group].mean() - mean).abs()
        after[group] += dual_lr * violation.detach()
        objective = objective + float(after[group]) * violation
    (expected,) = torch.autograd.grad(objective, weight)

    other = logits.clone().requires_grad_()
    own = functional.cross_entropy(other, labels, reduction="none")
    inside = DECAY / 2 * logits.square().sum() if leaks else None
    told = lagrangian(own, groups, multipliers, dual_lr=dual_lr, penalty=inside)
    (found,) = torch.autograd.grad(told.objective, other)
    torch.testing.assert_close(found + told.decay * DECAY * logits, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(told.multipliers, after, rtol=1e-12, atol=1e-12)


def test_the_forms_differ_in_what_they_say() -> None:
    split = images(missing=False)
    model = trained(network(), split)

    def ended(form: Form, decay: float = 0.01) -> tuple[list[float], Tensor]:
        steps = list(plain_el.train(model, split, cell_of(0.05), form, settings(decay), CPU))
        weights = torch.cat([p.detach().flatten() for p in steps[-1].model.parameters()])
        return [step.multiplier_sum for step in steps], weights

    usual, weights = ended(Form())
    assert [value > 0 for value in usual] == [False, False, True, True, True]  # two epochs prune
    early, _ = ended(Form(early=True))
    assert [value > 0 for value in early] == [False, True, True, True, True]
    assert len(split) % 24 == 0
    cut = replace(split, **{n: getattr(split, n)[:110] for n in ("inputs", "labels", "groups")})
    sums = [
        [t.multiplier_sum for t in plain_el.train(model, cut, cell_of(0.05), Form(whole=w), settings(), CPU)]
        for w in (False, True)
    ]
    assert sums[0][2] != sums[1][2]  # a fifth batch, of 14
    for form in (Form(leaks=True), Form(last_only=True)):
        assert not torch.allclose(ended(form)[1], weights, rtol=1e-3)
    torch.testing.assert_close(ended(Form(leaks=True), decay=0.0)[1], ended(Form(), decay=0.0)[1])


def test_what_is_pruned_stays_pruned_however_images_lie_in_memory() -> None:
    split = images(missing=False)
    model = trained(network(), split)
    *_, last = plain_el.train(model, split, cell_of(0.05), FORMS["published"], settings(), CPU)
    first, *_, other = plain_el.train(
        model, split, cell_of(0.05), FORMS["published"], replace(settings(), channels_last=True), CPU
    )
    assert first.model[0].weight.is_contiguous(memory_format=torch.channels_last)
    for mine, theirs in zip(last.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    zeros = {n: float((p == 0).float().mean()) for n, p in last.model.named_parameters() if p.ndim > 1}
    assert zeros["3.weight"] == pytest.approx(0.8, abs=0.01) == zeros["8.weight"]
    assert zeros["0.weight"] == zeros["10.weight"] == 0


@pytest.mark.parametrize("changes", [{"augment": Flip()}, {"clip_norm": 1.0}])
def test_what_the_plain_loop_cannot_do_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    split = images(missing=False)
    model = trained(network(), split)
    data = data_for(model, split, train=split)
    where = Where(results=tmp_path / "r.json", work=tmp_path, device=CPU)
    with pytest.raises(InputProblems, match="neither augments nor clips"):
        plain_el.fill(Start(model, data, {}), [cell_of(0.1)], Form(), replace(settings(), **changes), where)
