"""Multipliers that follow samples which neither model was trained on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evenprune import constraint, heldout, job, methods
from evenprune.constraint import Method, Outcomes, Plan
from evenprune.limits import Counts, excess_limits
from evenprune.predict import Answers, Predictions, predict
from evenprune.pruning import prune
from evenprune.recipe import Data, Run, Split, check
from evenprune.reference import DenseReference
from evenprune.tally import InputProblems
from evenprune.training import Fitted, fit
from tests.test_constraint import WAITS, Recorded
from tests.training_cases import NAMES, Stops, data_for, images, network, precisely, recipe, trained
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
    method = methods.ceag(tolerance=0.01, dual_lr=0.1, k=5, estimator=estimator, multipliers_on="heldout")
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
        expected = without_negative(torch.autograd.grad(total, leaf)[0])
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


def without_negative(weights: Tensor) -> Tensor:
    """Negative weights at zero, the others shrunk so that the sum stays."""
    positive = [max(w, 0.0) for w in weights.tolist()]
    shrunk = max(float(weights.sum()), 0.0) / max(sum(positive), 1e-300)
    return torch.tensor([w * shrunk for w in positive], dtype=weights.dtype)


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
    method = methods.ceag(tolerance=0.02, dual_lr=0.1, multipliers_on="heldout", estimator="pass", refresh=10)
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


# --- noise: limits and dead zones ---


PLAIN = methods.ceag(tolerance=0.02, dual_lr=0.5, multipliers_on="heldout", estimator="pass", refresh=10)
CAUTIOUS = {
    "caution": replace(PLAIN, caution=1.0),
    "lower": replace(PLAIN, caution=1.645, moves_on="lower"),
    "dead zone": replace(PLAIN, dead_zone=0.03),
    "lower, dead zone": replace(PLAIN, caution=0.5, moves_on="lower", dead_zone=0.01),
    "lower, nupi": replace(PLAIN, caution=1.0, moves_on="lower", dual="nupi", kp=2.0, ki=0.5, nu=0.3),
}


class Plodding:
    """One run's multipliers, with loops and the audit's own limits."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.multiplier, self.before = [0.0] * 3, [0.0] * 3

    def follow(self, given: dict[str, Tensor]) -> None:
        pairs = list(zip(given["dense_correct"].tolist(), given["correct"].tolist(), strict=True))
        groups, m = given["groups"].tolist(), self.method
        for g in range(3):
            own = [pair for pair, h in zip(pairs, groups, strict=True) if h == g]
            rest = [pair for pair, h in zip(pairs, groups, strict=True) if h != g]
            counts = [
                Counts(
                    *(
                        np.array([float(x)])
                        for x in (len(p), p.count((True, False)), p.count((False, True)), 0)
                    )
                )
                for p in (own, rest)
            ]
            lower, upper = (float(x[0]) for x in excess_limits(*counts, (m.caution, m.caution))[0])
            overall = sum(a - b for a, b in pairs) / len(pairs)
            moved = sum(a - b for a, b in own) / len(own) - overall - m.tolerance
            if m.moves_on == "lower":
                moved = lower - m.tolerance
            elif m.caution:
                moved = max(lower - m.tolerance, 0) + min(upper - m.tolerance, 0)
            moved = max(moved - m.dead_zone, 0) if moved > 0 else min(moved + m.dead_zone, 0)
            raised = 0.0
            for _ in range(m.refresh):  # as the steps from one pass to the next would
                now = m.nu * self.before[g] + (1 - m.nu) * moved
                raised += m.dual_lr * (m.ki * moved + m.kp * (now - self.before[g]))
                self.before[g] = now
            self.multiplier[g] = max(self.multiplier[g] + raised, 0.0)


@pytest.mark.parametrize("name", CAUTIOUS)
def test_multipliers_move_by_the_audit_s_limits_and_rest_in_a_dead_zone(name: str) -> None:
    plan, state, given, _ = one_pass(CAUTIOUS[name])
    twin, most = Plodding(CAUTIOUS[name]), [0.0] * 3
    for chance in (0.0, 0.02, 0.3, 0.3, 0.3, 0.02):  # less and less of the harm, then more again
        healed = torch.rand(300, generator=torch.Generator().manual_seed(4)) < chance
        now = given | {"correct": given["correct"] | (healed & given["dense_correct"])}
        follow(plan, state, now)
        twin.follow(now)
        assert state["multiplier"][0].tolist() == pytest.approx(twin.multiplier, rel=1e-9, abs=1e-12)
        most = [max(a, b) for a, b in zip(most, twin.multiplier, strict=True)]
    assert max(most) > 0.05
    assert min(most) == 0


