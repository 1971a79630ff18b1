"""fit(): fleets against single runs and a plain loop, what it keeps, what it refuses, what it tells."""

import copy
import json
import logging
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.utils._python_dispatch import TorchDispatchMode

from evenprune import epochs, fleet, methods
from evenprune.augment import Both, Crop, Flip
from evenprune.draws import sample_order
from evenprune.element_wise import why_steps_mix
from evenprune.loop import (
    Loop,
    begin_epoch,
    build,
    clip_,
    draw_epoch,
    parameter_groups,
    train_step,
)
from evenprune.masks import Masks
from evenprune.predict import Answers, predict
from evenprune.recipe import Data, Recipe, Run, Split
from evenprune.replay import Replay
from evenprune.tally import InputProblems
from evenprune.training import Fitted, NoRoom, fit
from tests.training_cases import NAMES, Branching, data_for, images, network, precisely, recipe, trained
from tests.twins.plain_loop import Plain

ALL_KINDS = [
    methods.nft(),
    methods.ceag(tolerance=0.01, dual_lr=0.3, k=6),
    methods.ceag(tolerance=0.05, dual_lr=0.1, k=9, estimator="table", negative="keep"),
    methods.el(dual_lr=0.1),
    methods.celg(tolerance=0.0, dual_lr=0.1, k=4),
    methods.pairwise(tolerance=0.01, dual_lr=0.3, k=6),
]


def loop_for(model: nn.Module, data: Data, runs: list[Run], settings: Recipe) -> Loop:
    model = copy.deepcopy(model)
    wide: Any = fleet.single(model)
    if len(runs) > 1:
        wide = fleet.widen(model, len(runs), sample_input=data.train.inputs[:4])
    masks = Masks.of(wide, runs=len(runs))
    return build(wide, runs=runs, recipe=settings, train=data.train, reference=data.reference, masks=masks)


def every_step(loop: Loop) -> Any:
    loop.network.train()
    for epoch in range(loop.recipe.epochs):
        begin_epoch(loop, epoch)
        draw_epoch(loop, epoch, 0)
        for _ in range(loop.steps):
            train_step(loop)
            yield


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def same_models(first: Fitted, second: Fitted) -> bool:
    pairs = zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_a_fleet_equals_single_runs_step_by_step(dtype: torch.dtype, error: float) -> None:
    split = images(dtype=dtype)
    model = trained(network(dtype=dtype), split)
    data = data_for(model, split)
    runs = [Run(method=m, sparsity=0.4 + 0.1 * (i % 4), seed=i % 3) for i, m in enumerate(ALL_KINDS)]
    # In float32 a rounding may turn an answer, hence a multiplier; a few steps suffice there.
    settings = recipe(weight_decay=0.01, clip_norm=1.0, augment=Both(Flip(), Crop(1)), scheduler=None)
    together = loop_for(model, data, runs, settings)
    alone = [loop_for(model, data, [run], settings) for run in runs]
    steps = [every_step(loop) for loop in alone]
    for _ in every_step(together):
        for i, (single, loop) in enumerate(zip(steps, alone, strict=True)):
            next(single)
            own = fleet.extract(together.network, i)
            expected = loop.network.state_dict()
            for name, tensor in own.state_dict().items():
                torch.testing.assert_close(tensor, expected[name], rtol=error, atol=error)
            torch.testing.assert_close(together.state["psi"][i], loop.state["psi"][0], rtol=error, atol=error)
    assert all(next(single, "done") == "done" for single in steps)
    assert (together.state["steps"] > 0).all()


