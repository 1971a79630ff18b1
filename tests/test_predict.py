"""Predictions against a loop over samples, the numbers of a split, and people's data as a Split."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from evenprune import fleet
from evenprune.predict import as_split, cross_entropies, outcomes, predict, scores
from evenprune.recipe import Split
from evenprune.reference import DenseReference
from tests.training_cases import NAMES, Branching, images, network, trained


def test_predictions_are_those_of_a_loop_over_samples() -> None:
    split = images(50)
    model = trained(network(dropout=0.5), split)
    model.train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    found = predict(model, split, batch_size=7)
    assert [module.training for module in model.modules()] == modes
    model.eval()
    for i in range(len(split)):
        logits = model(split.inputs[i : i + 1])
        assert int(found.predictions[i]) == int(logits.argmax())
        expected = functional.cross_entropy(logits, split.labels[i : i + 1])
        torch.testing.assert_close(found.losses[i], expected.detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(found.correct, found.predictions == split.labels)


def test_the_mode_of_a_model_that_looks_at_it_is_put_back() -> None:
    model = Branching()
    model.train()
    predict(model, images(10))
    assert model.training
    assert model.layers.training


def test_a_fleet_is_evaluated_in_one_pass() -> None:
    split = images(30)
    models = [trained(network(), split, epochs=e) for e in (1, 2, 3)]
    wide = fleet.widen(models[0], 3, sample_input=split.inputs[:2])
    fleet.load_(wide, models)
    predicted, losses = outcomes(wide, split, batch_size=8)
    for i, model in enumerate(models):
        alone = predict(model, split)
        assert torch.equal(predicted[i], alone.predictions)
        torch.testing.assert_close(losses[i], alone.losses, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_losses_are_taken_in_float32_at_least(dtype: torch.dtype) -> None:
    logits = (torch.randn(2, 5, 3) * 20).to(dtype)
    labels = torch.randint(0, 3, (2, 5))
    losses = cross_entropies(logits, labels)
    assert losses.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = torch.logsumexp(logits.double(), -1) - logits.double().gather(-1, labels.unsqueeze(-1))[..., 0]
    torch.testing.assert_close(losses.double(), expected, rtol=1e-4, atol=1e-5)


def longhand(
    labels: list[int], groups: list[int], dense: list[int], pruned: list[int]
) -> tuple[float, float]:
    """max ψ and Ψ_PW by definition."""

    def accuracy(predictions: list[int], group: int | None) -> float:
        own = [p == y for p, y, g in zip(predictions, labels, groups, strict=True) if group in (None, g)]
        return sum(own) / len(own)

    present = sorted({g for g in groups if g >= 0})
    gaps = [accuracy(dense, g) - accuracy(pruned, g) for g in present]
    overall = accuracy(dense, None) - accuracy(pruned, None)
    return max(gaps) - overall, max(gaps) - min(gaps)


answers = st.lists(st.tuples(*[st.integers(0, 2)] * 3, st.integers(-1, 3)), min_size=1, max_size=30)


@given(answers)
@settings(max_examples=100)
def test_the_numbers_of_a_split_are_those_of_the_definition(rows: list[tuple[int, int, int, int]]) -> None:
    labels, dense, pruned, groups = (list(column) for column in zip(*rows, strict=True))
    split = Split(torch.zeros(len(rows), 1), torch.tensor(labels), torch.tensor(groups))
    reference = DenseReference.from_outcomes(
        correct=torch.tensor(dense) == split.labels,
        losses=torch.zeros(len(rows)),
        groups=split.groups,
        names=("a", "b", "c", "d"),
    )
    runs = torch.tensor([pruned, dense])
    found = scores(split, runs, torch.zeros(2, len(rows)), reference)
    absent = [g for g in range(4) if g not in groups]
    assert found["group_accuracy"].isnan().nonzero()[:, 1].tolist() == absent * 2
    if len(absent) == 4:
        assert found["max_excess_gap"].isnan().all()
        assert found["pairwise_disparity"].isnan().all()
        return
    expected = longhand(labels, groups, dense, pruned)
    assert (float(found["max_excess_gap"][0]), float(found["pairwise_disparity"][0])) == pytest.approx(
        expected
    )
    assert float(found["pairwise_disparity"][1]) == pytest.approx(0)
    assert float(found["accuracy"][0]) == pytest.approx(np.mean(np.equal(labels, pruned)))


class Items(Dataset[Any]):
    def __init__(self, split: Split, *, parts: int = 3) -> None:
        self.split, self.parts = split, parts

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        item = (self.split.inputs[i].numpy(), int(self.split.labels[i]), self.split.groups[i])
        return item[: self.parts]


def same(first: Split, second: Split) -> bool:
    return all(
        torch.equal(getattr(first, name), getattr(second, name)) for name in ("inputs", "labels", "groups")
    )


def test_tensors_arrays_and_data_sets_become_the_same_split() -> None:
    split = images(20)
    columns = (split.inputs, split.labels, split.groups)
    assert same(as_split(columns), split)
    assert same(as_split(tuple(c.numpy() for c in columns)), split)
    assert same(as_split(TensorDataset(*columns)), split)
    assert same(as_split(Items(split)), split)
    assert same(as_split(split), split)
    assert same(as_split(Items(split, parts=2), groups=split.groups.tolist()), split)
    assert same(as_split(list(Items(split))), split)
    scaled = as_split(columns, mean=[0.5], std=[2.0])
    torch.testing.assert_close(scaled.at(torch.arange(20)), (split.inputs - 0.5) / 2)


def test_data_of_another_kind_is_refused_with_what_to_do() -> None:
    split = images(20)
    with pytest.raises(ValueError, match=r"has 2 parts\. Give the group ids in `groups`"):
        as_split(Items(split, parts=2))
    loader: Any = DataLoader(Items(split))
    with pytest.raises(TypeError, match=r"DataLoader is neither.*pass its \.dataset"):
        as_split(loader)
    with pytest.raises(ValueError, match=r"labels are torch\.float32; give whole numbers"):
        as_split((split.inputs, split.labels.float(), split.groups))
    with pytest.raises(ValueError, match="The data set is empty"):
        as_split([])


def test_the_dense_reference_of_a_split_is_the_measured_one() -> None:
    split = images(40)
    model: nn.Module = trained(network(), split)
    batches: list[tuple[Tensor, Tensor, Tensor]] = [(split.inputs, split.labels, split.groups)]
    expected = DenseReference.measure(model, batches, names=NAMES)
    found = predict(model, split, batch_size=9).reference(NAMES)
    assert torch.equal(found.correct, expected.correct)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-4, atol=1e-5)


def test_inputs_follow_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A split that does not fit on the device is never moved there whole."""
    moved: list[bool] = []
    plain = Split.to

    def to(split: Split, device: torch.device, *, inputs: bool = True) -> Split:
        moved.append(inputs)
        return plain(split, device, inputs=inputs)

    monkeypatch.setattr(Split, "to", to)
    predict(network(), images(30), batch_size=8)
    assert moved == [False]
