"""Multipliers that follow samples which neither model was trained on."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenprune import constraint, methods
from evenprune.constraint import Outcomes, Plan, standard_errors
from evenprune.recipe import Data, Run, Split
from evenprune.reference import DenseReference
from evenprune.tally import InputProblems
from evenprune.training import Fitted, fit
from tests.training_cases import NAMES, Stops, data_for, images, network, recipe, trained
from tests.twins.lagrangian import Longhand
from tests.twins.streams import outcomes, training_set

ON = torch.tensor(True)


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, Data]:
    train = images(120)
    model = trained(network(), train)
    splits = {"train": train, "heldout": images(90, seed=7), "test": images(60, seed=5)}
    return model, data_for(model, train, **splits)


def weights(one: Fitted) -> Tensor:
    return torch.cat([t.flatten() for t in one.model.state_dict().values() if t.is_floating_point()])


@pytest.mark.parametrize("estimator", ["ring", "table", "batch"])
def test_the_estimate_is_of_the_held_out_batch_and_the_weights_are_of_the_training_batch(
    estimator: Any,
) -> None:
    method = methods.ceag(
        tolerance=0.01, dual_lr=0.1, k=5, estimator=estimator, negative="keep", multipliers_on="heldout"
    )
    ids, reference = training_set(4, 60, seed=1)
    other, heldout = training_set(4, 50, seed=9)
    plan = Plan.of([method, methods.nft()], reference, samples=60, heldout=heldout, dtype=torch.float64)
    state, twin = constraint.init(plan), Longhand(method, heldout)
    generator = torch.Generator().manual_seed(2)
    for _ in range(60):
        losses, correct, groups, index = outcomes(ids, 7, generator)
        seen = outcomes(other, 7, generator)
        twin.psi = twin.excess_gaps(twin.means(seen[0], seen[1], seen[2].tolist(), seen[3].tolist()))
        twin.move()
        leaf = losses.clone().requires_grad_()
        group_loss = {g: leaf[groups == g].mean() for g in set(groups.tolist()) if g >= 0}
        total = leaf.mean()
        for row, multiplier in twin.multiplier.items():
            surrogate = twin.surrogate(row, group_loss, leaf.mean())
            total = total if surrogate is None else total + multiplier * surrogate
        (expected,) = torch.autograd.grad(total, leaf)
        got, state = constraint.step(
            plan,
            state,
            *(torch.stack([t, t]) for t in (losses, correct, groups)),
            index=torch.stack([index, index]),
            active=ON,
            heldout=Outcomes(*(torch.stack([t, t]) for t in seen)),
        )
        torch.testing.assert_close(got[0], expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(got[1], torch.full((7,), 1 / 7, dtype=torch.float64))
    assert sum(twin.multiplier.values()) > 0.05


def one_pass(
    method: Any, *, seed: int = 0
) -> tuple[Plan, constraint.State, dict[str, Tensor], DenseReference]:
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(-1, 3, (300,), generator=generator)
    dense = torch.rand(300, generator=generator) < 0.9
    sparse = dense & (torch.rand(300, generator=generator) < torch.tensor([0.95, 0.8, 0.6, 0.9])[groups])
    losses = torch.rand(300, generator=generator)
    reference = DenseReference.from_outcomes(
        correct=dense, losses=losses, groups=groups, names=("a", "b", "c")
    )
    plan = Plan.of([method, methods.nft()], reference, samples=300, heldout=reference, dtype=torch.float64)
    given = {"losses": losses, "correct": sparse, "groups": groups, "dense_correct": dense}
    return plan, constraint.init(plan), given, reference


def follow(plan: Plan, state: constraint.State, given: dict[str, Tensor], due: bool = True) -> None:
    both = {name: torch.stack([given[name]] * 2) for name in ("losses", "correct")}
    rest = {name: given[name] for name in ("groups", "dense_correct")}
    constraint.follow_pass_(plan, state, **both, **rest, due=torch.tensor([due, due]))


def test_a_full_pass_moves_the_multipliers_by_the_exact_gaps() -> None:
    method = methods.ceag(tolerance=0.02, dual_lr=0.5, multipliers_on="heldout", estimator="pass", refresh=10)
    plan, state, given, _ = one_pass(method)
    follow(plan, state, given)
    change = given["dense_correct"].double() - given["correct"].double()
    psi = torch.tensor([float(change[given["groups"] == g].mean() - change.mean()) for g in range(3)])
    torch.testing.assert_close(state["psi"][0], psi.double())
    torch.testing.assert_close(state["multiplier"][0], (10 * 0.5 * (psi.double() - 0.02)).clamp_min(0))
    before = state["multiplier"].clone()
    follow(plan, state, given, due=False)
    assert torch.equal(before, state["multiplier"])


def test_between_passes_the_multipliers_rest_and_still_weigh() -> None:
    method = methods.ceag(
        tolerance=0.02, dual_lr=0.5, negative="keep", multipliers_on="heldout", estimator="pass", refresh=10
    )
    plan, state, given, _ = one_pass(method)
    follow(plan, state, given)
    held = state["multiplier"].clone()
    batch = {name: torch.stack([given[name][:20]] * 2) for name in ("losses", "correct", "groups")}
    got = constraint.step_(plan, state, **batch, active=ON)
    assert torch.equal(held, state["multiplier"])
    sizes = torch.tensor([(batch["groups"][0] == g).sum() for g in range(3)])
    present = sizes > 0
    mean = (1 - held[0][present].sum()) / 20
    for i, g in enumerate(batch["groups"][0].tolist()):
        expected = mean + (held[0, g] / sizes[g] if g >= 0 else 0)
        assert got[0, i].item() == pytest.approx(float(expected))


def test_standard_errors_are_those_of_simulation() -> None:
    generator = torch.Generator().manual_seed(1)
    groups = torch.tensor([0] * 40 + [1] * 120 + [2] * 240)
    share, number = torch.tensor([[0.1, 0.3, 0.6, 0.0]]), torch.tensor([[40.0, 120.0, 240.0, 0.0]])
    broke, fixed = torch.tensor([0.3, 0.1, 0.05])[groups], torch.tensor([0.05, 0.1, 0.02])[groups]
    psi, errors = [], []
    for _ in range(3000):
        draw = torch.rand(400, generator=generator)
        dense = draw < broke  # right before, wrong after
        sparse = (draw >= broke) & (draw < broke + fixed)
        change = dense.double() - sparse.double()
        psi.append(torch.stack([change[groups == g].mean() for g in range(3)]) - change.mean())
        errors.append(standard_errors(sparse[None], dense, groups, number, share)[0, :3])
    spread, told = torch.stack(psi).std(0), torch.stack(errors).double().mean(0)
    torch.testing.assert_close(told, spread, rtol=0.05, atol=0)


def test_a_group_of_one_sample_never_moves_a_cautious_multiplier() -> None:
    groups, number = torch.tensor([0, 1, 1]), torch.tensor([[1.0, 2.0, 0.0]])
    dense, sparse = torch.ones(3, dtype=torch.bool), torch.tensor([[False, True, False]])
    error = standard_errors(sparse, dense, groups, number, torch.tensor([[1 / 3, 2 / 3, 0.0]]))
    assert error[0, 0] == torch.inf
    assert torch.isfinite(error[0, 1])


def test_caution_moves_by_the_lower_limit_or_not_at_all() -> None:
    plain = methods.ceag(tolerance=0.02, dual_lr=0.5, multipliers_on="heldout", estimator="pass", refresh=10)
    careful = replace(plain, caution=2.0)
    plan, state, given, _ = one_pass(careful)
    follow(plan, state, given)
    change = given["dense_correct"].double() - given["correct"].double()
    for g in range(3):
        own = given["groups"] == g
        share = float(own.double().mean())
        parts = [(given["groups"] == h) for h in (-1, 0, 1, 2)]
        variance = {
            h: float(change[p].var(correction=1)) / int(p.sum())
            for h, p in zip((-1, 0, 1, 2), parts, strict=True)
        }
        common = sum(
            float(p.double().mean()) ** 2 * variance[h] for h, p in zip((-1, 0, 1, 2), parts, strict=True)
        )
        error = ((1 - 2 * share) * variance[g] + common) ** 0.5
        violation = float(change[own].mean() - change.mean()) - 0.02
        moved = 10 * 0.5 * max(violation - 2 * error, 0)
        assert state["multiplier"][0, g].item() == pytest.approx(moved, rel=1e-5, abs=1e-9)
    assert int((state["multiplier"][0] > 0).sum()) == 1  # only the group that is certainly harmed


HELDOUT = {
    "by batch": methods.ceag(tolerance=0.01, dual_lr=0.1, k=4, multipliers_on="heldout"),
    "table": methods.ceag(tolerance=0.01, dual_lr=0.1, estimator="table", multipliers_on="heldout"),
    "by passes": methods.ceag(
        tolerance=0.01, dual_lr=0.5, multipliers_on="heldout", estimator="pass", refresh=2
    ),
    "careful": methods.ceag(
        tolerance=0.01, dual_lr=0.5, multipliers_on="heldout", estimator="pass", refresh=3, caution=1.0
    ),
}


def test_a_mixed_fleet_is_separate_runs(problem: tuple[nn.Module, Data]) -> None:
    every = [*HELDOUT.values(), methods.ceag(tolerance=0.01, k=4, dual_lr=0.1), methods.nft()]
    runs = [Run(method=method, sparsity=0.5, seed=seed) for seed, method in enumerate(every)]
    together = fit(*problem, runs=runs, recipe=recipe())
    for run, one in zip(runs, together, strict=True):
        alone = fit(*problem, runs=[run], recipe=recipe())[0]
        torch.testing.assert_close(weights(one), weights(alone), rtol=0, atol=2e-5)
        torch.testing.assert_close(one.multipliers, alone.multipliers, rtol=0, atol=1e-5)
    assert all(bool(one.multipliers[-1].any()) for one in together[:3])


@pytest.mark.parametrize("name", HELDOUT)
def test_a_resumed_training_is_the_whole_one(
    problem: tuple[nn.Module, Data], tmp_path: Any, name: str
) -> None:
    run = [Run(method=HELDOUT[name], sparsity=0.5)]
    whole = fit(*problem, runs=run, recipe=recipe())[0]
    with pytest.raises(KeyboardInterrupt):
        fit(*problem, runs=run, recipe=recipe(), folder=tmp_path, hooks=[Stops(3)])
    resumed = fit(*problem, runs=run, recipe=recipe(), folder=tmp_path)[0]
    assert torch.equal(weights(whole), weights(resumed))
    assert torch.equal(whole.multipliers, resumed.multipliers)


def test_the_training_data_is_no_held_out_split(problem: tuple[nn.Module, Data]) -> None:
    every = [methods.ceag(tolerance=0.01, multipliers_on=name) for name in ("train", "elsewhere")]
    with pytest.raises(InputProblems) as error:
        fit(
            *problem, runs=[Run(method=m, sparsity=0.5, seed=i) for i, m in enumerate(every)], recipe=recipe()
        )
    assert "which is the training data" in str(error.value)
    assert '"elsewhere", which is not evaluated' in str(error.value)
    assert "one split for all runs" in str(error.value)


def test_a_group_that_the_held_out_split_lacks_is_refused() -> None:
    train, empty = images(120, missing=False), images(60, seed=7, missing=False)
    empty = Split(empty.inputs, empty.labels, empty.groups.clamp_max(1))
    model = trained(network(), train)
    data = data_for(model, train, heldout=empty)
    run = Run(method=methods.ceag(tolerance=0.01, k=4, multipliers_on="heldout"), sparsity=0.5)
    with pytest.raises(ValueError, match=f'Group "{NAMES[2]}" has no samples in split "heldout"'):
        fit(model, data, runs=[run], recipe=recipe())
