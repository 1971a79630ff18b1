"""What a method may change besides constraints: the loss, the weights of samples, how they are drawn."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from evenprune import constraint, epochs, methods
from evenprune.augment import Flip
from evenprune.constraint import Plan
from evenprune.draws import balance_of, sample_order
from evenprune.gap_limits import least_excess_gap
from evenprune.iterates import iterate_score, keep_best
from evenprune.method import Method
from evenprune.plan import PerRun
from evenprune.predict import predict
from evenprune.recipe import Run
from evenprune.teacher import Teacher, primal_losses
from evenprune.training import Fitted, fit
from tests.training_cases import data_for, images, precisely, recipe
from tests.twins.streams import outcomes, training_set

ON = torch.tensor(True)


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, Any]:
    model, train = precisely()
    return model, data_for(model, train, train=train, test=images(60, seed=5, dtype=torch.float64))


def runs_of(*every: Method) -> list[Run]:
    return [Run(method=method, sparsity=0.5, seed=seed) for seed, method in enumerate(every)]


def weights(one: Fitted) -> Tensor:
    return torch.cat([t.flatten() for t in one.model.state_dict().values() if t.is_floating_point()])


# --- learning from the dense model ---


def drawn(*every: Method) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    count = len(every)
    table = torch.randn(10, 4, generator=generator, dtype=torch.float64)
    return {
        "run": PerRun.of(every, torch.float64),
        "teacher": Teacher(table, None),
        "logits": torch.randn(count, 6, 4, generator=generator, dtype=torch.float64),
        "labels": torch.randint(4, (count, 6), generator=generator),
        "index": torch.randint(10, (count, 6), generator=generator),
        "inputs": torch.zeros(count, 6, 1),
    }


def plain_of(given: dict[str, Any]) -> Tensor:
    flat = functional.cross_entropy(
        given["logits"].flatten(0, 1), given["labels"].flatten(), reduction="none"
    )
    return flat.view(given["labels"].shape)


def test_distillation_is_its_formula() -> None:
    given = drawn(
        methods.nft(), methods.kd(distill=0.3, temperature=2.0), methods.kd(distill=1.0, temperature=1.0)
    )
    plain = plain_of(given)
    found = primal_losses(given.pop("run"), given.pop("teacher"), plain, **given)
    table = drawn(methods.nft())["teacher"].logits
    torch.testing.assert_close(found[0], plain[0])
    for run, share, heat in ((1, 0.3, 2.0), (2, 1.0, 1.0)):
        for i in range(6):
            dense = (table[given["index"][run, i]] / heat).softmax(0)
            sparse = (given["logits"][run, i] / heat).softmax(0)
            apart = heat**2 * float((dense * (dense / sparse).log()).sum())
            assert found[run, i].item() == pytest.approx((1 - share) * plain[run, i].item() + share * apart)


def test_the_performance_weighted_loss_is_its_formula() -> None:
    """Weights θ + (1 - θ)(1 - p)^γ; targets: the dense model's answers where right, the label where wrong."""
    every = [
        methods.nft(),
        methods.performance_weighted(focus=2.0, floor=0.25),
        methods.performance_weighted(focus=0.5, floor=0.8, targets="labels"),
        methods.performance_weighted(),
    ]
    given = drawn(*every)
    plain, table = plain_of(given), given["teacher"].logits
    found = primal_losses(given.pop("run"), given.pop("teacher"), plain, **given)
    torch.testing.assert_close(found[0], plain[0])
    right = set()
    for run, theta, gamma, soft in ((1, 0.25, 2.0, True), (2, 0.8, 0.5, False), (3, 0.5, 1.0, True)):
        for i in range(6):
            dense = table[given["index"][run, i]].softmax(0).tolist()
            label = int(given["labels"][run, i])
            target = [float(k == label) for k in range(4)]
            if soft and max(dense) == dense[label]:
                target = dense
            right.add(max(dense) == dense[label])
            sparse = given["logits"][run, i].softmax(0).tolist()
            loss = -sum(t * math.log(s) for t, s in zip(target, sparse, strict=True))
            weight = theta + (1 - theta) * (1 - dense[label]) ** gamma
            assert found[run, i].item() == pytest.approx(weight * loss)
    assert right == {True, False}