def broken_passes(method: Method, lost: dict[int, int], *, start: float, passes: int) -> list[list[float]]:
    """Multipliers after each pass: of every group {its samples: how many of them pruning broke}, in order."""
    sizes = list(lost)
    groups = torch.cat([torch.full((n,), g) for g, n in enumerate(sizes)])
    dense = torch.ones(len(groups), dtype=torch.bool)
    sparse = torch.cat([torch.arange(n) >= broke for n, broke in lost.items()])
    names = [str(n) for n in sizes]
    reference = DenseReference.from_outcomes(correct=dense, losses=dense, groups=groups, names=names)
    plan = Plan.of([method], reference, samples=len(groups), heldout=reference, dtype=torch.float64)
    state, told = constraint.init(plan), []
    state["multiplier"][0, 0] = start
    for _ in range(passes):
        batch = (torch.zeros(1, len(groups)), sparse.unsqueeze(0), groups)
        constraint.follow_pass_(plan, state, *batch, dense_correct=dense, due=torch.tensor([True]))
        told.append(state["multiplier"][0].tolist())
    return told


def test_what_noise_gave_a_lower_limit_takes_back_and_a_dead_zone_keeps() -> None:
    """Every group loses one sample in ten, so that all ψ are 0, the tolerance; λ of the first is 0.2."""
    lost = {100: 10, 200: 20, 300: 30}

    def first(method: Method) -> list[float]:
        return [own[0] for own in broken_passes(method, lost, start=0.2, passes=10)]

    kept = replace(PLAIN, tolerance=0.0, caution=1.645)
    assert first(kept) == pytest.approx([0.2] * 10)
    assert first(replace(kept, caution=0.0, dead_zone=0.02)) == pytest.approx([0.2] * 10)
    falling = first(replace(kept, moves_on="lower", dual_lr=0.1))
    assert falling[0] < 0.2
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == 0


def test_three_broken_samples_beside_a_thousand_move_what_the_audit_says_and_no_more() -> None:
    """The estimate less its standard errors is 0.96 here: they vanish where all samples change alike."""
    method = replace(PLAIN, refresh=1, dual_lr=1.0, caution=1.645)
    few, many = (
        Counts(*(np.array([x]) for x in row)) for row in ((3.0, 3.0, 0.0, 3.0), (1e3, 25.0, 0.0, 1e3))
    )
    lower = float(excess_limits(few, many, (1.645, 1.645))[0][0][0])
    assert lower < 0.1
    for moves_on in ("lower", "estimate"):
        own = replace(method, moves_on=moves_on)
        (moved,) = broken_passes(own, {3: 3, 1000: 25}, start=0.0, passes=1)
        assert moved[0] == pytest.approx(max(lower - 0.02, 0), abs=1e-9)
    (naive,) = broken_passes(replace(method, caution=0.0), {3: 3, 1000: 25}, start=0.0, passes=1)
    assert naive[0] > 0.9


@pytest.mark.parametrize("name", CAUTIOUS)
def test_following_a_pass_waits_for_nothing(name: str) -> None:
    plan, state, given, _ = one_pass(CAUTIOUS[name])
    with Recorded() as recorded:
        follow(plan, state, given)
    assert not {operation.split(".")[1] for operation in recorded.seen} & set(WAITS)
    assert not recorded.boolean_index


