"""prune(): what goes in, what comes out, that it resumes, and that every problem is one clear message."""

import copy
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import Dataset, TensorDataset

from evenprune import methods
from evenprune.checkpoint import CheckpointError, DifferentExperiment
from evenprune.pruning import prune
from evenprune.recipe import Recipe, Split
from evenprune.result import Result
from evenprune.tally import InputProblems
from evenprune.training import NotFinite
from tests.commands import largest_file
from tests.training_cases import NAMES, Branching, images, network, recipe, trained

TRAIN, TEST = images(200), images(160, seed=1)
DENSE = trained(network(), TRAIN)
CEAG = methods.ceag(tolerance=0.05, dual_lr=0.1, k=5)


def tensors(split: Split) -> tuple[Tensor, Tensor, Tensor]:
    return split.inputs, split.labels, split.groups


def call(**changes: Any) -> Result:
    arguments: dict[str, Any] = {
        "train": tensors(TRAIN), "test": tensors(TEST), "groups": {"age": NAMES}, "sparsity": 0.6,
        "method": CEAG, "recipe": recipe(),
    }  # fmt: skip
    model = changes.pop("model", DENSE)
    return prune(model, **(arguments | changes))


@pytest.fixture(scope="module")
def result() -> Result:
    return call(method=[methods.nft(), CEAG], seeds=range(2))


# --- what comes out ---


def test_there_is_one_run_for_each_method_and_seed(result: Result) -> None:
    assert result.names == ("NFT, seed 0", "NFT, seed 1", "CEAG, seed 0", "CEAG, seed 1")
    for name in result.names:
        model, masks = result.models[name], result.masks[name]
        assert type(model) is type(DENSE)
        assert float(masks.sparsity[0]) >= 0.6
        zeros = sum(int((p == 0).sum()) for n, p in model.named_parameters() if n in ("3.weight", "8.weight"))
        assert zeros == sum(layer.size - layer.left[0] for layer in masks.summary().layers)
        assert [row["epoch"] for row in result.history[name]] == list(range(5))


def test_audits_are_those_of_the_models(result: Result) -> None:
    for name, by_split in result.audits.items():
        assert list(by_split) == ["train", "test"]
        for split, audit in zip((TRAIN, TEST), by_split.values(), strict=True):
            with torch.no_grad():
                right = (result.models[name](split.inputs).argmax(1) == split.labels).double()
            assert audit.overall.pruned == pytest.approx(float(right.mean()))
            own = float(right[split.groups == 1].mean())
            assert audit["old"].pruned == pytest.approx(own)
            assert (audit.tolerance, audit.attributes, audit.model) == (0.05, ("age",), name)
    assert result.audit is result.audits["NFT, seed 0"]["test"]
    assert result.worst.verdict == result.verdict


def test_the_dense_model_is_not_changed() -> None:
    before = copy.deepcopy(DENSE).train()
    model = copy.deepcopy(before)
    call(model=model)
    assert model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before.state_dict()[name]), name


def test_the_document_is_plain_json_and_agrees_with_the_audits(result: Result) -> None:
    document = json.loads(json.dumps(result.document(), allow_nan=False))
    assert document["schema"] == "evenprune.comparison/1"
    assert document["groups"] == sorted(NAMES)
    assert [m["name"] for m in document["methods"]] == ["NFT", "CEAG"]
    settings = {"tolerance": 0.05, "dual_lr": 0.1, "estimator": "ring", "k": 5}
    assert [m["settings"] for m in document["methods"]] == [{}, settings]
    assert sum(document["samples"]["train"]) == int((TRAIN.groups >= 0).sum())
    for method in document["methods"]:
        for seed, run in enumerate(method["runs"]):
            audits = result.audits[f"{method['name']}, seed {seed}"]
            for split in ("train", "test"):
                groups = {g.group: g for g in audits[split].groups}
                expected = [groups[name].excess_gap for name in document["groups"]]
                assert run[split]["excess_gaps"] == pytest.approx(expected)
                assert run[split]["max_excess_gap"] == pytest.approx(max(expected))
                gaps = [groups[name].gap for name in document["groups"]]
                assert run[split]["pairwise_disparity"] == pytest.approx(max(gaps) - min(gaps))
                assert run[split]["verdict"] == audits[split].verdict
            last = run["history"][-1]
            assert last["max_excess_gap"] == pytest.approx(run["train"]["max_excess_gap"])
            assert last["test_max_excess_gap"] == pytest.approx(run["test"]["max_excess_gap"])
            assert len(last["multipliers"]) == (0 if method["name"] == "NFT" else 3)


