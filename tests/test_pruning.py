"""prune(): what goes in, what comes out, that it resumes, and that every problem is one clear message."""

import copy
import html
import json
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import Dataset, TensorDataset

from evenprune import comparison_page, diagnostics, folds, methods
from evenprune.checkpoint import CheckpointError, DifferentExperiment
from evenprune.folds import Folds
from evenprune.method import Method
from evenprune.predict import predict
from evenprune.pruning import prune
from evenprune.recipe import Recipe, Run, Split
from evenprune.result import Result
from evenprune.run_names import method_labels, run_labels
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


NEED_NO_GROUPS = [methods.nft(), methods.nft_es(on="heldout"), methods.kd(), methods.performance_weighted()]
UNGROUPED: dict[str, Callable[[Split], Any]] = {
    "pairs of tensors": lambda split: (split.inputs, split.labels),
    "no id known": lambda split: (split.inputs, split.labels, torch.full_like(split.groups, -1)),
    "one group": lambda split: (split.inputs, split.labels, torch.zeros_like(split.groups)),
    "one group is known": lambda split: (split.inputs, split.labels, split.groups.clamp(0, 1) - 1),
    "a data set of pairs": lambda split: TensorDataset(split.inputs, split.labels),
    "a list of pairs": lambda split: list(zip(split.inputs, split.labels.tolist(), strict=True)),
}


@pytest.mark.parametrize("form", UNGROUPED)
def test_training_samples_need_no_groups_where_no_method_looks_at_them(form: str) -> None:
    some = {"method": [methods.kd(), methods.performance_weighted()], "tolerance": 0.05}
    there, without = call(**some), call(**some, train=UNGROUPED[form](TRAIN))
    for name, model in there.models.items():
        for mine, theirs in zip(without.models[name].parameters(), model.parameters(), strict=True):
            assert torch.equal(mine, theirs)
        assert without.audits[name]["test"].to_dict() == there.audits[name]["test"].to_dict()
        assert list(without.audits[name]) == ["test"]
    assert "The training samples have no groups to compare: nothing is said of gaps there." in without.notes
    assert not any("no groups" in note for note in there.notes)


def test_nothing_is_said_of_gaps_of_training_samples_without_groups(tmp_path: Path) -> None:
    held = tensors(images(120, seed=2))
    found = call(method=NEED_NO_GROUPS, train=(TRAIN.inputs, TRAIN.labels), heldout=held, tolerance=0.05)
    line = next(line for line in found.table().splitlines() if line.startswith("KD"))
    assert line.split()[3] == line.split()[5] == line.split()[7] == "–"  # max ψ, Ψ_PW, within the tolerance
    page = html.unescape(found.save(tmp_path / "c.html").read_text(encoding="utf-8"))
    assert "The training samples have no groups to compare: who paid is told by unseen data alone." in page
    assert '"splits":["heldout","test"]' in (tmp_path / "c.html").read_text(encoding="utf-8").replace(" ", "")
    with pytest.warns(UserWarning, match="held-out samples in 3 groups are few"):
        chosen = call(
            method=NEED_NO_GROUPS[::2],
            train=(TRAIN.inputs, TRAIN.labels),
            heldout=held,
            tolerance=0.05,
            select="heldout",
        )
    assert chosen.selected in chosen.names


@pytest.mark.parametrize(
    "method",
    [
        CEAG,
        methods.balanced(),
        methods.fairgrape(fast=True),
        methods.group_dro(),
        methods.ceag(tolerance=0.05, multipliers_on="heldout"),
    ],
)
def test_training_samples_without_groups_are_refused_where_a_method_looks_at_them(method: Method) -> None:
    assert method.needs_groups
    two = {"method": [methods.nft(), method], "heldout": tensors(images(120, seed=2)), "tolerance": 0.05}
    for form, said in {
        "pairs of tensors": "has 2 parts",
        "no id known": "one group only",
        "one group": "one group only",
        "one group is known": "train: 1 known group",
    }.items():
        with pytest.raises(InputProblems, match=said):
            call(**two, train=UNGROUPED[form](TRAIN))


def test_unseen_samples_need_groups_whatever_the_training_samples_have() -> None:
    one_known = UNGROUPED["one group is known"](TEST)
    with pytest.raises(InputProblems, match="audit is missing: give samples"):
        call(method=methods.nft(), tolerance=0.05, train=(TRAIN.inputs, TRAIN.labels), test=None)
    with pytest.raises(InputProblems, match=r"^test: 1 known group \(young\); give two or more$"):
        call(method=methods.nft(), tolerance=0.05, train=(TRAIN.inputs, TRAIN.labels), test=one_known)


