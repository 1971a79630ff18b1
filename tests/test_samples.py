"""People's data to splits: groups that an audit would refuse, normalisation, and dense models that guess."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch

from evenprune import checkpoint, groups, methods, samples
from evenprune.data.named_split import NamedSplit
from evenprune.plan import slow_rings
from evenprune.predict import Predictions
from evenprune.pruning import prune
from evenprune.recipe import Recipe, Split
from evenprune.reference import DenseReference
from evenprune.tally import InputProblems


def test_groups_that_no_audit_would_take_are_refused_before_the_training():
    n = 400
    many = {"a": np.arange(n) % 20, "b": np.arange(n) // 20}  # 20 values each: no identifiers, but 400 groups
    x, y = torch.zeros(n, 3), torch.arange(n) % 2
    with pytest.raises(InputProblems) as caught:
        samples.read({"train": (x, y, many), "test": (x, y, many)}, None)
    assert caught.value.problems[1] == (
        "test: 'a', 'b' make 400 groups of 400 samples, fewer than two each, such as '0 × 0', '0 × 1', "
        "'0 × 2'; bin numeric attributes, merge small groups, or choose others"
    )
    with pytest.raises(InputProblems, match="train: 'id' makes 400 groups"):
        samples.read({"train": (x, y, {"id": np.arange(n)})}, None)
    two = {"a": np.arange(n) % 2}
    one = {"a": np.zeros(n, int)}
    with pytest.raises(InputProblems, match="test: one group only: every sample has the value '0' in 'a'"):
        samples.read({"train": (x, y, two), "test": (x, y, one)}, None)
    with pytest.raises(InputProblems, match="'a'; choices on held-out samples and their audits compare gro"):
        samples.read({"train": (x, y, two), "heldout": (x, y, one), "test": (x, y, two)}, None)


def test_training_samples_of_one_class_are_refused():
    n = 40
    x, groups_ = torch.zeros(n, 3), {"a": np.arange(n) % 2}
    test = (x, torch.zeros(n, dtype=torch.int64), groups_)
    with pytest.raises(InputProblems, match="train: there is one class only: all 40 labels are 3"):
        samples.read({"train": (x, torch.full((n,), 3), groups_), "test": test}, None)
    assert samples.read({"train": (x, torch.arange(n) % 2, groups_), "test": test}, None).names == ("0", "1")


class Untouched(torch.nn.Linear):
    def forward(self, _):
        raise AssertionError("the model was used")


def test_pruning_does_not_begin_with_too_many_groups():
    n = 400
    many = {"a": np.arange(n) % 20, "b": np.arange(n) // 20}
    data = (torch.zeros(n, 3), torch.arange(n) % 2, many)
    with pytest.raises(InputProblems, match="'a', 'b' make 400 groups of 400 samples"):
        prune(
            Untouched(3, 2),
            train=data,
            test=(data[0] + 1, *data[1:]),
            sparsity=0.5,
            method=methods.nft(),
            tolerance=0.1,
        )


# --- what a Split says of itself ---


def test_a_split_keeps_its_bytes_and_what_they_are_normalised_by():
    pixels = torch.arange(40 * 12, dtype=torch.uint8).reshape(40, 3, 2, 2)
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.4, 0.5, 0.6])
    split = Split(pixels, torch.arange(40) % 2, torch.arange(40) % 3 - 1, mean, std)
    read = samples.read({"train": split, "test": split}, {"race": ["A", "B"]})
    own = read.splits["test"]
    assert own.inputs.dtype == torch.uint8
    assert own.inputs.data_ptr() == pixels.data_ptr()
    assert torch.equal(own.at(torch.arange(3)), split.at(torch.arange(3)))
    assert read.names == ("A", "B")
    named = NamedSplit.of(split, ["A", "B"])
    read = samples.read({"train": named, "test": named}, "race")
    assert read.names == ("A", "B")
    assert read.columns["test"]["race"].tolist() == [None, "A", "B"] * 13 + [None]
    assert checkpoint.describe(named) == checkpoint.describe(split)  # old folders can be resumed


def test_a_changed_split_keeps_the_names_of_its_groups():
    ids = torch.arange(40) % 3 - 1
    named = NamedSplit.of(Split(torch.zeros(40, 2), torch.arange(40) % 2, ids), ["A", "B"])
    half = {name: getattr(named, name)[:20] for name in ("inputs", "labels", "groups")}
    for changed in (named.to(torch.device("cpu")), dataclasses.replace(named, **half)):
        read = samples.read({"train": changed, "test": changed}, "race")
        assert read.names == ("A", "B")
        assert read.columns["test"]["race"].tolist()[:3] == [None, "A", "B"]
    unnamed = NamedSplit(named.inputs, named.labels, named.groups)
    assert samples.read({"train": unnamed, "test": unnamed}, "race").names == ("0", "1")
    wrong = dataclasses.replace(named, groups=ids * 2)
    with pytest.raises(InputProblems) as caught:
        samples.read({"train": wrong, "test": named}, "race")
    assert caught.value.problems == [
        "train: 27 group ids outside −1 … 1 (2 names are given), the first is -2 at sample 0. Name them all: "
        "NamedSplit.of(split, names)"
    ]


def test_splits_that_are_not_normalised_alike_are_refused():
    pixels, labels = torch.zeros(40, 3, 2, 2), torch.arange(40) % 2
    split = Split(pixels, labels, labels, torch.zeros(3), torch.ones(3))
    with pytest.raises(InputProblems, match=r"train by mean 0, 0, 0 and deviation 1, 1, 1; test not at all"):
        samples.read({"train": split, "test": (pixels, labels, labels)}, None)


# --- a dense model that guesses ---


def answers(right: float, *, classes: int = 4, n: int = 400):
    labels = torch.arange(n) % classes
    predicted = torch.where(torch.arange(n) < right * n, labels, (labels + 1) % classes)
    return Predictions(labels, predicted, labels, torch.zeros(n))


def dense_notes(right: float) -> list[str]:
    n = 400
    data = (torch.zeros(n, 3), torch.arange(n) % 4, {"kind": np.arange(n) % 2})
    read = samples.read({"train": data, "test": data}, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        remarked = samples.remarked(read, answers(right))
    notes = groups.notes_of(remarked.columns["test"])
    assert [str(one.message) for one in caught] == notes
    return notes


def test_a_dense_model_that_guesses_is_told_in_the_audits():
    (note,) = dense_notes(0.24)
    assert note == (
        "The dense model is right in 24.0 % of the training samples, no better than always answering the "
        "most frequent class (25.0 %): wrong class order, wrong normalisation or untrained weights?"
    )
    assert "26.0 % of the training samples, hardly better than" in dense_notes(0.26)[0]
    assert dense_notes(0.35) == []


def test_pruning_warns_of_a_dense_model_that_guesses():
    inputs = torch.rand(160, 3, generator=torch.Generator().manual_seed(0))
    data = [(inputs[i::2], torch.arange(80) % 2, {"kind": np.arange(80) // 2 % 2}) for i in range(2)]
    model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(2)], torch.nn.Linear(3, 2))
    torch.nn.init.zeros_(model[2].weight)  # always the class of the larger bias
    with pytest.warns(UserWarning, match="right in 50.0 % of the training samples, no better than always"):
        result = prune(
            model,
            train=data[0],
            test=data[1],
            sparsity=0.5,
            method=methods.nft(),
            recipe=Recipe(epochs=1, pruning_epochs=0, batch_size=16),
            tolerance=0.1,
            hooks=[],
        )
    assert [note for note in result.audit.to_dict()["notes"] if "wrong class order" in note]


# --- words ---


def test_a_ring_that_fills_soon_is_told_without_one_epochs():
    counted = DenseReference.from_outcomes(
        correct=torch.ones(85), losses=torch.zeros(85), groups=torch.arange(85).clamp(max=2) % 3, names="abc"
    )
    assert counted.samples.tolist() == [1, 1, 83]
    told = slow_rings([methods.ceag(tolerance=0.1, k=90)], counted)
    assert told[0].startswith(
        'Group "a" has 1 training sample; a ring of 90 fills only after about 90 epochs. '
    )
    assert "a ring of 90 fills only after more than one epoch. Merge groups" in told[2]


def test_splits_of_other_inputs_than_the_training_data_are_refused_by_name():
    labels = torch.arange(40) % 2
    wrong = {
        "heldout": (torch.zeros(40, 3), "heldout: an input is float32 [3], in train it is float32 [4]"),
        "test": (torch.zeros(40, 4, dtype=torch.float64), "test: an input is float64 [4], in train it is "),
        "more": (
            torch.zeros(40, 4, dtype=torch.uint8),
            "more: an input is uint8 [4], in train it is float32",
        ),
    }
    splits = {name: (inputs, labels, labels) for name, (inputs, _) in wrong.items()}
    with pytest.raises(InputProblems) as caught:
        samples.read({"train": (torch.zeros(40, 4), labels, labels), **splits}, None)
    for problem, (_, told) in zip(caught.value.problems, wrong.values(), strict=True):
        assert problem.startswith(told)
        assert problem.endswith("; give all splits in one form")


def test_splits_with_other_columns_of_groups_are_refused_by_name():
    x, y = torch.zeros(40, 4), torch.arange(40) % 2
    train = (x, y, {"race": y, "gender": y})
    with pytest.raises(InputProblems) as caught:
        samples.read({"train": train, "heldout": (x, y, {"race": y}), "test": (x, y, y)}, None)
    told = [problem.partition("; give all splits the same columns")[0] for problem in caught.value.problems]
    assert told == [
        "heldout: the samples are grouped by race, those of train by gender, race",
        "test: the samples are grouped by group, those of train by gender, race",
    ]
    assert samples.read({"train": train, "test": (x, y, {"race": y})}, "race").names == ("0", "1")
    ungrouped = {"train": (x, y), "heldout": (x, y, {"race": y}), "test": (x, y, y)}
    with pytest.raises(InputProblems, match=r"test: .* grouped by group, those of heldout by race"):
        samples.read(ungrouped, None, needs_groups=False)