def test_the_table_has_mean_and_spread_and_how_many_runs_met_the_tolerance(result: Result) -> None:
    runs = result.document()["methods"][1]["runs"]
    mean = 100 * np.mean([run["test"]["accuracy"] for run in runs])
    spread = 100 * np.std([run["test"]["accuracy"] for run in runs], ddof=1)
    met = sum(run["train"]["max_excess_gap"] <= 0.05 for run in runs)
    line = next(line for line in str(result).splitlines() if line.startswith("CEAG"))
    assert f"{mean:.1f} ± {spread:.1f}" in line
    assert f" {met}/2 " in line


@pytest.mark.parametrize("ending", ["html", "json", "txt"])
def test_a_result_is_saved_as_page_data_or_text(result: Result, tmp_path: Path, ending: str) -> None:
    place = result.save(tmp_path / f"comparison.{ending}")
    text = place.read_text(encoding="utf-8")
    assert "CEAG" in text
    assert ending != "json" or json.loads(text)["methods"][1]["name"] == "CEAG"
    with pytest.raises(ValueError, match="must end in one of"):
        result.save(tmp_path / "comparison.pdf")


def test_methods_and_sparsities_that_differ_are_told_apart() -> None:
    both = [CEAG, methods.ceag(tolerance=0.01, dual_lr=0.1, k=5)]
    found = call(method=both, sparsity=[0.5, 0.6], recipe=recipe(epochs=3, pruning_epochs=1))
    assert len(set(found.names)) == 4
    assert "CEAG, tolerance 0.01, 50 % sparse, seed 0" in found.names
    document = found.document()
    assert [run["sparsity"] for m in document["methods"] for run in m["runs"]] == pytest.approx(
        [0.5, 0.6, 0.5, 0.6], abs=0.02
    )
    assert document["sparsity"] is None


# --- what goes in ---


class Items(Dataset[tuple[Tensor, int, Any]]):
    def __init__(self, split: Split, *, columns: bool) -> None:
        self.split, self.columns = split, columns

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, i: int) -> tuple[Tensor, int, Any]:
        group = int(self.split.groups[i])
        named = {"age": None if group < 0 else NAMES[group], "side": "left" if i % 2 else "right"}
        return self.split.inputs[i], int(self.split.labels[i]), named if self.columns else group