def test_methods_that_look_at_no_groups_are_these() -> None:
    assert not any(method.needs_groups for method in NEED_NO_GROUPS)


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


def test_a_setting_that_a_method_has_not_is_no_part_of_its_name() -> None:
    runs = [Run(method=replace(CEAG, multipliers_on=on), sparsity=0.5) for on in (None, "heldout")]
    assert run_labels(runs) == ["CEAG, seed 0", "CEAG, on heldout, seed 0"]


def test_settings_that_another_one_implies_are_no_part_of_a_name_unless_they_differ() -> None:
    def labels(*some: Method) -> list[str]:
        return method_labels([Run(method=method, sparsity=0.5) for method in some])

    passes = replace(CEAG, multipliers_on="heldout", estimator="pass", refresh=9)
    assert labels(CEAG, passes) == ["CEAG", "CEAG, on heldout"]
    assert labels(CEAG, passes, replace(passes, refresh=3)) == [
        "CEAG",
        "CEAG, on heldout, refresh 9",
        "CEAG, on heldout, refresh 3",
    ]
    kept = replace(passes, keep="feasible", keep_on="heldout")
    assert labels(passes, kept) == ["CEAG", "CEAG, keep feasible"]


@given(
    st.lists(
        st.builds(
            methods.ceag,
            tolerance=st.sampled_from([0.0, 0.01]),
            dual_lr=st.sampled_from([0.002, 0.1]),
            k=st.sampled_from([5, 40]),
            negative=st.sampled_from(["clip", "keep"]),
            distill=st.sampled_from([0.0, 0.5]),
        ),
        min_size=1,
        unique=True,
    )
)
def test_names_of_methods_are_unique_and_leave_out_what_is_usual(some: list[methods.Method]) -> None:
    labels = method_labels([Run(method=method, sparsity=0.5) for method in some])
    assert len(set(labels)) == len(some)
    for words in ("k 40", "negative clip", "distill 0.0"):
        assert not any(words in label for label in labels)


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
    with pytest.warns(UserWarning, match="1 of the groups in test is not in the training data"):
        found = call(groups=None, test=(TEST.inputs, TEST.labels, groups))
    assert found.samples.names == ("0", "1", "2")
    assert found.audit["7"].samples == 30
    assert found.with_diagnostics(DENSE, iterations=1).audit.columns["gradient norm"]["7"] > 0


def test_a_model_that_cannot_be_widened_trains_one_run_after_another(tmp_path: Path) -> None:
    model = trained(Branching(), TRAIN)
    found = call(model=model, seeds=range(2), folder=tmp_path, recipe=recipe(epochs=3, pruning_epochs=1))
    assert found.names == ("CEAG, seed 0", "CEAG, seed 1")
    assert len(list(tmp_path.glob("**/metrics.jsonl"))) == 2


@pytest.mark.parametrize(
    ("sparsity", "seeds", "expected"),
    [
        (np.float32(0.5), np.int64(2), [(0.5, 0), (0.5, 1)]),
        (torch.tensor([0.5, 0.75]), np.arange(1, 2), [(0.5, 1), (0.75, 1)]),
        (torch.tensor(0.5), torch.tensor([3]), [(0.5, 3)]),
        (iter((0.5, 0.75)), [np.int32(0)], [(0.5, 0), (0.75, 0)]),
    ],
)
def test_numbers_may_be_those_of_numpy_and_torch(
    sparsity: Any, seeds: Any, expected: list[tuple[float, int]], tmp_path: Path
) -> None:
    short = recipe(epochs=1, pruning_epochs=1)
    found = call(method=iter([methods.nft()]), tolerance=0.1, recipe=short, sparsity=sparsity, seeds=seeds)
    assert [(run.sparsity, run.seed) for run in found.runs] == expected
    assert {type(value) for run in found.runs for value in (run.sparsity, run.seed)} == {float, int}
    found.save(tmp_path / "result.json")


# --- three splits ---

HELD = images(90, seed=5)


def heard(**changes: Any) -> Result:
    """A call that warns of few held-out samples, as it should with 90."""
    with pytest.warns(UserWarning, match="90 held-out samples in 3 groups are few"):
        return call(**changes)


