"""Cross-fitting: multipliers that follow all training samples, each answered by models that never saw it."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD

from evenprune import epochs, fleet, folds, lineup, methods, training
from evenprune.augment import Flip
from evenprune.checkpoint import DifferentExperiment
from evenprune.companions import FoldAnswers, pooled, with_companions
from evenprune.draws import leaving_out, sample_order
from evenprune.folds import Folds
from evenprune.heldout import Heldout, paired_counts, psi_standard_errors
from evenprune.loop import Loop, advance, begin_epoch, build, draw_epoch
from evenprune.masks import Masks
from evenprune.method import Method
from evenprune.predict import predict
from evenprune.recipe import Data, Recipe, Run, Split
from evenprune.tally import InputProblems
from evenprune.teacher import Teacher, Teachers, teacher_of
from evenprune.training import Fitted, NoRoom, NotFinite, fit
from tests.training_cases import NAMES, Branching, Stops, data_for, images, network, recipe, trained
from tests.twins.cross_fitting import Family, Follower

CROSSED = methods.ceag(tolerance=0.01, dual_lr=0.2, multipliers_on="folds", estimator="pass", refresh=2)
COUNT = 3
Problem = tuple[nn.Module, Data]


def fold_models(train: Split, of: Tensor, *, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, ...]:
    """Dense models, each trained without its fold."""
    rest = [(of != fold).nonzero().flatten() for fold in range(int(of.max()) + 1)]
    parts = [replace(train, inputs=train.inputs[r], labels=train.labels[r]) for r in rest]
    return tuple(trained(network(dtype=dtype), replace(p, groups=p.labels)) for p in parts)


def problem_of(*, dtype: torch.dtype = torch.float32, missing: bool = True) -> Problem:
    train = images(120, dtype=dtype, missing=missing)
    model = trained(network(dtype=dtype), train)
    data = data_for(model, train, train=train, test=images(60, seed=5, dtype=dtype, missing=missing))
    of = folds.assign(train.groups, COUNT)
    return model, replace(data, folds=Folds(of, fold_models(train, of, dtype=dtype)))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problem_of()


def folds_in(data: Data) -> Folds:
    assert data.folds is not None
    return data.folds


def weights(one: Fitted) -> Tensor:
    return torch.cat([t.flatten() for t in one.model.state_dict().values() if t.is_floating_point()])


def same(left: Sequence[Fitted], right: Sequence[Fitted], within: float = 0.0) -> None:
    for a, b in zip(left, right, strict=True):
        assert a.run == b.run
        torch.testing.assert_close(weights(a), weights(b), rtol=0, atol=within)
        torch.testing.assert_close(a.multipliers, b.multipliers, rtol=0, atol=within)


def family_loop(model: nn.Module, data: Data, run: Run, settings: Recipe) -> Loop:
    """The loop of one family, companions in sight."""
    settings, device = settings.on(torch.device("cpu")), torch.device("cpu")
    crew = with_companions([run], data.folds)
    wide = lineup.dense_network(model, data, crew, settings, device=device)
    dense = pooled(folds_in(data), data.train, settings)
    followed = Heldout(
        wide,
        data.train,
        dense_correct=dense.correct,
        runs=crew,
        recipe=settings,
        batch=settings.batch_size,
        folds=data.folds,
    )
    return build(
        wide,
        runs=crew,
        recipe=settings,
        train=data.train,
        reference=data.reference,
        masks=Masks.of(wide, runs=len(crew)),
        heldout=followed,
        heldout_reference=dense.reference(data.reference.names),
        teacher=teacher_of([model, *folds_in(data).models], data.train, settings),
        folds=data.folds,
    )


def train_epoch(loop: Loop, epoch: int) -> None:
    loop.network.train()
    begin_epoch(loop, epoch)
    draw_epoch(loop, epoch, 0)
    for step in range(loop.steps):
        advance(loop, step, epoch)
    if loop.scheduler is not None:
        loop.scheduler.step()


# --- folds ---


@given(st.lists(st.integers(-1, 4), min_size=2, max_size=60), st.integers(2, 7), st.integers(0, 9))
def test_every_fold_has_the_same_share_of_every_group(groups: list[int], count: int, seed: int) -> None:
    count = min(count, len(groups))
    of = folds.assign(torch.tensor(groups), count, seed=seed)
    assert torch.equal(of, folds.assign(torch.tensor(groups), count, seed=seed))
    for own in (torch.tensor(groups) == group for group in {*groups}):
        sizes = torch.bincount(of[own], minlength=count)
        assert int(sizes.max() - sizes.min()) <= 1
    sizes = torch.bincount(of, minlength=count)
    assert len(sizes) == count
    assert int(sizes.max() - sizes.min()) <= 1


def test_the_draw_of_folds_is_random_and_follows_the_seed() -> None:
    groups = torch.zeros(1000, dtype=torch.int64)
    first, other = (folds.assign(groups, 4, seed=seed) for seed in (0, 1))
    assert 0.2 < float((first == other).double().mean()) < 0.3
    assert 0.2 < float((first[1:] == first[:-1]).double().mean()) < 0.3


@pytest.mark.parametrize(
    ("groups", "count", "told"),
    [
        (torch.zeros(5, dtype=torch.int64), 1, "1 folds of 5 samples; give 2 to 5"),
        (torch.zeros(5, dtype=torch.int64), 6, "6 folds of 5 samples"),
        (torch.zeros(5), 2, r"give ids of shape \[N\]"),
        (torch.zeros(5, dtype=torch.int64), "4", "count is '4', a str; give how many folds, such as 4"),
        (torch.zeros(5, dtype=torch.int64), 2.5, "count is 2.5, a float; give how many folds"),
        (["White", "Black"], 2, "groups are no numbers; give ids"),
        ([0, None], 2, "groups are no numbers; give ids"),
        (torch.zeros(5), "4", r"(?s)2 problems.*give ids.*count is '4'"),
    ],
)
def test_folds_that_cannot_be_are_refused(groups: Any, count: Any, told: str) -> None:
    with pytest.raises(InputProblems, match=told):
        folds.assign(groups, count)


def test_folds_of_a_list_or_an_array_are_those_of_the_tensor() -> None:
    ids = [0, 1, -1, 1, 0, 0, 1, 2]
    of = folds.assign(torch.tensor(ids), 4)
    assert torch.equal(folds.assign(ids, 4), of)
    assert torch.equal(folds.assign(np.array(ids), np.int64(4)), of)  # type: ignore[arg-type]


# --- who trains on what ---


@given(st.data())
def test_an_order_without_a_fold_is_the_order_less_the_fold_round_and_round(data: st.DataObject) -> None:
    some = st.lists(st.booleans(), min_size=1, max_size=30).filter(lambda flags: not all(flags))
    out = torch.tensor(data.draw(some))
    count = data.draw(st.integers(0, 40))
    order = sample_order(3, 1, len(out))
    kept = [sample for sample in order.tolist() if not out[sample]]
    assert leaving_out(order, out, count).tolist() == (kept * count)[:count]


def test_companions_never_draw_from_their_fold_and_see_the_rest(problem: Problem) -> None:
    model, data = problem
    loop = family_loop(model, data, Run(method=CROSSED, sparsity=0.5, seed=4), recipe())
    of = folds_in(data).of
    assert [run.without for run in loop.runs] == [None, 0, 1, 2]
    for epoch in range(3):
        draw_epoch(loop, epoch, 0)
        assert sorted(loop.now.order[0].tolist()) == list(range(120))
        for fold in range(COUNT):
            seen = loop.now.order[1 + fold]
            assert len(seen) == 120
            assert set(seen.tolist()) == set((of != fold).nonzero().flatten().tolist())


def copies_of(model: nn.Module) -> tuple[nn.Module, ...]:
    return tuple(copy.deepcopy(model) for _ in range(COUNT))


def one_hot(samples: int = 96) -> Problem:
    """Every sample has an input of its own, and a label by chance: nothing can be learnt but by heart."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (samples,), generator=generator)
    train = Split(10 * torch.eye(samples), labels, torch.arange(samples) % 3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(samples, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    of = folds.assign(train.labels, COUNT)
    return model, replace(data_for(model, train, train=train), folds=Folds(of, copies_of(model)))


def test_a_model_that_learns_by_heart_knows_all_but_its_fold() -> None:
    model, data = one_hot()
    of, quick = folds_in(data).of, partial(SGD, lr=0.1, momentum=0.9)
    settings = recipe(optimizer=quick, scheduler=None, epochs=25, pruning_epochs=0)
    loop = family_loop(model, data, Run(method=CROSSED, sparsity=0.0), settings)
    for epoch in range(settings.epochs):
        train_epoch(loop, epoch)
    first = model.get_parameter("0.weight")
    for fold in range(COUNT):
        companion = fleet.extract(loop.network, 1 + fold)
        right = predict(companion, data.train).correct
        assert right[of != fold].double().mean() > 0.95
        moved = (companion.get_parameter("0.weight") != first).any(0)  # by input, that is by sample
        assert torch.equal(moved, of != fold)
    assert loop.heldout is not None
    answers = loop.heldout.answers()[0] == data.train.labels
    assert answers.double().mean() < 0.5  # pooled: every sample by the one that never saw it
    assert predict(fleet.extract(loop.network, 0), data.train).correct.double().mean() > 0.95


# --- what is measured ---


def test_the_pooled_gaps_are_those_by_hand(problem: Problem) -> None:
    model, data = problem
    run = Run(method=replace(CROSSED, refresh=5), sparsity=0.7)
    loop, of = family_loop(model, data, run, recipe(evaluate_batch=11)), folds_in(data).of
    for epoch in range(2):  # both prune
        train_epoch(loop, epoch)
    sparse = [fleet.extract(loop.network, 1 + fold).eval() for fold in range(COUNT)]
    assert loop.heldout is not None
    loop.heldout.before_step(loop.plan, loop.state, 0, awake=loop.rest.awake)
    lost: dict[int, list[float]] = {}
    for n in range(120):
        own = [folds_in(data).models[of[n]].eval(), sparse[of[n]]]
        dense, pruned = (int(m(data.train.inputs[n : n + 1]).argmax()) == data.train.labels[n] for m in own)
        lost.setdefault(int(data.train.groups[n]), []).append(float(dense) - float(pruned))
    overall = sum(sum(values) for values in lost.values()) / 120
    psi = torch.tensor([sum(lost[g]) / len(lost[g]) - overall for g in range(3)])
    assert psi.abs().max() > 0.01
    for member in range(1 + COUNT):
        torch.testing.assert_close(loop.state["psi"][member], psi)
        moved = (5 * 0.2 * (psi - 0.01)).clamp_min(0)
        torch.testing.assert_close(loop.state["multiplier"][member], moved)


def test_losses_are_pooled_like_answers(problem: Problem) -> None:
    _, data = problem
    settings = recipe().on(torch.device("cpu"))
    dense = pooled(folds_in(data), data.train, settings)
    for fold, model in enumerate(folds_in(data).models):
        own, alone = folds_in(data).of == fold, predict(model, data.train)
        assert torch.equal(dense.predictions[own], alone.predictions[own])
        torch.testing.assert_close(dense.losses[own], alone.losses[own])


@pytest.mark.parametrize("batch", [1, 7, 40, 512])
def test_families_of_a_mixed_fleet_answer_for_themselves(problem: Problem, batch: int) -> None:
    """Two families, and a run that has none between them; fold models and companions differ."""
    model, data = problem
    asked = [
        Run(method=CROSSED, sparsity=0.9),
        Run(method=methods.nft(), sparsity=0.5),
        Run(method=CROSSED, sparsity=0.3, seed=1),
    ]
    crew = with_companions(asked, data.folds)
    assert len(crew) == 3 + 2 * COUNT
    settings = recipe(evaluate_batch=batch).on(torch.device("cpu"))
    wide = lineup.dense_network(model, data, crew, settings, device=torch.device("cpu"))
    Masks.of(wide, runs=len(crew)).prune_(wide, [run.sparsity for run in crew])
    predicted, losses = FoldAnswers(wide, data.train, settings, runs=crew, folds=folds_in(data))()
    for place, run in enumerate(crew):
        if run.method == CROSSED:
            for fold in range(COUNT):
                own = folds_in(data).of == fold
                answerer = crew.index(replace(run, without=fold))
                alone = predict(fleet.extract(wide, answerer), data.train)
                assert torch.equal(predicted[place, own], alone.predictions[own])
                torch.testing.assert_close(losses[place, own], alone.losses[own])


# --- the twin ---


def test_a_family_is_separate_models_that_share_their_multipliers() -> None:
    model, data = problem_of(dtype=torch.float64, missing=False)
    method = replace(CROSSED, dual_lr=0.3, refresh=3)
    settings = recipe(weight_decay=0.01, clip_norm=0.5, scheduler=None, epochs=6)
    run = Run(method=method, sparsity=0.83, seed=7)
    fitted = fit(model, data, runs=[run], recipe=settings)[0]
    of = folds_in(data).of.tolist()
    members = [
        Follower(
            model=copy.deepcopy(dense),
            inputs=data.train.inputs,
            labels=data.train.labels,
            groups=data.train.groups,
            prunable=["3.weight", "8.weight"],
            sparsity=0.83,
            epochs=6,
            pruning_epochs=2,
            batch=24,
            lr=0.05,
            momentum=0.9,
            weight_decay=0.01,
            clip=0.5,
            constrained=True,
            tolerance=0.01,
            dual_lr=0.3,
            k=1,
        )
        for dense in (model, *folds_in(data).models)
    ]
    twin = Family(members, [copy.deepcopy(m) for m in folds_in(data).models], of, refresh=3)
    twin.train([sample_order(7, epoch, 120) for epoch in range(6)])
    expected = torch.tensor(list(twin.multipliers.values()), dtype=torch.float64)
    assert expected.max() > 0.05
    torch.testing.assert_close(fitted.multipliers[-1], expected, rtol=1e-9, atol=1e-9)
    for name, value in members[0].model.state_dict().items():
        torch.testing.assert_close(fitted.model.state_dict()[name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", [CROSSED, replace(CROSSED, caution=0.3), replace(CROSSED, distill=0.5)])
def test_the_loop_of_a_family_is_that_of_fit(problem: Problem, method: Method) -> None:
    model, data = problem
    run = Run(method=method, sparsity=0.6, seed=2)
    loop = family_loop(model, data, run, recipe())
    for epoch in range(5):
        train_epoch(loop, epoch)
    fitted = fit(model, data, runs=[run], recipe=recipe())[0]
    assert fitted.multipliers[-1].any()
    for member in range(1 + COUNT):
        assert torch.equal(loop.state["multiplier"][member], fitted.multipliers[-1])
    own = fleet.extract(loop.network, 0).state_dict()
    for name, value in fitted.model.state_dict().items():
        assert torch.equal(own[name], value), name


# --- fit() ---


def everything() -> list[Run]:
    every = [
        CROSSED,
        methods.nft(),
        replace(CROSSED, caution=0.5),
        methods.ceag(tolerance=0.01, k=4, dual_lr=0.1),
        methods.celg(tolerance=0.0, dual_lr=0.1, multipliers_on="folds", estimator="pass", refresh=3),
        replace(CROSSED, distill=0.5),
    ]
    return [Run(method=method, sparsity=0.5, seed=seed) for seed, method in enumerate(every)]


def test_a_mixed_fleet_is_separate_fleets(problem: Problem) -> None:
    together = fit(*problem, runs=everything(), recipe=recipe())
    assert [one.run for one in together] == everything()
    for run, one in zip(everything(), together, strict=True):
        same(fit(*problem, runs=[run], recipe=recipe()), [one], within=2e-5)
    assert all(bool(one.multipliers[-1].any()) for one in (together[0], together[4], together[5]))


def test_a_family_is_never_cut(problem: Problem, tmp_path: Any) -> None:
    runs = everything()[:3]
    told: list[Any] = []

    class Listens(Stops):
        def start(self, runs: Any, epochs: int, past: Any) -> None:
            told.append([run.seed for run in runs])

        def epoch(self, rows: list[dict[str, Any]]) -> None:
            assert len(rows) == len(told[-1])

    small = fit(*problem, runs=runs, recipe=recipe(fleet_size=6), hooks=[Listens(0)], folder=tmp_path)
    assert told == [[0, 1], [2]]  # a family of four and one by itself; a family
    same(small, fit(*problem, runs=runs, recipe=recipe()), within=2e-5)
    files = sorted(str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("metrics.jsonl"))
    assert [name.split("/")[0] for name in files] == ["fleet-000", "fleet-000", "fleet-001"]


def test_runs_that_differ_in_the_kept_iterate_share_their_companions(problem: Problem) -> None:
    kept = replace(CROSSED, keep="feasible", keep_on="test")
    runs = [Run(method=method, sparsity=0.5) for method in (CROSSED, kept)]
    assert len(with_companions(runs, problem[1].folds)) == 2 + COUNT
    last, best = fit(*problem, runs=runs, recipe=recipe(fleet_size=2 + COUNT))
    assert torch.equal(last.multipliers, best.multipliers)
    for name, answers in best.last.items():
        assert torch.equal(answers.predictions, last.predictions[name].predictions)
    same(fit(*problem, runs=runs[1:], recipe=recipe()), [best], within=2e-5)


@pytest.mark.parametrize("method", [CROSSED, replace(CROSSED, caution=0.5, distill=0.5)])
def test_a_resumed_training_is_the_whole_one(problem: Problem, tmp_path: Any, method: Method) -> None:
    runs, settings = [Run(method=method, sparsity=0.5)], recipe(augment=Flip())
    whole = fit(*problem, runs=runs, recipe=settings)
    with pytest.raises(KeyboardInterrupt):
        fit(*problem, runs=runs, recipe=settings, folder=tmp_path, hooks=[Stops(3)])
    resumed = fit(*problem, runs=runs, recipe=settings, folder=tmp_path)
    same(whole, resumed)
    again = fit(*problem, runs=runs, recipe=settings, folder=tmp_path)
    same(whole, again)
    assert torch.equal(whole[0].predictions["test"].losses, again[0].predictions["test"].losses)


def test_a_training_stopped_between_two_passes_goes_on_there(
    problem: Problem, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, settings = [Run(method=CROSSED, sparsity=0.5)], recipe(checkpoint_steps=3)
    whole, step = fit(*problem, runs=runs, recipe=settings), epochs.advance

    def dies(loop: Loop, place: int, epoch: int) -> None:
        if (epoch, place) == (3, 4):
            raise KeyboardInterrupt
        step(loop, place, epoch)

    monkeypatch.setattr(epochs, "advance", dies)
    with pytest.raises(KeyboardInterrupt):
        fit(*problem, runs=runs, recipe=settings, folder=tmp_path)
    monkeypatch.undo()
    same(whole, fit(*problem, runs=runs, recipe=settings, folder=tmp_path))


def test_other_folds_are_another_experiment(problem: Problem, tmp_path: Any) -> None:
    model, data = problem
    runs, settings = [Run(method=CROSSED, sparsity=0.5)], recipe(epochs=3)
    fit(model, data, runs=runs, recipe=settings, folder=tmp_path)
    held = folds_in(data)
    others = (
        Folds(folds.assign(data.train.groups, COUNT, seed=1), held.models),
        Folds(held.of, (*held.models[:-1], copy.deepcopy(model))),
    )
    for other, told in zip(others, ("folds: ", r"dense weights of folds\[2\]"), strict=True):
        with pytest.raises(DifferentExperiment, match=told):
            fit(model, replace(data, folds=other), runs=runs, recipe=settings, folder=tmp_path)


def test_folds_that_no_run_looks_at_change_nothing(problem: Problem, tmp_path: Any) -> None:
    model, data = problem
    runs = [Run(method=methods.nft(), sparsity=0.5)]
    plain = fit(model, replace(data, folds=None), runs=runs, recipe=recipe(), folder=tmp_path)
    same(plain, fit(model, data, runs=runs, recipe=recipe(), folder=tmp_path))
    assert training.identify(model, data, runs=runs, recipe=recipe()) == training.identify(
        model, replace(data, folds=None), runs=runs, recipe=recipe()
    )


def test_a_companion_that_diverges_is_named(problem: Problem) -> None:
    hot = recipe(optimizer=partial(SGD, lr=1e30), pruning_epochs=0)
    with pytest.raises(NotFinite) as error:
        fit(*problem, runs=[Run(method=CROSSED, sparsity=0.5, seed=9)], recipe=hot)
    assert "run 0 of 4 (method ceag, sparsity 0.5, seed 9), by step" in str(error.value)
    assert "run 2 of 4 (method ceag, sparsity 0.5, seed 9, without fold 1), by step" in str(error.value)


def test_a_companion_that_diverges_later_stops_all_as_it_has_no_result(problem: Problem) -> None:
    wild = replace(CROSSED, dual_lr=1e38)
    runs = [Run(method=methods.nft(), sparsity=0.5, seed=9), Run(method=wild, sparsity=0.5, seed=9)]
    with pytest.raises(NotFinite, match=r"without fold \d\), by step"):
        fit(*problem, runs=runs, recipe=recipe())


def test_where_memory_is_short_companions_are_not_parted_from_their_run(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(epochs, "train", full)
    runs = [Run(method=CROSSED, sparsity=0.5, seed=seed) for seed in range(3)]
    with pytest.raises(
        NoRoom, match=r"too small for 1 run and 3 companions .*: take a smaller recipe\.batch"
    ):
        fit(*problem, runs=runs[:1], recipe=recipe())
    with pytest.raises(NoRoom, match=r"for 2 runs and 6 companions .*\(recipe\.fleet_size = 4\), or take"):
        fit(*problem, runs=runs[:2], recipe=recipe())
    with pytest.raises(NoRoom, match=r"for 3 runs and 9 companions .*\(recipe\.fleet_size = 6\), or take"):
        fit(*problem, runs=runs, recipe=recipe())


# --- dense models of the folds ---


def test_dense_models_are_trained_without_their_fold_as_one_fleet() -> None:
    model, data = one_hot()
    held = folds_in(data)
    runs = [Run(method=methods.nft(), sparsity=0.0, seed=3, without=fold) for fold in range(COUNT)]
    settings = recipe(
        pruning_epochs=0, optimizer=partial(SGD, lr=0.3, momentum=0.9), scheduler=None, epochs=9
    )
    together = fit(model, replace(data, folds=Folds(held.of)), runs=runs, recipe=settings)
    first = model.get_parameter("0.weight")
    for run, one in zip(runs, together, strict=True):
        moved = (one.model.get_parameter("0.weight") != first).any(0)
        assert torch.equal(moved, held.of != run.without)
        same(fit(model, replace(data, folds=Folds(held.of)), runs=[run], recipe=settings), [one], within=2e-5)


def test_a_run_without_a_fold_starts_from_the_model_of_the_fold(problem: Problem) -> None:
    model, data = problem
    frozen = recipe(optimizer=partial(SGD, lr=0.0), epochs=1, pruning_epochs=0, scheduler=None)
    runs = [Run(method=methods.nft(), sparsity=0.0, without=fold) for fold in (None, *range(COUNT))]
    fitted = fit(model, data, runs=runs, recipe=frozen)
    for one, dense in zip(fitted, (model, *folds_in(data).models), strict=True):
        for name, parameter in dense.named_parameters():
            assert torch.equal(one.model.get_parameter(name), parameter), name
    counts = {int(one.model.get_buffer("1.num_batches_tracked")) for one in fitted}
    assert counts == {int(model.get_buffer("1.num_batches_tracked")) + 5}


# --- learning from the dense model of the fold ---


@pytest.mark.parametrize("augment", [None, Flip()])
def test_every_run_learns_from_the_model_it_was_pruned_from(problem: Problem, augment: Any) -> None:
    model, data = problem
    first, second = folds_in(data).models[:2]
    models = [second, model, first, second]
    settings = recipe(augment=augment).on(torch.device("cpu"))
    teacher = teacher_of(models, data.train, settings)
    assert isinstance(teacher, Teachers)
    index = torch.tensor([[0, 5], [7, 5], [119, 3], [2, 2]])
    inputs = torch.flip(data.train.inputs[index], [-1]) if augment else data.train.inputs[index]
    with torch.no_grad():
        for run, own in enumerate(models):
            torch.testing.assert_close(teacher.soft(index, inputs)[run], own.eval()(inputs[run]))


@pytest.mark.parametrize("several", [False, True])
def test_runs_that_learn_from_nobody_ask_nobody(problem: Problem, several: bool) -> None:
    model, data = problem
    other = folds_in(data).models[0] if several else model
    models = [None, model, None, other]
    asked: list[int] = []

    def count(_: nn.Module, given: tuple[Tensor], __: Tensor) -> None:
        asked.append(len(given[0]))

    hooks = [own.register_forward_hook(count) for own in {model, other}]
    with torch.no_grad():
        teacher = teacher_of(models, data.train, recipe(augment=Flip()).on(torch.device("cpu")))
        asked.clear()
        index = torch.tensor([[0, 5], [7, 5], [119, 3], [2, 2]])
        found = teacher.soft(index, data.train.inputs[index])
        assert sum(asked) == 4  # two samples of each run that is taught
        for run, own in enumerate(models):
            wanted = 0 * found[run] if own is None else own.eval()(data.train.inputs[index[run]])
            torch.testing.assert_close(found[run], wanted)
        table = teacher_of([None, model], data.train, recipe().on(torch.device("cpu")))
    assert isinstance(table, Teacher)
    for hook in hooks:
        hook.remove()


# --- refusals ---


def refused(model: nn.Module, data: Data, *runs: Run, **changes: Any) -> str:
    with pytest.raises(InputProblems) as error:
        fit(model, data, runs=runs, recipe=recipe(**changes))
    return str(error.value)


def test_what_cannot_be_cross_fitted_is_refused(problem: Problem) -> None:
    model, data = problem
    run, held = Run(method=CROSSED, sparsity=0.5), folds_in(data)
    nobody = replace(data, folds=None)
    assert "there are no folds: give Data(folds=" in refused(model, nobody, run)
    assert "there are no folds" in refused(model, nobody, Run(method=methods.nft(), sparsity=0.5, without=0))
    assert "needs a dense model for each fold" in refused(model, replace(data, folds=Folds(held.of)), run)
    few = replace(data, folds=Folds(held.of, held.models[:2]))
    assert "3 folds and 2 models of them" in refused(model, few, run)
    short = replace(data, folds=Folds(held.of[:50], held.models))
    assert "[50] for 120 training samples" in refused(model, short, run)
    gap = replace(data, folds=Folds(held.of * 2, held.models))
    told = refused(model, gap, run)
    assert "fold 1 of 5 has no samples" in told
    assert "5 folds and 3 models" in told
    whole = replace(data, folds=Folds(torch.zeros_like(held.of), held.models))
    assert "K at least 2" in refused(model, whole, run)
    other = nn.Sequential(*[*network()][:-1], nn.Linear(8, 5))
    strange = replace(data, folds=Folds(held.of, (held.models[0], other, held.models[2])))
    assert "the model of fold 1 is no copy of the dense model: 10.bias, 10.weight" in refused(
        model, strange, run
    )
    twice = replace(data, folds=Folds(held.of, (held.models[0], model, held.models[0])))
    told = refused(model, twice, run)
    assert told.count("is the dense model itself, or that of another fold") == 2
    assert "the model of fold 0" not in told
    assert "fewer than one batch of 100" in refused(model, data, run, batch_size=100)
    taken = replace(data, evaluate={**data.evaluate, "folds": data.train})
    assert "give the split of that name another one" in refused(model, taken, run)
    apart = replace(run, without=1)
    assert "its companions leave the folds out" in refused(model, data, apart)
    far = Run(method=methods.nft(), sparsity=0.5, without=3)
    assert "there are folds 0 … 2" in refused(model, data, far)
    scored = Run(method=methods.fairgrape(fast=True), sparsity=0.5, without=2)
    assert "importances are summed over all training samples, those of fold 2 too" in refused(
        model, data, scored
    )
    mixed = Run(method=methods.ceag(tolerance=0.01, multipliers_on="test"), sparsity=0.5)
    assert "one split for all runs of a call: prune once for each" in refused(model, data, run, mixed)


def test_a_family_that_cannot_train_together_is_refused(problem: Problem) -> None:
    model, data = problem
    run = Run(method=CROSSED, sparsity=0.5)
    told = refused(model, data, run, fleet_size=3)
    assert "together with its 3 companions, but recipe.fleet_size is 3. Give 4 or more" in told
    branching = Branching()
    plain = data_for(branching, data.train)
    held = Folds(folds_in(data).of, tuple(Branching() for _ in range(COUNT)))
    told = refused(branching, replace(plain, folds=held), run)
    assert "multipliers_on='folds' cannot be trained here: Branching cannot be traced" in told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"estimator": "ring", "refresh": 0}, "needs estimator='pass'"),
        ({"importance": "fairgrape_fast"}, "looks at all samples; take 'magnitude'"),
    ],
)
def test_methods_that_cannot_follow_folds_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replace(CROSSED, **changes)


def test_names_of_groups_are_those_of_the_data(problem: Problem) -> None:
    model, data = problem
    empty = replace(data.train, groups=data.train.groups.clamp_max(1))
    changed = replace(data_for(model, empty, train=empty), folds=data.folds)
    with pytest.raises(ValueError, match=f'Group "{NAMES[2]}" has no samples'):
        fit(model, changed, runs=[Run(method=CROSSED, sparsity=0.5)], recipe=recipe())


# --- why ---


def centroids(inputs: Tensor, labels: Tensor, used: int) -> Tensor:
    """A classifier that can be 'pruned': the mean of each class in the first `used` features. [2, used]"""
    return torch.stack([inputs[labels == label, :used].mean(0) for label in (0, 1)])


def right_by(centres: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    return torch.cdist(inputs[:, : centres.shape[1]], centres).argmin(1) == labels


def excess(dense: Tensor, sparse: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """ψ_g and its standard error, both [2]."""
    lost = dense.double() - sparse.double()
    psi = torch.stack([lost[groups == g].mean() for g in (0, 1)]) - lost.mean()
    return psi, psi_standard_errors(*paired_counts(dense, sparse, groups, count=2))


def test_all_samples_pooled_are_as_precise_as_so_many_held_out_ones() -> None:
    """1,200 samples in 4 folds against 300 held out: the error of ψ times √(300/1200), as told and seen."""
    generator = torch.Generator().manual_seed(0)
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {"pooled": [], "held out": []}
    for _ in range(600):
        labels = torch.randint(0, 2, (1200,), generator=generator)
        groups = (torch.rand(1200, generator=generator) < 0.25).long()
        noise = torch.randn(1200, 4, generator=generator, dtype=torch.float64)
        inputs = noise + 0.6 * (2 * labels - 1).unsqueeze(1) * torch.where(groups == 1, 0.5, 1.0).unsqueeze(1)
        of = folds.assign(groups, 4, seed=len(seen["pooled"]))
        dense, sparse = torch.zeros(2, 1200, dtype=torch.bool)
        for fold in range(4):
            out = of == fold
            for found, used in ((dense, 4), (sparse, 2)):
                centres = centroids(inputs[~out], labels[~out], used)
                found[out] = right_by(centres, inputs[out], labels[out])
        seen["pooled"].append(excess(dense, sparse, groups))
        first = of == 0
        seen["held out"].append(excess(dense[first], sparse[first], groups[first]))
    spread = {name: torch.stack([psi for psi, _ in own]).std(0) for name, own in seen.items()}
    told = {name: torch.stack([error for _, error in own]).mean(0) for name, own in seen.items()}
    half = torch.full((2,), 0.5, dtype=torch.float64)
    torch.testing.assert_close(spread["pooled"] / spread["held out"], half, rtol=0.12, atol=0)
    torch.testing.assert_close(told["pooled"] / told["held out"], half, rtol=0.03, atol=0)
    torch.testing.assert_close(told["pooled"], spread["pooled"], rtol=0.12, atol=0)