@pytest.mark.parametrize("constrained", [False, True])
def test_the_loop_equals_the_plain_one_step_by_step(constrained: bool) -> None:
    split = images(missing=False, dtype=torch.float64)
    model = trained(network(dtype=torch.float64), split)
    data = data_for(model, split)
    method = methods.ceag(tolerance=0.01, dual_lr=0.3, k=6, negative="keep") if constrained else methods.nft()
    settings = recipe(
        weight_decay=0.01, clip_norm=0.5, scheduler=None, optimizer=partial(SGD, lr=0.05, momentum=0.9)
    )
    loop = loop_for(model, data, [Run(method=method, sparsity=0.83, seed=7)], settings)
    plain = Plain(
        model=copy.deepcopy(model),
        inputs=split.inputs,
        labels=split.labels,
        groups=split.groups,
        prunable=["3.weight", "8.weight"],
        sparsity=0.83,
        epochs=5,
        pruning_epochs=2,
        batch=24,
        lr=0.05,
        momentum=0.9,
        weight_decay=0.01,
        clip=0.5,
        constrained=constrained,
        tolerance=0.01,
        dual_lr=0.3,
        k=6,
    )
    orders = [sample_order(7, epoch, len(split)) for epoch in range(5)]
    steps = 0
    for _, reached in zip(every_step(loop), plain.train(orders), strict=True):
        steps += 1
        torch.testing.assert_close(weights(loop.network), weights(reached), rtol=1e-9, atol=1e-9)
    assert steps == 25
    if constrained:
        expected = torch.tensor(list(plain.multipliers.values()), dtype=torch.float64)
        assert expected.max() > 0.01
        torch.testing.assert_close(loop.state["multiplier"][0], expected, rtol=1e-9, atol=1e-9)