@pytest.mark.parametrize("select", ["heldout", "validation"])
def test_a_setting_that_was_fitted_to_what_chose_it_is_told(select: str) -> None:
    """Of three runs that differ in accuracy by far: the chosen one follows the held-out data, or does not."""
    told = {"heldout": HELD, "select": select, "tolerance": 1.0}
    held = methods.ceag(tolerance=0.0, multipliers_on="heldout", estimator="pass", refresh=2)
    wild = methods.ceag(tolerance=0.0, dual_lr=100.0, negative="keep", k=5)
    mild, strong = replace(held, dual_lr=1e-6), replace(held, dual_lr=100.0)
    notes = {}
    several = {
        "mild": [wild, mild],
        "strong": [methods.nft(), strong],
        "alone": [mild],
        "all": [mild, strong],
    }
    for name, some in several.items():
        found = call(method=some, **told)
        assert found.runs[found.names.index(found.selected)].method == (some[0] if name == "strong" else mild)
        notes[name] = [note for note in found.notes if "held-out data, which also chose it" in note]
    assert {name: len(own) for name, own in notes.items()} == {"mild": 1, "strong": 0, "alone": 0, "all": 1}
    assert "and than settings that did not see these samples" in notes["mild"][0]
    assert "the one with the largest step most of all" in notes["all"][0]


def test_one_setting_is_chosen_on_the_held_out_split_by_its_mean_over_the_seeds() -> None:
    every = [methods.nft(), CEAG, methods.kd(distill=0.5)]
    found = heard(method=every, seeds=range(3), heldout=HELD, select="heldout", tolerance=0.05)
    runs = {method["name"]: method["runs"] for method in found.document()["methods"]}
    held = {f"{title}, seed {run['seed']}": run["heldout"] for title, of in runs.items() for run in of}
    gaps = {name: figures["max_excess_gap"] for name, figures in held.items()}
    means = {
        title: [np.mean([run["heldout"][key] for run in of]) for key in ("max_excess_gap", "accuracy")]
        for title, of in runs.items()
    }
    best = max((t for t, (gap, _) in means.items() if gap <= 0.05), key=lambda t: means[t][1])
    own = sorted((name for name in gaps if name.startswith(best)), key=gaps.__getitem__)
    assert found.selected == own[1]
    assert found.audit is found.audits[own[1]]["test"]
    assert found.verdict == found.audit.verdict
    assert call().selected == "CEAG, seed 0"
    document = found.document()
    assert (document["selected"], document["selected_on"]) == (own[1], "heldout")
    assert document["selected_because"].startswith(f"Chosen on the held-out data: {best}, ")
    for text in (str(found), comparison_page.to_html(document)):
        assert f"Its run of the median max ψ is {own[1]}." in " ".join(html.unescape(text).split())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"select": "test"}, "select is 'test': choose on 'heldout'"),
        ({"select": "audit"}, "select is 'audit': choose on 'heldout'"),
        ({"select": "heldout"}, "select='heldout' needs heldout="),
        ({"method": methods.ceag(tolerance=0.1, k=4, multipliers_on="heldout")}, "needs heldout="),
        ({"audit": TEST}, "audit= and test= are two names of one split"),
        ({"heldout": HELD, "validation": HELD}, "validation= and heldout= are two names of one split"),
        ({"test": None}, "audit is missing"),
        ({"method": methods.nft_es(on="audit"), "tolerance": 0.1}, "keep_on='audit', but the test data is"),
        ({"heldout": HELD, "select": "heldout", "method": [CEAG, methods.ceag(tolerance=0.01, k=5)]},
         "several tolerances (0.05, 0.01): say by which all are judged"),
        ({"method": methods.ceag(tolerance=0.1, multipliers_on="folds", estimator="pass", refresh=2)},
         "needs folds=Folds(of, models)"),
        ({"method": methods.ceag(tolerance=0.1, k=4, multipliers_on="hold-out")},
         "multipliers_on='hold-out' is no split; name 'heldout', samples given as heldout=…, or 'folds', "),
        ({"method": methods.nft_es(on="dev"), "tolerance": 0.1},
         "keep_on='dev' is no split; name 'heldout', samples given as heldout=…."),
        ({"method": methods.ceag(tolerance=0.1, k=4, multipliers_on="train")},
         "hold samples out, or leave multipliers_on out: multipliers follow the training batches then."),
    ],
)  # fmt: skip
def test_splits_have_one_use_and_one_name_each(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputProblems, match=re.escape(said)) as caught:
        call(**changes)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("name", ["test", "audit"])