def test_a_performance_weighted_loss_may_be_distilled_too() -> None:
    method = replace(methods.performance_weighted(), distill=0.3, temperature=2.0)
    both, apart = drawn(method), drawn(methods.kd(distill=0.3, temperature=2.0))
    labels, weighted = (
        drawn(replace(methods.performance_weighted(), focus=f, floor=0.5 * f)) for f in (0, 1.0)
    )
    found = {}
    for name, asked in (("both", both), ("kd", apart), ("labels", labels), ("weighted", weighted)):
        plain = plain_of(asked)
        found[name] = primal_losses(asked.pop("run"), asked.pop("teacher"), plain, **asked)
    kd = found["kd"] - 0.7 * plain
    torch.testing.assert_close(
        found["both"], (0.7 * found["labels"] + kd) * found["weighted"] / found["labels"]
    )


def test_a_perfect_pupil_is_pulled_nowhere() -> None:
    given = drawn(methods.kd(distill=1.0, temperature=3.0))
    given["logits"] = given["teacher"].logits[given["index"]].requires_grad_()
    found = primal_losses(given.pop("run"), given.pop("teacher"), plain_of(given), **given)
    (pull,) = torch.autograd.grad(found.sum(), given["logits"])
    assert pull.abs().max() < 1e-12


def test_a_distilled_fleet_is_separate_runs_also_with_augmentation(problem: tuple[nn.Module, Any]) -> None:
    every = [
        methods.nft(),
        methods.kd(),
        methods.performance_weighted(),
        methods.performance_weighted(targets="labels"),
        methods.ceag(tolerance=0.01, k=4, distill=0.5),
    ]
    for changes in ({}, {"augment": Flip()}):
        together = fit(*problem, runs=runs_of(*every), recipe=recipe(**changes))
        for run, one in zip(runs_of(*every), together, strict=True):
            alone = fit(*problem, runs=[run], recipe=recipe(**changes))[0]
            torch.testing.assert_close(weights(one), weights(alone), rtol=0, atol=1e-9)
        assert len({round(float(weights(one).sum()), 5) for one in together}) == 5  # they are five methods


