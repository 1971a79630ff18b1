"""EL in a plain loop: it is what the fleets train, and its forms are what they say they are."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from evenprune import methods
from evenprune.augment import Flip
from evenprune.draws import sample_order
from evenprune.masks import Masks
from evenprune.predict import predict
from evenprune.recipe import Recipe, Run, Split
from evenprune.tally import InputProblems
from evenprune.training import fit
from paper import cells, cifar100, plain_el, results_file
from paper.plain_el import FORMS, Form, lagrangian
from paper.runner import Start, Where
from tests.training_cases import data_for, images, network, recipe, trained

CPU = torch.device("cpu")


def settings(weight_decay: float = 0.01) -> Recipe:
    return recipe(weight_decay=weight_decay, decay_everything=True).on(CPU)


def cell_of(dual_lr: float, sparsity: float = 0.8) -> cells.Cell:
    (cell,) = cells.table_cells(cifar100.TASK, sparsities=[0.9], methods=["EL"], seeds=[7])
    return replace(cell, dual_lr=dual_lr, sparsity=sparsity)


@pytest.mark.parametrize(("dual_lr", "sparsity"), [(0.0, 0.8), (0.05, 0.8), (0.05, 0.95)])
def test_the_plain_loop_trains_what_a_fleet_trains(dual_lr: float, sparsity: float) -> None:
    split = images(missing=False, dtype=torch.float64)
    model = trained(network(dtype=torch.float64), split)
    method = methods.el(dual_lr=dual_lr, negative="keep")
    run = Run(method=method, sparsity=sparsity, seed=7)
    (fitted,) = fit(model, data_for(model, split, train=split), runs=[run], recipe=settings())
    *_, plain = plain_el.train(model, split, cell_of(dual_lr, sparsity), Form(), settings(), CPU)
    for mine, theirs in zip(plain.model.parameters(), fitted.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    assert plain.multiplier_sum == pytest.approx(fitted.history[-1]["multiplier_sum"], rel=1e-6)
    assert plain.negative == sum(row["negative_weights"] for row in fitted.history)
    assert (plain.negative > 0) == (dual_lr > 0)
    if sparsity == 0.95:
        masks = Masks.of(model)
        masks.prune_(model, sparsity)
        assert max(masks.summary().silent) > 0  # filters whose norms go with them


def rare_third(split: Split) -> Split:
    """With a third group that most batches lack."""
    third = torch.arange(len(split)) % 30 == 0
    return replace(split, groups=torch.where(third, 2, split.groups.clamp(max=1)))


def written_out(model: nn.Module, split: Split, form: Form, *, decay: float, dual_lr: float) -> nn.Module:
    """The published code's loop as it stands there: sums by Python loops, the penalty by autograd."""
    model = copy.deepcopy(model)
    masks, rate = Masks.of(model), 0.05
    optimizer = SGD(model.parameters(), lr=rate, momentum=0.9)
    multipliers = [0.0] * 3
    decayed = list(model[-1].parameters()) if form.last_only else list(model.parameters())
    for epoch in range(5):
        if epoch < 2:
            masks.prune_(model, [0.0, 0.8][epoch])
        for step in optimizer.param_groups:
            step["lr"] = rate * 0.1 ** sum(epoch >= at for at in (3, 4, 4))
        for index in sample_order(7, epoch, len(split)).split(24):
            if len(index) < 24 and not form.whole:
                continue
            losses = functional.cross_entropy(
                model(split.inputs[index]), split.labels[index], reduction="none"
            )
            loss = losses.mean()
            penalty = decay / 2 * sum(p.square().sum() for p in decayed)
            objective = loss + penalty
            overall = objective if form.leaks else loss
            for group in range(3) if epoch >= 2 - form.early else ():
                own = losses[split.groups[index] == group]
                if len(own) or form.absent:
                    violation = ((own.mean() if len(own) else 0.0) - overall).abs()
                    multipliers[group] += dual_lr * float(violation.detach())
                    objective = objective + multipliers[group] * violation
            optimizer.zero_grad()
            objective.backward()
            optimizer.step()
            masks.apply_(model)
    return model


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("decay", [0.002, 0.05])
def test_every_form_is_what_is_written_out(name: str, decay: float) -> None:
    whole = images(missing=False, dtype=torch.float64)
    split = replace(whole, **{n: getattr(whole, n)[:110] for n in ("inputs", "labels", "groups")})
    split = rare_third(split)
    model = trained(network(dtype=torch.float64), split)
    *_, found = plain_el.train(model, split, cell_of(0.05), FORMS[name], settings(decay), CPU)
    expected = written_out(model, split, FORMS[name], decay=decay, dual_lr=0.05)
    for mine, theirs in zip(found.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_the_forms_are_those_of_their_names() -> None:
    assert FORMS["plain_el"] == Form()
    assert FORMS["leaking"] == Form(leaks=True, early=True, whole=True)
    assert FORMS["published"] == replace(FORMS["leaking"], last_only=True)
    assert FORMS["absent"] == Form(absent=True)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits' weights, labels, groups and multipliers of one batch; not all groups are there."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    size, count = draw(st.integers(2, 12)), draw(st.integers(2, 6))
    groups = torch.randint(0, count, (size,), generator=generator)
    weight = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (size,), generator=generator)
    return weight, labels, groups, 3 * torch.rand(count, generator=generator, dtype=torch.float64)