def test_an_audit_split_that_is_absent_and_followed_is_told_once_for_each(name: str) -> None:
    with pytest.raises(InputProblems) as caught:
        call(test=None, method=methods.ceag(tolerance=0.1, k=4, multipliers_on=name))
    absent, steered = caught.value.problems
    assert absent.startswith("audit is missing")
    assert f"multipliers_on='{name}', but the test data is for the audit" in steered


def test_held_out_and_audit_are_names_of_splits_and_others_are_understood() -> None:
    def ran(**splits: Any) -> Result:
        on = "validation" if "validation" in splits else "heldout"
        follows = methods.ceag(
            tolerance=0.05, dual_lr=0.1, k=4, multipliers_on=on, keep="feasible", keep_on=on
        )
        return heard(**{"test": None, "method": follows} | splits)

    one, other = ran(heldout=HELD, audit=TEST), ran(validation=HELD, test=TEST)
    assert one.document() == other.document() | {"seconds": one.document()["seconds"]}
    assert list(one.audits["CEAG, seed 0"]) == ["train", "heldout", "test"]
    for name, synonym in (("heldout", "validation"), ("test", "audit")):
        assert one.audits["CEAG, seed 0"][name] is one.audits["CEAG, seed 0"][synonym]
    with pytest.raises(KeyError, match="there is no split 'dev'; there are 'train', 'heldout', 'test'"):
        one.audits["CEAG, seed 0"]["dev"]


def test_a_kept_epoch_that_is_beyond_the_tolerance_is_told() -> None:
    def notes(tolerance: float) -> list[str]:
        kept = methods.ceag(tolerance=tolerance, k=4, keep="feasible", keep_on="heldout")
        with warnings.catch_warnings(action="ignore"):
            found = call(method=kept, heldout=HELD, seeds=2, tolerance=0.05)
        gaps = {run.run.seed: found._gaps(run, "heldout")["max_excess_gap"] for run in found.fitted}
        assert all((gap > tolerance) == (tolerance == 0) for gap in gaps.values())
        return [note for note in found.notes if "no epoch" in note]

    (note,) = notes(0.0)
    assert note.startswith("CEAG: no epoch with seeds 0, 1 kept every group within ε = 0 on the held-out")
    assert notes(0.9) == []