def test_the_dense_model_answers_for_those_who_learn_from_it(
    problem: tuple[nn.Module, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[int] = set()
    soft = Teacher.soft

    def counted(self: Teacher, index: Tensor, inputs: Tensor) -> Tensor:
        asked.add(len(index))
        assert self.logits is None  # answers to inputs as they are would never be read
        return soft(self, index, inputs)

    monkeypatch.setattr(Teacher, "soft", counted)
    every = [methods.nft(), methods.kd(), methods.nft(), methods.performance_weighted()]
    fit(*problem, runs=runs_of(*every), recipe=recipe(augment=Flip()))
    assert asked == {2}


def test_distillation_brings_the_pruned_model_nearer_to_the_dense_one(problem: tuple[nn.Module, Any]) -> None:
    model, data = problem
    every = [methods.nft(), methods.kd(distill=1.0, temperature=2.0)]
    runs = [Run(method=m, sparsity=0.5, seed=seed) for m in every for seed in range(4)]
    fitted = fit(model, data, runs=runs, recipe=recipe(epochs=12))
    inputs = data.train.inputs
    with torch.no_grad():
        wanted = model.eval()(inputs).log_softmax(1)
        apart = [
            float(
                functional.kl_div(
                    f.model(inputs).log_softmax(1), wanted, log_target=True, reduction="batchmean"
                )
            )
            for f in fitted
        ]
    assert sum(apart[4:]) < 0.8 * sum(apart[:4])


# --- group DRO and balanced sampling ---


def test_group_dro_is_its_formula() -> None:
    ids, reference = training_set(4, 60, seed=1)
    plan = Plan.of([methods.group_dro(dual_lr=0.3)], reference, samples=60, dtype=torch.float64)
    state, generator = constraint.init(plan), torch.Generator().manual_seed(2)
    share = dict.fromkeys(range(4), 0.25)
    for _ in range(30):
        losses, correct, groups, _ = outcomes(ids, 7, generator)
        got, state = constraint.step(plan, state, losses[None], correct[None], groups[None], active=ON)
        means = {g: losses[groups == g].mean().item() for g in range(4) if (groups == g).any()}
        share = {g: share[g] * 2.718281828459045 ** (0.3 * means.get(g, 0.0)) for g in share}
        share = {g: value / sum(share.values()) for g, value in share.items()}
        for i, g in enumerate(groups.tolist()):
            expected = share[g] / int((groups == g).sum()) if g >= 0 else 0.0
            assert got[0, i].item() == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(constraint.multipliers(plan, state)[0].sum().item(), 1.0)


def test_a_group_dro_step_of_any_size_leaves_shares_that_are_numbers() -> None:
    ids, reference = training_set(4, 60, seed=1)
    plan = Plan.of([methods.group_dro(dual_lr=1e6)], reference, samples=60)
    state, generator = constraint.init(plan), torch.Generator().manual_seed(2)
    for _ in range(30):
        losses, correct, groups, _ = outcomes(ids, 7, generator)
        given = (losses[None].float(), correct[None], groups[None])
        weights, state = constraint.step(plan, state, *given, active=ON)
        assert bool(weights.isfinite().all())
        assert constraint.multipliers(plan, state)[0].sum().item() == pytest.approx(1.0)


def test_group_dro_beside_other_methods(problem: tuple[nn.Module, Any]) -> None:
    every = [methods.group_dro(dual_lr=0.1), methods.ceag(tolerance=0.01, k=4), methods.nft()]
    together = fit(*problem, runs=runs_of(*every), recipe=recipe())
    for run, one in zip(runs_of(*every), together, strict=True):
        alone = fit(*problem, runs=[run], recipe=recipe())[0]
        torch.testing.assert_close(weights(one), weights(alone), rtol=0, atol=1e-9)
        torch.testing.assert_close(one.multipliers, alone.multipliers, rtol=0, atol=1e-9)
    assert together[0].multipliers[-1].std() > 0.001


def test_balanced_sampling_draws_every_group_as_often() -> None:
    groups = torch.tensor([0] * 900 + [2] * 90 + [-1] * 10)
    order = sample_order(3, 5, 1000, balance_of(groups))
    counts = Counter(groups[order].tolist())
    assert counts[-1] == 10  # what is in no group is seen as without balance
    assert all(450 < counts[g] < 540 for g in (0, 2))
    assert torch.equal(order, sample_order(3, 5, 1000, balance_of(groups)))
    assert not torch.equal(order, sample_order(3, 6, 1000, balance_of(groups)))
    assert sorted(sample_order(3, 5, 1000).tolist()) == list(range(1000))


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=60), st.integers(0, 99))
def test_a_balanced_epoch_sees_no_sample_more_than_once_too_often(members: list[int], seed: int) -> None:
    groups = torch.tensor(members)
    sizes = Counter(g for g in members if g >= 0)
    fair = [sum(sizes.values()) / (len(sizes) * sizes[g]) if g >= 0 else 1.0 for g in members]
    torch.testing.assert_close(balance_of(groups), torch.tensor(fair, dtype=torch.float64))
    order = sample_order(seed, 0, len(members), balance_of(groups))
    seen = Counter(order.tolist())
    assert len(order) == len(members)
    assert all(math.floor(b - 1e-9) <= seen[i] <= math.ceil(b + 1e-9) for i, b in enumerate(fair))


