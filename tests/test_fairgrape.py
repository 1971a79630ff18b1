"""FairGRAPE: the compiled selection against its plain twin, its scores against slow loops, and the errors."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks import fairgrape as fairgrape_benchmark
from benchmarks import fairgrape_procedure
from evenprune import fairgrape, fleet, group_gradients, importance, methods
from evenprune.fairgrape import (
    exact_scores,
    fast_scores,
    prune_in_steps_,
    scores,
    select,
    step_sparsity,
)
from evenprune.importance import MiniBatches, group_importance
from evenprune.masks import Masks, SparsityNotReachable, pruned_count
from evenprune.models import mlp, small_cnn
from evenprune.predict import evaluating
from evenprune.recipe import Recipe, Run
from evenprune.reference import DenseReference
from evenprune.tally import InputProblems
from evenprune.training import fit
from tests.training_cases import NAMES, data_for, images, network, recipe, trained
from tests.twins import fairgrape as twin

GROUPS = 3
numbers = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0, 3.0]),  # ties
    st.sampled_from([0.1, 0.2, 0.3, 1 / 3]),  # sums that depend on their order
    st.floats(0, 1e9),
    st.floats(0, 1e-300),  # down to the smallest
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[list[float]], list[bool], int]:
    size, groups = draw(st.integers(1, 40)), draw(st.integers(1, 9))
    rows = st.lists(numbers, min_size=size, max_size=size)
    importance = draw(st.lists(rows, min_size=groups, max_size=groups))
    alive = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return importance, alive, draw(st.integers(0, sum(alive)))


@st.composite
def even_problems(draw: st.DrawFn) -> tuple[list[list[float]], list[bool], int]:
    """Groups that hold the same in another order: all is equal but for the last bit of the sums."""
    row = draw(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.7, 1 / 3, 1e-3]), min_size=4, max_size=30))
    importance = [draw(st.permutations(row)) for _ in range(draw(st.integers(2, 6)))]
    return importance, [True] * len(row), draw(st.integers(1, len(row)))


def chosen(importance: list[list[float]], alive: list[bool], keep: int) -> list[bool]:
    return select(torch.tensor(importance, dtype=torch.float64), torch.tensor(alive), keep).tolist()


@given(problems() | even_problems())
@settings(max_examples=300)
def test_the_compiled_selection_is_the_plain_one(problem: tuple[list[list[float]], list[bool], int]) -> None:
    assert chosen(*problem) == twin.kept(*problem)


@given(problems())
@settings(max_examples=100)
def test_a_larger_budget_keeps_what_a_smaller_one_keeps(
    problem: tuple[list[list[float]], list[bool], int],
) -> None:
    importance, alive, _ = problem
    before = [False] * len(alive)
    for keep in range(sum(alive) + 1):
        now = chosen(importance, alive, keep)
        assert sum(now) == keep
        assert all(n or not b for n, b in zip(now, before, strict=True))
        before = now
    assert before == alive


def lognormal(groups: int, size: int, *, spread: float = 1.0, seed: int = 0) -> np.ndarray[Any, Any]:
    """Importances as they look: many orders of magnitude, much of it common to all groups."""
    rng = np.random.default_rng(seed)
    return rng.lognormal(-10, 2, size) * rng.lognormal(0, spread, (groups, size))


@pytest.mark.parametrize("groups", [1, 2, 5, 30])
def test_the_same_for_thousands_of_weights(groups: int) -> None:
    importance = lognormal(groups, 6_000)
    importance[:, ::3] = np.round(importance[:, ::3], 4)  # zeros and ties
    alive = [i % 7 != 0 for i in range(6_000)]
    for keep in (1, 700, 5_000):
        expected = twin.kept(importance.tolist(), alive, keep)
        assert chosen(importance.tolist(), alive, keep) == expected


@pytest.mark.parametrize("groups", [2, 3, 7])
def test_the_same_where_rounding_decides(groups: int) -> None:
    """Fused or reordered sums choose other weights in some of these."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        row = rng.choice([0.1, 0.2, 0.3, 0.7, 1 / 3], 300)
        importance = [rng.permutation(row).tolist() for _ in range(groups)]
        for keep in (30, 100):
            assert chosen(importance, [True] * 300, keep) == twin.kept(importance, [True] * 300, keep)