class NoWaiting(TorchDispatchMode):
    """Fails on the operations that read values back from a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        assert not any(
            op in name for op in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal.default")
        ), name
        return func(*args, **(kwargs or {}))


def test_a_step_waits_for_nothing_and_allocates_no_new_state() -> None:
    split = images()
    model = trained(network(), split)
    runs = [Run(method=m, sparsity=0.5, seed=0) for m in ALL_KINDS]
    loop = loop_for(
        model, data_for(model, split), runs, recipe(clip_norm=1.0, augment=Flip(), pruning_epochs=0)
    )
    begin_epoch(loop, 0)
    draw_epoch(loop, 0, 0)
    train_step(loop)
    places = {name: t.data_ptr() for name, t in (loop.state | loop.totals).items()}
    with NoWaiting():
        train_step(loop)
    assert places == {name: t.data_ptr() for name, t in (loop.state | loop.totals).items()}
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoWaiting():
        loop.totals["loss"].sum().item()


THREE = [
    Run(method=methods.nft(), sparsity=0.6, seed=0),
    Run(method=methods.nft_es(on="test"), sparsity=0.6, seed=0),
    Run(method=methods.ceag(tolerance=0.0, dual_lr=0.5, k=5), sparsity=0.8, seed=1),
]


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, Data]:
    split = images()
    model = trained(network(), split)
    return model, data_for(model, split, train=split, test=images(80, seed=5))


@pytest.fixture(scope="module")
def precise() -> tuple[nn.Module, Data]:
    model, split = precisely()
    return model, data_for(model, split, train=split, test=images(80, seed=5, dtype=torch.float64))


@pytest.fixture(scope="module")
def fitted(problem: tuple[nn.Module, Data]) -> list[Fitted]:
    return fit(*problem, runs=THREE, recipe=recipe(epochs=7))


def test_every_run_ends_at_its_own_sparsity(fitted: list[Fitted]) -> None:
    for one in fitted:
        zeros = [one.model.get_parameter(name) == 0 for name in ("3.weight", "8.weight")]
        for zero in zeros:
            least = -(-round(one.run.sparsity * 1000) * zero.numel() // 1000)
            assert int(zero.sum()) == least
        assert one.history[0]["sparsity"] == 0
        assert one.history[1]["sparsity"] == one.history[-1]["sparsity"] == float(one.masks.sparsity[0])
        assert torch.equal(one.masks["3.weight"], one.model.get_parameter("3.weight") != 0)


def test_history_agrees_with_the_models_it_ends_with(fitted: list[Fitted], problem: Any) -> None:
    model, data = problem
    for one in fitted:
        row = one.history[one.kept_epoch]
        for name, split in data.evaluate.items():
            answers = predict(one.model, split)
            assert torch.equal(answers.predictions, one.predictions[name].predictions)
            torch.testing.assert_close(answers.losses, one.predictions[name].losses, rtol=1e-4, atol=1e-5)
            dense = predict(model, split)
            told = row["splits"][name]
            assert told["accuracy"] == pytest.approx(answers.correct.double().mean().item())
            gap = {
                g: (dense.correct.double() - answers.correct.double())[split.groups == g].mean().item()
                for g in range(len(NAMES))
            }
            overall = (dense.correct.double() - answers.correct.double()).mean().item()
            assert told["max_excess_gap"] == pytest.approx(max(gap.values()) - overall)
            assert told["pairwise_disparity"] == pytest.approx(max(gap.values()) - min(gap.values()))
            for g, accuracy in enumerate(told["group_accuracy"]):
                assert accuracy == pytest.approx(answers.correct[split.groups == g].double().mean().item())


def test_constraints_sleep_until_pruning_has_ended(fitted: list[Fitted]) -> None:
    naive, _, ceag = fitted
    assert ceag.multipliers.shape == (7, 3)
    assert ceag.multipliers[:2].abs().sum() == 0
    assert ceag.multipliers[-1].sum() > 0
    assert [row["multiplier_sum"] for row in ceag.history[:2]] == [None, None]
    assert ceag.history[-1]["multiplier_sum"] == pytest.approx(float(ceag.multipliers[-1].sum()))
    assert ceag.history[-1]["max_excess_gap"] is not None
    assert all(row["multiplier_sum"] is None for row in naive.history)


def test_a_bounded_loss_is_not_told_as_an_accuracy_gap(problem: tuple[nn.Module, Data]) -> None:
    plain = replace(methods.ceag(tolerance=0.1, k=5), against_dense=False)  # an accuracy, and no gap
    bounds = [methods.el_rb(k=5), methods.celg(tolerance=0.1, k=5), methods.group_dro(), plain]
    runs = [Run(method=m, sparsity=0.6, seed=0) for m in (*bounds, methods.ceag(tolerance=0.0, k=5))]
    *losses, ceag = fit(*problem, runs=runs, recipe=recipe())
    for one in losses:
        assert [row["max_excess_gap"] for row in one.history] == [None] * 5
        assert one.history[-1]["multiplier_sum"] is not None
    assert ceag.history[-1]["max_excess_gap"] is not None


class Fills:
    """A hook that stops the training as a device does whose memory is full."""

    def start(self, *_: Any) -> None: ...
    def finish(self) -> None: ...
    def epoch(self, told: list[dict[str, Any]]) -> None:
        if told[0]["epoch"] == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")


def test_the_last_evaluations_have_the_memory_of_the_steps(
    problem: tuple[nn.Module, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(Replay, "forget", lambda _: events.append("forget"))

    class Told(Answers):
        def __call__(self) -> tuple[Tensor, Tensor]:
            held = any(p.grad is not None for p in self.network.parameters())
            events.append(f"{'with' if held else 'without'} gradients")
            return super().__call__()

    monkeypatch.setattr(epochs, "Answers", Told)
    fit(*problem, runs=[Run(method=methods.nft(), sparsity=0.6)], recipe=recipe(only_at_end=("train",)))
    assert events == ["with gradients"] * 5 + ["forget"] + ["without gradients"] * 2


def test_too_many_runs_for_the_memory_are_told_what_to_do(
    problem: tuple[nn.Module, Data], tmp_path: Path
) -> None:
    runs = [Run(method=methods.nft(), sparsity=0.6, seed=seed) for seed in range(4)]
    with pytest.raises(NoRoom) as caught:
        fit(*problem, runs=runs, recipe=recipe(), hooks=[Fills()])
    assert str(caught.value) == (
        "The memory of cpu is too small for 4 runs of these samples: train fewer at once "
        "(recipe.fleet_size = 2), or take a smaller recipe.batch_size."
    )
    with pytest.raises(NoRoom) as caught:
        fit(*problem, runs=runs[:1], recipe=recipe(), hooks=[Fills()], folder=tmp_path)
    said = str(caught.value)
    assert "for 1 run of these samples: take a smaller recipe.batch_size, in another folder.\n" in said
    assert f"checkpoint is {tmp_path / 'checkpoint.safetensors'}: with another recipe.evaluate_batch" in said
    smaller = recipe(evaluate_batch=7)
    assert len(fit(*problem, runs=runs[:1], recipe=smaller, folder=tmp_path)[0].history) == 5


def test_early_stopping_keeps_the_first_best_iterate_after_pruning(
    fitted: list[Fitted], problem: Any
) -> None:
    naive, stopped, _ = fitted
    reached = [row["splits"]["test"]["accuracy"] for row in naive.history]
    assert reached == [row["splits"]["test"]["accuracy"] for row in stopped.history]
    assert stopped.kept_epoch == 2 + reached[2:].index(max(reached[2:]))
    assert stopped.kept_epoch < 6, "the case must tell the best from the last"
    assert naive.kept_epoch == 6
    right = predict(stopped.model, problem[1].evaluate["test"]).correct.double().mean().item()
    assert right == pytest.approx(max(reached[2:]))
    assert not same_models(naive, stopped)
    for split in ("train", "test"):
        assert torch.equal(stopped.last[split].predictions, naive.predictions[split].predictions)
        assert torch.equal(naive.last[split].predictions, naive.predictions[split].predictions)
    assert not torch.equal(stopped.last["test"].losses, stopped.predictions["test"].losses)


def test_without_groups_there_is_nothing_to_bound_and_training_goes_on(problem: Any) -> None:
    model, data = problem
    nowhere = {
        name: replace(split, groups=torch.full_like(split.groups, -1))
        for name, split in data.evaluate.items()
    }
    none = torch.zeros(0, dtype=torch.float64)
    whole = replace(data.reference, names=(), samples=none, correct=none, loss_sum=none)
    alone = replace(data, train=nowhere["train"], evaluate=nowhere, reference=whole)
    (one,) = fit(model, alone, runs=[Run(method=methods.nft(), sparsity=0.5)], recipe=recipe(epochs=2))
    assert one.history[-1]["max_excess_gap"] is None


def test_a_count_of_batches_is_that_of_the_training_whatever_is_kept(fitted: list[Fitted]) -> None:
    counts = {int(one.model.get_buffer("1.num_batches_tracked")) for one in fitted}
    assert len(counts) == 1


def test_a_run_alone_is_the_run_in_the_fleet(precise: tuple[nn.Module, Data]) -> None:
    for one in fit(*precise, runs=THREE, recipe=recipe(epochs=7)):
        (alone,) = fit(*precise, runs=[one.run], recipe=recipe(epochs=7))
        torch.testing.assert_close(weights(alone.model), weights(one.model), rtol=0, atol=1e-9)
        assert alone.kept_epoch == one.kept_epoch


def test_neither_the_model_nor_the_random_numbers_of_the_caller_change(problem: Any) -> None:
    model, data = problem
    before, mode = copy.deepcopy(model.state_dict()), model.training
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    runs = [Run(method=methods.nft(), sparsity=0.5, seed=s) for s in (0, 1)]
    fit(model, data, runs=runs, recipe=recipe(epochs=2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert model.training == mode


def test_a_model_that_cannot_be_widened_trains_one_run_at_a_time(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    split = images()
    model = trained(Branching(), split)
    data = data_for(model, split, train=split)
    runs = [Run(method=methods.nft(), sparsity=0.5, seed=s) for s in (0, 1)]
    with caplog.at_level(logging.INFO, logger="evenprune"):
        both = fit(model, data, runs=runs, recipe=recipe(epochs=3), folder=tmp_path)
    assert "one run at a time" in caplog.text
    assert sorted(p.name for p in tmp_path.glob("fleet-*")) == ["fleet-000", "fleet-001"]
    assert all((tmp_path / f"fleet-00{i}" / "checkpoint.safetensors").exists() for i in (0, 1))
    (second,) = fit(model, data, runs=runs[1:], recipe=recipe(epochs=3))
    assert same_models(both[1], second)
    assert not same_models(both[0], both[1])


class ByNorm(Optimizer):
    """Steps as long as the whole weight, as LARS and LAMB take them: not element by element."""

    def __init__(self, groups: Any, lr: float = 0.01) -> None:
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * (group["lr"] * p.norm() / p.grad.norm().clamp_min(1e-12)))


def matrices_only(groups: Any) -> Optimizer:
    """Cannot be tried on two small runs at once, but takes the real network."""
    if all(p.numel() < 20 for group in groups for p in group["params"]):
        raise ValueError("too small for this optimizer")
    return SGD(groups, lr=0.01)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(Adafactor, lr=0.01), "would mix"),
        (ByNorm, "would mix"),
        (partial(ByNorm, lr=1e-9), "would mix"),
        (matrices_only, "ValueError: too small"),
    ],
)
def test_optimizers_that_mix_the_runs_of_a_fleet_are_found_out(make: Any, said: str) -> None:
    assert said in why_steps_mix(recipe(optimizer=make), torch.device("cpu"))


ELEMENT_WISE = {
    "SGD": partial(SGD, lr=0.1, momentum=0.9, nesterov=True), "plain": lambda groups: SGD(groups, lr=1e-6),
    "Adam": partial(torch.optim.Adam, lr=0.1, amsgrad=True), "AdamW": partial(AdamW, lr=1e-12),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.1, centered=True), "Adagrad": torch.optim.Adagrad,
    "second group": lambda groups: SGD([groups[0], {**groups[1], "lr": 0.1}], lr=0.2),
    "NAdam": torch.optim.NAdam, "RAdam": torch.optim.RAdam, "Adamax": torch.optim.Adamax,
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENT_WISE)
def test_element_wise_optimizers_train_all_runs_together(name: str) -> None:
    told = recipe(optimizer=ELEMENT_WISE[name], weight_decay=0.01)
    assert why_steps_mix(told, torch.device("cpu")) == ""


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_lbfgs_is_refused_in_plain_words(problem: Any, seeds: tuple[int, ...]) -> None:
    model, data = problem
    runs = [Run(method=methods.nft(), sparsity=0.5, seed=s) for s in seeds]
    with pytest.raises(InputProblems, match="LBFGS evaluates the loss several times a step"):
        fit(model, data, runs=runs, recipe=recipe(optimizer=torch.optim.LBFGS))


def test_multipliers_have_the_form_of_the_own_method_whoever_trains_beside(
    precise: Any, tmp_path: Any
) -> None:
    model, data = precise
    two_sided = methods.two_sided(tolerance=0.0, dual_lr=0.3, k=5)
    kinds = [methods.nft(), *ALL_KINDS[1:4:2], two_sided, ALL_KINDS[5]]
    kinds.append(methods.all_pairs(tolerance=0.0, dual_lr=0.3, k=5))
    runs = [Run(method=m, sparsity=0.5, seed=1) for m in kinds]
    together = fit(model, data, runs=runs, recipe=recipe(epochs=4), folder=tmp_path)
    assert [one.multipliers.shape[1] for one in together] == [0, 3, 3, 6, 1, 9]
    for i, one in enumerate(together):
        (alone,) = fit(model, data, runs=[one.run], recipe=recipe(epochs=4))
        torch.testing.assert_close(one.multipliers, alone.multipliers, rtol=0, atol=1e-9)
        (place,) = tmp_path.glob(f"{i:03d}-*/metrics.jsonl")
        written = [json.loads(line)["multipliers"] for line in place.read_text().splitlines()]
        assert written == [row["multipliers"] for row in one.history]
        assert torch.equal(one.multipliers.new_tensor(written).view_as(one.multipliers), one.multipliers)
    assert all(one.multipliers.abs().sum() > 0 for one in together[1:])


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": partial(Adafactor, lr=0.01)},
        {"optimizer": ByNorm},
        {"scheduler": lambda optimizer, _: ReduceLROnPlateau(optimizer, patience=0)},
    ],
)
def test_what_would_mix_the_runs_trains_them_one_at_a_time(changes: Any, problem: Any) -> None:
    model, data = problem
    runs = [Run(method=methods.nft(), sparsity=0.5, seed=s) for s in (0, 1)]
    both = fit(model, data, runs=runs, recipe=recipe(epochs=3, **changes))
    (second,) = fit(model, data, runs=runs[1:], recipe=recipe(epochs=3, **changes))
    assert same_models(both[1], second)


def test_small_fleets_give_what_a_large_one_gives(precise: Any) -> None:
    model, data = precise
    runs = [Run(method=methods.nft(), sparsity=0.5, seed=s) for s in range(3)]
    large = fit(model, data, runs=runs, recipe=recipe(epochs=2))
    small = fit(model, data, runs=runs, recipe=recipe(epochs=2, fleet_size=2))
    for a, b in zip(large, small, strict=True):
        torch.testing.assert_close(weights(a.model), weights(b.model), rtol=0, atol=1e-9)


def test_schedulers_step_by_epoch_or_by_batch(problem: Any) -> None:
    model, data = problem
    run = [Run(method=methods.nft(), sparsity=0.5)]
    (stepped,) = fit(model, data, runs=run, recipe=recipe(epochs=10))
    rates = [row["learning_rate"] for row in stepped.history]
    assert rates == pytest.approx([0.05] * 6 + [0.005] * 2 + [0.0005] + [0.00005])
    cycle = recipe(
        scheduler=lambda optimizer, total: OneCycleLR(optimizer, 0.1, total_steps=total),
        scheduler_steps="batch",
        optimizer=partial(AdamW, lr=0.01),
    )
    (cycled,) = fit(model, data, runs=run, recipe=cycle)
    assert cycled.history[-1]["learning_rate"] < 1e-3 < cycled.history[1]["learning_rate"]


def test_weights_are_decayed_and_biases_and_norms_are_not() -> None:
    model = network()
    wide = fleet.widen(model, 3, sample_input=torch.zeros(2, 1, 6, 6))
    groups = parameter_groups(wide, recipe(weight_decay=0.1))
    decayed = {id(p) for p in groups[0]["params"]}
    names = {name for name, p in wide.named_parameters() if id(p) in decayed}
    assert names == {"0.weight", "3.weight", "8.weight", "10.weight"}
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    (everything,) = parameter_groups(wide, recipe(weight_decay=0.1, decay_everything=True))
    assert len(everything["params"]) == len(list(wide.parameters()))
    some, rest = parameter_groups(wide, recipe(weight_decay=0.1, decay_only=("10",)))
    assert {name for name, p in wide.named_parameters() if id(p) in {id(q) for q in some["params"]}} == {
        "10.weight",
        "10.bias",
    }
    assert rest["weight_decay"] == 0.0


def test_a_decayed_layer_that_is_not_there_is_refused(problem: Any) -> None:
    with pytest.raises(InputProblems, match="decay_only has 'fc', which no parameter matches"):
        fit(
            *problem,
            runs=[Run(method=methods.nft(), sparsity=0.5)],
            recipe=recipe(epochs=2, decay_only=("fc",)),
        )


def test_frozen_parameters_stay(problem: Any) -> None:
    model, data = copy.deepcopy(problem[0]), problem[1]
    model[0].requires_grad_(False)
    runs = [Run(method=methods.nft(), sparsity=0.5, seed=s) for s in (0, 1)]
    for one in fit(model, data, runs=runs, recipe=recipe(epochs=2)):
        assert torch.equal(one.model.get_parameter("0.weight"), model[0].weight)


def test_each_run_has_its_own_gradient_clipped() -> None:
    torch.manual_seed(0)
    wide = [nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(3))]
    sizes = torch.tensor([0.01, 1.0, 50.0])
    wide[0].grad = torch.randn(6, 2) * sizes.repeat_interleave(2).unsqueeze(1)
    wide[1].grad = torch.randn(3) * sizes
    single = [
        [nn.Parameter(wide[0].grad[2 * r : 2 * r + 2].clone()), nn.Parameter(wide[1].grad[r].clone())]
        for r in range(3)
    ]
    clip_(wide, runs=3, norm=0.5)
    for r, parameters in enumerate(single):
        for p in parameters:
            p.grad = p.detach().clone()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        torch.testing.assert_close(wide[0].grad[2 * r : 2 * r + 2], parameters[0].grad)
        torch.testing.assert_close(wide[1].grad[r], parameters[1].grad)


@pytest.mark.parametrize("changes", [{"channels_last": True}, {"precision": "bfloat16"}])
def test_other_formats_train_to_about_the_same(changes: Any, problem: Any) -> None:
    model, data = problem
    runs = [Run(method=methods.nft(), sparsity=0.5, seed=s) for s in (0, 1)]
    plain = fit(model, data, runs=runs, recipe=recipe())
    other = fit(model, data, runs=runs, recipe=recipe(**changes))
    error = 1e-3 if "channels_last" in changes else 0.1
    for a, b in zip(plain, other, strict=True):
        assert next(b.model.parameters()).dtype == torch.float32
        assert b.history[-1]["loss"] == pytest.approx(a.history[-1]["loss"], abs=error)
        assert not torch.equal(weights(a.model), weights(b.model)) or "channels_last" in changes


def test_bytes_are_normalised_on_the_device() -> None:
    raw = torch.randint(0, 256, (40, 3, 4, 4), dtype=torch.uint8)
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 1.0, 2.0])
    split = Split(raw, torch.zeros(40, dtype=torch.int64), torch.zeros(40, dtype=torch.int64), mean, std)
    index = torch.tensor([3, 1, 38])
    expected = torch.stack([(raw[index, c].float() / 255 - mean[c]) / std[c] for c in range(3)], 1)
    torch.testing.assert_close(split.at(index), expected)


def test_crops_and_flips_are_those_of_a_loop() -> None:
    inputs = torch.randn(50, 2, 5, 6)
    uniform = torch.rand(50, 3)
    changed = Both(Flip(), Crop(2))(inputs, uniform)
    for image, (side, down, right), result in zip(inputs, uniform.tolist(), changed, strict=True):
        image = image.flip(-1) if side < 0.5 else image
        padded = torch.zeros(2, 9, 10)
        padded[:, 2:7, 2:8] = image
        top, left = int(down * 5), int(right * 5)
        assert torch.equal(result, padded[:, top : top + 5, left : left + 6])


def test_orders_depend_on_seed_and_epoch_alone() -> None:
    orders = {(s, e): tuple(sample_order(s, e, 50).tolist()) for s in range(4) for e in range(4)}
    assert len(set(orders.values())) == 16
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert orders[2, 3] == tuple(sample_order(2, 3, 50).tolist())


class Recorder:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def start(self, runs: Any, epochs: int, past: Any) -> None:
        self.told.append(("start", len(runs), epochs, len(past)))

    def epoch(self, rows: Any) -> None:
        self.told.append([row["epoch"] for row in rows])

    def finish(self) -> None:
        self.told.append("finish")


def test_evaluation_can_be_rarer_and_the_last_epoch_is_always_evaluated(problem: Any) -> None:
    model, data = problem
    hook = Recorder()
    run = [Run(method=methods.nft(), sparsity=0.5)]
    (one,) = fit(model, data, runs=run, recipe=recipe(evaluate_every=3), hooks=[hook])
    assert [bool(row["splits"]) for row in one.history] == [False, False, True, False, True]
    assert hook.told == [("start", 1, 5, 0), [0], [1], [2], [3], [4], "finish"]


def test_all_problems_are_told_at_once(problem: Any) -> None:
    model, data = problem
    labels, groups = data.train.labels.clone(), data.train.groups.clone()
    labels[5], groups[7], groups[8] = 4, 3, -2
    wrong = Data(
        train=Split(data.train.inputs, labels, groups),
        evaluate={"test": Split(data.train.inputs[:3], labels[:2], groups[:2])},
        reference=data.reference,
    )
    runs = [Run(method=methods.nft_es(on="val"), sparsity=0.5), Run(method=methods.nft(), sparsity=1.0)]
    with pytest.raises(InputProblems) as caught:
        fit(model, wrong, runs=runs, recipe=recipe(pruning_epochs=9, clip_norm=0.0))
    said = str(caught.value)
    for part in (
        "pruning_epochs is 9, more than the 5",
        "clip_norm is 0",
        'split "val", which is not evaluated (evaluated: "test")',
        "run 1 (method nft, sparsity 1, seed 0): the sparsity must be in [0, 1)",
        "1 labels outside 0 … 3 (the model has 4 classes); the first is 4 at sample 5",
        "2 group ids outside -1 … 2",
        "3 inputs, 2 labels and 2 groups",
    ):
        assert part in said
    assert len(caught.value.problems) == 7


def test_too_few_samples_for_a_batch_or_a_ring(problem: Any) -> None:
    model, data = problem
    with pytest.raises(InputProblems, match="120 training samples are fewer than one batch of 128"):
        fit(model, data, runs=[Run(method=methods.nft(), sparsity=0.5)], recipe=recipe(batch_size=128))
    smallest = int(data.reference.samples.min())
    late = [Run(method=methods.ceag(tolerance=0.1, k=smallest + 1), sparsity=0.5)]
    with pytest.warns(
        UserWarning, match=rf'"unknown age" has {smallest} training samples; a ring of {smallest + 1}'
    ):
        fit(model, data, runs=late, recipe=recipe(epochs=4))
    never = [Run(method=methods.ceag(tolerance=0.1, k=3 * smallest + 1), sparsity=0.5)]
    with (
        pytest.warns(UserWarning, match="fills only"),
        pytest.raises(InputProblems, match="cannot fill in the 3 epochs in which its"),
    ):
        fit(model, data, runs=never, recipe=recipe())


@pytest.mark.parametrize("early", [True, False])
def test_a_ring_has_the_epochs_in_which_its_own_constraints_act(problem: Any, early: bool) -> None:
    model, data = problem
    k = 3 * int(data.reference.samples.min()) + 1  # more than the three epochs after pruning bring
    method = methods.ceag(tolerance=0.1, k=k, while_pruning=early)
    runs = [Run(method=one, sparsity=0.5) for one in (methods.nft(), method)]
    with (
        pytest.warns(UserWarning, match="fills only"),
        nullcontext() if early else pytest.raises(InputProblems, match=r"a ring of .* in the 3 epochs"),
    ):
        fit(model, data, runs=runs, recipe=recipe())