FORMS: dict[str, Callable[[Split], Any]] = {
    "arrays": lambda s: (s.inputs.numpy(), s.labels.numpy(), s.groups.numpy()),
    "a TensorDataset": lambda s: TensorDataset(*tensors(s)),
    "a data set of ids": lambda s: Items(s, columns=False),
    "a Split": lambda s: s,
    "a mapping of columns": lambda s: (s.inputs, s.labels, {"age": s.groups, "unused": s.labels}),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_the_same_data_give_the_same_result(result: Result, form: str) -> None:
    found = call(
        train=FORMS[form](TRAIN), test=FORMS[form](TEST), method=[methods.nft(), CEAG], seeds=range(2)
    )
    for name in result.names:
        assert found.audits[name]["test"].to_dict() == result.audits[name]["test"].to_dict()


def test_groups_may_be_texts_and_intersections() -> None:
    data = {"train": Items(TRAIN, columns=True), "test": Items(TEST, columns=True)}
    by_age = call(**data, groups="age", tolerance=0.05)
    assert set(by_age.samples.names) == set(NAMES)
    both = call(**data, groups=None)
    assert "old × left" in both.samples.names
    assert both.audit.attributes == ("age", "side")
    assert int((both.samples.splits["train"].groups < 0).sum()) == int((TRAIN.groups < 0).sum())


def test_groups_that_only_the_test_data_has_are_audited_and_told_of() -> None:
    groups = TEST.groups.clone()
    groups[:30] = 7
    with pytest.warns(UserWarning, match="1 of the groups in test are not in the training data"):
        found = call(groups=None, test=(TEST.inputs, TEST.labels, groups))
    assert found.samples.names == ("0", "1", "2")
    assert found.audit["7"].samples == 30


def test_a_model_that_cannot_be_widened_trains_one_run_after_another(tmp_path: Path) -> None:
    found = call(
        model=Branching(), seeds=range(2), folder=tmp_path, recipe=recipe(epochs=3, pruning_epochs=1)
    )
    assert found.names == ("CEAG, seed 0", "CEAG, seed 1")
    assert len(list(tmp_path.glob("**/metrics.jsonl"))) == 2


def test_one_run_is_chosen_on_the_validation_split_and_never_on_the_test_data() -> None:
    held = tensors(images(90, seed=5))
    every = [methods.nft(), CEAG, methods.kd(distill=0.5)]
    found = call(method=every, seeds=range(2), validation=held, select="validation", tolerance=0.05)
    audits = {name: by_split["validation"] for name, by_split in found.audits.items()}
    feasible = {n: a.overall.pruned for n, a in audits.items() if a.max_excess_gap.estimate <= 0.05}
    gaps = {n: a.max_excess_gap.estimate for n, a in audits.items()}
    best = max(feasible, key=feasible.__getitem__) if feasible else min(gaps, key=gaps.__getitem__)
    assert found.selected == best
    assert found.audit is found.audits[best]["test"]
    assert call().selected == "CEAG, seed 0"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"select": "test"}, "select is 'test': choose on 'validation'"),
        ({"select": "validation"}, "needs validation="),
    ],
)
def test_nothing_is_chosen_on_data_that_trains_or_audits(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputProblems, match=said):
        call(**changes)


def test_a_validation_split_picks_the_best_epoch() -> None:
    found = call(
        method=methods.nft_es(on="validation"), validation=tensors(images(90, seed=5)), tolerance=0.05
    )
    assert list(found.audits["NFT+ES, seed 0"]) == ["train", "test", "validation"]
    rows = found.history["NFT+ES, seed 0"][2:]  # once pruning has ended
    best = max(row["splits"]["validation"]["accuracy"] for row in rows)
    assert found.audits["NFT+ES, seed 0"]["validation"].overall.pruned == pytest.approx(best)


# --- started again ---