def test_over_many_epochs_every_sample_of_a_group_is_seen_as_often() -> None:
    groups = torch.tensor([0] * 30 + [1] * 10)
    orders = torch.stack([sample_order(0, epoch, 40, balance_of(groups)) for epoch in range(600)])
    often = torch.bincount(orders.flatten(), minlength=40) / 600
    torch.testing.assert_close(often, balance_of(groups).float(), rtol=0, atol=0.09)  # 4.5 standard errors
    early = torch.bincount(groups[orders[:, :10]].flatten()) / 600  # and not one group before the other
    torch.testing.assert_close(early, torch.tensor([5.0, 5.0]), rtol=0, atol=0.3)


def test_groups_of_one_size_are_drawn_like_a_plain_epoch() -> None:
    groups = torch.arange(300) % 3
    assert sorted(sample_order(3, 5, 300, balance_of(groups)).tolist()) == list(range(300))


@pytest.mark.parametrize("distill", [0.0, 0.5])
def test_a_balanced_run_in_a_fleet_is_the_run_alone(problem: tuple[nn.Module, Any], distill: float) -> None:
    runs = runs_of(methods.kd(distill=distill), methods.balanced(distill=distill))
    together = fit(*problem, runs=runs, recipe=recipe())
    alone = fit(*problem, runs=runs[1:], recipe=recipe())
    assert not torch.equal(weights(together[0]), weights(together[1]))
    torch.testing.assert_close(weights(together[1]), weights(alone[0]), rtol=0, atol=1e-9)


# --- which iterate is kept ---


def test_a_feasible_iterate_beats_all_others() -> None:
    method = methods.ceag(tolerance=0.02, keep="feasible", keep_on="validation")
    ranked = [  # accuracy, max ψ and what that is at least
        (0.95, 0.3, 0.1),  # shown to be beyond it
        (0.5, 0.2, 0.15),
        (0.6, 0.021, -0.1),  # too few samples to tell
        (0.9, 0.1, 0.02),
        (0.5, 0.02 + 1e-17, 0.01),  # within it
        (0.6, 0.0, -0.1),
    ]
    found = [({"accuracy": accuracy, "max_excess_gap": gap}, least) for accuracy, gap, least in ranked]
    scores = [iterate_score(method, own, least=least) for own, least in found]
    assert sorted(set(scores)) == scores
    best = methods.nft_es(on="validation")
    assert iterate_score(best, found[0][0], least=0.1) == 0.95


def test_the_kept_iterate_is_the_best_feasible_one(
    problem: tuple[nn.Module, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    least = dict[int, float]()

    def listening(*args: Any, epoch: int, **told: Any) -> None:
        least[epoch] = float(told["least"]["test"][0])
        keep_best(*args, epoch=epoch, **told)

    monkeypatch.setattr(epochs, "keep_best", listening)
    method = methods.ceag(tolerance=0.05, dual_lr=0.1, k=4, keep="feasible", keep_on="test")
    one = fit(*problem, runs=[Run(method=method, sparsity=0.5)], recipe=recipe(epochs=8))[0]
    tuned = [row for row in one.history if row["epoch"] >= 2]
    scores = [iterate_score(method, row["splits"]["test"], least=least[row["epoch"]]) for row in tuned]
    assert one.kept_epoch == tuned[scores.index(max(scores))]["epoch"]
    kept = next(row for row in tuned if row["epoch"] == one.kept_epoch)
    found, names = one.predictions["test"], problem[1].reference.names
    before = predict(problem[0], problem[1].evaluate["test"]).correct
    limit = least_excess_gap(before, found.correct, found.groups, count=len(names))
    assert least[one.kept_epoch] == pytest.approx(float(limit))
    assert float(one.predictions["test"].correct.double().mean()) == pytest.approx(
        kept["splits"]["test"]["accuracy"]
    )
