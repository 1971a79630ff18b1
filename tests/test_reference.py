"""DenseReference: sums per group, missing labels, measuring, errors."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evenprune.reference import DenseReference


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(-1, 3), st.booleans(), st.floats(0, 10, allow_nan=False)),
        min_size=1,
        max_size=30,
    )
)
def test_sums_are_those_of_a_plain_loop(rows: list[tuple[int, bool, float]]) -> None:
    groups, correct, losses = (torch.tensor(column) for column in zip(*rows, strict=True))
    reference = DenseReference.from_outcomes(correct=correct, losses=losses, groups=groups, names="abcd")
    for group in range(4):
        mine = [row for row in rows if row[0] == group]
        assert reference.samples[group] == len(mine)
        assert reference.correct[group] == sum(row[1] for row in mine)
        assert reference.loss_sum[group].item() == pytest.approx(sum(row[2] for row in mine), rel=1e-6)
    assert reference.overall_accuracy == pytest.approx(sum(row[1] for row in rows) / len(rows))
    assert reference.overall_loss == pytest.approx(sum(row[2] for row in rows) / len(rows), rel=1e-6)
    missing = sum(row[0] == -1 for row in rows) / len(rows)
    assert reference.shares.sum().item() == pytest.approx(1 - missing)


def example() -> DenseReference:
    return DenseReference.from_outcomes(
        correct=torch.tensor([1, 0, 1, 1]).bool(),
        losses=torch.tensor([0.5, 1.5, 0.25, 1.0]),
        groups=torch.tensor([0, 0, 2, -1]),
        names=("a", "b", "c"),
    )


def test_json_round_trip_keeps_every_number() -> None:
    before = example()
    after = DenseReference.from_dict(json.loads(json.dumps(before.to_dict())))
    assert after.to_dict() == before.to_dict()
    assert after.accuracy[0] == 0.5
    assert after.accuracy[1].isnan()  # absent is not zero
    assert after.overall_accuracy == 0.75


class Noisy(nn.Module):
    """Wrong in training mode, right in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.frozen = nn.BatchNorm1d(2).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale * (-1 if self.training else 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_measure_evaluates_and_leaves_the_modes_of_the_model_alone(dtype: torch.dtype) -> None:
    x = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]], dtype=dtype)
    y, g = torch.tensor([0, 1, 1]), torch.tensor([0, 1, -1])
    model = Noisy().to(dtype)
    reference = DenseReference.measure(model, [(x[:2], y[:2], g[:2]), (x[2:], y[2:], g[2:])])
    assert reference.accuracy.tolist() == [1, 1]
    assert reference.overall_accuracy == pytest.approx(2 / 3)
    expected = nn.functional.cross_entropy(x.float(), y).item()
    assert reference.overall_loss == pytest.approx(expected, rel=1e-6)
    assert reference.names == ("0", "1")
    assert model.training
    assert not model.frozen.training


def test_errors_name_values_and_places() -> None:
    with pytest.raises(
        ValueError, match=r"group ids \[-2, 7\] are outside -1…1.*1 losses are not finite.*sample 1"
    ):
        DenseReference.from_outcomes(
            correct=torch.ones(3),
            losses=torch.tensor([1.0, float("nan"), 1.0]),
            groups=torch.tensor([7, 0, -2]),
            names=("a", "b"),
        )
    with pytest.raises(ValueError, match=r"correct \(2,\), losses \(3,\)"):
        DenseReference.from_outcomes(
            correct=torch.ones(2), losses=torch.ones(3), groups=torch.zeros(3).long(), names=("a",)
        )
    with pytest.raises(ValueError, match="no batches"):
        DenseReference.measure(nn.Identity(), [])
    with pytest.raises(ValueError, match=r"samples has shape \(1,\), expected \(2,\).*names repeat"):
        DenseReference(("a", "a"), torch.ones(1), torch.ones(2), torch.ones(2), 1.0, 1.0, 1.0)