def test_with_one_group_the_best_stay() -> None:
    importance = lognormal(1, 500)
    kept = select(torch.from_numpy(importance), torch.ones(500, dtype=torch.bool), 50)
    assert set(kept.nonzero().flatten().tolist()) == set(np.argsort(-importance[0])[:50].tolist())


def test_every_group_holds_its_share_of_what_is_kept() -> None:
    importance = lognormal(5, 20_000) * np.array([[1.0], [1.0], [0.3], [3.0], [0.1]])
    target = importance.sum(1) / importance.sum()
    for keep in (1_500, 3_000, 10_000):
        kept = select(torch.from_numpy(importance), torch.ones(20_000, dtype=torch.bool), keep).numpy()
        held = importance[:, kept].sum(1) / importance[:, kept].sum()
        assert np.abs(held - target).max() < 1e-4
    magnitude = np.argsort(-importance.sum(0))[:1_500]  # what the largest sums would leave
    assert np.abs(importance[:, magnitude].sum(1) / importance[:, magnitude].sum() - target).max() > 1e-3


def test_ties_go_to_the_first_group_and_the_first_weight() -> None:
    one = [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    assert chosen(one, [True] * 4, 1) == [True, False, False, False]
    assert chosen(one, [True] * 4, 2) == [True, False, True, False]
    assert chosen([[0.0] * 4] * 2, [True, False, True, True], 2) == [True, False, True, False]


def test_the_neediest_is_served_and_all_are_credited() -> None:
    importance = [[6.0, 5.0, 1.0, 0.0], [1.0, 1.0, 2.0, 2.5]]
    # Targets 12/18.5 and 6.5/18.5. Group 0 begins with weight 0 and then holds 6/7; group 1 takes weight 3
    # and holds 3.5/9.5, above its target; so group 0 is next, with weight 1.
    assert chosen(importance, [True] * 4, 1) == [True, False, False, False]
    assert chosen(importance, [True] * 4, 2) == [True, False, False, True]
    assert chosen(importance, [True] * 4, 3) == [True, True, False, True]


def test_the_selection_does_not_depend_on_the_scale_or_on_float32_storage() -> None:
    single = torch.from_numpy(lognormal(4, 3_000)).float()
    alive = torch.ones(3_000, dtype=torch.bool)
    assert torch.equal(select(single, alive, 400), select(single.double(), alive, 400))
    assert torch.equal(select(single, alive, 400), select(single.double() * 2.0**-60, alive, 400))


def test_what_cannot_be_selected_is_refused() -> None:
    alive = torch.tensor([True, False, True, True])
    with pytest.raises(ValueError, match=r"keep = 4 of 3 living weights: give 0 … 3"):
        select(torch.ones(2, 4), alive, 4)
    for shape in ((2, 5), (4,)):
        with pytest.raises(ValueError, match=r"alive \[4\]: give \[groups, weights\] and \[weights\]"):
            select(torch.ones(shape), alive, 2)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must not be negative"):
            select(torch.tensor([[1.0, 1.0, wrong, 1.0]]), alive, 2)


def test_without_numba_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ImportError, match=r"needs numba: pip install 'evenprune\[fairgrape\]'"):
        fairgrape._compiled_greedy.__wrapped__()


class Untold:
    """A hook to which nothing may happen."""

    def start(self, *_: Any) -> None:
        raise AssertionError("the training began")

    epoch = finish = start


def test_missing_numba_is_told_before_anything_trains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = model_of()
    data, settings = data_for(model, images(dtype=torch.float64)), recipe(epochs=2, pruning_epochs=2)
    kinds = (methods.nft(), methods.fairgrape())
    how: Any = {"runs": [Run(method=kind, sparsity=0.5) for kind in kinds], "folder": tmp_path}
    how["recipe"] = replace(settings, fleet_size=1)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "numba", None)
        without.setattr(fairgrape, "_compiled_greedy", fairgrape._compiled_greedy.__wrapped__)
        with pytest.raises(ImportError, match="needs numba"):
            fit(model, data, hooks=[Untold()], **how)
        with pytest.raises(ImportError, match="needs numba"):
            prune_in_steps_(model, Masks.of(model), [], groups=GROUPS, sparsity=0.5, steps=1)
    fit(model, data, **how)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(fairgrape, "_compiled_greedy", fairgrape._compiled_greedy.__wrapped__)
    assert len(fit(model, data, **how)) == 2  # what has been trained is read without