def test_a_dead_zone_in_points_is_for_every_estimator_and_constraint() -> None:
    ids, reference = training_set(4, 60, seed=1)
    other, heldout = training_set(4, 50, seed=9)
    options: dict[str, Any] = {"dual_lr": 0.3, "k": 5, "dead_zone": 0.1, "multipliers_on": "heldout"}
    makers = (methods.ceag, methods.two_sided, methods.all_pairs, methods.pairwise, methods.celg)
    every = [make(tolerance=0.02, **options) for make in makers]
    every += [methods.ceag(tolerance=0.02, estimator=e, **options) for e in ("table", "batch")]
    every += [methods.equalized(**options)]
    for method in every:
        plan = Plan.of([method], reference, samples=60, heldout=heldout, dtype=torch.float64)
        state, twin = constraint.init(plan), Longhand(method, heldout)
        generator = torch.Generator().manual_seed(2)
        for _ in range(60):
            trained_on, seen = outcomes(ids, 7, generator), outcomes(other, 7, generator)
            twin.psi = twin.excess_gaps(twin.means(seen[0], seen[1], seen[2].tolist(), seen[3].tolist()))
            twin.move()
            _, state = constraint.step(
                plan,
                state,
                *(t.unsqueeze(0) for t in trained_on[:3]),
                index=trained_on[3].unsqueeze(0),
                active=ON,
                heldout=Outcomes(*(t.unsqueeze(0) for t in seen)),
            )
        moved = sum(abs(value) for value in twin.multiplier.values())
        assert constraint.multipliers(plan, state).abs().sum().item() == pytest.approx(moved, rel=1e-9)
        assert moved > 0.01


HELDOUT = {
    "by batch": methods.ceag(tolerance=0.01, dual_lr=0.1, k=4, multipliers_on="heldout"),
    "table": methods.ceag(tolerance=0.01, dual_lr=0.1, estimator="table", multipliers_on="heldout"),
    "by passes": methods.ceag(
        tolerance=0.01, dual_lr=0.5, multipliers_on="heldout", estimator="pass", refresh=2
    ),
    "careful": methods.ceag(
        tolerance=0.01, dual_lr=0.5, multipliers_on="heldout", estimator="pass", refresh=3, caution=0.2
    ),
    "by the lower limit": methods.ceag(
        tolerance=0.01,
        dual_lr=0.5,
        multipliers_on="heldout",
        estimator="pass",
        refresh=2,
        caution=0.2,
        moves_on="lower",
    ),
    "extremes": methods.pairwise(
        tolerance=0.01, dual_lr=0.5, multipliers_on="heldout", estimator="pass", refresh=2
    ),
    "dead zone": methods.ceag(tolerance=0.01, dual_lr=0.1, k=4, multipliers_on="heldout", dead_zone=0.02),
}