def warnings_of(*every: methods.Method, **changes: Any) -> tuple[str, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(method=every, heldout=HELD, recipe=recipe(epochs=3, pruning_epochs=1), **changes).warned


def test_few_held_out_samples_are_measured_by_the_tolerances_of_accuracy_gaps_alone() -> None:
    free = [
        methods.equalized(k=4, dual_lr=0.1, multipliers_on="heldout"),
        methods.ceag(tolerance=0.0, k=4, dual_lr=0.1, multipliers_on="heldout"),
        methods.celg(tolerance=0.001, k=4, dual_lr=0.1, multipliers_on="heldout"),
    ]
    assert warnings_of(*free, tolerance=0.05) == ()
    (chosen,) = warnings_of(methods.nft(), *free, tolerance=0.05, select="heldout")
    assert "are few for ε = 5:" in chosen
    assert "so the choice of a run will follow noise" in chosen
    own = methods.ceag(tolerance=0.03, k=4, dual_lr=0.1, multipliers_on="heldout")
    (both,) = warnings_of(own, *free, tolerance=0.05, select="heldout")
    assert "are few for ε = 3:" in both
    assert "so the multipliers of CEAG and the choice of a run will follow noise" in both


@pytest.mark.parametrize("names", [("audit",), ("test",), ("audit", "test", "validation")])
def test_a_recipe_may_call_splits_by_either_name(names: tuple[str, ...]) -> None:
    found = call(heldout=HELD, recipe=recipe(only_at_end=names))
    known = [list(row["splits"]) for row in found.history["CEAG, seed 0"]]
    early = ["train"] if "validation" in names else ["train", "heldout"]
    assert known == [early] * 5
    assert sum(group.samples for group in found.audit.groups) == len(TEST)  # at the end
    with pytest.raises(
        InputProblems, match='only_at_end names split "heldout", which is not evaluated at all'
    ):
        call(recipe=recipe(only_at_end=("validation",)))


def test_a_choice_without_a_known_group_says_so_in_words() -> None:
    strangers = (HELD.inputs, HELD.labels, 7 + HELD.labels)
    with pytest.warns(UserWarning, match="groups in heldout are not in the training data"):
        found = call(heldout=strangers, select="heldout", groups=None)
    said = found.document()["selected_because"]
    assert "as no group of the training data has held-out samples" in said
    assert "inf" not in said


def test_a_group_that_nothing_held_out_shows_is_told(tmp_path: Path) -> None:
    lacking = (HELD.inputs, HELD.labels, HELD.groups.clamp_max(1))
    said = 'Group "unknown age" has no held-out samples: what is chosen, kept or fitted there'
    few = "90 held-out samples in 2 groups are few"
    with pytest.warns(UserWarning, match=few), pytest.warns(UserWarning, match=said):
        found = call(heldout=lacking, select="heldout")
    assert len([note for note in found.notes if said in note]) == 1
    follows = replace(CEAG, multipliers_on="heldout")
    with pytest.raises(InputProblems, match='Group "unknown age" has no samples in split "heldout"'):
        call(heldout=lacking, method=follows, folder=tmp_path / "run")
    heard(heldout=HELD, method=follows, folder=tmp_path / "run")  # the refused call left nothing there
    plain = call(heldout=lacking)  # nothing looks at it
    assert not [note for note in plain.notes if "held-out" in note]


def test_a_held_out_split_picks_the_best_epoch() -> None:
    found = call(method=methods.nft_es(on="validation"), heldout=HELD, tolerance=0.05)
    rows = found.history["NFT+ES, seed 0"][2:]  # once pruning has ended
    best = max(row["splits"]["heldout"]["accuracy"] for row in rows)
    assert found.audits["NFT+ES, seed 0"]["heldout"].overall.pruned == pytest.approx(best)


def test_audits_say_whose_they_are_and_of_which_data() -> None:
    subjects = {split: audit.subject for split, audit in heard(
        method=methods.ceag(tolerance=0.05, dual_lr=0.1, k=4, multipliers_on="heldout"), heldout=HELD
    ).audits["CEAG, seed 0"].items()}  # fmt: skip
    assert subjects == {
        "train": "CEAG, seed 0, 60 % sparse · training data: not evidence",
        "heldout": "CEAG, seed 0, 60 % sparse · held-out data, used for choices: not evidence",
        "test": "CEAG, seed 0, 60 % sparse · test data",
    }
    unused = call(heldout=HELD)
    assert unused.audits["CEAG, seed 0"]["heldout"].subject.endswith(" · held-out data")
    assert "The model was trained on these samples" in unused.audits["CEAG, seed 0"]["train"].notes[0]
    assert str(unused.audit).startswith("CEAG, seed 0, 60 % sparse · test data\n")


def copied(split: Split) -> tuple[Tensor, Tensor, Tensor]:
    return split.inputs.clone(), split.labels.clone(), split.groups.clone()


def mixed(train: int, test: int) -> tuple[Tensor, ...]:
    """So many of the training samples, and of the test samples."""
    return tuple(torch.cat([a[:train], b[:test]]) for a, b in zip(tensors(TRAIN), tensors(TEST), strict=True))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"heldout": TEST, "test": TEST}, "the held-out data and the test data are the same samples"),
        ({"heldout": tensors(TEST)}, "the held-out data and the test data are the same samples"),
        ({"heldout": copied(TEST)}, "all 160 samples of the test data are in the held-out data as well"),
        ({"test": copied(TRAIN)}, "all 200 samples of the test data are in the training data as well"),
        ({"heldout": tuple(t[40:90] for t in tensors(TRAIN))}, "all 50 samples of the held-out data are in"),
        ({"test": mixed(199, 1)},
         "199 of the 200 samples of the test data are in the training data as well. Audit on samples that"),
    ],
)  # fmt: skip
def test_one_split_under_two_names_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputProblems, match=said):
        call(**changes)


def test_splits_that_share_some_samples_are_noted_in_the_audit() -> None:
    found = call(test=mixed(12, 160), heldout=HELD)
    said = "12 of the 172 samples of the test data are in the training data as well; the audit counts them"
    (note,) = [note for note in found.audit.notes if note.startswith(said)]
    assert found.notes == found.document()["notes"] == [note]
    for text in (str(found), comparison_page.to_html(found.document())):
        assert note in " ".join(html.unescape(text).split())
    assert not [
        n for split in ("train", "heldout") for n in found.audits["CEAG, seed 0"][split].notes if "well" in n
    ]