# Scores of real networks.


def batches_of() -> MiniBatches:
    return MiniBatches(images(60, dtype=torch.float64), size=16)


def model_of() -> nn.Module:
    return trained(network(dtype=torch.float64), images(dtype=torch.float64), epochs=2)


def measured(model: nn.Module, batches: Any, **changes: Any) -> tuple[Masks, dict[str, Tensor]]:
    masks = Masks.of(model, runs=getattr(model, "runs", 1))
    return masks, group_importance(model, masks, batches, **({"groups": GROUPS} | changes))


def test_importance_is_that_of_a_loop_over_groups_and_samples() -> None:
    model, batches = model_of(), batches_of()
    masks, found = measured(model, batches)
    expected = twin.importance(copy.deepcopy(model), list(found), list(batches), GROUPS)
    assert list(found) == [layer.name for layer in masks.layers] == ["3.weight", "8.weight"]
    for name, values in found.items():
        assert values.shape == (1, GROUPS, *model.get_parameter(name).shape)
        torch.testing.assert_close(values[0], expected[name], rtol=1e-9, atol=1e-30)


def test_importance_in_float32_is_nearly_that_in_float64() -> None:
    model = model_of()
    _, double = measured(model, batches_of())
    halves = [(inputs.float(), labels, ids) for inputs, labels, ids in batches_of()]
    _, single = measured(copy.deepcopy(model).float(), halves)
    for name, values in single.items():
        assert values.dtype == torch.float64
        largest = double[name].amax()
        assert float((values - double[name]).abs().amax() / largest) < 1e-4


def test_importance_of_a_fleet_is_that_of_its_runs() -> None:
    models = [model_of(), network(dtype=torch.float64), model_of()]
    Masks.of(models[2]).prune_(models[2], 0.5)
    wide = fleet.widen(models[0], 3, sample_input=images(dtype=torch.float64).inputs[:4])
    fleet.load_(wide, models)
    _, together = measured(wide, batches_of())
    for run, model in enumerate(models):
        for name, alone in measured(model, batches_of())[1].items():
            torch.testing.assert_close(together[name][run], alone[0], rtol=1e-9, atol=1e-30)


def together(model: nn.Module, batches: Any, *, groups: int = GROUPS) -> dict[str, Tensor]:
    """As on a GPU: whole batches."""
    network = model if isinstance(model, fleet.Fleet) else fleet.single(model)
    masks = Masks.of(model, runs=network.runs)
    found = {
        layer.name: torch.zeros(network.runs, groups, *layer.shape, dtype=torch.float64)
        for layer in masks.layers
    }
    with evaluating(network):
        wide = group_gradients.network_of(network, list(found), next(iter(batches))[0][:1])
        assert wide is not None
        for batch in batches:
            importance.all_at_once(found, wide, batch, "float32")
    return found


@pytest.mark.parametrize("most", [2**27, 3000, 1])  # numbers of a tensor: all samples, some, one by one
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_whole_batches_have_the_importance_of_one_group_after_another(
    most: int, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_gradients, "MOST_NUMBERS", most)
    models = [model_of(), network(dtype=torch.float64), model_of()]
    Masks.of(models[2]).prune_(models[2], 0.5)
    wide = fleet.widen(models[0], 3, sample_input=images(dtype=torch.float64).inputs[:4])
    fleet.load_(wide, models)
    wide.to(memory_format=layout)
    before = copy.deepcopy(wide.state_dict())
    inputs, labels, ids = next(iter(batches_of()))
    sparse = torch.where(ids == 1, -1, ids)  # an absent group, and samples without one
    broken = torch.where((sparse < 0).view(-1, 1, 1, 1), torch.nan, inputs)  # that nothing may depend on
    nobody = (inputs, labels, torch.full_like(ids, -1))
    for batches in (list(batches_of()), [(inputs, labels, sparse)], [(broken, labels, sparse)], [nobody]):
        _, expected = measured(wide, batches)
        for name, values in together(wide, batches).items():
            torch.testing.assert_close(values, expected[name], rtol=1e-9, atol=1e-30)
    assert all(torch.equal(before[name], value) for name, value in wide.state_dict().items())
    alone = measured(models[0], batches_of())[1]
    for name, values in together(models[0], batches_of()).items():
        torch.testing.assert_close(values, alone[name], rtol=1e-9, atol=1e-30)