def test_the_dense_model_answers_every_split_once(
    problem: tuple[nn.Module, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where multipliers follow one, iterates are kept on it and the start is shared."""
    asked: list[int] = []

    def counting(model: nn.Module, split: Split, **told: Any) -> Predictions:
        asked.append(len(split))
        return predict(model, split, **told)

    monkeypatch.setattr(job, "predict", counting)
    kept = replace(HELDOUT["by passes"], keep="feasible", keep_on="heldout")
    runs = [Run(method=method, sparsity=0.5) for method in (kept, HELDOUT["careful"], methods.nft())]
    fit(*problem, runs=runs, recipe=recipe(share_pruning=True))
    assert sorted(asked) == sorted(len(split) for split in problem[1].evaluate.values())


def test_a_mixed_fleet_is_separate_runs() -> None:
    model, train = precisely()
    problem = model, data_for(model, train, heldout=images(90, seed=7, dtype=torch.float64))
    every = [*HELDOUT.values(), methods.ceag(tolerance=0.01, k=4, dual_lr=0.1), methods.nft()]
    runs = [Run(method=method, sparsity=0.5, seed=seed) for seed, method in enumerate(every)]
    together = fit(*problem, runs=runs, recipe=recipe())
    for run, one in zip(runs, together, strict=True):
        alone = fit(*problem, runs=[run], recipe=recipe())[0]
        torch.testing.assert_close(weights(one), weights(alone), rtol=0, atol=1e-9)
        torch.testing.assert_close(one.multipliers, alone.multipliers, rtol=0, atol=1e-9)
    assert all(bool(one.multipliers.any()) for one in together[: len(HELDOUT)])


def test_passes_are_of_the_runs_that_take_them(
    problem: tuple[nn.Module, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Counted(Answers):
        def __call__(self) -> tuple[Tensor, Tensor]:
            asked.append(self.network.runs)
            return super().__call__()

    monkeypatch.setattr(heldout, "Answers", Counted)
    passes, batches = HELDOUT["by passes"], HELDOUT["by batch"]
    for every, runs in (([methods.nft(), passes, batches, passes], 2), ([passes] * 3, 3), ([batches] * 2, 0)):
        asked.clear()
        fit(
            *problem, runs=[Run(method=m, sparsity=0.5, seed=i) for i, m in enumerate(every)], recipe=recipe()
        )
        # 15 steps after pruning, a pass before every second of them
        assert asked == [runs] * 8 * bool(runs)


def test_held_out_samples_may_be_of_another_type(problem: tuple[nn.Module, Data]) -> None:
    model, data = problem
    held = data.evaluate["heldout"]
    splits = data.evaluate | {"heldout": replace(held, inputs=held.inputs.half())}
    runs = [Run(method=method, sparsity=0.5) for method in (HELDOUT["by passes"], methods.nft())]
    found = fit(model, replace(data, evaluate=splits), runs=runs, recipe=recipe(precision="bfloat16"))
    assert found[0].multipliers.any()


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


def refused(problem: tuple[nn.Module, Data], *every: Method, **changes: Any) -> str:
    runs = [Run(method=method, sparsity=0.5, seed=seed) for seed, method in enumerate(every)]
    with pytest.raises(InputProblems) as error:
        fit(*problem, runs=runs, recipe=recipe(**changes))
    return str(error.value)


def test_the_training_data_is_no_held_out_split(problem: tuple[nn.Module, Data]) -> None:
    every = [methods.ceag(tolerance=0.01, multipliers_on=name) for name in ("train", "elsewhere")]
    told = refused(problem, *every)
    assert 'split "train", of which 120 samples are training data: hold samples out, or leave' in told
    assert 'split "elsewhere", which is not evaluated (there to be followed: "heldout", "test", "fo' in told
    assert "one split for all runs" in told


def test_only_splits_that_multipliers_may_follow_are_offered(problem: tuple[nn.Module, Data]) -> None:
    model, data = problem
    more = {"again": part(data.evaluate["test"], slice(9)), "some": part(data.train, slice(20))}
    again = replace(data, evaluate={**data.evaluate, **more})
    lost = methods.ceag(tolerance=0.01, multipliers_on="elsewhere")
    told = refused((model, again), lost, only_at_end=("test",))
    assert '(there to be followed: "heldout", "folds")' in told


def test_constraints_that_no_epoch_is_left_for_are_one_problem(problem: tuple[nn.Module, Data]) -> None:
    ring, passes = methods.ceag(tolerance=0.01, k=4), HELDOUT["by passes"]
    early = replace(ring, while_pruning=True)
    told = refused(problem, ring, early, passes, pruning_epochs=5)
    assert told == (
        "recipe.pruning_epochs is 5 of 5 epochs: constraints act after pruning, so never. Lower "
        "pruning_epochs or raise epochs."
    )
    assert "problems" not in refused(problem, passes, pruning_epochs=6)
    assert "problems" not in refused(problem, passes, batch_size=500)
    lasting = recipe(pruning_epochs=5)
    check(data=problem[1], runs=[Run(method=early, sparsity=0.5)], recipe=lasting, classes=4)


def test_a_best_epoch_needs_epochs_after_pruning_and_is_asked_for_once_not_per_seed(
    problem: tuple[nn.Module, Data],
) -> None:
    kept = methods.ceag(tolerance=0.01, k=4, keep="feasible", keep_on="heldout", while_pruning=True)
    told = refused(problem, kept, kept, pruning_epochs=5)
    assert told.startswith("run 0 (method ceag")
    assert (
        "keep='feasible' picks one of the epochs after pruning, and recipe.pruning_epochs is 5 of 5" in told
    )
    found = fit(*problem, runs=[Run(method=kept, sparsity=0.5)], recipe=recipe(pruning_epochs=4))
    assert found[0].kept_epoch == 4
    seldom = replace(HELDOUT["by passes"], refresh=999)
    assert refused(problem, seldom, seldom).count("a full pass every 999 steps") == 1


def part(split: Split, rows: slice) -> Split:
    return Split(split.inputs[rows], split.labels[rows], split.groups[rows])


def test_views_of_the_training_data_are_training_data_and_other_rows_of_one_tensor_are_not(
    problem: tuple[nn.Module, Data],
) -> None:
    model, whole = problem[0], images(200)
    train = part(whole, slice(120))
    held = methods.ceag(tolerance=0.01, dual_lr=0.1, k=4, multipliers_on="heldout")
    shared = data_for(model, train, heldout=part(whole, slice(100, 200)))
    assert 'split "heldout", of which 20 samples are training data' in refused((model, shared), held)
    odd = data_for(model, part(whole, slice(0, 200, 2)), heldout=part(whole, slice(1, 200, 2)))
    for apart in (data_for(model, train, heldout=part(whole, slice(120, 200))), odd):
        assert fit(model, apart, runs=[Run(method=held, sparsity=0.5)], recipe=recipe())


def test_the_audit_split_moves_no_multiplier_and_picks_no_iterate(problem: tuple[nn.Module, Data]) -> None:
    """Neither under its own name nor under another one."""
    model, data = problem
    held = methods.ceag(tolerance=0.01, dual_lr=0.1, k=4, multipliers_on="test")
    told = refused(problem, held, only_at_end=("train", "test"))
    assert (
        'multipliers_on names split "test", which recipe.only_at_end evaluates after the last epoch' in told
    )
    again = replace(data, evaluate={**data.evaluate, "other": part(data.evaluate["test"], slice(5, 60))})
    kept = methods.ceag(tolerance=0.01, k=4, keep="feasible", keep_on="other")
    told = refused((model, again), replace(held, multipliers_on="other"), kept, only_at_end=("test",))
    assert 'multipliers_on names split "other", which shares 55 samples with "test"' in told
    assert 'picked on split "other", which shares 55 samples with "test"' in told
    fine = fit(model, again, runs=[Run(method=held, sparsity=0.5)], recipe=recipe(only_at_end=("train",)))
    assert fine[0].multipliers.any()


def test_what_is_wrong_with_held_out_groups_is_told_whatever_they_are(
    problem: tuple[nn.Module, Data],
) -> None:
    model, data = problem
    held = data.evaluate["heldout"]
    run = Run(method=HELDOUT["by passes"], sparsity=0.5)
    for groups in (held.groups.double(), held.groups > 0, held.groups + 5 * 10**9):
        wrong = replace(data, evaluate={**data.evaluate, "heldout": replace(held, groups=groups)})
        with pytest.raises(InputProblems, match='split "heldout": '):
            fit(model, wrong, runs=[run], recipe=recipe())


def test_a_lower_limit_that_shows_no_violation_lets_multipliers_rest_without_a_note() -> None:
    """And one that shows a violation is told, if the dual step was too small to act on it."""
    train, few, many = images(120), images(30, seed=7), images(3000, seed=7)
    model = trained(network(), train)
    told = {"train": train, "test": images(60, seed=5), "sparsity": 0.95, "recipe": recipe()}
    careful = methods.ceag(
        tolerance=0.0, dual_lr=1e-9, multipliers_on="heldout", estimator="pass", refresh=2,
        caution=1.645, moves_on="lower",
    )  # fmt: skip
    notes = [prune(model, heldout=held, method=careful, **told).notes for held in (few, many)]
    assert [["hardly acted" in note for note in own].count(True) for own in notes] == [0, 1]
    plain = replace(careful, caution=0.0, moves_on="estimate")  # few samples do not show that it is broken
    notes = [prune(model, heldout=held, method=plain, **told).notes for held in (few, many)]
    assert [["hardly acted" in note for note in own].count(True) for own in notes] == [0, 1]
    bold = replace(careful, caution=0.1)  # by its own limit, not that of the audit, some group is beyond it
    assert "hardly acted" in prune(model, heldout=few, method=bold, **told).notes[-1]


def test_a_group_that_the_held_out_split_lacks_is_refused() -> None:
    train, empty = images(120, missing=False), images(60, seed=7, missing=False)
    empty = Split(empty.inputs, empty.labels, empty.groups.clamp_max(1))
    model = trained(network(), train)
    data = data_for(model, train, heldout=empty)
    run = Run(method=methods.ceag(tolerance=0.01, k=4, multipliers_on="heldout"), sparsity=0.5)
    with pytest.raises(InputProblems) as caught:
        fit(model, data, runs=[run, replace(run, sparsity=1.5)], recipe=recipe())
    assert "2 problems" in str(caught.value)  # with all others, before anything is measured or written
    assert f'Group "{NAMES[2]}" has no samples in split "heldout"' in str(caught.value)
    assert "put samples of it there" in str(caught.value)
    fit(model, data, runs=[Run(method=methods.ceag(tolerance=0.01, k=4), sparsity=0.5)], recipe=recipe())