def test_multipliers_can_follow_folds() -> None:
    of = folds.assign(TRAIN.groups, 3)
    parts = [tuple(t[of != fold] for t in tensors(TRAIN)) for fold in range(3)]
    models = tuple(trained(network(), Split(*part)) for part in parts)
    crossed = methods.ceag(tolerance=0.05, dual_lr=0.1, multipliers_on="folds", estimator="pass", refresh=2)
    found = call(method=crossed, folds=Folds(of, models), folder=None)
    assert found.names == ("CEAG, seed 0",)
    assert any(found.history["CEAG, seed 0"][-1]["multipliers"])
    lazy = replace(crossed, tolerance=0.001, dual_lr=1e-7)
    idle = call(method=lazy, sparsity=0.9, folds=Folds(of, models), folder=None)
    assert any("hardly acted" in note and "on the training data" in note for note in idle.notes)


# --- what a result says of itself ---


def test_runs_that_diverged_are_told_and_their_multipliers_are_not_spoken_of() -> None:
    wild = methods.equalized(dual_lr=1e38, k=5, negative="keep")
    found = call(method=[methods.nft(), wild], seeds=range(2), tolerance=0.001)
    (note,) = found.notes
    assert note.startswith("Equalized diverged (seed 0 in epoch 3, seed 1 in epoch 3): its loss or")
    runs = [(run["seed"], run.get("diverged")) for m in found.document()["methods"] for run in m["runs"]]
    assert runs == [(0, None), (1, None), (0, 2), (1, 2)]


def test_multipliers_that_did_nothing_are_told_with_a_step_that_would_have_done_more() -> None:
    lazy = methods.ceag(tolerance=0.001, dual_lr=1e-4, k=5)
    found = call(method=[methods.nft(), lazy], sparsity=0.9, tolerance=0.001)
    (note,) = found.notes
    assert note.startswith("CEAG hardly acted: its multipliers sum to ")
    assert note in found.document()["notes"]
    step = float(re.search(r"dual_lr=(\S+) instead of 0.0001", note)[1])  # type: ignore[index]
    eager = call(method=replace(lazy, dual_lr=step), sparsity=0.9)
    last = eager.document()["methods"][0]["runs"][0]["multiplier_sum"]
    assert 0.1 <= last <= 2
    assert eager.notes == []


@pytest.mark.parametrize("estimator", ["batch", "table"])
def test_pruning_may_last_to_the_end(estimator: Any) -> None:
    method = methods.ceag(tolerance=0.0, dual_lr=0.1, estimator=estimator)
    found = call(method=method, sparsity=0.9, recipe=recipe(epochs=2, pruning_epochs=2), tolerance=0.05)
    assert found.document()["methods"][0]["runs"][0]["train"]["max_excess_gap"] > 0
    (note,) = found.notes
    assert note.startswith("CEAG never acted: multipliers move after pruning")
    splits = {"train": by_label(TRAIN), "heldout": by_label(HELD), "test": by_label(TEST), "groups": None}
    biased = call(**splits, method=method, recipe=recipe(epochs=2, pruning_epochs=2)).with_class_bias()
    assert len([note for note in biased.notes if "never acted" in note]) == 1  # of the training alone
    assert call(method=methods.nft(), recipe=recipe(epochs=2, pruning_epochs=2), tolerance=0.05).notes == []


def test_negative_sample_weights_are_counted_and_told() -> None:
    strong = methods.ceag(tolerance=0.0, dual_lr=5.0, k=5)
    found = call(
        method=[methods.nft(), strong, replace(strong, negative="keep")], sparsity=0.9, tolerance=0.05
    )
    counts = {m["name"]: m["runs"][0]["negative_weights"] for m in found.document()["methods"]}
    assert [count > 0 for count in counts.values()] == [False, True, True]
    clipped, kept = found.notes
    weights = 3 * 8 * 24  # epochs, steps and samples
    many = counts["CEAG"]
    assert f"({many:,} of {weights:,} in a run); they were clipped at zero" in clipped
    assert clipped.startswith("CEAG: ")
    assert kept.endswith("they were kept, as in the paper.")
    assert kept in " ".join(str(found).split())