class Mixed(nn.Module):
    """A convolution of some kind, a layer that is called twice, and outputs that are changed in place."""

    def __init__(self, space: int, **how: Any) -> None:
        super().__init__()
        conv, pool = ((nn.Conv1d, nn.AdaptiveAvgPool1d), (nn.Conv2d, nn.AdaptiveAvgPool2d))[space - 1]
        self.first = conv(3, 4, 3, padding=1)
        self.read = conv(4, 6, **how)
        self.pool = pool(1)
        self.twice = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.read(torch.relu_(self.first(x)))
        x = self.pool(torch.relu_(x)).flatten(1)
        x = self.twice(torch.tanh(self.twice(x)))
        logits: Tensor = self.last(x)
        return logits


HOW: list[dict[str, Any]] = [
    {"kernel_size": 1},
    {"kernel_size": 3, "padding": 1, "bias": False},
    {"kernel_size": 3, "stride": 2, "padding": 2, "dilation": 2, "groups": 2},
    {"kernel_size": 2, "padding": "same", "padding_mode": "circular"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "replicate", "stride": 3},
]


def batch_of(*shape: int) -> Any:
    inputs = torch.randn(7, *shape, dtype=torch.float64)
    return inputs, torch.tensor([0, 1, 2, 0, 1, 2, 0]), torch.tensor([0, 2, 1, 2, 2, -1, 0])


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("space", [1, 2])
def test_every_kind_of_convolution_has_the_gradients_of_its_groups(space: int, how: dict[str, Any]) -> None:
    torch.manual_seed(space)
    model, batch = Mixed(space, **how).double(), batch_of(3, *[5] * space)
    found = together(model, [batch])
    assert list(found) == ["read.weight", "twice.weight"]
    expected = twin.importance(copy.deepcopy(model), list(found), [batch], GROUPS)
    for name, values in found.items():
        torch.testing.assert_close(values[0], expected[name], rtol=1e-9, atol=1e-30)


def test_linear_layers_may_see_many_places_of_a_sample() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(30, 3)
    ).double()
    batch = batch_of(2, 3, 4)
    found = together(model, [batch])
    expected = twin.importance(copy.deepcopy(model), ["2.weight"], [batch], GROUPS)
    torch.testing.assert_close(found["2.weight"][0], expected["2.weight"], rtol=1e-9, atol=1e-30)


def test_networks_that_are_not_understood_go_group_by_group() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.within, self.scale = model_of(), nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.scale * self.within(x)
            return logits

    sample = next(iter(batches_of()))[0][:1]
    assert group_gradients.network_of(fleet.single(Odd()), ["within.3.weight"], sample) is None
    plain = fleet.single(model_of())
    norm = next(name for name, module in plain.named_modules() if isinstance(module, nn.BatchNorm2d))
    for name in (f"{norm}.weight", "3.bias"):
        assert group_gradients.network_of(plain, ["3.weight", name], sample) is None
    assert group_gradients.network_of(plain, ["3.weight"], sample) is not None
    wide = fleet.widen(model_of(), 2, sample_input=sample)
    assert group_gradients.network_of(wide, ["3.weight"], sample) is wide
    seeing = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)).double()
    assert group_gradients.network_of(fleet.single(seeing), ["0.weight"], sample) is None


def test_measuring_changes_nothing() -> None:
    model = nn.Sequential(network(dropout=0.5, dtype=torch.float64)).train()
    model[0][1].eval()  # a module with a mode of its own
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    _, first = measured(model, batches_of())
    _, second = measured(model, batches_of())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_absent_groups_and_samples_without_a_group_have_no_importance() -> None:
    model = model_of()
    inputs, labels, ids = next(iter(batches_of()))
    unknown = torch.where(ids == 1, -1, ids)
    _, found = measured(model, [(inputs, labels, unknown)], groups=GROUPS + 1)
    _, usual = measured(model, [(inputs, labels, ids)])
    for name, values in found.items():
        assert not values[:, [1, 3]].any()
        torch.testing.assert_close(values[:, [0, 2]], usual[name][:, [0, 2]])


