"""Experiments as values: ids, problems, methods of their texts, seeds, recipes."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW

from evenprune import methods
from evenprune.augment import Both, Crop, Flip
from evenprune.experiment import FAST, Experiment, build_method, parse_seeds

GOOD = Experiment(model="m.py:f", data="faces.npz", groups=("race",), tolerance=0.01)


def test_every_field_explains_itself_in_one_line() -> None:
    for field in fields(Experiment):
        text = field.metadata["help"]
        assert text.endswith(".")
        assert len(text) <= 60
        assert field.metadata["metavar"]


def test_equal_experiments_have_equal_ids_and_any_change_has_another() -> None:
    assert GOOD.id == replace(GOOD).id
    changes: dict[str, Any] = {
        "model": "n.py:f", "data": "other.npz", "test": "t.npz", "weights": "w", "groups": ("a", "b"),
        "sparsity": 0.5, "method": ("nft",), "tolerance": 0.02, "dual_lr": 0.1, "k": 3, "seeds": (1,),
        "epochs": 2, "pruning_epochs": 1, "batch_size": 7, "lr": 0.5, "momentum": 0.0, "weight_decay": 1.0,
        "optimizer": "adamw", "schedule": "cosine", "clip_norm": 1.0, "precision": "bfloat16",
        "scope": "global", "pattern": "2:4", "exclude": ("fc",), "evaluate_every": 5, "confidence": 0.9,
        "table": "t.csv", "label": "y", "path": "file", "split": "fold", "classes": ("a",), "test_share": 0.3,
        "image_size": 64, "corrupt": "skip", "numeric": ("age",), "categorical": ("age",), "ignore": ("age",),
        "bin": ("race=3",), "merge_below": 30, "augment": ("flip",), "heldout_share": 0.2, "fleet": 2,
    }  # fmt: skip
    ids = {replace(GOOD, **{name: value}).id for name, value in changes.items()}
    after = {"select": "heldout", "class_bias": True, "diagnostics": True, "without": ("graph",)}
    assert set(changes) | {"device", "out", "cache", *after} == {f.name for f in fields(Experiment)}
    assert len(ids | {GOOD.id}) == len(changes) + 1
    assert replace(GOOD, device="cuda", out="elsewhere", cache="x", **after).id == GOOD.id
    assert replace(GOOD, without=("graph", "channels-last")).id not in ids | {GOOD.id}  # it resumes no other


def test_an_id_is_readable_stable_and_a_file_name() -> None:
    wanted = replace(GOOD, data="/data/my faces.npz", method=("nft", "ceag:k=20"), sparsity=0.925)
    assert wanted.id == "my_faces-nft+ceag-s0.925-" + wanted.id[-8:]
    assert GOOD.id == "faces-ceag-s0.9-3115f5ed"  # folders of old runs must be found again
    assert replace(GOOD, data="/data/faces/").id.startswith("faces-ceag-s0.9-")


def test_all_problems_are_named_at_once() -> None:
    wrong = Experiment(
        sparsity=1.0, tolerance=2, epochs=0, lr=float("nan"), optimizer="adm", schedule="step", pattern="2",
        seeds=(1, 1), method=("ceag:k=0", "nonsense", "ceag:kk=3"), confidence=1.5, batch_size=0,
        image_size=0, test_share=1.0, corrupt="keep", bin=("age=3,x", "sex=4"), merge_below=0,
        augment=("flop", "crop:x"), heldout_share=1.0, fleet=0, without=("graph", "grap", "kernels"),
    )  # fmt: skip
    said = "\n".join(wrong.problems())
    for part in (
        "data is missing", "model is missing", "groups is missing", "sparsity is 1.0", "tolerance is 2",
        "epochs is 0", "lr is nan", "optimizer is 'adm': choose sgd or adamw", "pattern is '2'",
        "schedule is 'step'",
        "seeds is [1, 1]",
        "method 'ceag:k=0'", "method 'nonsense': there is no such method; choose of nft", "kk",
        "confidence is 1.5", "batch_size is 0", "image_size is 0", "test_share is 1.0",
        "corrupt is 'keep': choose refuse or skip", "bin is 'age=3,x': 'x' is no number",
        "bin names column 'sex', which is no group", "merge_below is 0", "augment is 'flop'",
        "augment is 'crop:x'", "heldout_share is 1.0", "fleet is 0",
        "without is grap, kernels: choose compile or graph or channels-last or data-on-device",
    ):  # fmt: skip
        assert part in said
    assert GOOD.problems() == []


def test_results_go_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "photos.csv").touch()
    (problem,) = replace(GOOD, out=str(tmp_path / "photos.csv")).problems()
    assert problem.startswith("out is '")
    assert problem.endswith("photos.csv', a file: give a folder")
    assert replace(GOOD, out=str(tmp_path)).problems() == []
    assert replace(GOOD, out=str(tmp_path / "new" / "one")).problems() == []


def test_methods_take_the_shared_settings_and_prefer_their_own() -> None:
    shared = replace(GOOD, tolerance=0.03, dual_lr=0.2, k=7)
    assert build_method("ceag", shared) == methods.ceag(tolerance=0.03, dual_lr=0.2, k=7)
    own = build_method("ceag:dual_lr=0.5,k=9,estimator=table", shared)
    assert own == methods.ceag(tolerance=0.03, dual_lr=0.5, k=9, estimator="table")
    assert build_method("nft", shared) == methods.nft()
    assert build_method("nft-es", shared) == methods.nft_es(on="validation")
    assert build_method("el-rb", GOOD) == methods.el_rb()


def test_settings_may_be_true_or_false_and_names_may_have_underscores() -> None:
    assert build_method("fairgrape:fast=False", GOOD) == methods.fairgrape()
    for text in ("fairgrape:fast=true", "fairgrape-fast", "fairgrape_fast"):
        assert build_method(text, GOOD) == methods.fairgrape(fast=True)
    assert build_method("el_rb", GOOD) == methods.el_rb()
    with pytest.raises(ValueError, match="fast is 'maybe'; write true or false"):
        build_method("fairgrape:fast=maybe", GOOD)
    with pytest.raises(ValueError, match="fairgrape-fast"):
        build_method("fairgrapes", GOOD)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kd:refresh=3", "kd has no setting refresh; it takes distill, temperature."),
        ("kd:distil=0.5", "kd has no setting distil; did you mean distill?"),
        ("kd:distil=0.5,k=3", "did you mean distill? kd has no setting k; it takes distill, temperature."),
        ("nft:k=3", "nft has no setting k; it takes none."),
        ("ceag-no-rb:estimator=table", "ceag-no-rb has no setting estimator; it takes tolerance, dual_lr, "),
    ],
)
def test_a_setting_that_a_method_has_not_is_told_with_those_that_it_takes(text: str, said: str) -> None:
    (problem,) = replace(GOOD, method=(text,)).problems()
    assert problem.startswith(f"method {text!r}: ")
    assert said in problem


def test_every_method_of_the_table_can_be_asked_for() -> None:
    everything = replace(GOOD, method=tuple(methods.TABLE))
    assert everything.problems() == []
    assert [m.name.replace("_", "-") for m in everything.methods()] == list(methods.TABLE)


@pytest.mark.parametrize(
    ("text", "seeds"), [("5", (0, 1, 2, 3, 4)), ("3,7", (3, 7)), ("3,", (3,)), ("0, 1", (0, 1)), ("", ())]
)
def test_seeds_are_a_number_of_runs_or_a_list(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


def test_seeds_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="seeds is 'a,b'"):
        parse_seeds("a,b")
    with pytest.raises(ValueError, match=r"seeds is '0', a number of runs: .* seed 0 is \"0,\"$"):
        parse_seeds("0")


@settings(max_examples=60)
@given(st.lists(st.integers(0, 10**6), min_size=2, unique=True))
def test_lists_of_seeds_are_read_back(seeds: list[int]) -> None:
    assert parse_seeds(",".join(map(str, seeds))) == tuple(seeds)


def test_the_recipe_has_what_the_experiment_says() -> None:
    wanted = replace(GOOD, lr=0.3, momentum=0.5, epochs=9, pruning_epochs=2, pattern="2:4", exclude=("fc",))
    recipe = wanted.recipe()
    weights = [{"params": [nn.Parameter(nn.Linear(1, 1).weight.detach())]}]
    optimizer = recipe.optimizer(weights)
    assert isinstance(optimizer, SGD)
    assert (optimizer.defaults["lr"], optimizer.defaults["momentum"]) == (0.3, 0.5)
    assert (recipe.epochs, recipe.pruning_epochs, recipe.pattern, recipe.exclude) == (9, 2, (2, 4), ("fc",))
    assert isinstance(replace(wanted, optimizer="adamw").recipe().optimizer(weights), AdamW)
    assert replace(wanted, schedule="constant").recipe().scheduler is None
    assert (recipe.fleet_size, replace(wanted, fleet=2).recipe().fleet_size) == (None, 2)
    assert (recipe.compile, recipe.graph, recipe.channels_last, recipe.data_on_device) == (None,) * 4
    assert replace(wanted, without=("graph",)).recipe().compile is None
    slow = replace(wanted, without=FAST).recipe()
    assert (slow.compile, slow.graph, slow.channels_last, slow.data_on_device) == (False,) * 4
    assert recipe.augment is None
    assert replace(wanted, augment=("flip", "crop:2")).recipe().augment == Both(Flip(), Crop(2))
    late = replace(wanted, schedule="steps:0.5,0.75", epochs=8).recipe().scheduler
    assert late is not None
    assert dict(late(optimizer, 8).state_dict()["milestones"]) == {4: 1, 6: 1}