def test_a_class_bias_is_fitted_on_the_held_out_split_and_audited_on_the_test_data() -> None:
    by_label = {name: (s.inputs, s.labels, s.labels) for name, s in (("train", TRAIN), ("test", TEST))}
    big = images(400, seed=6)
    found = call(
        **by_label, heldout=(big.inputs, big.labels, big.labels), groups=None, method=methods.nft(),
        tolerance=0.02, sparsity=0.9, seeds=2,
    ).with_class_bias()  # fmt: skip
    names = ("NFT, seed 0", "NFT, seed 1", "NFT + class bias, seed 0", "NFT + class bias, seed 1")
    assert found.names == names
    moved = 0
    for name in names[2:]:
        plain, biased = found.audits[name.replace(" + class bias", "")], found.audits[name]
        assert biased["heldout"].max_excess_gap.estimate <= plain["heldout"].max_excess_gap.estimate
        moved += biased["test"].overall.pruned != plain["test"].overall.pruned
        assert "used for choices" in biased["heldout"].subject
        for split, samples in (("test", TEST), ("heldout", big)):
            with torch.no_grad():
                right = (found.models[name](samples.inputs).argmax(1) == samples.labels).double()
            assert biased[split].overall.pruned == pytest.approx(float(right.mean()))
        assert (
            found.models[name].state_dict().keys() == DENSE.state_dict().keys()
        )  # folded into its last layer
    assert moved
    document = found.document()
    assert [m["name"] for m in document["methods"]] == ["NFT", "NFT + class bias"]
    assert document["methods"][1]["settings"] == {"class_bias_on": "heldout"}


def by_label(split: Split) -> tuple[Tensor, Tensor, Tensor]:
    return split.inputs, split.labels, split.labels


def biasable(**changes: Any) -> Result:
    """Runs whose groups are their labels."""
    splits = {"train": by_label(TRAIN), "heldout": by_label(images(400, seed=6)), "test": by_label(TEST)}
    return call(
        **splits | {"groups": None, "method": methods.nft(), "tolerance": 0.02, "sparsity": 0.9} | changes
    )


def test_a_class_bias_is_evaluated_in_the_precision_of_the_other_runs() -> None:
    found = biasable(recipe=recipe(precision="bfloat16")).with_class_bias()
    plain, biased = found.fitted
    assert not torch.equal(plain.model[-1].bias, biased.model[-1].bias)  # type: ignore[index]
    for name, split in found.samples.splits.items():
        for one in (plain, biased):
            own = predict(one.model, split, precision="bfloat16")
            assert torch.equal(one.predictions[name].losses, own.losses)
            assert not torch.equal(own.losses, predict(one.model, split).losses)
            assert torch.equal(one.predictions[name].predictions, own.predictions)


def test_a_class_bias_of_zero_changes_no_answer() -> None:
    found = biasable(tolerance=0.9, recipe=recipe(precision="bfloat16")).with_class_bias()
    plain, biased = found.fitted
    assert torch.equal(plain.model[-1].bias, biased.model[-1].bias)  # type: ignore[index]
    for name in found.samples.splits:
        assert torch.equal(plain.predictions[name].losses, biased.predictions[name].losses)


def test_a_class_bias_is_not_given_twice() -> None:
    once = biasable(seeds=2).with_class_bias()
    again = once.with_class_bias()
    assert again.names == once.names
    assert len(set(again.names)) == 4
    part = replace(once, fitted=once.fitted[:3]).with_class_bias()  # the bias of one run is missing
    assert part.names == once.names