def test_mini_batches_are_shuffled_always_the_same_way_and_have_all_samples() -> None:
    split = images(50)
    once, again = list(MiniBatches(split, size=16)), list(MiniBatches(split, size=16))
    assert [len(labels) for _, labels, _ in once] == [13, 13, 12, 12]
    assert torch.equal(
        torch.cat([x for x, *_ in once]).sort(0).values, split.at(torch.arange(50)).sort(0).values
    )
    for one, two in zip(once, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(once[0][1], split.labels[:16])
    assert len(list(MiniBatches(split, size=16, count=2))) == len(MiniBatches(split, size=16, count=2)) == 2
    assert [len(labels) for _, labels, _ in MiniBatches(split, size=99)] == [50]


def test_what_cannot_be_measured_is_refused() -> None:
    model, batches = model_of(), batches_of()
    with pytest.raises(ValueError, match="no batches"):
        measured(model, [])
    with pytest.raises(ValueError, match=r"Group ids \[1, 2\] are outside −1 … 0 \(1 groups\)"):
        measured(model, batches, groups=1)
    with pytest.raises(
        ValueError, match=r"^Sequential: .* no parameters \['3.weight', '8.weight'\].*without a wrapper"
    ):
        group_importance(nn.Sequential(model), Masks.of(model), batches, groups=GROUPS)
    model[3].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"\['3.weight'\] \(1 in all\) are frozen.*exclude"):
        measured(model, batches)
    inputs, labels, ids = next(iter(batches))
    with pytest.raises(ValueError, match="not finite"):
        measured(model_of(), [(inputs * torch.nan, labels, ids)])


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (lambda batch: batch[:2], r"^A batch is a tuple of 2: Tensor, Tensor; it must be three tensors"),
        (lambda batch: [batch[0], batch[1], batch[2].tolist()], "a list of 3: Tensor, Tensor, list;"),
        (lambda batch: dict(zip("xyg", batch, strict=True)), "a dict; it must be three tensors"),
        (lambda batch: batch[0][:3], "a Tensor; it must be three tensors"),  # of three samples
    ],
)
def test_a_batch_without_groups_is_refused_with_what_it_must_be(cut: Any, said: str) -> None:
    model, batches = model_of(), [cut(batch) for batch in batches_of()]
    pruned: Any = {"groups": GROUPS, "sparsity": 0.5, "steps": 1, "by": "fairgrape_fast"}
    ways = (
        lambda: group_importance(model, Masks.of(model), batches, groups=GROUPS),
        lambda: prune_in_steps_(model, Masks.of(model), batches, **pruned),
        lambda: DenseReference.measure(model, batches),
    )
    for way in ways:
        with pytest.raises(ValueError, match=said + r".*\(input, label, group id\)"):
            way()


# From importance to masks.


def plain_masks(importance: dict[str, Tensor], masks: Masks, sparsity: list[float], scope: str) -> list[Any]:
    """By the twin: per run and unit (a layer, or all of them) what stays, flat."""
    names = [layer.name for layer in masks.layers]
    units = [names] if scope == "global" else [[name] for name in names]
    stay = []
    for run, share in enumerate(sparsity):
        for unit in units:
            values = torch.cat([importance[name][run].flatten(1) for name in unit], 1)
            alive = torch.cat([masks[name].reshape(masks.runs, -1)[run] for name in unit]).tolist()
            stay += twin.kept(values.tolist(), alive, len(alive) - pruned_count(share, len(alive)))
    return stay


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_a_fleet_is_pruned_as_the_twin_says_step_by_step(scope: Any) -> None:
    model = model_of()
    wide = fleet.widen(model, 2, sample_input=images(dtype=torch.float64).inputs[:4])
    masks = Masks.of(wide, runs=2)
    for wanted in ([0.3, 0.5], [0.6, 0.5], [0.9, 0.85]):
        importance = group_importance(wide, masks, batches_of(), groups=GROUPS)
        expected = plain_masks(importance, masks, wanted, scope)
        found = scores(wide, masks, importance, wanted, by="fairgrape", scope=scope)
        masks.prune_(wide, wanted, scope=scope, scores=found)
        kept = [masks[name].reshape(2, -1) for name in importance]
        assert torch.cat([layer[run] for run in range(2) for layer in kept]).tolist() == expected