@given(batches(), st.booleans(), st.booleans(), st.floats(0, 2), st.sampled_from([0.0, 0.003, 0.03, 0.3]))
def test_the_penalty_leaks_as_it_does_when_it_is_added_in_place(
    batch: tuple[Tensor, Tensor, Tensor, Tensor], leaks: bool, absent: bool, dual_lr: float, rate: float
) -> None:
    logits, labels, groups, multipliers = batch
    weight = logits.clone().requires_grad_()
    losses = functional.cross_entropy(weight, labels, reduction="none")
    penalty = rate / 2 * weight.square().sum()
    mean = losses.mean()
    objective = mean + penalty
    if leaks:
        mean = objective  # as after `loss += penalty`, where the constraints hold the same tensor
    after = multipliers.clone()
    for group in range(len(multipliers)) if absent else groups.unique().tolist():
        own_mean = losses[groups == group].sum() / max(int((groups == group).sum()), 1)
        violation = (own_mean - mean).abs()
        after[group] += dual_lr * violation.detach()
        objective = objective + float(after[group]) * violation
    (expected,) = torch.autograd.grad(objective, weight)

    other = logits.clone().requires_grad_()
    own = functional.cross_entropy(other, labels, reduction="none")
    inside = rate / 2 * logits.square().sum() if leaks else None
    told = lagrangian(own, groups, multipliers, dual_lr=dual_lr, penalty=inside, absent=absent)
    (found,) = torch.autograd.grad(told.objective, other)
    torch.testing.assert_close(found + told.decay * rate * logits, expected, rtol=1e-9, atol=1e-9)
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
    rare = rare_third(split)
    first, second = (
        [t.multiplier_sum for t in plain_el.train(model, rare, cell_of(0.05), form, settings(), CPU)]
        for form in (Form(), Form(absent=True))
    )
    assert first[2] < second[2]
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


@pytest.mark.parametrize("changes", [{"augment": Flip()}, {"clip_norm": 1.0}, {"scope": "global"}])
def test_what_the_plain_loop_cannot_do_is_refused(changes: dict[str, Any]) -> None:
    plain_el.refuse(settings())
    (name,) = changes
    with pytest.raises(InputProblems, match=rf"plain loop of EL has recipe\.{name} = "):
        plain_el.refuse(replace(settings(), **changes))


def started(split: Split, folder: Path) -> tuple[Start, Where]:
    model = trained(network(), split)
    answers = {name: predict(model, split) for name in ("train", "test")}
    start = Start(model, data_for(model, split, train=split, test=split), answers)
    return start, Where(results=folder / "r.json", work=folder, device=CPU, commit="abc1234")


def test_wrong_settings_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    start, where = started(images(missing=False), tmp_path)
    with pytest.raises(InputProblems, match=r"recipe\.epochs is 0"):
        plain_el.fill(start, [cell_of(0.1)], Form(), replace(settings(), epochs=0), where)
    with pytest.raises(InputProblems, match=r"sparsity.* 1\.5"):
        plain_el.fill(start, [cell_of(0.1, sparsity=1.5)], Form(), settings(), where)


def test_a_run_that_diverges_writes_no_row_and_the_next_one_is_trained(tmp_path: Path) -> None:
    said: list[str] = []
    start, where = started(images(missing=False), tmp_path)
    where = replace(where, say=said.append)
    two = [cell_of(1e30), replace(cell_of(0.01), seed=8)]
    plain_el.fill(start, two, Form(), settings(), where)
    assert said[0] == "Sparsity 0.8, seed 7: the loss was not finite; no row is written"
    assert [row["seed"] for row in results_file.read(where.results)["runs"]] == [8]