def test_a_class_bias_does_not_look_at_the_audited_split() -> None:
    """There the groups are no unions of labels, and a class occurs that is nowhere else."""
    some = {"train": TRAIN, "heldout": images(400, seed=6)}
    splits = {
        name: (split.inputs[few := split.labels < 3], split.labels[few], split.labels[few] // 2)
        for name, split in some.items()
    }
    one, other = (
        biasable(**splits, test=(TEST.inputs, TEST.labels, groups)).with_class_bias()
        for groups in (TEST.labels // 2, torch.arange(len(TEST)) % 2)
    )
    for ours, theirs in zip(one.fitted, other.fitted, strict=True):
        for name, tensor in ours.model.state_dict().items():
            assert torch.equal(tensor, theirs.model.state_dict()[name]), name


def test_a_class_bias_that_cannot_be_is_one_clear_message(result: Result) -> None:
    with pytest.raises(InputProblems) as caught:
        result.with_class_bias()
    for part in (
        "2 problems",
        "give prune(heldout=…)",
        "groups that are labels, or unions of labels; those of age are not: ",
    ):
        assert part in str(caught.value)
    with pytest.raises(InputProblems, match="on is 'test': fit the class bias on 'heldout'"):
        result.with_class_bias(on="test")


def test_diagnostics_go_into_the_audits_of_the_test_data(result: Result) -> None:
    found = result.with_diagnostics(DENSE, iterations=2)
    measured = diagnostics.measure(DENSE, result.samples.splits["test"], result.samples.names, iterations=2)
    for name in result.names:
        columns = found.audits[name]["test"].columns
        norms = columns["gradient norm"]
        assert [norms[g] for g in result.samples.names] == pytest.approx(measured["gradient_norm"].tolist())
        assert list(columns)[1] == "largest Hessian eigenvalue"
        assert not found.audits[name]["train"].columns
    with pytest.raises(InputProblems, match="does not take the inputs of this split"):
        result.with_diagnostics(nn.Linear(3, 2))
    torch.manual_seed(9)
    with pytest.raises(
        InputProblems, match=r"of the first 160 samples it answers \d+ as .* pass the dense model"
    ):
        result.with_diagnostics(network())  # untrained
    assert not measured["converged"].all()  # after two iterations
    assert "≈ " in str(found.audit)
    assert [note for note in found.audit.notes if "≈ marks" in note and "did not converge" in note]


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
    ({"train": changed(TRAIN, groups=(9, 3))}, ["train: 1 group id of 'age' outside −1 … 2", "sample 9"]),
    ({"groups": None, "train": changed(TRAIN, groups=(9, -2))}, ["holds -2", "missing one"]),
    ({"train": (X, Y.double(), G)}, ["labels are torch.float64"]),
    ({"train": changed(TRAIN, inputs=(7, math.nan))}, ["1 sample has inputs that are NaN", "sample 7"]),
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
    ({"groups": None, "train": (X, Y, G * 0)}, ["train: one group only: every sample has the value '0'"]),
    ({"groups": None, "train": (X, Y, G.clamp(0, 1) - 1)}, ["train: 1 known group (0); give two or more"]),
    ({"model": broken_model()}, ["the dense model's loss is NaN or infinite on 200 of 200"]),
    ({"model": nn.Linear(3, 4)}, ["does not take the training inputs", "[2, 1, 6, 6]"]),
    ({"model": nn.Conv2d(1, 4, 3)}, ["logits [batch, classes]"]),
    ({"seeds": ()}, ["There are no runs"]),
    ({"seeds": "3", "sparsity": "0.9"}, ["sparsity is '0.9', a str: give a number", "seeds is '3', a str"]),
    ({"seeds": [0, 0.5]}, ["seeds is 0.5, a float: give how many, or whole numbers"]),
    ({"method": "ceag"}, ["method is 'ceag', a str: give one of evenprune.methods"]),
    ({"method": [CEAG, None], "recipe": {}}, ["method is None", "recipe is {}, a dict: give a Recipe"]),
    ({"folds": Folds(of=[0, 1])}, ["folds.of is [0, 1], a list: give what folds.assign gives"]),  # type: ignore[arg-type]
    ({"train": (X, ["cat"] * len(X), G)}, ["train: the labels are words, the first is 'cat'"]),
    ({"train": (X, np.array(["a"] * len(X)), G)}, ["train: the labels are words, the first is 'a'"]),
    ({"train": (X, pl.Series(["a"] * len(X)), G)}, ["train: the labels are words, the first is 'a'"]),
    ({"train": (X, Y, None)}, ["train: groups is None; give one value per sample (−1 or None where it is"]),
    ({"select": ["heldout"], "seeds": "3"}, ["select is ['heldout'], a list: give", "seeds is '3'"]),
]


@pytest.mark.parametrize(("changes", "said"), BAD, ids=[said[0] for _, said in BAD])
def test_bad_input_is_one_clear_message(changes: dict[str, Any], said: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputProblems) as caught:
        call(**changes, folder=tmp_path / "run")
    for part in said:
        assert part in str(caught.value)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_groups_that_are_none_are_one_problem() -> None:
    with pytest.raises(InputProblems) as caught:
        call(train=(X, Y, None), groups=None)
    assert len(caught.value.problems) == 1


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