def test_threads_do_not_change_the_selection() -> None:
    model = mlp(20, (30, 30, 30), 3)
    masks = Masks.of(model, runs=1)
    importance = {
        layer.name: torch.from_numpy(lognormal(4, layer.size)).view(1, 4, *layer.shape)
        for layer in masks.layers
    }
    before = torch.get_num_threads()
    found = []
    for threads in (1, 4):
        torch.set_num_threads(threads)
        found.append(exact_scores(importance, masks, 0.7))
    torch.set_num_threads(before)
    assert all(torch.equal(found[0][name], found[1][name]) for name in importance)


def test_one_criterion_per_run() -> None:
    model = model_of()
    wide = fleet.widen(model, 3, sample_input=images(dtype=torch.float64).inputs[:4])
    masks = Masks.of(wide, runs=3)
    importance = group_importance(wide, masks, batches_of(), groups=GROUPS)
    by = ("fairgrape_fast", "magnitude", "fairgrape")
    masks.prune_(wide, 0.8, scores=scores(wide, masks, importance, 0.8, by=by))
    for run, criterion in enumerate(by):
        alone = copy.deepcopy(model)
        own = Masks.of(alone)
        chosen = None
        if criterion != "magnitude":
            found = group_importance(alone, own, batches_of(), groups=GROUPS)
            chosen = scores(alone, own, found, 0.8, by=criterion)
        own.prune_(alone, 0.8, scores=chosen)
        for name in importance:
            assert torch.equal(masks.extract(run)[name], own[name])


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_fast_scores_are_the_largest_share(scope: Any) -> None:
    rng = np.random.default_rng(3)
    importance = {name: torch.from_numpy(rng.random((2, 4, 5, size))) for name, size in (("a", 3), ("b", 6))}
    importance["a"][1, 2] = importance["b"][1, 2] = 0.0  # a group that no weight matters to
    found = fast_scores(importance, scope=scope)
    for name, values in importance.items():
        for run in range(2):
            pool = importance.values() if scope == "global" else [values]
            sums = [sum(float(v[run, g].sum()) for v in pool) for g in range(4)]
            shares = [values[run, g] / sums[g] for g in range(4) if sums[g]]
            torch.testing.assert_close(found[name][run], torch.stack(shares).amax(0))


def test_the_fast_rule_agrees_with_the_exact_one() -> None:
    importance = {"w": torch.from_numpy(lognormal(5, 50_000)).unsqueeze(0)}
    model = nn.Linear(50_000, 1, bias=False)
    for sparsity in (0.85, 0.925):
        masks = [Masks.of(model, keep=()) for _ in range(2)]
        values = {"weight": importance["w"].view(1, 5, 1, 50_000)}
        exact = exact_scores(values, masks[0], sparsity)
        masks[0].prune_(copy.deepcopy(model), sparsity, scores=exact)
        masks[1].prune_(copy.deepcopy(model), sparsity, scores=fast_scores(values))
        same = masks[0]["weight"] == masks[1]["weight"]
        assert float(same.double().mean()) > 0.985


def test_pruning_in_steps_measures_anew_and_ends_at_the_sparsity() -> None:
    model, by_hand = model_of(), model_of()
    masks, own, seen = Masks.of(model), Masks.of(by_hand), []
    prune_in_steps_(
        model,
        masks,
        batches_of(),
        groups=GROUPS,
        sparsity=0.9,
        steps=3,
        between=lambda: seen.append(float(masks.sparsity)),
    )
    for step in (1, 2, 3):
        wanted = step_sparsity(step, 3, initial=0.0, final=0.9)
        found = group_importance(by_hand, own, batches_of(), groups=GROUPS)
        own.prune_(by_hand, wanted, scores=exact_scores(found, own, wanted))
    assert all(torch.equal(masks[name], own[name]) for name in found)
    assert seen == pytest.approx([1 - 0.1 ** (1 / 3), 1 - 0.1 ** (2 / 3), 0.9], abs=0.003)
    once = Masks.of(fresh := model_of())
    prune_in_steps_(fresh, once, batches_of(), groups=GROUPS, sparsity=0.9, steps=1)
    assert any(not torch.equal(masks[name], once[name]) for name in found)  # fresh scores matter


def test_pruning_in_steps_goes_on_from_where_the_masks_are() -> None:
    model = model_of()
    masks = Masks.of(model)
    masks.prune_(model, 0.6)
    before = {layer.name: masks[layer.name].clone() for layer in masks.layers}
    prune_in_steps_(
        model, masks, batches_of(), groups=GROUPS, sparsity=0.8, steps=2, by="fairgrape_fast", scope="global"
    )
    assert float(masks.sparsity) == pytest.approx(0.8, abs=0.002)
    assert all(not bool((masks[name] & ~old).any()) for name, old in before.items())