class Counting:
    """A hook that counts the epochs that were trained."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.epochs, self.stop_after = 0, stop_after

    def start(self, *_: Any) -> None: ...

    def epoch(self, rows: Any) -> None:
        self.epochs += 1
        if self.epochs == self.stop_after:
            raise KeyboardInterrupt

    def finish(self) -> None: ...


def test_a_finished_call_returns_at_once_with_the_same_result(tmp_path: Path) -> None:
    first, again = Counting(), Counting()
    one = call(folder=tmp_path, hooks=[first])
    two = call(folder=tmp_path, hooks=[again])
    assert (first.epochs, again.epochs) == (5, 0)
    assert one.document() == two.document()


def test_an_interrupted_call_resumes_to_the_same_result(tmp_path: Path) -> None:
    whole = call(folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        call(folder=tmp_path / "cut", hooks=[Counting(stop_after=2)])
    rest = Counting()
    resumed = call(folder=tmp_path / "cut", hooks=[rest])
    assert 0 < rest.epochs < 5
    for name, tensor in whole.models["CEAG, seed 0"].state_dict().items():
        assert torch.equal(tensor, resumed.models["CEAG, seed 0"].state_dict()[name])
    assert whole.audit.to_dict() == resumed.audit.to_dict()


def test_a_folder_of_another_experiment_is_refused_and_left_alone(tmp_path: Path) -> None:
    call(folder=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = copy.deepcopy(DENSE)
    with torch.no_grad():
        next(other.parameters()).mul_(1.5)
    for changes, place in (({"sparsity": 0.5}, "sparsity"), ({"model": other}, "dense weights")):
        with pytest.raises(DifferentExperiment, match=place):
            call(folder=tmp_path, **changes)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


# --- what goes wrong in practice ---


def changed(split: Split, **changes: Any) -> tuple[Any, Any, Any]:
    parts = dict(zip(("inputs", "labels", "groups"), (t.clone() for t in tensors(split)), strict=True))
    for name, (place, value) in changes.items():
        parts[name][place] = value
    return parts["inputs"], parts["labels"], parts["groups"]


def broken_model() -> nn.Module:
    model = copy.deepcopy(DENSE)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    return model


class OneBad(Items):
    """A data set whose sample 7 is something else."""

    def __init__(self, change: Callable[[Tensor, int, Any], Any], *, columns: bool = True) -> None:
        super().__init__(TRAIN, columns=columns)
        self.change = change

    def __getitem__(self, i: int) -> Any:
        item = super().__getitem__(i)
        return self.change(*item) if i == 7 else item


X, Y, G = tensors(TRAIN)
BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"train": changed(TRAIN, labels=(3, 4))}, ["labels outside 0 … 3", "the first is 4 at sample 3"]),
    ({"test": changed(TEST, labels=(5, -1))}, ['split "test"', "the first is -1 at sample 5"]),
    ({"train": changed(TRAIN, groups=(9, 3))}, ["train: 1 group ids of 'age' outside −1 … 2", "sample 9"]),
    ({"groups": None, "train": changed(TRAIN, groups=(9, -2))}, ["holds -2", "missing one"]),
    ({"train": (X, Y.double(), G)}, ["labels are torch.float64"]),
    ({"train": changed(TRAIN, inputs=(7, math.nan))}, ["1 samples have inputs that are NaN", "sample 7"]),
    (
        {"test": (TEST.inputs, TEST.labels[1:], TEST.groups)},
        ["test: unequal lengths: inputs 160"],
    ),
    ({"train": (X, Y)}, ["(input, label, group), but has 2 parts"]),
    ({"train": {"x": 1}}, ["dict is neither"]),
    ({"train": TensorDataset(X[:0], Y[:0], G[:0])}, ["train: there are no samples"]),
    (
        {"train": OneBad(lambda x, y, g: (x[:, 1:], y, g))},
        ["train: the input of sample 7 is float32 [1, 5, 6], that of sample 0 is float32 [1, 6, 6]"],
    ),
    ({"train": OneBad(lambda x, y, g: (x.double(), y, g))}, ["the input of sample 7 is float64"]),
    (
        {"train": OneBad(lambda x, y, g: (object(), y, g))},
        ["the input of sample 7 is a object, not a tensor"],
    ),
    ({"train": OneBad(lambda x, y, g: (x, y))}, ["sample 7 is tuple of 2"]),
    ({"train": OneBad(lambda x, y, g: None)}, ["sample 7 is NoneType"]),
    ({"train": OneBad(lambda x, y, g: (x, "cat", g))}, ["the label of sample 7 is 'cat'"]),
    ({"train": OneBad(lambda x, y, g: (x, 1.5, g))}, ["the label of sample 7 is 1.5"]),
    (
        {"train": OneBad(lambda x, y, g: (x, y, {"side": "left"}))},
        ["the groups of sample 7 are ['side'], those of sample 0 are ['age', 'side']"],
    ),
    (
        {"train": OneBad(lambda x, y, g: (x, y, torch.zeros(2)), columns=False)},
        ["the group of sample 7 is tensor([0., 0.]); give one value"],
    ),
    ({"groups": ["age", "race"]}, ["names 2 attributes"]),
    ({"train": (X, Y, {"sex": G}), "groups": "age"}, ["there is no group column ['age']", "has ['sex']"]),
    ({"sparsity": 1.0}, ["sparsity 1", "in [0, 1)"]),
    ({"sparsity": 0.9999}, ["Sparsity 0.9999 is not reachable", "3.weight"]),
    ({"recipe": recipe(pattern=(2, 4))}, ["2:4 reaches 0.5 at most"]),
    ({"recipe": recipe(exclude=("fc9",))}, ["no parameter matches 'fc9'"]),
    ({"method": methods.ceag(tolerance=0.1, k=5000)}, ["a ring of 5000 cannot fill"]),
    ({"recipe": recipe(batch_size=500)}, ["200 training samples are fewer than one batch of 500"]),
    ({"method": methods.nft()}, ["tolerance is missing, and nft has none"]),
    ({"confidence": 2.0}, ["confidence is 2.0"]),
    ({"groups": None, "train": (X, Y, G * 0)}, ["the training data has 1 groups (0)"]),
    ({"model": broken_model()}, ["the dense model's loss is NaN or infinite on 200 of 200"]),
    ({"model": nn.Linear(3, 4)}, ["does not take the training inputs", "[2, 1, 6, 6]"]),
    ({"model": nn.Conv2d(1, 4, 3)}, ["logits [batch, classes]"]),
    ({"seeds": ()}, ["There are no runs"]),
    ({"method": methods.nft_es(on="dev"), "tolerance": 0.1}, ['split "dev"']),
]


@pytest.mark.parametrize(("changes", "said"), BAD, ids=[said[0] for _, said in BAD])
def test_bad_input_is_one_clear_message(changes: dict[str, Any], said: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputProblems) as caught:
        call(**changes, folder=tmp_path / "run")
    for part in said:
        assert part in str(caught.value)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_several_problems_are_told_at_once() -> None:
    train = changed(TRAIN, labels=(3, 44))
    with pytest.raises(InputProblems) as caught:
        call(train=train, sparsity=0.9999, confidence=3.0, recipe=recipe(epochs=0, pruning_epochs=0))
    said = str(caught.value)
    for part in ("4 problems", "labels outside", "0.9999", "confidence is 3.0", "recipe.epochs is 0"):
        assert part in said


def test_small_groups_are_warned_of() -> None:
    with pytest.warns(UserWarning, match='Group "unknown age" has .* a ring of 60 fills only after'):
        call(method=methods.ceag(tolerance=0.1, dual_lr=0.1, k=60))


def test_a_loss_that_explodes_names_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    wild = recipe(optimizer=partial(SGD, lr=1e18), scheduler=None)
    with pytest.raises(NotFinite, match=r"run 0 of 2 \(method ceag, sparsity 0\.6, seed 0\)"):
        call(folder=tmp_path, recipe=wild, seeds=range(2))
    with pytest.raises(NotFinite, match=r"leave these runs out\.$"):
        call(recipe=wild)


def test_a_full_disk_is_one_message_and_more_room_resumes(tmp_path: Path) -> None:
    with largest_file(8000), pytest.raises((CheckpointError, OSError), match=r"No room|Cannot write"):
        call(folder=tmp_path)
    assert call(folder=tmp_path).audit.to_dict() == call().audit.to_dict()


def test_the_default_recipe_is_the_papers() -> None:
    assert (Recipe().epochs, Recipe().pruning_epochs, Recipe().batch_size) == (60, 15, 128)