def test_wrong_arguments_are_named() -> None:
    model = mlp(6, (10, 10), 3).double()
    masks = Masks.of(model)
    with pytest.raises(ValueError, match=r"^batches is a list_iterator, .* a DataLoader or MiniBatches\.$"):
        prune_in_steps_(model, masks, iter([]), groups=2, sparsity=0.5, steps=2)
    for few in (0, 2.5):
        with pytest.raises(ValueError, match=rf"^steps = {few}: give a whole number of at least 1\.$"):
            prune_in_steps_(model, masks, [], groups=2, sparsity=0.5, steps=few)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^steps = 0: give a whole .* 1\. batches is a list_iterator"):
        prune_in_steps_(model, masks, iter([]), groups=2, sparsity=0.5, steps=0)
    with pytest.raises(SparsityNotReachable):
        prune_in_steps_(model, masks, [], groups=2, sparsity=1.5, steps=1)
    with pytest.raises(ValueError, match=r"by = 'taylor': give one of"):  # before there are scores
        prune_in_steps_(model, masks, [], groups=2, sparsity=0.5, steps=1, by="taylor")  # type: ignore[arg-type]
    importance = {layer.name: torch.ones(1, 2, *layer.shape) for layer in masks.layers}
    with pytest.raises(ValueError, match=r"by = 'taylor': give one of magnitude, fairgrape, fairgrape_fast"):
        scores(model, masks, importance, 0.5, by="taylor")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="for all 1 runs, or one per run"):
        scores(model, masks, importance, 0.5, by=["magnitude"] * 2)


# Within fit().


def test_fit_prunes_every_run_of_a_fleet_by_the_importance_of_its_method() -> None:
    model, split = model_of(), images(dtype=torch.float64)
    data, settings = data_for(model, split), recipe(epochs=4, pruning_epochs=3)
    kinds = (
        methods.nft(),
        methods.fairgrape(),
        methods.fairgrape(fast=True),
        methods.ceag(tolerance=0.01, k=2, importance="fairgrape"),
    )
    runs = [Run(method=method, sparsity=0.8) for method in kinds]
    together = fit(model, data, runs=runs, recipe=settings)
    names = [layer.name for layer in together[0].masks.layers]
    for run, one in zip(runs, together, strict=True):
        alone = fit(model, data, runs=[run], recipe=settings)[0]
        assert all(torch.equal(one.masks[name], alone.masks[name]) for name in names)
        assert float(one.masks.sparsity) == pytest.approx(0.8, abs=0.003)
    assert not torch.equal(together[0].masks[names[1]], together[1].masks[names[1]])


def test_fit_takes_the_scores_of_the_dense_model_where_it_prunes_at_once() -> None:
    model, split = model_of(), images(dtype=torch.float64)
    runs = [Run(method=methods.fairgrape(), sparsity=0.8)]
    once = recipe(epochs=1, pruning_epochs=1, importance_batches=3)
    pruned = fit(model, data_for(model, split), runs=runs, recipe=once)[0].masks
    own = Masks.of(model)
    found = group_importance(model, own, MiniBatches(split, size=24, count=3), groups=GROUPS)
    own.prune_(model, 0.8, scores=exact_scores(found, own, 0.8))
    assert all(torch.equal(pruned[name], own[name]) for name in found)


def test_a_group_of_the_incomplete_last_batch_has_importance_and_one_that_no_batch_has_is_refused() -> None:
    """One more sample than whole batches, the last of the shuffled order; it is the only one of its group."""
    model, split = model_of(), images(49, dtype=torch.float64)
    last = torch.randperm(49, generator=torch.Generator().manual_seed(0))[-1]
    split.groups[:], split.groups[1::2], split.groups[last] = 0, 1, 2
    _, found = measured(model, MiniBatches(split, size=24))
    assert all(bool(values[:, 2].any()) for values in found.values())

    data, settings = data_for(model, split), recipe(importance_batches=2)
    assert settings.batch_size == 24
    runs = [Run(method=kind, sparsity=0.5) for kind in (methods.nft(), methods.fairgrape(fast=True))]
    with pytest.raises(
        InputProblems, match=rf'Group "{NAMES[2]}" has no sample in the batches of .*_batches=2, .*Raise it'
    ):
        fit(model, data, runs=runs, recipe=settings, hooks=[Untold()])
    fit(model, data, runs=runs[:1], recipe=settings)  # which looks at no importance


def test_fit_refuses_an_exact_selection_within_a_pattern() -> None:
    model = model_of()
    data = data_for(model, images(dtype=torch.float64))
    runs = [Run(method=methods.fairgrape(), sparsity=0.5)]
    with pytest.raises(InputProblems, match=r"knows no pattern; take fairgrape_fast"):
        fit(model, data, runs=runs, recipe=recipe(pattern=(2, 4)))


# --- its benchmarks ---


def test_the_published_schedule_and_that_of_the_methods_here() -> None:
    """Three epochs after each pruning, and 13 + 3 + 3 before the first and after the last."""
    found = fairgrape_procedure.schedules()
    assert 0.975**91 < 0.1 < 0.975**90
    assert vars(found["published"]) == {"prunings": 91, "epochs": 91 * 3 + 2 * 19}
    assert vars(found["gradual"]) == {"prunings": 14, "epochs": 60}  # the first of 15 epochs prunes nothing


def test_the_whole_procedure_is_the_sum_of_its_parts() -> None:
    parts = {"scores_s": 36.0, "selection_s": 3.6, "training_s": 18.0, "evaluation_s": 1.8}
    parts |= {"compilation_s": 72.0}
    found = fairgrape_procedure.whole(parts, fairgrape_procedure.Schedule(prunings=10, epochs=100))
    expected = {"scores": 0.1, "selection": 0.01, "training": 0.5, "evaluation": 0.05, "compilation": 0.02}
    assert found["parts"] == pytest.approx(expected)
    assert found["hours"] == pytest.approx(0.68)
    assert found["ratio"] == pytest.approx(90 / 0.68)


def test_the_benchmark_extrapolates_what_it_timed_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece of work counts as one second: what is left are the numbers of batches and images."""
    torch.set_num_threads(1)

    def one_second(work: Any) -> float:
        work()
        return 1.0

    monkeypatch.setattr(fairgrape_procedure, "seconds", one_second)
    rule = Recipe(batch_size=16, evaluate_batch=16).on(torch.device("cpu"))
    train, test = (
        fairgrape_procedure.faces(count, side=8, device=torch.device("cpu")) for count in (100, 40)
    )
    assert torch.bincount(train.groups, minlength=5).argmax() == 0  # most people are of the first race
    found = fairgrape_procedure.measured(
        lambda: small_cnn((4, 6, 6), num_classes=5, in_channels=3), rule, train, test, images=990, tests=400
    )
    assert (found["timed_batches"], found["batches"], found["batch"]) == (6, 61, 16)
    assert found["scores_s"] == found["training_s"] == pytest.approx(61 / 6)
    assert found["whole_batch_scores_s"] == 61  # from single batches
    assert found["evaluation_s"] == 10
    assert found["selection_s"] == found["fast_selection_s"] == 2  # choosing and cutting
    assert found["compilation_s"] == 3
    measurement = {"device": "CPU", "torch": "2", "extrapolated": True, "date": "2026-01-01", "commit": None}
    plans = fairgrape_procedure.schedules()
    measurement["procedures"] = {name: fairgrape_procedure.whole(found, p) for name, p in plans.items()}
    rows = {what: cells for what, *cells in fairgrape_procedure.table([measurement | found])}
    assert rows["batches of 16 that were timed"] == ["6 of 61", "–", ""]
    assert rows["one pruning: scores"][0] == "10.17 s"
    hours = (91 * (61 / 6 + 2) + 311 * (61 / 6 + 10) + 5) / 3600
    assert rows["published: 91 prunings, 311 epochs"][0] == f"{hours:.2f} h"
    assert rows["hours are from the parts above"] == ["extrapolated", "", ""]


def test_the_table_of_the_parts_has_all_that_is_stored() -> None:
    path = Path(fairgrape_benchmark.__file__).parent / "results" / "fairgrape.json"
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    rows = fairgrape_benchmark.table(figures)
    assert ("  chooses the same weights as the twin", "yes", "yes") in rows
    assert not any("comparable" in text for row in rows for text in row)
